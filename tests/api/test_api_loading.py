"""Models that are loaded when they are asked for, over HTTP."""

import asyncio
from dataclasses import replace

import pytest
from fake_client import CHAT, FakeClient, Wire, says

from cobali_ray.api.app import build_api
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.core.views.stats import EngineState, EngineStatus, ModelCard
from cobali_ray.errors import LoadingError, ModelBusyError, NoRoomError, UnloadedError
from cobali_ray.settings import ApiSettings
from tests.waiting import until

MIB = 1 << 20


def ask(model):
    return {"model": model, "messages": [{"role": "user", "content": "hello"}]}


class Sleeper(FakeClient):
    """An engine that holds no model until it is told to load it."""

    def __init__(self, name):
        card = ModelCard(model_id=name, n_vocab=1000, n_ctx_slot=64, created_s=1)
        super().__init__(self.answer, card)
        self.the_card = UnloadedError()
        self.present, self.engine = False, EngineState(status=EngineStatus.UNLOADED)
        self.said = says(name)

    def answer(self, request):
        if not self.present:
            yield UnloadedError()
        yield from self.said(request)

    def idle_for(self, seconds):
        self.engine = replace(self.engine, idle_s=seconds)

    def get_busy(self):
        self.engine = replace(self.engine, n_running=1)


@pytest.fixture
def engines():
    return {name: Sleeper(name) for name in "abc"}


@pytest.fixture
def fleet(engines):
    return Fleet(
        ServedModel({name: engine}, [name], n_stay=int(name == "c"), max_waiting=2)
        for name, engine in engines.items()
    )


@pytest.fixture
def app(fleet, clock):
    return build_api(fleet, ApiSettings(), clock=clock)


async def status_of(app, name):
    return (await Wire(app, f"/v1/models/{name}", method="GET").run()).json["status"]["value"]


async def test_a_request_loads_the_model_that_it_asks_for(app, engines, get):
    assert (await get("/ready")).status == 200, "requests are taken"
    assert await status_of(app, "a") == "unloaded"
    wire = await Wire(app, CHAT, ask("a")).run()
    assert (wire.status, wire.json["choices"][0]["message"]["content"]) == (200, "a")
    assert [await status_of(app, name) for name in "ab"] == ["loaded", "unloaded"]
    assert [engines[name].loads for name in "ab"] == [["load"], []]
    assert len(engines["a"].tokenized) == 1


async def test_others_wait_for_one_loading_and_more_than_the_queue_holds_are_refused(app, engines, fleet):
    engines["a"].load_step = gate = asyncio.Event()
    waiting = [Wire(app, CHAT, ask("a")) for _ in range(2)]
    tasks = [wire.start() for wire in waiting]
    await until(lambda: fleet.find("a").n_waiting == 2)
    refused = await Wire(app, CHAT, ask("a")).run()
    assert (refused.status, refused.json["error"]["code"]) == (429, "queue_full")
    gate.set()
    await asyncio.gather(*tasks)
    assert [wire.status for wire in waiting] == [200, 200]


async def test_who_leaves_while_it_loads_takes_no_place(app, engines):
    engines["a"].load_step = gate = asyncio.Event()
    wire = Wire(app, CHAT, ask("a"))
    task = wire.start()
    await until(lambda: engines["a"].loads)
    wire.hang_up()
    await asyncio.gather(task, return_exceptions=True)
    gate.set()
    answers = await asyncio.gather(*(Wire(app, CHAT, ask("a")).run() for _ in range(2)))
    assert [answer.status for answer in answers] == [200, 200]


async def test_the_next_model_waits_for_one_that_is_loaded_for_nobody_any_more(app, engines, fleet):
    engines["a"].load_step = gate = asyncio.Event()
    wires = [Wire(app, CHAT, ask(name)) for name in "abc"]
    tasks = []
    for wire, name in zip(wires, "abc", strict=True):
        tasks.append(wire.start())
        if name == "a":
            await until(lambda: engines["a"].loads)
    wires[0].hang_up()
    await asyncio.gather(tasks[0], return_exceptions=True)
    await until(lambda: fleet.find("b").n_waiting == fleet.find("c").n_waiting == 1)
    assert not engines["b"].loads, "the engine goes on loading, and memory is counted when it has"
    wires[1].hang_up()
    await asyncio.gather(tasks[1], return_exceptions=True)
    gate.set()
    await tasks[2]
    assert wires[2].status == 200
    assert not engines["b"].loads, "nobody waits for it any more"


async def test_a_request_waits_for_loading_no_longer_than_it_has_time(app, engines):
    await Wire(app, CHAT, ask("a")).run()
    await engines["a"].unload()
    engines["a"].load_step = gate = asyncio.Event()
    wire = await Wire(app, CHAT, ask("a") | {"timeout_s": 0.05}).run()
    assert (wire.status, wire.json["error"]["code"]) == (504, "deadline_exceeded")
    gate.set()
    assert (await Wire(app, CHAT, ask("a") | {"timeout_s": 600}).run()).status == 200
    assert 500 < engines["a"].requests[-1].timeout_s <= 600


