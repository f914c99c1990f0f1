"""Layers on devices, with workers on loopback as the devices: the answers of the CPU, in a GPU's order.

What takes longer, and a real GPU, is in tests/gpu (`make accelerator`).
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from array import array
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace

import numpy as np
import psutil
import pytest
from test_archs import Served, alone_on, converse, differences, drawn  # noqa: F401 - a fixture
from typer.testing import CliRunner

from cobali_ray.actors import model_host
from cobali_ray.actors.loaded_model import LoadedModel
from cobali_ray.actors.model_host import ModelHost
from cobali_ray.backend import devices as device_module
from cobali_ray.backend import rpc_build
from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.devices import open_devices
from cobali_ray.backend.fit import need_here, needs
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.backend.loss import Loss
from cobali_ray.backend.rpc import greet
from cobali_ray.backend.tunnel_key import make_key
from cobali_ray.cli import app
from cobali_ray.core.plan.plan import Span
from cobali_ray.engine.opening import MonotonicClock, llama_config, open_backend, worker_cache
from cobali_ray.errors import ConfigError
from cobali_ray.ports import free_port
from cobali_ray.settings import read_settings
from cobali_workloads.inside.timed_worker import TimedWorker
from tests.waiting import until, wait_until

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]  # the first fetches a source and compiles it

TWO = {"devices": ("worker", "worker")}


@pytest.fixture(scope="module", autouse=True)
def library():
    """Have the library of workers built, in the user's own cache."""
    return rpc_build.built(worker_cache())


def n_workers():
    commands = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended, or waits to be collected
            commands.append(" ".join(child.cmdline()))
    return sum("cobali_ray.backend.worker" in command for command in commands)


def test_two_devices_give_the_answers_of_the_cpu(models, alone_on, tmp_path):  # noqa: F811
    path, before = models("dense"), n_workers()
    served = Served(path, tmp_path, **TWO)
    assert n_workers() == before + 2
    assert served.engine.backend.overlaps
    converse(served)
    assert differences(served, alone_on(path, "f16", "auto")) == {}
    assert served.calls["copy"] > 1
    assert served.calls["swap"] > 0
    assert served.total("n_host_hits") > 2
    assert served.total("n_preempted") > 0
    served.close()
    assert n_workers() == before, "they are gone with their engine"


def test_a_model_lies_partly_on_a_device(models, alone_on, tmp_path):  # noqa: F811
    path = models("dense")
    served = Served(path, tmp_path, devices=("worker",), n_gpu_layers=1)
    assert not served.engine.backend.overlaps
    prompt = drawn(1, 90)
    served.ask("one", prompt)
    served.ask("another", prompt[:60] + drawn(2, 20))
    assert differences(served, alone_on(path, "f16", "auto")) == {}
    served.close()


def test_what_is_too_large_for_one_device_is_served_on_two(tiny):
    asked = {"n_slots": 8, "prefill_chunk": 128, "worker_memory_mib": 64, "n_threads": 1, "flash_attn": "on"}
    with pytest.raises(ConfigError, match=r"has 67\.1 MB free.* lower n_slots to 7") as refused:
        open_backend(read_settings(asked | {"devices": "worker"}), tiny)
    assert refused.value.setting == "devices"
    config = llama_config(read_settings(asked | TWO), tiny)
    devices = open_devices(config)
    assert all(need.fits and need.weights and need.cells and need.buffers for need in needs(config, devices))
    LlamaBackend(config, devices=devices).close()


def test_a_prompt_keeps_two_devices_busy(models):
    """Each computes a part of it while the other computes another: they take their time, by the clock."""
    n, path, tokens = 512, models("window-one-in-four"), array("i", drawn(1, 512))
    config = LlamaConfig(path=path, n_slots=2, n_ctx=512, n_batch=n, n_threads=1, flash_attn="on")
    spans, logits = (Span(0, 0, n, sample=True),), []
    with ExitStack() as stack:
        slow = [stack.enter_context(TimedWorker(worker_cache(), row_s=4e-4)) for _ in "ab"]
        ends = tuple(worker.endpoint for worker in slow)
        on_two = replace(config, devices=ends, n_gpu_layers=-1, worker_cache=worker_cache())
        for one in (config, on_two):
            backend = stack.enter_context(closing(LlamaBackend(one)))
            (batch := TickBatch(n)).fill(spans, [tokens])
            began_s = time.perf_counter()
            backend.forward(batch)
            logits.append(backend._read_logits(1)[0].copy())
        beside_s, alone_s = both(*(worker.spans(began_s) for worker in slow))
        assert np.abs(logits[0] - logits[1]).max() < 0.1
        assert beside_s > 0.3 * alone_s, "without parts they take turns"


def both(one, other):
    """Return how long two devices computed at once, and how long the first did in all."""
    pairs = itertools.product(one, other)
    at_once = sum(max(min(a.end_s, b.end_s) - max(a.start_s, b.start_s), 0.0) for a, b in pairs)
    return at_once, sum(span.end_s - span.start_s for span in one)


