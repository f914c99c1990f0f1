"""EventStream: what a reader gets, however slow it is."""

import asyncio

import pytest

from cobali_ray.api.engines.dispatch import MAX_AT_ONCE, MAX_PENDING, EventStream
from cobali_ray.core.request.events import Delta, End, RequestStats
from cobali_ray.errors import EngineDiedError, RequestCancelledError

STATS = RequestStats(3, 1, 2, 0.1, 0.2, 0.3, 0.4, 0.5)


async def test_it_is_over_once_all_its_requests_have_ended():
    left = []
    stream = EventStream(["a", "b"], left.append)
    ends = [End(name, "stop", None, STATS) for name in "ab"]
    stream.put(ends[0])
    assert await anext(stream) == [ends[0]]
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.put(ends[1])
    assert await waiting == [ends[1]]
    assert [batch async for batch in stream] == []
    await stream.aclose()
    assert left == []


async def test_a_stream_nobody_reads_is_cancelled_once_and_never_grows():
    left = []
    stream = EventStream(["a"], left.append)
    for _ in range(MAX_PENDING + 10):
        stream.put(Delta("a", "x", (1,)))
    assert left == ["a"]
    with pytest.raises(RequestCancelledError):
        await anext(stream)
    await stream.aclose()
    assert left == ["a"]


async def test_an_error_comes_behind_what_was_told_and_the_others_are_cancelled():
    left = []
    stream = EventStream(["a", "b"], left.append)
    stream.put(Delta("b", "x", (1,)))
    stream.fail(EngineDiedError(), "a")
    assert await anext(stream) == [Delta("b", "x", (1,))]
    with pytest.raises(EngineDiedError):
        await anext(stream)
    await stream.aclose()
    assert left == ["b"]


async def test_a_reader_who_is_far_behind_leaves_others_their_turn():
    stream, turns, taken = EventStream(["a"], list), 0, []

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    for i in range(MAX_PENDING):
        stream.put(Delta("a", str(i), (1,)))
    task = asyncio.ensure_future(other())
    while len(taken) < MAX_PENDING:
        taken += await anext(stream)
    task.cancel()
    assert [event.text for event in taken] == [str(i) for i in range(MAX_PENDING)]
    assert turns >= MAX_PENDING // MAX_AT_ONCE - 1
