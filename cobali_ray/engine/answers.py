"""Answers: what the answer to a request is drawn by, its sampler and its place in a grammar."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cobali_ray.backend.grammar import Grammars, Matcher
from cobali_ray.backend.pieces import Pieces
from cobali_ray.backend.port import Backend
from cobali_ray.backend.sampling import RowSampler
from cobali_ray.core.reasoning import Reasoning
from cobali_ray.core.request import Request
from cobali_ray.errors import AdapterGoneError


class Answers:
    """Makes samplers for one model. Any thread may compile grammars."""

    def __init__(self, backend: Backend, entropy: Callable[[], int]) -> None:
        self._backend, self._entropy = backend, entropy
        words = backend.words
        self.pieces = Pieces(
            backend.piece, lambda token: words.detokenize([token], special=True), backend.end_tokens
        )
        self.grammars = Grammars(
            n_vocab=backend.n_vocab,
            pieces=self.pieces,
            tokenize=lambda text: words.tokenize(text, add_special=False, parse_special=False),
        )

    def sampler(self, request: Request, *, ready: bool) -> RowSampler:
        """Return what draws a request's tokens; its grammar is compiled too if it is to be `ready`.

        Raises AdapterGoneError, or BadRequestError for a grammar.
        """
        self.require_adapter(request)
        row = RowSampler(
            request.sampling,
            request.text_tokens if request.rows else request.prompt,
            end_tokens=self._backend.end_tokens,
            n_vocab=self._backend.n_vocab,
            entropy=self._entropy,
        )
        row.needs_rows = request.n_prompt_logprobs is not None
        if (budget := request.reasoning_budget) is not None:
            row.reasoning = Reasoning(budget, partial(self.pieces.of, shown=request.shown_tokens))
        row.resume(request.said)
        if ready:
            row.matcher = self.matcher(request)
        return row

    def require_adapter(self, request: Request) -> None:
        """Raise AdapterGoneError where nothing can be computed under a request's adapter."""
        if request.adapter and request.adapter not in {one.key for one in self._backend.adapters}:
            raise AdapterGoneError

    def matcher(self, request: Request) -> Matcher | None:
        """Return where a request's answer stands in its grammar, if it has one."""
        if request.grammar is None:
            return None
        return self.grammars.matcher(request.grammar, request.shown_tokens, request.said)
