"""Tools and reasoning over HTTP: what the model is told, and its answers taken apart, streaming or not."""

import json
from dataclasses import replace

import pytest
from fake_client import CHAT, says
from structlog.testing import capture_logs

from cobali_ray.chat.format import GENERIC, KNOWN_FORMATS, Format

USER = {"role": "user", "content": "weather in Łódź?"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "d", "parameters": PARAMETERS, "strict": True},
}
CLOCK = {"type": "function", "function": {"name": "now"}}
ASK = {"model": "fake", "messages": [USER], "tools": [WEATHER, CLOCK]}
ONE = (
    "<tool",
    "_call>\n{",
    '"name": "get_w',
    'eather", "arguments": {"city"',
    ': "Łó',
    'dź"}}\n</tool_c',
    "all>",
)
TWO = (*ONE, "\n<tool_call>\n", '{"name": "now", "arguments": {}}', "\n</tool_call>")
THINKS = Format(calls=GENERIC, reasoning_start="<think>", reasoning_end="</think>", padded=True)


async def streamed(openai, **fields):
    """Return the final message and all chunks of a stream."""
    chunks, calls, content, reasoning = [], {}, "", ""
    async for chunk in await openai.chat.completions.create(**ASK | {"stream": True} | fields):
        chunks.append(chunk)
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for part in choice.delta.tool_calls or ():
                where = (choice.index, part.index)
                if part.function.name:
                    assert part.index == sum(one == choice.index for one, _ in calls)
                    calls[where] = [part.id, part.function.name, part.function.arguments]
                else:
                    assert part.id is None
                    calls[where][2] += part.function.arguments
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    return content, reasoning, list(calls.values()), reasons, chunks


# What the model is told


async def test_the_template_gets_the_tools_without_what_is_for_the_server(post, client):
    """And with what clients may leave out, because templates fail without it."""
    assert (await post(CHAT, ASK)).status == 200
    told = {key: value for key, value in WEATHER["function"].items() if key != "strict"}
    nothing = {"type": "object", "properties": {}}
    clock = {"name": "now", "description": "", "parameters": nothing}
    tools = [{"type": "function", "function": told}, {"type": "function", "function": clock}]
    assert client.tools[-1:] == [tools], "a body is read again once its schemas are judged"


@pytest.mark.parametrize("fields", [{"tools": None}, {"tools": []}, {"tool_choice": "none"}])
async def test_a_model_that_may_not_call_hears_of_no_tool(post, client, fields):
    client.script = says(*ONE)
    answer = (await post(CHAT, ASK | fields)).json["choices"][0]
    assert client.tools == [[]]
    assert answer["message"]["content"] == "".join(ONE)
    assert answer["finish_reason"] == "stop"
    assert "tool_calls" not in answer["message"]


async def test_calls_results_and_reasoning_of_earlier_turns_reach_the_template(post, client):
    call = {"id": "abc", "type": "function", "function": {"name": "now", "arguments": ""}}
    history = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm", "refusal": None},
        {"role": "tool", "tool_call_id": "abc", "content": "noon"},
        {"role": "tool", "tool_call_id": "other", "content": "dusk", "name": "later"},
    ]
    assert (await post(CHAT, ASK | {"messages": history})).status == 200
    told = {"id": "abc", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    assert client.messages[-1:] == [
        [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [told], "reasoning_content": "hm"},
            {"role": "tool", "content": "noon", "tool_call_id": "abc", "name": "now"},
            {"role": "tool", "content": "dusk", "tool_call_id": "other", "name": "later"},
        ]
    ]


@pytest.mark.parametrize(
    ("cut", "told"),
    [
        ('{"city": "Łó', {"city": "Łó"}),
        ('{"city": "Łódź", "days": [1, {"a', {"city": "Łódź", "days": [1, {}]}),
        ('{"city": "Łódź", "da', {"city": "Łódź"}),
        ('{"city": ', {}),
        ("{", {}),
        ("no object", "no object"),
        ('"Łódź"', '"Łódź"'),
        ('{"city": "Łódź\\u00', {"city": "Łódź"}),
    ],
)
async def test_a_call_that_was_cut_short_is_told_as_far_as_it_was_written(post, client, cut, told):
    """Templates that want an object would refuse the conversation from then on."""
    call = {"id": "abc", "type": "function", "function": {"name": "get_weather", "arguments": cut}}
    history = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, USER]
    assert (await post(CHAT, ASK | {"messages": history})).status == 200
    assert client.messages[-1][1]["tool_calls"][0]["function"]["arguments"] == told


