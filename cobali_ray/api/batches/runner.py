"""The runner: answers the lines of all batches with what live traffic leaves; and has `background.py` go on.

One of the ingresses has the store's lock and runs it; when that process ends, or loses the database, another
gets the lock and goes on. Nothing here must be remembered: a line without an answer in the store is asked
again.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import suppress
from typing import Any, Final

import orjson
import structlog

from cobali_ray.api.batches.asking import MAX_ATTEMPTS, Asker, LineResult, may_again
from cobali_ray.api.batches.background import Background
from cobali_ray.api.batches.turns import TEXTS_AT_ONCE, Candidate, Room, Turns
from cobali_ray.api.door.clock import ApiClock
from cobali_ray.api.door.keyring import Keyring
from cobali_ray.api.door.keys import Caller, Terms
from cobali_ray.api.engines.apart import begin_apart, until_set
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.core.request.request import MAX_PRIORITY
from cobali_ray.core.views.stats import LoadView
from cobali_ray.errors import (
    BatchStateError,
    CobaliError,
    RefusedError,
    StoreFailedError,
    why_of,
)
from cobali_ray.store import batches, chats, files, responses, streams
from cobali_ray.store.batches import AnsweredLine, BatchRecord, PendingLine
from cobali_ray.store.database import Store
from cobali_ray.store.lines import ANTHROPIC, EMBEDDINGS
from cobali_ray.store.states import BatchChange, BatchStatus

POLL_S: Final = 1.0
"""How often the store is looked at for what other processes wrote, and the lock tried."""
SWEEP_S: Final = 60.0
LOOKAHEAD: Final = 64
"""Lines that are read at once."""
MAX_RUNNING: Final = 4
"""Batches of one key whose lines are answered at the same time; the others wait, the oldest first."""
MAX_PAUSE_S: Final = 10.0

_log = structlog.get_logger(__name__)


class _Running:
    """A batch whose lines are being answered."""

    def __init__(self, batch: BatchRecord) -> None:
        self.batch = batch
        self.lines: deque[PendingLine] = deque()
        """The next ones."""
        self.read_to = 0
        """The turn of the last line that was read."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.attempts: dict[int, int] = {}
        """By turn, of lines that were tried in vain."""


