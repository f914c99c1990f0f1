"""Resumable streams: a client that was cut off reads on, and nothing is held for one that stays away."""

import asyncio

import pytest
from fake_client import CHAT, Wire, says, settle
from structlog.testing import capture_logs

from cobali_ray.api.reply import streams
from cobali_ray.errors import EventsLostError
from tests.waiting import until

ASK = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "resumable": True}


class Cut:
    """A stream whose client is cut off."""

    def __init__(self, app, body=None, **kwargs):
        self.app, self.kwargs = app, kwargs
        self.wire = Wire(app, CHAT, ASK if body is None else body, **kwargs)

    async def __aenter__(self):
        self.task = self.wire.start()
        await until(lambda: self.wire.writes)
        return self

    @property
    def stream_id(self):
        return self.wire.headers["x-cobali-stream"]

    async def hang_up(self):
        self.wire.hang_up()
        await self.task

    def read_on(self, after, **kwargs):
        return Wire(self.app, f"/v1/streams/{self.stream_id}?after={after}", method="GET", **kwargs)

    async def __aexit__(self, *error):
        self.task.cancel()
        await asyncio.wait({self.task})


def numbered(wire):
    """Return the events of a resumable stream by their numbers."""
    found = {}
    for event in wire.body.decode().split("\n\n")[:-1]:
        number, data = event.split("\n")
        found[int(number.removeprefix("id: "))] = data.removeprefix("data: ")
    return found


async def test_a_stream_that_was_cut_is_read_on_from_any_event(app, client, said):
    said.say("one ", "two ")
    async with Cut(app) as cut:
        await until(lambda: len(numbered(cut.wire)) == 3)
        await cut.hang_up()
        said.say("three ", "four")
        again = cut.read_on(2)
        task = again.start()
        await until(lambda: len(again.writes) > 0)
        said.say(" five", None)
        await task
        first, later = numbered(cut.wire), numbered(again)
        assert sorted(first) == [1, 2, 3]
        assert list(later) == list(range(3, 9)), "each once, in their order"
        assert later[3] == first[3]
        assert later[8] == "[DONE]"
        text = "".join(str(later[n]) for n in range(3, 7))
        assert [word in text for word in ("two ", "three ", "four", " five")] == [True] * 4
        whole = await cut.read_on(0).run()
        assert numbered(whole) == first | later, "what is over may be read again, too"
        assert (client.n_open, client.cancelled) == (0, [])


async def test_the_id_is_in_every_event_and_plain_streams_have_no_numbers(app, client, post):
    client.script = says("a")
    wire = await post(CHAT, ASK | {"resumable": None})
    assert b"id: " not in wire.body.replace(b'"id":', b"")
    assert "x-cobali-stream" not in wire.headers
    async with Cut(app) as cut:
        assert f'"id":"{cut.stream_id}"' in numbered(cut.wire)[1]
        await cut.task


async def test_what_the_browser_says_of_the_last_event_counts(app, said):
    said.say("one ", "two ", None)
    async with Cut(app) as cut:
        await cut.task
        headers = [("last-event-id", "3")]
        wire = await Wire(app, f"/v1/streams/{cut.stream_id}", method="GET", headers=headers).run()
        assert list(numbered(wire)) == [4, 5]


async def test_who_stays_away_too_long_is_cancelled(app, client, clock, said):
    said.say("one")
    async with Cut(app) as cut:
        await cut.hang_up()
        await clock.pass_s(streams.KEPT_S - 1)
        assert client.n_open == 1
        again = cut.read_on(1)
        task = again.start()
        await until(lambda: again.sent)
        await clock.pass_s(streams.KEPT_S)
        assert client.n_open == 1, "somebody is there"
        again.hang_up()
        await task
        await clock.pass_s(streams.KEPT_S - 1)
        assert client.n_open == 1
        await clock.pass_s(1)
        await until(lambda: client.n_open == 0)
        assert client.cancelled == [cut.stream_id]
        wire = await cut.read_on(1).run()
        assert (wire.status, wire.json["error"]["code"]) == (404, "stream_not_found")


