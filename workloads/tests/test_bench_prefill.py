"""Lengths with a spread, packing them, and the batches that the contenders compute."""

from statistics import fmean, pstdev
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.settings import EngineSettings
from cobali_workloads.inside.lengths import SPREADS, batch_reduction, packed_rows
from cobali_workloads.inside.prefill import PrefillRunner, batches_of, pack, padded_ticks

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=40)


@pytest.mark.parametrize("spread", SPREADS, ids=lambda spread: spread.name)
def test_lengths_have_the_mean_and_the_range(spread):
    lengths = spread.draw(4000, seed=0)
    assert fmean(lengths) == pytest.approx(spread.mean, rel=0.05)
    assert pstdev(lengths) == pytest.approx(spread.deviation, rel=0.2)
    assert spread.least <= min(lengths) <= max(lengths) <= spread.most


def test_lengths_are_seeded_and_asking_for_more_changes_none():
    spread = SPREADS[0]
    assert spread.draw(20, seed=3) == spread.draw(50, seed=3)[:20]
    assert spread.draw(20, seed=3) != spread.draw(20, seed=4)


def test_mmlu_batches_of_64_waste_what_the_original_wasted():
    lengths = SPREADS[0].draw(64 * 50, seed=0)
    batches = [lengths[i : i + 64] for i in range(0, len(lengths), 64)]
    assert 5 < fmean(64 * max(batch) / sum(batch) for batch in batches) < 6.5


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        pytest.param([7], 1, id="one"),
        pytest.param([5, 5, 5], 3, id="equal-lengths-cannot-be-packed"),
        pytest.param([10, 5, 5, 9, 1], 3, id="halves-and-rests"),
        pytest.param([10, 1, 1, 1], 2, id="one-long-many-short"),
    ],
)
def test_packed_rows(lengths, rows):
    assert packed_rows(lengths) == rows
    assert batch_reduction(lengths) == len(lengths) / rows


@given(st.integers(1, 20), st.integers(1, 90), st.integers(1, 64))
def test_a_padded_batch_computes_every_token_of_the_rectangle_once(n_prompts, longest, n_batch):
    seen, sampled = set(), []
    for spans in padded_ticks(n_prompts, longest, n_batch):
        assert sum(span.length for span in spans) <= n_batch
        assert len({span.length for span in spans}) == 1, "all rows of a tick are equally long"
        for span in spans:
            cells = {(span.slot_id, at) for at in range(span.start, span.start + span.length)}
            assert not cells & seen
            seen |= cells
            if span.sample:
                sampled.append(span.slot_id)
                assert span.start + span.length == longest
    assert len(seen) == n_prompts * longest
    assert sorted(sampled) == list(range(n_prompts))


def test_batches_come_in_order_or_by_length():
    prompts = [[0] * n for n in (5, 1, 4, 2, 3)]
    assert [[len(p) for p in b] for b in batches_of(prompts, 2, by_length=False)] == [[5, 1], [4, 2], [3]]
    assert [[len(p) for p in b] for b in batches_of(prompts, 2, by_length=True)] == [[1, 2], [3, 4], [5]]


@pytest.fixture
def runner():
    backend = ScriptedBackend(n_slots=4, n_ctx_slot=64, n_batch=32)  # strict: it checks every batch
    settings = EngineSettings(n_slots=4, n_ctx=64, token_budget=32, prefill_chunk=32, min_prefix=0)
    return PrefillRunner(backend, settings, filler=1)


@pytest.mark.parametrize(
    ("lengths", "chunk", "budget", "order"),
    [
        pytest.param([3, 4, 2, 3], 4, 8, [0, 1, 2, 3], id="oldest-then-largest-that-fit"),
        pytest.param([2, 5, 3, 1], 8, 6, [0, 2, 3, 1], id="fills-the-budget-with-whole-prompts"),
        pytest.param([], 8, 6, [], id="nobody"),
    ],
)
def test_prompts_are_packed(lengths, chunk, budget, order):
    prompts = [SimpleNamespace(slot_id=i, n_pending=n) for i, n in enumerate(lengths)]
    assert [one.slot_id for one in pack(prompts, chunk, budget)] == order


PROMPTS = [[65 + i] * n for i, n in enumerate((40, 3, 12, 7))]


@pytest.mark.parametrize(
    ("way", "n_tokens", "n_ticks"),
    [
        pytest.param("padded", 160, 8, id="padded"),
        pytest.param("length-ordered", 160, 8, id="length-ordered"),
        pytest.param("one by one", 62, 5, id="one-by-one"),
        pytest.param("fcfs", 62, 2, id="fcfs"),
        pytest.param("packed", 62, 2, id="packed"),
    ],
)
def test_every_way_computes_its_tokens_and_answers_every_prompt(runner, way, n_tokens, n_ticks):
    for _ in range(2):  # the second time on a cache that holds the first batch
        run = runner.ways()[way](PROMPTS)
        assert (run.n_tokens, run.n_ticks) == (n_tokens, n_ticks)
        assert run.n_cells == n_tokens
        assert len(run.ttfts_s) == len(PROMPTS)
        assert all(0 < ttft <= run.seconds for ttft in run.ttfts_s)


def test_padded_prompts_all_wait_for_the_batch_and_lone_ones_do_not(runner):
    padded = runner.padded(PROMPTS)
    assert set(padded.ttfts_s) == {padded.seconds}
    alone = runner.one_by_one(PROMPTS)
    assert sorted(alone.ttfts_s) == alone.ttfts_s
    assert alone.ttfts_s[0] < alone.ttfts_s[-1]
