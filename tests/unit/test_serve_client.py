"""ServeEngineClient over a whole EngineServer in one process."""

import asyncio
import os
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
from engine_in_process import WAIT_S, Setup, setups, text_of
from ray.exceptions import ActorDiedError, RayTaskError
from telemetry_records import render, waited

from cobali_ray.actors import client, engine_server, startup, wire
from cobali_ray.actors.client import Vocabularies
from cobali_ray.actors.engine_server import EngineServer
from cobali_ray.actors.front import FRONT_HOST
from cobali_ray.actors.ingress import Ingress
from cobali_ray.actors.layout import ForIngress
from cobali_ray.backend.scripted import ByteVocab, ScriptedEmbedder
from cobali_ray.core.dispatch.messages import EventsReceived, Lost
from cobali_ray.core.request.embedding import EmbeddingRequest, TextPiece
from cobali_ray.core.request.events import Delta, End
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.core.views.stats import DeviceView, EngineStatus
from cobali_ray.errors import (
    ConfigError,
    EngineDiedError,
    EventsLostError,
    InternalError,
    LoadingError,
    SlotFileError,
)
from cobali_ray.settings import ApiSettings, EngineSettings
from cobali_ray.settings.engine import ServerSettings
from cobali_ray.telemetry.names import ONLY_ENGINE, HttpAnswer
from tests.waiting import until


@pytest.fixture
async def make(monkeypatch):
    async with setups(monkeypatch) as make:
        yield make


async def test_a_request_runs_to_its_one_end(make):
    s = await make()
    events = await s.collect()
    assert isinstance(events[-1], End)
    assert sum(isinstance(event, End) for event in events) == 1
    assert len(text_of(events)) == 5
    await s.idle()
    assert s.handle.responses[0].n_cancels == 0, "a finished call is not cancelled"


async def test_leaving_frees_the_slot_also_before_the_first_event(make):
    s = await make(model="builtin:scripted:0.01")
    events = s.generate(max_tokens=4000)
    await anext(events)
    await events.aclose()
    await s.idle()
    assert s.handle.responses[0].n_cancels == 1
    for n_steps in range(6):
        reader = asyncio.ensure_future(s.collect(f"r{n_steps}", max_tokens=4000))
        for _ in range(n_steps):
            await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await s.idle()
    assert not s.model.dispatch._streams


def tokens_of(events):
    return [token for event in events if isinstance(event, Delta) for token in event.tokens]


