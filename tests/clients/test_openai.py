"""openai: the loop by hand, and what the package parses by itself; over chat completions and responses."""

import json

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI, pydantic_function_tool
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
def test_the_parsed_answer_is_the_one_that_was_given(chats):
    answer = chats.parse(ADA, response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Ada", age=36)


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


@pytest.mark.scripted
@pytest.mark.parametrize("turn", [whole, streamed])
def test_text_before_a_call(chats, turn):
    message = turn(chats, [{"role": "user", "content": f"Say so. {OSLO}"}])
    assert message.content == "One moment, please."
    assert len(message.tool_calls) == 1


@pytest.mark.scripted
@pytest.mark.parametrize("turn", [whole, streamed])
def test_an_answer_without_a_call(chats, turn):
    message = turn(chats, [{"role": "user", "content": "Hello!"}])
    assert (message.content, message.tool_calls) == ("Hello! What can I do for you?", None)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_be(chats, choice):
    answer = chats.create("Hello!", tools=[WEATHER], tool_choice=choice, max_tokens=500).choices[0]
    called = [call.function for call in answer.message.tool_calls]
    assert {call.name for call in called} == {"get_weather"}
    assert all(json.loads(call.arguments).keys() == {"city"} for call in called)


def test_only_one_call_at_a_time(chats):
    answer = chats.create(BOTH, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls) == 1


def test_a_tool_message_in_parts(chats):
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'},
    }
    said = [
        {"role": "developer", "content": "Be brief.", "name": "boss"},
        {"role": "user", "content": [{"type": "text", "text": OSLO}], "name": "ann"},
        {"role": "assistant", "content": None, "refusal": None, "audio": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "4 degrees"}]},
    ]
    assert "4" in chats.create(said, tools=[WEATHER]).choices[0].message.content


def test_the_usage_of_a_stream(chats):
    *_, last = chats.create(OSLO, tools=[WEATHER], stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens


def test_an_error_is_the_packages_own(chats):
    with pytest.raises(BadRequestError) as raised:
        chats.create(OSLO, tool_choice="required")
    assert raised.value.param == "tool_choice"


async def test_async(url, model):
    async with AsyncOpenAI(base_url=url, api_key="unused") as client:
        answer = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": OSLO}], tools=[WEATHER], tool_choice="required"
        )
    assert answer.choices[0].finish_reason == "tool_calls"


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


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "get_weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]},
    ],
)
def test_a_response_that_must_call(responses, choice):
    response = responses.create("Hello!", tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    assert [call.name for call in calls_of(response)] == ["get_weather"]


@pytest.mark.scripted
@pytest.mark.parametrize("turn", [answered, listened])
def test_reasoning_words_and_calls_are_items_in_their_order(responses, turn):
    response = turn(responses, f"Think first. {BOTH}", tools=[TOOL])
    assert [item.type for item in response.output] == ["reasoning", "function_call", "function_call"]
    assert [part.text for part in response.output[0].content] == ["A tool knows that."]
    response = turn(responses, f"Say so. {OSLO}", tools=[TOOL])
    assert [item.type for item in response.output] == ["message", "function_call"]
    assert response.output_text == "One moment, please."


@pytest.mark.scripted
@pytest.mark.parametrize("turn", [answered, listened])
def test_a_custom_tool_takes_a_text(responses, turn):
    tool = {"type": "custom", "name": "note", "description": "Takes a note."}
    more = {"tools": [tool], "tool_choice": {"type": "custom", "name": "note"}}
    (call,) = turn(responses, "Hello!", **more).output
    assert (call.type, call.name, type(call.input)) == ("custom_tool_call", "note", str)


@pytest.mark.scripted
def test_a_response_that_had_to_end(responses):
    response = responses.create("Hello!", max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    *_, last = responses.create("Hello!", max_output_tokens=3, stream=True)
    assert (last.type, last.response.output_text) == ("response.incomplete", response.output_text)


@pytest.mark.scripted
def test_a_response_with_a_strict_schema_of_many_shapes(responses):
    assert isinstance(responses.parse("An order, please.", text_format=Order).output_parsed, Order)
    assert isinstance(listened(responses, "An order, please.", text_format=Order).output_parsed, Order)


def test_logprobs_of_a_response(responses):
    include = ["message.output_text.logprobs"]
    for turn in (answered, listened):
        (part,) = turn(responses, "Hello!", include=include, top_logprobs=2).output[-1].content
        assert "".join(one.token for one in part.logprobs).startswith(part.text)
        assert {len(one.top_logprobs) for one in part.logprobs} == {2}


def test_what_responses_cannot_do_is_the_packages_own_error(responses):
    with pytest.raises(BadRequestError) as raised:
        responses.create(OSLO, previous_response_id="resp_1")
    assert raised.value.param == "previous_response_id"
    with pytest.raises(NotFoundError):
        responses._responses.retrieve("resp_1")


def test_tokens_of_an_input(responses):
    counted = responses._responses.input_tokens.count(model=responses._common["model"], input=OSLO)
    assert counted.input_tokens == responses.create(OSLO, max_output_tokens=16).usage.input_tokens
