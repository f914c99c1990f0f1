"""Several models and several engines behind one API."""

import asyncio
from dataclasses import replace

import pytest
from fake_client import CHAT, FakeClient, Wire, says, stats
from openai import NotFoundError

from cobali_ray.api.app import build_api
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.core.request.events import Delta, End, RequestStats, TokenLogprob
from cobali_ray.core.request.request import Request
from cobali_ray.core.views.stats import EngineState, EngineStatus, ModelCard
from cobali_ray.errors import (
    DeadlineExceededError,
    DrainingError,
    EngineDiedError,
    LoadingError,
    QueueFullError,
)
from cobali_ray.settings import ApiSettings

HELLO = [{"role": "user", "content": "hello"}]


def card(name):
    return ModelCard(model_id=name, n_vocab=1000, n_ctx_slot=64, created_s=1_700_000_000)


class Engines(dict):
    """Scripted engines by id; each answers with its own name."""

    def __init__(self, **models):
        """Take the ids of each model's engines."""
        self.models = models
        for model, ids in models.items():
            for engine_id in ids:
                self[engine_id] = FakeClient(says(engine_id), card(model))

    def fleet(self, **aliases):
        return Fleet(
            ServedModel({id_: self[id_] for id_ in ids}, (name, *aliases.get(name, ())))
            for name, ids in self.models.items()
        )

    def go_away(self, engine_id, status=EngineStatus.RESTARTING):
        self[engine_id].present = False
        self[engine_id].engine = EngineState(status=status, detail="it ended")


@pytest.fixture
def engines():
    return Engines(small=["s"], big=["b0", "b1"])


@pytest.fixture
def app(engines, clock):
    return build_api(engines.fleet(small=["quick"]), ApiSettings(), clock=clock)


async def said(app, model):
    wire = await Wire(app, CHAT, {"model": model, "messages": HELLO}).run()
    return wire.json["choices"][0]["message"]["content"]


def ask(name="r", n_prompt=3, max_tokens=5):
    return Request(request_id=name, prompt=(1,) * n_prompt, max_tokens=max_tokens)


async def test_the_model_in_the_request_picks_the_engine(app):
    assert [await said(app, name) for name in ("small", "quick", "big")] == ["s", "s", "b0"]
    tokens = (await Wire(app, "/tokenize", {"model": "big", "content": "once"}).run()).json
    assert tokens["count"] == 1


