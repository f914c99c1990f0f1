"""Samplers: one per open request, which samples its tokens and keeps its place in its grammar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cobali_ray.backend.grammar import Grammars, Matcher
from cobali_ray.backend.pieces import Pieces
from cobali_ray.backend.port import Backend
from cobali_ray.backend.sampling import RowSampler
from cobali_ray.core.request.reasoning import ReasoningMonitor
from cobali_ray.core.request.request import Request
from cobali_ray.errors import AdapterGoneError


class Samplers:
    """One for each open request, found by its id and by the slot that it computes in.

    The tick thread calls everything but `matcher`, which any thread may.
    """

    def __init__(self, backend: Backend, n_slots: int, entropy: Callable[[], int]) -> None:
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
        self._of: dict[str, RowSampler] = {}
        self._in_slot: list[RowSampler | None] = [None] * n_slots

    def open(self, request: Request, *, ready: bool) -> None:
        """Make a request's sampler; its grammar is compiled, too, if it is to be `ready`.

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
            row.reasoning = ReasoningMonitor(
                budget, partial(self.pieces.of, shown_tokens=request.shown_tokens)
            )
        for token in request.sent_tokens:
            row.take(token)
        if ready:
            row.matcher = self.matcher(request)
        self._of[request.request_id] = row

    def of(self, request_id: str) -> RowSampler:
        """Return the sampler of an open request."""
        return self._of[request_id]

    def assign(self, request_id: str, slot_id: int) -> None:
        """Let a slot's rows be sampled by a request's sampler, and tell the backend."""
        row = self._in_slot[slot_id] = self._of[request_id]
        self._backend.expect(slot_id, row)

    def in_slots(self, slot_ids: Sequence[int]) -> list[RowSampler]:
        return [row for slot_id in slot_ids if (row := self._in_slot[slot_id]) is not None]

    def close(self, request_id: str) -> None:
        self._of.pop(request_id, None)

    def require_adapter(self, request: Request) -> None:
        """Raise AdapterGoneError if a request's adapter is not loaded."""
        if request.adapter and request.adapter not in {adapter.key for adapter in self._backend.adapters}:
            raise AdapterGoneError

    def matcher(self, request: Request) -> Matcher | None:
        """Return the matcher of a request's grammar, if it has one."""
        if request.grammar is None:
            return None
        return self.grammars.matcher(request.grammar, request.shown_tokens, request.sent_tokens)
