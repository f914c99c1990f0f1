"""langchain-openai: a loop with bind_tools, structured output in its three ways, streams."""

from functools import reduce
from operator import add

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import BadRequestError
from shapes import ADA, BOTH, OSLO, Order, Person, Report


@pytest.fixture
def chat(url, model):
    return ChatOpenAI(base_url=url, api_key="unused", model=model, temperature=0, max_retries=0)


def whole(chat, messages):
    return chat.invoke(messages)


def streamed(chat, messages):
    return reduce(add, chat.stream(messages, stream_usage=True))


@pytest.mark.parametrize("turn", [whole, streamed])
@pytest.mark.parametrize(("question", "cities"), [(OSLO, ["Oslo"]), (BOTH, ["Oslo", "Rome"])])
def test_a_loop(chat, weather, turn, question, cities):
    get_weather = tool(weather)
    bound = chat.bind_tools([get_weather], strict=True)
    messages = [SystemMessage("Be brief."), HumanMessage(question, name="ann")]
    answer = turn(bound, messages)
    while answer.tool_calls:
        messages += [answer, *(get_weather.invoke(call) for call in answer.tool_calls)]
        answer = turn(bound, messages)
    assert weather.asked == cities
    for result in ("4", "21")[: len(cities)]:
        assert result in answer.content
    assert answer.usage_metadata["output_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_of_responses(url, model, weather, stream):
    get_weather = tool(weather)
    chat = ChatOpenAI(base_url=url, api_key="unused", model=model, temperature=0, use_responses_api=True)
    bound = chat.bind_tools([get_weather], strict=True)
    messages = [SystemMessage("Be brief."), HumanMessage(BOTH)]

    def turn():
        return reduce(add, bound.stream(messages)) if stream else bound.invoke(messages)

    while (answer := turn()).tool_calls:
        messages += [answer, *(get_weather.invoke(call) for call in answer.tool_calls)]
    assert weather.asked == ["Oslo", "Rome"]
    assert "4" in answer.text
    assert "21" in answer.text
    assert answer.usage_metadata["output_tokens"] > 0


@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
@pytest.mark.parametrize("strict", [None, True])
def test_structured_output(chat, method, strict):
    strictness = {} if method == "json_mode" else {"strict": strict}
    one = chat.with_structured_output(Person, method=method, **strictness)
    if method != "json_mode":  # a small model's JSON need not have these keys
        assert isinstance(one.invoke(ADA), Person)
        assert isinstance(list(one.stream(ADA))[-1], Person)


@pytest.mark.scripted
@pytest.mark.parametrize("turn", [whole, streamed])
def test_calls_behind_reasoning_and_text(chat, weather, turn):
    bound = chat.bind_tools([tool(weather)])
    answer = turn(bound, f"Think first. {BOTH}")
    assert [call["args"] for call in answer.tool_calls] == [{"city": "Oslo"}, {"city": "Rome"}]
    assert answer.invalid_tool_calls == []
    answer = turn(bound, f"Say so. {OSLO}")
    assert (answer.content, len(answer.tool_calls)) == ("One moment, please.", 1)


@pytest.mark.parametrize("choice", ["any", "required", "get_weather", True])
def test_a_call_that_must_be(chat, weather, choice):
    bound = chat.bind_tools([tool(weather)], tool_choice=choice)
    for answer in (whole(bound, "Hello!"), streamed(bound, "Hello!")):
        assert {call["name"] for call in answer.tool_calls} == {"get_weather"}
        assert all(call["args"].keys() == {"city"} for call in answer.tool_calls)


def test_an_error_is_the_packages_own(chat):
    with pytest.raises(BadRequestError) as raised:
        chat.invoke("hi", tool_choice="required")
    assert raised.value.param == "tool_choice"


@pytest.mark.scripted
@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_a_strict_schema_of_many_shapes(chat, method):
    one = chat.with_structured_output(Order, method=method, strict=True)
    assert isinstance(one.invoke("An order, please."), Order)


@pytest.mark.scripted
def test_tools_beside_a_schema(chat, weather):
    get_weather = tool(weather)
    bound = chat.bind_tools([get_weather], response_format=Report, strict=True)
    messages = [HumanMessage(f"{OSLO} Answer in JSON.")]
    messages.append(bound.invoke(messages))
    messages += [get_weather.invoke(call) for call in messages[-1].tool_calls]
    assert bound.invoke(messages).additional_kwargs["parsed"] == Report(city="Oslo", degrees=4)


def test_the_documented_example(run_example):
    assert "4 degrees" in run_example("langchain-openai")
