"""Responses that are kept, that go on in the background, and conversations: by the real `openai` client."""

import asyncio
import itertools
import json

import pytest
from fake_client import Said, ends_with, says
from openai import APIStatusError, BadRequestError, NotFoundError, RateLimitError
from response_rules import events_of
from store_server import Server

from cobali_ray.core.request.events import Delta
from cobali_ray.errors import EngineDiedError, PromptTooLongError, QueueFullError, StoreFailedError
from cobali_ray.store import responses
from tests.waiting import until

PATH = "/v1/responses"
USER = {"role": "user", "content": "hi"}


def user(text):
    return {"role": "user", "content": text}


def model(text):
    return {"role": "assistant", "content": text}


def create(server, **fields):
    return server.openai.responses.create(model="fake", **fields)


async def ended(server, response_id, openai=None):
    """Wait until a response is over."""

    async def over():
        one = await (openai or server.openai).responses.retrieve(response_id)
        return one if one.status not in {"queued", "in_progress"} else None

    return await until(over)


# -- kept


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_kept_and_gone_on_from(server, stream):
    if stream:
        events = [event async for event in await create(server, input="hi", stream=True)]
        first = events[-1].response
    else:
        first = await create(server, input="hi")
    assert first.model_extra["store"] is True
    assert await server.openai.responses.retrieve(first.id) == first
    client = server.client
    client.script = says("fine")
    second = await create(
        server, input="how?", instructions="Be.", previous_response_id=first.id, metadata={"a": "b"}
    )
    assert client.messages[-1] == [
        {"role": "system", "content": "Be."}, user("hi"), model("Hello world!"), user("how?"),
    ]  # fmt: skip
    assert (second.previous_response_id, second.metadata) == (first.id, {"a": "b"})
    third = await create(server, input=[user("so?")], previous_response_id=second.id)
    texts = ["hi", "Hello world!", "how?", "fine", "so?"]
    assert [one["content"] for one in client.messages[-1]] == texts, "instructions are not carried over"
    listed = [item async for item in server.openai.responses.input_items.list(third.id, limit=2)]
    assert [one.content[0].text for one in listed] == texts[::-1], "page by page, the last first"
    page = await server.openai.responses.input_items.list(third.id, order="asc", limit=3)
    assert ([one.content[0].text for one in page.data], page.has_more) == (texts[:3], True)
    assert [one.role for one in page.data] == ["user", "assistant", "user"]
    await server.openai.responses.delete(second.id)
    with pytest.raises(NotFoundError):
        await server.openai.responses.retrieve(second.id)
    for gone in (second.id, third.id):  # the chain of the third one has a hole
        with pytest.raises(BadRequestError, match=second.id) as caught:
            await create(server, input="x", previous_response_id=gone)
        assert caught.value.param == "previous_response_id"


async def test_tools_and_reasoning_of_earlier_turns_are_read_again(server):
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    server.client.script = says('<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>')
    first = await create(server, input="hi", tools=[tool])
    (call,) = first.output
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "seen"}
    server.client.script = says("done")
    await create(server, input=[answer], previous_response_id=first.id, tools=[tool])
    _, turn, result = server.client.messages[-1]
    assert turn["tool_calls"][0]["function"]["name"] == "look"
    assert result == {"role": "tool", "content": "seen", "tool_call_id": call.call_id, "name": "look"}


async def test_what_a_stream_told_as_a_call_and_was_none_is_not_gone_on_from(server):
    server.client.script = says('<tool_call>\n{"name": "f", "arguments": {"a"', ": oops")
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    wire = await server.wire(PATH, {"input": "hi", "tools": tools, "stream": True})
    told = events_of(wire.body)[-1]["response"]
    assert [one["type"] for one in told["output"]] == ["function_call", "message"]
    kept = await server.openai.responses.retrieve(told["id"])
    assert [one.type for one in kept.output] == ["message"]
    await create(server, input="and?", previous_response_id=told["id"])
    assert [sorted(one) for one in server.client.messages[-1]] == [["content", "role"]] * 3


