"""Answers held to calls: what templates render is allowed, and all that is allowed is read as valid calls."""

import random

import pytest

from tools.install import TEMPLATES

if not any(TEMPLATES.glob("*.jinja")):
    pytest.skip(f"no templates in {TEMPLATES}: run python3 tools/install.py --dev", allow_module_level=True)

import json

from formats import (
    NO_CALLS,
    NOT_RENDERED,
    PARAMETERS,
    a_call_set,
    answer_text,
    calls_of,
    format_of,
    read,
    split,
    turn,
)
from held import Vocabulary, controls_of
from jsonschema import Draft202012Validator

from cobali_ray.backend.grammar import check
from cobali_ray.chat.call_grammar import call_grammar
from cobali_ray.chat.format import Kind
from cobali_ray.chat.splitter import CallBroken
from tests.chat.comparison import sources

WITH_CALLS = [name for name in sources() if name not in {*NO_CALLS, *NOT_RENDERED}]


def tool(name, properties, required=(), **more):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


RENDERED = [tool(name, properties) for name, properties in PARAMETERS.items()]
BOUNDED = [
    tool(
        "get_weather",
        {
            "city": {"type": "string", "maxLength": 4},
            "days": {"type": "integer", "minimum": 0, "maximum": 99},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "note": {"type": ["string", "null"], "maxLength": 3},
        },
        required=["city", "unit"],
    ),
    tool(
        "search_web",
        {
            "safe": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
            "options": {
                "type": "object",
                "properties": {"deep": {"type": "boolean"}, "n": {"enum": [1, 2.5]}},
                "required": ["deep"],
                "additionalProperties": False,
            },
        },
        required=["options", "tags"],
    ),
    tool("now", {}),
]
VALIDATORS = {
    one["function"]["name"]: Draft202012Validator(
        one["function"]["parameters"] | {"additionalProperties": False}
    )
    for one in BOUNDED
}


def hold(form, vocabulary, tools=BOUNDED, prompt="", **how):
    return call_grammar(form, tools, check=check, special=vocabulary.special, prompt=prompt, **how)


def rendered(name, rng):
    """Return a prompt and an answer with calls as the template renders them, and the calls."""
    form = format_of(name)
    wanted = a_call_set(name, rng)
    if name == "Reka-Edge":  # it escapes letters that need no escape
        wanted = [(called, {}) for called, _ in wanted]
    if name == "LFM2.5-8B-A1B":  # it escapes nothing
        wanted = json.loads(json.dumps(wanted).replace("'", ""))
    prompt, text = answer_text(name, turn(wanted))
    if form.opens_reasoning(prompt) and form.reasoning_end not in text:
        text = "Hm." + form.reasoning_end + text
    if form.calls.section_end not in text:  # written behind the second call alone
        text += form.calls.section_end
    return prompt, text.rstrip()


@pytest.mark.parametrize("special", [False, True], ids=["plain", "control-tokens"])
@pytest.mark.parametrize("name", WITH_CALLS)
def test_what_a_template_renders_is_allowed(name, special):
    form, rng = format_of(name), random.Random(name)
    vocabulary = Vocabulary(controls_of(form) if special else ())
    for _ in range(4):
        prompt, text = rendered(name, rng)
        whole = hold(form, vocabulary, RENDERED, prompt, required=True)
        assert vocabulary.refusal(whole.text, text) == "", text
        if (held := hold(form, vocabulary, RENDERED, prompt)) is not None:
            text = "<|start|>assistant" + text if form.calls.kind is Kind.CHANNELS else text
            trigger = next(trigger for trigger in held.triggers if trigger in text)
            assert vocabulary.refusal(held.text, text.partition(trigger)[2]) == "", text


@pytest.mark.parametrize("special", [False, True], ids=["plain", "control-tokens"])
@pytest.mark.parametrize("name", WITH_CALLS)
def test_all_that_is_allowed_is_read_as_valid_calls(name, special):
    form, rng = format_of(name), random.Random(name)
    vocabulary = Vocabulary(controls_of(form) if special else ())
    held = hold(form, vocabulary, required=True)
    one = hold(form, vocabulary, required=True, parallel=False)
    named = hold(form, vocabulary, only="search_web")
    n_finished = 0
    for grammar in [held.text] * 10 + [one.text, named.text] * 5:
        text = vocabulary.written(grammar, rng)
        if text is None:
            continue
        n_finished += 1
        events = split(form, "", [text], BOUNDED)
        assert not any(isinstance(event, CallBroken) for event in events), text
        answer = read(form, "", [text], BOUNDED)
        assert answer.calls, text
        assert not answer.content, text
        for called, arguments in calls_of(answer):
            VALIDATORS[called].validate(arguments)
        if grammar != held.text:
            assert len(answer.calls) == 1
        if grammar == named.text:
            assert answer.calls[0].name == "search_web"
    assert n_finished > 5
