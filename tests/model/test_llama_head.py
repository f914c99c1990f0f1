"""The head that a model brings to guess with: no answer depends on it, and it guesses by what it has seen."""

import sys
from array import array

import archs
import llama_cpp
import numpy as np
import pytest

from cobali_ray.backend import head as heads
from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.context import brings_head
from cobali_ray.engine.opening import open_engine
from cobali_ray.settings import EngineSettings
from cobali_ray.testing import EventRecorder, FakeClock

pytestmark = pytest.mark.model
FAMILIES = ["moe-head", "hybrid-delta"]
N, N_GUESSED = 150, 3


def text(seed, n=N):
    return np.random.default_rng(seed).integers(0, archs.N_VOCAB - 8, n).tolist()


@pytest.fixture
def open_on(models):
    opened = []

    def open_one(family, **changes):
        asked = {
            "n_slots": 4,
            "n_ctx": 512,
            "n_batch": 128,
            "n_threads": 1,
            "speculation": True,
            "head": True,
        }
        opened.append(LlamaBackend(LlamaConfig(path=models(family), **(asked | changes))))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()


def compute(backend, *spans, draft=False):
    """Compute (slot, start, tokens) together."""
    batch = TickBatch(backend.n_batch)
    laid = [Span(i, start, len(part), len(part) if draft else 1) for i, start, part in spans]
    batch.fill(tuple(laid), [array("i", [0] * start + part) for _, start, part in spans])
    backend.forward(batch)
    backend.wait()  # only then the head follows


