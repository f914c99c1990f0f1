"""The page's chats on the server: versions, keys, limits; and answers that go on, whoever reads."""

import asyncio

import pytest
from fake_client import Said
from store_server import CHATS, Server

from cobali_ray.api.reply import streams
from cobali_ray.store import chats
from cobali_ray.store import streams as stored_streams
from tests.waiting import until

DAY_S = 24 * 3600
ID = "0123456789abcdef"
STREAMS = f"/v1/streams/{ID}"
ASK = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "resumable": "stored"}
CHOSEN = [("x-cobali-stream", ID)]


async def write(server, chat_id="c", version=0, data="text", **more):
    return await server.wire(
        f"/v1/chats/{chat_id}", {"version": version, "summary": "s", "data": data}, **more
    )


async def listed(server, after=0, **more):
    return (await server.wire(f"/v1/chats?after={after}", method="GET", **more)).json["data"]


async def test_a_chat_is_written_over_the_version_that_its_writer_knows(server):
    first = (await write(server)).json
    assert first == {"id": "c", "object": "chat", "version": first["version"]}
    for known in (0, first["version"] + 1):
        wire = await write(server, version=known, data="lost")
        assert (wire.status, wire.json["error"]["code"]) == (409, "chat_changed")
    second = (await write(server, version=first["version"], data="more")).json
    assert second["version"] > first["version"]
    found = (await server.wire("/v1/chats/c", method="GET")).json
    assert (found["version"], found["data"]) == (second["version"], "more")


async def test_a_list_tells_what_changed_and_what_was_deleted(server):
    versions = {name: (await write(server, name)).json["version"] for name in "abc"}
    assert [(one["id"], one["summary"]) for one in await listed(server)] == [(name, "s") for name in "abc"]
    await write(server, "a", versions["a"])
    assert (await server.wire("/v1/chats/b", method="DELETE")).json["deleted"]
    a, b = await listed(server, after=versions["c"])
    assert (a["id"], b["id"], b["deleted"], "deleted" in a) == ("a", "b", True, False)
    for method in ("GET", "DELETE"):
        assert (await server.wire("/v1/chats/b", method=method)).status == 404
    assert (await write(server, "b")).status == 200, "who still had it may write it again"
    ids = [one["id"] for one in await listed(server)]
    assert ids == ["c", "a", "b"], "in the order of the changes, each once"


async def test_chats_have_bounds_and_go_in_time(tmp_path, judges):
    server = Server(tmp_path, judges)
    server.settings = {"stored_count": 2, "stored_days": 1, "stored_gib": 20_000 / (1 << 30)}
    await server.start()
    server.run()
    for name in "ab":
        assert (await write(server, name)).status == 200
    wire = await write(server, "c")
    assert (wire.status, "stored_count" in wire.json["error"]["message"]) == (413, True)
    version = (await listed(server))[0]["version"]
    wire = await write(server, "a", version, data="x" * 20_000)
    assert (wire.status, "stored_gib" in wire.json["error"]["message"]) == (413, True)
    assert (await server.wire("/v1/chats/a", method="GET")).json["data"] == "text"
    server.clock.advance(DAY_S / 2)
    await server.wire("/v1/chats/b", method="GET")  # who is read stays for longer
    server.pass_time(DAY_S / 2 + 1)
    await until(lambda: [row.id for row in server.store.now(chats.listed, "", 0, 9)] == ["b"])
    await server.stop()


async def test_of_deleted_chats_the_latest_are_known(server, monkeypatch):
    monkeypatch.setattr(chats, "MAX_DELETED", 2)
    for name in "abcd":
        await write(server, name)
    for name in "abc":
        await server.wire(f"/v1/chats/{name}", method="DELETE")
    assert [row.id for row in server.store.now(chats.listed, "", 0, 9)] == ["d", "b", "c"]


async def test_keys_have_chats_of_their_own(tmp_path, judges):
    server = Server(tmp_path, judges)
    server.settings = {"api_keys": ("a", "b")}
    await server.start()
    alice, bob = ({"headers": [("authorization", f"Bearer {key}")]} for key in "ab")
    assert (await write(server, **alice)).status == 200
    assert await listed(server, **bob) == []
    assert (await server.wire("/v1/chats/c", method="GET", **bob)).status == 404
    assert (await server.wire("/v1/chats/c", method="DELETE", **bob)).status == 404
    assert (await write(server, data="bob's", **bob)).status == 200
    assert (await server.wire("/v1/chats/c", method="GET", **alice)).json["data"] == "text"
    names = [(await server.wire("/v1/models", method="GET", **key)).json["chats"] for key in (alice, bob)]
    assert names[0] != names[1]
    assert "all" not in names
    await server.stop()


