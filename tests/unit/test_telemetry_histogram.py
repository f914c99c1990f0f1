"""Histograms against numpy, and the promises that make the aliases exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.telemetry import bounds
from cobali_ray.telemetry.histogram import Histogram

EDGES = bounds.ITL
seconds = st.one_of(
    st.floats(min_value=0, max_value=200, allow_subnormal=False),
    st.sampled_from(EDGES),  # values on a bound belong to the bucket below it
)


@given(st.lists(seconds, max_size=60))
def test_counts_and_sum_are_numpys(values):
    histogram = Histogram(EDGES)
    histogram.observe_many(values)
    view = histogram.view()
    # np.histogram's bins are closed on the left, ours on the right: count the mirror image.
    mirrored = [-np.inf, *(-edge for edge in reversed(EDGES)), 0.0]
    expected, _ = np.histogram([-value for value in values], bins=mirrored)
    assert list(view.counts) == expected[::-1].tolist()
    assert view.sum == pytest.approx(float(np.sum(values)))
    assert view.count == len(values)
    assert view.cumulative() == [*(sum(v <= edge for v in values) for edge in EDGES), len(values)]


@given(st.lists(seconds, max_size=40))
def test_one_by_one_is_all_at_once(values):
    one_by_one, at_once = Histogram(EDGES), Histogram(EDGES)
    for value in values:
        one_by_one.observe(value)
    at_once.observe_many(np.array(values))
    assert one_by_one.view().counts == at_once.view().counts
    assert one_by_one.view().sum == pytest.approx(at_once.view().sum)


@given(st.lists(seconds, max_size=40))
def test_resampled_is_what_the_coarser_histogram_would_hold(values):
    fine, coarse = Histogram(EDGES), Histogram(bounds.VLLM_ITL)
    fine.observe_many(values)
    coarse.observe_many(values)
    assert fine.view().resampled(bounds.VLLM_ITL) == coarse.view()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (bounds.TTFT, bounds.VLLM_TTFT),
        (bounds.ITL, bounds.VLLM_ITL),
        (bounds.REQUEST, bounds.VLLM_REQUEST),
        (bounds.TICK_TOKENS, bounds.VLLM_TICK_TOKENS),
    ],
    ids=["ttft", "itl", "request", "tokens"],
)
def test_our_bounds_contain_vllms_and_start_lower(ours, theirs):
    assert set(theirs) < set(ours)
    assert ours[0] < theirs[0]
    assert set(bounds.from_below(ours, theirs)) == set(theirs) | {b for b in ours if b < theirs[0]}