async def test_a_model_without_a_place_for_tools_is_told_in_words(post, client):
    client.form = Format(calls=GENERIC, native=False, renders_calls=False)
    client.the_card = replace(client.card, n_ctx_slot=512)
    assert (await post(CHAT, ASK)).status == 200
    assert client.tools[-1:] == [None]
    assert '"name": "get_weather"' in client.messages[0][0]["content"]
    assert "strict" not in client.messages[0][0]["content"]


async def test_variables_of_the_template(post, client):
    fields = {"chat_template_kwargs": {"enable_thinking": True, "x": [1]}, "reasoning_effort": "none"}
    assert (await post(CHAT, ASK | fields)).status == 200
    own = {"chat_template_kwargs": {"reasoning_effort": "no_think"}, "reasoning_effort": "none"}
    assert (await post(CHAT, ASK | own)).status == 200
    assert client.endings.pop()["reasoning_effort"] == "no_think"  # some have words of their own
    assert client.endings[-1:] == [
        {
            "add_generation_prompt": True,
            "enable_thinking": True,  # what is said with more words holds
            "thinking": False,
            "reasoning_effort": "none",
            "x": [1],
        }
    ]


def nested(depth):
    return json.loads("[" * depth + "]" * depth)


REFUSED = [
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [CLOCK, {"type": "custom", "custom": {}}]}, "tools[1].type"),
    ({"tools": [CLOCK, CLOCK]}, "tools[1].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    (
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
        "tools[0].function.parameters",
    ),
    ({"tools": [{**CLOCK, "x": i} for i in range(513)]}, "tools"),
    ({"tools": "now"}, "tools"),
    ({"tool_choice": "always"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "custom", "custom": {"name": "now"}}}, "tool_choice.type"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": []}}}, "tool_choice.allowed_tools"),
    (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
        "tool_choice.allowed_tools.tools",
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["now"]}}},
        "tool_choice.allowed_tools.tools[0].function.name",
    ),
    (
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"name": "x"}]},
            }
        },
        "tool_choice",
    ),
    ({"tool_choice": {"type": ["function"]}}, "tool_choice.type"),
    ({"tools": [CLOCK, {**CLOCK, "x": nested(300)}]}, None),
    ({"prompt_cache_key": nested(300)}, None),
    ({"messages": [{**USER, "content": [{"type": ["text"]}]}]}, "messages[0].content[0].type"),
    (
        {
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "a", "parameters": {**PARAMETERS, "required": [{}]}},
                }
            ]
        },
        "tools[0].function.parameters",
    ),
    ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    ({"tools": None, "tool_choice": {"type": "function", "function": {"name": "now"}}}, "tool_choice"),
    ({"messages": [USER, {**USER, "tool_calls": [{"function": {"name": "x"}}]}]}, "messages[1].tool_calls"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}]},
        "messages[0].tool_calls[0].function.name",
    ),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ({"reasoning_format": "xml"}, "reasoning_format"),
    ({"reasoning_budget": -2}, "reasoning_budget"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_what_cannot_be_used_is_named(post, client, fields, param):
    wire = await post(CHAT, ASK | fields)
    assert (wire.status, wire.json["error"]["param"]) == (400, param)
    assert client.requests == []


@pytest.mark.parametrize("wrong", [{"type": "text"}, {"enum": 5}])
@pytest.mark.parametrize("family", ["MiniMax M3", "LFM2", "Gemma 4"])
async def test_what_is_no_schema_is_refused_in_every_format(post, client, family, wrong):
    """Also where its rules are written before anybody has judged it."""
    client.form = Format(calls=KNOWN_FORMATS[family].calls)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": wrong}}}}
    wire = await post(CHAT, ASK | {"tools": [tool]})
    assert (wire.status, wire.json["error"]["param"]) == (400, "tools[0].function.parameters")


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_of_tools_that_are_not_allowed_the_model_hears_but_calls_none(post, client, mode):
    client.script = says(*TWO)
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "now"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = (await post(CHAT, ASK | {"tool_choice": choice})).json["choices"][0]["message"]
    assert [tool["function"]["name"] for tool in client.tools[0]] == ["get_weather", "now"]
    grammar = client.requests[0].grammar
    assert "now" in grammar.text
    assert "get_weather" not in grammar.text
    assert bool(grammar.triggers) == (mode == "auto")
    assert answer["tool_calls"]


@pytest.mark.parametrize("name", ["tools", "tool_choice", "reasoning_budget", "chat_template_kwargs"])
async def test_plain_completions_have_no_tools(post, name):
    wire = await post("/v1/completions", {"prompt": "x", name: {"a": 1}})
    assert (wire.status, wire.json["error"]["code"]) == (400, "unsupported_parameter")


# What the client is told


async def test_a_whole_answer_with_calls(openai, client):
    client.script = says("Let me", " look.\n", *TWO)
    answer = await openai.chat.completions.create(**ASK)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    calls = choice.message.tool_calls
    assert [(call.type, call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("function", "get_weather", {"city": "Łódź"}),
        ("function", "now", {}),
    ]
    assert len({call.id for call in calls}) == 2
    assert all(len(call.id) == 9 and call.id.isalnum() for call in calls)


@pytest.mark.parametrize(
    ("begun", "field", "answer"),
    [
        ("It is", "content", " grey."),
        ("<think>\nHm.\n</think>\n\nIt is", "content", " grey."),
        ("<think>\nIt is", "reasoning_content", " grey."),
        ("<think>\nHm.\n</think>\n\n", "content", "grey."),
        ("<think>\n", "reasoning_content", "grey."),
    ],
)
async def test_an_answer_goes_on_with_the_space_behind_what_was_said(openai, client, begun, field, answer):
    client.form, client.script = THINKS, says(" grey", ".")
    fields = {
        "messages": [USER, {"role": "assistant", "content": begun}],
        "extra_body": {"continue_final_message": True},
    }
    content, reasoning, *_ = await streamed(openai, **fields)
    assert (content or reasoning) == answer
    whole = await openai.chat.completions.create(**ASK | fields)
    assert getattr(whole.choices[0].message, field) == answer


async def test_an_answer_that_only_calls_has_no_content(post, client):
    client.script = says(*ONE)
    message = (await post(CHAT, ASK)).json["choices"][0]["message"]
    assert message["content"] is None
    assert "reasoning_content" not in message


async def test_a_stream_names_the_function_first_and_then_its_arguments(openai, client):
    client.script = says("Let me", " look.\n", *TWO)
    content, _, calls, reasons, chunks = await streamed(openai)
    assert content == "Let me look."
    assert [(name, json.loads(arguments)) for _, name, arguments in calls] == [
        ("get_weather", {"city": "Łódź"}),
        ("now", {}),
    ]
    assert reasons == ["tool_calls"]
    parts = [part for chunk in chunks for choice in chunk.choices for part in choice.delta.tool_calls or ()]
    assert (parts[0].type, parts[0].function.name, parts[0].function.arguments) == (
        "function",
        "get_weather",
        "",
    )
    assert len([part for part in parts if part.index == 0]) > 3  # as they are generated, not at the end


async def test_streamed_and_whole_answers_of_every_choice_agree(openai, client):
    client.script = says("Hm. ", *TWO)
    content, _, calls, reasons, _ = await streamed(openai, n=3)
    whole = await openai.chat.completions.create(**ASK | {"n": 3})
    assert reasons == ["tool_calls"] * 3
    assert content == "".join(choice.message.content for choice in whole.choices)
    told = [call for choice in whole.choices for call in choice.message.tool_calls]
    named = [[call.function.name, call.function.arguments] for call in told]
    assert sorted(call[1:] for call in calls) == sorted(named)
    assert len({call.id for call in told}) == len({call_id for call_id, *_ in calls}) == 6


async def test_a_call_that_the_length_cuts_is_a_cut_call(openai, client):
    client.script = says(*ONE[:5], reason="length")
    content, _, calls, reasons, _ = await streamed(openai)
    assert (content, reasons) == ("", ["length"])
    assert calls[0][1:] == ["get_weather", '{"city": "Łó']
    whole = await openai.chat.completions.create(**ASK)
    call = whole.choices[0].message.tool_calls[0]
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Łó')


@pytest.mark.parametrize(
    ("text", "choice", "content", "names"),
    [
        pytest.param("".join(ONE)[:-6], "auto", "", ["get_weather"], id="in-its-end-marker"),
        pytest.param("".join(TWO)[:-60], "auto", "", ["get_weather"], id="in-the-next-ones-marker"),
        pytest.param("".join(ONE)[:30], "auto", "", [], id="in-its-name"),
        pytest.param("Well. <tool_c", "auto", "Well. ", [], id="in-its-marker"),
        pytest.param('{"name": "get_w', "auto", '{"name": "get_w', [], id="of-what-may-be-the-answer"),
        pytest.param('{"name": "get_w', "required", "", [], id="of-what-cannot-be-the-answer"),
    ],
)
async def test_of_a_call_that_the_length_cuts_no_scrap_is_content(
    openai, client, text, choice, content, names
):
    client.script = says(text, reason="length")
    said, _, calls, reasons, _ = await streamed(openai, tool_choice=choice)
    assert (said, [name for _, name, _ in calls], reasons) == (content, names, ["length"])
    whole = (await openai.chat.completions.create(**ASK | {"tool_choice": choice})).choices[0]
    assert (whole.message.content or "", whole.finish_reason) == (content, "length")
    assert [call.function.name for call in whole.message.tool_calls or ()] == names


# Reasoning


async def test_reasoning_is_apart_from_the_answer(openai, client):
    client.form = THINKS
    client.script = says("<think>\n", "They want", " it.\n", "</think>", "\n\n", "It is", " noon.")
    whole = await openai.chat.completions.create(**ASK)
    message = whole.choices[0].message
    assert message.reasoning_content == "They want it."
    assert message.content == "It is noon."
    assert whole.usage.completion_tokens_details.reasoning_tokens == 4
    content, reasoning, _, _, chunks = await streamed(openai, stream_options={"include_usage": True})
    assert (content, reasoning) == ("It is noon.", "They want it.")
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 4


@pytest.mark.parametrize(
    ("fields", "content", "reasoning"),
    [
        ({"reasoning_format": "none"}, "<think>hm</think> yes", {}),
        ({"include_reasoning": False}, "yes", {}),
        ({}, "yes", {"reasoning_content": "hm"}),
        ({"reasoning_format": "auto"}, "yes", {"reasoning_content": "hm"}),
        ({"reasoning_format": "deepseek"}, "yes", {"reasoning_content": "hm"}),
        ({"reasoning_format": "parsed"}, "yes", {"reasoning": "hm"}),
    ],
)
async def test_where_reasoning_goes(post, client, fields, content, reasoning):
    """Under one name: some clients read both, and show it twice."""
    client.form = THINKS
    client.script = says("<think>", "hm", "</think>", " yes")
    wanted = {"role": "assistant", "content": content, "refusal": None} | reasoning
    assert (await post(CHAT, ASK | fields)).json["choices"][0]["message"] == wanted
    wire = await post(CHAT, ASK | fields | {"stream": True})
    said = [choice["delta"] for chunk in wire.events[:-1] for choice in chunk["choices"]]
    found = {name: "".join(delta.get(name) or "" for delta in said) for delta in said for name in delta}
    assert found | {"refusal": None} == wanted


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "tokens"),
    [({}, ["<think>", "hm", "</think>", " yes"]), ({"include_reasoning": False}, [" yes"])],
)
async def test_reasoning_that_is_left_out_has_no_logprobs(post, client, fields, tokens, stream):
    client.form = THINKS
    client.script = says("<think>", "hm", "</think>", " yes")
    wire = await post(CHAT, ASK | fields | {"logprobs": True, "stream": stream})
    chunks = wire.events[:-1] if stream else [wire.json]
    told = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert [one["token"] for logprobs in told for one in logprobs["content"]] == tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_the_log_says_why_an_answer_ended_as_the_client_is_told(post, client, stream):
    client.script = says(*ONE)
    with capture_logs() as logs:
        await post(CHAT, ASK | {"stream": stream})
    (line,) = [one for one in logs if one["event"] == "http_request"]
    assert line["finish_reasons"] == ["tool_calls"]


@pytest.mark.parametrize(
    ("form", "question", "budget"),
    [
        pytest.param(THINKS, "x", (20, "<think>", "</think>"), id="the-model-may-begin-it"),
        pytest.param(THINKS, "x <think>", (20, "", "</think>"), id="the-prompt-has-begun-it"),
        pytest.param(Format(calls=GENERIC), "x", None, id="no-reasoning-to-bound"),
    ],
)
async def test_a_budget_of_reasoning_reaches_the_engine(post, client, form, question, budget):
    client.form = form
    ask = ASK | {"messages": [{"role": "user", "content": question}], "reasoning_budget": 20}
    assert (await post(CHAT, ask)).status == 200
    asked = client.requests[0].reasoning_budget
    assert (asked and asked[:3]) == budget
    assert asked is None or client.detokenize(asked.closing) == "</think>"
    assert (await post(CHAT, ask | {"reasoning_budget": -1})).status == 200
    assert client.requests[1].reasoning_budget is None
