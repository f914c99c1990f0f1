"""Files and batches over HTTP, through the real `openai` and `anthropic` clients."""

import asyncio
import json
import threading
import tracemalloc

import anthropic
import pytest
from fake_client import Wire, ends_with, says
from openai import BadRequestError, NotFoundError
from store_server import CHATS, Server, holding
from structlog.testing import capture_logs

from cobali_ray.api.routes import facts
from cobali_ray.errors import EngineDiedError, InternalError, QueueFullError
from cobali_ray.store.batches import WINDOW_S
from tests.waiting import until


def ask(custom_id, text="hi", **fields):
    body = {"model": "fake", "messages": [{"role": "user", "content": text}]} | fields
    return {"custom_id": custom_id, "method": "POST", "url": CHATS, "body": body}


async def test_a_batch_is_answered_line_by_line(server):
    server.run()
    batch = await server.batch([ask(f"r{i}", f"text {i}") for i in range(7)], metadata={"night": "1"})
    assert (batch.status, batch.request_counts.total) == ("validating", 7)
    done = await server.until(batch, "completed")
    assert (done.request_counts.completed, done.request_counts.failed) == (7, 0)
    assert (done.metadata, done.error_file_id) == ({"night": "1"}, None)
    assert done.completed_at >= done.finalizing_at >= done.in_progress_at >= done.created_at
    found = await server.lines(done.output_file_id)
    assert sorted(found) == [f"r{i}" for i in range(7)]
    response = found["r3"]["response"]
    assert (response["status_code"], found["r3"]["error"]) == (200, None)
    assert response["body"]["choices"][0]["message"]["content"] == "Hello world!"
    assert response["body"]["object"] == "chat.completion"
    assert len(server.client.requests) == 7
    assert {request.priority for request in server.client.requests} == {9}, "the last class"


async def test_every_endpoint_can_be_asked(server):
    server.run()
    for endpoint, body in (
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/embeddings", {"input": "hi"}),
    ):
        lines = [{"custom_id": "a", "method": "POST", "url": endpoint, "body": body}]
        done = await server.until(await server.batch(lines, endpoint=endpoint), "completed")
        file_id = done.output_file_id or done.error_file_id
        response = (await server.lines(file_id))["a"]["response"]
        live = await server.wire(endpoint, body)
        assert response["status_code"] == live.status
        assert response["body"].keys() == live.json.keys()
        assert response["body"].get("object") == live.json.get("object")


async def test_a_line_that_cannot_be_answered_is_in_the_error_file(server):
    server.run()
    lines = [ask("good"), ask("model", model="nope"), ask("value", temperature=-1)]
    done = await server.until(await server.batch(lines), "completed")
    assert (done.request_counts.completed, done.request_counts.failed) == (1, 2)
    assert list(await server.lines(done.output_file_id)) == ["good"]
    errors = await server.lines(done.error_file_id)
    assert {one: line["response"]["status_code"] for one, line in errors.items()} == {
        "model": 404,
        "value": 400,
    }
    assert errors["value"]["response"]["body"]["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("error", "n_asked", "status"),
    [
        pytest.param(EngineDiedError(), 3, 500, id="engine-dies"),
        pytest.param(InternalError("bug"), 3, 500, id="bug"),
        pytest.param(QueueFullError("requests", 1, 3.0), None, 200, id="full"),
    ],
)
async def test_what_the_server_fails_on_is_asked_again(server, error, n_asked, status):
    """The dispatcher itself sends a request on when its engine dies, so more may be sent than asked."""
    server.run()
    server.client.script = ends_with(error)
    batch = await server.batch([ask("a")])
    if n_asked is None:
        await until(lambda: server.clock.advance(1) or len(server.client.requests) > 5)
        server.client.script = says("at", " last")
    ticking = asyncio.ensure_future(until(lambda: server.clock.advance(1)))
    done = await server.until(batch, "completed")
    ticking.cancel()
    line = (await server.lines(done.output_file_id or done.error_file_id))["a"]
    assert line["response"]["status_code"] == status
    if n_asked is not None:
        assert len({one.x_request_id for one in server.client.requests}) == n_asked


