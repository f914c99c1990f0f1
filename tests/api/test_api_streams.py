"""Streams in time: disconnects, slow readers, merging, gaps, many at once."""

import asyncio

import pytest
from fake_client import ASK, CHAT, Wire, ends_with, says, stats
from structlog.testing import capture_logs

from cobali_ray.core.request.events import Delta, End
from cobali_ray.errors import DeadlineExceededError, EventsLostError
from tests.waiting import until


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("deltas", [(), ("Hello",)], ids=["queued", "running"])
async def test_a_client_that_leaves_cancels_its_requests(app, client, said, deltas, stream, n):
    said.say(*deltas)
    wire = Wire(app, CHAT, ASK | {"stream": stream, "n": n})
    with capture_logs() as logs:
        task = wire.start()
        await until(lambda: client.n_open == n and (not deltas or not stream or wire.writes))
        wire.hang_up()
        await task
    assert sorted(client.cancelled) == sorted(request.request_id for request in client.requests)
    assert client.n_open == 0
    line = logs[-1]
    assert line["cancelled"]
    assert line["status"] == (200 if stream and deltas else 499)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", ASK | {"max_tokens": 40}),
        ("/api/chat", ASK),
        ("/api/generate", {"prompt": "hi"}),
        ("/completion", {"prompt": "a"}),
    ],
)
async def test_in_every_api_a_client_that_leaves_frees_what_it_held(app, client, said, path, body, stream):
    said.say("Hello")
    wire = Wire(app, path, body | {"stream": stream})
    task = wire.start()
    await until(lambda: client.n_open == 1 and (not stream or wire.writes))
    wire.hang_up()
    await task
    assert (client.n_open, len(client.cancelled)) == (0, 1)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_cancels_the_handler_cancels_the_requests(app, client, said, stream, n):
    said.say("Hello")
    task = Wire(app, CHAT, ASK | {"stream": stream, "n": n}).start()
    await until(lambda: client.n_open == n)
    task.cancel()
    with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        await task
    assert len(client.cancelled) == n
    assert logs[-1]["cancelled"]


async def test_a_broken_connection_cancels_the_request(app, client):
    client.script = says(*"abcdefgh")
    wire = Wire(app, CHAT, ASK | {"stream": True})

    async def broken(message):
        if message["type"] == "http.response.body":
            raise OSError
        wire.sent.append(message)

    wire.send = broken
    with capture_logs() as logs:
        await wire.run()
    assert len(client.cancelled) == 1
    assert [line["event"] for line in logs] == ["http_request"]
    assert logs[-1]["cancelled"]


@pytest.mark.parametrize("path", [CHAT, "/debug/stream"])
async def test_a_stream_that_cannot_be_sent_sends_nothing_more(app, client, path):
    client.script = says(*"abcdefgh")
    wire = Wire(app, path, ASK | {"stream": True}, method="POST" if path == CHAT else "GET")

    async def fails(message):
        wire.sent.append(message)
        if message.get("body"):
            raise RuntimeError("the server is broken")

    wire.send = fails
    with pytest.raises(RuntimeError, match="is broken"):
        await wire.run()
    assert [message["type"] for message in wire.sent] == ["http.response.start", "http.response.body"]


async def test_one_failing_choice_cancels_the_others(app, client):
    def script(request):
        if request.request_id.endswith("-1"):
            yield EventsLostError()
        yield asyncio.Event()

    client.script = script
    wire = await Wire(app, CHAT, ASK | {"n": 3}).run()
    assert wire.status == 500
    assert sorted(rid[-2:] for rid in client.cancelled) == ["-0", "-2"]
    assert client.n_open == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DeadlineExceededError(1.0), "deadline_exceeded"),
        (RuntimeError("secret"), "internal_error"),
        (EventsLostError(), "events_lost"),
    ],
)
async def test_a_failure_in_mid_stream_is_an_event_and_a_clean_end(app, client, error, code):
    client.script = (
        ends_with(error, "Hello")
        if isinstance(error, DeadlineExceededError)
        else lambda request: [[Delta(request.request_id, "Hello", (1,))], error]
    )
    wire = await Wire(app, CHAT, ASK | {"stream": True}).run()
    assert (wire.status, wire.events[-2]["error"]["code"], wire.events[-1]) == (200, code, "[DONE]")
    assert wire.sent[-1]["more_body"] is False
    assert b"secret" not in wire.body


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stream_without_an_end_event_is_our_fault(app, client, stream):
    client.script = lambda request: [[Delta(request.request_id, "Hello", (1,))]]
    wire = await Wire(app, CHAT, ASK | {"stream": stream}).run()
    assert b'"code":"internal_error"' in wire.body


