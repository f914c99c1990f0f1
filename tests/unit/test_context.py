"""`n_ctx` and `n_slots`, if they are auto, in numbers: what bounds them, and what they are without that."""

import re

import pytest
from gguf import GGUFWriter

from cobali_ray.backend.cache_need import CacheNeed
from cobali_ray.engine.context import (
    Sizes,
    find_need,
    largest_sizes,
    needed_bytes,
    refusal_of_cache,
    require_servable,
    sizes_of,
)
from cobali_ray.engine.opening import files_beside
from cobali_ray.errors import ConfigError
from cobali_ray.models.registry import resolve
from cobali_ray.settings import EngineSettings, read_settings

GB = 10**9
CELLS, SMALL = CacheNeed(12_288, 0), CacheNeed(1, 0)


@pytest.mark.parametrize(
    ("settings", "known", "expected"),
    [
        pytest.param({}, {"n_trained": 32_768, "need": CELLS, "free_bytes": 64 * GB}, 32_768,
            id="trained"),
        pytest.param({}, {"n_trained": 131_072, "need": CELLS, "free_bytes": 8 * GB}, 20_224,
            id="memory"),
        pytest.param({"n_slots": 4}, {"n_trained": 131_072, "need": CELLS, "free_bytes": 8 * GB},
            81_152, id="fewer"),
        pytest.param({"n_slots": 1}, {"n_trained": 131_072, "need": CELLS, "free_bytes": 8 * GB},
            131_072, id="one-at-a-time"),
        pytest.param({}, {"n_trained": 1000, "need": SMALL, "free_bytes": GB}, 1000, id="odd-training"),
        pytest.param({}, {"n_trained": 8192, "need": CELLS, "free_bytes": 1}, 256,
            id="hardly-any-memory"),
        pytest.param({}, {"n_trained": 8192, "need": None, "free_bytes": GB}, 4096, id="unknown-cells"),
        pytest.param({}, {"n_trained": 8192, "need": CacheNeed(100, 0), "free_bytes": None}, 4096,
            id="unknown-memory"),
        pytest.param({}, {"n_trained": 2048, "need": None, "free_bytes": None}, 2048,
            id="short-training"),
        pytest.param({}, {"n_trained": None, "need": CacheNeed(100, 0), "free_bytes": GB}, 4096,
            id="unknown-training"),
        pytest.param({"kv_cells": 20_000}, {"n_trained": 131_072, "need": None, "free_bytes": 1},
            20_000, id="kv-cells"),
        pytest.param({"n_slots": 256}, {"n_trained": 2**30, "need": SMALL, "free_bytes": 2**62}, 8_388_607,
            id="positions"),
        pytest.param({}, {"n_trained": 131_072, "need": CacheNeed(12_288, 100 * 10**6), "free_bytes": 8 * GB},
            12_032, id="states-of-each-slot"),
        pytest.param({}, {"n_trained": 131_072, "need": CacheNeed(0, 10**6), "free_bytes": GB}, 131_072,
            id="states-and-no-cells"),
    ],
)  # fmt: skip
def test_the_largest_context(settings, known, expected):
    assert largest_sizes(read_settings({"n_ctx": "auto"} | settings), **known).n_ctx == expected


TRAINED = {"n_trained": 131_072, "free_bytes": 8 * GB}


@pytest.mark.parametrize(
    ("settings", "known", "expected"),
    [
        pytest.param({"n_ctx": 8192}, TRAINED | {"need": CELLS}, (16, 8192), id="all-of-them"),
        pytest.param({"n_ctx": 32_768}, TRAINED | {"need": CELLS}, (9, 32_768), id="memory"),
        pytest.param({"n_ctx": 131_072}, TRAINED | {"need": CacheNeed(10**5, 0)}, (1, 131_072), id="one"),
        pytest.param({"n_ctx": 4096}, TRAINED | {"need": CacheNeed(0, 300 * 10**6)}, (13, 4096), id="states"),
        pytest.param({"n_ctx": 32_768}, TRAINED | {"need": CacheNeed(12_288, 0, 122_880, 1024)}, (6, 32_768),
            id="windows-keep-a-window-and-a-batch"),
        pytest.param({"n_ctx": 32_768, "kv_cells": 65_536},
            TRAINED | {"need": CacheNeed(12_288, 300 * 10**6)}, (10, 32_768), id="states-beside-a-pool"),
        pytest.param({"n_ctx": "auto"}, TRAINED | {"need": CELLS}, (16, 20_224), id="both"),
        pytest.param({"n_ctx": "auto"}, TRAINED | {"need": CacheNeed(122_880, 0)}, (7, 4608),
            id="both-with-little-memory"),
        pytest.param({"n_ctx": "auto"}, TRAINED | {"n_trained": 2048, "need": CacheNeed(122_880, 0)},
            (15, 2048), id="both-with-short-training"),
        pytest.param({"n_ctx": 10**6}, TRAINED | {"need": None}, (16, 10**6), id="unknown-cells"),
        pytest.param({"n_ctx": 4096, "token_budget": 8}, TRAINED | {"need": CELLS}, (8, 4096), id="budget"),
    ],
)  # fmt: skip
def test_as_many_slots_as_there_is_room_for(settings, known, expected):
    sizes = largest_sizes(read_settings({"n_slots": "auto"} | settings), **known)
    assert sizes == expected


def test_numbers_are_left_alone_and_the_scripted_model_has_the_defaults():
    assert sizes_of(read_settings({"n_slots": 3, "n_ctx": 64}), None, None) == Sizes(3, 64)
    assert sizes_of(read_settings({"n_slots": "auto", "n_ctx": "auto"}), None, None) == Sizes(16, 4096)