async def test_once_the_store_is_closed_no_more_is_answered_and_nothing_is_logged(server, monkeypatch):
    server.run()
    batch = await server.batch([ask("a")])
    await server.until(batch, "completed")
    runner = server.app.state.batches

    async def close_in_the_middle_of_a_round():
        server.store.close()

    with capture_logs() as logs:
        monkeypatch.setattr(runner._keyring, "refresh", close_in_the_middle_of_a_round)
        await until(lambda: server.clock.advance(60) or runner._task.done())  # it may sleep after a round
    assert logs == []


LINE = json.dumps(ask("a")).encode() + b"\n"
DEEP = ask("a", metadata=json.loads("[" * 300 + "]" * 300))


@pytest.mark.parametrize("server", [{"max_body_bytes": 1024}], indirect=True)
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"custom_id": "a"}\n', "line 1 needs the method POST"),
        (LINE + b"{\n", "line 2 is not valid JSON"),
        (LINE * 2, "line 2 has the custom_id 'a' of a line before"),
        (b"x" * 2000, "line 1 is longer than 1,024 bytes"),
        (json.dumps(DEEP).encode(), "line 1 is nested too deeply"),
    ],
)
async def test_a_file_is_checked_line_by_line_and_nothing_is_left_of_a_wrong_one(server, data, says):
    with pytest.raises(BadRequestError) as caught:
        await server.openai.files.create(file=("in.jsonl", data), purpose="batch")
    assert (caught.value.param, caught.value.code) == ("file", "invalid_line")
    assert says in str(caught.value)
    assert (await server.openai.files.list()).data == []
    await until(lambda: server.n_rows("pieces") == 0)


def form(*parts):
    """Write a form by hand: (header, content) each."""
    body = b"".join(f"--xyz\r\n{header}\r\n\r\n".encode() + data + b"\r\n" for header, data in parts)
    return body + b"--xyz--\r\n"


FORM = "multipart/form-data; boundary=xyz"
FILE = 'content-disposition: form-data; name="file"; filename="ä.jsonl"'
PURPOSE = 'content-disposition: form-data; name="purpose"'


async def test_a_form_is_read_in_whatever_pieces_and_order_it_comes(server):
    body = form((FILE, LINE), (PURPOSE, b"batch"))
    headers = [("content-type", FORM)]
    for chunks in ([body], [body[i : i + 1] for i in range(len(body))]):
        wire = await server.wire("/v1/files", chunks=chunks, headers=headers)
        assert (wire.status, wire.json["filename"], wire.json["bytes"]) == (200, "ä.jsonl", len(LINE))
        content = await server.wire(f"/v1/files/{wire.json['id']}/content", method="GET")
        assert content.body == LINE


@pytest.mark.parametrize(
    ("body", "kind", "code", "param"),
    [
        (form((FILE, LINE)), FORM, "invalid_value", "purpose"),
        (form((PURPOSE, b"batch")), FORM, "invalid_value", "file"),
        (form((FILE, LINE), (PURPOSE, b"vision")), FORM, "invalid_value", "purpose"),
        (form((FILE, LINE), (FILE, LINE)), FORM, "invalid_form", None),
        (form((PURPOSE, b"b" * 5000)), FORM, "invalid_form", None),
        (form((FILE, LINE))[:-9], FORM, "invalid_form", None),
        (b"nonsense", FORM, "invalid_form", None),
        (LINE, "application/json", "invalid_form", None),
        (LINE, "multipart/form-data", "invalid_form", None),
    ],
)
async def test_what_is_no_form_with_a_file_is_said_so(server, body, kind, code, param):
    wire = await server.wire("/v1/files", body, headers=[("content-type", kind)])
    assert (wire.status, wire.json["error"]["code"], wire.json["error"]["param"]) == (400, code, param)
    assert (await server.openai.files.list()).data == []


async def test_an_upload_that_breaks_off_leaves_nothing(server):
    wire = Wire(server.app, "/v1/files", chunks=[], headers=[("content-type", FORM)])
    wire.inbox.put_nowait({"type": "http.request", "body": form((FILE, LINE))[:150], "more_body": True})
    wire.hang_up()
    await wire.run()
    server.run()
    await until(lambda: server.n_rows("files") == 0)