async def test_an_input_may_name_items_that_are_kept(server):
    first = await create(server, input="hi")
    chat = await server.openai.conversations.create(items=[user("before")])
    (said,) = (await server.openai.conversations.items.list(chat.id)).data
    names = [{"type": "item_reference", "id": one} for one in (said.id, first.output[0].id)]
    second = await create(server, input=[{"id": said.id}, names[1], USER])
    assert [one["content"] for one in server.client.messages[-1]] == ["before", "Hello world!", "hi"]
    listed = await server.openai.responses.input_items.list(second.id, order="asc")
    assert [one.content[0].text for one in listed.data] == ["before", "Hello world!", "hi"]
    await server.openai.responses.delete(first.id)
    for name in (names[1], {"type": "item_reference", "id": "msg_1"}):
        with pytest.raises(BadRequestError, match=name["id"]) as caught:
            await create(server, input=[USER, name])
        assert caught.value.param == "input[1].id"


async def test_what_is_not_to_be_kept_is_not(server):
    response = await create(server, input="hi", store=False)
    with pytest.raises(NotFoundError):
        await server.openai.responses.retrieve(response.id)
    batch = await server.batch([line()], endpoint=PATH)
    server.run()
    await server.until(batch, "completed")
    assert server.n_rows("responses") == 0, "a line of a batch is kept there"


def line(**fields):
    return {"custom_id": "a", "method": "POST", "url": PATH, "body": {"input": "hi"} | fields}


async def test_a_line_of_a_batch_has_no_background(server):
    server.run()
    done = await server.until(await server.batch([line(background=True)], endpoint=PATH), "completed")
    error = (await server.lines(done.error_file_id))["a"]["response"]["body"]["error"]
    assert error["param"] == "background"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_kept_is_answered_and_says_so(server, stream, monkeypatch):
    def fail(*args, **kwargs):
        raise StoreFailedError("full")

    monkeypatch.setattr(responses, "keep", fail)
    wire = await server.wire(PATH, {"input": "hi", "stream": stream})
    body = events_of(wire.body)[-1]["response"] if stream else wire.json
    assert (wire.status, body["status"], body["store"]) == (200, "completed", False)
    assert body["output"][0]["content"][0]["text"] == "Hello world!"
    if stream:
        numbers = [event["sequence_number"] for event in events_of(wire.body)]
        assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("server", [{"stored_count": 2, "stored_gib": 20_000 / (1 << 30)}], indirect=True)
async def test_the_oldest_make_room_and_files_do_not(server):
    one, two = [await create(server, input="hi") for _ in range(2)]
    server.clock.advance(1)
    three = await create(server, input="hi", previous_response_id=one.id)
    with pytest.raises(NotFoundError):
        await server.openai.responses.retrieve(two.id)
    assert await server.openai.responses.retrieve(one.id), "somebody went on from it"
    server.clock.advance(1)
    four, five = [await create(server, input="x" * 15_000) for _ in range(2)]
    for gone in (one, three, four):
        with pytest.raises(NotFoundError):
            await server.openai.responses.retrieve(gone.id)
    await server.openai.responses.delete(five.id)
    await server.upload([line(input="x" * 15_000)])
    wire = await server.wire(PATH, {"input": "x" * 5_000})
    assert (wire.status, wire.json["store"]) == (200, False)
    wire = await server.wire(PATH, {"input": "x" * 5_000, "background": True})
    assert (wire.status, wire.json["error"]["code"]) == (413, "store_full")


async def test_what_is_old_is_deleted_and_not_what_somebody_goes_on_from(server):
    chat, kept = [await server.openai.conversations.create() for _ in range(2)]
    one = await create(server, input="hi", conversation=kept.id)
    two = await create(server, input="hi")
    server.clock.advance(20 * 24 * 3600)
    three = await create(server, input="hi", previous_response_id=one.id)
    server.clock.advance(20 * 24 * 3600)
    server.run()
    await until(lambda: server.n_rows("responses") == 2)
    assert [(await server.openai.responses.retrieve(x.id)).id for x in (one, three)] == [one.id, three.id]
    with pytest.raises(NotFoundError):
        await server.openai.responses.retrieve(two.id)
    with pytest.raises(NotFoundError):
        await server.openai.conversations.retrieve(chat.id)
    assert await server.openai.conversations.retrieve(kept.id)
    assert await create(server, input="and?", previous_response_id=three.id)