async def test_an_unknown_model_is_told_which_there_are(openai):
    with pytest.raises(NotFoundError) as caught:
        await openai.chat.completions.create(model="other", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert "'small', 'big'" in caught.value.message


async def test_of_several_models_one_must_be_named(app):
    wire = await Wire(app, CHAT, {"messages": HELLO}).run()
    assert (wire.status, wire.json["error"]["param"]) == (400, "model")
    assert "'small', 'big'" in wire.json["error"]["message"]


async def test_the_list_says_of_every_model_how_it_is(app, engines, get):
    engines.go_away("s")
    engines["s"].the_card = LoadingError()
    engines.go_away("b0")
    data = (await get("/v1/models")).json["data"]
    assert [(model["id"], model["status"]["value"]) for model in data] == [
        ("small", "loading"), ("quick", "loading"), ("big", "loaded"),
    ]  # fmt: skip
    assert data[0]["status"]["detail"] == "it ended"
    assert data[2]["status"]["engines"] == {"b0": "restarting", "b1": "ready"}
    assert "max_model_len" not in data[0], "nobody knows it yet"
    assert data[2]["max_model_len"] == 64
    assert (await get("/v1/models/quick")).json["root"] == "small"


@pytest.mark.parametrize(
    ("status", "value", "accepts"),
    [
        ("ready", "loaded", True),
        ("unloaded", "unloaded", True),
        ("loading", "loading", False),
        ("restarting", "loading", False),
        ("draining", "draining", False),
        ("stalled", "stalled", False),
        ("failed", "failed", False),
    ],
)
async def test_what_takes_no_requests_is_not_called_loaded(engines, get, status, value, accepts):
    for engine in engines.values():
        engine.engine = EngineState(status=EngineStatus(status), detail="why")
    for model in (await get("/v1/models")).json["data"]:
        assert (model["status"]["value"], model["status"]["detail"]) == (value, "why")
    health, ready = await get("/health"), await get("/ready")
    assert (health.status, health.json["engine"]["status"]) == (200, status)
    assert (ready.status, ready.json["status"]) == (200 if accepts else 503, status)
    assert ("retry-after" in ready.headers) == (not accepts)


async def test_a_model_whose_engines_are_all_away_does_not_hide_the_others(app, engines, get):
    engines.go_away("b0")
    engines.go_away("b1", EngineStatus.STALLED)
    ready = await get("/ready")
    assert (ready.status, ready.json["status"]) == (200, "ready")
    assert [(one["engine_id"], one["status"]) for one in ready.json["engines"]] == [
        ("s", "ready"), ("b0", "restarting"), ("b1", "stalled"),
    ]  # fmt: skip
    engines.go_away("s")
    ready = await get("/ready")
    assert (ready.status, ready.json["status"]) == (503, "restarting")


async def collect(model, request):
    return [event async for events in model.ask(request) for event in events]


async def test_a_refusal_goes_to_the_next_engine_before_the_client_hears_of_it(engines, app):
    full = QueueFullError("requests", 1, 7.0)
    engines["b0"].script = lambda _: [full]
    assert [await said(app, "big") for _ in range(3)] == ["b1"] * 3
    engines["b1"].script = lambda _: [QueueFullError("requests", 1, 3.0)]
    wire = await Wire(app, CHAT, {"model": "big", "messages": HELLO}).run()
    assert (wire.status, wire.headers["retry-after"]) == (429, "3"), "of those who wait least"
    engines["b1"].script = lambda _: [DrainingError()]
    engines.go_away("b1")
    wire = await Wire(app, CHAT, {"model": "big", "messages": HELLO}).run()
    assert (wire.status, wire.headers["retry-after"]) == (429, "7"), "nobody waits for an engine that is away"


async def test_an_engine_is_told_what_others_gave_a_tenant_once_it_takes_a_request(engines):
    model = engines.fleet().find("big")
    engines["b0"].script = engines["b1"].script = lambda r: [
        [Delta(r.request_id, "Hel", (1,), stats=RequestStats(r.n_prompt, 1, 1, 0, 0, 0, None, 0))],
        [Delta(r.request_id, "lo", (2, 3))],
        *says("!")(r),
    ]

    async def told(engine_id, tenant="alice"):
        for id_ in ("b0", "b1"):
            engines[id_].present = id_ == engine_id
        await collect(model, replace(ask("r", n_prompt=40), tenant=tenant))
        return engines[engine_id].requests[-1].served_elsewhere

    cost = 39 + 2 * 4
    assert [await told(id_) for id_ in ("b0", "b0", "b1")] == [0, 0, 2 * cost]
    script, engines["b0"].script = engines["b0"].script, lambda _: [DrainingError()]
    with pytest.raises(DrainingError):
        await told("b0")
    engines["b0"].script = script
    assert await told("b0", "bob") == 0
    assert await told("b0") == cost, "what it did not take it was not told"
    assert await told("b0", "") == await told("b1", "") == 0, "without keys there is one tenant"


async def test_what_ended_in_the_queue_says_nothing_of_what_an_engine_holds(engines):
    model = engines.fleet().find("big")
    engines["b1"].present = False
    other = replace(ask("another conversation"), prompt=(2,) * 500)
    await collect(model, other)
    await collect(model, ask("first turn", n_prompt=500))
    too_late = RequestStats(700, 0, 0, None, None, None, None, 1.0)
    engines["b0"].script = lambda r: [[End(r.request_id, None, DeadlineExceededError(1.0), too_late)]]
    await collect(model, ask("second turn", n_prompt=700))
    engines["b0"].script, engines["b1"].present = says("done"), True
    await collect(model, replace(other, request_id="its second turn", prompt=(2,) * 700))
    assert engines["b0"].requests[-1].request_id == "its second turn"


async def test_a_prompt_goes_on_behind_the_token_that_was_told_last(engines):
    model = engines.fleet().find("big")

    def tells(request):
        scored = tuple(TokenLogprob(token, b"x", -float(i), ()) for i, token in enumerate(request.prompt))
        yield [Delta(request.request_id, "", (), prompt=scored[request.n_scored : request.n_scored + 2])]
        if not request.attempt:
            yield EngineDiedError()
        yield [Delta(request.request_id, "", (), prompt=scored[4:])]
        yield [End(request.request_id, "length", None, stats(request, 0))]

    engines["b0"].script = engines["b1"].script = tells
    *deltas, end = await collect(model, replace(ask(n_prompt=6), n_prompt_logprobs=1))
    assert [p.logprob for delta in deltas for p in delta.prompt] == [0.0, -1.0, -2.0, -3.0, -4.0, -5.0]
    assert end.finish_reason == "length"
    requests = engines["b0"].requests + engines["b1"].requests
    assert sorted(request.n_scored for request in requests) == [0, 2]


async def test_who_begins_with_nothing_says_nothing_of_what_an_engine_holds(engines):
    model = engines.fleet().find("big")
    other = replace(ask("other", n_prompt=500), prompt=(2,) * 500)
    engines["b0"].present = False
    await collect(model, other)
    await collect(model, ask("first turn", n_prompt=500))
    engines["b0"].present = True
    plain = engines["b1"].script
    engines["b0"].script = engines["b1"].script = lambda request: [
        [Delta(request.request_id, "", (), prompt=(TokenLogprob(1, b"x", None, ()),))],
        [Delta(request.request_id, "x", (1,), stats=stats(request, 1, n_cached=0))],
        [End(request.request_id, "stop", None, stats(request, 1, n_cached=0))],
    ]
    for n in range(2):
        await collect(model, replace(ask(f"scored{n}", n_prompt=500), n_prompt_logprobs=1))
    engines["b0"].script = engines["b1"].script = plain
    await collect(model, replace(other, request_id="its second turn", prompt=(2,) * 700))
    assert engines["b1"].requests[-1].request_id == "its second turn"


async def test_what_one_engine_tells_is_asked_by_its_id(app, engines, get):
    engines["b1"].n_ticks = 3
    assert (await get("/debug/ticks?engine=b1")).json["ticks"] == [0, 1, 2]
    assert (await get("/debug/ticks")).json["ticks"] == []
    assert (await get("/v1/cache?engine=b1")).status == 200
    assert (await get("/slots?engine=b1")).status == 200
    await Wire(app, "/slots/0?action=erase&engine=b1", b"").run()
    assert [len(engines[id_].moves) for id_ in ("s", "b0", "b1")] == [0, 0, 1]
    for path in ("/debug/ticks", "/debug/stream", "/v1/cache", "/slots"):
        wire = await get(f"{path}?engine=x")
        assert (wire.status, wire.json["error"]["param"]) == (400, "engine")
        assert "s, b0, b1" in wire.json["error"]["message"]


async def test_the_metrics_of_all_engines_stand_together(engines, get):
    for engine_id, engine in engines.items():
        engine.engine = EngineState(status=EngineStatus.READY, engine_id=engine_id)
    text = (await get("/metrics")).body.decode()
    assert text.count("# TYPE cobali_engine_up gauge") == 1
    for engine_id in engines:
        assert f'cobali_engine_up{{engine="{engine_id}"}} 1.0\n' in text


async def test_each_engine_has_viewers_of_its_own(app, engines):
    engines["b0"].n_ticks, engines["b1"].n_ticks = 2, 5
    for engine_id, last in (("b0", 1), ("b1", 4)):
        wire = Wire(app, f"/debug/stream?engine={engine_id}", method="GET")
        task = wire.start()
        await asyncio.wait_for(wire.got_body.wait(), 60)
        assert wire.events[0]["ticks"][-1] == last
        wire.hang_up()
        await task


@pytest.mark.parametrize("path", ["/v1/pause", "/v1/resume"])
async def test_a_pause_says_what_became_of_each_engine(app, engines, path):
    async def away():
        raise LoadingError

    engines["b0"].pause = engines["b0"].resume = away
    wire = await Wire(app, path).run()
    assert wire.status == 200
    errors = {engine_id: "error" in outcome for engine_id, outcome in wire.json["engines"].items()}
    assert errors == {"s": False, "b0": True, "b1": False}
    assert (await Wire(app, f"{path}?engine=b0").run()).status == 503
