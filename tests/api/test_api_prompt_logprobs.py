"""Logprobs of prompts in OpenAI's shape and in vLLM's, over a scripted engine."""

import json
from dataclasses import replace

import pytest
from fake_client import BOS, stats
from openai import BadRequestError

from cobali_ray.api.body.params import MAX_PROMPT_VALUES
from cobali_ray.core.request.events import Delta, End, TokenLogprob
from cobali_ray.errors import InternalError

ANSWER = (" there", "!")
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def scored(client, *, size=2, order=None):
    """Script: an engine that tells prompts in small deltas, and then two tokens of an answer."""

    def told(request, place):
        token = request.prompt[place]
        piece = client.vocabulary[token].encode()
        if place == 0:
            return TokenLogprob(token, piece, None, ())
        top = tuple((90 + i, f"alt{i}".encode(), -0.25 - i) for i in range(request.n_prompt_logprobs))
        return TokenLogprob(token, piece, -1.0 - place, top, place + 2)

    def script(request):
        n = request.n_prompt if request.n_prompt_logprobs is not None else 0
        for start in range(0, n, size):
            told_now = tuple(told(request, place) for place in range(start, min(start + size, n)))
            yield [Delta(request.request_id, "", (), prompt=told_now)]
        if order is not None:
            order.append(request.request_id)
        k = request.sampling.n_logprobs
        said = ANSWER[: request.max_tokens]
        for text in said:
            lps = (
                () if k is None else (TokenLogprob(1, text.encode(), -0.5, ((1, text.encode(), -0.5),) * k),)
            )
            yield [Delta(request.request_id, text, (1,), lps)]
        yield [End(request.request_id, "length", None, stats(request, len(said)))]

    client.script = script


async def choices_of(openai, *, stream=False, **fields):
    """Return the choices of a completion, those of a stream put together."""
    answer = await openai.completions.create(model="fake", stream=stream, **fields)
    if not stream:
        return answer.choices
    whole = {}
    async for chunk in answer:
        for one in chunk.choices:
            known = whole.setdefault(one.index, one)
            if known is one:
                continue
            known.text += one.text
            known.finish_reason = known.finish_reason or one.finish_reason
            if one.logprobs is not None:
                for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                    getattr(known.logprobs, name).extend(getattr(one.logprobs, name))
    return [whole[i] for i in sorted(whole)]


@STREAM
@pytest.mark.parametrize("size", [1, 2, 50])
async def test_echo_with_logprobs_is_openais(openai, client, stream, size):
    scored(client, size=size)
    (choice,) = await choices_of(
        openai, stream=stream, prompt="one two three", echo=True, logprobs=1, max_tokens=2
    )
    lps = choice.logprobs
    assert choice.text == "one two three there!"
    assert lps.tokens == ["<s>", "one", " two", " three", " there", "!"]
    assert lps.token_logprobs == [None, -2.0, -3.0, -4.0, -0.5, -0.5]
    assert lps.text_offset == [0, 0, 3, 7, 13, 19]
    assert lps.top_logprobs[0] is None
    assert lps.top_logprobs[1] == {"alt0": -0.25, "one": -2.0}, "the token itself is always there"
    assert choice.finish_reason == "length"


@STREAM
async def test_ids_are_echoed_with_all_their_text(openai, client, stream):
    scored(client)
    client.vocabulary += ["x", " y"]
    (choice,) = await choices_of(
        openai, stream=stream, prompt=[BOS, 1, 2], echo=True, logprobs=0, max_tokens=1
    )
    assert choice.text == "<s>x y there"
    assert choice.logprobs.text_offset == [0, 3, 4, 6]
    assert choice.logprobs.top_logprobs[2] == {" y": -3.0}


@STREAM
async def test_the_echo_is_what_was_sent_whatever_its_tokens_say(openai, client, stream):
    scored(client, size=1)
    client.tokenize = lambda text, **_: [1, 2]
    client.vocabulary[1:] = ["o", "t"]
    (choice,) = await choices_of(
        openai, stream=stream, prompt="one two and more", echo=True, logprobs=1, max_tokens=1
    )
    assert choice.text == "one two and more there"
    assert choice.logprobs.text_offset[-1] == len("one two and more")


@STREAM
async def test_nothing_is_generated(openai, client, stream):
    scored(client)
    (choice,) = await choices_of(openai, stream=stream, prompt="one two", echo=True, logprobs=1, max_tokens=0)
    assert (choice.text, choice.finish_reason) == ("one two", "length")
    assert choice.logprobs.token_logprobs == [None, -2.0, -3.0]
    assert client.requests[0].max_tokens == 0


@STREAM
async def test_answers_of_one_prompt_share_what_is_known_of_it(openai, client, stream):
    order = []
    scored(client, size=1, order=order)
    choices = await choices_of(
        openai, stream=stream, prompt=["one two three four", "five"], n=2, echo=True, logprobs=1, max_tokens=2
    )
    assert [r.n_prompt_logprobs for r in client.requests] == [1, None, 1, None]
    assert order[0].endswith(("-1", "-3")), "the others were ready first, and held back"
    for choice, text in zip(
        choices, ["one two three four", "one two three four", "five", "five"], strict=True
    ):
        assert choice.text == text + " there!"
        n = len(text.split()) + 1
        assert choice.logprobs.token_logprobs == [None, *(-1.0 - i for i in range(1, n)), -0.5, -0.5]
        assert choice.logprobs.text_offset[-2:] == [len(text), len(text) + 6]


