"""What the last class computes beside others: what they do not notice, and now and then all."""

from dataclasses import replace
from math import inf
from types import SimpleNamespace

import pytest
from test_fair import Setup, ask

from cobali_ray.core.plan.leftover import AHEAD, LATELY_S, NOTICED, TURN, Leftovers
from cobali_ray.core.queue.waiting import MAX_PARKED


class Times:
    """A pacer of a machine on which a pass takes `base_s`, and `row_s` for each row."""

    def __init__(self, base_s, row_s, *, known=True):
        self.model, self.knows_decode = self, known
        self._base_s, self._row_s = base_s, row_s

    def decode_s(self, n, context, runs=()):
        return self._base_s + n * self._row_s if n else 0.0

    def most_s(self, decode_s):
        return 3 * decode_s


def sequence(slot_id, priority=9, last_token_s=1.0):
    return SimpleNamespace(
        slot_id=slot_id, priority=priority, n_computed=10, last_token_s=last_token_s, decoding=True
    )


def slots(some):
    return [s.slot_id for s in some]


LIVE, MINE = [sequence(0, 0), sequence(1, 8)], [sequence(2 + i, last_token_s=9 - i) for i in range(6)]
CPU, GPU = Times(1.0, 1.0), Times(1.0, 0.001)


@pytest.mark.parametrize(
    ("times", "part"),
    [
        pytest.param(CPU, [0, 1], id="rows-cost"),
        pytest.param(GPU, [0, 1, 2, 3, 4, 5, 6, 7], id="rows-are-free"),
        pytest.param(Times(1.0, 0.4 * NOTICED), [0, 1, 6, 7], id="some-fit-those-that-waited-longest"),
        pytest.param(Times(1.0, 1.0, known=False), [0, 1, 2, 3, 4, 5, 6, 7], id="nothing-is-known-yet"),
    ],
)
def test_streams_take_part_that_the_others_do_not_notice(times, part):
    turnout = Leftovers().beside(LIVE + MINE, [], times, 0.0)
    assert (slots(turnout.streams), turnout.within_s) == (part, inf)
    assert turnout.whole is (len(part) == 8)


def test_prompts_wait_and_others_prompts_do_not():
    live, mine = sequence(8, 0), sequence(9)
    turnout = Leftovers().beside(LIVE + MINE, [mine, live], GPU, 0.0)
    assert slots(turnout.prompts) == [8]
    assert not turnout.whole
    turnout = Leftovers().beside(MINE, [live], CPU, 0.0)
    assert (slots(turnout.streams), slots(turnout.prompts)) == ([], [8])


@pytest.mark.parametrize(
    ("streams", "prompts"), [(MINE, [sequence(9)]), (LIVE, [sequence(9, 0)]), ([], MINE)]
)
def test_who_is_alone_has_everything(streams, prompts):
    turnout = Leftovers().beside(streams, prompts, CPU, 0.0)
    assert (turnout.streams, turnout.prompts, turnout.within_s, turnout.whole) == (
        streams,
        prompts,
        inf,
        True,
    )


def test_all_have_a_turn_after_enough_passes():
    leftovers, sizes = Leftovers(), []
    for _ in range(2 * (TURN + 1)):
        turnout = leftovers.beside(LIVE + MINE, [sequence(9)], CPU, 0.0)
        assert turnout == leftovers.beside(LIVE + MINE, [sequence(9)], CPU, 0.0)._replace(
            prompts=turnout.prompts
        )
        leftovers.begin(turnout, "")
        sizes.append((len(turnout.streams), len(turnout.prompts), turnout.within_s))
    assert sizes == ([(2, 0, inf)] * TURN + [(8, 1, 9.0)]) * 2