@pytest.mark.parametrize("server", [{"api_keys": ("a", "b")}], indirect=True)
async def test_keys_keep_apart(server):
    server.run()
    alice, bob = server.openai_as("a"), server.openai_as("b")
    kept = await alice.responses.create(model="fake", input="hi")
    chat = await alice.conversations.create(items=[USER])
    later = await alice.responses.create(model="fake", input="hi", background=True)
    await ended(server, later.id, alice)
    for ask in (
        bob.responses.retrieve(kept.id),
        bob.responses.delete(kept.id),
        bob.responses.input_items.list(kept.id),
        bob.responses.cancel(later.id),
        bob.responses.retrieve(later.id, stream=True),
        bob.conversations.retrieve(chat.id),
        bob.conversations.delete(chat.id),
        bob.conversations.update(chat.id, metadata={}),
        bob.conversations.items.list(chat.id),
        bob.conversations.items.create(chat.id, items=[USER]),
    ):
        with pytest.raises(NotFoundError):
            await ask
    for more in ({"previous_response_id": kept.id}, {"conversation": chat.id}):
        with pytest.raises(BadRequestError):
            await bob.responses.create(model="fake", input="hi", **more)
    assert (await alice.responses.retrieve(kept.id)).id == kept.id


async def test_without_a_folder_what_needs_one_says_what_to_set(post, get, app):
    for fields in ({"background": True}, {"conversation": "conv_1"}, {"previous_response_id": "resp_1"}):
        wire = await post(PATH, {"input": "hi"} | fields)
        assert (wire.status, "data_dir" in wire.json["error"]["message"]) == (501, True)
    for path in (f"{PATH}/resp_1", f"{PATH}/resp_1/input_items", "/v1/conversations/conv_1"):
        assert (await get(path)).status == 501
    for path in (f"{PATH}/resp_1/cancel", "/v1/conversations"):
        assert (await post(path, {})).status == 501
    wire = await post(PATH, {"input": "hi", "store": True})
    assert (wire.status, wire.json["store"]) == (200, False)
    assert wire.headers["x-cobali-ignored-fields"] == "store"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True, "store": False}, "store"),
        ({"conversation": "conv_1", "store": False}, "store"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": 5}}, "conversation"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"previous_response_id": ""}, "previous_response_id"),
        ({"background": "yes"}, "background"),
    ],
)
async def test_what_does_not_go_together_is_refused(server, fields, param):
    wire = await server.wire(PATH, {"input": "hi"} | fields)
    assert (wire.status, wire.json["error"]["param"]) == (400, param)
    assert server.client.requests == []


async def test_a_conversation_goes_on_behind_a_call_that_was_cut_short(server):
    server.client.script = says('<tool_call>\n{"name": "look", "arguments": {"at": "the s', reason="length")
    tools = [{"type": "function", "name": "look"}]
    cut = await create(server, input="hi", tools=tools)
    (call,) = cut.output
    assert (cut.status, call.status, call.arguments) == ("incomplete", "incomplete", '{"at": "the s')
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "cut short"}
    await create(server, input=[result], tools=tools, previous_response_id=cut.id)
    (told,) = server.client.messages[-1][1]["tool_calls"]
    assert told["function"] == {"name": "look", "arguments": {"at": "the s"}}


# -- in the background


async def test_a_background_response_is_queued_and_found_whole(server):
    server.client.script = said = Said()
    first = await create(server, input="hi", background=True)
    assert (first.status, first.background, first.output) == ("queued", True, [])
    server.clock.advance(60)
    server.run()
    await until(lambda: server.client.requests)
    assert server.client.requests[0].request_id == first.id
    assert (await server.openai.responses.retrieve(first.id)).status == "in_progress"
    with pytest.raises(BadRequestError, match="in_progress"):
        await create(server, input="x", previous_response_id=first.id)
    with pytest.raises(BadRequestError) as caught:
        await server.openai.responses.retrieve(first.id, stream=True)
    assert caught.value.param == "stream"
    said.say("one ", "two", None)
    done = await ended(server, first.id)
    assert (done.status, done.output_text, done.created_at) == ("completed", "one two", first.created_at)
    assert done.completed_at == first.created_at + 60
    assert done.usage.output_tokens == 2
    assert server.n_rows("response_events") == 0, "nobody can ask for them"
    assert (await server.openai.responses.cancel(first.id)) == done, "too late, and no error"
    server.client.script = says("three")
    second = await create(server, input="x", previous_response_id=first.id)
    assert [one["content"] for one in server.client.messages[-1]] == ["hi", "one two", "x"]
    with pytest.raises(BadRequestError, match="not in the background"):
        await server.openai.responses.cancel(second.id)


