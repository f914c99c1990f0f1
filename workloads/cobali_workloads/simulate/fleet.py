"""A fleet: simulated engines, who chooses among them, and requests that come, on one virtual clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from cobali_ray.core.dispatch.route import Router, load_of
from cobali_ray.core.queue.fair import OUTPUT_COST, ServedElsewhere
from cobali_ray.core.request.events import End
from cobali_ray.core.request.request import Program, Request, SamplingParams
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.errors import PromptTooLongError, QueueFullError
from cobali_workloads.simulate.engine import SimulatedEngine

_TO_THE_END = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass(slots=True)
class SimulatedRequest:
    """One request: when, what, and what it will be answered."""

    request_id: str
    at_s: float
    """When it comes; of one that follows another, how long after that one's end."""
    prompt: Sequence[int]
    answer: Sequence[int]
    then: SimulatedRequest | None = None
    """What the same client asks next."""
    salt: str = ""
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    program: Program | None = None


@dataclass(slots=True)
class RequestOutcome:
    """What became of one request, on the virtual clock."""

    ask: SimulatedRequest
    request: Request
    sent_s: float
    tokens_s: list[float] = field(default_factory=list)
    """When each token of its answer came."""
    end: End | None = None
    """None: every engine refused it at the door."""
    ended_s: float = 0.0
    engine_id: str = ""


class RoutingPolicy(Protocol):
    """Chooses engines. Knows what an ingress does: what engines publish, and what its own requests do."""

    def published(self, engine_id: str, scheduler: Scheduler, now_s: float) -> None:
        """Take an engine's load."""
        ...

    def choose(self, request: Request, now_s: float, without: Collection[str]) -> str | None:
        """Return an engine for a request, None if there is none but those."""
        ...

    def began(self, request: Request, n_cached: int) -> None:
        """Note that its first token is there, and how much of its prompt was."""
        ...

    def ended(self, request: Request) -> None:
        """Note its end there, or that it was refused."""
        ...


class RouterPolicy:
    """The product's own router."""

    def __init__(self) -> None:
        self.router = Router()

    def published(self, engine_id: str, scheduler: Scheduler, now_s: float) -> None:
        """See `RoutingPolicy`."""
        self.router.published(engine_id, load_of(scheduler), now_s)

    def choose(self, request: Request, now_s: float, without: Collection[str]) -> str | None:
        """See `RoutingPolicy`."""
        route = self.router.choose(request.prompt, request.salt, now_s, without)
        if route is None:
            return None
        self.router.booked(request.request_id, route, now_s)
        return route.engine_id

    def began(self, request: Request, n_cached: int) -> None:
        """See `RoutingPolicy`."""
        self.router.released(request.request_id, n_cached)

    def ended(self, request: Request) -> None:
        """See `RoutingPolicy`."""
        self.router.released(request.request_id)


_COMES, _BEGINS, _ENDS = range(3)


class SimulatedFleet:
    """Plays requests to the end; engines publish their load every `publish_s` seconds."""

    def __init__(
        self, engines: Mapping[str, SimulatedEngine], policy: RoutingPolicy, *, between_s: float = 0.0,
        publish_s: float = 0.25,
    ) -> None:  # fmt: skip
        self.engines, self._policy = engines, policy
        self._between_s, self._publish_s = between_s, publish_s
        self._events: list[tuple[float, int, int, str | SimulatedRequest]] = []
        """(when, a number for the order of equal times, what, of whom)."""
        self._number = count()
        self._idle, self._elsewhere = set(engines), ServedElsewhere()
        self._published_s = dict.fromkeys(engines, -publish_s)
        self._open: dict[str, RequestOutcome] = {}
        self._stories: list[RequestOutcome] = []
        self._others: Iterator[SimulatedRequest] = iter(())
        self.now_s = 0.0

    def play(
        self, asks: Iterable[SimulatedRequest], others: Iterable[SimulatedRequest] = ()
    ) -> list[RequestOutcome]:
        """Let all requests come, and those that follow them; return their stories in that order.

        Behind each that nobody follows comes the next of `others`.
        """
        for engine_id in self.engines:
            self._publish(engine_id)
        self._stories, start_s, self._others = [], self.now_s, iter(others)
        self._events = [(start_s + ask.at_s, next(self._number), _COMES, ask) for ask in asks]
        heapify(self._events)
        while self._events:
            self.now_s, _, what, whose = heappop(self._events)
            if isinstance(whose, SimulatedRequest):
                self._comes(whose)
            elif what == _BEGINS:
                self._begins(whose)
            else:
                self._ends(whose)
        return self._stories

    def _later(self, seconds: float, what: int, whose: str | SimulatedRequest) -> None:
        heappush(self._events, (self.now_s + seconds, next(self._number), what, whose))

    def _comes(self, ask: SimulatedRequest) -> None:
        request = Request(
            request_id=ask.request_id, prompt=tuple(ask.prompt), max_tokens=len(ask.answer),
            sampling=_TO_THE_END, cache_salt=ask.salt, tenant=ask.tenant, weight=ask.weight,
            priority=ask.priority, program=ask.program,
        )  # fmt: skip
        story = RequestOutcome(ask, request, self.now_s, ended_s=self.now_s)
        self._stories.append(story)
        refused: set[str] = set()
        while (engine_id := self._policy.choose(request, self.now_s, refused)) is not None:
            n = self._elsewhere.take(engine_id, ask.tenant)
            try:
                self.engines[engine_id].submit(
                    replace(request, served_elsewhere=n) if n else request, ask.answer, self.now_s
                )
            except (QueueFullError, PromptTooLongError):
                self._elsewhere.put_back(engine_id, ask.tenant, n)
                self._policy.ended(request)
                refused.add(engine_id)
                continue
            story.engine_id = engine_id
            self._open[ask.request_id] = story
            if engine_id in self._idle:
                self._idle.remove(engine_id)
                self._later(0.0, _BEGINS, engine_id)
            return
        self._follow(ask)

    def _begins(self, engine_id: str) -> None:
        took_s = self.engines[engine_id].begin(self.now_s)
        if took_s is None:
            self._idle.add(engine_id)
            self._publish(engine_id)
        else:
            self._later(took_s, _ENDS, engine_id)

    def _ends(self, engine_id: str) -> None:
        engine, now_s = self.engines[engine_id], self.now_s
        result = engine.end(now_s)
        for sequence in result.streams:
            story = self._open[sequence.request_id]
            served = OUTPUT_COST
            if not story.tokens_s:
                self._policy.began(sequence.request, sequence.n_cached)
                served += sequence.n_prompt - sequence.n_cached
            self._elsewhere.note(engine_id, story.ask.tenant, served)
            story.tokens_s.append(now_s)
        for end in result.ends:
            story = self._open.pop(end.request_id)
            story.end, story.ended_s = end, now_s
            self._policy.ended(story.request)
            self._follow(story.ask)
        if now_s - self._published_s[engine_id] >= self._publish_s:
            self._publish(engine_id)
        self._later(self._between_s, _BEGINS, engine_id)

    def _follow(self, ask: SimulatedRequest) -> None:
        if (then := ask.then or next(self._others, None)) is not None:
            self._later(then.at_s, _COMES, then)

    def _publish(self, engine_id: str) -> None:
        self._published_s[engine_id] = self.now_s
        self._policy.published(engine_id, self.engines[engine_id].scheduler, self.now_s)
