"""What is new between two views of a histogram."""

from __future__ import annotations

import pytest

from cobali_ray.telemetry.deltas import new_values
from cobali_ray.telemetry.histogram import HistogramView


def view(*counts):
    return HistogramView((1.0, 2.0, 4.0), counts, 0.0)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param(None, view(1, 0, 2, 0), [0.5, 3.0, 3.0], id="first"),
        pytest.param(view(1, 0, 2, 0), view(1, 1, 2, 0), [1.5], id="only-what-is-new"),
        pytest.param(view(1, 0, 2, 0), view(1, 0, 2, 0), [], id="nothing"),
        pytest.param(None, view(0, 0, 0, 1), [8.0], id="above-the-last-bound"),
        pytest.param(None, view(6, 0, 3, 0), [0.5, 0.5, 3.0], id="a-part-stands-for-all"),
    ],
)
def test_new_values(before, now, expected):
    assert new_values(before, now, n_most=3) == expected
