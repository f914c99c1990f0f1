"""Devices as settings, workers that do not answer, and what would make a model fit."""

import socket
import struct
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cobali_ray.actors.layout import gpu_shares, places
from cobali_ray.backend import embedding_only, fit, micro_batch, rpc_build
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.devices import ComputeDevice, Devices
from cobali_ray.backend.endpoint import address_of
from cobali_ray.backend.fit import MemoryNeed, refusal_of
from cobali_ray.backend.rpc import PROTOCOL, greet
from cobali_ray.engine.opening import lies_on_devices
from cobali_ray.errors import ConfigError
from cobali_ray.settings import read_settings

HERE = "127.0.0.1:50052"
MIB = 1 << 20


@pytest.mark.parametrize(
    ("values", "why"),
    [
        pytest.param({"devices": []}, "devices: must name", id="none"),
        pytest.param({"devices": "auto,CUDA0"}, "devices: auto stands alone", id="auto-and-more"),
        pytest.param({"devices": ["CUDA0"] * 2}, "devices: one is named twice", id="twice"),
        pytest.param({"devices": ["worker"] * 17}, "devices: .* at most 16, got 17", id="too-many"),
        pytest.param(
            {"devices": "CUDA0", "n_gpu_layers": 0}, "devices: with n_gpu_layers: 0", id="no-layers"
        ),
        pytest.param({"devices": "10.0.0.5:50052"}, "devices: .* set worker_key_file", id="another-machine"),
        pytest.param({"devices": "[::1]:50052"}, "devices: .* 127.0.0.1 only", id="ipv6"),
        pytest.param({"devices": "::1:50052"}, "devices: .* is not HOST:PORT", id="ipv6-without-brackets"),
        pytest.param({"worker_key_file": "k"}, "worker_key_file: needs the HOST:PORT", id="key-of-none"),
        pytest.param({"devices": HERE, "split_fallback": True}, "split_fallback: needs", id="no-other"),
        pytest.param({"devices": "A,B", "split_fallback": True}, "split_fallback: needs", id="no-worker"),
        pytest.param({"devices": "127.0.0.1:x"}, "devices: .* is not HOST:PORT", id="no-port"),
        pytest.param({"devices": HERE, "replicas": 2}, "devices: a worker serves one engine", id="replicas"),
        pytest.param({"devices": "worker", "split_mode": "row"}, "split_mode: row needs", id="rows"),
        pytest.param({"main_device": "CUDA1"}, "main_device: needs split_mode: none", id="main-of-several"),
        pytest.param({"devices": "A,B", "tensor_split": "1"}, "tensor_split: needs a number", id="too-few"),
        pytest.param({"tensor_split": "1,2"}, "tensor_split: .* devices that are named", id="of-unnamed"),
        pytest.param({"devices": "A,B", "tensor_split": "0,0"}, "tensor_split: one number", id="all-zero"),
        pytest.param({"split_mode": "tensor", "flash_attn": "off"}, "split_mode: tensor needs", id="flash"),
        pytest.param({"split_mode": "tensor", "type_k": "q8_0"}, "split_mode: .* no quantised", id="cells"),
        pytest.param({"worker_memory_mib": 64}, "worker_memory_mib: needs a `worker`", id="memory-of-none"),
        pytest.param(
            {"devices": "ray-gpu", "worker_memory_mib": 64}, "worker_memory_mib: needs", id="memory-of-a-gpu"
        ),
        pytest.param(
            {"devices": "worker,CUDA0", "split_fallback": True}, "split_fallback: needs", id="only-own"
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(values, why):
    with pytest.raises(ConfigError, match=why):
        read_settings(values)


def test_devices_are_read_as_they_are_written():
    llama = read_settings({"devices": "worker, CUDA0,worker", "tensor_split": "1,2.5,0"}).llama
    assert (llama.devices, llama.tensor_split) == (("worker", "CUDA0", "worker"), (1.0, 2.5, 0.0))
    assert address_of("localhost:1") == ("127.0.0.1", 1)
    assert address_of("[fd00::5]:50053") == ("fd00::5", 50053)
    far = read_settings({"devices": "gpu-box:50053", "worker_key_file": "~/worker.key"}).llama
    assert far.worker_key_file == Path.home() / "worker.key"


@pytest.mark.parametrize(
    ("values", "has_gpu", "expected"),
    [
        pytest.param({}, True, True, id="gpu"),
        pytest.param({}, False, False, id="no-gpu"),
        pytest.param({"n_gpu_layers": -1}, False, False, id="asked-for-without-one"),
        pytest.param({"n_gpu_layers": 8}, True, False, id="some-layers-are-here"),
        pytest.param({"devices": "CUDA0,ray-gpu"}, False, True, id="named"),
        pytest.param({"devices": HERE}, False, True, id="lent"),
        pytest.param({"devices": HERE, "n_gpu_layers": 1}, False, False, id="the-rest-of-it-lies-here"),
        pytest.param({"devices": "CUDA0,worker"}, False, False, id="a-worker-s-memory-is-this-machine-s"),
    ],
)
def test_what_lies_on_devices_takes_no_memory_of_this_machine(monkeypatch, values, has_gpu, expected):
    monkeypatch.setattr("cobali_ray.backend.devices.has_gpu", lambda: has_gpu)
    monkeypatch.setattr("cobali_ray.backend.threads.apply_wait", lambda *_, **__: "brief")
    settings, path = read_settings(values), Path("model.gguf")
    assert lies_on_devices(settings, path) == expected
    assert not lies_on_devices(settings, None), "a script"


@pytest.mark.parametrize(
    ("devices", "share"),
    [
        ("auto", 1),
        ("CUDA0", 1),
        (f"worker,{HERE}", 0),
        (f"CUDA0,{HERE}", 1),
        ("CUDA0,CUDA1", 2),
        ("ray-gpu,ray-gpu", 0),
        ("CUDA0,ray-gpu", 1),
    ],
)
def test_an_engine_has_as_many_gpus_reserved_as_it_names(devices, share):
    assert list(gpu_shares(places(read_settings({"devices": devices})), 2).values()) == [share]


def test_gpus_that_ray_lends_to_one_engine_are_not_shared_among_the_others():
    engines = {"a": {"model": "a", "devices": "CUDA0,ray-gpu"}, "b": {"model": "b"}}
    assert gpu_shares(places(read_settings({"engines": engines})), 2) == {"a": 0.5, "b": 0.5}


@pytest.fixture
def peer():
    """A listening socket, and a function that has it answer one greeting."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"

        def answer(version):
            def serve():
                connection, _ = server.accept()
                with connection:
                    connection.recv(64)
                    connection.sendall(struct.pack("<Q", 28) + bytes([*version, 0]) + bytes(24))

            threading.Thread(target=serve, daemon=True).start()
            return endpoint

        yield endpoint, answer


def test_a_worker_of_this_version_is_greeted(peer):
    _, answer = peer
    greet(answer(PROTOCOL))


def test_a_worker_of_another_version_is_refused(peer):
    _, answer = peer
    endpoint = answer((6, 1, 0))
    with pytest.raises(ConfigError, match=rf"{endpoint} speaks version 6\.1\.0 .* this is 7\.0\.0"):
        greet(endpoint)


def test_a_worker_that_serves_another_is_not_waited_for_without_end(peer):
    endpoint, _ = peer
    with pytest.raises(ConfigError, match=f"{endpoint}: no answer within .* one engine at a time"):
        greet(endpoint, timeout_s=0.2)


def test_nobody_at_an_endpoint_is_said_with_what_starts_a_worker():
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ConfigError, match=f"{endpoint}: nobody answers there .*`cobali worker`"):
        greet(endpoint, timeout_s=0.2)


@pytest.mark.parametrize(
    ("compiler", "why"),
    [
        pytest.param("exit 3", "exit code 3", id="silent"),
        pytest.param(
            "echo 'a.cpp:1: fatal error: no such header' >&2; exit 1", "no such header", id="says-why"
        ),
    ],
)
def test_a_library_that_cannot_be_built_says_why_and_leaves_nothing(tmp_path, monkeypatch, compiler, why):
    script = tmp_path / "compiler"
    script.write_text(f"#!/bin/sh\n{compiler}\n")
    script.chmod(0o755)
    monkeypatch.setattr(rpc_build, "_source", lambda scratch: scratch)
    with pytest.raises(ConfigError, match=f"devices: .* could not be compiled: .*{why}"):
        rpc_build.built(tmp_path / "cache", {"CXX": str(script)})
    assert [file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()] == ["lock"]


def test_a_library_is_built_once(tmp_path, monkeypatch):
    script = tmp_path / "compiler"
    script.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho built >> "$2"\n')
    script.chmod(0o755)
    monkeypatch.setattr(rpc_build, "_source", lambda scratch: scratch)
    for _ in range(2):
        library = rpc_build.built(tmp_path / "cache", {"CXX": str(script)})
    assert library.read_text() == "built\n"


def need(*, weights=100, cells=64, buffers=20, free=1000):
    return MemoryNeed("CUDA0", weights * MIB, int(cells * MIB), buffers * MIB, free * MIB)


def config(**changes):
    asked = {"path": Path("m.gguf"), "n_slots": 8, "n_ctx": 4096, "n_batch": 512, "n_threads": 1}
    return LlamaConfig(**asked | {"n_gpu_layers": -1} | changes)


@pytest.mark.parametrize(
    ("free", "changes", "remedies"),
    [
        pytest.param(
            160,
            {},
            ["lower n_slots to 5", "lower n_ctx to 2560", "set type_k and type_v to q8_0"],
            id="part-of-the-cells",
        ),
        pytest.param(140, {}, ["lower n_slots to 2", "lower n_ctx to 1280"], id="few-cells"),
        pytest.param(140, {"kv": "unified", "kv_cells": 20_000}, ["lower kv_cells to 6250"], id="unified"),
        pytest.param(110, {}, ["lower token_budget, which is 512"], id="no-cells"),
        pytest.param(90, {}, ["use a model with smaller weights"], id="weights"),
    ],
)
def test_a_model_that_is_too_large_says_what_would_make_it_fit(free, changes, remedies):
    refusal = refusal_of(config(**changes), [need(), need(free=free)])
    assert refusal.setting == "devices"
    *said, last = str(refusal).partition("To make it fit: ")[2].split("; or ")
    assert said == remedies
    lacking = (184 - free) * MIB / 1e6
    assert last == f"add a device that has {lacking:.1f} MB free to devices, here or on another machine"


@pytest.mark.parametrize(("free", "why"), [(160, "To make it fit"), (184, "no reason given")])
def test_why_a_gpu_could_not_hold_a_model_is_looked_at_afterwards(monkeypatch, free, why):
    def fail(*_):
        raise ConfigError("model", "no reason given")

    gpu = ComputeDevice("CUDA0", "a GPU", "GPU", 1)
    monkeypatch.setattr(embedding_only, "open_devices", lambda _: Devices([gpu]))
    monkeypatch.setattr(embedding_only, "load_model", fail)
    monkeypatch.setattr(fit, "needs", lambda *_: [need(free=free)])
    with pytest.raises(ConfigError, match=why):
        embedding_only.open_llama(config())


@pytest.mark.parametrize(
    ("changes", "missing", "fits"),
    [
        pytest.param({}, ["far:1"], {"n_slots": 5}, id="fewer-slots"),
        pytest.param({"kv": "unified", "kv_cells": 20_000}, ["far:1"], {"kv_cells": 12_500}, id="cells"),
        pytest.param({"fewer_slots": True}, [], {"n_slots": 5}, id="slots-left-open"),
        pytest.param({}, [], None, id="all-are-there"),
        pytest.param({"n_slots": 1}, ["far:1"], None, id="not-even-one-slot"),
    ],
)
def test_a_model_is_opened_smaller_where_a_worker_is_missing_or_slots_are_left_open(
    monkeypatch, changes, missing, fits
):
    near = ComputeDevice("near:1", "lent by a worker", "GPU", 1, lent=True)
    asked = config(**changes)

    def needs(given, _):
        share = given.n_cells_requested / asked.n_cells_requested
        return [need(cells=64 * share, free=160)]

    monkeypatch.setattr(fit, "needs", needs)
    devices = Devices([near], missing=missing)
    if fits is None:
        with pytest.raises(ConfigError, match="To make it fit"):
            fit.fitting(asked, devices)
    else:
        assert fit.fitting(asked, devices) == replace(asked, **fits)


def test_shares_are_those_of_the_devices_that_are_there():
    class Params:
        pass

    near = ComputeDevice("near:1", "lent by a worker", "GPU", 1, lent=True)
    asked = config(devices=("far:1", "near:1"), tensor_split=(3.0, 1.0))
    Devices([near], missing=["far:1"]).configure(params := Params(), asked)
    assert list(params.tensor_split[:2]) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("n_batch", "n_slots", "n_devices", "tried"),
    [
        pytest.param(528, 16, 2, [528, 264, 132], id="two-devices"),
        pytest.param(528, 16, 4, [528, 132, 66], id="four"),
        pytest.param(528, 16, 1, [528], id="nobody-to-share-with"),
        pytest.param(528, 200, 2, [528, 264], id="a-row-of-each-slot-fits"),
        pytest.param(100, 4, 2, [100], id="too-short-to-cut"),
    ],
)
def test_passes_are_tried_whole_and_in_equal_parts(n_batch, n_slots, n_devices, tried):
    assert micro_batch.sizes(n_batch, n_slots, n_devices) == tried


@pytest.mark.parametrize(
    ("seconds", "size"),
    [
        pytest.param([1.0, 0.95, 0.92], 528, id="not-clearly-faster"),
        pytest.param([1.0, 0.8, 0.7], 132, id="more-parts"),
        pytest.param([1.0, 0.7, 0.8], 264, id="fewer-parts"),
        pytest.param([1.0], 528, id="too-slow-to-try"),
    ],
)
def test_passes_are_cut_where_that_is_clearly_faster(seconds, size):
    assert micro_batch.chosen(list(zip([528, 264, 132], seconds, strict=False))) == size


def test_what_fits_is_not_refused():
    assert refusal_of(config(), [need(), need(free=184)]) is None
