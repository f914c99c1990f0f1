"""openai-agents: Runner.run and run_streamed over responses, its default, and over chat completions."""

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    ToolCallItem,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI, BadRequestError
from shapes import ADA, BOTH, OSLO, Order, Person, Report

set_tracing_disabled(True)


@pytest.fixture(params=[OpenAIResponsesModel, OpenAIChatCompletionsModel], ids=["responses", "chat"])
def kind(request):
    """The class of the model."""
    return request.param


@pytest.fixture
async def agent(url, model, kind):
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:

        def make(settings=(), **more):
            return Agent(
                name="Assistant",
                instructions="Be brief.",
                model=kind(model=model, openai_client=client),
                model_settings=ModelSettings(temperature=0, include_usage=True, **dict(settings)),
                **more,
            )

        yield make


async def whole(agent, said):
    return await Runner.run(agent, said)


async def streamed(agent, said):
    result = Runner.run_streamed(agent, said)
    async for _ in result.stream_events():
        pass
    return result


@pytest.mark.parametrize("turn", [whole, streamed])
@pytest.mark.parametrize(("question", "cities"), [(OSLO, ["Oslo"]), (BOTH, ["Oslo", "Rome"])])
async def test_a_loop(agent, weather, turn, question, cities):
    result = await turn(agent(tools=[function_tool(weather)]), question)
    assert sorted(weather.asked) == cities
    for answer in ("4", "21")[: len(cities)]:
        assert answer in result.final_output
    assert result.context_wrapper.usage.output_tokens > 0


@pytest.mark.parametrize("turn", [whole, streamed])
async def test_structured_output(agent, turn):
    result = await turn(agent(output_type=Person), ADA)
    assert isinstance(result.final_output, Person)


@pytest.mark.scripted
@pytest.mark.parametrize("turn", [whole, streamed])
async def test_structured_output_is_what_was_said(agent, turn):
    result = await turn(agent(output_type=Person), ADA)
    assert result.final_output == Person(name="Ada", age=36)


@pytest.mark.scripted
@pytest.mark.parametrize("turn", [whole, streamed])
async def test_reasoning_is_an_item_of_each_turn(agent, weather, turn):
    result = await turn(agent(tools=[function_tool(weather)]), f"Think first. {OSLO}")
    thoughts = [item.raw_item for item in result.new_items if item.type == "reasoning_item"]
    told = [one.content or one.summary for one in thoughts]
    assert [[part.text for part in parts] for parts in told] == [["A tool knows that."]] * 2
    assert result.final_output == "The tools say: 4 degrees and sunny in Oslo."


@pytest.mark.scripted
async def test_reasoning_is_streamed_once(agent, weather):
    result = Runner.run_streamed(agent(tools=[function_tool(weather)]), f"Think first. {OSLO}")
    events = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
    said = [event.delta for event in events if "reasoning" in event.type and event.type.endswith(".delta")]
    assert "".join(said) == "A tool knows that." * 2


@pytest.mark.parametrize("choice", ["required", "get_weather"])
async def test_a_call_that_must_be(agent, choice):
    @function_tool
    def get_weather(city: str) -> str:
        """Return the weather in a city."""
        return f"4 degrees in {city}"

    settings = {"tool_choice": choice, "parallel_tool_calls": False}
    one = agent(settings, tools=[get_weather], tool_use_behavior="stop_on_first_tool")
    result = await whole(one, "Hello!")
    assert [item.raw_item.name for item in result.new_items if isinstance(item, ToolCallItem)] == [
        "get_weather"
    ]


@pytest.mark.scripted
async def test_one_agent_hands_over_to_another(agent, weather):
    other = agent(tools=[function_tool(weather)], handoff_description="Knows the weather.")
    result = await whole(agent(handoffs=[other]), OSLO)
    assert result.last_agent is other
    assert result.final_output.endswith("4 degrees and sunny in Oslo.")


async def test_an_error_is_the_packages_own(agent):
    with pytest.raises(BadRequestError) as raised:
        await whole(agent({"extra_body": {"tool_choice": "required"}}), "hi")
    assert raised.value.param == "tool_choice"


@pytest.mark.scripted
@pytest.mark.parametrize("turn", [whole, streamed])
async def test_a_strict_schema_of_many_shapes(agent, turn):
    result = await turn(agent(output_type=Order), "An order, please.")
    assert isinstance(result.final_output, Order)


@pytest.mark.scripted
@pytest.mark.parametrize("turn", [whole, streamed])
async def test_tools_beside_a_schema(agent, weather, turn):
    one = agent(tools=[function_tool(weather)], output_type=Report)
    result = await turn(one, f"{OSLO} Answer in JSON.")
    assert (result.final_output, weather.asked) == (Report(city="Oslo", degrees=4), ["Oslo"])


def test_the_documented_example(run_example):
    assert "4 degrees" in run_example("openai-agents")