async def test_what_is_wrong_with_a_body_is_said(server):
    for body, param in (
        ({"version": 0, "summary": "s"}, "data"),
        ({"version": -1, "summary": "s", "data": ""}, "version"),
        ({"version": 0, "summary": "s" * 5000, "data": ""}, "summary"),
    ):
        wire = await server.wire("/v1/chats/c", body)
        assert (wire.status, wire.json["error"]["param"]) == (400, param)
    assert (await write(server, "a.b")).json["error"]["param"] == "chat_id"
    wire = await server.wire("/v1/chats?after=x", method="GET")
    assert (wire.status, wire.json["error"]["param"]) == (400, "after")


async def test_without_a_folder_there_are_no_chats_and_no_answers_to_keep(post, get, app):
    assert "chats" not in (await get("/v1/models")).json
    for wire in (await get("/v1/chats"), await get("/v1/chats/c"), await post("/v1/chats/c", {})):
        assert (wire.status, "data_dir" in wire.json["error"]["message"]) == (501, True)
    assert (await post(CHATS, ASK)).status == 501


# -- answers


class Left:
    """An answer whose client has left after its first words."""

    def __init__(self, server):
        self.server = server
        self.said = server.client.script = Said()

    async def begin(self):
        self.said.say("one ", "two ")
        wire = self.server.stream(CHATS, ASK, headers=CHOSEN)
        await until(lambda: b"two" in wire.body)
        wire.hang_up()
        await wire.task
        return wire.body


@pytest.fixture
def left(server):
    return Left(server)


async def read_on(server, after=0):
    return await server.wire(f"{STREAMS}?after={after}", method="GET")


async def kept(server):
    async def there():
        return server.store.now(stored_streams.find, "", ID)

    return await until(there)


async def test_an_answer_to_be_stored_goes_on_for_hours_and_is_whole_for_who_comes(server, left):
    begun = await left.begin()
    for _ in range(30):
        server.clock.advance(streams.KEPT_S)
        await asyncio.sleep(0)
    assert server.client.n_open == 1, "nobody reads, and it goes on"
    left.said.say("three", None)
    await kept(server)
    server.clock.advance(streams.KEPT_S + 1)
    await until(lambda: not server.app.state.streams._kept)
    whole = await read_on(server)
    assert whole.headers["content-type"].startswith("text/event-stream")
    assert whole.body.startswith(begun)
    assert b"three" in whole.body
    assert whole.body.endswith(b"data: [DONE]\n\n")
    behind = (await read_on(server, after=2)).body
    assert whole.body.endswith(behind)
    assert behind.startswith(b"id: 3\n")
    wire = await read_on(server, after=99)
    assert (wire.status, wire.json["error"]["param"]) == (400, "after")
    await server.stop()
    await server.start()
    assert (await read_on(server)).body == whole.body, "another process has it, too"
    assert (await server.wire(STREAMS, method="DELETE")).json["stopped"] is False
    assert (await read_on(server)).status == 404


async def test_who_stops_an_answer_wants_nothing_of_it_kept(server, left):
    await left.begin()
    assert (await server.wire(STREAMS, method="DELETE")).json["stopped"] is True
    await until(lambda: server.client.n_open == 0)
    server.clock.advance(streams.KEPT_S + 1)
    await until(lambda: not server.app.state.streams._kept)
    assert server.store.now(stored_streams.find, "", ID) is None
    assert (await read_on(server)).status == 404


async def test_a_server_that_stops_keeps_what_had_come(server, left):
    begun = await left.begin()
    server.app.state.streams.close()
    assert (await kept(server)).startswith(begun)
    last = (await read_on(server)).body
    assert b"draining" in last


@pytest.mark.parametrize(
    ("server", "bound"),
    [({}, "MAX_STORED"), ({"api_keys": ("a",)}, "MAX_STORED_OF_KEY")],
    indirect=["server"],
)
async def test_beyond_its_bounds_an_answer_is_resumable_and_not_kept(server, left, monkeypatch, bound):
    monkeypatch.setattr(streams, bound, 0)
    left.said.say("one", None)
    key = [("x-api-key", "a")]
    wire = await server.wire(CHATS, ASK, headers=CHOSEN + key)
    assert wire.headers["x-cobali-ignored-fields"] == "resumable"
    assert (await server.wire(STREAMS, method="GET", headers=key)).body == wire.body
    assert server.n_rows("streams") == 0


async def test_without_keys_the_bound_of_one_key_is_none(server, left, monkeypatch):
    monkeypatch.setattr(streams, "MAX_STORED_OF_KEY", 0)
    left.said.say("one", None)
    assert "x-cobali-ignored-fields" not in (await server.wire(CHATS, ASK, headers=CHOSEN)).headers
