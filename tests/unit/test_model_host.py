"""An engine's process loads its model, gives the memory back, and pauses."""

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from engine_in_process import setups, text_of
from telemetry_records import render

from cobali_ray.actors import engine_server, loaded_model, model_host
from cobali_ray.actors.loaded_model import identity_of
from cobali_ray.core.dispatch.engines import Phase
from cobali_ray.core.views.stats import EngineStatus
from cobali_ray.engine import opening
from cobali_ray.errors import (
    ConfigError,
    DrainingError,
    InternalError,
    ModelBusyError,
    ModelTooLargeError,
    NoRoomError,
    UnloadedError,
)
from cobali_ray.settings import EngineSettings
from tests.waiting import until


@pytest.fixture
async def make(monkeypatch):
    async with setups(monkeypatch) as make:
        yield make


async def test_an_engine_on_demand_loads_when_told_and_gives_back_when_told(make):
    s = await make(load="on_demand")
    assert (await s.client.state()).status is EngineStatus.UNLOADED
    with pytest.raises(UnloadedError):
        _ = s.client.card
    for ask in (s.client.cache(), s.client.ticks(last=1), s.client.move_slot("erase", 0, "")):
        with pytest.raises(UnloadedError):
            await ask
    assert 'cobali_engine_up{engine="0"} 1.0\n' in render(*await s.client.counts()), "the process is there"
    await asyncio.gather(s.model.load(), s.model.load())
    assert s.client.card.model_id == "scripted"
    assert s.model.present
    first = text_of(await s.collect("a"))
    assert (await s.client.state()).status is EngineStatus.READY
    running = s.generate("busy", max_tokens=4000)
    await anext(running)
    with pytest.raises(ModelBusyError):
        await s.model.unload()
    assert (await s.client.state()).idle_s == 0.0
    await running.aclose()
    await s.idle()
    await s.model.unload()
    assert (await s.client.state()).status is EngineStatus.UNLOADED
    assert text_of(await s.collect("c")) == first, "who asks has it loaded"
    assert (await s.handle.server.attend({}, None)).n_restarts == 0, "it is the same process"


async def test_a_model_that_is_loaded_once_more_is_no_restart_of_its_engine(make):
    s, began = await make(load="on_demand"), []
    for _ in range(2):
        await s.model.load()
        text = render(*await s.client.counts())
        began += [line for line in text.splitlines() if line.startswith("cobali_start_time_seconds")]
        await s.idle()
        await s.model.unload()
    assert len(began) == 2
    assert began[0] == began[1], "alerts of restarts count how often it changes"


async def test_a_model_that_is_loaded_while_the_server_stops_takes_nothing(make):
    s = await make(load="on_demand")
    assert await s.handle.server.drain(1.0)
    await s.model.load()
    with pytest.raises(DrainingError):
        await s.collect()


async def test_a_request_that_left_without_an_end_is_waited_for_no_longer(make):
    requests = (await make()).handle.server._requests
    with ExitStack() as stack:
        stack.enter_context(requests.opened("expanding"))
        waits = asyncio.ensure_future(requests.wait(600))
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        assert await waits


async def test_an_idle_model_is_let_go_after_its_time(make, monkeypatch):
    monkeypatch.setattr(engine_server, "ATTEND_S", 0.001)
    s = await make(load="on_demand", keep_alive_s=1000)
    await s.model.load()
    await s.collect()
    await s.idle()
    s.handle.server._host._used_s -= 900
    await s.handle.server.attend({}, None)
    assert (await s.client.state()).status is EngineStatus.READY
    s.handle.server._host._used_s -= 101
    await s.reaches(lambda state: state.status is EngineStatus.UNLOADED)


async def test_an_idle_model_is_not_let_go_while_it_is_loaded_again(make):
    s = await make(load="on_demand", keep_alive_s=1000)
    await s.model.load()
    await s.idle()
    host = s.handle.server._host
    async with host._turn:
        host._used_s -= 1001
        host.unload_if_idle()
        host.touch()
    await s.idle()
    assert (await s.client.state()).status is EngineStatus.READY


