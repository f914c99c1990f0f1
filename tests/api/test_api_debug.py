"""The feed of ticks over HTTP: parameters, keys, one poll for all viewers, an engine that goes and comes."""

import asyncio
import json

import pytest
from fake_client import FakeApiClock, Wire, settle
from structlog.testing import capture_logs

from cobali_ray.api.engines.viewers import BACKLOG, EVENTS_PER_S, MAX_PERIOD_S, PERIOD_S
from cobali_ray.core.request.life import Life
from cobali_ray.core.views.stats import EngineState, EngineStatus
from cobali_ray.errors import LoadingError
from tests.waiting import until


class Gate(FakeApiClock):
    """A clock whose sleepers wait until the test lets one go on."""

    def __init__(self):
        super().__init__()
        self.sleeping, self.n_sleeps, self.go = 0, 0, asyncio.Semaphore(0)

    async def sleep(self, seconds):
        self.sleeping += 1
        self.n_sleeps += 1
        try:
            await self.go.acquire()
        finally:
            self.sleeping -= 1
        self.slept.append(seconds)
        self.time_s += seconds


@pytest.fixture
def clock():
    return Gate()


class Viewer(Wire):
    """One reader of the stream."""

    def __init__(self, app, **kwargs):
        super().__init__(app, "/debug/stream", method="GET", **kwargs)
        self.task = self.start()

    @property
    def events(self):
        """(event name, data) of everything received."""
        out = []
        for event in self.body.decode().split("\n\n")[:-1]:
            name, data = "message", None
            for line in event.split("\n"):
                field, _, value = line.partition(": ")
                name, data = (value, data) if field == "event" else (name, json.loads(value))
            out.append((name, data))
        return out

    @property
    def ticks(self):
        return [tick for name, data in self.events if name == "message" for tick in data["ticks"]]

    async def leave(self):
        self.hang_up()
        await self.task


@pytest.fixture
async def come(app):
    """Begin to watch; who watches leaves at the end of the test."""
    viewers = []

    async def go(app=app, **kwargs):
        viewers.append(viewer := Viewer(app, **kwargs))
        await until(lambda: viewer.status == 200)
        await settle()
        return viewer

    yield go
    for viewer in viewers:
        await viewer.leave()


async def poll(clock, n=1):
    """Let the shared poll go round `n` times."""
    for _ in range(n):
        await until(lambda: clock.sleeping == 1)
        n_before = clock.n_sleeps
        clock.go.release()
        await until(lambda n_before=n_before: clock.n_sleeps > n_before)
        await settle()


