"""One open request: what was sent to its client, by whichever engine, and where it is now. Pure.

It keeps the ids of the tokens behind every delta. When its engine is gone, the next one gets them as
`Request.sent_tokens` and computes them after the prompt: text, stop strings, penalties, grammar and reasoning
take them without output, and the next token has the random number of its place in the answer. Tokens whose
text was held back are sampled again. Each attempt has an id of its own, so that late messages of an old
engine are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from math import inf
from typing import Any, Final

from cobali_ray.core.dispatch.engines import EngineRecord
from cobali_ray.core.dispatch.messages import AnyRequest
from cobali_ray.core.dispatch.models import ModelRecord
from cobali_ray.core.request.events import Delta, End, Event, RequestStats
from cobali_ray.core.request.request import Request
from cobali_ray.errors import CobaliError, RefusedError

MAX_DEATHS: Final = 2
"""How often in a row a request continues after the death of an engine that computed for it, without a new
token: a request that kills every engine it comes to must not go round for ever."""
MAX_MOVES: Final = 30
"""How often it continues at all: an engine's last events may be lost with it."""

DEADLINE_GRACE_S: Final = 5.0
"""How long an engine may take to end a request whose `timeout_s` is over; behind that it hangs."""


class Stage(Enum):
    """What an open request waits for."""

    RETURN = auto()
    """An engine that is away."""
    LOAD = auto()
    """Until its model is loaded."""
    SENT = auto()
    """Its engine."""
    LAST_EVENTS = auto()
    """For its last events; its control call has returned."""
    VERDICT = auto()
    """For its control call, which says why the engine ended it."""