@pytest.mark.parametrize(("gpus", "seen"), [("1-2", "1,2"), (None, "7")], ids=["named", "as-ray-says"])
async def test_an_engine_sees_the_gpus_that_it_is_told(make, monkeypatch, gpus, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")  # as Ray does
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    await make(gpus=gpus)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
    assert os.environ["CUDA_DEVICE_ORDER"] == ("PCI_BUS_ID" if gpus else "FASTEST_FIRST")


async def test_what_is_drawn_goes_on_by_the_seed_that_was_chosen_here(make):
    s = await make()
    seeds = set()

    def note(request):
        seeds.add(request.sampling.seed)

    s.handle.before_run = note
    request = Request(request_id="a", prompt=(1, 2, 3), max_tokens=40, sampling=SamplingParams())
    told = []
    async with asyncio.timeout(WAIT_S):
        async for events in s.model.ask(request):
            if not told:
                s.handle.kill()
            told += events
    (seed,) = seeds
    seeded = replace(request, request_id="b", sampling=SamplingParams(seed=seed))
    alone = [event async for events in s.model.ask(seeded) for event in events]
    assert tokens_of(told) == tokens_of(alone)


async def test_a_replica_that_cancels_is_a_dead_engine_not_a_cancelled_reader(make, monkeypatch):
    monkeypatch.setattr(engine_server, "ATTEND_S", 0.001)
    s = await make()
    events = s.generate(max_tokens=300)
    await anext(events)
    s.handle.responses[0].task.cancel()
    async with asyncio.timeout(WAIT_S):
        rest = [event async for batch in events for event in batch]
    assert rest[-1].finish_reason == "length"


@pytest.mark.parametrize("n_said", [0, 3])
async def test_an_event_that_does_not_get_out_ends_its_own_request_and_the_engine_lives(make, n_said):
    s = await make(model="builtin:scripted:0.003")  # 4000 tokens take longer than hearing of the loss
    pusher, sent = s.handle.server._pusher, []
    send = pusher.send

    def send_all_but_one(batch):
        """Be full for the `n_said`th event of the request, and only then."""
        lost, out = set(), []
        for to, event in batch:
            if event.request_id == "lost":
                sent.append(event)
            if event.request_id == "lost" and len(sent) == n_said + 1:
                lost.add(event.request_id)
            else:
                out.append((to, event))
        return lost | (send(out) if out else set())

    pusher.send = send_all_but_one
    beside = asyncio.ensure_future(s.collect("beside", max_tokens=50))
    assert isinstance(await s.error("lost", max_tokens=4000), EventsLostError)
    assert (await beside)[-1].finish_reason == "length"
    assert (await s.client.state()).status is EngineStatus.READY
    assert len(s.handle.responses) == 2, "it is not tried again"
    assert len(sent) == n_said + 1, "nothing is said after a gap"
    await s.idle()
    await s.counted(length=1, cancelled=1)
    assert not s.handle.server._requests._lost


async def test_an_end_that_does_not_get_out_is_told_over_the_control_call(make):
    s = await make()
    s.handle.server._pusher.send = lambda batch: {e.request_id for _, e in batch if isinstance(e, End)}
    assert isinstance(await s.error(max_tokens=2), EventsLostError)
    assert not s.handle.server._requests._lost


@pytest.mark.parametrize(
    ("name", "over_grpc"),
    [("run", True), *((name, False) for name in ("run", "attend", "state", "snapshot", "ticks"))],
)
async def test_an_engine_that_answers_with_a_bug_is_not_dead(make, name, over_grpc, monkeypatch):
    monkeypatch.setattr(engine_server, "ATTEND_S", 0.001)
    s = await make()
    await s.collect("before")

    calls = []

    async def broken(*_):
        calls.append(name)
        bug = ValueError("a bug")
        raise bug if over_grpc else RayTaskError(name, "traceback", bug)

    monkeypatch.setattr(s.handle.server, name, broken)
    n_calls = len(s.handle.responses)
    if name == "run":
        with pytest.raises(InternalError, match="a bug") as caught:
            await s.collect()
        assert not isinstance(caught.value, EngineDiedError)
        assert len(s.handle.responses) == n_calls + 1, "it is not tried again"
    if name == "ticks":
        with pytest.raises(InternalError, match="a bug"):
            await s.client.ticks(last=1)
    if name == "state":
        assert (await s.client.state()).status is EngineStatus.LOADING
    if name == "attend":
        await until(lambda: len(calls) >= 2)
    assert s.model.present
    assert 'cobali_engine_up{engine="0"} 1.0\n' in render(*await s.client.counts())


async def test_a_prompt_that_cannot_be_shown_changes_no_answer(make, monkeypatch):
    s = await make(log_prompts=True)
    monkeypatch.setattr(s.handle.server._host.model.feeder._words, "detokenize", lambda *_, **__: 1 / 0)
    assert (await s.collect())[-1].finish_reason == "length"


async def test_a_run_that_breaks_leaves_nothing_running(make, monkeypatch):
    s = await make()
    monkeypatch.setattr(s.handle.server._onlooker, "look", lambda *_: 1 / 0)
    run, on_event, ended = s.handle.server.run, s.client._puller._on_event, asyncio.Event()

    def note(event):
        on_event(event)
        if isinstance(event, EventsReceived) and isinstance(event.events[-1], End):
            ended.set()

    async def break_late(request):
        try:
            return await run(request)
        finally:  # its last event says that it was cancelled, and is there first
            await ended.wait()

    s.client._puller._on_event, s.handle.server.run = note, break_late
    assert "ZeroDivisionError" in str(await s.error(max_tokens=4000))
    monkeypatch.undo()
    assert s.model.present, "the engine is none the worse for it"
    assert len(s.handle.responses) == 1
    await s.idle()
    await s.counted(cancelled=1)


async def test_drain_says_when_time_ran_out(make):
    s = await make(model="builtin:scripted:0.01")
    running = s.generate(max_tokens=4000)
    await anext(running)
    assert not await s.client.drain(0.0)
    await running.aclose()


async def test_health_follows_the_loop(make):
    s = await make()
    server = s.handle.server
    server.check_health()
    server._host.model.loop._busy_since_s = server._clock.now() - 1000
    with pytest.raises(InternalError, match="hangs"):
        server.check_health()
    server._host.model.loop._busy_since_s = None
    server._host.model.loop.failure = RuntimeError("on fire")
    with pytest.raises(InternalError, match="on fire"):
        server.check_health()
    server._host.model.loop.failure = None


async def test_metrics_of_a_dead_engine_say_that_it_is_down(make):
    s = await make()
    await s.collect()
    assert (await s.client.state()).engine_id == "0"
    text = render(*await s.client.counts())
    assert 'cobali_engine_up{engine="0"} 1.0\n' in text
    assert "cobali_ticks_total" in text

    async def dead():
        raise ActorDiedError

    s.handle.server.snapshot = s.handle.server.state = dead
    text = render(*await s.client.counts())
    assert 'cobali_engine_up{engine="0"} 0.0\n' in text
    assert "cobali_engine_down_seconds" in text
    assert "cobali_ticks_total" not in text, "what it counted ended with it"
    state = await s.client.state()
    assert (state.status, state.engine_id) == (EngineStatus.LOADING, "0")


async def test_what_clients_waited_for_is_counted_by_the_engine(make, monkeypatch):
    monkeypatch.setattr(engine_server, "ATTEND_S", 0.001)
    s = await make()
    received_s = time.monotonic() - 5.0  # a body, a template, a tokeniser
    request = Request(request_id="a", prompt=(1,) * 3, max_tokens=5, received_s=received_s)
    events = [event async for events in s.model.ask(request) for event in events]
    assert 5 < events[-1].stats.intake_s < 5 + WAIT_S
    for name, seconds in (("ttft_seconds", 6.0), ("e2e_seconds", 7.0), ("ttft_seconds", 8.0)):
        s.client.observe(name, waited(seconds))
    answer = HttpAnswer("unmatched", "GET", 401)
    s.client.count(answer)
    s.client.count(answer)

    async def counted():
        snapshot = await s.handle.server.snapshot()
        names = ("ttft", "e2e", "intake", "engine_ttft")
        views = {name: snapshot.histogram(f"{name}_seconds") for name in names}
        return views if views["e2e"].count else None

    seen = await until(counted)
    assert (seen["ttft"].count, seen["ttft"].sum) == (2, 14.0)
    assert (seen["e2e"].count, seen["e2e"].sum) == (1, 7.0)
    assert seen["intake"].sum > 5
    assert seen["engine_ttft"].sum < 5, "what came before is none of its time"
    assert (await s.client.counts()).answers == {answer: 2}


async def test_the_feed_of_ticks_says_whose_it_is(make):
    s = await make(log_prompts=True)
    await s.collect("a", max_tokens=3)

    async def recorded():  # which a tick is after its events went out
        found = await s.client.ticks(last=10)
        return found if found.next >= 3 else None

    feed = await until(recorded)
    body = orjson.loads(feed.body)
    assert feed.next == body["next"] == len(body["ticks"]) == 3
    who = {"engine_id": "0", "incarnation_id": feed.incarnation_id, "model": "scripted", "n_slots": 2}
    assert who.items() <= body["engine"].items()
    (life,) = body["requests"]
    assert (life["request_id"], life["state"], life["n_output"]) == ("a", "ended", 3)
    assert life["prompt"] == "\x01" * 3
    assert orjson.loads((await s.client.ticks(last=10, since=feed.next)).body)["ticks"] == []


async def test_before_the_engine_answers_everything_is_loading(make):
    s = await make(connected=False)
    with pytest.raises(LoadingError):
        _ = s.client.card
    assert (await s.client.state()).status is EngineStatus.LOADING
    await s.connect()
    assert s.client.card.model_id == "scripted"
    assert s.client.words.tokenize("hi") == ByteVocab().tokenize("hi")
    assert s.client.words.detokenize([104, 105]) == "hi"


async def test_until_the_vocabulary_is_read_the_engine_is_loading_and_says_so(make, monkeypatch):
    s, load = await make(connected=False), Vocabularies.load
    reads, read = threading.Event(), threading.Event()

    def load_slowly(*args):
        reads.set()
        assert read.wait(WAIT_S)
        return load(*args)

    monkeypatch.setattr(Vocabularies, "load", load_slowly)
    try:
        s.client.start()
        assert await asyncio.to_thread(reads.wait, WAIT_S)
        state = await s.client.state()
        assert (state.status, state.detail) == (EngineStatus.LOADING, "reading the model's vocabulary")
        read.set()
        await asyncio.wait_for(asyncio.shield(s.client._connecting), WAIT_S)
        assert (await s.client.state()).status is EngineStatus.READY
    finally:
        read.set()


async def test_a_template_that_was_set_reaches_the_ingress(make, tmp_path):
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}!", encoding="utf-8")
    s = await make(chat_template=tmp_path / "mine.jinja")
    assert s.client.words.chat.render([{"role": "user", "content": "hi"}]) == "hi!"


