"""What a cache is said to take before its model is loaded is what llama.cpp then allocates, by family."""

import ctypes
import json
import re

import archs
import llama_cpp as lc
import pytest
from typer.testing import CliRunner

from cobali_ray.backend import library, memory
from cobali_ray.backend.cache_need import UNKNOWN, cache_need
from cobali_ray.backend.devices import open_devices
from cobali_ray.backend.fit import need_here
from cobali_ray.backend.memory import HOST_CELL_BYTES
from cobali_ray.engine.context import MEMORY_SHARE, find_need, needed_bytes, sizes_of
from cobali_ray.engine.opening import llama_config, open_backend
from cobali_ray.errors import ConfigError
from cobali_ray.models.commands import app
from cobali_ray.models.ggufmeta import read_header
from cobali_ray.settings import read_settings

pytestmark = pytest.mark.model
N_SLOTS, N_CTX, N_BATCH = 3, 1024, 128
MIB = 1 << 20


def allocated(path, unified, n_drafted=0):
    """Return the MiB of keys and values, and of states, that llama.cpp says it allocates."""
    said = []

    @lc.llama_log_callback
    def hear(_level, text, _data):
        said.append(text.decode())

    library.load()
    lc.llama_log_set(hear, None)
    try:
        model = lc.llama_model_load_from_file(str(path).encode(), lc.llama_model_default_params())
        params = lc.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.swa_full = N_SLOTS * N_CTX, N_SLOTS, False
        params.n_batch = params.n_ubatch = N_BATCH
        params.kv_unified, params.n_rs_seq = unified, n_drafted
        context = lc.llama_init_from_model(model, params)
        lc.llama_free(context)
        lc.llama_model_free(model)
    finally:
        lc.llama_log_set(library._callback(), ctypes.c_void_p(0))
    sizes = re.findall(r"(llama_kv_cache|llama_memory_recurrent): size = +([0-9.]+) MiB", "".join(said))
    cells = sum(float(size) for name, size in sizes if name == "llama_kv_cache")
    return cells, sum(float(size) for name, size in sizes if name == "llama_memory_recurrent")


@pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])
@pytest.mark.parametrize("family", archs.FAMILIES)
def test_a_cache_takes_what_the_file_says(models, family, unified):
    path = models(family)
    need = cache_need(read_header(path).metadata)
    if need is None:
        assert archs.FAMILIES[family].arch in UNKNOWN
        return
    cells, states = allocated(path, unified)
    n_cells = N_SLOTS * N_CTX
    n_window_cells = need.n_window_cells(N_CTX, N_SLOTS, N_BATCH, unified=unified)
    on_host = HOST_CELL_BYTES * (
        n_cells * bool(need.cell_bytes) + n_window_cells * bool(need.window_cell_bytes)
    )
    said = need.total(n_cells, 0, n_window_cells) - on_host
    assert said / MIB == pytest.approx(cells, abs=0.021)
    assert N_SLOTS * need.slot_bytes / MIB == pytest.approx(states, abs=0.011)


@pytest.mark.parametrize("family", ["hybrid-delta", "hybrid-convolution", "hybrid-mamba", "moe-head"])
def test_what_drafts_take_is_counted(models, family):
    path = models(family)
    said = read_header(path).metadata
    need, plain = cache_need(said, n_drafted=3, head=True), cache_need(said)
    _, states = allocated(path, unified=False, n_drafted=3)
    assert N_SLOTS * need.slot_bytes / MIB == pytest.approx(states, abs=0.011)
    has_head = "nextn_predict_layers" in archs.FAMILIES[family].keys
    assert need.cell_bytes - plain.cell_bytes == has_head * 2 * archs.HEADS * archs.HEAD * 2


@pytest.fixture
def tells_nothing(monkeypatch):
    """Have no file tell what a cache takes, as those of architectures that are not counted here."""
    monkeypatch.setattr("cobali_ray.engine.context.cache_need", lambda *_, **__: None)


@pytest.mark.parametrize("speculation", ["off", "auto"])
@pytest.mark.parametrize("kv", ["split", "unified"])
@pytest.mark.parametrize("family", archs.FAMILIES)
def test_where_a_file_does_not_tell_llama_cpp_does(models, tells_nothing, family, kv, speculation):
    """Slots of 8,192 tokens take what was worked out from longer ones."""
    path = models(family)
    settings = read_settings({
        "model": str(path), "n_slots": N_SLOTS, "n_ctx": 8192, "kv": kv, "speculation": speculation,
    })  # fmt: skip
    config = llama_config(settings, path)
    told = need_here(config, open_devices(config)).cells
    assert told <= config.cache_bytes <= 1.01 * told


def test_auto_follows_the_memory_whatever_the_architecture(tmp_path, monkeypatch):
    """DeepSeek V4 gets the longest context that half of the memory beside its weights holds."""
    monkeypatch.setattr(archs, "N_TRAINED", trained := 65_536)
    path = archs.write(tmp_path / "m.gguf", "compressed")
    settings = read_settings({"model": str(path), "n_slots": 2, "n_ctx": "auto"})
    need = find_need(settings, path)
    room = need.total(2 * trained // 2, 2, 0) / MEMORY_SHARE
    for share, expected in ((1, trained // 2), (3, trained)):
        free = int(path.stat().st_size + share * room) + 1
        monkeypatch.setattr(memory, "available_bytes", lambda free=free: free)
        sizes = sizes_of(settings, path, need)
        assert sizes.n_ctx == expected
        taken = needed_bytes(settings, path, need) - path.stat().st_size
        assert taken == need.total(2 * expected, 2, 0) <= MEMORY_SHARE * (free - path.stat().st_size)

    slots = sizes_of(read_settings({"model": str(path), "n_slots": "auto", "n_ctx": trained}), path, need)
    assert slots.n_slots == 3, "which take as much as two of half the length, three times"
    monkeypatch.setattr(memory, "available_bytes", lambda: need.total(2 * trained, 2, 0) - 1)
    numbers = read_settings({"model": str(path), "n_slots": 2, "n_ctx": trained, "n_threads": 1})
    with pytest.raises(ConfigError, match=r"^n_ctx: a KV cache of 131072 tokens takes .* are free: lower"):
        open_backend(numbers, path)


def test_what_a_token_takes_is_shown_of_every_architecture(models):
    path = models("compressed")
    shown = json.loads(CliRunner().invoke(app, ["show", str(path), "--json"]).stdout)
    need = find_need(read_settings({"model": str(path)}), path)
    assert (shown["cell_bytes"], shown["prompts_begin"]) == (need.cell_bytes, "never")