async def test_prompt_logprobs_are_vllms(post, client):
    scored(client)
    wire = await post(
        "/v1/completions", {"prompt": ["one two", "three"], "prompt_logprobs": 1, "max_tokens": 1}
    )
    first, second = wire.json["choices"]
    assert first["text"] == " there"
    assert first["logprobs"] is None
    assert first["prompt_logprobs"] == [
        None,
        {
            "1": {"logprob": -2.0, "rank": 3, "decoded_token": "one"},
            "90": {"logprob": -0.25, "rank": 1, "decoded_token": "alt0"},
        },
        {
            "2": {"logprob": -3.0, "rank": 4, "decoded_token": " two"},
            "90": {"logprob": -0.25, "rank": 1, "decoded_token": "alt0"},
        },
    ]
    assert list(first["prompt_logprobs"][1]) == ["1", "90"], "the token itself comes first"
    assert len(second["prompt_logprobs"]) == 2
    assert wire.json["usage"]["prompt_tokens"] == 5


async def test_those_of_a_chat_stand_beside_its_choices(post, client):
    scored(client)
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 0, "n": 2, "max_tokens": 1}
    wire = await post("/v1/chat/completions", body)
    assert [len(one or {}) for one in wire.json["prompt_logprobs"]] == [0] + [1] * (
        client.requests[0].n_prompt - 1
    )
    assert all("prompt_logprobs" not in choice for choice in wire.json["choices"])
    assert len(wire.json["choices"]) == 2


async def test_both_kinds_together_have_as_many_as_each_asks_for(post, client):
    scored(client)
    body = {"prompt": "one", "echo": True, "logprobs": 1, "prompt_logprobs": 3, "max_tokens": 0}
    choice = (await post("/v1/completions", body)).json["choices"][0]
    assert client.requests[0].n_prompt_logprobs == 3
    assert choice["logprobs"]["top_logprobs"] == [None, {"alt0": -0.25, "one": -2.0}]
    assert len(choice["prompt_logprobs"][1]) == 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        pytest.param({"prompt_logprobs": -1}, "prompt_logprobs", id="all-of-them"),
        pytest.param({"prompt_logprobs": 21}, "prompt_logprobs", id="too-many"),
        pytest.param({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", id="no-stream"),
        pytest.param({"prompt_logprobs": True}, "prompt_logprobs", id="no-number"),
        pytest.param({"echo": True, "logprobs": 21}, "logprobs", id="echo"),
    ],
)
async def test_what_is_refused(post, client, fields, param):
    wire = await post("/v1/completions", {"prompt": "a"} | fields)
    assert (wire.status, wire.json["error"]["param"]) == (400, param)
    assert client.requests == []


async def test_their_number_is_bounded(openai, client):
    client.the_card = replace(client.the_card, n_ctx_slot=1 << 20)
    scored(client)
    n = MAX_PROMPT_VALUES // 21
    with pytest.raises(BadRequestError, match="fewer alternatives") as caught:
        await openai.completions.create(model="fake", prompt=[0] * (n + 1), echo=True, logprobs=20)
    assert caught.value.param == "logprobs"
    with pytest.raises(BadRequestError, match="fewer alternatives"):
        await openai.completions.create(model="fake", prompt=[0] * (n // 2 + 1), n=2, echo=True, logprobs=20)
    assert client.requests == []


@STREAM
async def test_a_failure_halfway_is_told(post, client, stream):
    def script(request):
        piece = TokenLogprob(request.prompt[0], b"<s>", None, ())
        yield [Delta(request.request_id, "", (), prompt=(piece,))]
        yield [End(request.request_id, None, InternalError("broken"), stats(request, 0))]

    client.script = script
    wire = await post(
        "/v1/completions", {"prompt": "one", "echo": True, "logprobs": 1, "stream": stream, "n": 2}
    )
    if stream:
        last = [line for line in wire.body.decode().split("\n\n") if line][-2]
        assert "error" in json.loads(last.removeprefix("data: "))
    else:
        assert wire.status == 500


async def test_the_vocabulary_is_described(get, client):
    client.bos, client.eos, client.source = "<s>", "", "{{ messages }}"
    wire = await get("/tokenizer_info")
    assert wire.json == {
        "bos_token": "<s>",
        "eos_token": None,
        "pad_token": None,
        "model_max_length": 64,
        "chat_template": "{{ messages }}",
    }
    assert (await get("/tokenizer_info?model=nobody")).status == 404


async def test_tokenize_knows_vllms_names(post, client):
    assert (await post("/tokenize", {"prompt": "once", "add_special_tokens": False})).json["tokens"] == [1]
    assert (await post("/tokenize", {"prompt": "once", "add_special_tokens": True})).json["tokens"] == [0, 1]
