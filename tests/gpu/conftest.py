"""What the tests on devices share: which devices, told by --device, and engines on them.

`--device worker,worker` has workers on loopback as the devices, so that all but a GPU's own kernels can be
tested anywhere; `--device CUDA0` has a real one. Without it these tests are skipped.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from cobali_ray.backend import rpc_build, threads
from cobali_ray.backend.endpoint import WORKER
from cobali_ray.backend.rpc import greet
from cobali_ray.engine.opening import worker_cache
from cobali_ray.models.registry import resolve
from cobali_ray.ports import free_port

sys.path.append(str(Path(__file__).parents[1] / "model"))  # whose conversations and models are used here

from test_archs import alone_on, models  # noqa: F401 - fixtures
from test_llama_adapters import adapters  # noqa: F401

threads.apply_wait("passive", n_threads=2)


@pytest.fixture(scope="session")
def tiny():
    """The smallest built-in model, under the name by which fixtures of tests/model know it."""
    return resolve("builtin:synthetic-tiny")


@pytest.fixture(scope="session")
def devices(request):
    """The value of the setting `devices`; workers are started once for all tests, and end with them."""
    words = request.config.getoption("--device")
    if words is None:
        pytest.skip("say which device: --device worker, or --device CUDA0; `make accelerator`")
    names, started = [], []
    for word in words.split(","):
        if word == WORKER:
            rpc_build.built(worker_cache())
            port = free_port()
            command = [sys.executable, "-m", "cobali_ray", "worker", "--port", str(port), "--threads", "1"]
            started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        names.append(f"127.0.0.1:{port}" if word == WORKER else word)
    for name in names:
        if ":" in name:
            greet(name, 60)
    yield tuple(names)
    for worker in started:
        worker.terminate()
        worker.wait(60)
