"""Formats derived from templates: what a template renders is read back, however it is cut."""

import random

import pytest
from formats import (
    DOCUMENT,
    N_SETS,
    NO_CALLS,
    NOT_RENDERED,
    a_call_set,
    answer_text,
    calls_of,
    chunks,
    document,
    format_of,
    read,
    rendered,
    round_trips,
    turn,
)

from cobali_ray.chat.derivation import derive
from cobali_ray.chat.format import GENERIC
from cobali_ray.chat.template import ChatTemplate
from tests.chat.comparison import sources

WITH_CALLS = [name for name in sources() if name not in {*NO_CALLS, *NOT_RENDERED}]
DISTINCT = list({format_of(name).calls: name for name in WITH_CALLS}.values())
RICH = {"query": 'say "no"\nto {b} it\'s ☃ <i>', "limit": 1.5, "tags": ["a, b", "[1]"], "safe": True}
ODD_TURNS = {
    "NVIDIA-Nemotron-Nano-v2": "leaves its `<think>` open in every turn of words",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "renders the words beside calls as a turn of their own",
    "openai-gpt-oss-120b": "renders the words beside a call as reasoning",
}
WORDS, THOUGHT = "Let me look.\n\nIs 3 < 5 {ok}?", "They want\n\nthe [weather]."


def test_all_templates_that_can_express_calls_are_here():
    assert len(WITH_CALLS) == 62
    assert all(rendered(name, turn([("now", {})])) is None for name in (*NO_CALLS, *NOT_RENDERED))
    assert {name for name in sources() if not format_of(name).native} == set(NO_CALLS)
    assert {name for name in sources() if not format_of(name).renders_calls} == {*NO_CALLS, *NOT_RENDERED}


@pytest.mark.parametrize("name", WITH_CALLS)
def test_calls_that_a_template_renders_are_read_back(name):
    assert round_trips(name) == N_SETS


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", DISTINCT)
def test_where_an_answer_is_cut_makes_no_difference(name, every):
    form = format_of(name)
    wanted = [("search_web", RICH), ("now", {})] if form.calls.parallel else [("search_web", RICH)]
    prompt, text = answer_text(name, turn(wanted))
    whole = read(form, prompt, [text])
    assert calls_of(whole) == wanted
    for cut in range(0, len(text), every):
        assert read(form, prompt, [text[:cut], text[cut:]]) == whole, text[:cut]
    assert read(form, prompt, text) == whole
    rng = random.Random(name)
    for _ in range(3):
        prompt, text = answer_text(name, turn(a_call_set(name, rng)))
        assert read(form, prompt, chunks(text, rng)) == read(form, prompt, [text])


@pytest.mark.parametrize("name", WITH_CALLS)
def test_content_and_reasoning_stand_apart(name):
    form = format_of(name)
    for message in (
        turn(content=WORDS),
        turn(content=WORDS, thought=THOUGHT),
        turn([("get_weather", {"city": "Łódź", "days": 2})], thought=THOUGHT),
        turn([("get_weather", {"city": "Łódź", "days": 2})], content=WORDS),
    ):
        if rendered(name, message) is None or (name in ODD_TURNS and message["content"]):
            continue
        prompt, text = answer_text(name, message)
        answer = read(form, prompt, [text])
        assert answer.content == (WORDS if WORDS in text else ""), text
        assert answer.reasoning == (THOUGHT if THOUGHT in text else ""), text
        assert len(answer.calls) == len(message.get("tool_calls", ())), text
        assert read(form, prompt, text) == answer


@pytest.mark.parametrize(
    "turn_of_calls",
    [
        pytest.param("{{ message | tojson }}", id="not-for-a-model"),
        pytest.param("{{ call.arguments | tojson }}{{ call.name }}", id="arguments-before-the-name"),
        pytest.param("[[1], {{ call | tojson }}]", id="an-object-in-a-list-of-others"),
        pytest.param("{{ call.name }}", id="no-arguments"),
        pytest.param("{{ 1 / 0 }}", id="refused"),
    ],
)
def test_a_template_that_makes_no_sense_gets_the_generic_format(turn_of_calls):
    source = (
        "{% for message in messages %}{% if message.tool_calls %}"
        "{% set call = message.tool_calls[0].function %}"
        + turn_of_calls
        + "{% else %}{{ message.role }}: {{ message.content }}\n{% endif %}{% endfor %}"
    )
    form = derive(ChatTemplate(source))
    assert form.calls == GENERIC
    assert not form.native


def test_the_table_is_current():
    written = DOCUMENT.read_text(encoding="utf-8")
    assert written == document(), "run .venv/bin/python -m tests.chat.formats"
