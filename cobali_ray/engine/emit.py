"""Emitter: sampled tokens to deltas, through pieces, characters and stop strings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as Seq

from cobali_ray.backend.pieces import Pieces
from cobali_ray.backend.sampling import TokenLogprobs
from cobali_ray.core.messages import Emit, Stopped
from cobali_ray.core.request.events import Delta, FinishReason, RequestStats, TokenLogprob
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.stopping import StopScanner, TextStream

MAX_VALUES = 64
"""Logprobs of a prompt in one delta; to read one takes 0.1 ms."""


class _Answer:
    """The text of one answer: what is sent, and what is held back."""

    __slots__ = ("begun", "end_tokens", "held", "held_logprobs", "request", "stops", "text")

    def __init__(self, request: Request, end_tokens: frozenset[int]) -> None:
        self.request = request
        self.end_tokens = end_tokens.union(request.sampling.stop_token_ids)
        self.text = TextStream()
        self.stops = StopScanner(request.stop, include=request.include_stop)
        self.begun = False
        """Whether something was sent of it."""
        self.held: list[int] = []
        """Output tokens whose text is not certain yet."""
        self.held_logprobs: list[TokenLogprob] = []


class Emitter:
    """Turns sampled tokens into deltas, of text that can no longer change."""

    def __init__(self, pieces: Pieces, life: Callable[[str], RequestStats]) -> None:
        """`life` returns a request's stats so far, which go with its first text."""
        self._pieces, self._life = pieces, life
        self._answers: dict[str, _Answer] = {}
        """Of open requests."""

    def open(self, request: Request) -> None:
        """Begin an answer, or continue after the tokens that another engine has sent."""
        answer = self._answers[request.request_id] = _Answer(request, self._pieces.end_tokens)
        if request.sent_tokens:
            shown_tokens = request.shown_tokens
            pieces = [
                b"" if self._is_silent(answer, token, None) else self._pieces.of(token, shown_tokens)
                for token in request.sent_tokens
            ]
            answer.stops.feed(answer.text.feed(b"".join(pieces)))

    def close(self, request_id: str) -> None:
        self._answers.pop(request_id, None)

    def emit(
        self, emit: Emit, logprobs: Mapping[int, TokenLogprobs]
    ) -> tuple[list[tuple[str, Delta]], list[Stopped]]:
        """Return the deltas of these tokens, with their addresses, and the requests that a stop string ended.

        `logprobs` is by row.
        """
        deltas: list[tuple[str, Delta]] = []
        stopped: list[Stopped] = []
        answers, emit_one = self._answers, self._emit_one
        for request_id, token, row, ending in emit.tokens:
            if (answer := answers.get(request_id)) is None:
                continue
            if stopped and stopped[-1].request_id == request_id:
                stopped[-1] = stopped[-1]._replace(n_dropped=stopped[-1].n_dropped + 1)
                continue
            delta, hit = emit_one(answer, token, logprobs.get(row) if logprobs else None, ending)
            if delta is not None:
                deltas.append((answer.request.reply_to, delta))
            if hit:
                stopped.append(Stopped(request_id, answer.stops.match))
        return deltas, stopped

    def _emit_one(
        self, answer: _Answer, token: int, logprobs: TokenLogprobs | None, ending: FinishReason | None
    ) -> tuple[Delta | None, bool]:
        """Return the delta, if there is text to send, and whether a stop string ended it."""
        request, shown_tokens = answer.request, answer.request.shown_tokens
        answer.held.append(token)
        if logprobs is not None:
            answer.held_logprobs.append(self._named(token, logprobs, shown_tokens))
        piece = b"" if self._is_silent(answer, token, ending) else self._pieces.of(token, shown_tokens)
        text, hit = answer.stops.feed(answer.text.feed(piece))
        if ending and not hit:
            rest, hit = answer.stops.feed(answer.text.flush())
            text += rest if hit else rest + answer.stops.flush()
        if not text and not (ending and answer.held_logprobs and not hit):
            return None, hit
        tokens, logprobs_of = tuple(answer.held), tuple(answer.held_logprobs)
        answer.held.clear()
        answer.held_logprobs.clear()
        stats = None
        if not answer.begun:
            answer.begun = True
            stats = self._life(request.request_id)
        return Delta(request.request_id, text, tokens, logprobs_of, stats), hit

    def prompt(
        self, request: Request, tokens: Seq[int], first: int, scored: Seq[TokenLogprobs]
    ) -> Iterator[Delta]:
        """Yield deltas with the next tokens of a prompt, from `first` on; the very first has no logprob.

        Each has few values, so that whoever reads one does not hold others up for long.
        """
        of = self._pieces.written
        items = [] if first else [TokenLogprob(tokens[0], of(tokens[0]), None, ())]
        first = max(first, 1)
        for token, logprobs in zip(tokens[first : first + len(scored)], scored, strict=True):
            top = tuple([(other, of(other), logprob) for other, logprob in logprobs.top])
            items.append(TokenLogprob(token, of(token), logprobs.logprob, top, logprobs.rank))
        step = max(1, MAX_VALUES // (1 + (request.n_prompt_logprobs or 0)))
        for start in range(0, len(items), step):
            part = tuple(items[start : start + step])
            yield Delta(request.request_id, "", (), prompt=part)

    def _is_silent(self, answer: _Answer, token: int, ending: FinishReason | None) -> bool:
        """Return whether a token shows no text: an end token, or a stop token that is not to be shown."""
        if token in self._pieces.end_tokens:
            return True
        # A token that completes a grammar ends the sequence as well, and has text.
        stops = ending == "stop" and token in answer.end_tokens
        return stops and not answer.request.include_stop

    def _named(self, token: int, logprobs: TokenLogprobs, shown_tokens: Collection[int]) -> TokenLogprob:
        of = self._pieces.of
        top = tuple((other, of(other, shown_tokens), logprob) for other, logprob in logprobs.top)
        return TokenLogprob(token, of(token, shown_tokens), logprobs.logprob, top)
