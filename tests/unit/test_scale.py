"""When one more engine is loaded, and which engines are chosen last."""

from math import inf
from random import Random

import pytest

from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.pace import Pacer
from cobali_ray.core.route import Router
from cobali_ray.core.scale import AGAIN_S, Demand, handicaps
from cobali_workloads.simulate.engine import SimulatedEngine
from cobali_workloads.simulate.fleet import Ask, Fleet, Routed
from cobali_workloads.simulate.ticks import Dice, TickTimes, plain_table


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
    assert grows_at(steady(2.0, 80.0, 5.0), demand)[0] == 5.0 + AGAIN_S


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


LOADS_S, KEEP_ALIVE_S = 2.0, 30.0
LIMITS = EngineLimits(
    n_slots=8, n_ctx_slot=4096, n_cells=32768, token_budget=520, prefill_chunk=512, prefill_order="shortest"
)
TIMES = TickTimes(limits=LIMITS, table=plain_table(pass_s=0.02, row_s=0.001, token_s=0.001))


class Elastic(Routed):
    """Two engines, the second of which is loaded and let go."""

    def __init__(self):
        self.router, self.demand = Router(handicaps("ab", 1, 1.0)), Demand(1.0)
        self.there_s, self.used_s, self.moves = inf, 0.0, []

    def choose(self, request, now_s, without):
        """Choose among those that are loaded."""
        if now_s > max(self.used_s, self.there_s) + KEEP_ALIVE_S:
            self.there_s = inf
            self.moves.append(("let go", now_s))
        self.router.released(request.request_id)
        gone = () if now_s >= self.there_s else ("b",)
        route = self.router.choose(request.prompt, request.cache_salt, now_s, {*without, *gone})
        self.router.booked(request.request_id, route, now_s)
        if self.there_s == inf and self.demand.grows(route.ttft_s - route.own_s, now_s):
            self.there_s = now_s + LOADS_S
            self.moves.append(("load", now_s))
        if route.engine_id == "b":
            self.used_s = now_s
        return route.engine_id


def asks(*parts):
    """Return requests at these rates, for so many seconds each; 2.4 a second are too many for one engine."""
    rng, since_s, found = Random(1), 0.0, []
    for per_s, seconds in parts:
        at_s = since_s
        while (at_s := at_s + rng.expovariate(per_s)) < since_s + seconds:
            prompt, answer = (rng.randbytes(int(rng.lognormvariate(mu, 0.8)) + 1) for mu in (5.3, 4.0))
            found.append(Ask(f"r{len(found)}", at_s, prompt[:3000], answer[:500]))
        since_s += seconds
    return found


def test_the_second_engine_is_there_while_it_is_needed_and_not_for_longer():
    elastic = Elastic()
    engines = {name: SimulatedEngine(Dice(TIMES, 0), Pacer("auto", LIMITS.grain)) for name in "ab"}
    stories = Fleet(engines, elastic, publish_s=1.0).play(asks((0.8, 100), (2.4, 100), (0.8, 150)))
    (load, loaded_s), (let_go, gone_s) = elastic.moves
    assert (load, let_go) == ("load", "let go")
    assert 100 < loaded_s < 150
    assert 200 + KEEP_ALIVE_S - 15 < gone_s < 350
    scaled = [story.tokens_s[0] - story.sent_s for story in stories if loaded_s + 10 < story.sent_s < gone_s]
    assert sorted(scaled)[len(scaled) // 2] < 1.0, "as long as a wait may be"
