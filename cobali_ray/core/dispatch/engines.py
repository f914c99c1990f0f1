"""Engines as an ingress sees them: their phases, in one table of changes. Pure."""

from __future__ import annotations

from enum import Enum, auto

from cobali_ray.core.views.stats import Attendance, EngineState, EngineStatus


class Phase(Enum):
    """The phase of an engine, seen from an ingress."""

    UNKNOWN = auto()
    """It has not answered yet."""
    PRESENT = auto()
    """It takes requests."""
    STALLED = auto()
    """It is silent, and keeps the requests that it has."""
    RESTARTING = auto()
    """It ended, and another process takes its place."""
    UNLOADED = auto()
    """It is there without a model, or with one that this ingress has not read yet: both take a load."""
    LOADING = auto()
    """This ingress has it load its model."""
    FAILED = auto()
    """Its model could not be loaded; the next request tries again."""
    RELEASED = auto()
    """It freed its model's memory in a pause, and loads it again by itself when the pause ends."""


class EngineChange(Enum):
    """What can happen to an engine."""

    FOUND = auto()
    """It answered, and holds its model."""
    FOUND_EMPTY = auto()
    """It answered, and cannot be used before a load."""
    SILENT = auto()
    ENDED = auto()
    LOAD = auto()
    LOADED = auto()
    NOT_LOADED = auto()
    """It could not be loaded now."""
    LOAD_FAILED = auto()
    UNLOADED = auto()
    RELEASED = auto()


_ALL = frozenset(Phase)
AWAY = frozenset({Phase.UNKNOWN, Phase.STALLED, Phase.RESTARTING})
"""Engines in these phases cannot be called; they may return."""
LOADABLE = frozenset({Phase.UNLOADED, Phase.LOADING, Phase.FAILED})

TRANSITIONS: dict[EngineChange, tuple[Phase, frozenset[Phase]]] = {
    EngineChange.FOUND: (Phase.PRESENT, _ALL - {Phase.LOADING}),
    EngineChange.FOUND_EMPTY: (Phase.UNLOADED, _ALL - LOADABLE),
    EngineChange.SILENT: (Phase.STALLED, _ALL - AWAY),
    EngineChange.ENDED: (Phase.RESTARTING, _ALL - {Phase.UNKNOWN}),
    EngineChange.LOAD: (Phase.LOADING, frozenset({Phase.UNLOADED, Phase.FAILED})),
    EngineChange.LOADED: (Phase.PRESENT, frozenset({Phase.UNLOADED, Phase.LOADING})),
    EngineChange.NOT_LOADED: (Phase.UNLOADED, frozenset({Phase.LOADING})),
    EngineChange.LOAD_FAILED: (Phase.FAILED, frozenset({Phase.LOADING})),
    EngineChange.UNLOADED: (Phase.UNLOADED, frozenset({Phase.PRESENT})),
    EngineChange.RELEASED: (Phase.RELEASED, _ALL),
}
"""Where each change leads, and from which phases.

From any other nothing changes: events of an engine arrive late, twice, or out of order.
"""


class EngineRecord:
    """An engine as the dispatcher knows it. Nothing else changes it."""

    def __init__(self, engine_id: str, stall_timeout_s: float) -> None:
        self.engine_id, self.stall_timeout_s = engine_id, stall_timeout_s
        self.phase = Phase.UNKNOWN
        self.attendance: Attendance | None = None
        """What it answered last."""
        self.described = False
        """Whether this ingress has read what its model is."""
        self.words_of = ""
        """The model file whose vocabulary this ingress reads its prompts with."""
        self._away_since_s = 0.0

    def advance(self, change: EngineChange) -> bool:
        """Apply a change; return whether the phase is another one now."""
        before, (after, befores) = self.phase, TRANSITIONS[change]
        self.phase = after if before in befores else before
        return self.phase is not before

    def lose(self, change: EngineChange, since_s: float) -> bool:
        """Record that it is away, since `since_s` if it was not already; return whether that is new."""
        was_away = self.phase in AWAY
        if not self.advance(change):
            return False
        if not was_away:
            self._away_since_s = since_s
        return True

    @property
    def present(self) -> bool:
        """Whether it takes requests, as far as is known."""
        return self.phase is Phase.PRESENT

    @property
    def incarnation_id(self) -> str:
        """The process that answered last; "" before that."""
        return "" if self.attendance is None else self.attendance.incarnation_id

    @property
    def model(self) -> str:
        """Identifies the model file that it serves."""
        return "" if self.attendance is None else self.attendance.model

    @property
    def lost_device(self) -> str:
        """The lost device that ended it, and why; "" for another cause."""
        return "" if self.attendance is None else self.attendance.lost

    def away_s(self, now_s: float) -> float | None:
        """Return for how many seconds it has been away; None while it is present, or before it ever was."""
        return now_s - self._away_since_s if self.phase in AWAY and self.attendance is not None else None

    def away(self, now_s: float) -> EngineState | None:
        """Return its state while it is away; None while it is present, or before it ever was."""
        if (down_s := self.away_s(now_s)) is None:
            return None
        status = EngineStatus.RESTARTING
        what = f"lost {self.lost_device} and ended" if self.lost_device else "ended"
        detail = f"the engine {what} {down_s:.1f} s ago and is being restarted"
        if self.phase is Phase.STALLED:
            status, detail = EngineStatus.STALLED, f"the engine has not answered for {down_s:.1f} s"
        return EngineState(status=status, down_s=down_s, detail=detail, engine_id=self.engine_id)
