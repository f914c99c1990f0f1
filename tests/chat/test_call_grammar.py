"""Answers held to calls: what templates render is allowed, and all that is allowed is read as valid calls."""

import json
import random

import pytest
from families import FAMILIES, form_of
from formats import (
    NO_CALLS,
    NOT_RENDERED,
    PARAMETERS,
    a_call_set,
    answer_text,
    format_of,
    split,
    turn,
)
from held import Vocabulary, controls_of
from jsonschema import Draft202012Validator
from offers import CITY, calls_in, hold, only, tool, vocabulary_of

from cobali_ray.backend.grammar import check
from cobali_ray.chat.answer_events import ParsedAnswer
from cobali_ray.chat.call_grammar import after_reasoning, call_grammar
from cobali_ray.chat.format import GENERIC, Format, Kind
from cobali_ray.chat.generic import written
from cobali_ray.errors import InvalidParameterError
from tests.chat.comparison import sources

WITH_CALLS = [name for name in sources() if name not in {*NO_CALLS, *NOT_RENDERED}]
DISTINCT = list({form_of(name).calls: name for name in [*reversed(sources()), "Phi-4"]}.values())


IN_FAMILIES = {name for name, _ in FAMILIES.values()}


def of_families(names):
    """Return cases: the families' in `make test`, and in `make test-all` those much like one of them."""
    return [
        pytest.param(name, id=name, marks=() if name in IN_FAMILIES else pytest.mark.thorough)
        for name in names
    ]


RENDERED = [tool(name, properties) for name, properties in PARAMETERS.items()]


def rendered(name, rng):
    """Return a prompt and an answer with calls as the template renders them."""
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


@pytest.mark.parametrize("name", of_families(WITH_CALLS))
@pytest.mark.parametrize(
    "special",
    [pytest.param(False, id="plain", marks=pytest.mark.thorough), pytest.param(True, id="control-tokens")],
)
def test_what_a_template_renders_is_allowed(name, special):
    form, rng = format_of(name), random.Random(name)
    vocabulary = vocabulary_of(form, special=special)
    held = hold(form, vocabulary, RENDERED)
    for _ in range(2):
        prompt, text = rendered(name, rng)
        whole = hold(form, vocabulary, RENDERED, prompt, required=True)
        assert vocabulary.refusal(whole.text, text) == "", text
        if held.heads:
            begun = hold(form, vocabulary, RENDERED, prompt)
            assert vocabulary.refusal(begun.text, text, heads=begun.heads) == "", text
        else:
            text = "<|start|>assistant" + text if form.calls.kind is Kind.CHANNELS else text
            trigger = next(trigger for trigger in held.triggers if trigger in text)
            assert vocabulary.refusal(held.text, text.partition(trigger)[2]) == "", text


@pytest.mark.parametrize("name", of_families(DISTINCT))
def test_all_that_is_allowed_is_read_as_valid_calls(name):
    form, rng = form_of(name), random.Random(name)
    vocabulary = vocabulary_of(form)
    whole = hold(form, vocabulary, required=True).text
    single = hold(form, vocabulary, required=True, parallel=False).text
    named = hold(form, vocabulary, **only("search_web")).text
    counts = {
        grammar: [
            calls_in(form, text) for _ in range(n) if (text := vocabulary.written(grammar, rng)) is not None
        ]
        for grammar, n in ((whole, 6), (single, 6), (named, 6))
    }
    assert all(len(found) >= 1 for found in counts[whole])
    assert all(len(found) == 1 for found in counts[single])
    assert all([called for called, _ in found] == ["search_web"] for found in counts[named])
    assert all(counts.values()), "too few came to an end"


