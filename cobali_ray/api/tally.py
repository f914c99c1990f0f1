"""Who of a call's choices has said what: batches sorted by choice, and the bytes of a stream. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cobali_ray.api.sse import DONE, Frames
from cobali_ray.api.translate import Call
from cobali_ray.core.events import End, Event, RequestStats, TokenLogprob
from cobali_ray.errors import CobaliError, InvariantError


class News(NamedTuple):
    """What one batch holds for one choice, its deltas merged into one."""

    choice: int
    text: str
    logprobs: Sequence[TokenLogprob]
    end: End | None


class Tally:
    """Keeps the books of one call: which choices are open, how many tokens were seen, who failed."""

    def __init__(self, call: Call) -> None:
        self._index = {request.request_id: i for i, request in enumerate(call.requests)}
        self.ends: list[End | None] = [None] * len(call.requests)
        self.n_open = len(call.requests)
        self.n_tokens = 0
        self.failure: CobaliError | None = None

    def sort(self, batch: Sequence[Event]) -> Iterator[News]:
        """Book a batch and yield its news per choice. Raises InvariantError for an event after an end."""
        texts: dict[int, list[str]] = {}
        logprobs: dict[int, list[TokenLogprob]] = {}
        ended: dict[int, End] = {}
        for event in batch:
            index = self._index[event.request_id]
            if self.ends[index] is not None:
                raise InvariantError(f"choice {index} went on after its end event")
            parts = texts.setdefault(index, [])
            if isinstance(event, End):
                self.ends[index] = ended[index] = event
                self.n_open -= 1
                self.failure = self.failure or event.error
            else:
                parts.append(event.text)
                self.n_tokens += event.n_tokens
                if event.logprobs:
                    logprobs.setdefault(index, []).extend(event.logprobs)
        for index, parts in texts.items():
            yield News(index, "".join(parts), logprobs.get(index, ()), ended.get(index))

    def check(self) -> None:
        """Raise the error that ended a choice, if one did."""
        if self.failure is not None:
            raise self.failure

    def stats(self) -> list[RequestStats] | None:
        """Return every choice's numbers once all have ended well; None before, or if one failed."""
        if self.n_open or self.failure is not None:
            return None
        return [end.stats for end in self.ends if end is not None]


class StreamWriter:
    """Turns batches of a call into the bytes of one write each."""

    def __init__(self, call: Call, frames: Frames, tally: Tally) -> None:
        self._call, self._frames, self._tally = call, frames, tally
        self._opened = [False] * len(call.requests)

    def write(self, batch: Sequence[Event]) -> bytes:
        """Return what a batch adds to the stream; after the last end this includes usage and `[DONE]`."""
        if not batch:
            return b""
        news = list(self._tally.sort(batch))
        stats = self._tally.stats()
        last = max((i for i, one in enumerate(news) if one.end), default=None)
        wire: list[bytes] = []
        for i, (index, text, logprobs, end) in enumerate(news):
            closes = end is not None and end.error is None
            says = bool(text or logprobs)
            if (says or closes) and not self._opened[index]:
                self._opened[index] = True
                wire.append(self._frames.opening(index))
            if says:
                wire.append(self._frames.text(index, text, logprobs))
            if end is not None and closes:
                # Without a usage chunk, the last finish reason carries the timings.
                timed = stats if i == last and not self._call.include_usage else None
                wire.append(self._frames.closing(index, end.finish_reason, timed))
        if stats is not None:
            if self._call.include_usage:
                wire.append(self._frames.usage(stats))
            wire.append(DONE)
        return b"".join(wire)
