"""Grammars over real vocabularies: every end token counts, and shown control tokens may begin one."""

import json
from functools import partial

import pytest
from jsonschema import validate

from cobali_ray.backend.grammar import check
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.opening import engine_on, open_backend
from cobali_ray.models.registry import resolve
from cobali_ray.settings import EngineSettings
from cobali_workloads.offline import run_offline

pytestmark = pytest.mark.model

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-zé]{1,5}$"}, "maxItems": 3},
    },
    "required": ["city", "days", "unit", "tags"],
    "additionalProperties": False,
}


@pytest.fixture
def run(request):
    """Answer requests together on a model, the shipped one by default; the device picks candidates."""
    name = getattr(request, "param", "builtin:tiny")
    settings = EngineSettings(model=name, n_slots=4, n_ctx=512, n_threads=1, device_sampling="on")
    backend = open_backend(settings, resolve(name))
    words = backend.words
    prompt = tuple(words.tokenize(words.chat.render([{"role": "user", "content": "Weather?"}])))

    def go(asked, samplings, **more):
        requests = [
            Request(request_id=str(i), prompt=prompt, max_tokens=300, sampling=one, grammar=asked, **more)
            for i, one in enumerate(samplings)
        ]
        return run_offline(partial(engine_on, backend, settings), requests)

    go.backend = backend
    yield go
    backend.close()


def test_every_finished_answer_is_valid(run):
    asked = check("p", "json_schema", json.dumps(SCHEMA), strict=True).grammar
    samplings = [SamplingParams(seed=seed, temperature=1.5) for seed in range(12)] + [
        SamplingParams(temperature=0, n_logprobs=3),
        SamplingParams(seed=1, top_k=20, top_p=0.9),
        SamplingParams(seed=2, repetition_penalty=1.3, min_tokens=5),
    ]
    report = run(asked, samplings)
    assert not report.failed
    finished = [i for i, one in report.requests.items() if one.n_output < 300]
    assert len(finished) > len(samplings) // 2
    for i in finished:
        validate(json.loads(report.texts[i]), SCHEMA)


def test_an_end_token_of_its_own_choice_ends_an_open_grammar(run):
    """`[a-z]+` never closes by itself: only an end token does, and any of them may."""
    report = run(check("p", "regex", "[a-z]+").grammar, [SamplingParams(seed=s) for s in range(8)])
    assert not report.failed
    assert all(text.isalpha() and text.islower() for text in report.texts.values())


def test_a_devices_candidates_are_not_enough(run):
    """Whole rows are copied while a constrained request runs, though a free one like it needs none."""
    greedy = [SamplingParams(temperature=0)] * 2
    run(None, greedy)
    assert run.backend._device.attached
    bound = run(check("p", "choice", json.dumps(["yes", "no"])).grammar, greedy)
    assert not run.backend._device.attached
    assert set(bound.texts.values()) <= {"yes", "no"}


WHOLE = ('{"n":1}', '{"n":2}')


@pytest.mark.parametrize("run", ["builtin:synthetic-tiny"], indirect=True)
def test_control_tokens_are_shown_and_begin_a_grammar(run):
    """Weights are random, so a bias makes the model say the control token; candidates suffice without one."""
    (marker,) = run.backend.words.tokenize("<|im_start|>")
    samplings = [SamplingParams(seed=seed, logit_bias=((marker, 5.0),)) for seed in range(6)]
    samplings += [SamplingParams(seed=seed, top_k=20) for seed in range(6)]
    schema = {"properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    asked = check("tools", "json_schema", json.dumps({"type": "object"} | schema), compact=True).grammar
    report = run(asked._replace(triggers=("<|im_start|>",)), samplings, shown_tokens=(marker,))
    assert not report.failed
    begun = [text.partition("<|im_start|>")[2] for text in report.texts.values() if "<|im_start|>" in text]
    assert begun
    assert len(begun) < len(samplings)
    assert any(rest in WHOLE for rest in begun)
    assert all(any(whole.startswith(rest) for whole in WHOLE) for rest in begun)
    unshown = run(None, samplings)
    assert not any("<|im_start|>" in text for text in unshown.texts.values())