@pytest.mark.parametrize("name", of_families(DISTINCT))
def test_what_is_held_behind_a_trigger_is_read_as_valid_calls(name):
    form, rng = form_of(name), random.Random(name)
    vocabulary = vocabulary_of(form)
    held, found = hold(form, vocabulary), []
    assert bool(held.heads) != bool(held.triggers)
    for _ in range(4):
        trigger = rng.choice(held.triggers or ("",))
        if (rest := vocabulary.written(held.text, rng)) is not None:
            found.append(calls_in(form, trigger.removeprefix("<|start|>assistant") + rest))
    assert found
    assert all(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_held_to_its_own_format(family):
    name, text = FAMILIES[family]
    form = form_of(name)
    vocabulary = vocabulary_of(form)
    for how in ({"required": True}, only("get_weather")):
        held = hold(form, vocabulary, CITY, **how)
        end = "<|call|>" if "<|call|>" in vocabulary.ids else ""
        assert vocabulary.refusal(held.text, text) == ""
        assert held.triggers == ()
        for wrong in (
            text.replace("get_weather", "get_whether"),
            text.replace("city", "town"),
            "Sure! " + text,
            text.removesuffix(end)[:-1],
        ):
            assert vocabulary.refusal(held.text, wrong), wrong


def test_an_answer_that_is_no_call_may_have_a_shape_of_its_own():
    shape = check(
        "p", "json_schema", '{"type": "object", "properties": {"name": {"type": "integer"}}}'
    ).grammar
    for name, call in (FAMILIES[family] for family in ("Llama 3.1", "Qwen 2.5", "GPT-OSS", "Gemma 4")):
        form = format_of(name)
        vocabulary = vocabulary_of(form)
        held = hold(form, vocabulary, CITY, answer=shape.text)
        final = "<|channel|>final<|message|>" if form.calls.kind is Kind.CHANNELS else ""
        assert held.triggers == ()
        assert vocabulary.refusal(held.text, call) == ""
        assert vocabulary.refusal(held.text, final + '{"name": 7}') == ""
        assert vocabulary.refusal(held.text, final + '{"name": "now"}')
        assert vocabulary.refusal(held.text, final + "Sure!")


QWEN, R7B = "Qwen-Qwen3-0.6B", "CohereForAI-c4ai-command-r7b-12-2024-tool_use"


@pytest.mark.parametrize(
    ("name", "prompt", "allowed", "refused"),
    [
        pytest.param(
            QWEN, "", ["17", "<think>\nHm <b>?\n</think>\n\n17"], ["Hm 17", "<think>17"], id="it-may-reason"
        ),
        pytest.param(
            QWEN, "<think>\n", ["Hm.\n</think>\n\n17", "</think>17"], ["17"], id="the-prompt-has-begun"
        ),
        pytest.param(
            QWEN, "<think>\n\n</think>\n\n", ["17", "\n17"], ["<think>Hm.</think>17"], id="it-has-ended"
        ),
        pytest.param(
            "openai-gpt-oss-120b",
            "",
            [
                "<|channel|>final<|message|>17",
                "<|channel|>final <|constrain|>json<|message|>17",
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>17",
            ],
            ["17", "<|channel|>analysis<|message|>17"],
            id="channels",
        ),
        pytest.param(
            R7B,
            "",
            ["17", "<|START_RESPONSE|>17<|END_RESPONSE|>"],
            ["<|START_RESPONSE|>x"],
            id="marked-content",
        ),
        pytest.param("Qwen-Qwen2.5-7B-Instruct", "", ["17"], [" 17", "\n17"], id="no-reasoning"),
    ],
)
@pytest.mark.parametrize("special", [False, True], ids=["plain", "control-tokens"])
def test_reasoning_comes_before_what_is_held(name, prompt, allowed, refused, special):
    form = format_of(name)
    vocabulary = vocabulary_of(form, special=special)
    shape = check("p", "regex", "[0-9]{2}").grammar.text
    held = after_reasoning(form, prompt, shape, special=vocabulary.special)
    assert [vocabulary.refusal(held, text) for text in allowed] == [""] * len(allowed)
    assert all(vocabulary.refusal(held, text) for text in refused)


def test_reasoning_comes_before_calls():
    form = format_of(QWEN)
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Łódź"}}\n</tool_call>'
    vocabulary = vocabulary_of(form)
    for prompt, allowed, refused in (
        ("", [call, "<think>Hm.</think>\n\n" + call], ["Hm.</think>" + call]),
        ("<think>", ["Hm.</think>\n\n" + call], [call]),
        ("<think>\n\n</think>", ["\n\n" + call], ["<think>Hm.</think>" + call]),
    ):
        held = hold(form, vocabulary, CITY, prompt, required=True).text
        assert [vocabulary.refusal(held, text) for text in allowed] == [""] * len(allowed)
        assert all(vocabulary.refusal(held, text) for text in refused)


ODD = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
DATED = {"type": "string", "format": "date"}


@pytest.mark.parametrize(
    ("family", "schema", "key"),
    [
        *((family, ODD, "uniqueItems") for family in ("Qwen 2.5", "Qwen3-Coder", "Gemma 4")),
        *((family, DATED, "format") for family in ("Qwen3-Coder", "Gemma 4", "LFM 2")),
    ],
)
def test_keys_that_cannot_be_held_are_refused_or_named(family, schema, key):
    form = form_of(FAMILIES[family][0])
    loose = hold(form, Vocabulary(), [*CITY, tool("count", {"of": schema}), tool("sum", {"of": schema})])
    assert {("tools", i, "function", "parameters", key) for i in (1, 2)} == set(loose.ignored)
    with pytest.raises(InvalidParameterError, match=rf"tools\[1\]\.function\.parameters .*{key}"):
        hold(form, Vocabulary(), [*CITY, tool("count", {"of": schema}, strict=True)])
    assert hold(form, Vocabulary(), [tool("count", {"of": {"type": "integer"}}, strict=True)]).ignored == ()


@pytest.mark.parametrize("family", ["Qwen 2.5", "Qwen3-Coder", "Gemma 4", "MiniMax M3"])
def test_parameters_may_be_a_reference(family):
    name, text = FAMILIES[family]
    definitions = {"in": CITY[0]["function"]["parameters"] | {"additionalProperties": False}}
    parameters = {"$ref": "#/definitions/in", "definitions": definitions}
    asked = [
        {"type": "function", "function": {"name": "get_weather", "parameters": parameters, "strict": True}}
    ]
    vocabulary = vocabulary_of(form_of(name))
    held = hold(form_of(name), vocabulary, asked, required=True)
    assert vocabulary.refusal(held.text, text) == ""
    assert vocabulary.refusal(held.text, text.replace("city", "town"))


@pytest.mark.parametrize("family", ["Qwen 2.5", "Qwen3-Coder", "Gemma 4", "MiniMax M3", "LFM 2"])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "maxItems": 1, "items": {"type": "integer"}},
        {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "integer"}},
        {"type": "array", "maxItems": 0},
        {"type": "array", "items": False},
        {"type": "string", "pattern": "a\\\\$"},
        False,
    ],
)
def test_schemas_at_their_limits_can_be_held(family, schema):
    name = FAMILIES[family][0]
    assert hold(form_of(name), vocabulary_of(form_of(name)), [tool("f", {"of": schema})], required=True).text


