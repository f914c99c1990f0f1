"""openai: the loop by hand, and what the package parses by itself; over chat completions and responses."""

import json

import pytest
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel
from shapes import ADA, BOTH, OSLO, WEATHER, Order, Person, Report, Short


class GetWeather(BaseModel):
    """Return the weather in a city."""

    city: Short


@pytest.fixture
def chats(url, model):
    """Its chats, with what all tests send."""
    return Chats(OpenAI(base_url=url, api_key="unused", max_retries=0).chat.completions, model)


class Chats:
    def __init__(self, completions, model):
        self._completions, self._common = completions, {"model": model, "temperature": 0}

    def __getattr__(self, name):
        return lambda said, **more: getattr(self._completions, name)(
            messages=[{"role": "user", "content": said}] if isinstance(said, str) else said,
            **self._common | more,
        )


def whole(chats, messages):
    return chats.create(messages, tools=[WEATHER]).choices[0].message


def streamed(chats, messages):
    with chats.stream(messages, tools=[WEATHER]) as stream:
        return stream.get_final_completion().choices[0].message


@pytest.mark.parametrize("turn", [whole, streamed])
@pytest.mark.parametrize(("question", "cities"), [(OSLO, ["Oslo"]), (BOTH, ["Oslo", "Rome"])])
def test_a_loop(chats, weather, turn, question, cities):
    messages = [{"role": "user", "content": question}]
    message = turn(chats, messages)
    while message.tool_calls:
        messages.append(message)  # as the package has it, with every field it knows
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        message = turn(chats, messages)
    assert weather.asked == cities
    for result in ("4", "21")[: len(cities)]:
        assert result in message.content


def test_a_function_of_pydantic_is_parsed(chats):
    tool = pydantic_function_tool(GetWeather, name="get_weather")
    answer = chats.parse(OSLO, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, GetWeather)
    with chats.stream(OSLO, tools=[tool], tool_choice="required", parallel_tool_calls=False) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [type(event.parsed_arguments) for event in done] == [GetWeather]


def test_an_answer_is_parsed(chats):
    assert isinstance(chats.parse(ADA, response_format=Person).choices[0].message.parsed, Person)
    with chats.stream(ADA, response_format=Person) as stream:
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(parsed, Person)


@pytest.mark.scripted
@pytest.mark.parametrize("turn", [whole, streamed])
def test_reasoning_stands_before_a_call_and_once(chats, turn):
    message = turn(chats, [{"role": "user", "content": f"Think first. {BOTH}"}])
    assert message.content in {None, ""}
    assert message.reasoning_content == "A tool knows that."
    assert [call.function.arguments for call in message.tool_calls] == [
        '{"city": "Oslo"}',
        '{"city": "Rome"}',
    ]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_be(chats, choice):
    answer = chats.create("Hello!", tools=[WEATHER], tool_choice=choice, max_tokens=500).choices[0]
    called = [call.function for call in answer.message.tool_calls]
    assert {call.name for call in called} == {"get_weather"}
    assert all(json.loads(call.arguments).keys() == {"city"} for call in called)


@pytest.mark.scripted
@pytest.mark.parametrize("stream", [False, True])
def test_a_strict_schema_of_many_shapes(chats, stream):
    if stream:
        with chats.stream("An order, please.", response_format=Order) as chunks:
            answer = chunks.get_final_completion()
    else:
        answer = chats.parse("An order, please.", response_format=Order)
    assert isinstance(answer.choices[0].message.parsed, Order)
    tool = pydantic_function_tool(Order)
    (call,) = (
        chats.parse("An order!", tools=[tool], tool_choice="required", parallel_tool_calls=False)
        .choices[0]
        .message.tool_calls
    )
    assert isinstance(call.function.parsed_arguments, Order)


@pytest.mark.scripted
def test_tools_beside_a_schema(chats, weather):
    messages = [{"role": "user", "content": f"{OSLO} Answer in JSON."}]
    message = chats.parse(messages, tools=[WEATHER], response_format=Report).choices[0].message
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": weather(**call.function.parsed_arguments)}
    message = (
        chats.parse([*messages, message, result], tools=[WEATHER], response_format=Report).choices[0].message
    )
    assert message.parsed == Report(city="Oslo", degrees=4)


def test_the_documented_example(run_example):
    assert "4 degrees" in run_example("openai")


# Over /v1/responses


@pytest.fixture
def responses(url, model):
    """Its responses, with what all tests send."""
    return Responses(OpenAI(base_url=url, api_key="unused", max_retries=0).responses, model)


class Responses:
    def __init__(self, responses, model):
        self._responses, self._common = responses, {"model": model, "temperature": 0}

    def __getattr__(self, name):
        return lambda said, **more: getattr(self._responses, name)(input=said, **self._common | more)


TOOL = {"type": "function", **WEATHER["function"]}


def answered(responses, said, **more):
    return responses.create(said, **more)


def listened(responses, said, **more):
    with responses.stream(said, **more) as stream:
        return stream.get_final_response()


def calls_of(response):
    return [item for item in response.output if item.type == "function_call"]


@pytest.mark.parametrize("turn", [answered, listened])
@pytest.mark.parametrize(("question", "cities"), [(OSLO, ["Oslo"]), (BOTH, ["Oslo", "Rome"])])
def test_a_loop_of_responses(responses, weather, turn, question, cities):
    said = [{"role": "user", "content": question}]
    response = turn(responses, said, tools=[TOOL])
    while calls := calls_of(response):
        said += response.output  # as the package has it, with every field it knows
        for call in calls:
            result = weather(**json.loads(call.arguments))
            said.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
        response = turn(responses, said, tools=[TOOL])
    assert weather.asked == cities
    for result in ("4", "21")[: len(cities)]:
        assert result in response.output_text
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_a_response_is_parsed(responses):
    assert isinstance(responses.parse(ADA, text_format=Person).output_parsed, Person)
    assert isinstance(listened(responses, ADA, text_format=Person).output_parsed, Person)


def test_a_function_of_pydantic_is_parsed_from_a_response(responses):
    tool = {"type": "function", **pydantic_function_tool(GetWeather, name="get_weather")["function"]}
    more = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    for response in (responses.parse(OSLO, **more), listened(responses, OSLO, **more)):
        (call,) = calls_of(response)
        assert call.parsed_arguments.keys() == {"city"}


@pytest.mark.scripted
@pytest.mark.parametrize("turn", [answered, listened])
def test_a_custom_tool_takes_a_text(responses, turn):
    tool = {"type": "custom", "name": "note", "description": "Takes a note."}
    more = {"tools": [tool], "tool_choice": {"type": "custom", "name": "note"}}
    (call,) = turn(responses, "Hello!", **more).output
    assert (call.type, call.name, type(call.input)) == ("custom_tool_call", "note", str)


@pytest.mark.scripted
def test_a_response_with_a_strict_schema_of_many_shapes(responses):
    assert isinstance(responses.parse("An order, please.", text_format=Order).output_parsed, Order)
    assert isinstance(listened(responses, "An order, please.", text_format=Order).output_parsed, Order)
