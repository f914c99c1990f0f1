"""How likely a prompt's tokens are: the numbers, how they are told, and what is computed for them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from answers import OnEngine

from cobali_ray.backend.logprobs import MAX_SCORED, PromptRows, n_scored_rows, score_rows
from cobali_ray.backend.scripted import N_VOCAB, ScriptedBackend, _chain
from cobali_ray.core.cost.ticktime import TickShape, TickTimeModel
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.request.events import Delta
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import GREEDY, Request, SamplingParams
from cobali_ray.engine.emit import MAX_VALUES
from cobali_ray.errors import InternalError, InvalidParameterError, PromptTooLongError

PROMPT = tuple(b"how likely is each letter of this text, given all those before it?")


def request(request_id="a", **fields):
    return Request(
        **{"request_id": request_id, "prompt": PROMPT, "max_tokens": 3, "n_prompt_logprobs": 2} | fields
    )


class Run(OnEngine):
    """An engine on the scripted model, and what was computed."""

    def __init__(self, *, backend=None, **limits):
        backend = backend or ScriptedBackend(n_slots=3, n_ctx_slot=256)
        super().__init__(backend, **{"prefill_chunk": 64, "min_prefix": 32} | limits)
        self.rows, self.starts = [], []
        forward = self.backend.forward

        def note(batch):
            self.rows.append(sum(span.sample for span in batch.spans))
            self.starts += [span.start for span in batch.spans if span.length > 1]
            forward(batch)

        self.backend.forward = note

    def play(self, *requests):
        for one in requests:
            self.engine.submit(one)
        self.run()
        return self

    def prompt(self, request_id="a"):
        return [p for e in self.events.events[request_id] if isinstance(e, Delta) for p in e.prompt]


def oracle(prompt=PROMPT):
    """Return the raw distribution in each place of a prompt but the first, computed one token at a time."""
    backend, state, rows = ScriptedBackend(), 0, []
    for token in prompt[:-1]:
        state = _chain(state, token)
        row = backend._rows[state % len(backend._rows)].astype(np.float64)
        rows.append(row - math.log(np.exp(row - row.max()).sum()) - row.max())
    return rows


def test_each_token_has_the_models_own_probability():
    first, *others = Run(n_scored_rows=7).play(request()).prompt()
    assert (first.token_id, first.piece, first.logprob, first.top, first.rank) == (
        PROMPT[0], b"h", None, (), None,
    )  # fmt: skip
    assert [p.token_id for p in others] == list(PROMPT[1:])
    for told, row in zip(others, oracle(), strict=True):
        assert told.logprob == pytest.approx(row[told.token_id], abs=1e-5)
        assert [token for token, _, _ in told.top] == np.argsort(-row, kind="stable")[:2].tolist()
        assert told.rank == np.count_nonzero(row >= row[told.token_id])
        if told.rank <= 2:
            assert told.top[told.rank - 1][2] == told.logprob, "clients look for the very same number"


def test_a_prompt_alone_needs_no_answer():
    for prompt in (PROMPT, PROMPT[:1], PROMPT[:2]):
        run = Run().play(request(prompt=prompt, max_tokens=0))
        (end,) = run.events.ends("a")
        assert (end.finish_reason, end.error, end.stats.n_output) == ("length", None, 0)
        assert end.stats.ttft_s is not None, "its prompt was computed, so it counts as one"
        assert len(run.prompt()) == len(prompt)
        assert run.events.text("a") == ""


def test_a_prompt_may_fill_its_slot_where_nothing_is_generated():
    limits = EngineLimits(n_slots=1, n_ctx_slot=4, n_cells=4, token_budget=4, prefill_chunk=4)
    from cobali_ray.core.queue.admission import check_request

    assert check_request(request(prompt=(1,) * 4, max_tokens=0), limits, N_VOCAB).max_tokens == 0
    with pytest.raises(PromptTooLongError):
        check_request(request(prompt=(1,) * 4), limits, N_VOCAB)


def test_nothing_is_reused_for_it_but_it_is_reused():
    run = Run(min_prefix=4).play(request("before", n_prompt_logprobs=None))
    run.play(request())
    assert run.events.ends("a")[0].stats.n_cached == 0
    run.play(request("after", n_prompt_logprobs=None))
    assert run.events.ends("after")[0].stats.n_cached == len(PROMPT) - 2
    run = Run(min_prefix=4, copies=True).play(request("one"), request("two"))
    assert [run.events.ends(name)[0].stats.n_cached for name in ("one", "two")] == [0, 0]
    assert run.prompt("one") == run.prompt("two")


def test_what_was_told_is_not_told_again_and_may_be_reused():
    whole = Run().play(request()).prompt()
    run = Run(min_prefix=4, copies=True).play(request("before", n_prompt_logprobs=None))
    run.starts.clear()
    assert run.play(request(n_scored=20)).prompt() == whole[20:]
    assert run.starts == [19], "the row of the token told last gives the next one"
    run.play(request("c", n_scored=len(PROMPT)))
    assert run.prompt("c") == []
    assert run.events.ends("c")[0].stats.n_cached == len(PROMPT) - 2


@pytest.mark.parametrize("n_host_cells", [0, 1000])
def test_who_loses_its_slot_halfway_goes_on_where_it_was(n_host_cells):
    alone = Run().play(request()).prompt()
    run = Run(n_cells=100, n_scored_rows=2, n_host_cells=n_host_cells, host_block=4)
    run.play(request("stream", prompt=PROMPT[:25], max_tokens=60, n_prompt_logprobs=None), request())
    (end,) = run.events.ends("a")
    assert end.stats.n_preempted > 0
    assert (run.starts.count(0) == 2) == bool(n_host_cells), "host memory keeps what is told already"
    assert run.prompt() == alone


def test_deltas_are_small():
    run = Run().play(request(n_prompt_logprobs=20))
    sizes = [len(e.prompt) for e in run.events.events["a"] if isinstance(e, Delta) and e.prompt]
    assert sum(sizes) == len(PROMPT)
    assert max(sizes) * 21 <= MAX_VALUES


def test_broken_logits_end_their_own_request():
    class Broken(ScriptedBackend):
        def sample(self, rows, drafts=(), prompts=()):
            if prompts:
                self._rows[self._computed[prompts[0].first + 5], 7] = np.nan
            return super().sample(rows, drafts, prompts)

    run = Run(backend=Broken(n_slots=3, n_ctx_slot=256), n_scored_rows=16)
    run.play(request(), request("b", prompt=tuple(b"another"), n_prompt_logprobs=None))
    (end,) = run.events.ends("a")
    assert isinstance(end.error, InternalError)
    assert "NaN" in str(end.error)
    assert run.events.ends("b")[0].finish_reason == "length"
    assert run.engine.slots.held(0).n_tokens == 0 or run.engine.slots.held(0).tokens[0] == ord("a")


def test_rows_are_measured_and_left_as_they_are():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 4, (6, 5000)).astype(np.float32)
    logits[4, 17] = np.inf
    before = logits.copy()
    sound, broken, nothing = score_rows(
        logits, [PromptRows(1, [3, 4999], 5), PromptRows(3, [1, 2], 1), PromptRows(5, [], 1)]
    )
    assert np.array_equal(logits, before)
    assert (broken, nothing) == (None, [])
    for row, token, told in zip(logits[1:3].astype(np.float64), [3, 4999], sound, strict=True):
        exact = row - row.max() - math.log(np.exp(row - row.max()).sum())
        assert told.logprob == pytest.approx(exact[token], abs=2e-6)
        assert [i for i, _ in told.top] == np.argsort(-exact)[:5].tolist()


def test_the_room_for_rows_is_bounded():
    assert n_scored_rows(260) == n_scored_rows(32_000) == MAX_SCORED
    for n_vocab in (128_256, 151_936, 262_144, 10_000_000):
        assert n_scored_rows(n_vocab) >= 2
        assert n_scored_rows(n_vocab) * n_vocab * 4 <= 64 << 20 or n_scored_rows(n_vocab) == 2


@pytest.mark.parametrize("fields", [{"n_prompt_logprobs": 21}, {"n_prompt_logprobs": -1}, {"max_tokens": -1}])
def test_what_is_refused(fields):
    with pytest.raises(InvalidParameterError):
        request(**fields)


def test_what_rows_take_is_learned_apart_from_what_tokens_take():
    model = TickTimeModel()
    for i in range(40):
        model.learn(TickShape(0, 0, ((0, 50 + i),)), 1e-3 * (50 + i))
    for i in range(60):
        n = 10 + 8 * (i % 7)
        model.learn(TickShape(0, 0, ((0, n),), n), 3e-3 * n)
    assert model.out_s == pytest.approx(2e-3, rel=0.15)
    assert model.predict(TickShape(0, 0, ((0, 64),))) == pytest.approx(0.064, rel=0.05)
    assert model.longest_chunk(0, 0.3, scored=True) == pytest.approx(model.longest_chunk(0, 0.1), rel=0.1)


def test_beside_streams_their_chunks_are_shorter():
    def chunks(n_top, short=()):
        pacer = Pacer(0.05)
        for i in range(20):
            pacer.learn(TickShape(1, 10, ()), 0.005)
            pacer.learn(TickShape(0, 0, ((0, 20 + i),)), 1e-3 * (20 + i))
        for i in range(60):
            pacer.learn(TickShape(0, 0, ((0, 20 + i % 5),), 20 + i % 5), 3e-3 * (20 + i % 5))
        run = Run()
        stream = run.engine.submit(request("s", prompt=PROMPT[:4], max_tokens=50, n_prompt_logprobs=None))
        run.engine.tick()
        waiting = [
            run.engine.submit(request(str(i), prompt=PROMPT[:n], n_prompt_logprobs=n_top))
            for i, n in enumerate((*short, 66))
        ]
        for slot_id, one in enumerate(waiting, 1):
            one.slot_id = slot_id
        return [chunk.length for chunk in pacer.plan([stream], waiting, run.engine.limits).chunks]

    assert chunks(0)[0] < chunks(None)[0] / 2
    assert sum(chunks(0, short=(8,))) <= chunks(0)[0] + 1, "what the first takes the second has not"


def test_its_answer_is_the_one_it_has_without():
    sampling = SamplingParams(temperature=1.0, seed=3, n_logprobs=1)
    answers = []
    for n_top in (None, 3):
        run = Run(n_scored_rows=5).play(request(sampling=sampling, n_prompt_logprobs=n_top, max_tokens=9))
        logprobs = [p for e in run.events.events["a"] if isinstance(e, Delta) for p in e.logprobs]
        answers.append((run.events.text("a"), logprobs))
    assert answers[0] == answers[1]


def test_candidates_of_a_device_do_not_suffice():
    engine = Run().engine
    for n in (None, 0):
        engine.submit(replace(request(str(n)), sampling=GREEDY, n_prompt_logprobs=n))
    rows = [engine.samplers.of(str(n)) for n in (None, 0)]
    assert [row.suffices(128) for row in rows] == [True, False]