@pytest.mark.parametrize("source", [None, b"\xff", b"{% if %}"])
def test_a_template_that_cannot_be_used_names_the_setting(tmp_path, source):
    path = tmp_path / "mine.jinja"
    if source is not None:
        path.write_bytes(source)
    with pytest.raises(ConfigError, match=r"mine\.jinja") as caught:
        Setup(chat_template=path)
    assert caught.value.setting == "chat_template"


async def test_an_engine_that_cannot_be_served_says_why(make, tmp_path):
    s = await make(connected=False)
    describe = s.handle.server.describe

    async def describe_missing():
        return await describe() | {"path": tmp_path / "missing.gguf"}

    s.handle.server.describe = describe_missing
    s.client.start()
    await asyncio.wait({s.client._connecting}, timeout=WAIT_S)
    await asyncio.sleep(0)
    assert "missing.gguf" in (await s.client.state()).detail


async def test_an_engine_that_does_not_come_back_says_why_serve_cannot_start_it(make):
    s = await make()
    why = "devices: the worker at far:1, after 30 s: nobody answers there"
    s.client._why = lambda: why
    assert not (await s.client.state()).detail, "nobody asks while it is there"
    s.handle.kill()
    s.handle.server.state = s.handle.server.attend = dead
    await s.reaches(lambda state: state.status is EngineStatus.RESTARTING)
    assert (await s.client.state()).detail.endswith(f"is being restarted: {why}")
    s.client._why, s.client._why_asked_s = lambda: 1 / 0, 0.0  # as where Serve's controller is away, too
    assert (await s.client.state()).detail.endswith("is being restarted")


