"""Drafts: guesses of what a stream says next, from what it has read and said before.

Whoever quotes, edits or repeats says again what stood in the prompt or in the answer so far: where the same
few tokens stood before, what followed them there is the guess (prompt lookup decoding). Whoever is asked the
same again finds the earlier answer in the slot that its prompt begins from. No index is kept: the last tokens
are looked for in memory, which takes microseconds where a pass takes milliseconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import NamedTuple

from cobali_ray.core.request.sequence import Sequence

MIN_MATCH, LONG_MATCH = 2, 8
"""Tokens that must match before anything is guessed, and those that are looked for first."""
_WIDTH = array("i").itemsize


class Draft(NamedTuple):
    """Tokens that may come next."""

    tokens: array[int]
    n_match: int
    """How many tokens before them were the same where they come from; `LONG_MATCH` means more as well."""


def look_up(tokens: array[int], most: int, end_tokens: Collection[int] = ()) -> Draft | None:
    """Return up to `most` tokens that followed the last ones where those stood before; None: nowhere.

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
    """Return where the last `n` tokens stood before, as late as possible; -1: nowhere."""
    wanted, end = data[-n * _WIDTH :], len(data) - _WIDTH
    at = data.rfind(wanted, 0, end)
    while at % _WIDTH and at > 0:  # it began inside a token
        at = data.rfind(wanted, 0, at + len(wanted) - 1)
    return at // _WIDTH


class StreamDrafts:
    """What one stream will probably say next, and how often such guesses were right, computed or not.

    What the stream says next judges every guess, and a guess costs nothing. Every stream begins anew: the
    same two tokens before mean much where a text is edited and little elsewhere.
    """

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.draft: Draft | None = None
        self._n_tokens = 0
        self._trust = DraftAcceptance()

    def renew(self, most: int) -> None:
        """Learn from what was said since the last guess, and guess up to `most` tokens again."""
        tokens, earlier = self.sequence.tokens, self.sequence.earlier
        if self.draft is not None:
            self._trust.learn(self.draft, tokens[self._n_tokens : self._n_tokens + len(self.draft.tokens)])
        self._n_tokens = len(tokens)
        self.draft = look_up(earlier + tokens, most, self.sequence.end_tokens)

    def n_expected(self, n: int) -> float:
        """Return how many of the guess's first `n` tokens will probably be right."""
        if self.draft is None:
            return 0.0
        return self._trust.n_expected(self.draft.n_match, min(n, len(self.draft.tokens)))


class DraftAcceptance:
    """How often guesses are right, by how many tokens matched before.

    The right tokens of a guess count as matched for those behind them. Before much is known, more matched
    tokens are believed to mean more; the past fades, since what a stream writes changes.
    """

    _PRIOR, _MOST = 2.0, 64.0

    def __init__(self) -> None:
        self._right = [self._PRIOR * min(0.1 * n, 0.8) for n in range(LONG_MATCH + 1)]
        self._tried = [self._PRIOR] * (LONG_MATCH + 1)

    def n_expected(self, n_match: int, n: int) -> float:
        """Return how many of a guess's first `n` tokens will probably be right."""
        expected, odds = 0.0, 1.0
        for i in range(n_match, n_match + n):
            at = min(i, LONG_MATCH)
            odds *= self._right[at] / self._tried[at]
            expected += odds
        return expected

    def learn(self, draft: Draft, said: Seq[int]) -> None:
        """Take what was said where a guess had been made."""
        for i, (guess, token) in enumerate(zip(draft.tokens, said, strict=False)):
            at = min(draft.n_match + i, LONG_MATCH)
            if self._tried[at] >= self._MOST:
                self._right[at] /= 2
                self._tried[at] /= 2
            self._tried[at] += 1
            if guess != token:
                break
            self._right[at] += 1
