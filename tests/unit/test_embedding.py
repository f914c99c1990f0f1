"""Texts between ticks: packed, in fair turns, within what streams can spare, and each request ends once."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from cobali_ray.backend.scripted import ScriptedBackend, ScriptedEmbedder
from cobali_ray.core.messages import Cancelled, Embed, Embedded, Finish, Submitted, TickBegun
from cobali_ray.core.plan.leftover import TURN
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.queue.text_passes import PassTimes
from cobali_ray.core.queue.waiting import AGEING_S
from cobali_ray.core.request.embedding import EmbeddingKind, EmbeddingRequest
from cobali_ray.core.request.events import Computing, Vectors
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import GREEDY, Request
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.core.views.stats import TickStats
from cobali_ray.engine.engine import Engine
from cobali_ray.errors import (
    BackendError,
    DeadlineExceededError,
    InternalError,
    InvalidParameterError,
    RequestCancelledError,
    TextTooLongError,
)
from cobali_ray.testing import EventRecorder, FakeClock

KIND = EmbeddingKind(width=16, n_most=100, n_batch=100, n_together=100, n_texts=8, pooling="mean")
SPLITS = KIND._replace(splits=True, n_most=1000)
LIMITS = EngineLimits(n_slots=4, n_ctx_slot=512, n_cells=2048, token_budget=68, prefill_chunk=64)


def texts_of(*lengths, **fields):
    texts = [[10 * number + i % 7 for i in range(length)] for number, length in enumerate(lengths)]
    return EmbeddingRequest.of(texts, **({"request_id": "a"} | fields))


class Texts:
    """A scheduler that is told of texts; `n_most` is how many tokens fit into a pass."""

    def __init__(self, kind=KIND, limits=LIMITS):
        self.scheduler = Scheduler(limits, embedding=kind, check_every=1)
        self.pieces, self.n_most, self.ended = [], 1 << 30, []
        self.scheduler.texts.times.most = lambda _: self.n_most

    def do(self, event):
        out = self.scheduler.handle(event)
        self.ended += [one.end for one in out if isinstance(one, Finish)]
        return out

    def submit(self, request, now_s=0.0):
        self.do(Submitted(request, now_s))

    def pack(self, n_most=1 << 30, now_s=0.0):
        if self.pieces:
            self.computed(now_s)
        self.n_most = n_most
        found = [one.pieces for one in self.do(TickBegun(now_s)) if isinstance(one, Embed)]
        self.pieces = found[0] if found else []
        return self.pieces

    def computed(self, now_s=0.0):
        self.pieces, n = [], len(self.ended)
        self.do(Embedded({}, now_s))
        return self.ended[n:]

    def cancel(self, request_id, now_s=0.0):
        n = len(self.ended)
        self.do(Cancelled(request_id, now_s))
        return self.ended[n:]


def queue_of(*requests, kind=KIND):
    texts = Texts(kind)
    for request in requests:
        texts.submit(request)
    return texts


def shape(pieces):
    return [(p.request.request_id, p.text_id, p.start, len(p.tokens), p.last) for p in pieces]


def passes(queue, n_most=1 << 30, now_s=0.0):
    found = []
    while pieces := queue.pack(n_most, now_s):
        found.append(shape(pieces))
        queue.computed(now_s)
    return found


@pytest.mark.parametrize(
    ("texts", "fields"),
    [
        pytest.param([], {}, id="no texts"),
        pytest.param([[1], []], {}, id="an empty text"),
        pytest.param([[1]] * 4097, {}, id="too many"),
        pytest.param([[1]], {"timeout_s": 0.0}, id="no time"),
        pytest.param([[1]], {"priority": 99}, id="no such class"),
    ],
)
def test_what_no_request_can_be(texts, fields):
    with pytest.raises(InvalidParameterError):
        EmbeddingRequest.of(texts, request_id="a", **fields)


def test_the_door_refuses_what_the_model_cannot_read():
    texts_of(100).check(KIND, 1000)
    with pytest.raises(TextTooLongError, match="maximum context length is 100 tokens"):
        texts_of(3, 101).check(KIND, 1000)
    with pytest.raises(InvalidParameterError, match="token ids"):
        texts_of(3, 3).check(KIND, 12)


def test_the_longest_that_fits_goes_first():
    assert passes(queue_of(texts_of(60, 10, 50, 40, 30))) == [
        [("a", 0, 0, 60, True), ("a", 3, 0, 40, True)],
        [("a", 2, 0, 50, True), ("a", 4, 0, 30, True), ("a", 1, 0, 10, True)],
    ]


def test_others_fill_a_pass_up():
    queue = queue_of(texts_of(70), texts_of(40, 20, request_id="b"))
    assert passes(queue) == [[("a", 0, 0, 70, True), ("b", 1, 0, 20, True)], [("b", 0, 0, 40, True)]]


def test_where_no_text_is_so_short_the_shortest_goes():
    assert passes(queue_of(texts_of(30, 20)), n_most=5) == [[("a", 1, 0, 20, True)], [("a", 0, 0, 30, True)]]


def test_a_long_text_is_computed_in_pieces_where_that_is_the_same():
    queue = queue_of(texts_of(250, 30), kind=SPLITS)
    assert passes(queue) == [
        [("a", 1, 0, 30, True)],
        [("a", 0, 0, 100, False)],
        [("a", 0, 100, 100, False)],
        [("a", 0, 200, 50, True)],
    ]


def test_what_goes_on_is_first_and_others_go_beside_it():
    queue = queue_of(texts_of(150), kind=SPLITS)
    queue.pack(100)
    queue.computed()
    queue.submit(texts_of(20, request_id="b"), 1.0)
    assert shape(queue.pack(100, 1.0)) == [("a", 0, 100, 50, True), ("b", 0, 0, 20, True)]


def test_one_text_need_not_wait_for_thousands():
    queue = queue_of(texts_of(*[50] * 1000))
    for _ in range(100):
        queue.pack()
    queue.submit(texts_of(10, request_id="b"), 1.0)
    queue.pack(now_s=1.0)
    queue.pack(now_s=1.0)
    (ended,) = queue.computed(1.0)
    assert (ended.request_id, ended.error) == ("b", None)


def test_tenants_share_by_weight_however_many_requests_one_sends():
    requests = [texts_of(*[50] * 200, request_id=f"a{i}", tenant="a") for i in range(5)]
    queue = queue_of(*requests, texts_of(*[50] * 400, request_id="b", tenant="b", weight=2.0))
    served = {"a": 0, "b": 0}
    for _ in range(150):
        for piece in queue.pack():
            served[piece.request.tenant] += 1
    assert served["b"] == pytest.approx(2 * served["a"], rel=0.1)


def test_a_better_class_goes_first_and_nobody_waits_for_ever():
    queue = queue_of(texts_of(*[100] * 9, priority=1), texts_of(*[100] * 9, request_id="b"))
    assert shape(queue.pack(100, 0.0))[0][0] == "b"
    assert shape(queue.pack(100, 2 * AGEING_S + 1))[0][0] == "b", "both have waited as long"
    assert shape(queue.pack(100, 2 * AGEING_S + 1))[0][0] == "a"


def test_an_end_tells_the_requests_life():
    queue = Texts()
    queue.submit(texts_of(60, 60, received_s=9.5), 10.0)
    queue.pack(100, 12.0)
    queue.pack(100, 13.0)
    (ended,) = queue.computed(14.0)
    stats = ended.stats
    assert (stats.n_prompt, stats.queue_s, stats.prefill_s, stats.e2e_s, stats.intake_s) == (
        120, 2, 2, 4, 0.5,
    )  # fmt: skip


def test_slots_and_texts_are_charged_to_one_account():
    engine, _, recorder, _ = make()
    engine.embed(texts_of(*[100] * 100, tenant="a"))
    for _ in range(100):
        engine.tick()
    for name in ("first", "second"):
        for tenant in "ab":
            engine.submit(replace(prompt(name + tenant, 500, 1), tenant=tenant))
    run(engine)
    queued = {name: recorder.ends(name)[0].stats.queue_s for name in ("seconda", "secondb")}
    assert queued["secondb"] <= queued["seconda"]
    assert engine.scheduler.accounts.open(texts_of(1, tenant="a")).served > 10_000


def seconds(n):
    return 0.002 + 1e-4 * n + 2e-7 * n * n


def test_passes_grow_until_they_take_the_time_they_have():
    times, sizes = PassTimes(), []
    for _ in range(300):
        n = min(times.most(0.03), 512)
        sizes.append(n)
        times.learn(n, seconds(n), 0.03)
    assert sizes[0] == 64
    assert 0.025 < seconds(sizes[-1]) <= 0.0301
    assert times.most(inf) > 1 << 20
    assert times.most(0.0) == 0


def test_where_some_are_late_all_are_planned_shorter():
    rng, times, late = np.random.default_rng(0), PassTimes(), []
    for _ in range(4000):
        n = max(times.most(0.03), 1)
        took_s = seconds(n) * rng.lognormal(0, 0.2)
        late.append(took_s > 0.03)
        times.learn(n, took_s, 0.03)
    assert 0 < np.mean(late[1000:]) < 0.02


def test_prompts_and_texts_take_turns():
    queue = queue_of(texts_of(*[50] * 19))
    texts = queue.scheduler.texts
    assert [texts.takes_turn(prompts_wait=False) for _ in range(3)] == [True] * 3
    assert [texts.takes_turn(prompts_wait=True) for _ in range(4)] == [False, True, False, True]
    queue.cancel("a")
    assert not texts.takes_turn(prompts_wait=False)


# -- in the engine


class Clocked(ScriptedEmbedder):
    """Takes time on a FakeClock, and fails where told to."""

    def __init__(self, clock, **kwargs):
        super().__init__(**kwargs)
        self.clock, self.passes, self.fails, self.spoils = clock, [], False, None

    def embed(self, pieces):
        n = sum(len(piece.tokens) for piece in pieces)
        self.passes.append((self.clock.now(), n))
        self.clock.advance(0.001 + 0.0005 * n)
        if self.fails:
            raise BackendError("out of order")
        rows = super().embed(pieces)
        for piece, row in zip(pieces, rows, strict=True):
            if piece.request.request_id == self.spoils:
                row[0] = np.nan
        return rows


def make(*, target=None, **kwargs):
    clock, recorder = FakeClock(), EventRecorder()
    embedder = Clocked(clock, **({"n_most": 128, "n_batch": 128} | kwargs))
    backend = ScriptedBackend(
        n_ctx_slot=512, embedder=embedder, tick_s=0.01, sleep=clock.advance, now=clock.now
    )
    engine = Engine(backend, LIMITS, clock, recorder, pacer=Pacer(target))
    return engine, embedder, recorder, clock


def run(engine):
    ticks = []
    while engine.has_work:
        ticks.append(engine.tick())
    engine.scheduler.check()
    return [stats for stats in ticks if stats is not None]


def rows_of(recorder, request):
    found = {}
    for event in recorder.events[request.request_id]:
        if isinstance(event, Vectors):
            rows = np.frombuffer(event.rows, "<f4").reshape(len(event.texts), -1)
            found |= dict(zip(event.texts, rows, strict=True))
    return [found[i] for i in range(len(request.ends))]


def prompt(name, n, max_tokens=40):
    tokens = tuple(65 + (i + len(name)) % 26 for i in range(n))
    return Request(request_id=name, prompt=tokens, max_tokens=max_tokens, sampling=GREEDY)


def test_every_text_has_the_vector_that_it_has_alone():
    engine, _, recorder, _ = make(splits=True, n_most=500)
    requests = [texts_of(*range(1, 90, 4)), texts_of(400, 7, 200, request_id="b")]
    for request in requests:
        engine.embed(request)
    run(engine)
    for request in requests:
        (end,) = recorder.ends(request.request_id)
        assert (end.finish_reason, end.error) == ("stop", None)
        for number, row in enumerate(rows_of(recorder, request)):
            alone, _, heard, _ = make(splits=True, n_most=500)
            one = EmbeddingRequest.of([request.text(number)], request_id="one")
            alone.embed(one)
            run(alone)
            assert (rows_of(heard, one)[0] == row).all()


def test_the_engine_says_whose_texts_it_computes_before_it_does():
    engine, embedder, recorder, _ = make(n_most=9, n_batch=9)
    seen = []
    embedder.told = lambda: [event for name in "ab" for event in recorder.events[name]]
    first, second = (texts_of(9, 9, 9, request_id=name, reply_to="here") for name in "ab")
    engine.embed(first)
    engine.embed(second)
    embed = embedder.embed
    embedder.embed = lambda pieces: (seen.append(embedder.told()), embed(pieces))[1]
    run(engine)
    said = [[event for event in words if isinstance(event, Computing)] for words in seen]
    assert said[0] == [Computing("a", on=True)]
    assert said[-1] == [Computing("a", on=True), Computing("b", on=True)], "each once"


def test_a_tick_that_only_embeds_has_its_record():
    engine, _, _, _ = make()
    engine.embed(texts_of(*[60] * 5))
    ticks = run(engine)
    assert [(t.n_embedded, t.n_texts, t.n_texts_queued, t.n_tokens) for t in ticks] == [
        (120, 2, 3, 0), (120, 2, 1, 0), (60, 1, 0, 0),
    ]  # fmt: skip
    assert [t.tick_id for t in ticks] == [0, 1, 2]
    assert ticks[0].embed_s == pytest.approx(0.061)
    assert isinstance(ticks[0], TickStats)


def test_records_say_of_every_request_that_it_ended():
    engine, _, recorder, _ = make()
    engine.submit(prompt("s", 20, 6))
    for name in ("a", "b"):
        engine.embed(texts_of(60, request_id=name))
    assert sum(t.n_finished for t in run(engine)) == len([n for n in "sab" if recorder.ends(n)]) == 3


def test_streams_keep_their_target_beside_texts_and_prompts():
    engine, embedder, recorder, _ = make(target=0.03)
    for name in ("s", "t"):
        engine.submit(prompt(name, 20, 300))
    for _ in range(20):
        engine.tick()
    engine.embed(texts_of(*[20] * 300))
    engine.submit(prompt("long", 400))
    ticks = []
    while recorder.ends("a") == []:
        ticks.append(engine.tick())
    gaps = [gap for tick in ticks[20:] for gap in tick.gaps_s]
    assert max(gaps) <= 0.031
    assert any(n > 20 for _, n in embedder.passes[20:]), "there is time for more than one text"
    beside = [t for t in ticks if t.n_prefill and t.n_decode]
    assert beside, "the prompt goes on"
    assert not [t for t in beside if t.n_embedded], "and not in the gap of the texts"


def test_texts_of_the_last_class_wait_while_others_are_answered():
    engine, embedder, recorder, _ = make(target=0.03)
    engine.submit(prompt("s", 20, TURN + 60))
    for _ in range(20):
        engine.tick()
    engine.embed(texts_of(*[20] * 30, priority=9))
    for _ in range(TURN - 1):
        engine.tick()
    assert embedder.passes == []
    engine.submit(prompt("long", 400))
    engine.tick()
    assert len(embedder.passes) == 1, "their turn, whoever else waits"
    engine.embed(texts_of(20, request_id="live"))
    while len(embedder.passes) == 1:
        engine.tick()
    assert embedder.passes[1][1] == 20, "and in no other pass are they beside others' texts"
    run(engine)
    assert recorder.ends("a")[0].error is None


def test_a_text_of_the_last_class_that_was_begun_waits_like_the_others():
    engine, embedder, recorder, _ = make(target=0.03, splits=True, n_most=500)
    engine.submit(prompt("before", 20, 20))
    for _ in range(20):
        engine.tick()
    engine.embed(texts_of(400, priority=9))
    engine.tick()
    n = len(embedder.passes)
    assert n == 1
    engine.submit(prompt("s", 20, 60))
    for _ in range(50):
        engine.tick()
    assert len(embedder.passes) <= n + 1, "one that was begun before the other had its slot"
    run(engine)
    assert recorder.ends("a")[0].error is None


def test_a_pass_that_fails_ends_its_requests_and_no_others():
    engine, embedder, recorder, _ = make()
    engine.submit(prompt("s", 50))
    engine.embed(texts_of(100))
    engine.embed(texts_of(100, request_id="b"))
    embedder.fails = True
    engine.tick()
    embedder.fails = False
    run(engine)
    assert isinstance(recorder.ends("a")[0].error, InternalError)
    assert recorder.ends("b")[0].error is None
    assert recorder.ends("s")[0].error is None


def test_a_vector_that_is_no_number_ends_its_request_and_no_other():
    engine, embedder, recorder, _ = make()
    embedder.spoils = "a"
    engine.embed(texts_of(20, 20))
    engine.embed(texts_of(20, request_id="b"))
    run(engine)
    assert "no finite vector" in str(recorder.ends("a")[0].error)
    assert recorder.ends("b")[0].error is None


def test_who_leaves_and_who_is_late_is_not_computed():
    engine, embedder, recorder, clock = make()
    engine.embed(texts_of(*[100] * 10))
    engine.embed(texts_of(*[100] * 10, request_id="b", timeout_s=0.2))
    engine.tick()
    engine.cancel("a")
    clock.advance(1.0)
    run(engine)
    assert isinstance(recorder.ends("a")[0].error, RequestCancelledError)
    assert isinstance(recorder.ends("b")[0].error, DeadlineExceededError)
    assert len(embedder.passes) == 1


def test_what_waits_is_published():
    engine, _, _, _ = make()
    engine.embed(texts_of(*[100] * 10))
    for _ in range(6):
        engine.tick()
    assert engine.load_view().embed_s == pytest.approx(4 * 0.051, rel=0.2)