@pytest.mark.parametrize(
    ("most", "free", "on_devices", "error"),
    [
        (1 << 40, 10, False, NoRoomError),
        (10, 10, False, ModelTooLargeError),
        (10, 10, True, None),
        (None, None, False, None),
    ],
)
async def test_memory_is_checked_before_a_model_is_loaded(make, monkeypatch, most, free, on_devices, error):
    s = await make(load="on_demand")
    beside = SimpleNamespace(stat=lambda: SimpleNamespace(st_size=11))
    monkeypatch.setattr(model_host, "needed_bytes", lambda *_: 100)
    monkeypatch.setattr(model_host, "files_beside", lambda *_: [beside])
    monkeypatch.setattr(model_host, "lies_on_devices", lambda *_: on_devices)
    monkeypatch.setattr(model_host.memory, "most_bytes", lambda: most)
    monkeypatch.setattr(model_host.memory, "available_bytes", lambda: free)
    if error is None:
        await s.model.load()
        return
    with pytest.raises(error) as caught:
        await s.model.load()
    assert caught.value.n_bytes == 111
    assert (await s.client.state()).status is EngineStatus.UNLOADED


async def test_a_model_that_does_not_open_has_failed_and_may_be_tried_again(make, monkeypatch):
    s = await make(load="on_demand")
    real = loaded_model.open_engine
    monkeypatch.setattr(loaded_model, "open_engine", lambda *_, **__: 1 / 0)
    with pytest.raises(InternalError, match="division"):
        await s.model.load()
    state = await s.client.state()
    assert (state.status, state.detail) == (EngineStatus.FAILED, "division by zero")
    s.handle.server.check_health()
    monkeypatch.setattr(loaded_model, "open_engine", real)
    await s.model.load()
    assert (await s.collect())[-1].finish_reason == "length"


async def test_a_log_that_cannot_be_written_leaves_no_model_in_memory(make, monkeypatch, tmp_path):
    s = await make(load="on_demand", log_ticks=tmp_path / "gone" / "ticks")
    opened = []
    monkeypatch.setattr(loaded_model, "open_engine", lambda *_, **__: opened.append(1))
    with pytest.raises(ConfigError, match=r"log_ticks: .*gone/ticks cannot be written"):
        await s.model.load()
    assert opened == []


async def test_what_an_engine_answers_with_is_the_file_that_it_has_loaded(make, monkeypatch):
    s = await make(load="on_demand")
    first = (await s.handle.server.attend({}, None)).model
    monkeypatch.setattr(loaded_model, "identity_of", lambda *_: "a newer file")
    assert (await s.handle.server.attend({}, None)).model == first
    await s.model.load()
    assert (await s.handle.server.attend({}, None)).model == "a newer file"


async def test_two_who_ask_at_once_load_it_once(make, monkeypatch):
    s = await make(load="on_demand")
    opened, real = [], loaded_model.open_engine
    monkeypatch.setattr(loaded_model, "open_engine", lambda *a, **k: opened.append(1) or real(*a, **k))
    await asyncio.gather(*(s.handle.server.load() for _ in range(3)))
    assert len(opened) == 1


async def slow_and_alone(make):
    """Return an engine of one slot, which is at work for 20 s unless it hurries, and what 100 tokens are."""
    alone = text_of(await (await make()).collect(max_tokens=100))
    return await make(n_slots=1, model="builtin:scripted:0.2"), alone


def hurry(setup):
    setup.handle.server._host.model.loop._engine.backend._tick_s = 0.0


