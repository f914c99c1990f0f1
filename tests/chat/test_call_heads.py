"""Calls without a marker: held from their name on, recognised by how the answer begins."""

import pytest
from formats import format_of
from held import END, Vocabulary
from offers import CITY, calls_in, hold

LLAMA, FUNCTIONARY = "meta-llama-Llama-3.1-8B-Instruct", "meetkai-functionary-medium-v3.2"
BARE = [
    pytest.param(LLAMA, "", '{"name": "get_weather", "parameters": {"city": "Łódź"}}', id="Llama"),
    pytest.param(FUNCTIONARY, "", '>>>get_weather\n{"city": "Łódź"}', id="functionary"),
    pytest.param(FUNCTIONARY, "assistant\n>>>", 'get_weather\n{"city": "Łódź"}', id="functionary-primed"),
]


@pytest.mark.parametrize(("name", "prompt", "call"), BARE)
def test_a_call_without_a_marker_is_held_from_its_name_on(name, prompt, call):
    form, vocabulary = format_of(name), Vocabulary()
    held = hold(form, vocabulary, CITY, prompt)
    assert (held.triggers, len(held.heads)) == ((), 1)
    for right in (call, call.replace('": ', '":'), call.replace("{", "{ ", 1), f"\n{call}"):
        assert vocabulary.refusal(held.text, right, heads=held.heads) == "", right
        assert vocabulary.refusal(held.text, right.replace("city", "town"), heads=held.heads), right
        if name == LLAMA:
            assert calls_in(form, right, CITY) == [("get_weather", {"city": "Łódź"})]
    for wrong in (call.replace('"Łódź"', "7"), call[:-1], call + "!"):
        assert vocabulary.refusal(held.text, wrong, heads=held.heads), wrong


FREE = [
    "Łódź is a city.",
    "",
    " \n",
    '{"name": "get_',
    '{"name": "Ada", "age": 36}',
    '{"name": "get_weather_now", "parameters": 1}',
    '{"names": ["get_weather"]}',
    '[{"name": "get_weather", "town": 1}]',
    'It is {"name": "get_weather", "town": 1}.',
    "get_weather is a function, {so to say}",
    "all\nget_weather",
    # Which are read as calls all the same: other fields, or the same in another order.
    '{"type": "function", "name": "get_weather", "parameters": {"city": "Łódź"}}',
    '{"parameters": {"city": "Łódź"}, "name": "get_weather"}',
    "{" * 3000,
    "\n" * 3000 + '{"name": "get_weather", 1',
]


@pytest.mark.parametrize(
    ("name", "prompt"), [(LLAMA, ""), (FUNCTIONARY, ""), (FUNCTIONARY, "assistant\n>>>")]
)
@pytest.mark.parametrize("text", FREE)
def test_an_answer_that_begins_otherwise_is_free(name, prompt, text):
    """Every token and every end is allowed, at every moment, and no mask is ever computed."""
    vocabulary = Vocabulary(["<|odd|>"])
    held = hold(format_of(name), vocabulary, CITY, prompt)
    matcher = vocabulary.matcher(held.text, held.heads)
    for token in [*vocabulary.tokens(text), vocabulary.ids["<|odd|>"], 0xC5, *vocabulary.tokens(text)]:
        assert not matcher.holds
        assert matcher.allows(token)
        assert matcher.allows(END)
        matcher.take(token)


def test_tokens_may_span_the_name_of_a_call_without_a_marker():
    form, vocabulary = format_of(LLAMA), Vocabulary(merged=['{"name": "get', '_weather", "par', '": {"'])
    held = hold(form, vocabulary, CITY)
    call = '{"name": "get_weather", "parameters": {"city": "Łódź"}}'
    assert vocabulary.refusal(held.text, call, heads=held.heads) == ""
    assert vocabulary.refusal(held.text, call.replace("Łódź", "").replace("city", "town"), heads=held.heads)
