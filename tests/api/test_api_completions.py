"""Plain completions through the real OpenAI client."""

import pytest
from fake_client import says
from openai import BadRequestError


async def test_an_answer_has_openais_shape(openai, client):
    answer = await openai.completions.create(model="fake", prompt="once upon")
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    choice = answer.choices[0]
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (
        0,
        "Hello world!",
        "stop",
        None,
    )
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 3)
    assert client.tokenized == [("once upon", True, True)]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        pytest.param("a b", [(0, 1, 2)], id="string"),
        pytest.param(["a", "b"], [(0, 1), (0, 2)], id="strings"),
        pytest.param([5, 6, 7], [(5, 6, 7)], id="tokens"),
        pytest.param([[5], [6, 7]], [(5,), (6, 7)], id="token-lists"),
    ],
)
async def test_every_shape_of_prompt(openai, client, prompt, prompts):
    answer = await openai.completions.create(model="fake", prompt=prompt)
    assert [request.prompt for request in client.requests] == prompts
    assert [choice.index for choice in answer.choices] == list(range(len(prompts)))
    assert answer.usage.prompt_tokens == sum(map(len, prompts))


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_of_several_prompts_are_prompt_major(openai, client, stream):
    client.script = lambda request: says(f"{request.prompt[0]}/{request.sampling.seed}")(request)
    answer = await openai.completions.create(
        model="fake", prompt=[[5], [6]], n=2, seed=0, stream=stream, extra_body={"best_of": 2}
    )
    if stream:
        texts = {}
        async for chunk in answer:
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
        texts = [texts[i] for i in range(4)]
    else:
        texts = [choice.text for choice in answer.choices]
    assert texts == ["5/0", "5/1", "6/0", "6/1"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["once upon", [0, 1]])
async def test_echo_puts_the_prompt_in_front(openai, client, stream, prompt):
    client.tokenize("once upon")
    expected = "once upon" if isinstance(prompt, str) else "<s>once"
    answer = await openai.completions.create(model="fake", prompt=prompt, echo=True, stream=stream)
    text = "".join([c.choices[0].text async for c in answer]) if stream else answer.choices[0].text
    assert text == expected + "Hello world!"


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_of_nothing_more_asks_no_engine(openai, client, stream):
    answer = await openai.completions.create(
        model="fake", prompt="once upon", echo=True, max_tokens=0, stream=stream
    )
    if stream:
        chunks = [chunk async for chunk in answer]
        text, reason = "".join(c.choices[0].text for c in chunks), chunks[-1].choices[0].finish_reason
    else:
        text, reason = answer.choices[0].text, answer.choices[0].finish_reason
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 0)
    assert (text, reason, client.requests) == ("once upon", "length", [])


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_count_offsets_through_the_text(openai, stream):
    answer = await openai.completions.create(model="fake", prompt="x", logprobs=1, stream=stream)
    if stream:
        parts = [c.choices[0].logprobs async for c in answer]
        parts = [part for part in parts if part]
    else:
        parts = [answer.choices[0].logprobs]
    assert [t for part in parts for t in part.tokens] == ["Hello", " world", "!"]
    assert [t for part in parts for t in part.text_offset] == [0, 5, 11]
    assert [t for part in parts for t in part.token_logprobs] == [-0.5] * 3
    assert parts[0].top_logprobs[0] == {"alt0": -1.0, "Hello": -0.5}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        pytest.param({"suffix": "end"}, "suffix", "unsupported_parameter", id="suffix"),
        pytest.param({"best_of": 3}, "best_of", "unsupported_parameter", id="best-of"),
        pytest.param({"logprobs": 21}, "logprobs", "invalid_value", id="logprobs"),
        pytest.param({"max_tokens": 0}, "max_tokens", "invalid_value", id="nothing"),
        pytest.param({"prompt": []}, "prompt", "invalid_value", id="empty-list"),
        pytest.param({"prompt": [[1], "a"]}, "prompt", "invalid_value", id="mixed"),
        pytest.param({"prompt": [True]}, "prompt", "invalid_value", id="bools"),
        pytest.param({"prompt": [1000]}, "prompt", "invalid_value", id="token-outside"),
        pytest.param({"prompt": ["a"] * 65, "n": 2}, "n", "invalid_value", id="too-many-answers"),
        pytest.param({"prompt": [1] * 64, "max_tokens": 6}, "prompt", "context_length_exceeded", id="long"),
    ],
)
async def test_what_is_refused(openai, client, fields, param, code):
    with pytest.raises(BadRequestError) as caught:
        await openai.completions.create(model="fake", prompt="x", extra_body=fields)
    assert (caught.value.status_code, caught.value.param, caught.value.code) == (400, param, code)
    assert client.requests == []


async def test_a_stream_closes_with_reason_and_usage(openai):
    stream = await openai.completions.create(
        model="fake", prompt="x", stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert [c.choices[0].text for c in chunks[:-1]] == ["Hello", " world", "!", ""]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.total_tokens == 5
