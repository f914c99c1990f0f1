"""Agents: whose turn it is, and for how long what they left is kept for them."""

from math import inf

import pytest
from test_fair import Setup, ask

from cobali_ray.api.body.schema import ChatBody
from cobali_ray.api.call.programs import program_of
from cobali_ray.core.queue.programs import FIRST_S, LONGER, MAX_PROGRAMS, MIN_CALLS, Programs, keep_s
from cobali_ray.core.queue.waiting import PATIENCE_S
from cobali_ray.core.request.request import Program


@pytest.mark.parametrize(
    ("gaps_s", "saved_s", "kept_s"),
    [
        pytest.param([], 100.0, 0.0, id="nothing-is-known"),
        pytest.param([inf] * 9, 100.0, 0.0, id="none-came-back"),
        pytest.param([2.0], 10.0, 2.0, id="it-pays"),
        pytest.param([2.0], 1.0, 0.0, id="computing-again-is-quick"),
        pytest.param([1.0, 1.0, 60.0], 10.0, 1.0, id="not-for-the-slow-one"),
        pytest.param([1.0, 1.0, 60.0], 100.0, 60.0, id="for-the-slow-one-where-it-is-dear"),
        pytest.param([1.0] + [inf] * 9, 10.0, 0.0, id="few-came-back"),
        pytest.param([1.0] + [inf] * 9, 20.0, 1.0, id="few-but-it-is-dear"),
    ],
)
def test_a_prefix_is_kept_as_long_as_that_is_expected_to_pay(gaps_s, saved_s, kept_s):
    assert keep_s(gaps_s, saved_s) == pytest.approx(LONGER * kept_s)


def part(request_id, name, *, returns, **more):
    return ask(request_id, program=Program(name, "tools", returns), **more)


def test_what_is_kept_follows_the_calls_of_the_same_tenant_and_tools():
    programs, now_s = Programs(), 100.0
    assert programs.enter(ask("plain"), now_s) == now_s
    for number in range(MIN_CALLS):
        programs.enter(part("a", f"{number}", returns=False), now_s)
        until_s = programs.answered(part("a", f"{number}", returns=False), 100.0, now_s)
        assert number or until_s == now_s, "none came back so far"
        began_s, now_s = now_s, now_s + 3.0
        assert programs.enter(part("b", f"{number}", returns=True), now_s) == began_s
    programs.enter(part("a", "new", returns=False), now_s)
    kept_s = programs.answered(part("a", "new", returns=False), 100.0, now_s) - now_s
    assert kept_s == pytest.approx(LONGER * 3.0)
    other = part("c", "new", returns=False, tenant="b")
    programs.enter(other, now_s)
    assert programs.answered(other, 100.0, now_s) == now_s, "another tenant's calls say nothing"
    programs.enter(part("d", "new", returns=True), now_s)
    kept_s = programs.answered(part("d", "new", returns=True), 100.0, now_s) - now_s
    assert kept_s == pytest.approx(LONGER * max(FIRST_S)), "who came back once is expected to do so again"
    assert programs.enter(part("e", "new", returns=False), now_s + 9) == now_s + 9, "a person asks anew"


def test_of_requests_that_come_back_together_the_first_says_how_long_its_tools_ran():
    programs, now_s = Programs(), 100.0
    for number in range(MIN_CALLS):
        programs.enter(part("a", f"{number}", returns=False), now_s)
        programs.answered(part("a", f"{number}", returns=False), 100.0, now_s)
        for later_s in (3.0, 9.0):
            programs.enter(part("b", f"{number}", returns=True), now_s + later_s)
        now_s += 10.0
    programs.enter(part("a", "new", returns=False), now_s)
    kept_s = programs.answered(part("a", "new", returns=False), 100.0, now_s) - now_s
    assert kept_s == pytest.approx(LONGER * 3.0)


def test_who_never_comes_back_is_not_kept_and_not_remembered():
    programs = Programs()
    for number in range(MAX_PROGRAMS + 50):
        one = part("a", f"{number}", returns=False)
        programs.enter(one, number)
        assert programs.answered(one, 10.0, number) == number
    assert programs.enter(part("b", "0", returns=True), 9e9) == 9e9, "forgotten, so it begins"
    assert programs.enter(part("b", f"{MAX_PROGRAMS}", returns=True), 9e9) == MAX_PROGRAMS


