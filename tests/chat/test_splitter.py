"""Splitter: answers as models write them, well and badly; what is held back, what is never lost."""

import random
from dataclasses import replace

import pytest
from families import FAMILIES, form_of
from formats import NO_CALLS, TOOLS, USER, calls_of, chunks, format_of, read, template_of

from cobali_ray.chat.answer_events import (
    CallArguments,
    CallBegun,
    CallEnded,
    ContentText,
    ParsedAnswer,
    ReasoningText,
)
from cobali_ray.chat.derivation import derive
from cobali_ray.chat.format import GENERIC, CallFormat, Format, Kind
from cobali_ray.chat.generic import explanation, tell
from cobali_ray.chat.splitter import Splitter
from cobali_ray.chat.template import ChatTemplate
from cobali_ray.errors import InvalidParameterError

QWEN, CODER, LLAMA = "Qwen-Qwen3-0.6B", "Qwen3-Coder", "meta-llama-Llama-3.1-8B-Instruct"
HARMONY, GEMMA = "openai-gpt-oss-120b", "google-gemma-4-31B-it"
PARIS = [("get_weather", {"city": "Paris", "days": 2})]
BOTH = [*PARIS, ("now", {})]
CALL = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}'
PHI = ChatTemplate(
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% if m['tools'] %}<|tool|>{{ m['tools'] }}"
    "<|/tool|>{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""As Phi-4-mini's does: it shows tools and no calls."""


def check(form, text, *, prompt="", content="", reasoning="", calls=(), tools=TOOLS):
    """Read an answer in one piece, in characters and in random pieces."""
    rng = random.Random(text)
    for pieces in ([text], text, chunks(text, rng), chunks(text, rng)):
        answer = read(form, prompt, pieces, tools)
        assert (answer.content, answer.reasoning, calls_of(answer)) == (content, reasoning, list(calls))


MIXED = [
    pytest.param(
        "deepseek-ai-DeepSeek-V3.1",
        'Hm.</think>Let me look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris", '
        '"days": 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        {"prompt": "<think>", "reasoning": "Hm.", "content": "Let me look.", "calls": BOTH},
        id="deepseek-v3.1",
    ),
    pytest.param(
        "GLM-4.6",
        "\n<think>Hm.</think>\nYes.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        {"reasoning": "Hm.", "content": "Yes.", "calls": BOTH},
        id="glm-4.6",
    ),
    pytest.param(
        "mistralai-Mistral-Nemo-Instruct-2407",
        f'[TOOL_CALLS] [{CALL[:-1]}, "id": "abcdefghi"}}, {{"name": "now", "arguments": {{}}}}]',
        {"calls": BOTH},
        id="mistral-nemo",
    ),
    pytest.param(
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        "<|START_RESPONSE|>It is <co>grey</co>.<|END_RESPONSE|>",
        {"content": "It is <co>grey</co>."},
        id="command-r7b",
    ),
    pytest.param(
        "LFM2-8B-A1B",
        '<|tool_call_start|>[get_weather(city="Paris", days=2), now()]<|tool_call_end|>Looking.',
        {"content": "Looking.", "calls": BOTH},
        id="lfm2",
    ),
    pytest.param(
        "meetkai-functionary-medium-v3.2",
        'all\nIn Python >>> 1\n>>>get_weather\n{"city": "Paris", "days": 2}>>>now\n{}',
        {"prompt": "\n\n>>>", "content": "In Python >>> 1", "calls": BOTH},
        id="functionary-3.2",
    ),
]
LODZ = [("get_weather", {"city": "Łódź"})]
ANSWERS = MIXED + [
    pytest.param(name, text, {"reasoning": "Hm." if "Hm." in text else "", "calls": LODZ}, id=family)
    for family, (name, text) in FAMILIES.items()
]


@pytest.mark.parametrize(("name", "text", "expected"), ANSWERS)
def test_an_answer_is_taken_apart(name, text, expected):
    check(form_of(name), text, **expected)


@pytest.mark.parametrize(("name", "text", "expected"), ANSWERS)
def test_an_answer_cut_anywhere_tells_the_beginning_of_what_the_whole_one_does(name, text, expected):
    form, prompt = form_of(name), expected.get("prompt", "")
    whole = read(form, prompt, [text])
    for n in range(len(text)):
        splitter = Splitter(form, prompt=prompt, tools=TOOLS)
        part = ParsedAnswer().add([*splitter.feed(text[:n]), *splitter.cut()])
        may_be_the_answer = name == LLAMA and not part.calls
        assert (text if may_be_the_answer else whole.content).startswith(part.content.rstrip()), text[:n]
        assert whole.reasoning.startswith(part.reasoning.rstrip()), text[:n]
        for index, call in part.calls.items():
            assert call.name == whole.calls[index].name
            assert whole.calls[index].arguments.startswith(call.arguments), text[:n]


