"""Bodies -> calls, case by case."""

from dataclasses import replace

import pytest

from cobali_ray.api.body.schema import CompletionBody
from cobali_ray.api.call.translate import Origin, call_of, fingerprint
from cobali_ray.api.door.context import RequestContext
from cobali_ray.core.request.request import SamplingParams
from cobali_ray.core.views.stats import ModelCard
from cobali_ray.errors import InvalidParameterError, PromptTooLongError
from cobali_ray.settings import ApiSettings

CARD = ModelCard(model_id="fake", n_vocab=100, n_ctx_slot=32, created_s=1)


def origin(**settings):
    context = RequestContext(request_id="", received_s=0.0)
    return Origin(call_id="c", created=7, card=CARD, settings=ApiSettings(**settings), context=context)


def completion(prompts=((1, 2),), *, settings=None, **fields):
    body = CompletionBody.model_validate({"prompt": "x"} | fields)
    return call_of(body, prompts, origin(**(settings or {})), [""] * len(prompts))


@pytest.mark.parametrize(
    ("fields", "settings", "n_prompt", "max_tokens"),
    [
        pytest.param({}, {}, 2, 30, id="rest-of-the-slot"),
        pytest.param({}, {}, 31, 1, id="an-almost-full-slot-gives-one"),
        pytest.param({}, {"default_max_tokens": 5}, 2, 5, id="default"),
        pytest.param({}, {"default_max_tokens": 5}, 30, 2, id="default-cut-to-the-rest"),
        pytest.param({"max_tokens": 9}, {"default_max_tokens": 5}, 2, 9, id="asked"),
        pytest.param({"max_completion_tokens": 9}, {}, 2, 9, id="new-name"),
        pytest.param({"max_completion_tokens": 9, "max_tokens": 9}, {}, 2, 9, id="both-agree"),
        pytest.param({"max_tokens": 30}, {}, 2, 30, id="exactly-the-rest"),
        pytest.param({"max_tokens": 31}, {}, 2, 30, id="cut-to-the-rest"),
        pytest.param({"max_completion_tokens": 2**31 - 1}, {}, 31, 1, id="as-many-as-there-are"),
        pytest.param({"max_tokens": -1}, {"default_max_tokens": 5}, 2, 30, id="no-limit"),
        pytest.param({"max_completion_tokens": -1}, {"default_max_tokens": 5}, 2, 30, id="no-limit-new-name"),
    ],
)
def test_max_tokens(fields, settings, n_prompt, max_tokens):
    call = completion([(1,) * n_prompt], settings=settings, **fields)
    assert call.requests[0].max_tokens == max_tokens


def test_each_prompt_and_each_answer_gets_what_fits_beside_it():
    call = completion([(1,) * 30, (1,)], n=2, max_tokens=9)
    assert [r.max_tokens for r in call.requests] == [2, 2, 9, 9]


@pytest.mark.parametrize(("n_prompt", "fields"), [(32, {}), (32, {"max_tokens": 1}), (33, {"max_tokens": 9})])
def test_a_prompt_that_fills_a_slot_is_refused(n_prompt, fields):
    with pytest.raises(PromptTooLongError) as caught:
        completion([(1,) * n_prompt], **fields)
    assert (caught.value.n_prompt, caught.value.n_ctx_slot) == (n_prompt, 32)
    assert caught.value.max_tokens == fields.get("max_tokens", 1), "what was asked for"


def test_without_a_seed_none_is_made_up():
    assert [r.sampling.seed for r in completion(n=2).requests] == [None, None]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        pytest.param({"repetition_penalty": 1.1, "repeat_penalty": 1.2}, "repeat_penalty", id="penalties"),
        pytest.param({"logit_bias": {"-1": 1}}, "logit_bias", id="negative-id"),
        pytest.param({"logit_bias": {"1" * 5000: 1}}, "logit_bias", id="endless-id"),
        pytest.param({"logit_bias": {"²": 1}}, "logit_bias", id="odd-digit"),
        pytest.param({"logit_bias": {"1": 101}}, "logit_bias", id="bias"),
        pytest.param({"top_k": -2}, "top_k", id="top-k"),
        pytest.param({"top_p": -0.1}, "top_p", id="top-p"),
        pytest.param({"min_tokens": -1}, "min_tokens", id="min-tokens"),
        pytest.param({"seed": 2**64 - 1, "n": 2}, "seed", id="seed-runs-over"),
        pytest.param({"stop": ["x"] * 17}, "stop", id="stops"),
    ],
)
def test_values_out_of_range(fields, param):
    with pytest.raises(InvalidParameterError) as caught:
        completion(**fields)
    assert caught.value.param == param
    assert len(str(caught.value)) < 200


def test_the_fingerprint_follows_the_model():
    newer = ModelCard(model_id="fake", n_vocab=100, n_ctx_slot=32, created_s=2)
    assert fingerprint(CARD) == fingerprint(CARD) != fingerprint(newer)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, {}, id="the-models"),
        pytest.param({"temperature": 0}, {"temperature": 0}, id="one-of-the-clients"),
        pytest.param({"top_k": -1, "top_p": 1.0}, {"top_k": 0, "top_p": 1.0}, id="off-is-said"),
        pytest.param({"repeat_penalty": 1.3}, {"repetition_penalty": 1.3}, id="other-name"),
        pytest.param({"temperature": None}, {}, id="null-is-absent"),
    ],
)
def test_what_a_request_does_not_say_is_the_cards(fields, expected):
    advised = SamplingParams(temperature=0.6, top_k=20, top_p=0.9, min_p=0.1, repetition_penalty=1.1)
    body = CompletionBody.model_validate({"prompt": "x", "seed": 1} | fields)
    call = call_of(body, [(1,)], replace(origin(), card=replace(CARD, sampling=advised)))
    assert call.requests[0].sampling == replace(advised, seed=1, **expected)