@pytest.mark.thorough
async def test_a_long_upload_takes_the_memory_of_a_few_pieces_and_its_last_line_is_checked(server):
    text, n = "x" * 100_000, 640
    opening, ending = form((PURPOSE, b"batch"), (FILE, b"|")).split(b"|")

    async def pieces():
        yield opening
        for i in range(n):
            yield json.dumps(ask(f"r{i}", text)).encode() + b"\n"
        yield b"{" + ending

    headers = {"content-type": FORM}
    tracemalloc.start()
    try:
        response = await server.http.post("http://app/v1/files", content=pieces(), headers=headers)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert response.status_code == 400
    assert f"line {n + 1} is not valid JSON" in response.json()["error"]["message"]
    assert most < n * len(text) / 2


async def test_files_are_listed_page_by_page_and_deleted(server):
    made = [await server.upload([ask(f"r{i}")], extra_body={}) for i in range(5)]
    ids = [one.id for one in made]
    assert [one.id async for one in server.openai.files.list(limit=2)] == ids[::-1]
    assert [one.id async for one in server.openai.files.list(limit=2, order="asc")] == ids
    assert (await server.openai.files.list(purpose="batch_output")).data == []
    found = await server.openai.files.retrieve(ids[0])
    assert (found.purpose, found.filename, found.object) == ("batch", "in.jsonl", "file")
    assert found.expires_at - found.created_at == 30 * 24 * 3600
    assert (await server.openai.files.delete(ids[0])).deleted
    with pytest.raises(NotFoundError):
        await server.openai.files.retrieve(ids[0])
    short = await server.upload([ask("a")], expires_after={"anchor": "created_at", "seconds": 3600})
    assert short.expires_at - short.created_at == 3600


async def test_a_batch_is_refused_that_could_not_be_answered(server):
    file = await server.upload([ask("a")])
    create = server.openai.batches.create
    for fields, param in (
        ({"input_file_id": "file-nope", "endpoint": CHATS}, "input_file_id"),
        ({"input_file_id": file.id, "endpoint": "/v1/files"}, "endpoint"),
    ):
        with pytest.raises(BadRequestError) as caught:
            await create(completion_window="24h", **fields)
        assert caught.value.param == param
    with pytest.raises(BadRequestError):
        await create(input_file_id=file.id, endpoint=CHATS, completion_window="1h")
    server.run()
    for endpoint, lines, code in (
        ("/v1/completions", [ask("a")], "mismatched_endpoint"),
        (CHATS, [], "empty_file"),
    ):
        failed = await server.until(await server.batch(lines, endpoint=endpoint), "failed")
        assert failed.errors.data[0].code == code
        assert (failed.output_file_id, failed.error_file_id) == (None, None)


async def test_batches_are_listed_page_by_page(server):
    ids = [(await server.batch([ask("a")])).id for _ in range(5)]
    assert [one.id async for one in server.openai.batches.list(limit=2)] == ids[::-1]


async def test_a_cancelled_batch_keeps_the_answers_it_has(server):
    server.client.script = holding(2)
    server.run()
    batch = await server.batch([ask(f"r{i}") for i in range(9)])
    await server.answered(batch, 2)
    with pytest.raises(anthropic.NotFoundError):
        await server.claude.messages.batches.retrieve(batch.id)
    assert (await server.openai.batches.cancel(batch.id)).status == "cancelling"
    done = await server.until(batch, "cancelled")
    assert server.client.n_open == 0, "those under way were stopped"
    assert done.request_counts.completed == 2
    assert len(await server.lines(done.output_file_id)) == 2
    left = await server.lines(done.error_file_id)
    assert len(left) == 7
    assert {line["error"]["code"] for line in left.values()} == {"batch_cancelled"}
    assert (await server.wire(f"/v1/batches/{batch.id}/cancel")).json["error"]["code"] == "wrong_batch_state"