class BatchRunner:
    """One per ingress, on its event loop."""

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        asker: Asker,
        clock: ApiClock,
        keyring: Keyring,
        background: Background,
    ) -> None:
        self._store, self._fleet, self._asker, self._clock = store, fleet, asker, clock
        self._keyring, self._terms_of = keyring, keyring.terms_of
        self._background = background
        self._running: dict[str, _Running] = {}
        self._turns = Turns()
        self._rooms: dict[tuple[str, bool], Room] = {}
        self._answered: list[tuple[str, AnsweredLine]] = []
        self._awake = asyncio.Event()
        self._swept_s: float | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._task = begin_apart(self._run())

    def wake(self) -> None:
        """Look at the store now."""
        self._awake.set()

    async def close(self) -> None:
        """Stop asking; what was answered is written, and the rest is left for the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._background.close()
        for running in self._running.values():
            await self._stop(running)
        with suppress(StoreFailedError):
            await self._write()

    async def _run(self) -> None:
        while not self._store.closed:
            if not await self._take_lock():
                await self._clock.sleep(POLL_S)
                continue
            while self._store.holds_lock:
                await self._turn()
            await self._let_go()

    async def _take_lock(self) -> bool:
        try:
            return await self._store.take_lock()
        except StoreFailedError as error:
            _log.error("store_failed", error=why_of(error.__cause__ or error))
            await self._clock.sleep(MAX_PAUSE_S)
            return False

    async def _turn(self) -> None:
        self._awake.clear()
        try:
            await self._round()
        except StoreFailedError as error:
            if self._store.closed:  # this process ends
                return
            _log.error("store_failed", error=why_of(error.__cause__ or error))
            if self._store.holds_lock:
                await self._clock.sleep(MAX_PAUSE_S)
        except Exception:  # a bug must not end all batches for good
            _log.exception("batches_failed")
            await self._clock.sleep(MAX_PAUSE_S)
        await until_set(self._awake, self._clock, POLL_S)

    async def _let_go(self) -> None:
        """Stop what another process may have begun. Answers are kept, and count for lines without one."""
        await self._background.let_go()
        for batch_id, running in list(self._running.items()):
            await self._stop(running)
            self._over(batch_id)

    async def _round(self) -> None:
        self._fill()  # from what was read before: no slot waits for the disk
        await self._write()
        await self._keyring.refresh()
        await self._background.advance()
        now_s = self._clock.now()
        if self._swept_s is None or now_s - self._swept_s >= SWEEP_S:
            self._swept_s = now_s
            for table in (batches, responses, chats, streams):
                await self._store(table.sweep, self._clock.unix())
        if await self._store(files.clear):
            self.wake()
        n_running = Counter[str]()
        for batch in await self._store.alone(batches.unfinished):
            n_running[batch.owner] += batch.status in {BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS}
            with suppress(BatchStateError):  # somebody has changed it meanwhile: next time
                await self._advance(batch, waits=n_running[batch.owner] > MAX_RUNNING)
        self._fill()

    # -- batches

    async def _advance(self, batch: BatchRecord, *, waits: bool) -> None:
        """Do what a batch needs in its state; with `waits` its turn to be read has not come."""
        now_s = self._clock.unix()
        if (running := self._running.get(batch.id)) is not None:
            running.batch = batch
        if batch.status is BatchStatus.CANCELLING:
            await self._give_up(batch, BatchChange.STOP)
        elif batch.status is BatchStatus.FINALIZING:
            await self._store(batches.finish, batch, now_s)
            self._over(batch.id)
        elif now_s >= batch.expires_s:
            await self._give_up(batch, BatchChange.EXPIRE)
        elif self._terms_of(batch.tenant) is None:
            _log.warning("batch_without_key", batch_id=batch.id, tenant=batch.tenant)
            await self._store(batches.cancel, batch.owner, batch.id, batch.format, now_s)
            self.wake()
        elif waits:
            return
        elif batch.status is BatchStatus.VALIDATING:
            if (started := await self._store(batches.start, batch, now_s)).status is BatchStatus.IN_PROGRESS:
                await self._read(started)
        else:
            await self._read(batch)

    async def _read(self, batch: BatchRecord) -> None:
        """Have the next lines at hand."""
        running = self._running.setdefault(batch.id, _Running(batch))
        running.batch = batch
        if not running.lines and not running.tasks and not self._answered:
            running.read_to = 0  # whatever is left was missed
        if len(running.lines) < LOOKAHEAD // 2:
            lines = await self._store(batches.pending, batch, running.read_to, LOOKAHEAD)
            running.lines.extend(lines)
            running.read_to = lines[-1].turn if lines else running.read_to

    async def _give_up(self, batch: BatchRecord, change: BatchChange) -> None:
        if (running := self._running.get(batch.id)) is not None:
            await self._stop(running)
            await self._write()
        await self._store(batches.give_up, batch, change, self._clock.unix())
        self._over(batch.id)

    async def _stop(self, running: _Running) -> None:
        running.lines.clear()
        tasks = list(running.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _over(self, batch_id: str) -> None:
        self._running.pop(batch_id, None)
        self._turns.forget(batch_id)

    async def _write(self) -> None:
        """Write what was answered. Raises StoreFailedError, and then keeps it for the next time."""
        answered = self._answered[:]
        by_batch: dict[str, list[AnsweredLine]] = {}
        for batch_id, line in answered:
            by_batch.setdefault(batch_id, []).append(line)
        for batch_id, lines in by_batch.items():
            await self._store(batches.answer, batch_id, lines, self._clock.unix())
        del self._answered[: len(answered)]

    # -- lines

    def _fill(self) -> None:
        """Begin as many lines as there is room for."""
        if len(self._answered) > LOOKAHEAD:  # they could not be written
            return
        while (candidate := self._turns.next(self._candidates())) is not None:
            running = self._running[candidate.batch_id]
            line = running.lines.popleft()
            room = self._room(self._served(line.model), running.batch)
            room.n_open += 1
            self._turns.begin(candidate)
            task = begin_apart(self._answer(running, line, candidate, room))
            running.tasks.add(task)
            task.add_done_callback(running.tasks.discard)

    def _candidates(self) -> list[Candidate]:
        now_s, candidates = self._clock.now(), []
        for running in self._running.values():
            batch = running.batch
            if not running.lines or batch.status is not BatchStatus.IN_PROGRESS:
                continue
            line, tenant = running.lines[0], batch.tenant
            served = self._served(line.model)
            views = self._views(served)
            if self._room(served, batch).free(views, now_s) > 0:
                terms = self._terms_of(tenant) or Terms()
                candidates.append(Candidate(batch.id, tenant, terms.weight, bool(views)))
        return candidates

    def _served(self, name: str) -> ServedModel | None:
        """Return the model that a line names; None where there is none, as the line's answer will say."""
        try:
            return self._fleet.find(name or None)
        except CobaliError:
            return None

    def _room(self, served: ServedModel | None, batch: BatchRecord) -> Room:
        """Return the room of a model, which is one whatever its lines call it."""
        key = ("" if served is None else served.plan.name, batch.endpoint == EMBEDDINGS)
        if key not in self._rooms:
            self._rooms[key] = Room(fixed=TEXTS_AT_ONCE if key[1] else None)
        return self._rooms[key]

    @staticmethod
    def _views(served: ServedModel | None) -> list[LoadView | None]:
        """Return the latest load of the engines of a model that are present."""
        if served is None:
            return [None]
        engines = served.dispatch.state.engines
        latest = [engines[engine_id].attendance for engine_id in served.present]
        return [None if attendance is None else attendance.busy for attendance in latest]

    async def _answer(self, running: _Running, line: PendingLine, candidate: Candidate, room: Room) -> None:
        batch = running.batch
        try:
            body = orjson.loads(line.data)["params" if batch.format == ANTHROPIC else "body"]
            result = await self._asker.ask(batch.endpoint, orjson.dumps(body), self._caller(batch))
        finally:
            room.n_open -= 1
            self._turns.end(candidate)
        if self._again(running, line, result, room):
            running.lines.appendleft(line)
        else:
            running.attempts.pop(line.turn, None)
            self._answered.append((batch.id, AnsweredLine(line.turn, line.custom_id, result.answer)))
        self.wake()

    def _again(self, running: _Running, line: PendingLine, result: LineResult, room: Room) -> bool:
        """Whether a line is to be tried once more: not where the line itself is at fault."""
        error = result.error
        if isinstance(error, RefusedError):
            room.paused_until_s = self._clock.now() + min(max(error.retry_after_s, POLL_S), MAX_PAUSE_S)
            return True
        running.attempts[line.turn] = running.attempts.get(line.turn, 0) + 1
        return error is not None and may_again(error) and running.attempts[line.turn] < MAX_ATTEMPTS

    def _caller(self, batch: BatchRecord) -> Caller:
        """Return the caller of a batch, in the last class unless a line asks for another."""
        terms = self._terms_of(batch.tenant) or Terms()
        update: dict[str, Any] = {"priority": MAX_PRIORITY, "best_priority": terms.best}
        return Caller(batch.tenant, terms.model_copy(update=update), batch.owner)
