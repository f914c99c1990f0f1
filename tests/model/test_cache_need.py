"""What a cache is said to take before its model is loaded is what llama.cpp then allocates, by family."""

import ctypes
import re

import archs
import llama_cpp as lc
import pytest

from cobali_ray.backend import library
from cobali_ray.backend.cache_need import UNKNOWN, cache_need
from cobali_ray.backend.memory import HOST_CELL_BYTES
from cobali_ray.models.ggufmeta import read_header

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
def test_a_cache_takes_what_the_file_says(tmp_path, family, unified):
    path = archs.write(tmp_path / "m.gguf", family)
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
def test_what_drafts_take_is_counted(tmp_path, family):
    path = archs.write(tmp_path / "m.gguf", family)
    said = read_header(path).metadata
    need, plain = cache_need(said, n_drafted=3, head=True), cache_need(said)
    _, states = allocated(path, unified=False, n_drafted=3)
    assert N_SLOTS * need.slot_bytes / MIB == pytest.approx(states, abs=0.011)
    has_head = "nextn_predict_layers" in archs.FAMILIES[family].keys
    assert need.cell_bytes - plain.cell_bytes == has_head * 2 * archs.HEADS * archs.HEAD * 2