def test_phi_4():
    form = derive(PHI)
    assert form.native
    assert not form.renders_calls
    check(form, f'<|tool_call|>[{CALL}, {{"name": "now", "arguments": {{}}}}]<|/tool_call|>', calls=BOTH)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        pytest.param(
            QWEN,
            f"I will.\n<tool_call>\n{CALL}\n</tool_call>",
            {"prompt": "<think>\n", "reasoning": "I will.", "calls": PARIS},
            id="call-inside-open-reasoning-ends-it",
        ),
        pytest.param(
            QWEN,
            "What is a <tool_call> for? Hm.\n</think>\n\nHi.",
            {"prompt": "<think>\n", "reasoning": "What is a <tool_call> for? Hm.", "content": "Hi."},
            id="marker-as-a-word-in-reasoning",
        ),
        pytest.param(
            CODER,
            "I will.\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
            "</function>\n</tool_call>",
            {"content": "I will.", "calls": PARIS},
            id="missing-opener",
        ),
        pytest.param(QWEN, CALL, {"calls": PARIS}, id="no-marker-at-all"),
        pytest.param(
            QWEN,
            '<tool_call>{"arguments": {"city": "Paris", "days": 2}, "name": "get_weather"}</tool_call>',
            {"calls": PARIS},
            id="arguments-before-the-name",
        ),
        pytest.param(
            QWEN,
            "<tool_call>{'name': 'get_weather', 'arguments': {'a': True, 'b': None, 'c': 'it\\'s', 'd': \"l'x\"}}"
            "</tool_call>",
            {"calls": [("get_weather", {"a": True, "b": None, "c": "it's", "d": "l'x"})]},
            id="python-literals",
        ),
        pytest.param(
            QWEN,
            '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\", \\"days\\": 2}"}</tool_call>',
            {"calls": PARIS},
            id="arguments-as-a-string",
        ),
        pytest.param(QWEN, '<tool_call>{"name": "now"}</tool_call>', {"calls": BOTH[1:]}, id="no-arguments"),
        pytest.param(QWEN, "<think>\n\n</think>\n\nHi.", {"content": "Hi."}, id="empty-reasoning"),
        pytest.param(QWEN, "</think>\n\nHi.", {"content": "Hi."}, id="reasoning-closed-twice"),
        pytest.param(
            "deepseek-ai-DeepSeek-V3.1",
            "\n\nHi.",
            {"prompt": "<think></think>", "content": "Hi."},
            id="white-space-after-reasoning-that-the-prompt-closed",
        ),
        pytest.param(
            GEMMA,
            "<|channel><|channel>thought\n<channel|>Hi.<|channel>thought\n<channel|><channel|>",
            {"content": "Hi."},
            id="gemma-stray-channels",
        ),
        pytest.param(
            "Kimi-K3",
            "<|open|>response<|sep|>Hi.<|close|>response<|sep|>",
            {"prompt": "<|open|>think<|sep|>", "content": "Hi."},
            id="content-begins-inside-open-reasoning",
        ),
        pytest.param(QWEN, "Say <think> to me.", {"content": "Say <think> to me."}, id="marker-as-a-word"),
        pytest.param(
            LLAMA,
            '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris", "days": 2}}',
            {"calls": PARIS},
            id="llama-says-its-type",
        ),
        pytest.param(
            LLAMA,
            '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}; {"name": "now"}',
            {"calls": BOTH},
            id="llama-python-tag-and-two",
        ),
        pytest.param(
            HARMONY,
            "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
            "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
            {"content": "Let me look.", "reasoning": "Hm.", "calls": BOTH[1:]},
            id="harmony-stray-commentary",
        ),
        pytest.param(HARMONY, "Just words.", {"content": "Just words."}, id="harmony-without-channels"),
    ],
)
def test_what_models_do_besides_their_format_is_understood(name, text, expected):
    check(format_of(name), text, **expected)