async def test_metrics_count_the_batches_that_are_not_over(server):
    server.client.script = holding(2)
    batch = await server.batch([ask(f"r{i}") for i in range(9)] + [ask("bad", temperature=-1)])
    server.run()
    await server.answered(batch, 2)

    async def lines():
        text = (await server.http.get("http://app/metrics", headers={"authorization": "Bearer x"})).text
        return [line for line in text.splitlines() if line.startswith("cobali_batch")]

    assert 'cobali_batches{status="in_progress"} 1.0' in await lines()
    counts = {line.split('"')[1]: float(line.split()[-1]) for line in await lines() if "lines" in line}
    assert counts["answered"] == 2
    assert sum(counts.values()) == 10
    await server.openai.batches.cancel(batch.id)
    await server.until(batch, "cancelled")
    assert not any("status" in line for line in await lines())


async def test_a_store_that_hangs_holds_no_metrics_back(server, monkeypatch):
    monkeypatch.setattr(facts, "KEPT_S", 0.001)
    goes_on = threading.Event()
    hanging = server.store._thread.submit(goes_on.wait)
    scrape = server.http.get("http://app/metrics", headers={"authorization": "Bearer x"})
    try:
        answer = await asyncio.wait_for(scrape, 20)
    finally:
        goes_on.set()
    assert hanging.result()
    assert answer.status_code == 200
    assert "cobali_batch" not in answer.text


async def test_a_batch_expires_by_the_clock(server):
    server.client.script = lambda request: iter([asyncio.Event()])
    server.run()
    batch = await server.batch([ask("a")])
    await until(lambda: server.client.requests)
    server.pass_time(WINDOW_S)
    done = await server.until(batch, "expired")
    assert (done.expired_at, done.output_file_id) == (batch.created_at + WINDOW_S, None)
    assert (await server.lines(done.error_file_id))["a"]["error"]["code"] == "batch_expired"
    assert server.client.n_open == 0


async def test_a_server_that_starts_again_goes_on_where_it_was(server):
    held = asyncio.Event()
    server.client.script = holding(3, held)
    server.run()
    batch = await server.batch([ask(f"r{i}", f"text {i}") for i in range(8)])
    await server.answered(batch, 3)
    await server.stop()
    server.client.apps.clear()
    held.set()
    await server.start()
    assert (await server.openai.batches.retrieve(batch.id)).status == "in_progress"
    server.run()
    done = await server.until(batch, "completed")
    assert done.request_counts.completed == 8
    assert len(await server.lines(done.output_file_id)) == 8


async def test_lines_take_no_more_than_the_slots_that_are_free(server):
    """Whichever of its names they call the model by."""
    server.client.script = lambda request: iter([asyncio.Event()])
    server.run()
    for model in ("fake", None):
        await server.batch([ask(f"r{i}", model=model) for i in range(30)])
    await until(lambda: server.client.n_open >= 5)
    server.pass_time(1)
    for _ in range(50):
        await server.openai.models.list()
    assert server.client.most_open == 5, "four slots, and one that waits for one"


async def test_keys_keep_apart_and_a_key_that_is_gone_ends_its_batches(tmp_path, judges):
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys:\n  alice: {key: a, max_tokens: 7, models: [fake]}\n  bob: {key: b}\n")
    server = Server(tmp_path / "data", judges)
    server.settings = {"api_keys_file": keys, "stored_count": 3}
    await server.start()
    alice, bob = server.openai_as("a"), server.openai_as("b")
    server.run()
    done = await server.until(await server.batch([ask("r")], alice), "completed", openai=alice)
    assert (server.client.requests[0].tenant, server.client.requests[0].max_tokens) == ("alice", 7)
    with pytest.raises(NotFoundError):
        await bob.batches.retrieve(done.id)
    with pytest.raises(NotFoundError):
        await bob.files.content(done.output_file_id)
    assert ((await bob.files.list()).data, (await bob.batches.list()).data) == ([], [])
    assert len((await alice.files.list()).data) == 2
    await server.upload([ask("r")], alice)
    wire = await server.wire(
        "/v1/files",
        form((FILE, LINE), (PURPOSE, b"batch")),
        headers=[("content-type", FORM), ("x-api-key", "a")],
    )
    assert (wire.status, wire.json["error"]["code"]) == (413, "store_full")
    server.client.script = lambda request: iter([asyncio.Event()])
    batch = await server.batch([ask("r")], bob)
    keys.write_text("keys:\n  alice: {key: a}\n  carol: {key: c}\n")

    def status(db):
        return db.execute("SELECT status FROM batches WHERE id = ?", (batch.id,)).fetchone()[0]

    await until(lambda: server.clock.advance(1) or server.store.now(status) == "cancelled")
    await server.stop()


