"""Streams on which nothing would come: comments keep them open, and change nothing else."""

import asyncio

import pytest
from fake_client import CHAT, Wire, ends_with, says, settle

from cobali_ray.api.reply.keepalive import COMMENT
from cobali_ray.errors import QueueFullError
from tests.waiting import until

TURN = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
TEXT = {"prompt": "hi", "stream": True}
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
DIALECTS = [
    pytest.param(CHAT, TURN, COMMENT, id="chat"),
    pytest.param("/v1/completions", TEXT, COMMENT, id="completions"),
    pytest.param("/completion", TEXT, COMMENT, id="llama-server"),
    pytest.param("/v1/responses", {"input": "hi", "stream": True}, COMMENT, id="responses"),
    pytest.param("/v1/messages", TURN | {"max_tokens": 9}, PING, id="messages"),
    pytest.param("/api/chat", TURN, b"", id="ollama-has-none"),
]


@pytest.fixture
async def silent(app, client, said):
    """Begin a request of which nothing is said until the test has the engine say it."""
    begun = []

    async def go(path, body, **kwargs):
        wire = Wire(kwargs.pop("app", app), path, body, **kwargs)
        begun.append((wire, wire.start()))
        await until(lambda: client.n_open == len(begun))
        return begun[-1]

    yield go
    for _, task in begun:
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.parametrize(("path", "body", "ping"), DIALECTS)
async def test_a_silent_stream_has_a_ping_every_ten_seconds(
    path, body, ping, silent, said, clock, app, client
):
    wire, task = await silent(path, body)
    await clock.pass_s(9)
    assert not wire.sent, "the status waits for the first event"
    await clock.pass_s(1)
    await clock.pass_s(10)
    assert wire.body == 2 * ping
    assert wire.status == (200 if ping else None)
    said.say("Hello", None)
    await task
    rest = wire.body.removeprefix(2 * ping)
    client.script = says("Hello")
    unpinged = Wire(app, path, body)
    await unpinged.run()
    assert rest.count(b"\n") == unpinged.body.count(b"\n"), "the answer is the same as without"
    assert b"Hello" in rest
    assert ping == b"" or ping not in rest


async def test_a_stream_that_speaks_has_none(silent, said, clock):
    wire, task = await silent(CHAT, TURN)
    for word in "abcd":
        await clock.pass_s(6)
        said.say(word)
        await until(lambda word=word: f'"{word}"'.encode() in wire.body)
    said.say(None)
    await task
    assert COMMENT not in wire.body


async def test_a_stream_that_falls_silent_has_one(silent, said, clock):
    wire, _ = await silent(CHAT, TURN)
    said.say("a")
    await until(lambda: wire.writes)
    await clock.pass_s(10)
    assert wire.writes[-1] == COMMENT


@pytest.mark.parametrize(
    ("setting", "field", "after_s"),
    [(10, 3, 3), (0, None, None), (10, 0, None), (10, -1, None), (0, 5, 5), (2, None, 2)],
)
async def test_settings_and_requests_say_how_long_it_may_be_silent(
    setting, field, after_s, silent, clock, make_app
):
    body = TEXT if field is None else TEXT | {"sse_ping_interval": field}
    wire, _ = await silent("/completion", body, app=make_app(sse_ping_interval=setting))
    assert "x-cobali-ignored-fields" not in dict(wire.sent[0]["headers"] if wire.sent else ())
    await clock.pass_s((after_s or 4000) - 0.5)
    assert not wire.sent
    await clock.pass_s(0.5)
    assert wire.writes == ([COMMENT] if after_s else [])


async def test_an_interval_out_of_range_is_named(post):
    wire = await post(CHAT, TURN | {"sse_ping_interval": 4000})
    assert wire.status == 400
    assert wire.json["error"]["param"] == "sse_ping_interval"


async def test_an_error_after_a_ping_is_told_in_the_stream(silent, clock, client, app):
    held = asyncio.Event()
    client.script = lambda _: [held, QueueFullError("requests", 1, 1.0)]
    wire, task = await silent(CHAT, TURN)
    await clock.pass_s(10)
    held.set()
    await task
    assert wire.status == 200
    _, error, done = wire.body.decode().split("\n\n")[:-1]
    assert '"code":"queue_full"' in error
    assert done == "data: [DONE]"
    client.script = ends_with(QueueFullError("requests", 1, 1.0))
    early = await Wire(app, CHAT, TURN).run()
    assert early.status == 429, "an error before it has its status"


async def test_a_response_that_fails_behind_pings_alone_has_begun_before(client, openai, clock):
    """Else the client's own library has nothing that it could say failed."""
    held = asyncio.Event()

    async def read():
        async with openai.responses.stream(model="fake", input="hi") as stream:
            return [event async for event in stream]

    client.script = lambda _: [held, QueueFullError("requests", 1, 1.0)]
    reading = asyncio.ensure_future(read())
    await until(lambda: client.n_open)
    await clock.pass_s(10)
    held.set()
    events = await reading
    assert [event.type.removeprefix("response.") for event in events] == ["created", "in_progress", "failed"]
    assert [event.sequence_number for event in events] == [0, 1, 2]
    assert events[-1].response.error.code == "queue_full"


async def test_nothing_is_pinged_at_a_reader_who_is_slow(silent, said, clock):
    wire, _ = await silent(CHAT, TURN)
    wire.may_write.clear()
    said.say("a")
    await until(lambda: wire.writes)
    await clock.pass_s(100)
    assert len(wire.writes) == 1
    wire.may_write.set()
    await settle()
    assert COMMENT not in wire.body, "there was no silence"


async def test_a_client_that_leaves_between_pings_ends_its_request(silent, clock, client):
    wire, task = await silent(CHAT, TURN)
    await clock.pass_s(10)
    wire.hang_up()
    await task
    assert len(client.cancelled) == 1


async def test_a_ping_is_no_event_of_a_resumable_stream(silent, said, clock, app):
    wire, task = await silent(CHAT, TURN | {"resumable": True})
    await clock.pass_s(10)
    assert wire.body == COMMENT
    said.say("a", "b", None)
    await task
    events = wire.body.removeprefix(COMMENT).split(b"\n\n")[:-1]
    assert [event.split(b"\n")[0] for event in events] == [b"id: %d" % (i + 1) for i in range(len(events))]
    again = Wire(app, f"/v1/streams/{wire.headers['x-cobali-stream']}?after=0", method="GET")
    await again.run()
    assert again.body == wire.body.removeprefix(COMMENT), "who reads on gets the answer alone"