async def test_everything_pending_is_one_write_and_one_chunk(app, client):
    def script(request):
        rid = request.request_id
        yield [Delta(rid, "Hel", (1,))]
        yield [Delta(rid, "lo", (1,)), Delta(rid, " wor", (1,)), Delta(rid, "ld", (1,))]
        yield [Delta(rid, "!", (1,)), End(rid, "length", None, stats(request, 5))]

    client.script = script
    wire = await Wire(app, CHAT, ASK | {"stream": True}).run()
    assert len(wire.writes) == 3
    assert wire.writes[0].count(b"data: ") == 2, "role and first text go out together"
    assert wire.writes[1].count(b"data: ") == 1
    assert b'"content":"lo world"' in wire.writes[1]
    assert wire.writes[2].endswith(b"data: [DONE]\n\n")


async def test_an_answer_without_text_still_says_whose_turn_it_was(app, client):
    client.script = says()
    wire = await Wire(app, CHAT, ASK | {"stream": True}).run()
    assert wire.events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert wire.events[1]["choices"][0]["finish_reason"] == "stop"
    assert wire.events[2] == "[DONE]"


async def test_held_back_text_writes_nothing(app, client):
    client.script = says("", "", "Hello")
    wire = await Wire(app, CHAT, ASK | {"stream": True}).run()
    assert len(wire.writes) == 2
    assert wire.events[1]["choices"][0]["delta"]["content"] == "Hello"


async def test_a_slow_reader_holds_the_engines_stream(app, client):
    client.script = says(*"abcdefgh")
    drawn = []
    script = client.script
    client.script = lambda request: (drawn.append(step) or step for step in script(request))
    wire = Wire(app, CHAT, ASK | {"stream": True})
    wire.may_write.clear()
    task = wire.start()
    await wire.got_body.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(drawn) == 1, "nothing is fetched that cannot be sent"
    wire.may_write.set()
    await task
    assert len(drawn) == 9


async def test_no_token_waits_for_the_next(app, clock):
    await Wire(app, CHAT, ASK | {"stream": True}).run()
    assert clock.slept == [10], "nothing but the keep-alive looks at the clock"


async def test_the_default_deadline_reaches_the_engine(make_app, client):
    app = make_app(default_timeout_s=7.0, default_max_tokens=5)
    await Wire(app, CHAT, ASK).run()
    await Wire(app, CHAT, ASK | {"timeout_s": 2, "max_tokens": 3}).run()
    assert [(r.timeout_s, r.max_tokens) for r in client.requests] == [(7.0, 5), (2, 3)]


async def test_eight_streams_at_once_do_not_mix(app, client):
    start = asyncio.Event()

    def script(request):
        yield start
        yield from says(*(f"{request.sampling.seed}." for _ in range(20)))(request)

    client.script = script
    wires = [Wire(app, CHAT, ASK | {"stream": True, "seed": seed}) for seed in range(8)]
    tasks = [wire.start() for wire in wires]
    await until(lambda: client.n_open == 8)
    start.set()
    await asyncio.gather(*tasks)
    for seed, wire in enumerate(wires):
        deltas = [event["choices"][0]["delta"] for event in wire.events[:-1]]
        assert "".join(delta.get("content", "") for delta in deltas) == f"{seed}." * 20