@pytest.mark.parametrize("name", [QWEN, CODER, LLAMA, HARMONY, GEMMA])
def test_white_space_in_front_is_told_of_an_answer_that_continues_a_text(name):
    """And in the middle of a message on a channel, no header is looked for."""
    form = format_of(name)
    prompt = template_of(name).render(
        [USER, {"role": "assistant", "content": "It is"}], continue_final_message=True
    )
    for pieces in ([" to=day"], " to=day"):
        splitter = Splitter(form, prompt=prompt, tools=TOOLS, continues=True)
        events = [event for piece in pieces for event in splitter.feed(piece)]
        assert ParsedAnswer().add(events + splitter.end()) == ParsedAnswer(content=" to=day")


M3 = (
    ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="now">]<]minimax[>[<a>{}]<]minimax[>[</a>'
    "]<]minimax[>[</invoke>]<]minimax[>[</tool_call>"
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(QWEN, "<tool_call>\nno JSON</tool_call> Bye. ", id="no-object"),
        pytest.param(QWEN, '<tool_call>{"age": 3}</tool_call>', id="no-name"),
        pytest.param(
            QWEN, '<tool_call>{"name": "now", "arguments": [1]}</tool_call>', id="arguments-are-a-list"
        ),
        pytest.param(
            QWEN, '<tool_call>{"name": "now", "arguments": {"a": oops}}</tool_call> Bye.', id="no-value"
        ),
        pytest.param(QWEN, '<tool_call>{"name": "now", "arguments": {"a": 1', id="the-answer-ends-in-it"),
        pytest.param(
            QWEN, '<tool_call>{"name": "now", "arguments": ' + '{"a":' * 99 + "{" + "}" * 101, id="too-deep"
        ),
        pytest.param(QWEN, '{"answer": 42}', id="an-object-that-is-the-answer"),
        pytest.param(QWEN, '{"name": "Bob", "id": 3}', id="an-object-with-a-name"),
        pytest.param(QWEN, "<tool_cal", id="half-a-marker"),
        pytest.param(
            CODER, "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar", id="half-an-argument"
        ),
        pytest.param(CODER, "<function=" + "x" * 400, id="a-name-without-end"),
        pytest.param(GEMMA, "<|tool_call>call:now{a:<|", id="half-a-quote"),
        pytest.param(
            HARMONY, '<|channel|>commentary to=functions.now<|message|>{"a": oops}<|call|>', id="harmony"
        ),
        pytest.param("LFM2-8B-A1B", "<|tool_call_start|>[now(a=1", id="python"),
        pytest.param(HARMONY, "<|channel|>final, " + "he said. " * 99, id="harmony-without-a-body"),
        pytest.param(
            "CohereForAI-c4ai-command-r-plus-tool_use",
            '```json\n{"tool_name": "now"}\n```',
            id="a-block-of-code",
        ),
        pytest.param(
            "CohereForAI-c4ai-command-r-plus-tool_use",
            'Action:\n```json\n[{"name": "Bob", "parameters": {}}]```',
            id="another-models-name-field",
        ),
        pytest.param(QWEN, '{"arguments": {}, "name": "Bob"}', id="no-tool-of-that-name"),
        pytest.param(
            QWEN, '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>', id="half-a-letter-in-a-name"
        ),
        pytest.param(
            QWEN,
            """<tool_call>{"name": "now", "arguments": {"a": '\\U0000d800'}}</tool_call>""",
            id="half-a-letter",
        ),
        pytest.param("MiniMax-M3", M3.format("1e999"), id="no-number-of-json"),
        pytest.param("MiniMax-M3", M3.format('"\\ud800"'), id="half-a-letter-in-an-element"),
    ],
)
def test_what_is_no_call_is_content_to_the_letter(name, text):
    content = text.removesuffix("<|call|>") if name == HARMONY else text
    check(format_of(name), text, content=content)


def test_without_tools_nothing_is_a_call():
    for name in (QWEN, LLAMA, CODER):
        check(
            format_of(name),
            f"<tool_call>{CALL}</tool_call>",
            content=f"<tool_call>{CALL}</tool_call>",
            tools=(),
        )


def test_names_and_arguments_come_while_they_are_written():
    splitter = Splitter(format_of(QWEN), tools=TOOLS)
    assert splitter.feed("Let me look.\n<tool_call>\n") == [ContentText("Let me look.")]
    assert splitter.feed('{"name": "get_wea') == []
    assert splitter.feed('ther", ') == [CallBegun(0, "get_weather")]
    assert splitter.feed('"arguments": {"city": "Par') == [CallArguments(0, '{"city": "Par')]
    assert splitter.feed("is") == [CallArguments(0, "is")]
    assert splitter.feed('"}}\n') == [CallArguments(0, '"}'), CallEnded(0)]
    assert splitter.feed("</tool_call>") == splitter.end() == []