# Anthropic's Message Batches


def message(custom_id, **fields):
    params = {"model": "fake", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]} | fields
    return {"custom_id": custom_id, "params": params}


async def ended(server, batch):
    async def there():
        found = await server.claude.messages.batches.retrieve(batch.id)
        return found if found.processing_status == "ended" else None

    return await until(there)


async def test_message_batches_are_answered_for_anthropics_client(server):
    batches = server.claude.messages.batches
    batch = await batches.create(requests=[message("a"), message("bad", model="nope"), message("c")])
    assert (batch.processing_status, batch.request_counts.processing, batch.results_url) == (
        "in_progress",
        3,
        None,
    )
    with pytest.raises(anthropic.AnthropicError):
        await batches.results(batch.id)
    server.run()
    done = await ended(server, batch)
    assert (done.request_counts.succeeded, done.request_counts.errored, done.request_counts.processing) == (
        2,
        1,
        0,
    )
    results = {one.custom_id: one.result async for one in await batches.results(batch.id)}
    assert list(results) == ["a", "bad", "c"]
    assert results["a"].message.content[0].text == "Hello world!"
    assert results["bad"].error.error.type == "not_found_error"
    assert (await server.openai.files.list()).data == [], "there is no file to see"
    assert (await batches.delete(batch.id)).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        await batches.retrieve(batch.id)
    server.pass_time(1)
    await until(lambda: server.n_rows("pieces") == 0)


async def test_message_batches_are_listed_and_cancelled(server):
    batches = server.claude.messages.batches
    ids = [(await batches.create(requests=[message("a")])).id for _ in range(5)]
    assert [one.id async for one in batches.list(limit=2)] == ids[::-1]
    before = await batches.list(limit=2, before_id=ids[1])
    assert ([one.id for one in before.data], before.has_more) == ([ids[3], ids[2]], True)
    assert (await batches.cancel(ids[0])).processing_status == "canceling"
    with pytest.raises(anthropic.ConflictError):
        await batches.delete(ids[0])
    server.client.script = lambda request: iter([asyncio.Event()])
    server.run()
    done = await ended(server, await batches.retrieve(ids[0]))
    assert (done.request_counts.canceled, done.cancel_initiated_at is not None) == (1, True)
    assert [one.result.type async for one in await batches.results(ids[0])] == ["canceled"]


@pytest.mark.parametrize(
    ("requests", "says"),
    [
        ([], "at least 1 item"),
        ([message("a"), message("a")], "line 2 has the custom_id 'a'"),
        ([message("a b")], "line 1 needs a custom_id of 1 to 64 letters"),
        ([message("a", stream=True)], "has params.stream"),
    ],
)
async def test_a_message_batch_that_is_wrong_is_refused_in_anthropics_shape(server, requests, says):
    with pytest.raises(anthropic.BadRequestError, match=says):
        await server.claude.messages.batches.create(requests=requests)


async def test_without_a_folder_the_routes_say_what_to_set(app):
    for path, method in (("/v1/files", "GET"), ("/v1/batches", "POST"), ("/v1/messages/batches", "POST")):
        wire = await Wire(app, path, {}, method=method).run()
        assert wire.status == 501
        assert "data_dir" in wire.json["error"]["message"]


async def test_a_few_batches_of_a_key_are_answered_at_a_time(server):
    held = asyncio.Event()
    server.client.script = holding(0, held)
    made = [await server.batch([ask(f"{i}-{j}") for j in range(3)]) for i in range(6)]
    server.run()
    await server.until(made[3], "in_progress")
    await until(lambda: server.client.n_open >= 5)
    assert [(await server.openai.batches.retrieve(one.id)).status for one in made[4:]] == ["validating"] * 2
    held.set()
    for one in made:
        done = await server.until(one, "completed")
        assert done.request_counts.completed == 3
