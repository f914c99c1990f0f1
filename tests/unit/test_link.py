"""EngineLink: an ingress knows at once that its engine is away, since when, and how often that happened."""

import asyncio
import os
import signal
import subprocess
import warnings

import pytest
from ray.exceptions import ActorDiedError
from structlog.testing import capture_logs

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    import ray.serve  # noqa: F401  its models use pydantic's old ways; nothing of Ray is started

from cobali_ray.actors import engine_server, link
from cobali_ray.actors.engine_server import EngineServer
from cobali_ray.actors.link import EngineLink
from cobali_ray.actors.processes import began_at, kill_if_same
from cobali_ray.core.stats import Attendance, EngineStatus
from cobali_ray.errors import EngineDiedError, LoadingError
from cobali_ray.settings import EngineSettings
from cobali_ray.testing import FakeClock, LocalHandle, LocalResponse

WAIT_S = 60


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Engine(LocalHandle):
    """An engine that answers `attend` when told to."""

    def __init__(self):
        self.heard, self.calls = [], []

    def call(self, name, args):
        assert name == "attend"
        self.heard.append(args)
        answer = asyncio.get_running_loop().create_future()

        async def wait():
            return await answer

        response = LocalResponse(wait())
        response.answer = answer.set_result
        self.calls.append(response)
        return response

    async def asked(self, n):
        """Wait until it was called `n` times."""
        async with asyncio.timeout(WAIT_S):
            while len(self.calls) < n:  # noqa: ASYNC110 a call is no event
                await asyncio.sleep(0.001)


class Setup:
    def __init__(self):
        self.clock, self.engine = FakeClock(), Engine()
        self.given_up, self.successors = [], []
        self.link = EngineLink(
            self.engine,
            "0",
            self.clock.now,
            self.successors.append,
            stall_timeout_s=5.0,
            give_up=self.given_up.append,
        )

    async def begin(self):
        """Begin as every ingress does: the first answer comes at once, the second call stays open."""
        self.link.start()
        await self.answer("e1")

    async def answer(self, incarnation_id, n_restarts=0, model="", up_s=60.0, pid=None, began=0):
        n = len(self.engine.calls)
        await self.engine.asked(max(n, 1))
        pid = os.getpid() if pid is None else pid
        found = Attendance(incarnation_id, n_restarts, model=model, up_s=up_s, pid=pid, began=began)
        self.engine.calls[-1].answer(found)
        await self.engine.asked(max(n, 1) + 1)


@pytest.fixture
async def make():
    made = []

    async def make():
        made.append(Setup())
        await made[-1].begin()
        return made[-1]

    yield make
    for setup in made:
        setup.link.close()
    await asyncio.sleep(0)


async def test_an_engine_that_answers_is_there(make):
    s = await make()
    assert s.link.away is None
    assert s.link.presence == ("0", True, 0.0, 0)


async def test_a_death_shows_at_once_and_for_how_long(make):
    s = await make()
    s.engine.calls[-1].die(ActorDiedError())
    await s.engine.asked(3)
    s.clock.advance(4.0)
    away = s.link.away
    assert (away.status, away.down_s) == (EngineStatus.RESTARTING, 4.0)
    assert away.detail == "the engine ended 4.0 s ago and is being restarted"
    assert s.link.presence == ("0", False, 4.0, 0)
    await s.answer("e2", 1)
    assert s.link.away is None
    assert s.link.presence == ("0", True, 0.0, 1)


async def test_an_engine_that_was_told_to_stop_is_away_too(make):
    s = await make()
    s.engine.calls[-1].task.cancel()  # by the replica, not by us
    await s.engine.asked(3)
    assert s.link.away.status is EngineStatus.RESTARTING


async def test_silence_is_no_death_until_it_is_one(make, monkeypatch):
    monkeypatch.setattr(link, "SILENT_S", 0.001)
    s = await make()
    s.clock.advance(3.0)
    async with asyncio.timeout(WAIT_S):
        while s.link.away is None:  # noqa: ASYNC110 a property is no event
            await asyncio.sleep(0.001)
    assert (s.link.away.status, s.link.away.down_s) == (EngineStatus.STALLED, 3.0)
    assert s.link.away.detail == "the engine has not answered for 3.0 s"
    s.engine.calls[-1].die(ActorDiedError())
    await s.engine.asked(3)
    s.clock.advance(1.0)
    assert (s.link.away.status, s.link.away.down_s) == (EngineStatus.RESTARTING, 4.0), "away since then"