def agents(*, tick_s):
    """Return a scheduler with three slots and cells for two agents."""
    s = Setup(3, min_prefix=4, n_ctx_slot=120, n_cells=200, tick_s=tick_s)
    s.scheduler.pacer.model.table = {
        "rows": [[1, 1.0], [64, 10.0]], "any": 0.0, "out": 0.0, "cell": 0.0, "short": 0.0, "whole": 0.0,
    }  # fmt: skip
    return s


def out_on_a_call(s, name):
    """Let a program answer twice, so that it is expected back."""
    s.submit(part(f"{name}1", name, returns=False, n_prompt=80, max_tokens=3))
    s.tick(40)
    s.submit(part(f"{name}1", name, returns=True, n_prompt=81, max_tokens=3))
    s.tick(8)


def test_a_later_program_does_not_take_what_is_kept_and_a_plain_request_does():
    s = agents(tick_s=0.02)
    out_on_a_call(s, "p")
    out_on_a_call(s, "q")
    s.submit(ask("busy", n_prompt=8, max_tokens=60), part("late", "r", returns=False, n_prompt=60))
    s.tick()
    assert "busy" in s.placed
    assert "late" not in s.placed, "p and q are expected back"
    s.submit(ask("plain", n_prompt=60, max_tokens=2))
    s.tick()
    assert "plain" in s.placed
    assert "late" not in s.placed
    s.submit(part("q2", "q", returns=True, n_prompt=81, max_tokens=3))
    s.tick()
    assert "q2" in s.placed, "its own is there for it"


def test_nobody_is_kept_out_of_an_idle_engine_nor_for_long():
    s = agents(tick_s=0.02)
    out_on_a_call(s, "p")
    out_on_a_call(s, "q")
    s.submit(part("late", "r", returns=False, n_prompt=60, max_tokens=2))
    s.tick()
    assert "late" in s.placed, "nobody else computes anything"
    s = agents(tick_s=2.0)
    s.submit(part("p1", "p", returns=False, n_prompt=80, max_tokens=3))
    s.tick()
    kept = s.scheduler.sequence("p1")
    s.tick(9)
    s.scheduler.slots.keep(0, kept, inf)
    s.submit(
        ask("busy", n_prompt=8, max_tokens=110), part("late", "r", returns=False, n_prompt=119, max_tokens=1)
    )
    s.tick(3)
    assert "late" not in s.placed
    s.tick(int(PATIENCE_S / s.tick_s))
    assert "late" in s.placed


def test_who_comes_back_goes_before_who_began_later_and_not_before_who_waited_long():
    s = Setup(1, tick_s=1.0)
    s.submit(part("p1", "p", returns=False, max_tokens=2))
    s.tick(4)
    s.submit(ask("busy", max_tokens=int(PATIENCE_S) + 50))
    s.tick()
    s.submit(ask("old"))
    s.tick(int(PATIENCE_S) + 1)
    s.submit(ask("young"), part("p2", "p", returns=True), part("q1", "q", returns=False))
    assert [one.request_id for one in s.scheduler.queue] == ["old", "p2", "young", "q1"]


def body(*messages, **more):
    tools = [{"type": "function", "function": {"name": "look"}}]
    return ChatBody(messages=list(messages), **more), tools


def said(role, content="x"):
    return {"role": role, "content": content}


BEGINNING = (said("system"), said("user", "do it"))


def test_requests_of_one_task_are_known_by_how_they_begin():
    first = program_of(*body(*BEGINNING), ())
    later = program_of(*body(*BEGINNING, said("assistant"), said("tool"), said("tool")), ())
    assert (first.name, first.tools) == (later.name, later.tools)
    assert (first.returns, later.returns) == (False, True)
    asked = program_of(
        *body(*BEGINNING, said("assistant"), said("tool"), said("assistant"), said("user")), ()
    )
    assert asked.returns is False, "a person asks"
    mixed = program_of(*body(*BEGINNING, said("assistant"), said("tool"), said("user", "<reminder>")), ())
    assert mixed.returns is True


@pytest.mark.parametrize(
    "other",
    [
        pytest.param((*body(said("system"), said("user", "else")), ()), id="another-question"),
        pytest.param((*body(*BEGINNING), ("agent-2",)), id="another-agent"),
        pytest.param((*body(*BEGINNING, user="b"), ()), id="another-user"),
        pytest.param((*body(*BEGINNING, prompt_cache_key="k"), ()), id="another-key"),
    ],
)
def test_other_tasks_have_other_names(other):
    assert program_of(*other).name != program_of(*body(*BEGINNING), ()).name
    assert program_of(other[0], (), ()) is None, "without tools nothing comes back"