async def test_a_stream_in_the_background_goes_on_after_its_store_was_away(server, monkeypatch):
    server.client.script = said = Said()
    server.run()
    live = server.stream(PATH, {"input": "hi", "background": True, "stream": True})
    said.say("one ")
    await until(lambda: b"one " in live.body)
    look, n_looks = responses.stream, itertools.count()

    def away(*args):
        if next(n_looks) < 3:
            raise StoreFailedError("away")
        return look(*args)

    monkeypatch.setattr(responses, "stream", away)
    said.say("two", None)
    ticking = asyncio.ensure_future(until(lambda: server.clock.advance(1)))
    await live.task
    ticking.cancel()
    assert events_of(live.body)[-1]["type"] == "response.completed"
    assert next(n_looks) > 3


async def test_a_stream_in_the_background_is_read_on_from_any_event(server):
    server.client.script = said = Said()
    server.run()
    ask = {"input": "hi", "background": True, "stream": True}
    live = server.stream(PATH, ask)
    await until(lambda: server.client.requests)
    response_id = server.client.requests[0].request_id
    said.say("one ", "two ")
    await until(lambda: b"two " in live.body)
    seen = events_of(live.body)
    live.hang_up()
    await live.task
    assert [one["type"] for one in seen[:3]] == [
        f"response.{x}" for x in ("created", "queued", "in_progress")
    ]
    said.say("three", None)
    await ended(server, response_id)
    assert server.client.cancelled == [], "nobody's leaving ends it"
    stream = await server.openai.responses.retrieve(response_id, stream=True)
    whole = [event async for event in stream]
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    assert whole[-1].type == "response.completed"
    assert whole[-1].response.output_text == "one two three"
    assert [one["type"] for one in seen] == [one.type for one in whole[: len(seen)]]
    for after in range(len(whole)):
        again = await server.openai.responses.retrieve(response_id, stream=True, starting_after=after)
        assert [event async for event in again] == whole[after + 1 :]
    assert not server.app.state.batches._background._responses.bells._bells, "nobody waits for more"


@pytest.mark.parametrize("streams", [False, True])
async def test_after_a_kill_an_answer_goes_on_behind_what_was_read(server, streams):
    server.client.script = said = Said()
    server.run()
    ask = {"input": "hi", "background": True, "stream": streams, "seed": 7}
    response_id = (await server.later(PATH, ask))["id"]
    await until(lambda: server.client.requests)
    said.say("one ", "two ")
    await until(lambda: server.n_rows("response_events") >= 2 + streams)
    seen = b"".join(row.data for row in server.store.now(responses.events, response_id, 0))
    await server.kill()
    server.client = server.client.__class__(lambda request: iter(goes_on(request)))
    await server.start()
    server.run()
    done = await ended(server, response_id)
    assert (done.status, done.output_text) == ("completed", "one two three")
    request, moved = server.client.requests
    assert (request.sent_tokens, request.sampling.seed) == ((1, 1), 7)
    assert moved.sent_tokens == (1, 1, 2), "also at the engine that takes its place"
    if streams:
        events = [e async for e in await server.openai.responses.retrieve(response_id, stream=True)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.type for event in events].count("response.in_progress") == 1
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "one two three"
        assert events[-1].type == "response.completed"
        begun = events_of(seen)
        assert [one["type"] for one in begun] == [one.type for one in events[: len(begun)]]


def goes_on(request):
    """Say a word more; then the engine dies, and the next one has no more to say."""
    if not request.attempt:
        yield [Delta(request.request_id, "three", (2,))]
        yield EngineDiedError()
    yield from says()(request)


async def test_who_kills_every_process_is_given_up(server):
    response_id = (await server.later(PATH, {"input": "hi", "background": True, "stream": True}))["id"]
    server.client.script = lambda request: iter([asyncio.Event()])
    for n in range(6):
        server.run()
        if n < 5:
            await until(lambda n=n: len(server.client.requests) == n + 1)
            await server.kill()
            server.client.apps.clear()
            await server.start()
    done = await ended(server, response_id)
    assert (done.status, done.error.code) == ("failed", "engine_died")
    ids = {request.request_id for request in server.client.requests}
    assert len(ids) == 5, "an engine may still have the one of a process that was killed"
    assert {one.partition("~")[0] for one in ids} == {response_id}
    events = [e async for e in await server.openai.responses.retrieve(response_id, stream=True)]
    assert events[-1].type == "response.failed"