@pytest.mark.parametrize(("family", "speculation"), [("dense", "off"), ("moe-head", "auto")])
def test_what_a_model_takes_of_this_machine_is_its_file_and_the_cells_that_its_file_tells(
    models, family, speculation
):
    """Where it guesses with a head of its own, that and the head's cells are among them."""
    path = models(family)
    asked = {"model": str(path), "n_slots": 8, "n_ctx": 1024, "speculation": speculation}
    config = llama_config(read_settings(asked), path)
    need = need_here(config, open_devices(config))
    assert (need.device, need.cells) == ("CPU", config.cache_bytes)
    assert 0.5 * path.stat().st_size < need.weights <= path.stat().st_size
    assert need.buffers


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        pytest.param({"devices": "CPU"}, "devices: CPU holds no layers", id="the-cpu"),
        pytest.param({"devices": "CUDA7"}, "devices: there is no CUDA7", id="not-there"),
        pytest.param({"devices": "ray-cpu"}, "devices: ray-cpu: only engines of a server", id="without-ray"),
        pytest.param(
            {"split_mode": "none", "main_device": "CUDA7", "n_gpu_layers": -1},
            "main_device: CUDA7 is not among the devices",
            id="main-not-there",
        ),
    ],
)
def test_a_device_that_can_hold_no_layer_is_refused_by_name(tiny, asked, why):
    with pytest.raises(ConfigError, match=why):
        open_backend(read_settings(asked), tiny)


def test_the_command_lists_devices():
    done = CliRunner().invoke(app, ["devices", "builtin:synthetic-tiny", "--json"])
    (cpu,) = [one for one in json.loads(done.stdout)["devices"] if one["kind"] == "CPU"]
    assert not cpu["holds_layers"]
    assert cpu["total_bytes"] > 0


SCRIPT = """
import sys, psutil
from cobali_ray.backend import threads
from cobali_ray.engine.opening import model_path, open_backend
from cobali_ray.settings import read_settings

threads.apply_wait("passive", n_threads=1)
settings = read_settings({"model": "builtin:synthetic-tiny", "n_slots": 1, "n_ctx": 256, "n_threads": 1,
                          "devices": "worker"})
backend = open_backend(settings, model_path(settings))
print(*[child.pid for child in psutil.Process().children()], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("dies", ["worker", "engine"])
def test_an_engine_and_its_worker_die_together(tmp_path, dies):
    log = tmp_path / "log"
    with (
        log.open("wb") as file,
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
        ) as engine,
    ):
        lines = iter(engine.stdout.readline, b"")
        pid = next(int(line) for line in lines if line.strip().isdigit())
        os.kill(pid if dies == "worker" else engine.pid, signal.SIGKILL)
        rest = b"".join(lines)
        code = engine.wait(60)
    wait_until(lambda: not psutil.pid_exists(pid))
    if dies == "worker":
        assert code == -signal.SIGABRT, "as llama.cpp ends a process whose device is gone"
        assert b"worker_lost" in (told := rest + log.read_bytes())
        assert b"worker-1" in told


def test_a_worker_serves_one_engine_after_another(tiny):
    endpoint = f"127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "cobali_ray", "worker", "--port", str(port), "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as worker:
        try:
            greet(endpoint, 120)
            asked = {"n_slots": 1, "n_ctx": 256, "n_threads": 1, "devices": endpoint}
            backend = open_backend(read_settings(asked), tiny)
            with pytest.raises(ConfigError, match=f"{endpoint}: no answer within .* another may have it"):
                greet(endpoint, 0.5)
            backend.close()
            greet(endpoint, 120)
        finally:
            worker.send_signal(signal.SIGINT)
        assert worker.wait(60) == -signal.SIGINT


@contextmanager
def lending(address, key, folder):
    """A worker that is reached through a tunnel."""
    command = [sys.executable, "-m", "cobali_ray", "worker", "--listen", address, "--key-file", key]
    command += ["--threads", "1", "--memory", "64", "--cache-dir", folder]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as worker:
        try:
            yield
        finally:
            worker.kill()


@pytest.fixture
def far(monkeypatch, tmp_path):
    """The address of a worker that is not there, which an engine does not wait for for long, and its key."""
    monkeypatch.setattr(device_module, "SPARE_S", 1.0)
    monkeypatch.setattr(model_host, "LOOK_S", 0.0)
    monkeypatch.setattr(Loss, "end", lambda *_: None)  # which would end the tests, too
    make_key(key := tmp_path / "key")
    return f"127.0.0.1:{free_port()}", key


async def test_an_engine_does_without_a_worker_and_takes_it_back(tiny, far, tmp_path):
    address, key = far
    asked = {"n_slots": 8, "prefill_chunk": 128, "worker_memory_mib": 64, "n_threads": 1, "flash_attn": "on"}
    asked |= {"devices": (address, "worker"), "worker_key_file": key, "split_fallback": True}
    settings, clock = read_settings(asked), MonotonicClock()

    def load():
        facts = {"engine_id": "0", "node": "", "began_unix_s": 0.0}
        return LoadedModel(settings, tiny, clock, lambda _: None, **facts)

    host = ModelHost(settings, tiny, clock, load, lambda: 0)
    (near, missing) = host.model.devices.look()
    assert (near.there, missing.there, missing.name) == (True, False, address)
    assert host.state().n_slots == 7, "as many as the other device holds"
    assert host.model.room == "7 of 8 slots"
    with lending(address, key, tmp_path):

        def whole():
            host.reload_if_whole()
            return host.model is not None and host.state().n_slots == 8

        def all_tell():
            return all(view.there and view.busy_s is not None for view in host.model.devices.look())

        await until(whole, timeout_s=120)
        await until(all_tell, timeout_s=60)
        await host.unload()


def test_through_a_tunnel_come_the_answers_of_the_cpu(models, alone_on, far, tmp_path):  # noqa: F811
    (address, key), path = far, models("dense")
    with lending(address, key, tmp_path):
        served = Served(path, tmp_path, devices=(address,), worker_key_file=key)
        assert served.engine.backend.overlaps
        served.ask("one", drawn(1, 90))
        served.ask("another", drawn(1, 60) + drawn(2, 20))
        assert differences(served, alone_on(path, "f16", "auto")) == {}
        served.close()
