"""The events of a call sorted by choice, and the bytes of its stream. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cobali_ray.api.call.translate import PROMPT_PROGRESS, QUEUE_PROGRESS, Call
from cobali_ray.api.door.timings import Pace, Timings
from cobali_ray.api.reply.answer import Writer
from cobali_ray.api.reply.turn import Update
from cobali_ray.core.request.events import Delta, End, Event, RequestProgress, RequestStats
from cobali_ray.errors import CobaliError, InvariantError


class Tally:
    """Keeps the books of one call: which choices are open, how many tokens were seen, who failed."""

    def __init__(self, call: Call) -> None:
        self._index = {request.request_id: i for i, request in enumerate(call.requests)}
        self.ends: list[End | None] = [None] * len(call.requests)
        self.n_open = len(call.requests)
        self.n_tokens = 0
        self.failure: CobaliError | None = None
        self.ttft_s: float | None = None
        """From the arrival of the HTTP request to the first text of any choice; None before."""
        self._paces = [Pace(call.progress) for _ in call.requests]

    def sort(self, batch: Sequence[Event], now_s: float) -> Iterator[Update]:
        """Book a batch and yield what it adds per choice. Raises InvariantError for an event after an end.

        `now_s` is how long ago the HTTP request arrived.
        """
        deltas: dict[int, list[Delta]] = {}
        ended: dict[int, End] = {}
        for event in batch:
            index = self._index[event.request_id]
            if self.ends[index] is not None:
                raise InvariantError(f"choice {index} went on after its end event")
            if isinstance(event, RequestProgress):
                reported = self._paces[index].progress
                if event.n_ahead is not None and reported.get(QUEUE_PROGRESS, ...) is None:
                    reported[QUEUE_PROGRESS] = queue_progress(event)
                continue
            choice_deltas = deltas.setdefault(index, [])
            if isinstance(event, End):
                self.ends[index] = ended[index] = event
                self.n_open -= 1
                self.failure = self.failure or event.error
            elif isinstance(event, Delta):
                choice_deltas.append(event)
                self.n_tokens += event.n_tokens
        for index, choice_deltas in deltas.items():
            end, pace = ended.get(index), self._paces[index]
            if any(delta.text for delta in choice_deltas):
                pace.speak(now_s)
            if end is not None:
                pace.end(now_s, spoke=end.stats.n_output > 0)
                if PROMPT_PROGRESS in pace.progress:
                    pace.progress[PROMPT_PROGRESS] = prompt_progress(_computed(end))
            if self.ttft_s is None:
                self.ttft_s = pace.ttft_s
            yield Update(index, choice_deltas, end)

    def choice(self, request_id: str) -> int:
        return self._index[request_id]

    def times(self, now_s: float) -> Timings:
        return Timings(self.ttft_s, now_s, self._paces)

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def stats(self) -> list[RequestStats] | None:
        """Return every choice's numbers once all have ended well; None before, or if one failed."""
        if self.n_open or self.failure is not None:
            return None
        return [end.stats for end in self.ends if end is not None]


class StreamWriter:
    """Turns batches of a call into the bytes of one write each."""

    def __init__(self, call: Call, writer: Writer, tally: Tally) -> None:
        self._writer, self._tally = writer, tally
        self._opened = [False] * len(call.requests)
        self._progress_fields = call.progress

    def write(self, batch: Sequence[Event], now_s: float) -> bytes:
        """Return what a batch adds to the stream; after the last end this includes how the stream closes."""
        wire: list[bytes] = []
        if self._progress_fields:
            wire = [self._progress(event) for event in batch if isinstance(event, RequestProgress)]
        updates = list(self._tally.sort(batch, now_s))
        stats = self._tally.stats()
        times = self._tally.times(now_s)
        last = max((i for i, update in enumerate(updates) if update.end), default=None)
        for i, update in enumerate(updates):
            index, end = update.choice, update.end
            closes = end is not None and end.error is None
            part = self._writer.say(update)
            if (part or closes) and not self._opened[index]:
                self._opened[index] = True
                wire.append(self._writer.opening(index))
            wire.append(part)
            if end is not None and closes:
                wire.append(self._writer.closing(index, end, stats if i == last else None, times))
        return b"".join(wire)

    def _progress(self, progress: RequestProgress) -> bytes:
        """Return a stream's event about a prompt that is not computed yet, if its client asked for one."""
        fields: dict[str, Any] = {}
        if progress.n_ahead is not None:
            if QUEUE_PROGRESS in self._progress_fields:
                fields[QUEUE_PROGRESS] = queue_progress(progress)
        elif PROMPT_PROGRESS in self._progress_fields:
            fields[PROMPT_PROGRESS] = prompt_progress(progress)
        return self._writer.progress(self._tally.choice(progress.request_id), fields) if fields else b""


def _computed(end: End) -> RequestProgress:
    """Return the progress of a prompt that is computed."""
    stats = end.stats
    n_prompt, seconds = stats.n_prompt, stats.prefill_s or 0.0
    return RequestProgress(end.request_id, n_prompt, stats.n_cached, n_prompt, seconds, None, None)


def prompt_progress(progress: RequestProgress) -> dict[str, int | float]:
    """Return the progress of a prompt, as llama-server has it."""
    return {
        "total": progress.n_prompt,
        "cache": progress.n_cached,
        "processed": progress.n_processed,
        "time_ms": round(progress.seconds * 1e3, 3),
    }


def queue_progress(progress: RequestProgress) -> dict[str, int | float | None]:
    """Return where in the queue a request is, and how long it is expected to be there, if that is known."""
    wait_s = progress.wait_s
    return {"n_ahead": progress.n_ahead, "wait_s": None if wait_s is None else round(wait_s, 3)}