def test_a_raw_argument_streams_as_json():
    splitter = Splitter(format_of(CODER), tools=TOOLS)
    splitter.feed("<tool_call>\n<function=get_weather>\n<parameter=city>\n")
    assert splitter.feed('say "no') == [CallArguments(0, 'say \\"no')]
    assert splitter.feed("\nto") == [CallArguments(0, "\\nto")]
    assert splitter.feed("\n</parameter>\n<parameter=days>\n1") == [CallArguments(0, '", "days": ')]
    assert splitter.feed("2\n</parameter>\n</function>\n") == [CallArguments(0, "12}"), CallEnded(0)]


@pytest.mark.parametrize("prompt", ["", "<think>\n"])
def test_no_more_is_held_back_than_may_be_a_marker(prompt):
    form, said = format_of(QWEN), ""
    splitter = Splitter(form, prompt=prompt, tools=TOOLS)
    text = "If 1 <2 and <tool is a word, <tool_ca too, then so is </thin or so."
    for n_fed, char in enumerate(text, start=1):
        for event in splitter.feed(char):
            assert isinstance(event, ReasoningText if prompt else ContentText)
            said += event.text
        assert n_fed - len(said) < len("</tool_call>")


def test_a_call_that_only_begins_is_not_waited_for_in_vain():
    splitter = Splitter(format_of(CODER), tools=TOOLS)
    (said,) = splitter.feed("<function=" + "x" * 400)
    assert len(said.text) > 300


def test_a_strings_schema_decides_where_the_format_does_not():
    text = "<function=f>\n<parameter=a>\n7\n</parameter>\n<parameter=b>\n7\n</parameter>\n</function>"
    types = {"a": {"type": "string"}, "b": {"type": ["integer", "null"]}}
    tools = [{"function": {"name": "f", "parameters": {"type": "object", "properties": types}}}]
    check(format_of(CODER), text, tools=tools, calls=[("f", {"a": "7", "b": 7})])
    check(format_of(CODER), text, calls=[("f", {"a": 7, "b": 7})])  # nothing is known of f
    types["b"] = {"type": ["string", "null"]}
    check(format_of(CODER), text, tools=tools, calls=[("f", {"a": "7", "b": "7"})])


@pytest.mark.parametrize(
    "name", sorted({*NO_CALLS, "LFM2-8B-A1B"} - {"fireworks-ai-llama-3-firefunction-v2"})
)
def test_a_model_without_a_place_for_calls_is_told_in_words(name):
    form, template = format_of(name), template_of(name)
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris", "days": 2}'},
    }
    chat = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "grey"},
    ]
    prompt = template.render(tell(form, chat, TOOLS), tools=TOOLS if form.native else None)
    shown = prompt.partition("Paris")[0].rpartition("\n" if form.calls.start else "<|im_start|>assistant")[2]
    assert "get_weather" in prompt
    assert "grey" in prompt
    assert shown
    turn = tell(form, chat, TOOLS)[1]["content"]
    assert turn in prompt
    check(form, turn, calls=PARIS)


SHARED = {
    "$defs": {"Size": {"type": "string", "enum": ["1", "2"]}, "Zip": {"type": "string"}},
    "properties": {
        "size": {"$ref": "#/$defs/Size"},
        "zip": {"allOf": [{"$ref": "#/$defs/Zip"}]},
        "perhaps": {"anyOf": [{"$ref": "#/$defs/Zip"}, {"type": "null"}]},
        "choice": {"anyOf": [{"const": "1"}, {"const": "2"}]},
        "n": {"$ref": "#/$defs/N"},
    },
    "additionalProperties": {"type": "string"},
}


@pytest.mark.parametrize(
    "parameters",
    [SHARED, {"$ref": "#/definitions/Named", "definitions": {"Named": SHARED}, "$defs": SHARED["$defs"]}],
    ids=["shared", "named"],
)
def test_what_a_schema_says_elsewhere_of_a_string_counts(parameters):
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    values = {"size": "2", "zip": "90210", "perhaps": "12", "choice": "1", "other": "true", "n": 3}
    text = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    call = f"<tool_call>\n<function=f>\n{text}</function>\n</tool_call>"
    check(format_of(CODER), call, calls=[("f", values)], tools=tools)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        pytest.param(
            '<|channel|>analysis to=browser.search code<|message|>{"query": "x"}<|call|>',
            {"reasoning": '{"query": "x"}'},
            id="a-tool-that-was-not-offered",
        ),
        pytest.param(
            "<|channel|>analysis<|message|>one<|end|><|start|>assistant<|channel|>analysis<|message|>two<|end|>"
            "<|start|>assistant<|channel|>commentary<|message|>Now.<|end|><|start|>assistant<|channel|>final"
            "<|message|>Here.",
            {"reasoning": "one\n\ntwo", "content": "Now.\n\nHere."},
            id="messages-of-one-kind",
        ),
    ],
)
def test_messages_of_channels(text, parts):
    check(format_of(HARMONY), text, **parts)


