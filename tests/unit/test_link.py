"""EngineLink: what keeping in touch with an engine tells the dispatcher."""

import asyncio
import os
import signal
import subprocess
import warnings

import pytest
from ray.exceptions import ActorDiedError
from telemetry_records import waited

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    import ray.serve  # noqa: F401  its models use pydantic's old ways; nothing of Ray is started

from cobali_ray.actors import engine_server, link
from cobali_ray.actors.engine_server import EngineServer
from cobali_ray.actors.link import EngineLink
from cobali_ray.actors.processes import began_at, kill_if_same
from cobali_ray.backend.scripted import NoDevices
from cobali_ray.core.dispatch import engines
from cobali_ray.core.dispatch.messages import Attended, Lost, Silent
from cobali_ray.core.views.stats import Attendance
from cobali_ray.settings import EngineSettings
from cobali_ray.telemetry.names import HttpAnswer
from cobali_ray.testing import FakeClock, LocalHandle, LocalResponse
from tests.waiting import until

ANSWER = HttpAnswer("unmatched", "GET", 401)


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
        await until(lambda: len(self.calls) >= n)


class Setup:
    def __init__(self):
        self.clock, self.engine, self.heard = FakeClock(), Engine(), []
        self.known = engines.EngineRecord("0", 5.0)
        self.link = EngineLink(self.engine, self.known, self.on_event, now=self.clock.now)

    def on_event(self, event):
        self.heard.append(event)
        if isinstance(event, Attended):
            self.known.attendance = event.attendance

    async def answer(self, **fields):
        """Answer the open call; return once the next one is open."""
        n = len(self.engine.calls)
        found = Attendance("e1", 0, **{"pid": os.getpid()} | fields)
        self.engine.calls[-1].answer(found)
        await self.engine.asked(n + 1)

    async def hears(self, kind):
        return await until(lambda: self.heard and isinstance(self.heard[-1], kind) and self.heard[-1])


@pytest.fixture
async def s():
    """Begin as every ingress does."""
    setup = Setup()
    setup.link.start()
    await setup.engine.asked(1)
    yield setup
    setup.link.close()
    await asyncio.sleep(0)


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(link, "SILENT_S", 0.001)
    monkeypatch.setattr(link, "POLL_S", 0.001)


async def test_an_answer_is_told_with_when_it_was_asked_for(s):
    s.clock.advance(3.0)
    await s.answer(model="m")
    assert s.heard == [Attended("0", Attendance("e1", 0, model="m", pid=os.getpid()), 0.0)]
    assert s.engine.heard[-1][1] == s.known.attendance, "the engine is told what is known of it"


@pytest.mark.parametrize("end", [lambda call: call.die(ActorDiedError()), lambda call: call.task.cancel()])
async def test_a_call_that_fails_is_a_loss_and_another_one_is_made(s, end):
    end(s.engine.calls[-1])  # the process has ended, or its replica is told to stop
    await s.engine.asked(2)
    assert s.heard == [Lost("0")]


async def test_what_goes_wrong_with_one_answer_does_not_end_the_link(s):
    def fail_once(_):
        s.link._on_event = s.on_event
        raise ZeroDivisionError

    s.link._on_event = fail_once
    await s.answer()
    await s.answer()
    assert [type(event) for event in s.heard] == [Attended]


async def test_silence_is_told_again_and_again_and_how_long_it_lasts(s, soon):
    await s.hears(Silent)
    first = s.heard[0]
    assert (first.called_s, first.ended) == (0.0, False)
    again = await until(lambda: s.heard[-1] != first and s.heard[-1])
    assert again.silent_s > first.silent_s
    assert len(s.engine.calls) == 1, "what follows from that is not decided here"
    s.link.ask_again()
    await s.engine.asked(2)
    assert Lost("0") in s.heard


async def test_time_in_which_the_ingress_stood_still_is_no_silence(s, monkeypatch):
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + link.SILENT_S + 1)
    await s.answer()
    assert [type(event) for event in s.heard] == [Attended]


