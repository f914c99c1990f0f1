"""Adapters on real llama.cpp: what each says alone it says beside others, and the model stays what it is."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from cobali_ray.backend.batch import TickBatch
from cobali_ray.core.plan.adapters import Adapter
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.request import Request
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.opening import adapters_of, limits_of, open_engine
from cobali_ray.errors import BackendError, ConfigError
from cobali_ray.settings import read_settings
from cobali_ray.testing import EventRecorder, FakeClock

pytestmark = pytest.mark.model

ASKED = {
    "one": "builtin:synthetic-adapter:1",
    "two": {"file": "builtin:synthetic-adapter:2", "scale": 0.5},
    "none": {"file": "builtin:synthetic-adapter:2", "scale": 0},
}
REPRODUCIBLE = {"flash_attn": "off", "itl_target_ms": "off", "min_prefix": 0, "kv": "split"}
SETTINGS = read_settings({
    "model": "builtin:synthetic-tiny", "n_slots": 6, "n_ctx": 512, "n_threads": 1, "adapters": ASKED,
} | REPRODUCIBLE)  # fmt: skip


@pytest.fixture
def adapters(tiny):
    """The keys of the adapters, by name."""
    return {one.name: one for one in adapters_of(SETTINGS, tiny)}


@pytest.fixture
def backend(open_tiny, adapters):
    return open_tiny(n_slots=6, adapters=tuple(adapters.values()))


def engine_of(backend, events, settings=SETTINGS):
    backend.clear()
    return Engine(backend, limits_of(backend, settings), FakeClock(step_s=1e-4), events, pacer=Pacer(None))


def computed(engine, request):
    """Return a request's sequence once it is answered."""
    sequence = engine.submit(request)
    while engine.has_work:
        engine.tick()
    return sequence


def run(backend, requests):
    """Return what an engine says to requests that come at once, and how often it changed its adapter."""
    engine = engine_of(backend, events := EventRecorder())
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.tick()
    told = {}
    for request in requests:
        (end,) = events.ends(request.request_id)
        assert end.error is None
        told[request.request_id] = tuple(
            token for event in events.events[request.request_id][:-1] for token in event.tokens
        )
    return told, engine.scheduler.counts.n_adapter_changes


def ask(name, adapter, n_prompt, max_tokens=24):
    rng = random.Random(name)
    prompt = tuple(rng.randrange(8, 4000) for _ in range(n_prompt))
    return Request(request_id=name, prompt=prompt, max_tokens=max_tokens, adapter=adapter)


def test_a_request_says_the_same_alone_and_beside_others_of_other_adapters(backend, adapters):
    keys = ["", adapters["one"].key, adapters["two"].key]
    requests = [ask(f"r{i}", keys[i % 3], 40 + i) for i in range(9)]
    together, n_changes = run(backend, requests)
    assert n_changes >= 3
    for request in requests:
        alone, _ = run(backend, [request])
        assert together[request.request_id] == alone[request.request_id]
    of_model, _ = run(backend, [replace(request, adapter="") for request in requests])
    changed = [i for i, r in enumerate(requests) if together[r.request_id] != of_model[r.request_id]]
    assert changed == [i for i in range(9) if i % 3], "an adapter says something else, and scale 0 does not"


def test_the_model_computes_to_the_last_bit_what_it_did_before_an_adapter(backend, adapters):
    tokens, batch = ask("r", "", 50).prompt, TickBatch(backend.n_batch)

    def logits(key):
        backend.clear()
        backend.use(key)
        batch.fill((Span(0, 0, 50, sample=1),), [tokens])
        backend.forward(batch)
        return backend._read_logits(1).copy() if backend._logits is None else backend._logits.copy()

    before, one = logits(""), logits(adapters["one"].key)
    two, again, after = logits(adapters["two"].key), logits(adapters["one"].key), logits("")
    assert np.array_equal(before, after)
    assert np.array_equal(one, again)
    assert not np.allclose(before, one)
    assert not np.allclose(one, two)


def test_an_adapter_that_is_not_loaded_is_not_computed_under(backend):
    with pytest.raises(BackendError, match="no adapter nobody is loaded"):
        backend.use("nobody")


def test_a_file_that_cannot_be_loaded_is_named(open_tiny, adapters, tmp_path, log_heard):
    data = Path(adapters["one"].path).read_bytes()
    (tmp_path / "whole.gguf").write_bytes(data)
    (tmp_path / "cut.gguf").write_bytes(data[:-1000])
    asked = {name: str(tmp_path / f"{name}.gguf") for name in ("whole", "cut")}
    settings = SETTINGS.replaced(adapters=read_settings({"adapters": asked}).adapters)
    with pytest.raises(ConfigError, match=r"^adapters\.cut: .* is truncated"):
        open_engine(settings, print)
    with pytest.raises(ConfigError, match=r"^adapters\.x: llama\.cpp cannot load"):
        open_tiny(adapters=(Adapter("x", "k", str(tmp_path / "nothing"), 1.0),))


def activated(path, invocation, to):
    """Write an adapter again as one that these tokens invoke."""
    reader, writer = GGUFReader(path), GGUFWriter(to, "qwen2")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    writer.add_key_value(
        "adapter.alora.invocation_tokens", invocation, GGUFValueType.ARRAY, GGUFValueType.UINT32
    )
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to


def test_an_activated_adapter_shares_what_comes_before_its_tokens(tiny, open_tiny, adapters, tmp_path):
    """Each begins from what the others computed, and says what it says alone."""
    invocation = (300, 301, 302)
    file = activated(adapters["one"].path, invocation, tmp_path / "activated.gguf")
    settings = SETTINGS.replaced(
        adapters=read_settings({"adapters": {"own": str(file)}}).adapters, min_prefix=16
    )
    (own,) = adapters_of(settings, tiny)
    assert own.invocation == invocation
    backend = open_tiny(n_slots=6, n_ctx=1024, adapters=(own,))
    common = ask("common", "", 200).prompt

    def request(name, *tail, adapter=own):
        prompt = (*common, *tail)
        begins = None if adapter is None else adapter.begins(prompt)
        key = "" if begins is None else adapter.key
        return Request(request_id=name, prompt=prompt, max_tokens=12, adapter=key, n_plain=begins or 0)

    requests = [
        request("base", 5, 6, 7, adapter=None),
        request("invoked", 5, 6, *invocation, 9),
        request("again", 5, 6, *invocation, 9, 10, 11),
        request("not-invoked", 5, 6, 7, 8),
        request("base-behind-it", 5, 6, *invocation, 9, adapter=None),
    ]
    engine = engine_of(backend, EventRecorder(), settings)
    together, cached = {}, {}
    for one in requests:
        sequence = computed(engine, one)
        together[one.request_id], cached[one.request_id] = sequence.tokens[one.n_prompt :], sequence.n_cached
    assert cached == {"base": 0, "invoked": 202, "again": 202, "not-invoked": 202, "base-behind-it": 202}
    for one in requests:
        sequence = computed(engine_of(backend, EventRecorder()), one)
        assert together[one.request_id] == sequence.tokens[one.n_prompt :], one.request_id
    assert together["invoked"] != together["base-behind-it"], "it changes what is said"
