"""anthropic: the loop by hand and the package's own, streams that it adds up, and what it parses."""

import pytest
from anthropic import Anthropic, beta_tool
from shapes import ADA, BOTH, OSLO, WEATHER, Person

TOOL = {
    "name": "get_weather",
    "description": WEATHER["function"]["description"],
    "input_schema": WEATHER["function"]["parameters"],
}


@pytest.fixture
def claude(server):
    with Anthropic(base_url=server, api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def chats(claude, model):
    """Its messages, with what all tests send."""
    return Chats(claude.messages, model)


class Chats:
    def __init__(self, messages, model):
        self._messages = messages
        self._common = {"model": model, "max_tokens": 500, "extra_body": {"temperature": 0}}

    def __getattr__(self, name):
        return lambda said, **more: getattr(self._messages, name)(
            messages=[{"role": "user", "content": said}] if isinstance(said, str) else said,
            **self._common | more,
        )


def whole(chats, said, **more):
    return chats.create(said, **more)


def streamed(chats, said, **more):
    with chats.stream(said, **more) as stream:
        return stream.get_final_message()


TURNS = pytest.mark.parametrize("turn", [whole, streamed])


@TURNS
@pytest.mark.parametrize(("question", "cities"), [(OSLO, ["Oslo"]), (BOTH, ["Oslo", "Rome"])])
def test_a_loop(chats, weather, turn, question, cities):
    messages = [{"role": "user", "content": question}]
    while (answer := turn(chats, messages, tools=[TOOL])).stop_reason == "tool_use":
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": weather(**block.input)}
            for block in answer.content
            if block.type == "tool_use"
        ]
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    assert weather.asked == cities
    for result in ("4", "21")[: len(cities)]:
        assert result in answer.content[-1].text


def test_the_packages_own_loop(claude, model, weather):
    runner = claude.beta.messages.tool_runner(
        model=model,
        max_tokens=500,
        tools=[beta_tool(weather)],
        messages=[{"role": "user", "content": BOTH}],
        extra_body={"temperature": 0},
    )
    answer = runner.until_done()
    assert weather.asked == ["Oslo", "Rome"]
    assert "21" in answer.content[-1].text


@pytest.mark.scripted
@TURNS
def test_reasoning_stands_before_a_call_and_once(chats, turn):
    answer = turn(
        chats, f"Think first. {BOTH}", tools=[TOOL], thinking={"type": "enabled", "budget_tokens": 1024}
    )
    assert [block.type for block in answer.content] == ["thinking", "tool_use", "tool_use"]
    assert answer.content[0].thinking == "A tool knows that."
    assert [block.input for block in answer.content[1:]] == [{"city": "Oslo"}, {"city": "Rome"}]
    assert answer.usage.output_tokens_details.thinking_tokens > 0


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_that_must_be(chats, choice):
    answer = chats.create("Hello!", tools=[TOOL], tool_choice=choice)
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert {call.name for call in calls} == {"get_weather"}
    assert all(call.input.keys() == {"city"} for call in calls)


def test_an_answer_is_parsed(chats):
    assert isinstance(chats.parse(ADA, output_format=Person).parsed_output, Person)
    with chats.stream(ADA, output_format=Person) as stream:
        assert isinstance(stream.get_final_message().parsed_output, Person)


def test_the_example_of_the_document(run_example):
    assert "4 degrees and sunny" in run_example("anthropic")
