"""What happens when engines die or hang, and servers stop."""

import asyncio
import contextlib
import json
import os
import signal
import time

import psutil
import pytest
from own_server import command

from tests.waiting import until

pytestmark = pytest.mark.ray

SAY = [{"role": "user", "content": "tell me something"}]
LONG = {"model": "scripted", "messages": SAY, "stream": True, "max_tokens": 3000, "ignore_eos": True}
SHORT = {"model": "scripted", "messages": SAY, "max_tokens": 3}
CHAT = "/v1/chat/completions"
ANSWER = {"max_tokens": 600, "temperature": 0}
BACK_S = 60


class Stream:
    """One open stream: entered once its first bytes are here."""

    def __init__(self, http, **fields):
        self.http, self.body = http, LONG | fields

    async def __aenter__(self):
        self.context = self.http.stream("POST", CHAT, json=self.body)
        self.response = await self.context.__aenter__()
        assert self.response.status_code == 200
        self.lines = self.response.aiter_lines()
        self.first = await anext(self.lines)
        return self

    async def __aexit__(self, *error):
        await self.context.__aexit__(*error)

    async def rest(self):
        """Read to the end; return all events."""
        datas = [line.removeprefix("data: ") async for line in self.lines if line]
        datas.insert(0, self.first.removeprefix("data: "))
        return [data if data == "[DONE]" else json.loads(data) for data in datas]


def text_of(events):
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def shown(http):
    """Return what `/metrics` says, by series; the engine's id goes without saying."""
    response = await http.get("/metrics")
    assert response.status_code == 200
    lines = [line for line in response.text.splitlines() if not line.startswith("#")]
    bare = [line.replace('{engine="0"}', "", 1) for line in lines]
    return {series: float(value) for series, value in (line.rsplit(" ", 1) for line in bare)}


class Viewer:
    """A reader of /debug/stream."""

    def __init__(self, http):
        self.http = http

    async def __aenter__(self):
        self.context = self.http.stream("GET", "/debug/stream")
        response = await self.context.__aenter__()
        assert response.status_code == 200
        self.lines = response.aiter_lines()
        return self

    async def __aexit__(self, *error):
        await self.context.__aexit__(*error)

    async def find(self, wanted):
        """Read on to the first event for which `wanted(name, data)` holds; return its data."""
        name = "message"
        async with asyncio.timeout(BACK_S):
            async for line in self.lines:
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    data = json.loads(line.removeprefix("data: "))
                    if wanted(name, data):
                        return data
                    name = "message"
        raise AssertionError("the stream ended")


def parent(pid):
    return psutil.Process(pid).ppid()


@contextlib.contextmanager
def killed(pid):
    """Kill an engine; nothing takes its place inside, however slowly its absence is looked at."""
    forks = parent(pid)
    os.kill(forks, signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGKILL)
        yield
    finally:
        os.kill(forks, signal.SIGCONT)


async def test_a_killed_engine_comes_back_by_itself_and_viewers_see_it(server, http):
    before = (await server.engine())["pid"]
    forks = parent(before)
    assert "cobali_ray.actors.fork_server" in command(forks)
    n_restarts = (await shown(http))["cobali_engine_restarts_total"]
    async with server.http() as other, Viewer(other) as viewer, Stream(http, **ANSWER) as stream:
        running = await viewer.find(lambda _, data: any(tick["spans"] for tick in data.get("ticks", ())))

        async def is_away():  # each ingress hears of it by itself
            ready, health = [await http.get(path) for path in ("/ready", "/health")]
            metrics = await shown(http)
            statuses = [ready.status_code, ready.json()["status"], health.json()["engine"]["status"]]
            if [*statuses, metrics["cobali_engine_up"]] != [503, "restarting", "restarting", 0]:
                return False
            assert 0 < ready.json()["engine"]["down_s"] < BACK_S
            assert "is being restarted" in ready.json()["engine"]["detail"]
            assert health.json()["status"] == "ok"
            return metrics["cobali_engine_down_seconds"] > 0

        began = time.perf_counter()
        with killed(before):
            await until(is_away)
            noticed_s = time.perf_counter() - began
        assert noticed_s < BACK_S / 2, "nobody waits for the engine"
        gone = await viewer.find(lambda name, _: name == "gone")
        assert gone["status"] == "restarting"
        back = await viewer.find(lambda name, _: name == "message")
        assert back["engine"]["incarnation_id"] != running["engine"]["incarnation_id"]
        assert back["engine"]["engine_id"] == running["engine"]["engine_id"] == gone["engine_id"] == "0"
        assert [tick["tick_id"] for tick in back["ticks"]] == list(range(len(back["ticks"]))), (
            "from the first"
        )
        events = await asyncio.wait_for(stream.rest(), BACK_S)
    assert events[-1] == "[DONE]"
    assert not any("error" in event for event in events[:-1])
    assert events[-2]["timings"]["decode_s"] > 0.5, "the pause is in it"
    response = await asyncio.wait_for(http.post(CHAT, json=SHORT), BACK_S)
    back_s = time.perf_counter() - began
    assert response.status_code == 200, response.text

    async def is_back():
        return (await shown(http)).items() >= {
            ("cobali_engine_up", 1),
            ("cobali_engine_down_seconds", 0),
            ("cobali_engine_restarts_total", n_restarts + 1),
        }

    await until(is_back)
    after = (await server.engine())["pid"]
    assert after != before
    assert parent(after) == forks, "forked from what had imported everything"
    async with Stream(http, **ANSWER) as again:
        assert text_of(await again.rest()) == text_of(events) != "", "the answer is the same"
    print(f"noticed after {noticed_s:.2f} s, back after {back_s:.2f} s")  # noqa: T201 shown with -s


@pytest.mark.parametrize("server", ["stuck"], indirect=True)
async def test_an_engine_that_hangs_is_replaced(server, http):
    before = (await server.engine())["pid"]
    hung = asyncio.ensure_future(http.post(CHAT, json=SHORT))

    async def shows():
        return (await shown(http)).get("cobali_last_tick_age_seconds")

    await until(shows)  # though no tick has ever ended

    async def replaced():
        return (await server.engine())["pid"] != before

    await until(replaced, timeout_s=BACK_S)
    hung.cancel()
    await asyncio.wait({hung})


@pytest.fixture
async def open_again(server):
    """Have the engine's successor be open to the tests that follow."""
    yield
    os.kill((await server.engine())["pid"], signal.SIGKILL)


@pytest.mark.parametrize("server", ["narrow"], indirect=True)
async def test_draining_finishes_the_running_and_refuses_the_new(server, http, open_again):
    async with Stream(http) as stream, server.http() as page:
        # Fifteen seconds are enough to ask three times, and of four viewers each ingress has some.
        viewers = [asyncio.ensure_future(page.get("/debug/stream")) for _ in range(4)]
        draining = asyncio.ensure_future(server.drain(40.0))

        async def refusing():
            return not await server.is_ready()

        await until(refusing)
        ready = await http.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        refused = await http.post(CHAT, json=SHORT)
        assert refused.status_code == 503
        assert refused.json()["error"]["message"] == "The server is draining and accepts no new requests."
        assert "retry-after" in refused.headers
        assert not draining.done()
        events = await asyncio.wait_for(stream.rest(), BACK_S)
        drained = await asyncio.wait_for(draining, BACK_S)
        seen = await asyncio.wait_for(asyncio.gather(*viewers), BACK_S)
    assert events[-1] == "[DONE]"
    assert not any("error" in event for event in events[:-1])
    assert drained == [True, True], "all ended in time"
    assert [one.status_code for one in seen] == [200] * 4
