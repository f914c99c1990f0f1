"""One client of each kind: it asks once, reads all of the answer, and raises if that is not as it has to be.

Every prompt begins with what nobody else has asked, so that all of it is computed. The models may be
untrained: only what a grammar holds is looked at word by word.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import anthropic
import httpx2
import ollama
import openai

CHATS = "/v1/chat/completions"
HUNG_S = 120.0
N_TEXTS = 200
SIDE = {
    "type": "object",
    "properties": {"side": {"enum": ["left", "right"]}},
    "required": ["side"],
    "additionalProperties": False,
}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
TURN = {"name": "turn", "description": "Turns left or right.", "input_schema": SIDE}


@dataclass(frozen=True, kw_only=True)
class Site:
    """A server as clients of all kinds see it."""

    http: httpx2.AsyncClient
    openai: openai.AsyncOpenAI
    claude: anthropic.AsyncAnthropic
    llama: ollama.AsyncClient
    talks: str
    """The name of a model that generates."""
    embeds: list[str]
    """Those of models that make vectors."""


@asynccontextmanager
async def site(url: str) -> AsyncGenerator[Site, None]:
    """Connect all clients, none of which asks twice, and learn what is served."""
    once: dict[str, Any] = {"api_key": "unused", "max_retries": 0, "timeout": HUNG_S}
    limits = httpx2.Limits(max_connections=None)
    async with (
        httpx2.AsyncClient(base_url=url, timeout=HUNG_S, limits=limits) as http,
        openai.AsyncOpenAI(base_url=f"{url}/v1", **once) as chats,
        anthropic.AsyncAnthropic(base_url=url, **once) as claude,
        ollama.AsyncClient(host=url, timeout=HUNG_S) as llama,
    ):
        able = {model["id"]: model["capabilities"] for model in (await http.get("/v1/models")).json()["data"]}
        yield Site(
            http=http,
            openai=chats,
            claude=claude,
            llama=llama,
            talks=next(name for name, can in able.items() if "completion" in can),
            embeds=[name for name, can in able.items() if "embedding" in can],
        )


async def chat(site: Site, words: str) -> None:
    """Read a chat in pieces, and what it used."""
    said, reasons, usage = "", [], None
    stream = await site.openai.chat.completions.create(
        model=site.talks,
        messages=_said(words),
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            said += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert said
    assert reasons == ["length"]
    assert usage is not None
    assert usage.completion_tokens == 32


async def schema(site: Site, words: str) -> None:
    """Have an answer written by a schema, in one piece."""
    answer = await site.openai.chat.completions.create(
        model=site.talks,
        messages=_said(words),
        max_tokens=64,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "side", "schema": SIDE, "strict": True},
        },
    )
    (choice,) = answer.choices
    if choice.finish_reason == "stop":
        assert json.loads(choice.message.content or "")["side"] in {"left", "right"}
    else:
        assert choice.finish_reason == "length"


async def echo(site: Site, words: str) -> None:
    """Have a prompt read back with its logprobs, and continued."""
    answer = await site.openai.completions.create(
        model=site.talks, prompt=words, max_tokens=8, echo=True, logprobs=2, extra_body={"ignore_eos": True}
    )
    (choice,) = answer.choices
    assert choice.text.startswith(words)
    assert answer.usage is not None
    told = choice.logprobs
    assert told is not None
    assert told.token_logprobs is not None
    assert len(told.token_logprobs) == answer.usage.total_tokens
    assert [i for i, one in enumerate(told.token_logprobs) if one is None] == [0]


async def response(site: Site, words: str) -> None:
    """Read a response event by event."""
    async with site.openai.responses.stream(model=site.talks, input=words, max_output_tokens=32) as stream:
        events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type in {"response.completed", "response.incomplete"}
    whole = events[-1].response
    assert [item.type for item in whole.output] == ["message"]
    assert whole.output_text == "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert whole.usage is not None
    assert 0 < whole.usage.output_tokens <= 32


async def tool(site: Site, words: str) -> None:
    """Have Anthropic's client add up a call of a tool."""
    async with site.claude.messages.stream(
        model=site.talks,
        max_tokens=64,
        messages=_said(words),
        tools=[TURN],
        tool_choice={"type": "tool", "name": "turn", "disable_parallel_tool_use": True},
    ) as stream:
        message = await stream.get_final_message()
    if message.stop_reason == "tool_use":
        (call,) = message.content
        assert call.type == "tool_use"
        assert call.input["side"] in {"left", "right"}
    else:
        assert message.stop_reason == "max_tokens"
    assert 0 < message.usage.output_tokens <= 64


