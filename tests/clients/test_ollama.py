"""ollama: the loop with functions as tools, streams, formats, and what it asks about models."""

import pytest
from ollama import Client
from shapes import ADA, BOTH, OSLO, Person


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


@TURNS
def test_an_answer_has_the_format_of_a_schema(chat, turn):
    message = turn(chat, ADA, format=Person.model_json_schema())
    assert isinstance(Person.model_validate_json(message.content), Person)


def test_the_example_of_the_document(run_example):
    assert "4 degrees and sunny" in run_example("ollama")
