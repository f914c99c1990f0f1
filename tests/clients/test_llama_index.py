"""llama-index: an agent over OpenAILike, structured output, streams."""

import pytest
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.base.llms.types import ThinkingBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from openai import BadRequestError
from shapes import ADA, BOTH, OSLO, Order, Person


@pytest.fixture
def llm(url, model):
    def make(**more):
        return OpenAILike(
            api_base=url,
            api_key="unused",
            model=model,
            is_chat_model=True,
            is_function_calling_model=True,
            context_window=4096,
            temperature=0,
            max_retries=0,
            **more,
        )

    return make


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("question", "cities"), [(OSLO, ["Oslo"]), (BOTH, ["Oslo", "Rome"])])
async def test_a_loop(llm, weather, streaming, question, cities):
    agent = FunctionAgent(tools=[weather], llm=llm(), system_prompt="Be brief.", streaming=streaming)
    handler = agent.run(question)
    deltas = [event.delta async for event in handler.stream_events() if isinstance(event, AgentStream)]
    answer = str(await handler)
    assert sorted(weather.asked) == cities
    for result in ("4", "21")[: len(cities)]:
        assert result in answer
    assert "".join(deltas).strip() == (answer.strip() if streaming else "")


@pytest.mark.parametrize("structured", [False, True])
def test_structured_output(llm, structured):
    """By a call, and by a schema."""
    one = llm(should_use_structured_outputs=structured).as_structured_llm(Person)
    assert isinstance(one.chat([ChatMessage(ADA)]).raw, Person)


@pytest.mark.scripted
@pytest.mark.parametrize("structured", [False, True])
def test_structured_output_is_what_was_said(llm, structured):
    one = llm(should_use_structured_outputs=structured).as_structured_llm(Person)
    assert one.chat([ChatMessage(ADA)]).raw == Person(name="Ada", age=36)
    *_, last = one.stream_chat([ChatMessage(ADA)])
    assert last.raw == Person(name="Ada", age=36)


@pytest.mark.scripted
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("said", [f"Think first. {OSLO}", f"Say so. {OSLO}"])
async def test_calls_behind_reasoning_and_text(llm, weather, streaming, said):
    answer = str(await FunctionAgent(tools=[weather], llm=llm(), streaming=streaming).run(said))
    assert weather.asked == ["Oslo"]
    assert answer.endswith("The tools say: 4 degrees and sunny in Oslo.")


@pytest.mark.scripted
def test_reasoning_is_one_block(llm, weather):
    one, tool, said = llm(), FunctionTool.from_defaults(weather), f"Think first. {OSLO}"
    *_, streamed = one.stream_chat_with_tools([tool], said)
    for answer in (one.chat_with_tools([tool], said), streamed):
        thoughts = [block.content for block in answer.message.blocks if isinstance(block, ThinkingBlock)]
        assert thoughts == ["A tool knows that."]


@pytest.mark.parametrize("parallel", [False, True])
def test_a_call_that_must_be(llm, weather, parallel):
    one, tool = llm(), FunctionTool.from_defaults(weather)
    answer = one.chat_with_tools([tool], BOTH, tool_required=True, allow_parallel_tool_calls=parallel)
    calls = one.get_tool_calls_from_response(answer)
    assert {call.tool_name for call in calls} == {"get_weather"}
    assert parallel or len(calls) == 1


def test_an_error_is_the_packages_own(llm):
    with pytest.raises(BadRequestError) as raised:
        llm().chat([ChatMessage("hi")], tool_choice="required")
    assert raised.value.param == "tool_choice"


@pytest.mark.scripted
@pytest.mark.parametrize("structured", [False, True])
def test_a_schema_of_many_shapes(llm, structured):
    one = llm(should_use_structured_outputs=structured).as_structured_llm(Order)
    assert isinstance(one.chat([ChatMessage("An order, please.")]).raw, Order)


def test_the_documented_example(run_example):
    assert "4 degrees" in run_example("llama-index")
