"""Emitter: sampled tokens to deltas, through pieces, characters and stop strings."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq

from cobali_ray.backend.pieces import Pieces
from cobali_ray.backend.sampling import TokenLogprobs
from cobali_ray.core.events import Delta, FinishReason, TokenLogprob
from cobali_ray.core.sequence import Sequence

MOST_VALUES = 64
"""Logprobs of a prompt in one delta; to read one takes 0.1 ms."""


class Emitter:
    """Turns one sampled token into the text that became certain by it."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._ascii: dict[int, str] = {}
        """Text of tokens that are whole characters wherever they stand, once they were seen."""

    def emit(
        self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None, *, more: bool = False
    ) -> tuple[Delta | None, bool]:
        """Return the delta, if any text became certain, and whether a stop string ended it.

        `more`: another token of the sequence follows, so that this one does not end it.
        """
        ending = None if more else sequence.ending
        if sequence.plain and not ending and not sequence.text.waiting:
            known = self._ascii.get(token)
            if known:
                if not sequence.held:
                    return Delta(sequence.request_id, known, (token,)), False
                held, sequence.held = sequence.held, []
                return Delta(sequence.request_id, known, (*held, token)), False
        sequence.held.append(token)
        shown = sequence.request.shown_tokens
        if logprobs is not None:
            sequence.held_logprobs.append(self._named(token, logprobs, shown))
        silent = self._is_silent(sequence, token, ending)
        piece = b"" if silent else self._pieces.of(token, shown)
        if piece and piece.isascii() and token not in shown:
            self._ascii[token] = piece.decode("ascii")
        text, hit = sequence.stops.feed(sequence.text.feed(piece))
        if ending and not hit:
            rest, hit = sequence.stops.feed(sequence.text.flush())
            text += rest if hit else rest + sequence.stops.flush()
        if not text and not (ending and sequence.held_logprobs and not hit):
            return None, hit
        tokens, logprobs_of = tuple(sequence.held), tuple(sequence.held_logprobs)
        sequence.held.clear()
        sequence.held_logprobs.clear()
        stats = None if sequence.begun else sequence.begin()
        return Delta(sequence.request_id, text, tokens, logprobs_of, stats), hit

    def prompt(self, sequence: Sequence, scored: Seq[TokenLogprobs]) -> Iterator[Delta]:
        """Yield deltas with the next tokens of a prompt; first its first, of which nothing is known.

        None of them has many values, so that whoever reads them lets others have their turn.
        """
        first, of = sequence.n_scored, self._pieces.written
        items = [] if first else [TokenLogprob(sequence.tokens[0], of(sequence.tokens[0]), None, ())]
        first = max(first, 1)
        for token, found in zip(sequence.tokens[first : first + len(scored)], scored, strict=True):
            top = tuple([(other, of(other), logprob) for other, logprob in found.top])
            items.append(TokenLogprob(token, of(token), found.logprob, top, found.rank))
        step = max(1, MOST_VALUES // (1 + (sequence.request.n_prompt_logprobs or 0)))
        for start in range(0, len(items), step):
            part = tuple(items[start : start + step])
            yield Delta(sequence.request_id, "", (), prompt=part)

    def resume(self, sequence: Sequence) -> None:
        """Take what a request's tokens said elsewhere, which was told there."""
        shown = sequence.request.shown_tokens
        pieces = [
            b"" if self._is_silent(sequence, token, None) else self._pieces.of(token, shown)
            for token in sequence.request.said
        ]
        sequence.stops.feed(sequence.text.feed(b"".join(pieces)))

    def _is_silent(self, sequence: Sequence, token: int, ending: FinishReason | None) -> bool:
        """Say whether a token has no text: an end token, or the stop token of a request that wants none."""
        if token in self._pieces.end_tokens:
            return True
        # A token that completes a grammar ends the sequence as well, and has text.
        stops = ending == "stop" and token in sequence.end_tokens
        return stops and not sequence.request.include_stop

    def _named(self, token: int, logprobs: TokenLogprobs, shown: Collection[int]) -> TokenLogprob:
        of = self._pieces.of
        top = tuple((other, of(other, shown), logprob) for other, logprob in logprobs.top)
        return TokenLogprob(token, of(token, shown), logprobs.logprob, top)
