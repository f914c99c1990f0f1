"""The pure core, case by case."""

import time
from dataclasses import replace
from itertools import product

import pytest

from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.queue.admission import DrainRate, Line, Occupancy, admit, check_request
from cobali_ray.core.request.lifecycle import TRANSITIONS, Status, StatusChange, advance
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Grammar, ReasoningBudget, Request, SamplingParams
from cobali_ray.core.request.stopping import StopScanner, TextStream
from cobali_ray.errors import (
    ConfigError,
    IllegalTransitionError,
    InvalidParameterError,
    PromptTooLongError,
    QueueFullError,
)
from tests.views import View


def limits(**changes):
    base = {
        "n_slots": 4, "n_ctx_slot": 64, "n_cells": 256, "token_budget": 8, "prefill_chunk": 4, "max_queue": 2,
    }  # fmt: skip
    return EngineLimits(**(base | changes))


def prompt(slot_id, n, done=0):
    return View(slot_id, done, n - done)


def test_no_prompt_is_left_with_a_lone_token():
    plans = [Pacer(None).plan((), [prompt(0, n)], limits()) for n in (4, 5, 6, 9)]
    assert [plan.chunks[0].length for plan in plans] == [4, 3, 4, 4]


def test_shortest_goes_first_until_others_passed_it_by_its_own_length():
    bounds = limits(prefill_order="shortest", token_budget=4)
    long, short = prompt(0, 9), prompt(1, 4)
    for n_passed, first in ((0, 1), (8, 1), (9, 0)):
        long.n_passed = n_passed
        assert [c.slot_id for c in Pacer(None).plan((), [long, short], bounds).chunks] == [first]


ALLOWED = set(TRANSITIONS)


@pytest.mark.parametrize(("status", "change"), list(product(Status, StatusChange)))
def test_lifecycle_is_its_table(status, change):
    if (status, change) in ALLOWED:
        assert advance(status, change) is TRANSITIONS[status, change]
    else:
        with pytest.raises(IllegalTransitionError):
            advance(status, change)


def test_nothing_leads_out_of_the_end():
    assert {after for before, after in ((row[0], TRANSITIONS[row]) for row in ALLOWED) if before.ended} == {
        Status.ENDED
    }
    assert not [row for row in ALLOWED if row[0] is Status.ENDED]


def test_a_long_stop_string_costs_each_character_once():
    """It used to cost the square of what is held back, for every token: minutes for this text."""
    scanner = StopScanner(tuple("a" * 999 + last for last in "bcdefghijklmnopq"))
    started = time.process_time()
    assert all(scanner.feed("a")[1] is False for _ in range(5_000))
    assert time.process_time() - started < 2
    assert scanner.feed("c") == ("", True)


@pytest.mark.parametrize(
    ("pieces", "deltas", "rest"),
    [
        pytest.param([b"abc"], ["abc"], "", id="ascii"),
        pytest.param([b"\xe2\x82", b"\xac!"], ["", "€!"], "", id="character-in-two-tokens"),
        pytest.param([b"\xf0", b"\x9f", b"\x98", b"\x80"], ["", "", "", "😀"], "", id="one-byte-each"),
        pytest.param([b"\xff", b"a"], ["�", "a"], "", id="invalid-byte"),
        pytest.param([b"\xe2\x82"], [""], "�", id="never-completed"),
        pytest.param([b"\xe2", b"a"], ["", "�a"], "", id="broken-off"),
    ],
)
def test_text_stream(pieces, deltas, rest):
    text = TextStream()
    assert [text.feed(piece) for piece in pieces] == deltas
    assert text.flush() == rest


def request(n_prompt=4, max_tokens=4, **kwargs):
    return Request(request_id="r", prompt=tuple(range(n_prompt)), max_tokens=max_tokens, **kwargs)


@pytest.mark.parametrize(
    ("n_prompt", "asked", "max_tokens"),
    [
        pytest.param(60, 3, 3, id="room-to-spare"),
        pytest.param(60, 4, 4, id="exactly"),
        pytest.param(60, 5, 4, id="one-too-many"),
        pytest.param(63, 2**31 - 1, 1, id="as-many-as-there-are"),
    ],
)
def test_an_answer_is_at_most_what_fits_beside_the_prompt(n_prompt, asked, max_tokens):
    before = request(n_prompt, asked, stop=("x",), timeout_s=3.0)
    assert check_request(before, limits(), n_vocab=100) == replace(before, max_tokens=max_tokens)


def test_a_prompt_must_leave_room_for_an_answer():
    with pytest.raises(
        PromptTooLongError,
        match=r"length is 64 tokens.* requested 69 tokens \(64 in the prompt, 5 in .*setting n_ctx",
    ):
        check_request(request(64, 5), limits(), n_vocab=100)


