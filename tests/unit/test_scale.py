"""When one more engine is loaded, and which engines are chosen last."""

import pytest

from cobali_ray.core.dispatch.scale import RETRY_S, Demand, handicaps


def grows_at(requests, demand=None):
    """Return when more is asked for, given (second, predicted wait) of each request."""
    demand = demand or Demand(1.0)
    return [now_s for now_s, wait_s in requests if demand.grows(wait_s, now_s)]


def steady(wait_s, until_s, since_s=0.0, per_s=4):
    return [(since_s + i / per_s, wait_s) for i in range(int((until_s - since_s) * per_s))]


@pytest.mark.parametrize(
    ("requests", "first_s"),
    [
        pytest.param(steady(2.0, 10), 3.0, id="three-seconds-of-long-waits"),
        pytest.param(steady(0.9, 10), None, id="waits-within-the-bound"),
        pytest.param([(0.01 * i, 30.0) for i in range(100)] + steady(0.0, 10, 1.0), None, id="a-burst"),
        pytest.param([(100.0 * i, 5.0) for i in range(9)], 300.0, id="few-requests-that-all-wait"),
        pytest.param(
            [(i / 4, 5.0 if i % 2 else 0.0) for i in range(40)], 3.25, id="short-prompts-that-pass-long-ones"
        ),
        pytest.param(steady(2.0, 2.9) + steady(0.0, 5, 3.0), None, id="over-before-the-third"),
        pytest.param([*steady(2.0, 3.0), (500.0, 0.0)], None, id="who-does-not-wait-asks-for-nothing"),
        pytest.param(steady(2.0, 2) + steady(0.1, 4, 2.0) + steady(2.0, 6.5, 4.0), None, id="in-a-row"),
    ],
)
def test_more_is_asked_for_where_waits_stay_long(requests, first_s):
    assert grows_at(requests)[:1] == ([] if first_s is None else [first_s])


def test_the_next_one_needs_three_seconds_of_its_own():
    assert grows_at(steady(2.0, 9.5)) == [3.0, 6.0, 9.0]


def test_after_a_failure_nothing_is_tried_for_a_minute():
    demand = Demand(1.0)
    assert grows_at(steady(2.0, 3.25), demand) == [3.0]
    demand.failed(5.0)
    assert grows_at(steady(2.0, 80.0, 5.0), demand)[0] == 5.0 + RETRY_S


@pytest.mark.parametrize(
    ("n_stay", "expected"),
    [
        (4, {}),
        (2, {"c": 0.5, "d": 1.0}),
        (1, {"b": pytest.approx(1 / 3), "c": pytest.approx(2 / 3), "d": 1.0}),
        (0, {"b": pytest.approx(1 / 3), "c": pytest.approx(2 / 3), "d": 1.0}),
    ],
    ids=["all-stay", "two-stay", "one-stays", "of-none-the-first-is-as-good"],
)
def test_the_last_engines_are_chosen_last(n_stay, expected):
    assert handicaps(list("abcd"), n_stay, 2.0) == expected
