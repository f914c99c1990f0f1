"""ollama: the loop with functions as tools, streams, formats, and what it asks about models."""

import json

import pytest
from ollama import AsyncClient, Client, ResponseError
from shapes import ADA, BOTH, OSLO, WEATHER, Person


@pytest.fixture
def llama(server):
    client = Client(host=server)
    yield client
    client.close()


@pytest.fixture
def chat(llama, model):
    def go(said, **more):
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        return llama.chat(model, messages, options={"temperature": 0, "num_predict": 500}, **more)

    return go


def whole(chat, said, **more):
    return chat(said, **more).message


def streamed(chat, said, **more):
    parts = [part.message for part in chat(said, stream=True, **more)]
    message = parts[-1].model_copy()
    message.content = "".join(part.content or "" for part in parts)
    message.thinking = "".join(part.thinking or "" for part in parts) or None
    message.tool_calls = [call for part in parts for call in part.tool_calls or ()] or None
    return message


TURNS = pytest.mark.parametrize("turn", [whole, streamed])


@TURNS
@pytest.mark.parametrize(("question", "cities"), [(OSLO, ["Oslo"]), (BOTH, ["Oslo", "Rome"])])
def test_a_loop(chat, weather, turn, question, cities):
    messages = [{"role": "user", "content": question}]
    while (message := turn(chat, messages, tools=[weather], think=False)).tool_calls:
        messages.append(message)
        messages += [
            {"role": "tool", "content": weather(**call.function.arguments), "tool_name": call.function.name}
            for call in message.tool_calls
        ]
    assert weather.asked == cities
    for result in ("4", "21")[: len(cities)]:
        assert result in message.content


@pytest.mark.scripted
@TURNS
def test_thinking_stands_before_a_call(chat, turn):
    message = turn(chat, f"Think first. {BOTH}", tools=[WEATHER], think=True)
    assert (message.content, message.thinking) == ("", "A tool knows that.")
    assert [call.function.arguments for call in message.tool_calls] == [{"city": "Oslo"}, {"city": "Rome"}]


@TURNS
def test_an_answer_has_the_format_of_a_schema(chat, turn):
    message = turn(chat, ADA, format=Person.model_json_schema())
    assert isinstance(Person.model_validate_json(message.content), Person)


@pytest.mark.scripted
def test_the_answer_is_the_one_that_was_given(chat):
    answer = chat(ADA, format=Person.model_json_schema())
    assert Person.model_validate_json(answer.message.content) == Person(name="Ada", age=36)
    assert json.loads(chat(ADA, format="json").message.content)["name"] == "Ada"


@pytest.mark.scripted
def test_generate(llama, model):
    asked = {"model": model, "prompt": "Hello!", "options": {"temperature": 0}}
    answer = llama.generate(**asked)
    assert answer.response == "Hello! What can I do for you?"
    assert answer.eval_duration > 0
    assert answer.total_duration >= answer.eval_duration
    assert "".join(part.response for part in llama.generate(**asked, stream=True)) == answer.response
    assert llama.generate(
        **asked | {"prompt": "And now?", "context": answer.context}
    ).prompt_eval_count > len(answer.context)


def test_models(llama, model):
    assert f"{model}:latest" in [one.model for one in llama.list().models]
    assert f"{model}:latest" in [one.model for one in llama.ps().models]
    assert "tools" in llama.show(model).capabilities
    assert llama.generate(f"{model}:latest").done_reason == "load"


def test_errors_are_the_packages_own(llama, model):
    with pytest.raises(ResponseError) as raised:
        llama.chat("nothing", [{"role": "user", "content": "x"}])
    assert raised.value.status_code == 404
    with pytest.raises(ResponseError, match="does not support pull"):
        llama.pull("llama3.2")
    with pytest.raises(ResponseError, match="mirostat"):
        llama.generate(model, "x", options={"mirostat": 1})


async def test_async(server, model):
    client = AsyncClient(host=server)
    stream = await client.chat(model, [{"role": "user", "content": OSLO}], stream=True)
    assert [part.done async for part in stream][-1]
    await client.close()


def test_the_example_of_the_document(run_example):
    assert "4 degrees and sunny" in run_example("ollama")
