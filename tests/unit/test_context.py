"""`n_ctx: auto` in numbers: what bounds it, and what it is where something is not known."""

import pytest

from cobali_ray.engine.context import largest_context, needed_bytes, settled
from cobali_ray.engine.opening import files_beside
from cobali_ray.errors import ConfigError
from cobali_ray.models.registry import resolve
from cobali_ray.settings import EngineSettings, read_settings

GB = 10**9


@pytest.mark.parametrize(
    ("settings", "known", "expected"),
    [
        pytest.param(
            {}, {"n_trained": 32_768, "cell_bytes": 12_288, "free_bytes": 64 * GB}, 32_768, id="trained"
        ),
        pytest.param(
            {}, {"n_trained": 131_072, "cell_bytes": 12_288, "free_bytes": 8 * GB}, 20_224, id="memory"
        ),
        pytest.param(
            {"n_slots": 4},
            {"n_trained": 131_072, "cell_bytes": 12_288, "free_bytes": 8 * GB},
            81_152,
            id="fewer",
        ),
        pytest.param(
            {"mode": "sequential"},
            {"n_trained": 131_072, "cell_bytes": 12_288, "free_bytes": 8 * GB},
            131_072,
            id="one-at-a-time",
        ),
        pytest.param({}, {"n_trained": 1000, "cell_bytes": 1, "free_bytes": GB}, 1000, id="odd-training"),
        pytest.param(
            {}, {"n_trained": 8192, "cell_bytes": 12_288, "free_bytes": 1}, 256, id="hardly-any-memory"
        ),
        pytest.param({}, {"n_trained": 8192, "cell_bytes": None, "free_bytes": GB}, 4096, id="unknown-cells"),
        pytest.param(
            {}, {"n_trained": 8192, "cell_bytes": 100, "free_bytes": None}, 4096, id="unknown-memory"
        ),
        pytest.param(
            {}, {"n_trained": 2048, "cell_bytes": None, "free_bytes": None}, 2048, id="short-training"
        ),
        pytest.param(
            {}, {"n_trained": None, "cell_bytes": 100, "free_bytes": GB}, 4096, id="unknown-training"
        ),
        pytest.param(
            {"kv_cells": 20_000},
            {"n_trained": 131_072, "cell_bytes": None, "free_bytes": 1},
            20_000,
            id="kv-cells",
        ),
        pytest.param(
            {"n_slots": 256},
            {"n_trained": 2**30, "cell_bytes": 1, "free_bytes": 2**62},
            8_388_607,
            id="positions",
        ),
    ],
)
def test_the_largest_context(settings, known, expected):
    assert largest_context(read_settings({"n_ctx": "auto"} | settings), **known) == expected


def test_a_number_is_left_alone_and_the_scripted_model_has_the_default():
    assert settled(read_settings({"n_ctx": 64}), None, on_gpu=False).n_ctx == 64
    assert settled(read_settings({"n_ctx": "auto"}), None, on_gpu=False).n_ctx == 4096


def test_on_a_gpu_nothing_is_known_of_its_memory(tmp_path):
    settings, path = read_settings({"n_ctx": "auto", "n_slots": 1}), resolve("builtin:synthetic-tiny")
    assert settled(settings, path, on_gpu=True).n_ctx == 4096
    assert settled(settings, path, on_gpu=False).n_ctx == 32_768


@pytest.mark.parametrize("value", ["all", 15, -1])
def test_what_is_no_context(value):
    with pytest.raises(ConfigError, match=r"n_ctx: .*(auto|16)"):
        read_settings({"n_ctx": value})


def test_auto_comes_from_the_environment_too(monkeypatch):
    monkeypatch.setenv("COBALI_N_CTX", "auto")
    assert EngineSettings().n_ctx == "auto"
    monkeypatch.setenv("COBALI_N_CTX", "512")
    assert EngineSettings().n_ctx == 512


def test_a_model_needs_its_weights_and_the_cells_of_all_slots():
    path = resolve("builtin:tiny")
    assert needed_bytes(EngineSettings(model="builtin:scripted"), None) == 0
    one, two = (needed_bytes(EngineSettings(n_slots=n, n_ctx=1024), path) for n in (1, 2))
    assert one - (two - one) == path.stat().st_size, "beside the cells of a slot"
    assert needed_bytes(EngineSettings(n_slots=2, n_ctx=1024, kv_cells=1024, kv="unified"), path) == one


def test_adapters_are_loaded_beside_it_each_file_once():
    path, file = resolve("builtin:synthetic-tiny"), "builtin:synthetic-adapter"
    settings = read_settings({"adapters": {"a": file, "b": {"file": file, "scale": 2}, "c": f"{file}:7"}})
    found = files_beside(settings, path)
    assert len(found) == 2
    assert all(one.stat().st_size for one in found)
    assert not files_beside(settings, None), "the scripted model has no files"