def test_on_a_gpu_nothing_is_known_of_its_memory(tmp_path):
    settings, path = read_settings({"n_ctx": "auto", "n_slots": 1}), resolve("builtin:synthetic-tiny")
    assert sizes_of(settings, path, None) == Sizes(1, 4096)
    assert sizes_of(settings, path, find_need(settings, path)) == Sizes(1, 32_768)


@pytest.mark.parametrize("value", ["all", 15, -1])
def test_what_is_no_context(value):
    with pytest.raises(ConfigError, match=r"n_ctx: .*(auto|16)"):
        read_settings({"n_ctx": value})


def test_auto_comes_from_the_environment_too(monkeypatch):
    monkeypatch.setenv("COBALI_N_CTX", "auto")
    assert read_settings({}).llama.n_ctx == "auto"
    monkeypatch.setenv("COBALI_N_CTX", "512")
    assert read_settings({}).llama.n_ctx == 512


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


CELL_BYTES = 4 * 2 * (64 + 64) * 2 + 64
"""Of the model below: layers, KV heads, widths of a key and a value, bytes a number; and a cell's own."""


@pytest.fixture
def described(tmp_path):
    """Return a function that writes a file of 4 layers, without tensors, and what else it says of itself."""

    def write(architecture="llama", heads_kv=2, *, causal=True, states=None, latent=None, kind=None):
        writer = GGUFWriter(tmp_path / "m.gguf", architecture)
        writer.add_block_count(4)
        writer.add_embedding_length(512)
        writer.add_head_count(8)
        writer.add_head_count_kv(heads_kv)
        writer.add_causal_attention(causal)
        if states:
            writer.add_ssm_state_size(states)
        if latent:
            writer.add_key_length_mla(latent)
        if kind:
            writer.add_type(kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return tmp_path / "m.gguf"

    return write


@pytest.fixture
def has(monkeypatch):
    """Return a function that gives this machine a memory."""

    def give(most, free=0):
        monkeypatch.setattr("cobali_ray.backend.memory.most_bytes", lambda: most)
        monkeypatch.setattr("cobali_ray.backend.memory.available_bytes", lambda: free)

    return give


@pytest.mark.parametrize("setting", ["n_ctx", "kv_cells"])
def test_a_cache_that_the_machine_can_never_hold_is_told_with_the_most_that_would_fit(
    described, has, setting
):
    path, free = described(), 5120 * CELL_BYTES
    asked = {"n_slots": 4, "n_ctx": 2500} | ({"kv_cells": 10_000} if setting == "kv_cells" else {})
    has(10_000 * CELL_BYTES, free)
    assert refusal_of_cache(read_settings(asked), path) is None, "it just fits"
    has(10_000 * CELL_BYTES - 1, free)
    said = str(refusal_of_cache(read_settings(asked), path))
    assert said.startswith(f"{setting}: a KV cache of 10000 tokens for m.gguf takes ")
    assert "\n" not in said
    most = int(re.search(r"at most (\d+)", said)[1])
    n_more = 256 * (4 if setting == "n_ctx" else 1)
    n_cells = most * (4 if setting == "n_ctx" else 1)
    assert n_cells * CELL_BYTES + path.stat().st_size <= free < (n_cells + n_more) * CELL_BYTES + 1000


def test_where_not_even_the_weights_fit_no_number_is_told(described, has):
    has(CELL_BYTES)
    assert str(refusal_of_cache(EngineSettings(), described())).endswith("GB: lower it")


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"architecture": "gemma3"}, id="windows"),
        pytest.param({"architecture": "new"}, id="unknown"),
        pytest.param({"states": 16}, id="states"),
        pytest.param({"heads_kv": [2, 0, 0, 0]}, id="by-layer"),
        pytest.param({"causal": False}, id="embeds"),
    ],
)
def test_what_is_not_certain_is_not_refused(described, has, said):
    has(CELL_BYTES)
    assert refusal_of_cache(EngineSettings(), described()) is not None
    assert refusal_of_cache(EngineSettings(), described(**said)) is None


def test_nor_is_auto_or_a_machine_that_does_not_tell(described, has):
    has(CELL_BYTES)
    assert refusal_of_cache(EngineSettings(n_ctx="auto"), described()) is None
    has(None)
    assert refusal_of_cache(EngineSettings(), described()) is None


@pytest.mark.parametrize("name", ["dream", "llada", "llada-moe", "rnd1"])
def test_a_diffusion_model_is_refused_by_what_it_is(described, name):
    with pytest.raises(ConfigError, match=rf"^model: m.gguf is a diffusion model \({name}\): only models"):
        require_servable(EngineSettings(), described(name))


@pytest.mark.parametrize(
    ("said", "setting"),
    [({"architecture": "clip"}, "mmproj"), ({"kind": "adapter"}, "adapters")],
    ids=["projector", "adapter"],
)
def test_what_belongs_to_a_model_is_not_taken_for_one(described, said, setting):
    with pytest.raises(ConfigError, match=rf"^model: m.gguf is a .* {setting}"):
        require_servable(EngineSettings(), described(**said))


def test_latent_attention_needs_keys_and_values_of_one_type(described):
    path, said = (
        described("deepseek2", latent=64),
        r"^type_k: m.gguf .* type_k \(q8_0\) and type_v \(f16\) to",
    )
    with pytest.raises(ConfigError, match=said):
        require_servable(EngineSettings(type_k="q8_0"), path)
    require_servable(EngineSettings(type_k="q8_0", type_v="q8_0"), path)
    require_servable(EngineSettings(type_k="q8_0"), described())