async def test_a_stop_waits_for_no_reader_and_the_answer_goes_on_afterwards(server):
    server.client.script = said = Said()
    said.say("one ")
    server.run()
    live = server.stream(PATH, {"input": "hi", "background": True, "stream": True})
    await until(lambda: b"one " in live.body)
    await server.app.state.batches.close()
    await live.task
    assert live.sent[-1]["more_body"] is False
    assert events_of(live.body)[-1]["type"] == "response.output_text.delta", "it has no end yet"
    await server.stop()
    server.client = server.client.__class__(lambda request: iter(goes_on(request)))
    await server.start()
    server.run()
    assert (await ended(server, events_of(live.body)[0]["response"]["id"])).output_text == "one three"


@pytest.mark.parametrize("deletes", [False, True])
async def test_a_cancelled_response_frees_its_slot_and_ends_its_stream(server, deletes):
    server.client.script = Said()
    server.client.script.say("one ")
    server.run()
    live = server.stream(PATH, {"input": "hi", "background": True, "stream": True})
    await until(lambda: b"one " in live.body)
    response_id = server.client.requests[0].request_id
    if deletes:
        await server.openai.responses.delete(response_id)
    else:
        assert (await server.openai.responses.cancel(response_id)).status == "cancelled"
    await live.task
    await until(lambda: server.client.n_open == 0)
    if not deletes:
        last = events_of(live.body)[-1]
        assert (last["type"], last["response"]["status"]) == ("response.failed", "cancelled")
        assert (await server.openai.responses.retrieve(response_id)).status == "cancelled"
        assert (await server.openai.responses.cancel(response_id)).status == "cancelled"
    else:
        assert server.n_rows("response_events") == 0


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        pytest.param(PromptTooLongError(9, 9, 9, True), "failed", "context_length_exceeded", id="its-fault"),
        pytest.param(EngineDiedError(), "failed", "engine_died", id="engine-dies"),
        pytest.param(QueueFullError("requests", 1, 3.0), "completed", None, id="full"),
    ],
)
async def test_what_a_background_response_fails_on(server, error, status, code):
    server.run()
    server.client.script = ends_with(error)
    response_id = (await server.later(PATH, {"input": "hi", "background": True}))["id"]
    if code is None:
        await until(lambda: server.clock.advance(1) or len(server.client.requests) > 3)
        assert (await server.openai.responses.retrieve(response_id)).status == "in_progress"
        server.client.script = says("at", " last")
    ticking = asyncio.ensure_future(until(lambda: server.clock.advance(1)))
    done = await ended(server, response_id)
    ticking.cancel()
    assert (done.status, done.error and done.error.code) == (status, code)


async def test_a_few_of_a_key_are_computed_at_a_time(server):
    server.client.script = said = Said()
    made = [(await server.later(PATH, {"input": "hi", "background": True}))["id"] for _ in range(10)]
    server.run()
    await until(lambda: server.client.n_open == 8)
    assert sorted(one.request_id for one in server.client.requests) == sorted(made[:8]), "the oldest first"
    said.say("x", None)
    ticking = asyncio.ensure_future(until(lambda: server.clock.advance(1)))
    for one in made:
        assert (await ended(server, one)).status == "completed"
    ticking.cancel()


async def test_background_responses_take_tokens_of_their_key_and_wait_for_them(tmp_path, judges):
    (keys := tmp_path / "keys.yaml").write_text(
        "keys:\n  a: {key: a, tokens_per_minute: 600}\n  b: {key: b}\n"
    )
    server = Server(tmp_path / "store", judges)
    server.settings = {"api_keys_file": keys}
    await server.start()
    alice, bob = server.openai_as("a"), server.openai_as("b")
    server.client.script = says(*"x" * 200)
    *begun, last = [await alice.responses.create(model="fake", input="hi", background=True) for _ in range(9)]
    server.run()
    for one in begun:
        assert (await ended(server, one.id, alice)).usage.output_tokens == 200
    with pytest.raises(RateLimitError):
        await alice.responses.create(model="fake", input="hi")
    server.pass_time(60)
    other = await bob.responses.create(model="fake", input="hi", background=True)
    assert (await ended(server, other.id, bob)).status == "completed"
    assert (await alice.responses.retrieve(last.id)).status == "queued", "1,600 tokens take longer"
    server.pass_time(60)
    assert (await ended(server, last.id, alice)).status == "completed"
    await server.stop()


