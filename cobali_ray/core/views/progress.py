"""Progress of requests before their first token, for clients that ask for it; places in the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import mean
from typing import Final, NamedTuple

from cobali_ray.core.plan.plan import order_prefill
from cobali_ray.core.queue.admission import Line, n_ahead
from cobali_ray.core.queue.forecast import AnswerLengths, Stayer
from cobali_ray.core.request.events import RequestProgress, RequestStats
from cobali_ray.core.request.life import Life, life_of
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.core.scheduler import Scheduler

PROMPT_EVERY_S: Final = 0.1
"""Least seconds between two looks at a prompt's progress, and at places in the queue: they take time."""
PLACE_EVERY_S: Final = 0.5


class Place(NamedTuple):
    """A request's place in the queue."""

    n_ahead: int
    """How many requests will get a slot before it, if none comes after it."""
    wait_s: float | None
    """How long until it has one; None: too little is known."""


class RequestView(NamedTuple):
    """The progress of a request that an engine has, or had lately."""

    life: Life
    progress: RequestProgress
    """Of its prompt, and its place in the queue if it waits; with a token, as it was then."""


def view_of_life(life: Life, place: Place | None, now_s: float) -> RequestView:
    """Return what a client may know of one of its requests."""
    n_processed = life.n_prompt if life.n_output else min(life.n_computed, life.n_prompt)
    until_s = min([at_s for at_s in (life.first_token_s, life.ended_s, now_s) if at_s is not None])
    seconds = 0.0 if life.assigned_s is None else until_s - life.assigned_s
    ahead = (None, None) if place is None else place
    counts = (n_processed, life.n_cached, life.n_prompt)
    return RequestView(life, RequestProgress(life.request_id, *counts, seconds, *ahead))


def named(request_id: str, x_request_id: str, name: str) -> bool:
    """Whether a client means this request: by its answer's id, or by that of its HTTP request.

    One with several answers is several requests here, and so is one that goes on at another engine.
    """
    if name == x_request_id:
        return True
    own, _, choice = request_id.partition("~")[0].partition(name)
    return not own and (not choice or (choice[0] == "-" and choice[1:].isdigit()))


class _Listener:
    """A request whose client gets its progress, and what was sent last."""

    __slots__ = ("due_s", "progress", "sequence")

    def __init__(self, sequence: Sequence) -> None:
        self.sequence, self.due_s = sequence, 0.0
        self.progress: RequestProgress | None = None

    @property
    def has_moved(self) -> bool:
        """Whether it has got its slot, or its first token, since progress was sent last."""
        waited = self.progress is not None and self.progress.n_ahead is not None
        return _has_spoken(self.sequence) or (waited and not self.sequence.status.waiting)


class ProgressReports:
    """Makes progress events after each tick, for the requests that want them. Changes nothing."""

    def __init__(self, lengths: AnswerLengths | None = None) -> None:
        self._listeners: dict[str, _Listener] = {}
        self._lengths = lengths or AnswerLengths()
        self._places: Mapping[str, Place] = {}
        self._places_until_s = 0.0
        """Places in the queue as computed last, and until when these are reported."""

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, sequence: Sequence) -> None:
        """Report this request until it has its first token; one that continues an answer has had that."""
        if not sequence.request.sent_tokens:
            self._listeners[sequence.request_id] = _Listener(sequence)

    def ended(self, request_id: str, stats: RequestStats, *, well: bool) -> None:
        """Record an end; the length of an answer that ended well goes into forecasts."""
        self._listeners.pop(request_id, None)
        if well:
            self._lengths.note(stats)

    def reports(self, scheduler: Scheduler, now_s: float) -> list[tuple[str, RequestProgress]]:
        """Return the new progress events, with their addresses."""
        out = []
        due = [
            listener for listener in self._listeners.values() if listener.due_s <= now_s or listener.has_moved
        ]
        waiting = {listener.sequence.request_id for listener in due if listener.sequence.status.waiting}
        if waiting and (now_s >= self._places_until_s or not waiting <= self._places.keys()):
            self._places, self._places_until_s = self.places(scheduler), now_s + PLACE_EVERY_S
        for listener in due:
            sequence = listener.sequence
            waits = sequence.status.waiting
            place = self._places.get(sequence.request_id) if waits else None
            progress = view_of_life(life_of(sequence), place, now_s).progress
            if _has_spoken(sequence):
                del self._listeners[sequence.request_id]
            listener.due_s = now_s + (PLACE_EVERY_S if waits else PROMPT_EVERY_S)
            if _differ(progress, listener.progress):
                listener.progress = progress
                out.append((sequence.request.reply_to, progress))
        return out

    def places(self, scheduler: Scheduler) -> dict[str, Place]:
        """Return the place of each request that waits for a slot."""
        ahead, planner = _n_ahead(scheduler), scheduler.planner
        if not ahead:
            return {}
        n_prompts = {int(ahead[s.request_id]): s.n_pending for s in scheduler.queue}
        usual = int(mean(n_prompts.values()))
        running = [*planner.streams, *order_prefill(planner.prompts, scheduler.limits)]
        waits = self._lengths.waits_s(
            [_stayer(sequence) for sequence in running],
            [n_prompts.get(i, usual) for i in range(max(n_prompts) + 1)],
            scheduler.pace(),
        )
        return {
            request_id: Place(int(n), None if waits is None else waits[int(n)])
            for request_id, n in ahead.items()
        }


def _has_spoken(sequence: Sequence) -> bool:
    return sequence.first_token_s is not None


def _differ(new: RequestProgress, old: RequestProgress | None) -> bool:
    """Return whether more has changed than the time."""
    if old is None or new.n_processed != old.n_processed or new.n_ahead != old.n_ahead:
        return True
    return new.wait_s is not None and (old.wait_s is None or abs(new.wait_s - old.wait_s) >= 0.1)


def _stayer(sequence: Sequence) -> Stayer:
    n_output = len(sequence.tokens) - sequence.n_prompt
    return Stayer(
        n_output,
        sequence.n_most - len(sequence.tokens),
        0 if sequence.decoding else sequence.n_pending,
        sure=sequence.request.sampling.ignore_eos and not sequence.request.stop,
    )


def _n_ahead(scheduler: Scheduler) -> dict[str, float]:
    """Return how many requests go before each waiting one, as if those behind it had not come."""
    waiting = list(scheduler.queue)
    weights = {sequence.line: sequence.account.weight for sequence in waiting}
    lines = {line: Line(*line, weights[line], n, 0) for line, n in Counter(s.line for s in waiting).items()}
    seen, ahead = Counter[tuple[int, str]](), dict[str, float]()
    for sequence in waiting:
        before = lines | {sequence.line: lines[sequence.line]._replace(n=seen[sequence.line])}
        ahead[sequence.request_id] = n_ahead(sequence.request, list(before.values()))
        seen[sequence.line] += 1
    return ahead
