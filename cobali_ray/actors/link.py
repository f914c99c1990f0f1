"""EngineLink: what an ingress knows of whether its engine is there, and what it tells it of its clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import structlog

from cobali_ray.actors.outcome import outcome
from cobali_ray.actors.processes import has_ended
from cobali_ray.core.stats import Attendance, EngineState, EngineStatus, LoadView
from cobali_ray.errors import EngineDiedError, LoadingError
from cobali_ray.telemetry.names import HttpTime
from cobali_ray.telemetry.presence import Presence

_log = structlog.get_logger(__name__)

SILENT_S: Final = 2.0
"""After so long without an answer an engine counts as away, though nobody said that it ended."""
LOOK_S: Final = 0.5
"""How often an engine that is silent is looked at."""
BACK_S: Final = 60.0
"""How long a request waits for an engine that is away."""
AGAIN_S: Final = 0.1
MOST_VALUES: Final = 10_000
"""Values of one histogram that may wait for an engine that is away."""


class _Loss(NamedTuple):
    status: EngineStatus
    since_s: float


class EngineLink:
    """Keeps one call of the engine open, which its death fails at once, and which returns every second.

    With it go the values that clients of this process waited for: the engine counts those of all ingresses,
    so that they add up in whichever `/metrics` one asks. `now` is a monotonic clock. An engine that is silent
    for `stall_timeout_s` is given up: `give_up` is called with what is known of it.

    An engine on another node is told the `address` where this ingress hears it; `admit` gets the key by which
    it is known there.
    """

    def __init__(
        self,
        engine: Any,
        engine_id: str,
        now: Callable[[], float],
        on_successor: Callable[[bool], None],
        *,
        stall_timeout_s: float,
        give_up: Callable[[Attendance], None],
        address: str = "",
        admit: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_successor` hears of what has taken the engine's place: whether it has the same model."""
        self._engine, self._engine_id, self._now = engine, engine_id, now
        self._stall_timeout_s, self._give_up = stall_timeout_s, give_up
        self._on_successor, self._address, self._admit = on_successor, address, admit
        self._log = _log.bind(engine_id=engine_id)
        self._values: dict[HttpTime, list[float]] = {}
        self._known: Attendance | None = None
        self._loss: _Loss | None = None
        self.busy: tuple[LoadView, float] | None = None
        """How busy the engine was when it said so last, and when that was; None: it has not."""
        self._lost, self._there = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to keep in touch, on the running event loop; again is fine."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep())

    def close(self) -> None:
        """Let go."""
        if self._task is not None:
            self._task.cancel()

    def observe(self, name: HttpTime, seconds: float) -> None:
        """Keep a value until the next call takes it along."""
        values = self._values.setdefault(name, [])
        if len(values) < MOST_VALUES:
            values.append(seconds)

    @property
    def incarnation_id(self) -> str:
        """The process that the engine was when it was last heard of; "" before that."""
        return "" if self._known is None else self._known.incarnation_id

    def end(self, incarnation_id: str) -> None:
        """Note that a process is gone; it may have a successor already, who is none the worse for it."""
        if incarnation_id == self.incarnation_id:
            self.lose(EngineStatus.RESTARTING)

    def lose(self, status: EngineStatus, since_s: float | None = None) -> None:
        """Note that the engine is away: RESTARTING once it has ended, STALLED while it is merely silent."""
        if self._known is None or (self._loss is not None and self._loss.status is status):
            return
        since_s = self._now() if since_s is None else since_s
        self.busy = None
        self._loss = _Loss(status, since_s if self._loss is None else self._loss.since_s)
        self._lost.set()
        self._there.clear()
        self._log.warning("engine_away", status=status)

    async def ask(self, response: Any, within_s: float | None = SILENT_S) -> Any:
        """Await a call, a short one if nothing is said.

        Raises EngineDiedError as soon as the engine is away, and after `within_s`.
        """
        call, lost = asyncio.ensure_future(outcome(response)), asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait({call, lost}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            if not call.done() or call.cancelled():
                raise EngineDiedError
            return call.result()
        finally:
            call.cancel()
            lost.cancel()

    async def find(self) -> Attendance:
        """Wait until the engine is there; return what is known of it. Raises LoadingError after BACK_S."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BACK_S):
                while self._known is None or self._loss is not None:
                    await self._there.wait()
                return self._known
        raise LoadingError

    @property
    def away(self) -> EngineState | None:
        """How things stand while the engine is away; None while it is there, or was never."""
        if self._loss is None:
            return None
        status, since_s = self._loss
        down_s = self._now() - since_s
        detail = f"the engine ended {down_s:.1f} s ago and is being restarted"
        if status is EngineStatus.STALLED:
            detail = f"the engine has not answered for {down_s:.1f} s"
        return EngineState(status=status, down_s=down_s, detail=detail, engine_id=self._engine_id)

    @property
    def loaded(self) -> bool:
        """Whether the engine held its model when it was last heard of; so it does before that."""
        return self._known is None or self._known.loaded

    def note_loaded(self) -> None:
        """Know at once what the next answer would tell."""
        if self._known is not None:
            self._known = self._known._replace(loaded=True)

    @property
    def presence(self) -> Presence:
        """What `/metrics` says of it."""
        away = self.away
        return Presence(
            engine_id=self._engine_id,
            up=self._known is not None and away is None,
            down_s=0.0 if away is None else away.down_s,
            n_restarts=0 if self._known is None else self._known.n_restarts,
        )

    @property
    def source(self) -> str:
        """The key of the engine that a request goes to now; "" where that is not known, or it needs none."""
        return "" if self._known is None or self._loss is not None else self._known.wire_key

    async def _keep(self) -> None:
        while True:
            began_s, (taken, self._values) = self._now(), (self._values, {})
            call = asyncio.ensure_future(
                outcome(self._engine.attend.remote(taken, self._known, self._address))
            )
            try:
                if not await _answered(call, SILENT_S):
                    await self._outlast(call, began_s)
            finally:
                call.cancel()
            error = EngineDiedError() if call.cancelled() else call.exception()
            if error is None:
                self._met(call.result(), began_s)
                continue
            if isinstance(error, EngineDiedError):  # or it was told to stop, which cancels its calls
                self.lose(EngineStatus.RESTARTING)
            else:
                self._log.error("attend_failed", error=str(error))
            for name, values in taken.items():
                self._values[name] = (values + self._values.get(name, []))[:MOST_VALUES]
            await asyncio.sleep(AGAIN_S)

    async def _outlast(self, call: asyncio.Future[Any], began_s: float) -> None:
        """Wait for an answer that is late; give up an engine that was there and is silent for too long."""
        if self._loss is None:
            self.lose(EngineStatus.RESTARTING if self._has_ended() else EngineStatus.STALLED, began_s)
            answered = await _answered(call, self._stall_timeout_s - SILENT_S)
            if not answered and self._known is not None and not self._has_ended():
                self._log.error("engine_given_up", silent_s=self._stall_timeout_s)
                self._give_up(self._known)
        if not call.done():  # asked anew, as its successor may be there
            call.cancel()
            await asyncio.wait({call})

    def _has_ended(self) -> bool:
        """Say whether the engine's process is gone though no call failed; of another machine's, say no."""
        return (
            self._known is not None
            and not self._known.wire_key
            and has_ended(self._known.pid, self._known.began)
        )

    def _met(self, found: Attendance, asked_s: float) -> None:
        """Take the answer to a call that began at `asked_s`: the engine is there, and may be another one."""
        if found.incarnation_id != self.incarnation_id and found.up_s < self._now() - asked_s:
            # It began after its predecessor had answered, which was not replaced, then: it died just as it
            # was called, and Serve sent the call to this one instead.
            self.lose(EngineStatus.RESTARTING, asked_s)
        if self._loss is not None:
            away_s = round(self._now() - self._loss.since_s, 3)
            self._log.info("engine_back", away_s=away_s, n_restarts=found.n_restarts)
        self._admit(found.wire_key)
        known, self._known, self._loss = self._known, found, None
        if found.busy is not None:
            self.busy = found.busy, self._now()
        self._lost.clear()
        self._there.set()
        if known is not None and (known.incarnation_id, known.model) != (found.incarnation_id, found.model):
            self._on_successor(known.model == found.model)


async def _answered(call: asyncio.Future[Any], within_s: float) -> bool:
    """Wait for an answer; looks are counted: time in which this process stood still itself is no silence."""
    waited_s = 0.0
    while not call.done() and waited_s < within_s:
        look_s = min(LOOK_S, within_s - waited_s)
        await asyncio.wait({call}, timeout=look_s)
        waited_s += look_s
    return call.done()