@pytest.mark.parametrize("server", [{"api_keys": ("a", "b")}], indirect=True)
async def test_a_refused_background_response_holds_up_no_other_key(server):
    def script(request):
        full = request.tenant == "key-1"
        yield from (ends_with(QueueFullError("requests", 1, 60.0)) if full else says("hi"))(request)

    server.client.script = script
    alice, bob = server.openai_as("a"), server.openai_as("b")
    for _ in range(9):
        await alice.responses.create(model="fake", input="hi", background=True)
    server.run()
    await until(lambda: len(server.client.requests) >= 8)
    other = await bob.responses.create(model="fake", input="hi", background=True)
    assert (await ended(server, other.id, bob)).status == "completed"
    n = len(server.client.requests)
    server.pass_time(11)
    await until(lambda: len(server.client.requests) > n)


async def test_what_was_refused_is_behind_what_was_not_and_is_not_counted_as_begun(server):
    def script(request):
        full = request.max_tokens == 5
        yield from (ends_with(QueueFullError("requests", 1, 60.0)) if full else says("hi"))(request)

    server.client.script = script
    for _ in range(8):
        await create(server, input="hi", background=True, max_output_tokens=5)
    last = await create(server, input="hi", background=True)
    server.run()
    await until(lambda: len(server.client.requests) >= 8)

    async def answered_in_time():
        server.pass_time(1)  # as often as it takes: the pause begins when the eighth is refused
        return (await server.openai.responses.retrieve(last.id)).status == "completed"

    await until(answered_in_time)

    def begun(db):
        return [
            row["n_begun"] for row in db.execute("SELECT n_begun FROM responses WHERE status = 'in_progress'")
        ]

    await until(lambda: max(server.store.now(begun), default=0) <= 0)


# -- conversations


async def test_a_conversation_keeps_what_is_said(server):
    chats, items = server.openai.conversations, server.openai.conversations.items
    chat = await chats.create(metadata={"topic": "demo"}, items=[USER | {"content": "first"}])
    assert (chat.object, chat.metadata) == ("conversation", {"topic": "demo"})
    assert (await chats.update(chat.id, metadata={"topic": "x"})).metadata == {"topic": "x"}
    assert await chats.retrieve(chat.id) == await chats.update(chat.id, metadata={"topic": "x"})
    server.client.script = says("second")
    answer = await create(server, input="and?", conversation=chat.id)
    assert answer.conversation.id == chat.id
    assert [one["content"] for one in server.client.messages[-1]] == ["first", "and?"]
    await items.create(chat.id, items=[user("third"), {"role": "assistant", "content": "fourth"}])
    server.run()
    later = await create(server, input="fifth", conversation={"id": chat.id}, background=True)
    await ended(server, later.id)
    texts = ["first", "and?", "second", "third", "fourth", "fifth", "second"]
    assert [one["content"] for one in server.client.messages[-1]] == texts[:-1]
    listed = [one async for one in items.list(chat.id, order="asc", limit=3)]
    assert [one.content[0].text for one in listed] == texts
    assert [one.content[0].text async for one in items.list(chat.id, limit=2)] == texts[::-1]
    assert len({one.id for one in listed}) == len(listed)
    assert await items.retrieve(listed[2].id, conversation_id=chat.id) == listed[2]
    assert (await items.delete(listed[3].id, conversation_id=chat.id)).id == chat.id
    with pytest.raises(NotFoundError):
        await items.retrieve(listed[3].id, conversation_id=chat.id)
    read = [one async for one in server.openai.responses.input_items.list(answer.id, order="asc")]
    assert [one.content[0].text for one in read] == ["first", "and?"]
    assert (await chats.delete(chat.id)).deleted
    for ask in (chats.retrieve(chat.id), items.list(chat.id)):
        with pytest.raises(NotFoundError):
            await ask
    assert server.n_rows("items") == 0
    assert (await server.openai.responses.retrieve(answer.id)).output_text == "second", "which stays"


