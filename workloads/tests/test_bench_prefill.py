"""Lengths with a spread, packing them, and the batches that the contenders compute."""

from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobali_workloads.inside.lengths import SPREADS, batch_reduction, packed_rows
from cobali_workloads.inside.prefill import batches_of, padded_ticks


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
