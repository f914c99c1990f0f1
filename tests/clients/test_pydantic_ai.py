"""pydantic-ai: an agent with a tool, structured output in its three ways, streams; over both APIs."""

import pytest
from pydantic_ai import Agent, ModelHTTPError, ModelRetry, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ThinkingPart, ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from shapes import ADA, BOTH, OSLO, Order, Person, Report

WAYS = [ToolOutput, NativeOutput, PromptedOutput]


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel], ids=["chat", "responses"])
def agent(url, model, request):
    def make(**more):
        provider = OpenAIProvider(base_url=url, api_key="unused")
        return Agent(request.param(model, provider=provider), model_settings={"temperature": 0}, **more)

    return make


async def whole(agent, said):
    result = await agent.run(said)
    return result.output, result.all_messages()


async def streamed(agent, said):
    async with agent.run_stream(said) as result:
        return await result.get_output(), result.all_messages()


@pytest.mark.parametrize("turn", [whole, streamed])
@pytest.mark.parametrize(("question", "cities"), [(OSLO, ["Oslo"]), (BOTH, ["Oslo", "Rome"])])
async def test_a_loop(agent, weather, turn, question, cities):
    output, _ = await turn(agent(tools=[weather], instructions="Be brief."), question)
    assert sorted(weather.asked) == cities  # it calls them side by side
    for result in ("4", "21")[: len(cities)]:
        assert result in output


@pytest.mark.parametrize("way", [ToolOutput, NativeOutput])
@pytest.mark.parametrize("turn", [whole, streamed])
async def test_structured_output(agent, turn, way):
    output, _ = await turn(agent(output_type=way(Person)), ADA)
    assert isinstance(output, Person)


@pytest.mark.scripted
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("turn", [whole, streamed])
async def test_structured_output_is_what_was_said(agent, turn, way):
    output, _ = await turn(agent(output_type=way(Person)), ADA)
    assert output == Person(name="Ada", age=36)


@pytest.mark.scripted
@pytest.mark.parametrize("way", [ToolOutput, NativeOutput])
async def test_strict_schemas_hold(agent, way):
    output, _ = await whole(agent(output_type=way(Order, strict=True)), "An order, please.")
    assert isinstance(output, Order)


@pytest.mark.scripted
@pytest.mark.parametrize("turn", [whole, streamed])
async def test_a_tool_and_then_structured_output(agent, weather, turn):
    output, messages = await turn(agent(tools=[weather], output_type=Report), OSLO)
    assert output == Report(city="Oslo", degrees=4)
    calls = [part for message in messages for part in message.parts if isinstance(part, ToolCallPart)]
    assert [call.tool_name for call in calls] == ["get_weather", "final_result"]


@pytest.mark.scripted
@pytest.mark.parametrize("way", [NativeOutput, PromptedOutput])
@pytest.mark.parametrize("turn", [whole, streamed])
async def test_tools_beside_a_schema(agent, weather, turn, way):
    output, _ = await turn(agent(tools=[weather], output_type=way(Report)), f"{OSLO} Answer in JSON.")
    assert (output, weather.asked) == (Report(city="Oslo", degrees=4), ["Oslo"])


@pytest.mark.scripted
@pytest.mark.parametrize("turn", [whole, streamed])
async def test_reasoning_is_one_part_of_each_turn(agent, weather, turn):
    output, messages = await turn(agent(tools=[weather]), f"Think first. {BOTH}")
    thoughts = [[part for part in message.parts if isinstance(part, ThinkingPart)] for message in messages]
    told = [
        [one.content or one.provider_details["raw_content"][0] for one in some] for some in thoughts if some
    ]
    assert told == [["A tool knows that."]] * 2
    assert sorted(weather.asked) == ["Oslo", "Rome"]
    assert output == "The tools say: 4 degrees and sunny in Oslo; 21 degrees and sunny in Rome."


@pytest.mark.scripted
async def test_what_is_wrong_is_said_again(agent):
    checked = agent(output_type=Person, retries=2)

    @checked.output_validator
    def old_enough(output):
        if output.age < 0:
            raise ModelRetry("validation error: nobody is as old as that")
        return output

    output, _ = await whole(checked, "Ada is -36 years old.")
    assert output.age == 36


async def test_an_error_is_the_packages_own(agent):
    with pytest.raises(ModelHTTPError) as raised:
        await agent().run("hi", model_settings={"extra_body": {"tool_choice": "required"}})
    assert raised.value.status_code == 400


def test_the_documented_example(run_example):
    assert "4 degrees" in run_example("pydantic-ai")
