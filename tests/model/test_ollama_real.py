"""Ollama's API on a real engine with the model that ships."""

import pytest
from ollama import Client

from tests.page.stack import Site

pytestmark = pytest.mark.model

HELLO = [{"role": "user", "content": "Hello! What are you?"}]
GREEDY = {"temperature": 0, "num_predict": 60}


@pytest.fixture(scope="module")
def llama():
    with Site(model="builtin:tiny", n_ctx=1024) as site:
        client = Client(host=site.url)
        yield client
        client.close()


def test_a_chat_and_its_numbers(llama):
    answer = llama.chat("tiny", HELLO, options=GREEDY)
    assert answer.message.content.startswith("I am Tiny")
    parts = list(llama.chat("tiny:latest", HELLO, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == answer.message.content
    assert len(parts) > 5
    last = parts[-1]
    assert last.prompt_eval_count == answer.prompt_eval_count > 5
    assert last.eval_count == answer.eval_count > 5
    assert last.total_duration >= last.prompt_eval_duration + last.eval_duration > 0


def test_a_call_and_its_result(llama):
    def get_weather(city: str) -> str:
        """The weather in a city"""
        return f"4 degrees and sunny in {city}"

    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    message = llama.chat("tiny", messages, tools=[get_weather], options=GREEDY).message
    (call,) = message.tool_calls
    assert call.function.arguments == {"city": "Oslo"}
    messages += [message, {"role": "tool", "content": get_weather("Oslo"), "tool_name": "get_weather"}]
    assert "4 degrees" in llama.chat("tiny", messages, tools=[get_weather], options=GREEDY).message.content


def test_a_prompt_goes_on_from_the_context_of_another(llama):
    first = llama.generate("tiny", "Hello! What are you?", options=GREEDY)
    second = llama.generate("tiny", "What is 2 + 3?", context=first.context, options=GREEDY)
    assert second.prompt_eval_count > len(first.context) > first.prompt_eval_count
    assert second.response


def test_a_raw_prompt_has_no_template(llama):
    raw = llama.generate("tiny", "The scheduler", raw=True, options=GREEDY)
    told = llama.generate("tiny", "The scheduler", options=GREEDY)
    assert raw.prompt_eval_count < told.prompt_eval_count
    assert raw.response