async def test_ticks_are_the_engines_own_bytes(get, client):
    client.n_ticks = 300
    wire = await get("/debug/ticks")
    assert (wire.status, wire.headers["content-type"]) == (200, "application/json")
    assert wire.json["ticks"] == list(range(100, 300))
    assert client.asked == [(200, 0, None)]


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        pytest.param("last=5", (5, 0, None), id="last"),
        pytest.param("since=7", (200, 7, None), id="since"),
        pytest.param("since=0&last=4096", (4096, 0, None), id="both"),
    ],
)
async def test_parameters(get, client, query, asked):
    assert (await get(f"/debug/ticks?{query}")).status == 200
    assert client.asked == [asked]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        pytest.param("last=0", "last", id="none"),
        pytest.param("last=4097", "last", id="more-than-there-are"),
        pytest.param("last=", "last", id="empty"),
        pytest.param("last=five", "last", id="word"),
        pytest.param("since=-1", "since", id="negative"),
        pytest.param("since=1e3", "since", id="float"),
        pytest.param("since=" + "9" * 30, "since", id="huge"),
        pytest.param("since=%C2%B2", "since", id="superscript"),
    ],
)
async def test_wrong_parameters_are_named(get, client, query, param):
    wire = await get(f"/debug/ticks?{query}")
    assert wire.status == 400
    error = wire.json["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, "invalid_value")
    assert client.asked == []


async def test_an_engine_that_is_not_there_is_503(get, client):
    client.incarnation_id = LoadingError()
    with capture_logs() as logs:
        wire = await get("/debug/ticks")
    assert (wire.status, wire.json["error"]["code"]) == (503, "loading")
    assert [line["log_level"] for line in logs] == ["debug"], "a page that looks on is no news"


def life(request_id, tenant, sent_as):
    numbers = dict.fromkeys(("n_prompt", "n_cached", "n_computed", "n_output", "n_preempted"), 7)
    moments = dict.fromkeys(("arrived_s", "assigned_s", "first_token_s", "ended_s"), 1.0)
    return Life(
        request_id=request_id, slot_id=0, state="queued", finish_reason=None, error=None, stays=(),
        tenant=tenant, x_request_id=sent_as, **numbers, **moments,
    )  # fmt: skip


async def test_the_ids_that_other_keys_chose_are_not_shown(come, app_with_keys, client, clock):
    app = app_with_keys("{alice: {key: a}, bob: {key: b}}")
    client.lives = [life("r1", "alice", "order-4711"), life("r2", "bob", "order-4712")]
    client.n_ticks = 1

    def told(feed):
        return {one["request_id"]: (one["tenant"], one["x_request_id"]) for one in feed["requests"]}

    of_alice = {"r1": ("alice", "order-4711"), "r2": ("bob", "")}
    of_bob = {"r1": ("alice", ""), "r2": ("bob", "order-4712")}
    a, b = ([("x-api-key", key)] for key in "ab")
    for headers, expected in ((a, of_alice), (b, of_bob)):
        wire = await Wire(app, "/debug/ticks", method="GET", headers=headers).run()
        assert told(wire.json) == expected
    viewers = [await come(app, headers=headers) for headers in (a, b)]
    await poll(clock)
    assert [told(viewer.events[0][1]) for viewer in viewers] == [of_alice, of_bob]


async def test_without_keys_all_ids_are_shown(get, client):
    client.lives = [life("r1", "", "order-4711")]
    assert (await get("/debug/ticks")).json["requests"][0]["x_request_id"] == "order-4711"


async def test_a_viewer_sees_every_tick_once(come, client, clock):
    client.n_ticks = 1000
    viewer = await come()
    await poll(clock)
    assert viewer.headers["content-type"].startswith("text/event-stream")
    assert viewer.ticks == list(range(800, 1000))
    client.n_ticks = 1500
    await poll(clock, 2)
    assert viewer.ticks == list(range(800, 1500))
    assert clock.slept[1:] == [PERIOD_S] * 2, "at most four polls a second"


async def test_viewers_share_the_poll_and_late_ones_get_the_past(come, client, clock):
    client.n_ticks = 10
    first = await come()
    await poll(clock)
    second = await come()
    third = await come()
    client.n_ticks = 20
    await poll(clock)
    assert first.ticks == second.ticks == third.ticks == list(range(20))
    client.n_ticks, client.asked = 30, []
    await poll(clock)
    assert first.ticks == second.ticks == third.ticks == list(range(30))
    assert client.asked == [(4096, 20, None)], "one poll for all"


@pytest.mark.parametrize(
    ("n_viewers", "period_s"),
    [
        pytest.param(3, PERIOD_S, id="few"),
        pytest.param(10, 10 / EVENTS_PER_S, id="ten"),
        pytest.param(100, MAX_PERIOD_S, id="a-hundred"),
    ],
)
async def test_the_more_look_the_less_often_each_is_told(come, client, clock, n_viewers, period_s):
    client.n_ticks = 10
    viewers = [await come() for _ in range(n_viewers)]
    await poll(clock, 3)
    assert clock.slept[-1] == pytest.approx(period_s)
    assert all(viewer.ticks == list(range(10)) for viewer in viewers)


async def test_a_server_that_stops_sends_its_viewers_away(come, app, client, clock):
    client.n_ticks = 10
    viewer = await come()
    await poll(clock)
    app.state.viewers["0"].close()
    async with asyncio.timeout(60):
        await viewer.task
        late = await come()
        await late.task
    assert viewer.ticks == list(range(10))
    assert late.ticks == []


async def test_nobody_looks_nobody_polls(come, client, clock):
    viewer = await come()
    await poll(clock)
    await viewer.leave()
    await until(lambda: clock.sleeping == 0)
    n_asked = len(client.asked)
    for _ in range(10):
        clock.go.release()
        await asyncio.sleep(0)
    assert len(client.asked) == n_asked
    clock.go = asyncio.Semaphore(0)
    await come()
    await poll(clock)
    assert len(client.asked) == n_asked + 1


async def test_gone_is_said_once_and_a_new_engine_is_followed_from_its_start(come, client, clock):
    client.n_ticks = 500
    viewer = await come()
    await poll(clock)
    client.incarnation_id = LoadingError()
    client.engine = EngineState(status=EngineStatus.RESTARTING, down_s=2.5, detail="it ended", engine_id="0")
    await poll(clock, 3)
    late = await come()
    await poll(clock)
    for one in (viewer, late):
        assert [name for name, _ in one.events].count("gone") == 1
    why = {"engine_id": "0", "status": "restarting", "detail": "it ended", "down_s": 2.5}
    assert viewer.events[-1][1] == why
    client.incarnation_id, client.n_ticks = "e2", 3
    await poll(clock)
    for one in (viewer, late):
        assert one.events[-1] == (
            "message",
            {"engine": {"incarnation_id": "e2"}, "next": 3, "ticks": [0, 1, 2], "requests": []},
        )


async def test_gone_is_said_again_when_the_engine_is_gone_in_another_way(come, client, clock):
    client.incarnation_id = LoadingError()
    viewer = await come()
    ready_since = EngineStatus.READY  # it had no ticks a moment ago
    for status in (EngineStatus.UNLOADED, EngineStatus.LOADING, ready_since):
        client.engine = EngineState(status=status)
        await poll(clock, 2)
    client.incarnation_id, client.n_ticks = "e1", 3
    await poll(clock)
    told = [data["status"] if name == "gone" else data["ticks"] for name, data in viewer.events]
    assert told == ["unloaded", "loading", [0, 1, 2]]


async def test_an_engine_that_only_stuttered_is_read_on(come, client, clock):
    client.n_ticks = 500
    viewer = await come()
    await poll(clock)
    client.incarnation_id = LoadingError()
    await poll(clock)
    client.incarnation_id, client.n_ticks = "e1", 510
    await poll(clock)
    assert viewer.ticks == list(range(300, 510))


async def test_a_viewer_who_lags_starts_over_and_holds_nobody_up(come, client, clock):
    client.n_ticks = 10
    slow, quick = await come(), await come()
    slow.may_write.clear()
    await poll(clock)
    for _ in range(2 * BACKLOG):
        client.n_ticks += 10
        await poll(clock)
    assert quick.ticks == list(range(client.n_ticks))
    slow.may_write.set()
    await poll(clock)
    client.n_ticks += 10
    await poll(clock)
    assert slow.ticks[-200:] == list(range(client.n_ticks - 200, client.n_ticks))


async def test_a_poll_that_breaks_ends_the_streams(come, client, clock):
    client.incarnation_id = RuntimeError("a bug")
    viewer = await come()
    await until(lambda: clock.sleeping == 1)
    clock.go.release()
    await asyncio.wait_for(viewer.task, 60)
    assert viewer.sent[-1]["more_body"] is False