async def lines(site: Site, words: str) -> None:
    """Read a chat as Ollama's client does, line by line."""
    parts = [
        part
        async for part in await site.llama.chat(
            site.talks, _said(words), stream=True, options={"num_predict": 32}
        )
    ]
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert {part.done_reason for part in parts[:-1]} == {None}
    assert parts[-1].done_reason in {"stop", "length"}
    assert 0 < (parts[-1].eval_count or 0) <= 32


async def native(site: Site, words: str) -> None:
    """Read llama-server's stream."""
    body = {"model": site.talks, "prompt": words, "n_predict": 32, "stream": True, "ignore_eos": True}
    events = []
    async with site.http.stream("POST", "/completion", json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            events += [json.loads(line.removeprefix("data: "))] if line else []
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["tokens_predicted"] == events[-1]["timings"]["predicted_n"] == 32
    assert events[-1]["stop_type"] == "limit"


async def cut(site: Site, words: str) -> None:
    """Have a connection cut in the middle of a stream, and read on where it was."""
    body = {"model": site.talks, "messages": _said(words), "max_tokens": 32, "ignore_eos": True}
    seen: list[str] = []
    async with site.http.stream("POST", CHATS, json=body | {"stream": True, "resumable": True}) as answer:
        stream = answer.headers["x-cobali-stream"]
        async for line in answer.aiter_lines():
            seen += [line] if line else []
            if len(seen) == 4:  # two events, with a number each
                break
    number = int(seen[-2].removeprefix("id: "))
    rest = await site.http.get(f"/v1/streams/{stream}", params={"after": number})
    assert rest.status_code == 200, rest.text
    seen += [line for line in rest.text.splitlines() if line]
    numbers = [int(line.removeprefix("id: ")) for line in seen if line.startswith("id: ")]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert seen[-1] == "data: [DONE]"


async def vectors(site: Site, words: str) -> None:
    """Have 200 texts embedded by each model that can."""
    for name in site.embeds:
        texts = [f"{words} {i}" for i in range(N_TEXTS)]
        made = await site.openai.embeddings.create(model=name, input=texts)
        assert [item.index for item in made.data] == list(range(N_TEXTS))
        (n_numbers,) = {len(item.embedding) for item in made.data}
        assert n_numbers > 1
        assert all(abs(sum(x * x for x in item.embedding) - 1) < 1e-3 for item in made.data)


async def llama_vectors(site: Site, words: str) -> None:
    """Have a few texts embedded as Ollama's client asks for it."""
    for name in site.embeds:
        made = await site.llama.embed(name, [f"{words} {i}" for i in range(8)])
        assert len(made.embeddings) == 8


async def rank(site: Site, words: str) -> None:
    """Have documents ranked: the one that says the same as the query comes first."""
    for name in site.embeds:
        documents = ["the cat of paris", words, "a dog"]
        answer = await site.http.post(
            "/v1/rerank", json={"model": name, "query": words, "documents": documents, "top_n": 2}
        )
        assert answer.status_code == 200, answer.text
        found = answer.json()["results"]
        assert found[0] == {"index": 1, "relevance_score": found[0]["relevance_score"]}
        assert 1.001 > found[0]["relevance_score"] > found[1]["relevance_score"]


async def tokens(site: Site, words: str) -> None:
    """Have a text cut into tokens and put together again."""
    cut = await site.http.post("/tokenize", json={"model": site.talks, "content": words})
    again = await site.http.post("/detokenize", json={"model": site.talks, "tokens": cut.json()["tokens"]})
    assert again.json()["content"].strip() == words


async def leaves_chat(site: Site, words: str) -> None:
    """Leave a chat after its first words."""
    stream = await site.openai.chat.completions.create(
        model=site.talks, messages=_said(words), stream=True, extra_body={"ignore_eos": True}
    )
    async with stream:
        async for _ in stream:
            break


async def leaves_messages(site: Site, words: str) -> None:
    """Leave a message before its end."""
    async with site.claude.messages.stream(
        model=site.talks, max_tokens=3000, messages=_said(words), extra_body={"ignore_eos": True}
    ) as stream:
        async for _ in stream:
            break


async def leaves_vectors(site: Site, words: str) -> None:
    """Leave before texts are embedded, and before an answer in one piece."""
    for path, body in (
        ("/v1/embeddings", {"model": site.embeds[0], "input": [f"{words} {i}" for i in range(N_TEXTS)]}),
        ("/completion", {"model": site.talks, "prompt": words, "ignore_eos": True}),
    ):
        task = asyncio.ensure_future(site.http.post(path, json=body))
        await asyncio.wait({task}, timeout=0.1)
        task.cancel()
        await asyncio.wait({task})


async def nonsense(site: Site, words: str) -> None:
    """Ask each API for what it has to refuse, in its own way."""
    said = {"model": site.talks, "messages": _said(words)}
    for path, body, status, shape in (
        (CHATS, said | {"temperature": -1}, 400, _of_openai),
        (CHATS, said | {"messages": [{"role": "user", "content": [PICTURE]}]}, 400, _of_openai),
        (CHATS, said | {"model": "gpt-9"}, 404, _of_openai),
        (
            "/v1/responses",
            {"model": site.talks, "input": words, "previous_response_id": "resp_1"},
            501,
            _of_openai,
        ),
        ("/v1/embeddings", {"model": site.talks, "input": []}, 400, _of_openai),
        ("/v1/rerank", {"model": site.talks, "query": words}, 400, _of_openai),
        ("/completion", {"model": site.talks, "prompt": words, "id_slot": 1}, 400, _of_openai),
        ("/v1/messages", said, 400, _of_anthropic),
        ("/v1/messages", said | {"model": "claude", "max_tokens": 8}, 404, _of_anthropic),
        ("/api/chat", said | {"format": 7}, 400, _of_ollama),
        ("/api/embed", {"model": "nomic", "input": words}, 404, _of_ollama),
    ):
        answer = await site.http.post(path, json=body)
        assert (answer.status_code, shape(answer.json())) == (status, True), (path, answer.text)


KINDS: dict[str, Callable[[Site, str], Awaitable[None]]] = {
    ask.__name__: ask
    for ask in (
        chat,
        schema,
        echo,
        response,
        tool,
        lines,
        native,
        cut,
        vectors,
        llama_vectors,
        rank,
        tokens,
        leaves_chat,
        leaves_messages,
        leaves_vectors,
        nonsense,
    )
}

_ASKED = count()


async def crowd(site: Site, n_clients: int) -> list[str]:
    """Let so many clients ask at once; return what went wrong, in words."""

    async def ask(name: str, number: int) -> str | None:
        try:
            async with asyncio.timeout(HUNG_S):
                await KINDS[name](site, f"{number} questions about the moon")
        except TimeoutError:
            return f"{name} hangs"
        except Exception as error:  # whatever befalls one client, the others are judged too
            return f"{name}: {error!r}"
        return None

    names = list(KINDS)
    asked = (ask(names[i % len(names)], next(_ASKED)) for i in range(n_clients))
    return [flaw for flaw in await asyncio.gather(*asked) if flaw]


def _said(words: str) -> list[Any]:
    return [{"role": "user", "content": words}]


def _of_openai(body: Any) -> bool:
    return set(body) == {"error"} and {"message", "type", "param", "code"} <= set(body["error"])


def _of_anthropic(body: Any) -> bool:
    return body["type"] == "error" and {"type", "message"} <= set(body["error"]) and "request_id" in body


def _of_ollama(body: Any) -> bool:
    return set(body) == {"error"} and isinstance(body["error"], str)
