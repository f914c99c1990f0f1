"""litellm: completion with tools, streams put together again, schemas."""

import json

import litellm
import pytest
from shapes import ADA, BOTH, OSLO, WEATHER, Order, Person


@pytest.fixture(params=["openai", "hosted_vllm", "litellm_proxy"])
def complete(url, model, request):
    def go(said, **more):
        return litellm.completion(
            model=f"{request.param}/{model}",
            api_base=url,
            api_key="unused",
            temperature=0,
            num_retries=0,
            messages=[{"role": "user", "content": said}] if isinstance(said, str) else said,
            **more,
        )

    return go


def whole(complete, messages, **more):
    return complete(messages, tools=[WEATHER], **more).choices[0].message


def streamed(complete, messages, **more):
    chunks = list(
        complete(messages, tools=[WEATHER], stream=True, stream_options={"include_usage": True}, **more)
    )
    built = litellm.stream_chunk_builder(chunks)
    assert built.usage.completion_tokens > 0
    return built.choices[0].message


@pytest.mark.parametrize("turn", [whole, streamed])
@pytest.mark.parametrize(("question", "cities"), [(OSLO, ["Oslo"]), (BOTH, ["Oslo", "Rome"])])
def test_a_loop(complete, weather, turn, question, cities):
    messages = [{"role": "user", "content": question}]
    message = turn(complete, messages)
    while message.tool_calls:
        messages.append(message)
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append(
                {"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": result}
            )
        message = turn(complete, messages)
    assert weather.asked == cities
    for result in ("4", "21")[: len(cities)]:
        assert result in message.content


def test_structured_output(complete):
    answer = complete(ADA, response_format=Person)
    assert isinstance(Person.model_validate_json(answer.choices[0].message.content), Person)


@pytest.mark.scripted
@pytest.mark.parametrize("turn", [whole, streamed])
def test_calls_behind_reasoning_and_text(complete, turn):
    message = turn(complete, f"Think first. {BOTH}")
    assert message.reasoning_content == "A tool knows that."
    assert [call.function.arguments for call in message.tool_calls] == [
        '{"city": "Oslo"}',
        '{"city": "Rome"}',
    ]
    message = turn(complete, f"Say so. {OSLO}")
    assert (message.content, len(message.tool_calls)) == ("One moment, please.", 1)


@pytest.mark.parametrize("turn", [whole, streamed])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_be(complete, turn, choice):
    message = turn(complete, "Hello!", tool_choice=choice, parallel_tool_calls=False)
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments).keys() == {"city"}


def test_an_error_is_the_packages_own(complete):
    with pytest.raises(litellm.BadRequestError, match="max_tokens"):
        complete("hi", max_tokens=-2)


@pytest.mark.scripted
def test_a_strict_schema_of_many_shapes(complete):
    answer = complete("An order, please.", response_format=Order)
    assert Order.model_validate_json(answer.choices[0].message.content)


def test_the_documented_example(run_example):
    assert "4 degrees" in run_example("litellm")
