"""Two hundred constrained and free requests at once: each ends once, whole, and as it was asked for."""

import asyncio
import json
import re

import pytest
from jsonschema import validate

from tests.waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.anyio]

N_REQUESTS, N_TOKENS = 200, 120
SIDE = {
    "type": "object",
    "properties": {
        "side": {"enum": ["left", "right"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["side", "n"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "turn", "parameters": SIDE}}
NAMED = {"type": "function", "function": {"name": "turn"}}
COMPACT = {"structured_outputs": {"json": SIDE, "disable_any_whitespace": True}}


def fits_schema(message):
    validate(json.loads(message["content"]), SIDE)


def calls(message):
    assert message["calls"]
    for name, arguments in message["calls"]:
        assert name == "turn"
        validate(json.loads(arguments), SIDE)


def matches(message):
    assert re.fullmatch("[a-f]{3,9}", message["content"])


def chooses(message):
    assert message["content"] in {"yes", "no"}


def is_text(message):
    assert message["content"]
    assert not message["calls"]


KINDS = [
    ({}, is_text),
    ({"extra_body": COMPACT}, fits_schema),
    ({"extra_body": {"regex": "[a-f]{3,9}"}}, matches),
    ({"extra_body": {"guided_choice": ["yes", "no"]}}, chooses),
    ({"tools": [TOOL]}, is_text),
    ({"tools": [TOOL], "tool_choice": NAMED}, calls),
    ({"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}, calls),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SIDE}}}, fits_schema),
]


async def streamed(stream):
    message, reasons = {"content": "", "calls": []}, []
    async for chunk in stream:
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                if part.id:
                    message["calls"].append([part.function.name, ""])
                message["calls"][part.index][1] += part.function.arguments
            reasons += [choice.finish_reason] if choice.finish_reason else []
    (reason,) = reasons
    return message, reason


async def asked(openai, i, fields):
    create = openai.with_options(max_retries=50, timeout=120).chat.completions.create
    words = [{"role": "user", "content": f"question {i}"}]
    ask = {
        "model": "scripted",
        "messages": words,
        "seed": i,
        "temperature": 1,
        "max_tokens": N_TOKENS,
    } | fields
    if i % 2:
        return await streamed(await create(stream=True, **ask))
    choice = (await create(**ask)).choices[0]
    made = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return {"content": choice.message.content, "calls": made}, choice.finish_reason


async def leaves(openai, i, fields):
    """Read the first words of a stream and go."""
    create = openai.with_options(max_retries=50, timeout=120).chat.completions.create
    words = [{"role": "user", "content": f"question {i}"}]
    stream = await create(model="scripted", messages=words, max_tokens=N_TOKENS, stream=True, **fields)
    async for _ in stream:
        break
    await stream.close()


async def test_two_hundred_at_once_lose_nothing(server, openai):
    jobs = []
    for i in range(N_REQUESTS):
        fields, _ = KINDS[i % len(KINDS)]
        jobs.append(leaves(openai, i, fields) if i % 10 == 9 else asked(openai, i, fields))
    async with asyncio.timeout(150):
        answers = await asyncio.gather(*jobs)
    n_whole = [0] * len(KINDS)
    for i, answer in enumerate(answers):
        if answer is None:
            continue
        message, reason = answer
        _, check = KINDS[i % len(KINDS)]
        if reason != "length" or check is is_text:
            check(message)
            n_whole[i % len(KINDS)] += 1
    assert min(n_whole) > 0, n_whole

    async def empty():
        state = await server.state()
        return (state["n_running"], state["n_queued"]) == (0, 0)

    await until(empty)
