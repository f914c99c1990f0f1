"""Grammars behind a trigger on a real vocabulary, whose control tokens are shown to whom asks."""

import json
from functools import partial

import pytest

from cobali_ray.backend.grammar import check
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.opening import engine_on, open_backend
from cobali_ray.models.registry import resolve
from cobali_ray.settings import EngineSettings
from cobali_workloads.offline import run_offline

pytestmark = pytest.mark.model

WHOLE = ('{"n":1}', '{"n":2}')


@pytest.fixture(scope="module")
def run():
    """Answer requests together on random weights; the device picks candidates where it may."""
    name = "builtin:synthetic-tiny"
    settings = EngineSettings(model=name, n_slots=4, n_ctx=512, n_threads=1, device_sampling="on")
    backend = open_backend(settings, resolve(name))

    def go(samplings, **asked):
        requests = [
            Request(request_id=str(i), prompt=(5, 6, 7), max_tokens=60, sampling=one, **asked)
            for i, one in enumerate(samplings)
        ]
        return run_offline(partial(engine_on, backend, settings), requests)

    go.backend = backend
    yield go
    backend.close()


def test_control_tokens_are_shown_and_begin_a_grammar(run):
    """Weights are random, so a bias makes the model say the control token; candidates suffice without one."""
    words = run.backend.words
    (marker,) = words.tokenize("<|im_start|>")
    samplings = [SamplingParams(seed=seed, logit_bias=((marker, 5.0),)) for seed in range(6)]
    samplings += [SamplingParams(seed=seed, top_k=20) for seed in range(6)]
    schema = {"properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    asked = check(
        "tools", "json_schema", json.dumps({"type": "object"} | schema), compact=True
    ).grammar._replace(triggers=("<|im_start|>",))
    report = run(samplings, grammar=asked, shown_tokens=(marker,))
    assert not report.failed
    begun = [text.partition("<|im_start|>")[2] for text in report.texts.values() if "<|im_start|>" in text]
    assert begun
    assert len(begun) < len(samplings)
    assert any(rest in WHOLE for rest in begun)
    assert all(any(whole.startswith(rest) for whole in WHOLE) for rest in begun)
    unshown = run(samplings)
    assert not any("<|im_start|>" in text for text in unshown.texts.values())
