"""What a request changes in its row before anything is drawn: bias, penalties, banned end tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cobali_ray.errors import InvalidParameterError, InvariantError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from cobali_ray.core.request import SamplingParams

    Change = tuple[NDArray[np.int64], NDArray[np.float32]]


class Patches:
    """Patch a row in place where the request wants it changed, and nowhere else."""

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], *, end_tokens: frozenset[int], n_vocab: int
    ) -> None:
        if not _inside(end_tokens, n_vocab):
            raise InvariantError(f"end tokens {sorted(end_tokens)} are not all below n_vocab {n_vocab}")
        bias: dict[int, float] = {}
        for token, value in params.logit_bias:
            bias[token] = bias.get(token, 0.0) + value
        if not _inside(bias, n_vocab):
            wrong = next(token for token in bias if not 0 <= token < n_vocab)
            raise InvalidParameterError("logit_bias", f"logit_bias names token {wrong}; there are {n_vocab}")
        self._bias_ids = np.array(list(bias), np.int64)
        self._bias = np.array(list(bias.values()), np.float32)
        self._end_ids = np.array(sorted(end_tokens), np.int64)
        self._ban_until = np.inf if params.ignore_eos else params.min_tokens
        self._seen = _Seen(params, prompt, n_vocab) if params.penalises else None
        bans = bool(end_tokens) and self._ban_until > 0
        self.idle = not (bias or bans or params.penalises)
        """Whether no row is ever changed."""
        lifts = params.penalises or any(value > 0 for value in bias.values())
        self.n_lowered = None if lifts else len(bias) + (len(end_tokens) if bans else 0)
        """At most so many tokens are ever changed, and only lowered; None: any may be, or some lifted."""

    def apply(self, row: NDArray[np.float32], n_sampled: int) -> list[Change]:
        """Patch the row; give the former values, so that undoing them in reverse order restores it."""
        changes: list[Change] = []
        if self._bias_ids.size:
            before = row[self._bias_ids]
            row[self._bias_ids] = before + self._bias
            changes.append((self._bias_ids, before))
        if self._seen is not None and self._seen.n:
            changes.append(self._seen.penalise(row))
        if n_sampled < self._ban_until and self._end_ids.size:
            changes.append((self._end_ids, row[self._end_ids]))
            row[self._end_ids] = -np.inf
        return changes

    def apply_to_candidates(
        self, values: NDArray[np.float32], ids: NDArray[np.int32], n_sampled: int
    ) -> None:
        """Do in place what `apply` does to a row, to logits `values` of some of its tokens `ids`.

        Only where `n_lowered` is a number: penalties are not done.
        """
        for token, bias in zip(self._bias_ids, self._bias, strict=True):
            values[ids == token] += bias
        if n_sampled < self._ban_until and self._end_ids.size:
            values[(ids == self._end_ids[:, None]).any(axis=0)] = -np.inf

    def take(self, token: int) -> None:
        """Count a drawn token."""
        if self._seen is not None:
            self._seen.count(token)


class _Seen:
    """The distinct tokens seen so far, each with what it loses; one step per token, no rescan.

    Repetition weighs on prompt and output; frequency and presence, as OpenAI defines them, on output alone.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int], n_vocab: int) -> None:
        self._repetition = np.float32(params.repetition_penalty)
        self._frequency, self._presence = params.frequency_penalty, params.presence_penalty
        known = sorted(set(prompt)) if params.repetition_penalty != 1 else []
        if not _inside(known, n_vocab):
            raise InvalidParameterError("prompt", f"the prompt has token ids outside 0..{n_vocab - 1}")
        self.n = len(known)
        self._ids = np.array(known + [0] * 64, np.int64)
        self._losses = np.zeros(len(self._ids), np.float32)
        self._place = {token: at for at, token in enumerate(known)}
        self._counts: dict[int, int] = {}

    def penalise(self, row: NDArray[np.float32]) -> Change:
        ids = self._ids[: self.n]
        before = row[ids]
        after = before
        if self._repetition != 1:
            after = np.where(before > 0, before / self._repetition, before * self._repetition)
        row[ids] = after - self._losses[: self.n]
        # A view would grow stale only by later tokens, and the change is undone before those.
        return ids, before

    def count(self, token: int) -> None:
        at = self._place.get(token)
        if at is None:
            at = self._place[token] = self.n
            if at == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._losses = np.concatenate((self._losses, np.zeros_like(self._losses)))
            self._ids[at] = token
            self.n += 1
        n = self._counts[token] = self._counts.get(token, 0) + 1
        self._losses[at] = n * self._frequency + self._presence


def _inside(tokens: Collection[int], n_vocab: int) -> bool:
    return not tokens or (min(tokens) >= 0 and max(tokens) < n_vocab)