async def test_time_in_which_the_ingress_stood_still_is_no_silence(make, monkeypatch):
    s = await make()
    loop = asyncio.get_running_loop()
    now = loop.time
    with capture_logs() as said:
        await asyncio.sleep(0)
        monkeypatch.setattr(loop, "time", lambda: now() + link.SILENT_S + 1)
        await s.answer("e1")
    assert said == []


@pytest.fixture(params=["zombie", "reaped"])
def ended(request):
    """The id of a process that was killed."""
    with subprocess.Popen(["sleep", "600"]) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if request.param == "reaped":
            process.wait()
        yield process.pid


async def test_a_process_that_is_gone_is_not_merely_silent(make, monkeypatch, ended):
    s = await make()
    monkeypatch.setattr(link, "SILENT_S", 0.001)
    await s.answer("e2", 1, pid=ended)
    async with asyncio.timeout(WAIT_S):
        while s.link.away is None:  # noqa: ASYNC110 a property is no event
            await asyncio.sleep(0.001)
    assert s.link.away.status is EngineStatus.RESTARTING


async def test_an_engine_that_stays_silent_is_given_up_once(make, monkeypatch):
    monkeypatch.setattr(link, "SILENT_S", 0.001)
    monkeypatch.setattr(link, "LOOK_S", 0.001)
    s = await make()
    s.link._stall_timeout_s = 0.003
    async with asyncio.timeout(WAIT_S):
        while not s.given_up:  # noqa: ASYNC110 a call is no event
            await asyncio.sleep(0.001)
    found = asyncio.ensure_future(s.link.find())
    await s.engine.asked(4)  # its successor, which is silent as well
    monkeypatch.setattr(link, "SILENT_S", 3600)
    await s.engine.asked(len(s.engine.calls) + 1)
    assert [engine.incarnation_id for engine in s.given_up] == ["e1"]
    assert not found.done()
    await s.answer("e2", 1)
    assert (await found).incarnation_id == "e2"


async def test_a_process_that_has_ended_is_not_given_up_as_well(make, monkeypatch, ended):
    """By then its id may be another's."""
    monkeypatch.setattr(link, "LOOK_S", 0.001)
    s = await make()
    monkeypatch.setattr(link, "SILENT_S", 0.001)
    s.link._stall_timeout_s = 0.003
    with capture_logs() as said:
        await s.answer("e2", 1, pid=ended)
        await s.engine.asked(len(s.engine.calls) + 2)
    assert s.link.away.status is EngineStatus.RESTARTING
    assert "engine_given_up" not in {line["event"] for line in said}
    assert not s.given_up


async def test_a_later_process_with_its_id_is_not_the_engine(make, monkeypatch):
    s = await make()
    monkeypatch.setattr(link, "SILENT_S", 0.001)
    await s.answer("e2", 1, began=began_at(os.getpid()) - 1)
    async with asyncio.timeout(WAIT_S):
        while s.link.away is None:  # noqa: ASYNC110 a property is no event
            await asyncio.sleep(0.001)
    assert s.link.away.status is EngineStatus.RESTARTING


def test_only_the_process_that_was_meant_is_killed():
    with subprocess.Popen(["sleep", "600"]) as process:
        began = began_at(process.pid)
        kill_if_same(process.pid, began - 1)
        assert process.poll() is None
        kill_if_same(process.pid, began)
        assert process.wait() == -signal.SIGKILL
    kill_if_same(process.pid, began)  # it is gone


async def test_an_engine_that_answers_late_is_not_given_up(make, monkeypatch):
    monkeypatch.setattr(link, "SILENT_S", 0.001)
    monkeypatch.setattr(link, "LOOK_S", 0.001)
    s = await make()
    async with asyncio.timeout(WAIT_S):
        while s.link.away is None:  # noqa: ASYNC110 a property is no event
            await asyncio.sleep(0.001)
    await s.answer("e1")
    assert not s.given_up


async def test_a_successor_has_the_same_model_or_another(make):
    s = await make()
    for incarnation_id, model in (("e1", ""), ("e2", ""), ("e2", ""), ("e3", "b")):
        await s.answer(incarnation_id, 0, model)
    assert s.successors == [True, False]