def test_a_channel_of_reasoning_can_be_content():
    form = replace(format_of(HARMONY), reads_reasoning=False)
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    check(form, text, content="Hm.\n\nYes.")


@pytest.mark.parametrize(
    ("name", "prompt", "text"),
    [
        (QWEN, "The closing tag is ", "</think> and it"),
        (LLAMA, "Example: ", '{"name": "now", "parameters": {}} is it.'),
    ],
)
def test_what_goes_on_with_a_text_is_not_the_beginning_of_an_answer(name, prompt, text):
    splitter = Splitter(format_of(name), prompt=prompt, tools=TOOLS, continues=True)
    events = [*splitter.feed(text), *splitter.end()]
    assert "".join(event.text for event in events) == text


def test_brackets_behind_a_list_of_calls_are_text():
    form = Format(calls=CallFormat(kind=Kind.JSON, start="[TOOL_CALLS]", joined="list"))
    check(
        form,
        '[TOOL_CALLS][{"name": "now", "arguments": {}}] [1] is a source',
        content="[1] is a source",
        calls=[("now", {})],
    )


def test_tools_are_told_in_the_system_text():
    form = Format(calls=GENERIC, native=False, renders_calls=False)
    told = tell(form, [{"role": "system", "content": "Be brief."}, USER], TOOLS)
    assert told[0]["content"] == "Be brief.\n\n" + explanation(GENERIC, TOOLS)
    assert told[1] == USER
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert tell(form, parts, TOOLS)[0]["content"][0]["text"].startswith(explanation(GENERIC, TOOLS))
    bad = {"function": {"name": "now", "arguments": "no object"}}
    with pytest.raises(InvalidParameterError):
        tell(form, [{"role": "assistant", "content": "", "tool_calls": [bad]}], TOOLS)


def test_results_of_one_turn_are_told_together():
    form = Format(calls=GENERIC, native=False, renders_calls=False)
    results = [{"role": "tool", "content": text} for text in ("grey", "noon")]
    told = tell(form, [USER, {"role": "assistant", "content": "Hm."}, *results], ())
    assert [message["role"] for message in told] == ["user", "assistant", "user"]
    assert told[2]["content"].index("grey") < told[2]["content"].index("noon")


def test_what_a_user_adds_to_results_is_told_with_them():
    form = Format(calls=GENERIC, native=False, renders_calls=False)
    results = [{"role": "tool", "content": text} for text in ("grey", "noon")]
    for content in ("And?", [{"type": "text", "text": "And?"}]):
        chat = tell(
            form, [USER, {"role": "assistant", "content": "Hm."}, *results, USER | {"content": content}], ()
        )
        assert [message["role"] for message in chat] == ["user", "assistant", "user"]
        text = (
            "".join(part["text"] for part in chat[2]["content"])
            if isinstance(content, list)
            else chat[2]["content"]
        )
        assert text.index("grey") < text.index("noon") < text.index("And?")


@pytest.mark.parametrize(
    ("joined", "text"),
    [
        ("list", '<c>[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]</c>'),
        ("lines", '<c>\n{"name": "f", "arguments": {"x": 1}}\n{"name": "g", "arguments": {}}\n</c>'),
        ("", '<c>\n{"name": "f", "arguments": {"x": 1}}\n</c>\n<c>\n{"name": "g", "arguments": {}}\n</c>'),
    ],
)
def test_calls_of_one_turn_are_shown_as_the_model_writes_them(joined, text):
    calls = CallFormat(kind=Kind.JSON, start="<c>", end="</c>", joined=joined)
    form = Format(calls=calls, native=False, renders_calls=False)
    functions = [
        {"function": {"name": "f", "arguments": '{"x": 1}'}},
        {"function": {"name": "g", "arguments": {}}},
    ]
    turn = {"role": "assistant", "content": "", "tool_calls": functions}
    assert tell(form, [USER, turn], ())[1]["content"] == text
    check(form, text, calls=[("f", {"x": 1}), ("g", {})])
