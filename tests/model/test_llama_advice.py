"""What a model's file says of itself is what holds where requests and operators say nothing."""

import pytest
from gguf_keys import with_keys
from structlog.testing import capture_logs

from cobali_ray.backend import library, memory
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.core.request.request import SamplingParams
from cobali_ray.engine.context import need_of
from cobali_ray.engine.opening import limits_of, model_path, open_backend
from cobali_ray.models.ggufmeta import read_header
from cobali_ray.settings import EngineSettings, read_settings

ADVICE = {
    "general.sampling.temp": 0.6,
    "general.sampling.top_k": 20,
    "general.sampling.top_p": 0.95,
    "general.sampling.min_p": 0.05,
    "general.sampling.penalty_repeat": 1.05,
}


@pytest.fixture
def advice_of(tiny, tmp_path):
    def read(keys):
        path = with_keys(tiny, tmp_path / "advised.gguf", keys) if keys else tiny
        backend = LlamaBackend(LlamaConfig(path=path, n_slots=1, n_ctx=64, n_batch=16, n_threads=1))
        try:
            return backend.sampling
        finally:
            backend.close()

    return read


def test_the_advice_of_a_file_is_read(advice_of):
    wanted = SamplingParams(temperature=0.6, top_k=20, top_p=0.95, min_p=0.05, repetition_penalty=1.05)
    assert advice_of(ADVICE) == wanted


def test_a_file_that_advises_nothing_leaves_what_openai_has(advice_of):
    assert advice_of({}) == SamplingParams()


def test_advice_that_cannot_be_followed_is_said_and_the_rest_holds(advice_of):
    with capture_logs() as logs:
        found = advice_of(
            {
                "general.sampling.temp": 0.6,
                "general.sampling.top_p": 1.5,
                "general.sampling.xtc_probability": 0.5,
                "general.sampling.mirostat": 0,
            }
        )
    assert found == SamplingParams(temperature=0.6)
    ignored = [line["key"] for line in logs if line["event"] == "model_advice_ignored"]
    assert ignored == ["general.sampling.top_p", "general.sampling.xtc_probability"]


def test_auto_is_settled_when_the_model_is_opened_and_limits_follow():
    settings = read_settings({"n_ctx": "auto", "n_slots": 3, "model": "builtin:tiny", "n_threads": 1})
    backend = open_backend(settings, model_path(settings))
    try:
        assert backend.n_ctx_slot == 4096, "what it was trained for"
        limits = limits_of(backend, settings)
        assert (limits.n_ctx_slot, limits.token_budget, limits.prefill_chunk) == (4096, 515, 512)
    finally:
        backend.close()


def test_a_cell_is_as_large_by_the_header_as_by_the_loaded_model(tiny, open_tiny):
    said = read_header(tiny).metadata
    plain, small = EngineSettings(), EngineSettings(type_k="q8_0", type_v="q4_0")
    model = open_tiny()._model
    assert need_of(said, plain)[:2] == (memory.kv_bytes(library.load(), model, 1), 0) == (2048 + 64, 0)
    types = {"type_k": "q8_0", "type_v": "q4_0"}
    known = memory.kv_bytes(library.load(), model, 1, **types)
    assert need_of(said, small)[:2] == (known, 0) == (544 + 288 + 64, 0)
    assert need_of(said | {"qwen2.ssm.inner_size": 16}, plain) is None, "which layers have states?"
