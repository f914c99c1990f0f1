"""What a request changes in its row before anything is drawn: bias, penalties, bans, top_n_sigma."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from cobali_ray.core.request.request import SamplingParams
from cobali_ray.errors import InvalidParameterError, InvariantError

Change = tuple[NDArray[np.int64] | slice, NDArray[np.float32]]
_NONE = np.zeros(0, np.int64)


class Patches:
    """Patch a row in place where the request wants it changed, and nowhere else."""

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], *, end_tokens: frozenset[int], n_vocab: int
    ) -> None:
        if not _inside(end_tokens, n_vocab):
            raise InvariantError(f"end tokens {sorted(end_tokens)} are not all below n_vocab {n_vocab}")
        params.check_tokens(n_vocab)
        bias: dict[int, float] = {}
        for token, value in params.logit_bias:
            bias[token] = bias.get(token, 0.0) + value
        self._bias_ids = np.array(list(bias), np.int64)
        self._bias = np.array(list(bias.values()), np.float32)
        stops = set(params.stop_token_ids)
        self._end_ids = np.array(sorted(end_tokens - stops), np.int64)
        self._ban_until = np.inf if params.ignore_eos else params.min_tokens
        self._seen = _Seen(params, prompt, n_vocab) if params.penalises else None
        self._stop_ids, self._stops_from = np.array(sorted(stops), np.int64), params.min_tokens
        self._bad = _BadWords(params.bad_words) if params.bad_words else None
        self._allowed = np.array(sorted(set(params.allowed_token_ids)), np.int64)
        self._n_sigma = params.top_n_sigma
        n_ends = self._end_ids.size if self._ban_until > 0 else 0
        n_ends += self._stop_ids.size if self._stops_from > 0 else 0
        narrows = self._allowed.size > 0 or self._n_sigma > 0
        self.idle = not (bias or n_ends or narrows or self._bad or params.penalises)
        """Whether no row is ever changed."""
        lifts = params.penalises or any(value > 0 for value in bias.values())
        n_bad = 0 if self._bad is None else self._bad.n_last
        self.n_lowered = None if lifts or narrows else len(bias) + n_ends + n_bad
        """At most so many tokens are ever changed, and only lowered; None: any may be, or some lifted."""
        if self._allowed.size and not self._leaves_some(self._bad.always if self._bad else _NONE, 0):
            raise InvalidParameterError("allowed_token_ids", ": none of them may be drawn")

    def apply(self, row: NDArray[np.float32], n_sampled: int) -> list[Change]:
        """Patch the row; give the former values, so that undoing them in reverse order restores it."""
        changes: list[Change] = []
        if self._bias_ids.size:
            before = row[self._bias_ids]
            row[self._bias_ids] = before + self._bias
            changes.append((self._bias_ids, before))
        if self._seen is not None and self._seen.n:
            changes.append(self._seen.penalise(row))
        for banned in self._banned(n_sampled):
            changes.append((banned, row[banned]))
            row[banned] = -np.inf
        if self._allowed.size:
            before, some = row.copy(), row[self._allowed]
            row.fill(-np.inf)
            row[self._allowed] = some
            changes.append((slice(None), before))
        if self._n_sigma:
            changes.append(self._cut(row))
        return changes

    def _cut(self, row: NDArray[np.float32]) -> Change:
        """Leave out what is more standard deviations below the likeliest token than `top_n_sigma`."""
        kept = row[row > -np.inf]
        spread = float(np.std(kept, dtype=np.float64)) if kept.size else 0.0
        far = np.flatnonzero(row < row.max() - np.float32(self._n_sigma * spread))
        before = row[far]
        row[far] = -np.inf
        return far, before

    @contextmanager
    def cut_anew(self, row: NDArray[np.float32], changes: list[Change]) -> Iterator[None]:
        """Let a patched row be restricted inside: behind that, the likeliest token is another one."""
        if self._n_sigma:
            places, before = changes.pop()
            row[places] = before
        yield
        if self._n_sigma:
            changes.append(self._cut(row))

    def _banned(self, n_sampled: int) -> Iterator[NDArray[np.int64]]:
        if n_sampled < self._ban_until and self._end_ids.size:
            yield self._end_ids
        if n_sampled < self._stops_from and self._stop_ids.size:
            yield self._stop_ids
        if self._bad is not None:
            last = self._bad.last()
            if self._allowed.size and not self._leaves_some(last, n_sampled):
                last = self._bad.always
            yield last

    def _leaves_some(self, banned: NDArray[np.int64], n_sampled: int) -> bool:
        """Say whether a token is allowed that is neither among these nor banned otherwise."""
        never = set(banned.tolist())
        if n_sampled < self._ban_until:
            never.update(self._end_ids.tolist())
        if n_sampled < self._stops_from:
            never.update(self._stop_ids.tolist())
        return not never.issuperset(self._allowed.tolist())

    def apply_to_candidates(
        self, values: NDArray[np.float32], ids: NDArray[np.int32], n_sampled: int
    ) -> None:
        """Do in place what `apply` does to a row, to logits `values` of some of its tokens `ids`.

        Only where `n_lowered` is a number: penalties are not done.
        """
        for token, bias in zip(self._bias_ids, self._bias, strict=True):
            values[ids == token] += bias
        for banned in self._banned(n_sampled):
            values[(ids == banned[:, None]).any(axis=0)] = -np.inf

    def take(self, token: int) -> None:
        if self._seen is not None:
            self._seen.count(token)
        if self._bad is not None:
            self._bad.note(token)


class _BadWords:
    """Token sequences of which the last token is not drawn after the others; one look-up per token."""

    def __init__(self, words: Sequence[tuple[int, ...]]) -> None:
        self.always = np.array(sorted({word[-1] for word in words if len(word) == 1}), np.int64)
        """The words that are one token."""
        self._by_end: dict[int, list[tuple[int, ...]]] = {}
        for word in dict.fromkeys(words):
            if len(word) > 1:
                self._by_end.setdefault(word[-2], []).append(word)
        self.n_last = len({word[-1] for word in words})
        self._output: list[int] = []

    def last(self) -> NDArray[np.int64]:
        """Return the tokens that would complete a word now."""
        output = self._output
        if not output or output[-1] not in self._by_end:
            return self.always
        more = {word[-1] for word in self._by_end[output[-1]] if tuple(output[1 - len(word) :]) == word[:-1]}
        return np.union1d(self.always, np.array(sorted(more), np.int64)) if more else self.always

    def note(self, token: int) -> None:
        self._output.append(token)


class _Seen:
    """The distinct tokens seen so far, each with what it loses; one step per token, no rescan.

    Repetition weighs on prompt and output; frequency and presence, as OpenAI defines them, on output alone.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int], n_vocab: int) -> None:
        self._repetition = np.float32(params.repetition_penalty)
        self._frequency, self._presence = params.frequency_penalty, params.presence_penalty
        seen = sorted(set(prompt)) if params.repetition_penalty != 1 else []
        if not _inside(seen, n_vocab):
            raise InvalidParameterError("prompt", f"has token ids outside 0..{n_vocab - 1}")
        self.n = len(seen)
        self._ids = np.array(seen + [0] * 64, np.int64)
        self._losses = np.zeros(len(self._ids), np.float32)
        self._place = {token: at for at, token in enumerate(seen)}
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
