"""An ingress on one machine, engines on two others: what happens when a link is cut or a machine dies."""

import asyncio
import json
import time
from pathlib import Path

import httpx2
import pytest
import yaml
from machines import Machines, missing

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(580)]

EXAMPLE = Path(__file__).parents[2] / "serve_config.cluster.yaml"
TICK_S = 0.02
SETTINGS = {
    "model": "builtin:scripted",
    "scripted_tick_s": TICK_S,
    "n_slots": 8,
    "n_ctx": 4096,
    "log_level": "warning",
    "drain_timeout_s": 1,
}
ASK = {"model": "scripted", "messages": [{"role": "user", "content": "tell me something"}]}
LONG = ASK | {"stream": True, "max_tokens": 3000, "ignore_eos": True}
CHAT = "/v1/chat/completions"
N_STREAMS = 4
BACK_S = 120


def application(name, machine):
    """Return an engine on `machine`, and its ingress on the first one."""
    return {
        "name": name,
        "route_prefix": f"/{name}",
        "import_path": "cobali_ray.actors.app:build",
        "args": SETTINGS,
        "deployments": [
            {"name": name, "ray_actor_options": {"num_cpus": 0.1, "resources": {f"machine-{place}": 0.1}}}
            for name, place in (("engine", machine), ("ingress", 1))
        ],
    }


def client(name):
    return httpx2.AsyncClient(base_url=f"http://10.199.0.1:8000/{name}", timeout=10.0)


async def until_ready(name):
    """Wait until it answers a question."""
    async with client(name) as http, asyncio.timeout(BACK_S):
        while True:
            try:
                response = await http.post(CHAT, json=ASK | {"max_tokens": 3})
                if response.status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


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
                "applications": [application("two", 2), application("three", 3)],
            }
        )
        await asyncio.gather(until_ready("two"), until_ready("three"))
        yield machines


class Streams:
    """Several streams of one engine: when something came last, the longest gap, and how each ended."""

    def __init__(self, name):
        self.name, self.ends, self.gap_s, self.last_s = name, [], 0.0, 0.0

    async def __aenter__(self):
        self._begun = asyncio.Semaphore(0)
        self._tasks = [asyncio.ensure_future(self._read()) for _ in range(N_STREAMS)]
        async with asyncio.timeout(30):
            for _ in self._tasks:
                await self._begun.acquire()
        return self

    async def _read(self):
        last_s = None
        async with client(self.name) as http, http.stream("POST", CHAT, json=LONG) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if not line:
                    continue
                data, now = line.removeprefix("data: "), time.monotonic()
                if last_s is None:
                    self._begun.release()
                elif not data.startswith('{"error"') and data != "[DONE]":
                    self.gap_s = max(self.gap_s, now - last_s)
                last_s = now
                if data != "[DONE]" and "error" in (event := json.loads(data)):
                    self.ends.append((now, event["error"]["code"]))

    async def ended(self):
        """Wait until all have ended; return when the last one did, and with what."""
        async with asyncio.timeout(60):
            await asyncio.wait(self._tasks)
        return max(now for now, _ in self.ends), [code for _, code in self.ends]

    async def __aexit__(self, *error):
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        assert all(task.cancelled() or task.exception() is None for task in self._tasks)


async def until_idle(name):
    async with client(name) as http, asyncio.timeout(BACK_S):
        while (await http.get("/health")).json()["engine"].get("n_running") != 0:  # noqa: ASYNC110 another process
            await asyncio.sleep(0.1)


async def test_a_cut_link_is_noticed_at_once_and_heals(served, capsys):
    async with Streams("two") as two, Streams("three") as three:
        served.cut(3)
        cut_s = time.monotonic()
        ended_s, codes = await three.ended()
        noticed_s = ended_s - cut_s
        assert codes == ["engine_died"] * N_STREAMS
        async with client("three") as http:
            asked_s = time.monotonic()
            response = await http.post(CHAT, json=ASK)
            refused_s = time.monotonic() - asked_s
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "engine_died"
        served.heal(3)
        healed_s = time.monotonic()
        await until_ready("three")
        back_s = time.monotonic() - healed_s
        assert not two.ends
    await until_idle("three")
    idle_s = time.monotonic() - healed_s
    with capsys.disabled():
        print(
            f"\nlink cut: noticed after {noticed_s:.2f} s, new requests refused after {refused_s:.2f} s, "
            f"back {back_s:.2f} s and idle {idle_s:.2f} s after it healed; "
            f"longest gap of the others {two.gap_s:.2f} s"
        )
    assert 0.5 < noticed_s < 3
    assert two.gap_s < 1


async def test_a_machine_that_dies_takes_its_own_streams_along_and_comes_back(served, capsys):
    async with Streams("two") as two, Streams("three") as three:
        served.cut(2)  # so that, as without power, nobody is told
        killed_s = time.monotonic()
        served.kill(2)
        ended_s, codes = await two.ended()
        assert set(codes) <= {"engine_died", "events_lost"}
        assert len(codes) == N_STREAMS
        noticed_s = ended_s - killed_s
        assert not three.ends
        gap_s = three.gap_s
    served.heal(2)
    started_s = time.monotonic()
    await asyncio.to_thread(served.start, 2)
    up_s = time.monotonic() - started_s
    await until_ready("two")
    with capsys.disabled():
        print(
            f"\nmachine killed: noticed after {noticed_s:.2f} s, serves {time.monotonic() - started_s:.1f} s "
            f"after it was switched on again ({up_s:.1f} s of that for Ray); longest gap of the others "
            f"{gap_s:.2f} s"
        )
    assert noticed_s < 3
    assert gap_s < 1


async def test_the_example_serves_on_each_machine_with_an_ingress(served):
    config = yaml.safe_load(EXAMPLE.read_text())
    (example,) = config["applications"]
    example["args"] |= SETTINGS
    await asyncio.to_thread(served.deploy, config)
    serving = set()
    async with asyncio.timeout(BACK_S):
        while len(serving) < 2:
            await asyncio.sleep(0.5)
            serving |= {i for i in (1, 2, 3) if await status(served.address(i)) == 200}
    answers = [await status(served.address(i)) for i in serving for _ in range(20)]
    assert answers == [200] * 40


async def status(address):
    """Ask a machine's front end; return the status of its answer, 0 if there was none."""
    async with httpx2.AsyncClient(timeout=10.0) as http:
        try:
            return (await http.post(f"http://{address}:8000{CHAT}", json=ASK | {"max_tokens": 3})).status_code
        except httpx2.TransportError:
            return 0
