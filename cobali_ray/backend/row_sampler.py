"""RowSampler: what one request's sampling remembers from token to token."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend.candidates import MAX_VOCAB, widen
from cobali_ray.backend.chain import ChainParams, draw, weigh
from cobali_ray.backend.patches import Change, Patches
from cobali_ray.core.request.reasoning import ReasoningMonitor
from cobali_ray.core.request.request import SamplingParams
from cobali_ray.errors import InvariantError

if TYPE_CHECKING:
    from cobali_ray.backend.grammar import Matcher

_MAX_TOP_WIDTH = 1024
_COLDEST = 1e-30  # below any difference of two float32 logits that matters, above where float32 divides by 0
_NARROWEST = 1e-300  # below any probability: the likeliest token alone reaches it


class SamplingPath(Enum):
    """How a row's token is found."""

    GREEDY = auto()
    TOP = auto()  # the likeliest `width` tokens are enough
    OPEN = auto()  # the number of candidates depends on the row
    WHOLE = auto()  # nothing is cut off


class RowSampler:
    """Remember what one request's sampling needs: parameters, counts of tokens seen, its own generator.

    `n_sampled` counts the output tokens so far. `prompt` matters to the repetition penalty only.
    A `logit_bias` or prompt token outside the vocabulary raises `InvalidParameterError`. `entropy` seeds the
    generator of a stochastic request that brings no seed.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        *,
        end_tokens: frozenset[int],
        n_vocab: int,
        entropy: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        if not 0 < n_vocab <= MAX_VOCAB:
            raise InvariantError(f"a vocabulary of {n_vocab} tokens is outside 1..{MAX_VOCAB}")
        self.params = params
        self.n_sampled = 0
        self.matcher: Matcher | None = None
        """Where its answer stands in the grammar it must follow, if any."""
        self.reasoning: ReasoningMonitor | None = None
        """Where its answer stands in its reasoning, if that is bounded."""
        self.needs_rows = False
        """Whether whole rows are needed whatever is drawn: they say how likely the prompt's tokens are."""
        self._patches = Patches(params, prompt, end_tokens=end_tokens, n_vocab=n_vocab)
        self.untouched = self._patches.idle
        top_k = params.top_k if 0 < params.top_k < n_vocab else 0
        self.width = widen(top_k) if top_k else 0
        self.route = _route(params, top_k)
        # An open row without top_k has its typical set taken before the chain, from the whole row.
        typical_p = params.typical_p if top_k else 1.0
        self._n_vocab = n_vocab
        self._n_likeliest = _n_likeliest(params, self.route, top_k, self._patches.n_lowered)
        temperature, top_p = max(params.temperature, _COLDEST), max(params.top_p, _NARROWEST)
        self.chain = ChainParams(top_k or math.inf, typical_p, top_p, params.min_p, temperature)
        self._random: random.Random | None = None
        self._seed = self._n_drawn = 0
        if self.route is not SamplingPath.GREEDY:
            seed = entropy() if params.seed is None else params.seed
            # Random takes the absolute value of its seed, so -1 and 1 would be one.
            self._seed = 2 * seed if seed >= 0 else -2 * seed - 1
            self._random = random.Random(self._seed)

    def forced(self) -> int | None:
        """Return the token that comes next whatever the row says, if there is one.

        What the grammar refuses is not forced, and neither is what would have followed.
        """
        if self.reasoning is None or (token := self.reasoning.forced) is None:
            return None
        if self.matcher is None or self.matcher.allows(token):
            return token
        self.reasoning.give_up()
        return None

    def patch(self, row: NDArray[np.float32]) -> list[Change]:
        """Apply bias, penalties and bans to the row in place; give what undoes it, latest last."""
        return self._patches.apply(row, self.n_sampled)

    def cut_anew(self, row: NDArray[np.float32], changes: list[Change]) -> AbstractContextManager[None]:
        """Let a row that was patched, with these `changes`, be restricted inside."""
        return self._patches.cut_anew(row, changes)

    def suffices(self, n: int) -> bool:
        """Tell whether the `n` likeliest tokens of a row, as the model gave it, decide what is drawn.

        Where a grammar holds they never do: it may allow none of them.
        """
        enough = self._n_likeliest is not None and (self._n_likeliest <= n or n == self._n_vocab)
        return enough and not self.needs_rows and (self.matcher is None or not self.matcher.holds)

    def patch_candidates(self, values: NDArray[np.float32], ids: NDArray[np.int32]) -> None:
        """Do what `patch` does, in place, to the likeliest tokens of a row; only where they suffice."""
        self._patches.apply_to_candidates(values, ids, self.n_sampled)

    def uniform(self) -> float:
        """Draw the number in [0, 1) of the next output token, or a second one if asked again for that token.

        The numbers depend on its place in the answer alone, not on how the tokens before it were drawn.
        """
        if self._random is None:
            raise InvariantError("a greedy request draws no random number")
        if self._n_drawn > self.n_sampled:
            return random.Random((self._seed << 64) + self.n_sampled).random()
        while self._n_drawn < self.n_sampled:
            self._random.random()
            self._n_drawn += 1
        self._n_drawn += 1
        return self._random.random()

    def take(self, token: int) -> None:
        self.n_sampled += 1
        self._patches.take(token)
        if self.reasoning is not None:
            self.reasoning.take(token)


def draw_tokens(
    values: NDArray[np.float64],
    ids: NDArray[np.int64],
    mass: NDArray[np.float64],
    rows: Sequence[RowSampler],
) -> list[int]:
    """Draw one of `ids` per row, by the parameters and the next random number of each."""
    weights = weigh(values, np.array([row.chain for row in rows]), mass)
    places = draw(weights, np.array([row.uniform() for row in rows]))
    drawn: list[int] = ids[np.arange(len(ids)), places].tolist()
    return drawn


def _n_likeliest(
    params: SamplingParams, route: SamplingPath, top_k: int, n_lowered: int | None
) -> int | None:
    """Count the likeliest tokens that decide: those kept, one for each that may be lowered, one to spare.

    None: the whole row decides. The one to spare is for ties: where it is less than the last one kept, no
    token left out is its equal.
    """
    if (
        params.n_logprobs is not None
        or n_lowered is None
        or route not in {SamplingPath.GREEDY, SamplingPath.TOP}
    ):
        return None
    return (1 if route is SamplingPath.GREEDY else top_k) + n_lowered + 1


def _route(params: SamplingParams, top_k: int) -> SamplingPath:
    if params.temperature == 0:
        return SamplingPath.GREEDY
    if top_k and widen(top_k) <= _MAX_TOP_WIDTH:
        return SamplingPath.TOP
    if top_k or params.typical_p < 1 or params.top_p < 1 or params.min_p > 0:
        return SamplingPath.OPEN
    return SamplingPath.WHOLE