async def test_a_paused_engine_keeps_requests_and_says_where_they_are(make):
    s, alone = await slow_and_alone(make)
    running = s.generate("a", max_tokens=100)
    said = await anext(running)
    waiting = asyncio.ensure_future(s.collect("b", n_prompt=50))
    await s.reaches(lambda state: state.n_queued)
    assert await s.client.pause() == 1

    async def gave_its_slot_back():
        found = await s.client.find("a", "")
        return found if found[0].life.state == "queued" else None

    found = await until(gave_its_slot_back)
    assert (await s.client.state()).paused
    assert found[0].life.n_output > 0
    assert found[0].progress.n_ahead == 0, "who ran is next"
    ((queued, progress),) = await s.client.find("b", "")
    assert (queued.state, queued.n_prompt, progress.n_ahead) == ("queued", 50, 1)
    assert await s.client.find("b", "another tenant") == []
    assert await s.client.resume() == 2
    hurry(s)
    rest = [event async for events in running for event in events]
    assert text_of([*said, *rest]) == alone, "the answer is the same"
    assert (await waiting)[-1].finish_reason == "length"
    await s.counted(length=2)
    ((ended, progress),) = await s.client.find("b", "")
    assert (ended.state, ended.n_output, progress.n_processed) == ("ended", 5, 50)


async def test_a_pause_may_give_the_memory_back_and_all_go_on_afterwards(make, monkeypatch):
    s, alone = await slow_and_alone(make)
    running = s.generate("a", max_tokens=100)
    said = await anext(running)
    waiting = asyncio.ensure_future(s.collect("b"))
    await s.reaches(lambda state: state.n_queued)
    assert await s.client.release() == 1
    state = await s.client.state()
    assert (s.handle.server._host.model, state.status, state.paused) == (None, EngineStatus.UNLOADED, True)
    later = asyncio.ensure_future(s.collect("c"))
    await until(lambda: len(s.model.dispatch.state._open) == 3)
    assert await s.client.release() == 0, "once more changes nothing"

    def no_room(host):
        raise NoRoomError(2, 1)

    with monkeypatch.context() as full:
        full.setattr(model_host.ModelHost, "_check_room", no_room)
        with pytest.raises(NoRoomError):
            await s.client.resume()
    assert (await s.client.state()).paused, "until there is room for it"
    assert len(s.model.dispatch.state._open) == 3
    await s.client.resume()
    hurry(s)
    rest = [event async for events in running for event in events]
    assert text_of([*said, *rest]) == alone, "the answer is the same"
    assert rest[-1].error is None
    assert {(await one)[-1].finish_reason for one in (waiting, later)} == {"length"}


async def test_a_model_that_was_not_there_is_not_loaded_after_a_pause_but_for_who_asks(make):
    s = await make(load="on_demand")
    assert await s.client.release() == 0
    await until(lambda: s.known.phase is Phase.RELEASED)
    asked = asyncio.ensure_future(s.collect("a"))
    await until(lambda: s.model.dispatch.state._open)
    assert await s.client.resume() == 0
    assert (await asked)[-1].finish_reason == "length"


async def test_a_model_that_is_loaded_in_a_pause_begins_nothing(make):
    s = await make(load="on_demand")
    assert await s.client.pause() == 0
    await s.model.load()
    await s.reaches(lambda state: state.paused)
    asked = asyncio.ensure_future(s.collect("a"))
    await until(lambda: s.client.find("a", ""))
    assert await s.client.resume() == 1
    assert (await asked)[-1].finish_reason == "length"


def test_another_projector_is_another_model(tmp_path):
    model, projector = tmp_path / "model.gguf", tmp_path / "mmproj.gguf"
    model.write_bytes(b"m")
    projector.write_bytes(b"p")
    alone, before = identity_of(model, None), identity_of(model, projector)
    projector.write_bytes(b"another")
    assert len({alone, before, identity_of(model, projector)}) == 3
    assert identity_of(None, None) == "scripted"


def test_a_model_that_cannot_be_served_gives_its_memory_back(monkeypatch):
    closed = []
    backend = opening.open_backend(EngineSettings(model="builtin:scripted"), None)
    backend.close = lambda: closed.append(True)
    monkeypatch.setattr(opening, "open_backend", lambda *_: backend)

    def refuse(*_, **__):
        raise ConfigError("selector", "is not to be had")

    monkeypatch.setattr(opening, "engine_on", refuse)
    with pytest.raises(ConfigError):
        opening.open_engine(EngineSettings(model="builtin:scripted"), print)
    assert closed
