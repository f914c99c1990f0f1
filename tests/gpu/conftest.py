"""What the tests on devices share: which devices, told by --device, and engines on them.

`--device worker,worker` has workers on loopback as the devices, so that all but a GPU's own kernels can be
tested anywhere; `--device CUDA0` has a real one. Without it these tests are skipped.
"""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cobali_ray.backend import micro_batch, rpc_build, threads
from cobali_ray.backend.endpoint import WORKER
from cobali_ray.backend.rpc import greet
from cobali_ray.engine.opening import worker_cache
from cobali_ray.models.registry import resolve
from cobali_ray.ports import free_port

sys.path.append(str(Path(__file__).parents[1] / "model"))  # whose conversations and models are used here

from archs import models  # noqa: F401 - fixtures
from test_archs import alone_on  # noqa: F401
from test_llama_adapters import adapters  # noqa: F401
from test_llama_images import files  # noqa: F401

MEMORY_MIB = 2048
"""What each worker lends; one with a bound counts exactly what is taken of it."""

threads.apply_wait("passive", n_threads=2)


@pytest.fixture(scope="session")
def tiny():
    """The smallest built-in model, under the name by which fixtures of tests/model know it."""
    return resolve("builtin:synthetic-tiny")


class LentByWorkers:
    """Workers on loopback, which can be ended and started again where they were."""

    def __init__(self):
        rpc_build.built(worker_cache())
        self._running = {}

    def start(self, endpoint):
        """Start one, and wait for it."""
        words = ["--port", endpoint.rpartition(":")[2], "--threads", "1", "--memory", str(MEMORY_MIB)]
        command = [sys.executable, "-m", "cobali_ray", "worker", *words]
        self._running[endpoint] = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        greet(endpoint, 120)

    def end(self, endpoint):
        """Kill one."""
        worker = self._running.pop(endpoint)
        worker.kill()
        worker.wait(60)

    def close(self):
        """Kill all."""
        for endpoint in list(self._running):
            self.end(endpoint)


@pytest.fixture(scope="session")
def words(request):
    """What --device says, word by word."""
    asked = request.config.getoption("--device")
    if asked is None:
        pytest.skip("say which device: --device worker, or --device CUDA0; `make accelerator`")
    return asked.split(",")


@pytest.fixture(scope="session")
def workers(words):
    """The workers behind the devices; None where these are GPUs."""
    if WORKER not in words:
        yield None
        return
    with closing(LentByWorkers()) as lent:
        yield lent


@pytest.fixture(scope="session")
def devices(words, workers):
    """The value of the setting `devices`; workers are started once for all tests, and end with them."""
    names = [f"127.0.0.1:{free_port()}" if word == WORKER else word for word in words]
    for name, word in zip(names, words, strict=True):
        if word == WORKER:
            workers.start(name)
    return tuple(names)


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    """Have passes over several devices cut into parts, whatever that gains on this machine."""
    monkeypatch.setattr(micro_batch, "chosen", lambda times: times[-1][0])


@pytest.fixture
def where(devices):
    """What puts all layers of a model on the devices, as `LlamaConfig` has it."""
    return {"devices": devices, "n_gpu_layers": -1, "worker_cache": worker_cache()}
