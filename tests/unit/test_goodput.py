"""When drafts are computed: only where more tokens per second are expected of it, and never beyond bounds."""

import itertools
from importlib.resources import files
from math import inf
from random import Random
from statistics import mean, median

import pytest

from cobali_ray.core.plan.goodput import MAX_ROWS, MAX_STREAMS, Speculation
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import Sequence

REPEATS = b"the same words again and again, "
NEW = bytes(range(1, 90))
LONG = 10_000


def stream(slot_id=0, prompt=3 * REPEATS, max_tokens=LONG):
    request = Request(request_id=str(slot_id), prompt=tuple(prompt), max_tokens=max_tokens)
    sequence = Sequence(request, arrived_s=0.0)
    sequence.slot_id = slot_id
    return sequence


def repeats():
    return itertools.cycle(REPEATS)


def babble():
    """Say something in which the same two tokens come again and again, and mean nothing."""
    dice = Random(1)
    return iter(lambda: dice.choice(b"abcdefgh"), None)


def drafts(speculation, streams, **changes):
    asked = {"plain_s": 0.01, "most_s": inf, "room": 100} | changes
    chosen = speculation.choose(streams, **asked)
    if streams and not len(streams[0].tokens) % 16:  # or all of it takes twice as long
        assert speculation.choose(streams, **asked) == chosen, "to ask changes nothing"
    speculation.begin(chosen)
    return chosen.tokens


def run(speculation, ratio_of, n_ticks, *, says=repeats, plain_ratio=1.0):
    """Let ticks of one stream after another pass that take `ratio_of(tokens drafted)` times as long.

    Return how many tokens were drafted in each.
    """
    sizes, s, text = [], None, None
    for _ in range(n_ticks):
        if s is None or len(s.tokens) > 1000:
            s, text = stream(), says()
        draft = drafts(speculation, [s]).get(0, ())
        for guess in [*draft, None]:
            s.tokens.append(next(text))
            if guess != s.tokens[-1]:
                break
        sizes.append(len(draft))
        speculation.learn(0.01 * plain_ratio * (ratio_of(len(draft)) if draft else 1.0))
    return sizes


def n_drafting(sizes):
    return sum(n > 0 for n in sizes)


def test_drafts_that_are_right_are_as_long_as_pays_most():
    cheap = run(Speculation(), lambda n: 1 + 0.05 * n, 300)
    assert max(set(cheap[200:]), key=cheap[200:].count) == 15
    steep = run(Speculation(), lambda n: 1.2 if n <= 3 else 9.0, 300)
    assert max(set(steep[200:]), key=steep[200:].count) == 3


def test_drafts_that_take_too_long_are_tried_now_and_then_only():
    speculation = Speculation()
    run(speculation, lambda _: 20.0, 300)
    assert 0 < n_drafting(run(speculation, lambda _: 20.0, 2560)) <= 20


def test_what_does_not_come_true_is_learned_without_computing_it():
    assert n_drafting(run(Speculation(), lambda _: 1.5, 2560, says=babble)) <= 20


def test_what_came_true_for_one_stream_is_not_expected_of_the_next():
    speculation = Speculation()
    assert n_drafting(run(speculation, lambda _: 1.5, 1000)) > 800
    assert n_drafting(run(speculation, lambda _: 1.5, 256, says=babble)) <= 4


COSTS = {"cheap": (1.0, 1.45, 1.75, 2.6, 4.0), "dear": (1.0, 1.9, 2.8, 4.7, 7.2)}
"""Times of passes with 1, 2, 4, 8 and 16 rows of a stream, as two models had them on two cores."""


def words():
    numbers = {}
    text = (files("cobali_workloads.models") / "text" / "prose.txt").read_text(encoding="utf-8")
    return [numbers.setdefault(word, len(numbers)) for word in text.split()]


def times(speculation, prompt, answer, cost):
    """Return how many times as long as without drafts an answer takes."""
    s, total = stream(prompt=prompt, max_tokens=len(answer)), 0.0
    while (n := len(s.tokens) - len(prompt)) < len(answer):
        draft = drafts(speculation, [s]).get(0, ())
        for guess, token in itertools.zip_longest(draft, answer[n : n + len(draft) + 1]):
            s.tokens.append(token)
            if guess != token:
                break
        ratio = cost[len(draft).bit_length()]
        speculation.learn(0.01 * ratio)
        total += ratio
    return total / len(answer)


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize(
    ("one_in", "most"),
    [
        pytest.param(None, 1.02, id="free"),
        pytest.param(2, 1.02, id="hardly-alike"),
        pytest.param(4, 1.02, id="much-changed"),
        pytest.param(10, 1.0, id="edited"),
        pytest.param(40, 0.85, id="little-changed"),
    ],
)
def test_what_streams_say_is_never_slower_by_more_than_a_fiftieth(cost, one_in, most):
    said, dice, speculation, found = words(), Random(1), Speculation(), []
    for i in range(24):
        at = dice.randrange(len(said) - 256)
        prompt, answer = said[at : at + 128], said[at + 128 : at + 256]
        if one_in and i % 2:  # in turns with free text, so that one could be taken for the other
            answer = [dice.choice(said) if dice.randrange(one_in) == 0 else token for token in prompt]
        found.append(times(speculation, prompt, answer, cost))
    assert mean(found[2::2]) <= 1.02
    assert mean(found[3::2]) <= most


@pytest.mark.parametrize("plain_ratio", [0.5, 2.0])
def test_what_is_said_of_ticks_without_drafts_may_be_wrong(plain_ratio):
    dear, cheap = Speculation(), Speculation()
    run(dear, lambda _: 20.0, 300, plain_ratio=plain_ratio)
    assert n_drafting(run(dear, lambda _: 20.0, 1000, plain_ratio=plain_ratio)) < 20
    run(cheap, lambda _: 1.2, 1000, plain_ratio=plain_ratio)
    assert n_drafting(run(cheap, lambda _: 1.2, 100, plain_ratio=plain_ratio)) > 80