async def dead(*_):
    raise ActorDiedError


@pytest.mark.parametrize(
    ("message", "why"),
    [
        pytest.param(
            "A replica failed to start with exception. Retrying. Error:\nray::replica()\n"
            "cobali_ray.errors.ConfigError: devices: there is no CUDA0",
            "devices: there is no CUDA0",
            id="tried",
        ),
        pytest.param("A replica's health check failed.", "", id="not-tried-yet"),
        pytest.param("", "", id="there"),
    ],
)
def test_serve_tells_why_it_could_not_start_an_engine(monkeypatch, message, why):
    app = SimpleNamespace(deployments={"engine": SimpleNamespace(message=message)})
    monkeypatch.setattr("ray.serve.status", lambda: SimpleNamespace(applications={"mine": app}))
    assert startup.why_down("mine", "engine") == why
    assert startup.why_down("another", "engine") == startup.why_down("mine", "other") == ""


async def test_an_engine_that_goes_without_a_device_says_so_and_what_it_has_less_of(make):
    s = await make()
    views = [DeviceView(name="near", kind="GPU"), DeviceView(name="far:1", kind="worker", there=False)]
    model = s.handle.server._host.model
    model.devices = SimpleNamespace(look=lambda: views)
    assert (await s.client.state()).detail == "without far:1"
    model.room = "5 of 8 slots"
    assert (await s.client.state()).detail == "without far:1, with 5 of 8 slots"


