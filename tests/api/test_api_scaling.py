"""Engines of one model that come when its requests would wait, and go when the others suffice."""

import asyncio
from dataclasses import replace

import pytest
from fake_client import IDLE, FakeClient, says

from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.core.request.events import Delta
from cobali_ray.core.request.request import Request
from cobali_ray.core.views.stats import EngineState, EngineStatus
from cobali_ray.errors import NoRoomError, QueueFullError, UnloadedError
from tests.waiting import until

MIB = 1 << 20
FULL = IDLE._replace(n_free=-9)
"""Ten seconds until a slot is free."""


class Engines(dict):
    """Engines of one model by id, and a clock; only the first holds the model."""

    def __init__(self, n, **settings):
        self.now_s = 0.0
        for engine_id in list("abcd")[:n]:
            self[engine_id] = FakeClient(says(engine_id))
        for engine_id in list(self)[1:]:
            self.unload(engine_id)
        self.model = self.model_of(n_stay=1, **settings)

    def model_of(self, **settings):
        return Fleet([ServedModel(self, ["m"], **settings)], now=lambda: self.now_s).models[0]

    def unload(self, engine_id):
        self[engine_id].present = False
        self[engine_id].engine = EngineState(status=EngineStatus.UNLOADED)

    def say(self, **views):
        for engine_id, view in views.items():
            self[engine_id].busy = view, self.now_s

    async def ask(self, n_prompt=3):
        """Send a request a moment later; return which engine answered."""
        self.now_s += 0.25
        request = Request(request_id=f"r{self.now_s}", prompt=(int(self.now_s * 4),) * n_prompt, max_tokens=5)
        async for events in self.model.ask(request):
            if isinstance(events[0], Delta):
                said = events[0].text
        return said

    async def wait_long(self, seconds):
        """Send requests to engines whose slots are all taken."""
        answered = set()
        for _ in range(int(seconds * 4)):
            self.say(a=FULL)
            answered.add(await self.ask())
        await asyncio.sleep(0)
        return answered

    @property
    def loads(self):
        return [len(engine.loads) for engine in self.values()]


async def test_waits_that_stay_long_load_an_engine_more_and_nobody_waits_for_that():
    engines = Engines(3)
    engines["b"].load_step = gate = asyncio.Event()
    assert await engines.wait_long(3) == {"a"}
    assert engines.loads == [0, 0, 0], "it may be over in a moment"
    assert await engines.wait_long(15) == {"a"}, "answered while the other is loaded"
    assert engines.loads == [0, 1, 0], "one after the other"
    gate.set()
    await until(lambda: engines["b"].present)
    engines.say(b=FULL)
    await engines.wait_long(2)
    assert engines.loads == [0, 1, 0], "how it is with two of them is to be seen"
    await engines.wait_long(5)
    assert engines.loads == [0, 1, 1], "and it goes on while both are full"


async def test_an_engine_that_is_away_is_not_loaded_by_us():
    engines = Engines(2)
    engines["b"].engine = EngineState(status=EngineStatus.RESTARTING)
    await engines.wait_long(10)
    assert engines.loads == [0, 0]


async def test_an_engine_that_another_ingress_has_loaded_is_found():
    engines = Engines(2)
    engines["b"].engine = EngineState(status=EngineStatus.READY)
    assert await engines.wait_long(5) == {"a", "b"}
    assert engines.loads == [0, 1], "which tells us what it serves"


async def test_who_comes_to_an_engine_that_has_just_let_go_is_sent_to_another():
    engines = Engines(2)
    await engines["b"].load()
    engines["b"].script = lambda _: [UnloadedError()]
    engines.say(a=FULL)
    assert await engines.ask() == "a"
    assert engines.loads == [0, 1]
    engines["a"].script = lambda _: [QueueFullError("requests", 1, 3.0)]
    with pytest.raises(QueueFullError):
        await engines.ask()


async def test_a_request_loads_one_engine_and_by_hand_all_are_loaded():
    engines = Engines(3)
    engines.unload("a")
    a = engines["a"]
    a.script = lambda request: says("a")(request) if a.present else iter([UnloadedError()])
    assert await engines.ask() == "a"
    assert engines.loads == [1, 0, 0]
    await engines.model.load(3)
    assert all(engine.present for engine in engines.values())


async def test_while_the_first_is_away_another_is_loaded():
    engines = Engines(2)
    engines["a"].present, engines["a"].engine = False, EngineState(status=EngineStatus.RESTARTING)
    b = engines["b"]
    b.script = lambda request: says("b")(request) if b.present else iter([UnloadedError()])
    assert await engines.ask() == "b"
    assert engines.loads == [0, 1]


async def test_an_idle_engine_more_makes_room_for_another_model_while_the_first_is_at_work():
    engines, wanted = Engines(2), FakeClient(says("w"))
    await engines["b"].load()
    for engine_id in "ab":
        engines[engine_id].engine = replace(engines[engine_id].engine, idle_s=9.0)
    load = wanted.load

    async def load_if_there_is_room():
        if engines["b"].present:
            raise NoRoomError(500 * MIB, 100 * MIB)
        await load()

    wanted.load = load_if_there_is_room
    engines["a"].script = lambda _: [asyncio.Event()]
    fleet = Fleet([ServedModel(engines, ["m"], n_stay=1), ServedModel({"w": wanted}, ["w"], n_stay=0)])
    fleet.models[0].ask(Request(request_id="open", prompt=(1,), max_tokens=5))
    await fleet.models[1].load()
    assert wanted.loads == ["load"]
    assert engines["a"].loads == []
    assert engines["b"].loads == ["load", "unload"]
