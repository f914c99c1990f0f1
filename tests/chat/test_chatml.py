"""Our own ChatML template: plain chats as ever, tools in few tokens, calls that come back as they were."""

import json
from importlib import resources

import pytest

from cobali_ray.chat.answer_events import ParsedAnswer
from cobali_ray.chat.derivation import derive
from cobali_ray.chat.splitter import Splitter
from cobali_ray.chat.template import CHATML, ChatTemplate

FILE = resources.files("cobali_workloads.models") / "chatml.jinja"
TEMPLATE = ChatTemplate(FILE.read_text(encoding="utf-8"))
FORM = derive(TEMPLATE)
USER = {"role": "user", "content": "How warm is it in Rome?"}
SYSTEM = {"role": "system", "content": "Be brief."}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Get the "weather".',
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Which one", "title": "City"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOLD = (
    "Call these tools with <tool_call>:\n"
    '{"name": "get_weather", "description": "Get the \\"weather\\".", "parameters": '
    '{"city": "string", "unit": ["celsius", "fahrenheit"], "days": "any"}}\n'
    '{"name": "now", "parameters": {}}<|im_end|>\n'
)
ASK = "<|im_start|>user\nHow warm is it in Rome?<|im_end|>\n"
PROMPT = "<|im_start|>assistant\n"
ARGUMENTS = (
    {"city": "Rome"},
    {},
    {"city": 'Gda\u0144sk "old town"\n</tool_call> {', "unit": "", "days": None},
    {"n": -1.5, "on": True, "list": [1, {"a": "b"}], "in": {"x": "\\", "y": "\u2603"}},
)


def called(*calls, content=""):
    """Return an assistant's turn with calls."""
    made = [
        {"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": made}


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("prompted", [True, False])
def test_without_tools_it_is_plain_chatml(tools, prompted):
    said = {"role": "assistant", "content": " <tool_call> is a word\n"}
    for chat in ([], [USER], [SYSTEM, USER], [USER, said, USER], [USER, said]):
        assert TEMPLATE.render(chat, tools=tools, add_generation_prompt=prompted) == ChatTemplate(
            CHATML
        ).render(chat, add_generation_prompt=prompted)


@pytest.mark.parametrize("wrapped", [True, False], ids=["as-the-api-has-them", "bare-functions"])
def test_tools_stand_in_the_system_turn_one_a_line(wrapped):
    tools = [WEATHER, NOW] if wrapped else [WEATHER["function"], NOW["function"]]
    assert TEMPLATE.render([USER], tools=tools) == f"<|im_start|>system\n{TOLD}{ASK}{PROMPT}"
    told = TEMPLATE.render([SYSTEM, USER], tools=tools)
    assert told == f"<|im_start|>system\nBe brief.\n\n{TOLD}{ASK}{PROMPT}"
    assert [json.loads(line)["name"] for line in TOLD.removesuffix("<|im_end|>\n").splitlines()[1:]] == [
        "get_weather",
        "now",
    ]


@pytest.mark.parametrize("content", ["", None, "Let me look."])
@pytest.mark.parametrize("written", [dict, json.dumps], ids=["dict", "text"])
def test_calls_are_read_back_as_they_were(content, written):
    assert FORM.native
    assert FORM.turn_end == FORM.call_turn_end == "<|im_end|>\n"
    calls = [(name, arguments) for name in ("get_weather", "now") for arguments in ARGUMENTS]
    for some in ([call] for call in calls), [calls]:
        for these in some:
            turn = called(*((name, written(arguments)) for name, arguments in these), content=content)
            text = TEMPLATE.render([USER, turn], tools=[WEATHER, NOW], add_generation_prompt=False)
            _, _, answer = text.removesuffix(FORM.turn_end).rpartition(PROMPT)
            splitter = Splitter(FORM, prompt=PROMPT, tools=[WEATHER, NOW])
            found = ParsedAnswer().add([*splitter.feed(answer), *splitter.end()])
            assert [(call.name, json.loads(call.arguments)) for call in found.calls.values()] == these
            assert found.content.strip() == (content or "")


def test_results_of_one_turn_stand_in_one_turn():
    calls = called(("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Oslo"}))
    results = [{"role": "tool", "content": said, "tool_call_id": said} for said in ("18", "3")]
    text = TEMPLATE.render([USER, calls, *results, USER], tools=[NOW])
    _, _, tail = text.partition("</tool_call><|im_end|>\n")
    assert tail == (
        "<|im_start|>user\n<tool_response>\n18\n</tool_response>\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        f"{ASK}{PROMPT}"
    )
    alone = TEMPLATE.render([USER, called(("now", {})), results[0]])
    assert alone.endswith(f"<|im_start|>user\n<tool_response>\n18\n</tool_response><|im_end|>\n{PROMPT}"), (
        "results are shown without tools too"
    )


def test_arguments_that_are_no_object_stand_as_they_are():
    text = TEMPLATE.render([USER, called(("now", "{broken"))], tools=[NOW])
    assert '{"name": "now", "arguments": {broken}\n' in text