class RequestRecord:
    """A request that has not ended."""

    def __init__(self, request: AnyRequest, model: ModelRecord, now_s: float) -> None:
        self.request, self.model, self.began_s = request, model, now_s
        self.stage = Stage.RETURN
        self.due_s = inf
        """When it leaves this stage at the latest."""
        # Where it was sent.
        self.engine: EngineRecord | None = None
        self.sent_id = self.incarnation_id = self.source = ""
        self.responded = self.answered = False
        """Whether its engine has sent any event; whether one was part of the answer."""
        self.accepted = False
        """Whether any engine has taken it."""
        self.computing = False
        """Whether its engine computes for it, which may be what kills the engine."""
        self.n_elsewhere = 0.0
        self.refusals: dict[str, RefusedError] = {}
        self.too_small: set[str] = set()
        """Engines whose slots it does not fit in, unlike in that of the engine that took it first."""
        self.loads = self.waited = False
        """Whether its model was loaded for it; whether it has waited, which used some of its `timeout_s`."""
        # What its client has received.
        self.n_moves = self.n_deaths = 0
        """Engines that it lost; those that computed for it since its last token."""
        self.file: str | None = None
        """The model file that it was sent to first. Another file never continues its answer."""
        self.read_for: Mapping[str, str] = {}
        """The model file of each engine when its prompt was read; one that was replaced has other tokens."""
        self.tokens: list[int] = list(request.sent_tokens) if isinstance(request, Request) else []
        self.n_scored = 0
        """Prompt tokens whose logprobs its client has received."""
        self._first: RequestStats | None = None
        self._first_s = self._sent_s = now_s
        self.engine_lost_s: float | None = None
        """When it lost its engine; None once the next one has sent an event."""

    @property
    def request_id(self) -> str:
        """The id that its client knows."""
        return self.request.request_id

    @property
    def supersedes(self) -> str:
        """Shared by requests of which a newer one cancels the older; "": none."""
        return self.request.supersedes if isinstance(self.request, Request) else ""

    @property
    def received_s(self) -> float:
        """When its HTTP request began to arrive; without HTTP, when it came here."""
        received_s = self.request.received_s
        return self.began_s if received_s is None else received_s

    @property
    def begun(self) -> bool:
        """Whether the client has received a part of the answer."""
        return bool(self.tokens or self.n_scored)

    @property
    def deadline_s(self) -> float:
        """When the request's own `timeout_s` is over."""
        return inf if self.request.timeout_s is None else self.began_s + self.request.timeout_s

    @property
    def fair(self) -> bool:
        """Whether its engine gets `served_elsewhere`, what other engines served its tenant."""
        return len(self.model.engines) > 1 and bool(self.request.tenant)

    def fits(self, engine: EngineRecord) -> bool:
        """Whether an engine has the model file that it was sent to first, and room for it."""
        files = {self.file, self.read_for.get(engine.engine_id), engine.model} - {None}
        return len(files) == 1 and engine.engine_id not in self.too_small

    def send(self, engine: EngineRecord, now_s: float) -> AnyRequest:
        """Record that it is sent to an engine; return the request for that engine."""
        self.engine, self.stage, self._sent_s = engine, Stage.SENT, now_s
        self.due_s = self.deadline_s + DEADLINE_GRACE_S
        self.incarnation_id, self.file = engine.incarnation_id, engine.model
        self.source = "" if engine.attendance is None else engine.attendance.wire_key
        self.responded = self.answered = False
        request, changes = self.request, dict[str, Any]()
        # The engine prepares these at once, which may kill it, too.
        self.computing = isinstance(request, Request) and bool(request.images or request.grammar)
        self.sent_id = request.request_id
        if self.n_moves:
            # Another id, as the last engine's last events may still be on their way.
            self.sent_id = f"{request.request_id}~{self.n_moves}"
            changes |= {"request_id": self.sent_id, "attempt": self.n_moves, "received_s": None}
            if isinstance(request, Request):
                changes |= {"sent_tokens": tuple(self.tokens), "n_scored": self.n_scored}
        if request.timeout_s is not None and (self.n_moves or self.waited):
            changes["timeout_s"] = min(max(self.deadline_s - now_s, 0.001), request.timeout_s)
        if self.fair and isinstance(request, Request):
            self.n_elsewhere = self.model.elsewhere.take(engine.engine_id, request.tenant)
            changes["served_elsewhere"] = self.n_elsewhere
        return replace(request, **changes) if changes else request

    def move(self, now_s: float) -> bool:
        """Record that its engine is gone; return whether it continues on another one."""
        self.n_deaths += self.computing
        if self.n_deaths > MAX_DEATHS or self.n_moves == MAX_MOVES:
            return False
        self.n_moves += 1
        self.engine_lost_s, self.loads, self.computing = now_s, False, False
        self.refusals.clear()
        self.too_small.clear()
        return True

    def enter(self, event: Event, now_s: float) -> Event:
        """Record an engine's event; return it as the client gets it."""
        if isinstance(event, Delta):
            if event.tokens:
                if self._first is None and event.stats is not None:
                    self._begin(event.stats, now_s)
                self.tokens += event.tokens
                self.n_deaths = 0
            self.n_scored += len(event.prompt)
        if not self.n_moves:
            return event
        if isinstance(event, End):
            return event._replace(request_id=self.request_id, stats=self._whole(event.stats, now_s))
        return event._replace(request_id=self.request_id)

    def _begin(self, stats: RequestStats, now_s: float) -> None:
        self._first_s, lost_s = now_s, self._sent_s - self.began_s
        queue_s, ttft_s = (stats.queue_s or 0.0) + lost_s, (stats.ttft_s or 0.0) + lost_s
        self._first = stats._replace(queue_s=queue_s, ttft_s=ttft_s)

    def _whole(self, stats: RequestStats, now_s: float) -> RequestStats:
        """Return the stats of the whole request: its beginning is the first engine's, cached tokens too."""
        received_s, first = self.request.received_s, self._first
        stats = stats._replace(
            e2e_s=now_s - self.began_s,
            intake_s=None if received_s is None else max(self.began_s - received_s, 0.0),
            n_said=0,
        )
        if first is None:
            return stats
        return stats._replace(
            n_cached=first.n_cached,
            cached_from=first.cached_from,
            queue_s=first.queue_s,
            prefill_s=first.prefill_s,
            ttft_s=first.ttft_s,
            decode_s=now_s - self._first_s,
        )

    def broken_off(self, error: CobaliError, now_s: float) -> End:
        """Return the end event of an answer that has begun and cannot continue."""
        stats = RequestStats(self.request.n_prompt, 0, len(self.tokens), None, None, None, None, 0.0)
        return End(self.request_id, None, error, self._whole(stats, now_s))