@pytest.fixture(params=["zombie", "reaped"])
def ended(request):
    """The id of a process that was killed."""
    with subprocess.Popen(["sleep", "600"]) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if request.param == "reaped":
            process.wait()
        yield process.pid


async def test_a_process_that_is_gone_is_not_merely_silent(s, soon, ended):
    await s.answer(pid=ended)
    assert (await s.hears(Silent)).ended


async def test_a_later_process_with_its_id_is_not_the_engine(s, soon):
    await s.answer(began=began_at(os.getpid()) - 1)
    assert (await s.hears(Silent)).ended


async def test_nothing_is_known_of_a_process_of_another_machine(s, soon, ended):
    await s.answer(pid=ended, wire_key="key")
    assert not (await s.hears(Silent)).ended


def test_only_the_process_that_was_meant_is_killed():
    with subprocess.Popen(["sleep", "600"]) as process:
        began = began_at(process.pid)
        kill_if_same(process.pid, began - 1)
        assert process.poll() is None
        kill_if_same(process.pid, began)
        assert process.wait() == -signal.SIGKILL
    kill_if_same(process.pid, began)  # it is gone


async def test_values_outlive_an_engine_that_did_not_take_them(s):
    s.link.observe("ttft_seconds", waited(1.0))
    await s.answer()
    assert s.engine.heard[-1][0] == {"ttft_seconds": [waited(1.0)]}
    s.link.observe("ttft_seconds", waited(2.0))
    s.link.count(ANSWER)
    s.engine.calls[-1].die(ActorDiedError())
    await s.engine.asked(3)
    assert s.engine.heard[-1] == s.engine.heard[-2], "the same under the same number"
    await s.answer()
    *_, answers, number = s.engine.heard[-1]
    assert s.engine.heard[-1][0] == {"ttft_seconds": [waited(2.0)]}
    assert (answers, number) == ({ANSWER: 1}, s.engine.heard[-2][-1] + 1)
    await s.answer()
    assert (s.engine.heard[-1][0], s.engine.heard[-1][-2]) == ({}, {}), "each value is told once"


@pytest.fixture
def engine(monkeypatch):
    """An engine; its device reports its loss by `lose`."""
    losing = []
    monkeypatch.setattr(engine_server, "ATTEND_S", 0)
    monkeypatch.setattr(NoDevices, "on_loss", lambda _, report: losing.append(report))
    engine = EngineServer(EngineSettings(model="builtin:scripted", n_slots=2))
    (engine.lose,) = losing
    yield engine
    engine.__del__()


async def test_what_is_sent_again_is_counted_once(engine):
    for address, number in (("/a", 1), ("/a", 1), ("/a", 2), ("/b", 1)):
        await engine.attend({}, None, address, {ANSWER: 1}, number)
    assert await engine.http_answers() == {ANSWER: 3}


async def test_all_ingresses_hear_at_once_which_device_is_lost(engine, monkeypatch):
    monkeypatch.setattr(engine_server, "ATTEND_S", 60)
    known = await engine.attend({}, None)
    calls = [asyncio.create_task(engine.attend({}, known)) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.to_thread(engine.lose, "far:1 (the connection to it broke)")
    assert [(await call).lost for call in calls] == ["far:1 (the connection to it broke)"] * 2


async def test_all_ingresses_hear_of_every_restart(engine):
    assert (await engine.attend({}, None)).n_restarts == 0, "the first engine of a server"
    seen = await engine.attend({}, Attendance("its predecessor", 4))
    assert seen.n_restarts == 5
    again = await engine.attend({}, seen)
    assert again.up_s > seen.up_s > 0
    assert again._replace(up_s=seen.up_s) == seen, "known is known"
    newcomer = await engine.attend({}, None)
    assert newcomer._replace(up_s=seen.up_s) == seen, "an ingress that was restarted itself learns it"
    once_more = await engine.attend({}, Attendance("its predecessor", 4))
    assert once_more.n_restarts == 5, "one death, counted once"