def test_where_others_came_lately_no_pass_keeps_the_next_one_waiting_for_long():
    leftovers, times = Leftovers(), Times(1.0, 1.0)
    leftovers.spoke(SimpleNamespace(priority=9, arrived_s=0.0), 1000.0)
    assert leftovers.beside(MINE, [], times, 1000.0).within_s == inf, "its own kind is not waited for"
    most_s = 7.5
    ttft_s = most_s / (AHEAD * NOTICED)
    leftovers.spoke(SimpleNamespace(priority=0, arrived_s=1000.0 - ttft_s), 1000.0)
    for prompts, part in (([], [2, 3, 4, 5, 6, 7]), ([sequence(9)], [])):
        turnout = leftovers.beside(MINE, prompts, times, 1001.0)
        assert (slots(turnout.streams), turnout.prompts) == (part, prompts)
        assert turnout.within_s == pytest.approx(most_s)
    slow = leftovers.beside(MINE, [], Times(1.0, 20.0), 1001.0)
    assert slots(slow.streams) == [7], "one at least, who waited longest"
    assert leftovers.beside(MINE, [], times, 1000.5 + LATELY_S).within_s == inf
    leftovers.spoke(SimpleNamespace(priority=0, arrived_s=2050.0 - ttft_s / 2), 2050.0)
    assert leftovers.beside(MINE, [], times, 2050.0).within_s == pytest.approx(0.9 * most_s), "a mean"


@pytest.mark.parametrize("adapter", ["", "x"])
def test_the_scheduler_computes_the_last_class_beside_others_now_and_then(adapter):
    s = Setup(n_slots=2)
    s.submit(ask("first", max_tokens=20))
    s.tick(20)  # and what rows take is learnt
    s.submit(ask("late", priority=9, max_tokens=200, adapter=adapter), ask("live", max_tokens=240))
    s.tick(TURN + 10)
    n = {one.request_id: one.n_output for one in s.scheduler.slots.running}
    assert n["live"] > TURN
    assert 1 <= n["late"] <= 3, "its turn, and what it had before the other was there"
    s.tick(400)
    assert s.ends.keys() == {"first", "live", "late"}


def test_each_adapter_of_the_last_class_has_its_turn():
    s = Setup(n_slots=3, n_ctx_slot=4096, n_cells=3 * 4096)
    s.submit(ask("first", max_tokens=20))
    s.tick(20)
    late = {"plain": "", "other": "x"}
    s.submit(*(ask(name, priority=9, max_tokens=400, adapter=key) for name, key in late.items()))
    s.submit(ask("live", max_tokens=3000))
    s.tick(5 * (TURN + 2))
    n = {one.request_id: one.n_output for one in s.scheduler.slots.running}
    assert n["live"] >= 5 * TURN
    assert min(n["plain"], n["other"]) >= 2, "one turn after the other"


def test_a_turn_under_another_adapter_has_what_streams_can_spare():
    for now_s in (0.0, 1000.0):  # whether others came lately or not
        turnout = Leftovers().beside(MINE, [sequence(9)], CPU, now_s, away=LIVE)
        assert (len(turnout.streams), len(turnout.prompts), turnout.whole) == (6, 1, True)
        assert turnout.within_s == CPU.most_s(CPU.decode_s(2, 0))


@pytest.mark.parametrize(("priority", "n_parked"), [(8, MAX_PARKED), (9, 5)])
def test_only_the_last_class_gives_its_slot_to_others_as_often_as_they_want_it(priority, n_parked):
    s = Setup(n_slots=1)
    s.submit(ask("late", priority=priority, max_tokens=200))
    s.tick(2)
    for i in range(5):
        s.submit(ask(f"live{i}", max_tokens=2))
        s.tick(6)
    (late,) = (one for one in [*s.scheduler.slots.running, *s.scheduler.queue] if one.request_id == "late")
    assert late.n_parked == n_parked
    s.tick(300)
    assert len(s.ends) == 6


def test_nobody_waits_for_a_beginning_that_the_last_class_computes():
    s = Setup(n_slots=3, min_prefix=4, copies=True)
    s.submit(ask("live", max_tokens=200))
    s.tick(20)  # and what rows take is learnt
    instructions = tuple(range(1000, 1100))
    s.submit(replace(ask("late", priority=9), prompt=(*instructions, 1, 2, 3, 4)))
    s.tick()
    s.submit(replace(ask("asks"), prompt=(*instructions, 5, 6, 7, 8)))
    s.tick(5)
    asks = next(one for one in s.scheduler.slots.running if one.request_id == "asks")
    assert asks.n_output > 0