def guessed(backend, slot_id, token):
    return backend.guess([(slot_id, token, N_GUESSED)])[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_it_guesses_the_same_however_the_text_was_computed(open_on, family):
    """All at once, token by token beside others, behind drafts that were wrong, and after a swap."""
    backend, a, b = open_on(family), text(1), text(2)
    assert backend.has_head
    compute(backend, (0, 0, a[:100]))
    compute(backend, (0, 100, a[100:]))
    expected = guessed(backend, 0, 7)
    assert guessed(backend, 0, 7) == expected, "to guess changes nothing"
    assert guessed(backend, 0, 8) != expected

    compute(backend, (1, 0, a[:60]), (2, 0, b[:60]))
    for i in range(60, N):
        draft = [5, 6, 7][: i % 4]
        if i % 20 == 0:
            guessed(backend, 1, a[i])
        compute(backend, (1, i, [a[i], *draft]), (2, i, b[i : i + 1]), draft=True)
        backend.truncate(1, i + 1)
    backend.swap(1, 3)
    assert guessed(backend, 1, 7) == expected
    assert backend.guess([(2, 9, 2), (1, 7, 3)]) == [guessed(backend, 2, 9)[:2], expected]


@pytest.mark.parametrize(
    ("family", "kv", "n_keep"),
    [
        ("hybrid-delta", "split", N), ("moe-head", "split", 120), ("moe-head", "split", 40),
        ("moe-head", "unified", 120),
    ],
)  # fmt: skip
def test_of_a_copy_it_makes_what_it_makes_of_the_donor(open_on, family, kv, n_keep):
    """The donor's first 100 tokens went through the head; the others, which did not, go along."""
    backend, a, b = open_on(family, kv=kv), text(1), text(2)

    def made(slot_id):
        guessed(backend, slot_id, 7)
        rows = heads._rows(backend._lc.llama_get_logits(backend._head._context), 1, archs.N_VOCAB)
        return rows[0].copy()

    compute(backend, (0, 0, a[:100]))
    compute(backend, (0, 100, a[100:]))
    backend.copy(0, 1, n_keep)
    backend.truncate(0, n_keep)
    for slot_id in (0, 1):
        compute(backend, (slot_id, n_keep, b[:10]))
    expected = made(0)
    assert np.abs(made(1) - expected).max() < 0.05
    backend.truncate(0, 0)
    assert np.abs(made(1) - expected).max() < 0.05, "it does not depend on its donor"
    compute(backend, (2, 0, b[: n_keep // 2]))
    compute(backend, (2, n_keep // 2, b[n_keep // 2 : n_keep]))
    compute(backend, (2, n_keep, b[:10]))
    assert np.abs(made(2) - expected).max() > 0.5, "it depends on what came before"


@pytest.mark.parametrize("family", ["moe-head", "hybrid-delta"])
def test_what_it_did_not_see_it_guesses_without(open_on, family):
    """A slot from host memory, and one that goes back, get some guess; one that is emptied begins anew."""
    backend, a = open_on(family), text(1)
    backend.measure_state()
    backend.measure_cell()
    states = backend.keeps_states
    compute(backend, (0, 0, a[:100]))
    state = backend.save_state(0, 100) if states else None
    compute(backend, (0, 100, a[100:]))
    expected = guessed(backend, 0, 7)
    backend.restore(1, backend.save(0, [(0, N)]), N, backend.save_state(0, N) if states else None)
    compute(backend, (1, N, [7]))
    assert len(guessed(backend, 1, 7)) == N_GUESSED
    if state is None:
        backend.truncate(0, 100)
    else:
        backend.restore_state(0, state, 100)
    compute(backend, (0, 100, a[100:]))
    assert len(guessed(backend, 0, 7)) == N_GUESSED
    backend.truncate(0, 0)
    compute(backend, (0, 0, a[:128]))
    compute(backend, (0, 128, a[128:]))
    assert guessed(backend, 0, 7) == expected


def test_where_it_fails_nothing_else_does(open_on, monkeypatch):
    backend = open_on("moe-head")
    compute(backend, (0, 0, text(1)[:100]))
    with monkeypatch.context() as broken:
        broken.setattr(backend._head, "_lc", Broken(backend._head._lc))
        assert guessed(backend, 0, 7) == [0] * N_GUESSED
    compute(backend, (0, 100, [7, 8]))
    assert guessed(backend, 0, 9) != [0] * N_GUESSED


class Broken:
    """llama.cpp that computes nothing."""

    def __init__(self, lc):
        self._lc = lc

    def __getattr__(self, name):
        return (lambda *_: -1) if name == "llama_decode" else getattr(self._lc, name)


def test_without_its_calls_the_start_says_so_and_all_goes_on(open_on, monkeypatch):
    said = []
    monkeypatch.setattr(heads._log, "warning", lambda event, **fields: said.append((event, fields)))
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp_ext", None)
    monkeypatch.delattr(llama_cpp, "llama_cpp_ext", raising=False)
    backend = open_on("moe-head")
    assert (backend.has_head, backend.max_draft) == (False, 15)
    assert [(event, fields["setting"]) for event, fields in said] == [("no_head", "speculation")]


def test_only_files_that_have_one_bring_one(models, open_on):
    assert [name for name in [*FAMILIES, "dense"] if brings_head(models(name))] == FAMILIES
    assert not open_on("moe-head", head=False).has_head
    assert not open_on("moe-head", flash_attn="off").has_head, "results are to be reproducible"
    assert open_on("hybrid-delta", kv="unified").max_draft == 0


def answers_of(path, sampling, **settings):
    """Return what an engine says to two requests, and how many tokens were guessed for them."""
    settings = EngineSettings(model=str(path), n_slots=2, n_ctx=256, n_threads=1, **settings)
    engine = open_engine(settings, EventRecorder(), clock=FakeClock(step_s=0.001), path=path)
    asked = [
        Request(request_id=str(i), prompt=tuple(text(i, 40)), max_tokens=100, sampling=sampling)
        for i in range(2)
    ]
    sequences, ticks = [engine.submit(one) for one in asked], []
    while engine.has_work:
        ticks.append(engine.tick())
    engine.close()
    return [sequence.tokens for sequence in sequences], sum(tick.n_drafted for tick in ticks if tick)


@pytest.mark.parametrize(
    ("family", "sampling"),
    [
        ("moe-head", SamplingParams(temperature=0.0)),
        ("hybrid-delta", SamplingParams(temperature=1.0, seed=5)),
    ],
    ids=["moe-head", "hybrid-delta"],
)
def test_answers_are_those_without(models, family, sampling):
    without, n_guessed = answers_of(models(family), sampling, speculation="off")
    assert n_guessed == 0
    answers, n_guessed = answers_of(models(family), sampling, speculation="auto")
    assert answers == without
    assert n_guessed > 0