@pytest.mark.parametrize("family", ["Qwen 2.5", "Qwen3-Coder", "Gemma 4", "MiniMax M3"])
def test_a_schema_that_is_none_is_refused_by_name(family):
    form = form_of(FAMILIES[family][0])
    for wrong in ({"type": "text"}, {"$ref": "https://example.org/x"}):
        with pytest.raises(InvalidParameterError, match=r"tools\[1\]\.function\.parameters"):
            hold(form, Vocabulary(), [*CITY, tool("count", {"of": wrong})])


TREE = {"type": "object", "properties": {"leaf": {"type": "integer"}, "of": {"$ref": "#/$defs/tree"}}}


GROW = '<tool_call><invoke name="grow"><tree><of><of><leaf>{}</leaf></of></of></tree></invoke></tool_call>'


@pytest.mark.parametrize(
    ("name", "call", "true"),
    [
        ("google-gemma-4-31B-it", "<|tool_call>call:grow{{tree:{{of:{{leaf:{}}}}}}}<tool_call|>", "true"),
        (
            "LFM2-8B-A1B",
            "<|tool_call_start|>[grow(tree={{'of': {{\"leaf\": {}}}}})]<|tool_call_end|>",
            "True",
        ),
        ("MiniMax-M3", GROW.replace("<", "]<]minimax[>[<"), "true"),
    ],
)
def test_values_that_refer_to_themselves(name, call, true):
    asked = tool("grow", {"tree": {"$ref": "#/$defs/tree"}}, required=["tree"])
    asked["function"]["parameters"]["$defs"] = {"tree": TREE | {"additionalProperties": False}}
    held = hold(form_of(name), Vocabulary(), [asked], required=True).text
    assert Vocabulary().refusal(held, call.format(1)) == ""
    assert Vocabulary().refusal(held, call.format(true)), "a leaf is a number"