@pytest.fixture
def on_two_nodes(monkeypatch):
    monkeypatch.setattr(wire, "others_reach", bool)
    for module, node_id in ((client, "a"), (engine_server, "b")):
        place = {"host": "127.0.0.1", "node_id": node_id}
        monkeypatch.setattr(module, "where_am_i", lambda place=place: place)


async def known(s):
    """Wait until the engine has made itself known."""
    await until(lambda: s.known.attendance.wire_key)
    assert not s.client._puller._engines, "it came the long way"


async def test_an_engine_on_another_node_answers_as_one_here(make, on_two_nodes):
    s = await make()
    await until(lambda: s.handle.server._pusher.n_readers)
    events = await s.collect("at-once")
    assert (len(text_of(events)), events[-1].finish_reason) == (5, "length")
    await known(s)
    texts = await asyncio.gather(*(s.collect(f"r{n}", max_tokens=300) for n in range(4)))
    assert len({text_of(events) for events in texts}) == 1


async def test_what_the_cache_holds_and_slots_that_are_moved(make, tmp_path):
    s = await make(slot_save_path=tmp_path / "slots", n_slots=2)
    await s.collect(n_prompt=50)
    await s.counted(length=1)
    view = await s.client.cache()
    assert [slot.n_tokens for slot in view.slots] == [54, 0]
    assert view.tier_requests == {"none": 1, "slot": 0, "copy": 0, "host": 0, "disk": 0}
    assert view.tier_tokens["none"] == 50
    assert view.settings["n_slots"] == 2
    saved = await s.client.move_slot("save", 0, "kept")
    assert (saved.n_tokens, saved.n_bytes) == (54, (tmp_path / "slots" / "kept").stat().st_size)
    assert (await s.client.move_slot("restore", 1, "kept")).n_tokens == 54
    assert (await s.client.move_slot("erase", 0, "")).n_tokens == 54
    (*_, end) = await s.collect("b", n_prompt=60)
    assert end.stats.n_cached == 50
    assert (await s.client.cache()).tier_tokens["none"] == 60
    with pytest.raises(SlotFileError):
        await s.client.move_slot("restore", 0, "other")


async def test_an_engine_that_is_gone_is_loading_and_has_no_requests(make):
    s = await make()
    s.model.dispatch.handle(Lost(ONLY_ENGINE))
    client = s.client
    for call in (client.cache(), client.move_slot("erase", 0, ""), client.ticks(last=1), client.pause()):
        with pytest.raises(LoadingError):
            await call
    assert await client.find("a", "") == []


async def test_what_a_successor_serves_is_asked_anew(make, monkeypatch):
    monkeypatch.setattr(engine_server, "ATTEND_S", 0.001)
    s = await make(n_ctx=64)
    old, s.handle.server = s.handle.server, EngineServer(EngineSettings(model="builtin:scripted", n_ctx=128))
    await until(lambda: s.client.card.n_ctx_slot == 128)
    old.__del__()