async def test_what_is_over_is_kept_as_long(app, client, clock, said):
    said.say("one", None)
    async with Cut(app) as cut:
        await cut.task
        await clock.pass_s(streams.KEPT_S - 1)
        assert numbered(await cut.read_on(3).run()) == {4: "[DONE]"}
        await clock.pass_s(streams.KEPT_S)
        assert (await cut.read_on(3).run()).status == 404


async def test_a_client_that_leaves_before_the_first_event_is_cancelled_at_once(app, client, said):
    wire = Wire(app, CHAT, ASK)
    task = wire.start()
    await until(lambda: client.n_open == 1)
    with capture_logs() as logs:
        wire.hang_up()
        await task
        await until(lambda: client.n_open == 0 and logs)
    assert logs[-1]["cancelled"]
    assert logs[-1]["status"] == 499


async def test_several_read_one_stream_each_at_its_own_place(app, said):
    said.say("one")
    async with Cut(app) as cut:
        other = cut.read_on(1)
        task = other.start()
        await until(lambda: other.writes)
        said.say(" two", None)
        await task
        await cut.task
        assert list(numbered(cut.wire)) == [1, 2, 3, 4, 5]
        assert list(numbered(other)) == [2, 3, 4, 5]


async def test_one_reader_too_many_takes_the_place_of_the_first(app, said, monkeypatch):
    monkeypatch.setattr(streams, "MAX_READERS", 1)
    said.say("one")
    async with Cut(app) as cut:
        other = cut.read_on(1)
        task = other.start()
        await cut.task
        assert cut.wire.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        said.say(" two", None)
        await task
        assert list(numbered(cut.wire)) == [1, 2]
        assert list(numbered(other)) == [2, 3, 4, 5]


async def test_a_slow_reader_neither_holds_the_others_up_nor_misses_events_unnoticed(app, said, monkeypatch):
    monkeypatch.setattr(streams, "KEPT_BYTES", 1000)
    said.say("a")
    async with Cut(app) as cut:
        await until(lambda: len(numbered(cut.wire)) == 2)
        cut.wire.may_write.clear()
        quick = cut.read_on(2)
        task = quick.start()
        for n, letter in enumerate("bcdefghijkl", start=1):
            said.say(letter)
            await until(lambda n=n: len(numbered(quick)) == n)
        cut.wire.may_write.set()
        await cut.task
        read = list(numbered(cut.wire))
        assert read == list(range(1, len(read) + 1)), "without a gap up to where it was cut off"
        said.say(None)
        await task
        assert list(numbered(quick)) == list(range(3, 16))


async def test_a_stream_is_stopped_by_whose_it_is_and_all_readers_are_told(make_app, client, said):
    app = make_app(api_keys=("mine", "other"))
    mine, other = ({"headers": [("x-api-key", key)]} for key in ("mine", "other"))
    said.say("one")
    async with Cut(app, **mine) as cut:
        beside = cut.read_on(0, **mine)
        task = beside.start()
        await until(lambda: beside.writes)

        async def stop(**kwargs):
            return await Wire(app, f"/v1/streams/{cut.stream_id}", method="DELETE", **kwargs).run()

        assert (await stop(**other)).status == 404
        wire = await stop(**mine)
        assert wire.json == {"id": cut.stream_id, "object": "stream", "stopped": True}
        await task
        await cut.task
        assert client.cancelled == [cut.stream_id]
        for reader in (cut.wire, beside):
            *_, told, done = numbered(reader).values()
            assert '"code":"stream_stopped"' in told
            assert done == "[DONE]"
        assert (await stop(**mine)).json["stopped"] is False, "it is over"


NAMED = [("x-cobali-stream", "chosen-by-the-client")]