@pytest.mark.parametrize("family", ["Mistral Nemo", "Mistral Small 3.2"])
def test_ids_are_such_as_the_template_takes_back(family):
    name, text = FAMILIES[family]
    held = hold(form_of(name), Vocabulary(), CITY, required=True)
    assert Vocabulary().refusal(held.text, text.replace("abcd12345", "abcd1234"))
    assert Vocabulary().refusal(held.text, text.replace("abcd12345", "abcd123456"))


@pytest.mark.parametrize("name", ["LFM2-8B-A1B", "google-gemma-4-31B-it", "MiniMax-M3"])
def test_a_reference_leads_to_the_schema_of_its_own_tool(name):
    form, tools = form_of(name), []
    for i in range(8):
        tools.append(tool(f"f{i}", {"v": {"$ref": "#/$defs/x"}}, required=["v"]))
        tools[i]["function"]["parameters"]["$defs"] = {"x": {"const": i}}
    ended = form.reasoning_end
    held = hold(form, Vocabulary(), tools, ended, required=True, parallel=False).text
    for seed in range(8):
        written_call = Vocabulary().written(held, random.Random(seed))
        (called,) = ParsedAnswer().add(split(form, ended, [written_call], tools=tools)).calls.values()
        assert json.loads(called.arguments) == {"v": int(called.name[1:])}


@pytest.mark.parametrize("family", ["Gemma 4", "LFM 2"])
def test_choices_that_multiply_are_refused_before_they_do(family):
    asked = tool("f", {"v": {"$ref": "#/$defs/x"}})
    branches = [{"$ref": "#/$defs/x"}] * 10 + [{"type": "string"}]
    asked["function"]["parameters"]["$defs"] = {"x": {"anyOf": branches}}
    with pytest.raises(InvalidParameterError, match=r"tools\[0\]\.function\.parameters .*choices"):
        hold(form_of(FAMILIES[family][0]), Vocabulary(), [asked])


@pytest.mark.parametrize(
    "family", ["Gemma 4", "GPT-OSS", "DeepSeek V3.1", "Qwen3-Coder", "Llama 3.1", "MiniMax M3", "no format"]
)
def test_arguments_that_nobody_described_are_free(family):
    form, rng = form_of(FAMILIES[family][0]), random.Random(family)
    bare = [{"type": "function", "function": {"name": "get_weather"}}]
    vocabulary = vocabulary_of(form)
    held = hold(form, vocabulary, bare, required=True)
    text = FAMILIES[family][1]
    assert vocabulary.refusal(held.text, text) == ""
    found = [text for _ in range(10) if (text := vocabulary.written(held.text, rng, n_most=300)) is not None]
    assert all(calls_in(form, text, bare)[0][0] == "get_weather" for text in found)


@pytest.mark.parametrize("family", ["Qwen 2.5", "Qwen3-Coder", "DeepSeek V3.1", "GPT-OSS", "Gemma 4"])
def test_tokens_may_span_the_parts_of_a_call(family):
    name, text = FAMILIES[family]
    merged = (
        '{"',
        '": {"',
        '"}}',
        '"}}\n</',
        '"}',
        "}\n",
        ">\n<",
        "\n</",
        ">\nŁ",
        "get",
        '": "',
        ":{city:",
        '>"',
    )
    vocabulary = Vocabulary(controls_of(form_of(name)), merged)
    assert len(vocabulary.tokens(text)) < len(Vocabulary(controls_of(form_of(name))).tokens(text))
    assert vocabulary.refusal(hold(form_of(name), vocabulary, CITY, required=True).text, text) == ""


def test_the_end_of_an_answer_is_no_part_of_it():
    """Where a marker is a token that ends the answer, nothing is asked for in its place."""
    name, text = FAMILIES["GPT-OSS"]
    vocabulary = vocabulary_of(form_of(name))
    vocabulary.ends = {"<|call|>"}
    held = hold(form_of(name), vocabulary, CITY, required=True)
    assert vocabulary.refusal(held.text, text.removesuffix("<|call|>")) == ""