async def test_a_model_is_loaded_where_it_can_be(engines, clock):
    engines["a"].the_card, engines["a"].load_step = LoadingError(), LoadingError()
    app = build_api(Fleet([ServedModel(engines, ["b"], n_stay=0)]), ApiSettings(), clock=clock)
    assert (await Wire(app, CHAT, ask("b")).run()).status == 200
    engines["b"].load_step = engines["c"].load_step = LoadingError()
    assert (await Wire(app, "/v1/models/load", {"model": "b"}).run()).status == 503


async def test_a_model_that_is_gone_again_at_once_is_not_our_fault(app, engines):
    engines["a"].card_when_loaded = UnloadedError()
    wire = await Wire(app, CHAT, ask("a")).run()
    assert (wire.status, wire.json["error"]["code"]) == (503, "loading")


async def test_a_key_loads_only_what_it_may_ask_for(engines, clock, tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text("keys: {alice: {key: k, models: [a]}}")
    fleet = Fleet(ServedModel({name: engine}, [name]) for name, engine in engines.items())
    app = build_api(fleet, ApiSettings(api_keys_file=file), clock=clock)
    moves, tokens = ("/v1/models/load", "/v1/models/unload"), {"model": "b", "content": "once"}
    for path, body in (*((path, {"model": "b"}) for path in moves), (CHAT, ask("b")), ("/tokenize", tokens)):
        wire = await Wire(app, path, body, headers=[("x-api-key", "k")]).run()
        assert (wire.status, wire.json["error"]["code"]) == (403, "model_not_allowed")
    assert not engines["b"].loads
    assert (await Wire(app, CHAT, ask("a"), headers=[("x-api-key", "k")]).run()).status == 200


def needs_room(engine, *others):
    """Let an engine find room only when none of the others is loaded."""
    load = engine.load

    async def load_if_there_is_room():
        if any(other.present for other in others):
            raise NoRoomError(500 * MIB, 100 * MIB)
        await load()

    engine.load = load_if_there_is_room


async def test_the_idle_model_used_longest_ago_makes_room(app, engines):
    for name in "ab":
        await Wire(app, CHAT, ask(name)).run()
    engines["a"].idle_for(5.0)
    engines["b"].idle_for(50.0)
    needs_room(engines["c"], engines["b"])
    assert (await Wire(app, CHAT, ask("c")).run()).status == 200
    assert [await status_of(app, name) for name in "abc"] == ["loaded", "unloaded", "loaded"]


async def test_neither_a_busy_model_nor_one_that_is_to_stay_makes_room(app, engines):
    for name in "bc":
        await Wire(app, CHAT, ask(name)).run()
    engines["b"].get_busy()
    needs_room(engines["a"], engines["b"], engines["c"])
    wire = await Wire(app, CHAT, ask("a")).run()
    assert (wire.status, wire.json["error"]["code"]) == (503, "no_room")
    assert "500 MiB" in wire.json["error"]["message"]
    assert "100 MiB" in wire.json["error"]["message"]
    assert "unload" not in engines["b"].loads + engines["c"].loads


async def test_a_model_makes_no_room_for_an_engine_of_its_own(engines):
    a, b = engines["a"], engines["b"]
    (model,) = Fleet([ServedModel({"a": a, "b": b}, ["m"], n_stay=0)]).models
    await a.load()
    needs_room(b, a)
    with pytest.raises(NoRoomError):
        await model.load(2)
    assert a.present


async def test_a_model_with_a_stream_open_here_is_not_taken_for_idle(app, engines):
    gate = asyncio.Event()
    await Wire(app, CHAT, ask("b")).run()
    engines["b"].said = lambda _: iter([gate])
    stream = Wire(app, CHAT, ask("b"))
    task = stream.start()
    await until(lambda: engines["b"].n_open == 1)
    needs_room(engines["a"], engines["b"])
    assert (await Wire(app, CHAT, ask("a")).run()).status == 503
    stream.hang_up()
    await asyncio.gather(task, return_exceptions=True)
    assert (await Wire(app, CHAT, ask("a")).run()).status == 200


async def test_models_are_loaded_and_unloaded_by_hand(app, engines, post):
    wire = await post("/v1/models/load", {"model": "a"})
    assert (wire.status, wire.json["status"]["value"]) == (200, "loaded")
    wire = await post("/v1/models/unload", {"model": "a"})
    assert (wire.status, wire.json["status"]["value"]) == (200, "unloaded")
    engines["a"].unload_step = ModelBusyError(3)
    wire = await post("/v1/models/unload", {"model": "a"})
    assert (wire.status, wire.json["error"]["code"]) == (409, "model_busy")
    assert (await post("/v1/models/load", {"model": "x"})).status == 404
    assert (await post("/v1/models/load", {})).status == 400


@pytest.mark.parametrize("path", ["/props", "/tokenizer_info", "/lora-adapters"])
async def test_who_asks_about_a_model_has_it_loaded(app, engines, path):
    wire = await Wire(app, f"{path}?model=a", method="GET").run()
    assert (wire.status, engines["a"].loads) == (200, ["load"])


async def test_a_body_that_is_read_again_is_read_in_the_same_words(app):
    """Anthropic's `stop_sequences` are OpenAI's `stop`, which is no field there."""
    body = ask("a") | {"max_tokens": 5, "stop": "x"}
    for _ in range(2):
        wire = await Wire(app, "/v1/messages", body).run()
        assert (wire.status, wire.headers["x-cobali-ignored-fields"]) == (200, "stop")
