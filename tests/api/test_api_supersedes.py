"""Autocompletion: a newer request of the same key, user and route ends the older one, if both ask for it."""

import asyncio

import pytest
from fake_client import Wire
from structlog.testing import capture_logs

from tests.waiting import until

TEXT = {"prompt": "def f(", "supersedes": True, "user": "editor"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def ask(app, client, clock, said):
    """Begin a request a second after the last one."""
    begun = []

    async def go(path, body, headers=(), app=app):
        clock.time_s += 1
        n = len(client.requests)
        wire = Wire(app, path, body, headers=headers)
        task = wire.start()
        begun.append(task)
        await until(lambda: len(client.requests) > n)
        return wire, task

    yield go
    for task in begun:
        task.cancel()
    await asyncio.wait(begun)


async def test_the_older_one_ends_and_says_why(ask, client):
    older, over = await ask("/v1/completions", TEXT)
    with capture_logs() as logs:
        _, newer = await ask("/v1/completions", TEXT)
        await over
    assert older.status == 409
    assert older.json["error"]["code"] == "superseded"
    assert "newer request" in older.json["error"]["message"]
    assert client.cancelled == [client.requests[0].request_id], "its slot is free"
    assert [line["error"] for line in logs if line["event"] == "http_request"] == ["superseded"]
    assert not newer.done()


async def test_a_stream_that_was_begun_ends_with_the_error(ask, said):
    older, over = await ask("/v1/completions", TEXT | {"stream": True})
    said.say("a")
    await until(lambda: older.writes)
    await ask("/v1/completions", TEXT | {"stream": True})
    await over
    assert older.status == 200
    *_, error, done = older.events
    assert error["error"]["code"] == "superseded"
    assert done == "[DONE]"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/completions", TEXT | {"user": "another"}, id="another-user"),
        pytest.param("/completion", TEXT, id="another-route"),
        pytest.param("/v1/completions", TEXT | {"supersedes": False}, id="it-does-not-ask"),
    ],
)
async def test_others_are_left_alone(path, body, ask, client):
    _, older = await ask("/v1/completions", TEXT)
    await ask(path, body)
    assert not older.done()
    assert client.cancelled == []


async def test_another_key_is_another_s(ask, make_app, client):
    app = make_app(api_keys=("one", "two"))
    _, older = await ask("/v1/completions", TEXT, [("x-api-key", "one")], app)
    await ask("/v1/completions", TEXT, [("x-api-key", "two")], app)
    assert not older.done()
    await ask("/v1/completions", TEXT, [("x-api-key", "one")], app)
    await older
    assert client.cancelled == [client.requests[0].request_id]


async def test_the_answers_of_one_request_do_not_end_each_other(ask, client):
    _, older = await ask("/v1/completions", TEXT | {"n": 3})
    await until(lambda: len(client.requests) == 3)
    assert not older.done()
    await ask("/v1/completions", TEXT)
    await older
    assert sorted(client.cancelled) == sorted(request.request_id for request in client.requests[:3])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/messages", CHAT | {"max_tokens": 9, "model": "fake"}, id="messages"),
        pytest.param("/v1/responses", {"input": "hi"}, id="responses"),
        pytest.param("/api/chat", CHAT | {"model": "fake", "stream": False}, id="ollama"),
        pytest.param("/v1/chat/completions", CHAT, id="chat"),
    ],
)
async def test_a_header_asks_where_an_api_has_no_field(path, body, ask):
    older, over = await ask(path, body, [("x-cobali-supersedes", "true")])
    await ask(path, body, [("x-cobali-supersedes", "true")])
    await over
    assert older.status == 409


async def test_a_response_of_another_user_is_left_alone(ask):
    asks = [("x-cobali-supersedes", "true")]
    _, older = await ask("/v1/responses", {"input": "hi", "user": "one"}, asks)
    await ask("/v1/responses", {"input": "hi", "user": "another"}, asks)
    assert not older.done()
    await ask("/v1/responses", {"input": "hi", "user": "one"}, asks)
    await older


async def test_a_header_that_says_neither_is_an_error(post):
    wire = await post("/v1/completions", {"prompt": "x"}, headers=[("x-cobali-supersedes", "yes")])
    assert wire.status == 400
    assert wire.json["error"]["param"] == "x-cobali-supersedes"
