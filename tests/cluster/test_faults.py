"""An ingress on one machine, engines on two others: what happens when a link is cut or a machine dies."""

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
import yaml
from machines import URL, Machines, missing

from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(580)]

EXAMPLE = Path(__file__).parents[2] / "serve_config.cluster.yaml"
TICK_S = 0.02
SETTINGS = {
    "model": f"builtin:scripted:{TICK_S}",
    "n_slots": 8,
    "n_ctx": 4096,
    "log_level": "warning",
    "drain_timeout_s": 1,
}
ASK = {"model": "scripted", "messages": [{"role": "user", "content": "tell me something"}]}
LONG = ASK | {"stream": True, "max_tokens": 3000, "ignore_eos": True}
CHAT = "/v1/chat/completions"
N_STREAMS = 8
BACK_S = 120
CUT_S = 3.0
"""Ray gives up a machine whose link is cut for about five seconds: it ends, and is not back by itself."""


def application():
    """Return two engines of one model, on the second and third machine, and an ingress on the first one."""
    places = (("engine-0", 2), ("engine-1", 3), ("ingress", 1))
    return {
        "name": "cobali",
        "route_prefix": "/",
        "import_path": "cobali_ray.actors.app:build",
        "args": SETTINGS | {"replicas": 2},
        "deployments": [
            {"name": name, "ray_actor_options": {"num_cpus": 0.1, "resources": {f"machine-{place}": 0.1}}}
            for name, place in places
        ],
    }


def client():
    return httpx2.AsyncClient(base_url=URL, timeout=30.0)


async def until_ready(*statuses):
    """Wait until the engines, in their order, are as told."""
    async with client() as http:

        async def are():
            with suppress(httpx2.TransportError, KeyError):
                told = (await http.get("/ready")).json()["engines"]
                return [engine["status"] for engine in told] == list(statuses)

        await until(are, timeout_s=BACK_S, pause_s=0.1)


@pytest.fixture(scope="module")
async def served():
    """Three machines, and two engines that answer."""
    if why := missing():
        pytest.skip(f"no machines of our own: {why}")
    with Machines(3, host="0.0.0.0") as machines:
        machines.deploy(
            {
                "proxy_location": "EveryNode",
                "http_options": {"host": "127.0.0.1", "port": 8000},
                "applications": [application()],
            }
        )
        await until_ready("ready", "ready")
        yield machines


class Streams:
    """Streams of both engines: when something came last of each, the longest gap, and what went wrong."""

    def __init__(self):
        self.errors, self.gap_s, self.last_s = [], 0.0, {}

    async def __aenter__(self):
        self._tasks = [asyncio.ensure_future(self._read(i)) for i in range(N_STREAMS)]
        await until(lambda: len(self.last_s) == N_STREAMS)
        return self

    async def _read(self, i):
        async with client() as http, http.stream("POST", CHAT, json=LONG) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                data, now = line.removeprefix("data: "), time.monotonic()
                if not data or data == "[DONE]":
                    continue
                if "error" in (event := json.loads(data)):
                    self.errors.append(event["error"]["code"])
                self.gap_s = max(self.gap_s, now - self.last_s.get(i, now))
                self.last_s[i] = now

    async def go_on(self, seconds):
        """Wait until each has said something so many seconds from now."""
        until_s = time.monotonic() + seconds
        await until(lambda: min(self.last_s.values()) >= until_s, timeout_s=seconds + 30)

    async def __aexit__(self, *error):
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        assert all(task.cancelled() or task.exception() is None for task in self._tasks)


async def running():
    """Return how many requests each engine runs, as far as it can be asked."""
    async with client() as http:
        return [engine["n_running"] for engine in (await http.get("/ready")).json()["engines"]]


async def until_idle():
    async def idle():
        return await running() == [0, 0]

    await until(idle, timeout_s=BACK_S, pause_s=0.1)


async def test_behind_a_cut_link_streams_go_on_elsewhere_and_it_heals(served, capsys):
    async with Streams() as streams:
        assert await running() == [N_STREAMS // 2, N_STREAMS // 2]
        served.cut(3)
        await streams.go_on(CUT_S)
        assert not streams.errors
        gap_s = streams.gap_s
        served.heal(3)
        healed_s = time.monotonic()
        await until_ready("ready", "ready")
        back_s = time.monotonic() - healed_s
    await until_idle()
    with capsys.disabled():
        print(f"\nlink cut: longest gap {gap_s:.2f} s, the engine is back {back_s:.2f} s after it healed")
    assert gap_s < 3


async def test_a_machine_that_dies_fails_nobody_and_comes_back(served, capsys):
    async with Streams() as streams:
        n_running = await running()  # an engine that was seen to be faster may have all of them
        died = 2 + n_running.index(max(n_running))
        served.cut(died)  # so that, as without power, nobody is told
        served.kill(died)
        await streams.go_on(5.0)
        assert not streams.errors
        gap_s = streams.gap_s
    served.heal(died)
    started_s = time.monotonic()
    await asyncio.to_thread(served.start, died)
    up_s = time.monotonic() - started_s
    await until_ready("ready", "ready")
    with capsys.disabled():
        print(
            f"\nmachine killed: longest gap {gap_s:.2f} s, serves {time.monotonic() - started_s:.1f} s after "
            f"it was switched on again ({up_s:.1f} s of that for Ray)"
        )
    assert gap_s < 3


async def test_the_example_serves_on_each_machine_with_an_ingress(served):
    config = yaml.safe_load(EXAMPLE.read_text())
    (example,) = config["applications"]
    example["args"] |= SETTINGS
    await asyncio.to_thread(served.deploy, config)
    serving = set()

    async def two_serve():
        serving.update([i for i in (1, 2, 3) if await status(served.address(i)) == 200])
        return len(serving) >= 2

    await until(two_serve, timeout_s=BACK_S, pause_s=0.5)
    answers = [await status(served.address(i)) for i in serving for _ in range(20)]
    assert answers == [200] * 40


async def status(address):
    """Ask a machine's front end; return the status of its answer, 0 if there was none."""
    async with httpx2.AsyncClient(timeout=10.0) as http:
        try:
            return (await http.post(f"http://{address}:8000{CHAT}", json=ASK | {"max_tokens": 3})).status_code
        except httpx2.TransportError:
            return 0