TEXTS = {
    "choice": {"enum": ['a"b', "x\ny/z", "", "it's {<b>}", "☃"]},
    "word": {"type": "string", "pattern": "^[a-f]{2,4}$"},
    "part": {"type": "string", "pattern": "[0-9]-[0-9]", "maxLength": 5},
    "long": {"type": "string", "minLength": 2, "maxLength": 50_000},
}


@pytest.mark.parametrize("family", ["Qwen3-Coder", "DeepSeek V3.2", "Gemma 4", "MiniMax M3", "Qwen 2.5"])
def test_strings_are_held_to_choices_patterns_and_lengths(family):
    form, rng = form_of(FAMILIES[family][0]), random.Random(family)
    vocabulary = vocabulary_of(form)
    for key in ("choice", "word", "part"):
        tools = [tool("say", {key: TEXTS[key]}, required=[key])]
        held = hold(form, vocabulary, tools, **only("say"))
        assert held.ignored == ()
        found = [vocabulary.written(held.text, rng) for _ in range(12)]
        for text in (text for text in found if text is not None):
            ((name, arguments),) = calls_in(form, text, tools)
            assert name == "say"
            Draft202012Validator(tools[0]["function"]["parameters"]).validate(arguments)
        assert any(found)
    assert hold(form, vocabulary, [tool("say", {"long": TEXTS["long"]})], **only("say"))


def test_a_string_does_not_hold_the_marker_that_ends_it():
    call = FAMILIES["Qwen3-Coder"][1]
    held = hold(format_of("Qwen3-Coder"), Vocabulary(), CITY, required=True)
    assert Vocabulary().refusal(held.text, call.replace("Łódź", "Łódź\n<b>\n")) == ""
    assert Vocabulary().refusal(held.text, call.replace("Łódź", "Łódź</parameter>."))
    form = format_of("openbmb-MiniCPM5-1B")
    held = hold(form, Vocabulary(), CITY, required=True)
    call = '<function name="get_weather"><param name="city">{}</param></function>'
    for allowed in ("Łódź", "<![CDATA[Łódź</param>]]>", "]]>"):
        assert Vocabulary().refusal(held.text, call.format(allowed)) == ""
    assert Vocabulary().refusal(held.text, call.format("<![CDATA[Łódź"))


def test_a_string_that_may_be_null_is_no_number():
    asked = [tool("note", {"text": {"anyOf": [{"type": "string"}, {"type": "null"}]}})]
    form = format_of("MiniMax-M2")
    held = hold(form, Vocabulary(), asked, required=True)
    call = (
        '<minimax:tool_call><invoke name="note"><parameter name="text">{}</parameter></invoke>'
        "</minimax:tool_call>"
    )
    for text, value in (("12", "12"), ("null", None), ("[1]", "[1]"), ("so", "so")):
        assert Vocabulary().refusal(held.text, call.format(text)) == ""
        assert calls_in(form, call.format(text), asked) == [("note", {"text": value})]


def test_what_schemas_tell_their_readers_is_no_part_of_the_grammar():
    note = {"description": "x" * 1000, "title": "T", "examples": ["e"]}
    item = {"$ref": "#/$defs/t", **note}
    schema = {
        **note,
        "properties": {
            "description": {"type": "string", "maxLength": 3, **note},  # a property of that name stays
            "way": {"anyOf": [{"enum": ["a"], **note}, {"type": "array", "items": item}]},
        },
        "required": ["description"],
        "$defs": {"t": {"type": "integer", **note}},
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    form, vocabulary = Format(calls=GENERIC), Vocabulary()
    held = call_grammar(form, [tool], check=check, special=vocabulary.special, prompt="", required=True)
    assert "xxx" not in held.text
    assert len(held.text) < 1500
    for way, fits in (("a", True), ([1], True), ("b", False), (["x"], False)):
        answer = written(GENERIC, [("f", {"description": "abc", "way": way})])
        assert (not vocabulary.refusal(held.text, answer)) is fits