def test_token_ids_must_exist():
    with pytest.raises(InvalidParameterError, match="0 \\.\\. 2"):
        check_request(request(4), limits(), n_vocab=3)
    for changes in (
        {"sampling": SamplingParams(logit_bias=((7, 1.0),))},
        {"shown_tokens": (0, 7)},
        {"reasoning_budget": ReasoningBudget(9, "<a>", "</a>", (1, 7))},
    ):
        with pytest.raises(InvalidParameterError, match="token id 7"):
            check_request(request(2, **changes), limits(), n_vocab=3)


BUDGET = ReasoningBudget(4, "<think>", "</think>", (1, 2))


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        pytest.param({"grammar": Grammar("", "tools", ("a",) * 129)}, "tools", id="triggers"),
        pytest.param({"grammar": Grammar("", "tools", ("a", ""))}, "tools", id="empty-trigger"),
        pytest.param({"grammar": Grammar("", "tools", ("a" * 1001,))}, "tools", id="long-trigger"),
        pytest.param({"shown_tokens": (1,) * 129}, "shown_tokens", id="shown"),
        pytest.param({"reasoning_budget": BUDGET._replace(n_tokens=-1)}, "reasoning_budget", id="negative"),
        pytest.param({"reasoning_budget": BUDGET._replace(start="a" * 1001)}, "reasoning_budget", id="start"),
        pytest.param({"reasoning_budget": BUDGET._replace(end="")}, "reasoning_budget", id="no-end"),
        pytest.param({"reasoning_budget": BUDGET._replace(closing=())}, "reasoning_budget", id="no-closing"),
        pytest.param(
            {"reasoning_budget": BUDGET._replace(closing=(1,) * 129)}, "reasoning_budget", id="long"
        ),
    ],
)
def test_what_holds_an_answer_is_bounded(changes, param):
    with pytest.raises(InvalidParameterError) as error:
        request(**changes)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("n_queued", "n_tokens", "n_free", "refused"),
    [
        (0, 0, 0, None),
        (1, 4, 0, None),
        (2, 8, 0, "requests"),
        (3, 12, 2, None),
        (4, 16, 2, "requests"),
        (1, 18, 0, "tokens"),
    ],
)
def test_the_door_counts(n_queued, n_tokens, n_free, refused):
    lines = [Line(0, "", 1.0, n_queued, n_tokens)] if n_queued else []
    occupancy = Occupancy(lines, n_free, drain_rps=0.5)
    bounds = limits(max_queue_tokens=20)
    if refused is None:
        admit(request(), occupancy, bounds)
        return
    with pytest.raises(QueueFullError) as error:
        admit(request(), occupancy, bounds)
    assert error.value.what == refused
    assert error.value.retry_after_s == (n_queued - n_free) / 0.5, "its turn, if it had been let in"


def test_drain_rate_follows_the_queue():
    rate = DrainRate()
    rate.note(0, 0.0, waiting=True)
    for second in range(1, 5):
        rate.note(3, float(second), waiting=True)
    assert rate.rps == pytest.approx(3.0), "from the first seconds on"
    for second in range(5, 100):
        rate.note(6, float(second), waiting=True)
    assert rate.rps == pytest.approx(6.0, rel=0.01)


def test_a_quiet_server_does_not_count_as_a_slow_queue():
    rate = DrainRate()
    for minute in range(5):
        rate.note(1, 60.0 * minute, waiting=False)
    rate.note(16, 600.0, waiting=True)  # a burst
    assert rate.rps == 0
    rate.note(4, 600.5, waiting=True)
    assert rate.rps == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1), ("temperature", float("nan")), ("top_p", -0.1), ("top_p", 1.1), ("min_p", -0.1),
        ("typical_p", 0), ("frequency_penalty", 2.1), ("presence_penalty", -2.1), ("repetition_penalty", 0),
        ("repetition_penalty", 1e-40), ("repetition_penalty", 100.5), ("logit_bias", ((0, float("inf")),)),
        ("top_k", -1), ("n_logprobs", 21), ("min_tokens", -1), ("top_k", 10**400), ("seed", 10**400),
    ],
)  # fmt: skip
def test_sampling_params_are_valid_or_not_there(field, value):
    with pytest.raises(InvalidParameterError) as error:
        SamplingParams(**{field: value})
    assert error.value.param in {field, "top_logprobs"}


@pytest.mark.parametrize("name", ["n_slots", "n_ctx_slot", "n_cells", "token_budget", "prefill_chunk"])
def test_limits_name_the_setting(name):
    with pytest.raises(ConfigError, match=name):
        limits(**{name: 0})
