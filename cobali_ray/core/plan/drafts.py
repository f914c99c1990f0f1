"""Drafts: guesses of a stream's next tokens, from its prompt and answer so far, or by the model's head.

An answer that quotes, edits or repeats has tokens of the prompt, or earlier ones of its own, again: where the
last few stood before, what followed them there is the guess (prompt lookup decoding). A prompt that was asked
before has the earlier answer in the slot that it begins from. No index is kept: the last tokens are looked
for in memory, which takes microseconds where a pass takes milliseconds.

Some models bring a head that was trained to guess (multi-token prediction). What it guesses is known only
once it has computed it, so here it is no more than a number of tokens, and how often such were right.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import NamedTuple

from cobali_ray.core.request.sequence import Sequence

MIN_MATCH, LONG_MATCH = 2, 8
"""Tokens that must match before anything is guessed, and those that are looked for first."""
LOOKUP_ODDS = tuple(min(0.1 * n, 0.8) for n in range(LONG_MATCH + 1))
"""How likely a token of a lookup is right before much is known, by how many tokens matched before it."""
HEAD_ODDS = (0.7,)
"""The same of a head's tokens, wherever in its guess they are: what is learned of short guesses is believed
of long ones, or these would never be tried."""
_PRIOR = 2.0
"""How many tries that counts as."""
_WIDTH = array("i").itemsize


class Draft(NamedTuple):
    """Tokens that may come next."""

    tokens: array[int]
    n_match: int
    """How many tokens before them were the same where they come from; `LONG_MATCH` means so many or more."""


def look_up(tokens: array[int], most: int, end_tokens: Collection[int] = ()) -> Draft | None:
    """Return up to `most` tokens that followed an earlier occurrence of the last ones; None: there is none.

    The latest place counts. What repeats itself at the end is taken to go on. An end token ends the draft
    without being part of it, and so does an image.
    """
    n = len(tokens)
    if most < 1 or n <= MIN_MATCH:
        return None
    data = tokens.tobytes()
    n_match = LONG_MATCH
    if n <= LONG_MATCH or (at := _last_place(data, LONG_MATCH)) < 0:
        at = _last_place(data, MIN_MATCH)
        if at < 0:
            return None
        n_match = MIN_MATCH
        while n_match < LONG_MATCH and at > 0 and tokens[at - 1] == tokens[-1 - n_match]:
            at, n_match = at - 1, n_match + 1
    draft = tokens[at + n_match : at + n_match + most]
    while len(draft) < most:
        draft += draft[: most - len(draft)]
    for i, token in enumerate(draft):
        if token in end_tokens or token < 0:
            del draft[i:]
            break
    return Draft(draft, n_match) if draft else None


def _last_place(data: bytes, n: int) -> int:
    """Return the latest earlier position of the last `n` tokens; -1: none."""
    last, end = data[-n * _WIDTH :], len(data) - _WIDTH
    at = data.rfind(last, 0, end)
    while at % _WIDTH and at > 0:  # it began inside a token
        at = data.rfind(last, 0, at + len(last) - 1)
    return at // _WIDTH


class StreamDrafts:
    """One stream's drafts, and how often such guesses were right.

    The stream's next tokens judge every lookup, computed or not, as that costs nothing, and the head's
    guesses where they were computed. Every stream begins anew: the same two tokens before mean much where a
    text is edited and little elsewhere.
    """

    def __init__(self, sequence: Sequence, head_odds: Seq[float]) -> None:
        """`head_odds`: how often a head's tokens were right for others."""
        self.sequence = sequence
        self.draft: Draft | None = None
        self.most = 0
        """Tokens that may be guessed."""
        self._n_tokens = 0
        self._lookups, self._head = DraftAcceptance(LOOKUP_ODDS), DraftAcceptance(head_odds)

    def renew(self, most: int) -> None:
        """Learn from the tokens since the last guess, and guess up to `most` tokens again."""
        tokens, earlier = self.sequence.tokens, self.sequence.earlier
        if self.draft is not None:
            actual = tokens[self._n_tokens : self._n_tokens + len(self.draft.tokens)]
            self._lookups.learn(self.draft.n_match, n_alike(self.draft.tokens, actual), len(actual))
        self._n_tokens, self.most = len(tokens), most
        self.draft = look_up(earlier + tokens, most, self.sequence.end_tokens)

    def n_expected(self, n: int, *, head: bool) -> float:
        """Return how many of the first `n` tokens will probably be right, by source."""
        if head:
            return self._head.n_expected(0, min(n, self.most))
        if self.draft is None:
            return 0.0
        return self._lookups.n_expected(self.draft.n_match, min(n, len(self.draft.tokens)))

    def tokens(self, n: int, *, head: bool) -> array[int]:
        """Return up to `n` tokens to compute; of the head's nothing is known yet but how many they are."""
        if head:
            return array("i", bytes(_WIDTH * max(min(n, self.most), 0)))
        return array("i") if self.draft is None else self.draft.tokens[:n]

    def judge_head(self, n: int) -> int:
        """Learn how many of `n` tokens that the head guessed were right; return that."""
        n_right = min(max(len(self.sequence.tokens) - self._n_tokens - 1, 0), n)
        self._head.learn(0, n_right, n)
        return n_right


def n_alike(guessed: Seq[int], actual: Seq[int]) -> int:
    """Return how many tokens are the same before the first that differs."""
    alike = [guess == token for guess, token in zip(guessed, actual, strict=False)]
    return alike.index(False) if False in alike else len(alike)


class DraftAcceptance:
    """How often guessed tokens are right, by how many were known to be right before them.

    Of a lookup these are the tokens that matched, and the right ones of the guess itself. Before much is
    known, `odds` are believed; the past fades, since what a stream writes changes.
    """

    def __init__(self, odds: Seq[float], most: float = 64.0) -> None:
        """`most`: so many tries count at each place."""
        self._right, self._tried = [_PRIOR * chance for chance in odds], [_PRIOR] * len(odds)
        self._most = most

    @property
    def odds(self) -> list[float]:
        """How likely a token is right, by the number before it."""
        return [right / tried for right, tried in zip(self._right, self._tried, strict=True)]

    def n_expected(self, n_before: int, n: int) -> float:
        """Return how many of a guess's first `n` tokens will probably be right."""
        expected, odds = 0.0, 1.0
        for i in range(n_before, n_before + n):
            at = min(i, len(self._right) - 1)
            odds *= self._right[at] / self._tried[at]
            expected += odds
        return expected

    def learn(self, n_before: int, n_right: int, n: int) -> None:
        """Learn that of `n` guessed tokens the first `n_right` were right, and the next was not."""
        for i in range(min(n_right + 1, n)):
            at = min(n_before + i, len(self._right) - 1)
            if self._tried[at] >= self._most:
                self._right[at] /= 2
                self._tried[at] /= 2
            self._tried[at] += 1
            self._right[at] += i < n_right
