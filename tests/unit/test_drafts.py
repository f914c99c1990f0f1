"""What is guessed of a stream, and how far guesses are trusted."""

from array import array

import pytest

from cobali_ray.core.plan.drafts import HEAD_ODDS, Draft, StreamDrafts, look_up
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import Sequence


def tokens(text):
    return array("i", list(text.encode()))


@pytest.mark.parametrize(
    ("text", "most", "draft", "n_match"),
    [
        pytest.param("the cat sat. the", 5, " cat ", 3, id="what-followed-the-same-tokens"),
        pytest.param("one two, one too, one t", 3, "oo,", 8, id="the-latest-place-counts"),
        pytest.param("abcdefghij? abcdefghij", 4, "? ab", 8, id="long-matches-count-as-eight"),
        pytest.param("abcdefgh1. xgh2. abcdefgh", 2, "1.", 8, id="longer-goes-before-later"),
        pytest.param("so: la la la ", 7, "la la l", 7, id="what-repeats-itself-goes-on"),
        pytest.param("so: haaaa", 3, "aaa", 3, id="a-token-again-and-again"),
        pytest.param("ab ab", 1, " ", 2, id="from-the-first-token-on"),
    ],
)  # fmt: skip
def test_a_draft_is_what_stood_behind_the_same_tokens(text, most, draft, n_match):
    assert look_up(tokens(text), most) == Draft(tokens(draft), n_match)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        pytest.param("abcdefg", 4, id="nothing-comes-twice"),
        pytest.param("a b c a", 4, id="one-token-is-too-little"),
        pytest.param("abab", 0, id="no-room"),
        pytest.param("", 4, id="no-tokens"),
    ],
)
def test_nothing_is_guessed_without_a_reason(text, most):
    assert look_up(tokens(text), most) is None


def test_a_draft_holds_no_end_token():
    assert look_up(tokens("once.| upon. once"), 8, {ord("|")}) == Draft(tokens("."), 4)
    assert look_up(tokens("once| upon. once"), 8, {ord("|")}) is None


def test_bytes_that_match_inside_a_token_are_no_match():
    known = array("i", [0x02000001, 0x01000000, 7, 2, 0x01000000 << 1, 5])
    shifted = array("i", [1 << 8, 2 << 8, 9, 9, 1, 2])
    assert look_up(known, 3) is None
    assert look_up(shifted, 3) is None


def said(sequence, text):
    sequence.tokens.extend(text.encode())


def test_guesses_are_judged_by_what_is_said_whether_they_were_computed_or_not():
    sequence = Sequence(Request(request_id="a", prompt=tuple(b"so, so,"), max_tokens=99), arrived_s=0.0)
    guesses = StreamDrafts(sequence, HEAD_ODDS)
    guesses.renew(4)
    assert guesses.draft == Draft(tokens(" so,"), 3)
    before = guesses.n_expected(4, head=False)
    said(sequence, " ")
    guesses.renew(4)
    said(sequence, "so, ")
    guesses.renew(4)
    assert guesses.draft == Draft(tokens("so, "), 8)
    assert guesses.n_expected(4, head=False) > before
    said(sequence, "what?")
    guesses.renew(4)
    assert guesses.draft is None
    assert guesses.n_expected(4, head=False) == 0


def test_a_head_is_judged_by_how_much_of_its_guess_was_said():
    sequence = Sequence(Request(request_id="a", prompt=tuple(b"what"), max_tokens=99), arrived_s=0.0)
    guesses = StreamDrafts(sequence, HEAD_ODDS)
    guesses.renew(15)
    assert len(guesses.tokens(7, head=True)) == 7
    before = guesses.n_expected(3, head=True)
    said(sequence, "abcd")  # three of the guess, and what followed
    assert guesses.judge_head(7) == 3
    guesses.renew(15)
    said(sequence, "abcdefgh")
    assert guesses.judge_head(7) == 7
    assert guesses.n_expected(3, head=True) > before
    for _ in range(9):
        guesses.renew(15)
        said(sequence, "x")
        assert guesses.judge_head(7) == 0
    assert guesses.n_expected(3, head=True) < before
    guesses.renew(1)
    assert len(guesses.tokens(7, head=True)) == 1