def test_an_ingress_knows_where_the_front_end_of_its_node_listens(monkeypatch):
    asked = {}

    def build_api(*_, **options):
        asked.update(options)
        return SimpleNamespace(openapi=dict, state=SimpleNamespace(batches=None))

    monkeypatch.setattr("cobali_ray.actors.ingress.build_api", build_api)
    monkeypatch.setattr("cobali_ray.actors.ingress.Judges", lambda: SimpleNamespace(warm=list))
    monkeypatch.setenv(FRONT_HOST, "0.0.0.0")
    ingress = Ingress.__new__(Ingress)
    ingress._fleet = ingress._tracing = ingress._store = None
    ingress._settings = ForIngress(ApiSettings(), ServerSettings())
    ingress.__serve_build_asgi_app__()
    assert asked["listens"] == "0.0.0.0", "under any name, then"


async def test_an_engine_that_dies_while_it_drains_cuts_the_others_and_their_viewers_not_short():
    done = []

    async def dies(_):
        raise ActorDiedError

    async def drains(_):
        await asyncio.sleep(0)
        done.append("drained")
        return True

    viewers = {id_: SimpleNamespace(close=lambda: done.append("viewers")) for id_ in "ab"}
    ingress = Ingress.__new__(Ingress)
    ingress._app = SimpleNamespace(
        state=SimpleNamespace(streams=SimpleNamespace(close=list), batches=None, viewers=viewers)
    )
    ingress._fleet = SimpleNamespace(models=[SimpleNamespace(present=["a", "b"])], stop=list)
    ingress._clients = {
        id_: SimpleNamespace(drain=drain, close=list) for id_, drain in {"a": dies, "b": drains}.items()
    }
    assert not await ingress.drain(1.0)
    assert done == ["drained", "viewers", "viewers"]


def test_engines_of_one_model_share_its_vocabulary():
    vocabularies = Vocabularies()
    assert vocabularies.load(None, None, 1) is vocabularies.load(None, None, 1)
    first = vocabularies.load(None, None, 1)
    assert vocabularies.load(None, "other", 1) is not first
    assert vocabularies.load(None, None, 1) is first
    assert vocabularies.load(None, None, 2) is not first
    assert vocabularies.load(None, None, 1) is not first, "of a file that was replaced none is kept"


def texts(*lengths, **fields):
    rows = [[number % 250 + 1] * length for number, length in enumerate(lengths)]
    return EmbeddingRequest.of(rows, **({"request_id": "e"} | fields))


async def test_vectors_travel_the_whole_way(make):
    setup = await make(pooling="last")
    assert setup.client.card.embedding.pooling == "last"
    request = texts(*range(1, 200))
    rows, ends = {}, []
    async with asyncio.timeout(WAIT_S):
        async for events in setup.model.ask(request):
            for event in events:
                if isinstance(event, End):
                    ends.append(event)
                else:
                    found = np.frombuffer(event.rows, "<f4").reshape(len(event.texts), -1)
                    rows |= dict(zip(event.texts, found, strict=True))
    assert [end.error for end in ends] == [None]
    alone = ScriptedEmbedder()
    for number in range(199):
        (row,) = alone.embed([TextPiece(request, number, 0, request.text(number), last=True)])
        assert (rows[number] == row).all()
    await setup.counted(stop=1)
    text = render(await setup.handle.server.snapshot())
    assert 'cobali_embedded_texts_total{engine="0"} 199.0' in text
    assert 'cobali_tenant_prompt_tokens_total{engine="0",tenant="anyone"} 19900.0' in text
    feed = orjson.loads((await setup.handle.server.ticks(100, 0, None)).body)
    assert sum(tick["n_texts"] for tick in feed["ticks"]) == 199