async def test_a_death_shows_though_serve_sent_the_call_to_the_successor(make):
    s = await make()
    asking = asyncio.ensure_future(s.link.ask(LocalResponse(asyncio.Event().wait())))
    await asyncio.sleep(0)
    s.clock.advance(0.8)
    with capture_logs() as said:
        await s.answer("e2", 1, up_s=0.5)
    assert [(line["event"], line.get("away_s")) for line in said] == [
        ("engine_away", None),
        ("engine_back", 0.8),
    ]
    with pytest.raises(EngineDiedError):
        await asyncio.wait_for(asking, WAIT_S)
    assert s.link.away is None
    assert s.successors == [True]


async def test_an_engine_that_was_replaced_in_order_did_not_die(make):
    s = await make()
    s.clock.advance(0.8)
    with capture_logs() as said:
        await s.answer("e2", 1, up_s=1.5)
        await s.answer("e2", 1, up_s=0.0)
    assert said == []


async def test_who_waits_for_an_engine_hears_when_there_is_none(make, monkeypatch):
    monkeypatch.setattr(link, "BACK_S", 0.001)
    s = await make()
    assert (await s.link.find()).incarnation_id == "e1"
    s.engine.calls[-1].die(ActorDiedError())
    await s.engine.asked(3)
    with pytest.raises(LoadingError):
        await s.link.find()


async def test_who_hears_late_of_a_death_blames_no_successor(make):
    s = await make()
    s.link.end("e1")
    assert s.link.away.status is EngineStatus.RESTARTING
    await s.answer("e2", 1)
    s.link.end("e1")
    assert s.link.away is None
    assert s.link.incarnation_id == "e2"


async def test_an_engine_that_is_gone_again_at_once_is_waited_for(make):
    s = await make()
    s.link.end("e1")
    found = asyncio.ensure_future(s.link.find())
    await asyncio.sleep(0)
    s.link._met(Attendance("e2", 1), s.clock.now())
    s.link.end("e2")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not found.done()
    await s.answer("e3", 2)
    assert (await found).incarnation_id == "e3"


async def test_a_process_that_has_loaded_another_file_is_another_engine(make):
    s = await make()
    for model in ("", "b", "b"):
        await s.answer("e1", 0, model)
    assert s.successors == [False]


async def test_nobody_waits_for_an_answer_of_the_dead(make, monkeypatch):
    monkeypatch.setattr(link, "SILENT_S", 3600)  # it is not that
    s = await make()
    asked = LocalResponse(asyncio.Event().wait())
    asking = asyncio.ensure_future(s.link.ask(asked))
    await asyncio.sleep(0)
    s.engine.calls[-1].die(ActorDiedError())
    with pytest.raises(EngineDiedError):
        await asyncio.wait_for(asking, WAIT_S)
    assert asked.n_cancels == 1


async def test_values_outlive_an_engine_that_did_not_take_them(make):
    s = await make()
    s.link.observe("ttft_seconds", 1.0)
    await s.answer("e1")
    assert s.engine.heard[-1][0] == {"ttft_seconds": [1.0]}
    s.link.observe("ttft_seconds", 2.0)
    s.engine.calls[-1].die(ActorDiedError())
    await s.engine.asked(4)
    assert s.engine.heard[-1][0] == {"ttft_seconds": [1.0, 2.0]}
    await s.answer("e2", 1)
    assert s.engine.heard[-1][0] == {}, "each value is told once"


async def test_all_ingresses_hear_of_every_restart(monkeypatch):
    monkeypatch.setattr(engine_server, "ATTEND_S", 0)
    engine = EngineServer(EngineSettings(model="builtin:scripted", n_slots=2))
    try:
        assert (await engine.attend({}, None)).n_restarts == 0, "the first engine of a server"
        seen = await engine.attend({}, Attendance("its predecessor", 4))
        assert seen.n_restarts == 5
        again = await engine.attend({}, seen)
        assert again.up_s > seen.up_s > 0
        assert again._replace(up_s=seen.up_s) == seen, "known is known"
        newcomer = await engine.attend({}, None)
        assert newcomer._replace(up_s=seen.up_s) == seen, "an ingress that was restarted itself learns it"
        assert (await engine.attend({}, Attendance("its predecessor", 4))).n_restarts == 5, (
            "one death, counted once"
        )
    finally:
        engine.__del__()