async def test_whoever_chose_the_id_reads_on_before_the_first_event(app, client, clock, said):
    wire = Wire(app, CHAT, ASK, headers=NAMED)
    task = wire.start()
    await until(lambda: client.n_open == 1)
    wire.hang_up()
    await task
    assert client.n_open == 1
    again = Wire(app, "/v1/streams/chosen-by-the-client", method="GET")
    task = again.start()
    said.say("one", None)
    await task
    assert list(numbered(again)) == [1, 2, 3, 4]
    assert again.headers["x-cobali-stream"] == "chosen-by-the-client"
    assert (await Wire(app, CHAT, ASK, headers=NAMED).run()).status == 409, "two streams, one id"
    await clock.pass_s(streams.KEPT_S)
    wire = await Wire(app, CHAT, ASK, headers=NAMED).run()
    assert wire.status == 200


async def test_a_stream_that_was_stopped_before_its_first_event_says_so(app, client, said):
    wire = Wire(app, CHAT, ASK, headers=NAMED)
    task = wire.start()
    await until(lambda: client.n_open == 1)
    await Wire(app, "/v1/streams/chosen-by-the-client", method="DELETE").run()
    await task
    assert (wire.status, wire.json["error"]["code"]) == (410, "stream_stopped")
    assert client.n_open == 0


async def test_a_refusal_of_a_stream_whose_id_was_chosen_frees_the_id(app, client, said):
    client.script = lambda _: [EventsLostError()]
    for _ in range(2):
        wire = await Wire(app, CHAT, ASK, headers=NAMED).run()
        assert (wire.status, wire.json["error"]["code"]) == (500, "events_lost")


@pytest.mark.parametrize("name", ["short", "x" * 65, "not/a/path/segment"])
async def test_an_id_that_cannot_be_one_is_refused(app, client, name):
    wire = await Wire(app, CHAT, ASK, headers=[("x-cobali-stream", name)]).run()
    assert (wire.status, wire.json["error"]["param"]) == (400, "x-cobali-stream")
    assert client.requests == []


@pytest.mark.parametrize("after", ["-1", "x", "99"])
async def test_an_event_that_never_was_is_refused(app, said, after):
    said.say("one")
    async with Cut(app) as cut:
        wire = await cut.read_on(after).run()
        assert (wire.status, wire.json["error"]["param"]) == (400, "after")
        assert not cut.task.done(), "who reads is left alone"


async def test_only_streams_are_resumable(post, client):
    wire = await post(CHAT, ASK | {"stream": False})
    assert (wire.status, wire.json["error"]["param"]) == (400, "resumable")
    assert client.requests == []


async def test_a_stream_is_its_key_s(make_app, client, said):
    app = make_app(api_keys=("mine", "other"))
    said.say("one")
    async with Cut(app, headers=[("x-api-key", "mine")]) as cut:
        assert (await cut.read_on(0, headers=[("x-api-key", "other")]).run()).status == 404
        assert (await cut.read_on(0).run()).status == 401
        said.say(None)
        wire = await cut.read_on(0, headers=[("x-api-key", "mine")]).run()
        assert len(numbered(wire)) == 4


async def test_what_was_read_makes_room_and_what_was_not_is_waited_for(app, client, said, monkeypatch):
    monkeypatch.setattr(streams, "KEPT_BYTES", 1000)
    said.say(*"abcdefgh")
    async with Cut(app) as cut:
        await until(lambda: len(numbered(cut.wire)) == 9)
        wire = await cut.read_on(0).run()
        assert (wire.status, wire.json["error"]["param"]) == (400, "after"), "the first are gone"
        await cut.hang_up()
        said.say(*"ijklmnopqrstuvwxyz", None)
        for _ in range(10):
            await settle()
        assert client.n_open == 1, "it waits for a reader"
        wire = await cut.read_on(9).run()
        assert list(numbered(wire)) == list(range(10, 30)), "nothing that was not read is lost"
        assert client.n_open == 0