def test_it_begins_again_when_drafts_pay_again():
    speculation = Speculation()
    run(speculation, lambda _: 20.0, 300)
    later = (n_drafting(run(speculation, lambda _: 1.2, 100)) for _ in range(200))
    assert any(n > 80 for n in later)


def test_now_and_then_a_tick_has_none_so_that_its_time_is_known():
    sizes = run(Speculation(), lambda _: 1.2, 320)
    assert 21 <= sizes.count(0) <= 40


@pytest.mark.parametrize(
    ("streams", "bounds"),
    [
        pytest.param([stream(i) for i in range(MAX_STREAMS + 1)], {}, id="many-streams"),
        pytest.param([], {}, id="nobody"),
        pytest.param([stream(prompt=NEW)], {}, id="nothing-comes-twice"),
        pytest.param([stream()], {"room": 0}, id="no-room"),
        pytest.param([stream()], {"most_s": 0.01}, id="no-time"),
        pytest.param([stream()], {"plain_s": 0.0}, id="nothing-known"),
        pytest.param([stream(max_tokens=1)], {}, id="the-last-token"),
    ],
)
def test_nothing_is_drafted_where_it_cannot_be(streams, bounds):
    speculation = Speculation()
    for _ in range(300):
        assert not drafts(speculation, streams, **bounds)
        speculation.learn(0.01)


def test_ticks_that_nobody_asked_about_teach_nothing():
    speculation = Speculation()
    run(speculation, lambda _: 1.2, 100)
    assert speculation.learn(5.0) == 0.0
    assert all(ratio < 10 for ratio, _ in speculation._ratios.values())


def test_drafts_keep_their_bounds():
    streams = [stream(i, max_tokens=4 + i) for i in range(MAX_STREAMS)]
    for room in (1, 2, 7, 100):
        speculation, n_drafts = Speculation(), 0
        for _ in range(200):
            found = drafts(speculation, streams, room=room)
            n_drafted = sum(map(len, found.values()))
            assert n_drafted <= room
            assert n_drafted + len(streams) <= MAX_ROWS
            for slot_id, draft in found.items():
                assert len(draft) < streams[slot_id].request.max_tokens, "the token behind it counts"
            speculation.learn(0.011)
            n_drafts += len(found)
        assert n_drafts or room < MAX_STREAMS


def run_head(speculation, odds, ratio_of, n_ticks, *, says=babble, max_tokens=LONG, dice=None):
    """Let ticks pass in which the head's tokens are right with these odds; return what was drafted in each.

    The head's drafts are negative numbers of tokens, so that lookups can be told from them.
    """
    sizes, s, text, dice = [], None, None, dice or Random(1)
    for _ in range(n_ticks):
        if s is None or len(s.tokens) > 1000:
            s, text = stream(max_tokens=max_tokens), says()
        chosen = speculation.choose([s], plain_s=0.01, most_s=inf, room=100)
        speculation.begin(chosen)
        draft, head = chosen.tokens.get(0, ()), chosen.choice is not None and chosen.choice.head
        for guess in [*draft, None]:
            s.tokens.append(next(text))
            if not (dice.random() < odds if head and guess is not None else guess == s.tokens[-1]):
                break
        sizes.append(-len(draft) if head else len(draft))
        speculation.learn(0.01 * ratio_of(len(draft)) if draft else 0.01)
    return sizes


def test_a_head_that_is_right_guesses_where_nothing_is_repeated():
    sizes = run_head(Speculation(head=True), 1.0, lambda n: 1 + 0.1 * n, 400)
    assert sum(n < 0 for n in sizes[200:]) > 180
    assert median(sizes[200:]) <= -7


def test_a_head_that_is_wrong_is_asked_now_and_then_only():
    speculation = Speculation(head=True)
    run_head(speculation, 0.0, lambda _: 1.5, 300)
    assert 0 < sum(n < 0 for n in run_head(speculation, 0.0, lambda _: 1.5, 2560)) <= 12


def test_a_head_whose_passes_take_too_long_is_asked_now_and_then_only():
    speculation = Speculation(head=True)
    run_head(speculation, 1.0, lambda _: 20.0, 300)
    assert 0 < sum(n < 0 for n in run_head(speculation, 1.0, lambda _: 20.0, 2560)) <= 20


def test_a_head_that_gets_better_is_believed_again():
    speculation = Speculation(head=True)
    run_head(speculation, 0.0, lambda n: 1 + 0.1 * n, 300)
    later = (run_head(speculation, 1.0, lambda n: 1 + 0.1 * n, 100) for _ in range(120))
    assert any(sum(n < 0 for n in sizes) > 80 for sizes in later)


def test_the_source_that_promises_more_is_asked():
    bad = run_head(Speculation(head=True), 0.0, lambda _: 1.3, 600, says=repeats)[300:]
    assert sum(n > 0 for n in bad) > 250
    good = run_head(Speculation(head=True), 0.9, lambda _: 1.3, 600)[300:]
    assert sum(n < 0 for n in good) > 250


def test_no_draft_is_longer_than_can_be_cut_off_or_than_what_may_still_be_said():
    assert set(map(abs, run_head(Speculation(3, head=True), 1.0, lambda _: 1.1, 300))) <= {0, 1, 3}
    speculation = Speculation(head=True)
    run_head(speculation, 1.0, lambda _: 1.1, 300)
    for max_tokens in range(1, 9):
        s = stream(max_tokens=max_tokens)
        assert len(drafts(speculation, [s]).get(0, ())) < max_tokens