async def test_what_takes_the_place_of_a_deleted_item_is_not_gone_on_from(server):
    items = server.openai.conversations.items
    chat = await server.openai.conversations.create(items=[user("first"), user("second")])
    answer = await create(server, input="and?", conversation=chat.id)
    for one in [one async for one in items.list(chat.id)][:-1]:
        await items.delete(one.id, conversation_id=chat.id)
    await items.create(chat.id, items=[user("later")])
    await create(server, input="so?", previous_response_id=answer.id)
    assert [one["content"] for one in server.client.messages[-1]] == ["first", "and?", "Hello world!", "so?"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"items": [USER] * 21}, "items"),
        ("", {"items": [{"type": "web_search_call"}]}, "items[0].type"),
        ("", {"items": [{"role": "king", "content": "x"}]}, "items[0].role"),
        ("", {"metadata": {"a": "b" * 513}}, "metadata.a"),
        ("", {"items": [USER | {"x": json.loads("[" * 300 + "]" * 300)}]}, None),
        ("/conv_1/items", {}, "items"),
    ],
)
async def test_a_conversation_that_is_wrong_is_refused(server, path, body, param):
    wire = await server.wire(f"/v1/conversations{path}", body)
    assert (wire.status, wire.json["error"]["param"]) == (400, param)


@pytest.mark.parametrize("items", [5, "x", [1], [USER]])
async def test_items_are_no_part_of_what_changes_a_conversation(server, items):
    chat = await server.openai.conversations.create()
    body = {"metadata": {"topic": "demo"}, "items": items}
    wire = await server.wire(f"/v1/conversations/{chat.id}", body)
    assert (wire.status, wire.json["metadata"]) == (200, {"topic": "demo"})
    assert wire.headers["x-cobali-ignored-fields"] == "items"
    assert server.n_rows("items") == 0


async def test_a_conversation_whose_metadata_is_not_named_keeps_it(server):
    chat = await server.openai.conversations.create(metadata={"topic": "demo"})
    for body, metadata in (({}, {"topic": "demo"}), ({"metadata": None}, {})):
        wire = await server.wire(f"/v1/conversations/{chat.id}", body)
        assert (wire.status, wire.json["metadata"]) == (200, metadata)


@pytest.mark.parametrize("server", [{"stored_count": 1, "stored_gib": 10_000 / (1 << 30)}], indirect=True)
async def test_a_key_keeps_only_so_many_conversations(server):
    chat = await server.openai.conversations.create()
    for ask in (
        server.openai.conversations.create(),
        server.openai.conversations.items.create(chat.id, items=[user("x" * 10_000)]),
    ):
        with pytest.raises(APIStatusError) as caught:
            await ask
        assert (caught.value.status_code, caught.value.code) == (413, "store_full")
    assert (await server.openai.conversations.items.list(chat.id)).data == []


async def test_fields_of_items_that_are_null_are_kept_as_if_left_out(server):
    item = {"type": None, "status": None, "role": "user", "content": "hi"}
    response = (await server.wire(PATH, {"input": [item]})).json
    listed = (await server.wire(f"{PATH}/{response['id']}/input_items", method="GET")).json["data"]
    assert [(entry["type"], entry["status"]) for entry in listed] == [("message", "completed")]


@pytest.mark.parametrize("server", [{"max_body_bytes": 2048}], indirect=True)
async def test_an_item_counts_as_often_as_it_is_named(server):
    chat = await server.openai.conversations.create(items=[user("x" * 900)])
    (said,) = (await server.openai.conversations.items.list(chat.id)).data
    name = {"type": "item_reference", "id": said.id}
    await create(server, input=[name])
    with pytest.raises(BadRequestError, match="max_body_bytes"):
        await create(server, input=[name] * 3)


@pytest.mark.parametrize("server", [{"max_body_bytes": 2048}], indirect=True)
async def test_a_long_history_is_refused_by_name(server):
    first = await create(server, input="x" * 1900)
    with pytest.raises(BadRequestError, match="max_body_bytes"):
        await create(server, input="x" * 900, previous_response_id=first.id)