async def test_what_a_connection_did_not_take_is_kept(app, said, monkeypatch):
    monkeypatch.setattr(streams, "KEPT_BYTES", 1000)
    said.say("a")
    async with Cut(app) as cut:
        await until(lambda: len(numbered(cut.wire)) == 2)
        cut.wire.may_write.clear()
        said.say("b")
        await until(lambda: len(numbered(cut.wire)) == 3)
        said.say(*"cdefghijkl", None)
        for _ in range(10):
            await settle()
        again = cut.read_on(2)
        task = again.start()
        await cut.hang_up()
        await task
        assert list(numbered(again)) == list(range(3, 16))


async def test_one_who_has_read_all_that_is_waited_for_gets_what_comes(app, said, monkeypatch):
    monkeypatch.setattr(streams, "KEPT_BYTES", 1000)
    said.say("a")
    async with Cut(app) as cut:
        await cut.hang_up()
        said.say(*"bcdefghi", None)
        for _ in range(10):
            await settle()
        refused = await cut.read_on(99).run()
        last = int(refused.json["error"]["message"].split(" to ")[1].split(" ")[0])
        wire = await cut.read_on(last).run()
        assert list(numbered(wire)) == list(range(last + 1, 13))


async def test_beyond_so_many_streams_are_plain_and_say_so(app, client, said, monkeypatch):
    monkeypatch.setattr(streams, "MAX_STREAMS", 1)
    said.say("one")
    async with Cut(app) as cut, Cut(app) as other:
        assert other.wire.headers["x-cobali-ignored-fields"] == "resumable"
        await other.hang_up()
        assert client.cancelled == [client.requests[1].request_id]
        said.say(None)
        await cut.task
    async with Cut(app) as third:
        assert third.stream_id, "what is over does not count"


async def test_one_key_does_not_take_all_the_room(make_app, said, monkeypatch):
    monkeypatch.setattr(streams, "MAX_OF_KEY", 1)
    app = make_app(api_keys=("mine", "other"))
    said.say("one")
    mine, other = [("x-api-key", "mine")], [("x-api-key", "other")]
    async with Cut(app, headers=mine), Cut(app, headers=mine) as second, Cut(app, headers=other) as third:
        assert second.wire.headers["x-cobali-ignored-fields"] == "resumable"
        assert third.stream_id


async def test_what_is_over_is_forgotten_for_want_of_room_the_oldest_first(app, said, monkeypatch):
    said.say("one", None)
    cuts = [Cut(app) for _ in range(3)]
    for i, cut in enumerate(cuts):
        if i == 2:
            monkeypatch.setattr(streams, "ENDED_BYTES", 2000)
        async with cut:
            await cut.task
    assert [(await cut.read_on(3).run()).status for cut in cuts] == [404, 200, 200]


async def test_a_key_pays_for_what_was_written_while_it_was_away(app_with_keys, client, clock, said):
    app = app_with_keys("{alice: {key: alice-key, concurrent_requests: 1}}")
    key = {"headers": [("x-api-key", "alice-key")]}
    said.say("one")
    with capture_logs() as logs:
        async with Cut(app, **key) as cut:
            await cut.hang_up()
            assert (await Wire(app, CHAT, ASK, **key).run()).status == 429, "it is still under way"
            lines = [line for line in logs if line["event"] == "http_request" and line["status"] == 200]
            assert lines == []
            said.say(" two", None)
            wire = await cut.read_on(2, **key).run()
            assert wire.status == 200
    (line,) = [line for line in logs if line["event"] == "http_request" and line["n_output"]]
    assert (line["n_output"], line["cancelled"], line["status"]) == (2, False, 200)
    assert (await Wire(app, CHAT, ASK, **key).run()).status == 200


async def test_a_stop_waits_for_nobody_who_is_away(app, client, said):
    said.say("one")
    async with Cut(app) as here, Cut(app) as away:
        await away.hang_up()
        app.state.streams.close()
        await until(lambda: client.cancelled == [away.stream_id])
        await here.hang_up()
        await until(lambda: client.n_open == 0)
