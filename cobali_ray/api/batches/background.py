"""Responses in the background are computed, also if no client waits, by the handler of their endpoint.

The process that runs batches runs these, too. The events of one are in the store before a client reads
them, so the next process goes on behind the last of them. A response ends once, in the transaction that
writes its end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any, Final

import orjson
import structlog

from cobali_ray.api.batches.asking import MAX_ATTEMPTS, Asker, may_again
from cobali_ray.api.door.clock import ApiClock
from cobali_ray.api.door.faults import fault_of
from cobali_ray.api.door.keyring import Keyring
from cobali_ray.api.door.keys import Caller
from cobali_ray.api.door.quota import Quota
from cobali_ray.api.engines.apart import begin_apart
from cobali_ray.api.responses.frames import error_of
from cobali_ray.api.responses.routes import Responses
from cobali_ray.errors import EngineDiedError, RefusedError, StoreFailedError
from cobali_ray.store import responses
from cobali_ray.store.database import Store
from cobali_ray.store.lines import RESPONSES
from cobali_ray.store.responses import FAILED, BegunResponse, EventRow

MAX_RUNNING, MAX_OF_KEY = 32, 8
"""Responses that are computed at once, and those of one key among them; the others wait, the oldest first."""
MAX_BEGUN: Final = 5
"""By how many processes one response is begun: one that kills each of them must not go round for ever."""
PAUSE_S, MAX_PAUSE_S = 1.0, 10.0
RETRY_S: Final = 10.0

_log = structlog.get_logger(__name__)


class Background:
    """Of one process, on its event loop; the runner has it advance."""

    def __init__(
        self, store: Store, asker: Asker, responses: Responses, clock: ApiClock, keyring: Keyring
    ) -> None:
        self._store, self._asker, self._responses = store, asker, responses
        self._clock, self._keyring = clock, keyring
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._begun: dict[str, BegunResponse] = {}
        """Those that were begun here, as they were in the store."""
        self._paused_until_s = 0.0
        self._n_refused = Counter[str]()
        """How often each response was refused."""
        self._refused_until_s: dict[str, float] = {}
        """Until when nothing of a key is begun, because something of it was refused."""
        self._pending: list[tuple[str, EventRow | None, dict[str, Any] | None]] = []
        """What is to be written: of a response, events and its end."""
        self._recorded, self._written = asyncio.Event(), asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._batch: asyncio.Task[None] | None = None

    async def advance(self) -> None:
        """Stop what is over, and begin what there is room for."""
        if self._writing is None:
            self._writing = begin_apart(self._write_on())
        waiting = await self._store.alone(responses.waiting)
        ids = {response_id for response_id, _, _ in waiting}
        self._n_refused = Counter({id_: n for id_, n in self._n_refused.items() if id_ in ids})
        for response_id, task in self._tasks.items():
            if response_id not in ids:
                task.cancel()
        for response_id in self._begun.keys() - ids:
            del self._begun[response_id]
        n_of_key = Counter(owner for response_id, owner, _ in waiting if response_id in self._tasks)
        # Those that were refused are behind others, or they would take all places of their key.
        for response_id, owner, tenant in sorted(waiting, key=lambda row: self._n_refused[row[0]]):
            full = len(self._tasks) >= MAX_RUNNING or self._clock.now() < self._paused_until_s
            if full or response_id in self._tasks or n_of_key[owner] >= MAX_OF_KEY:
                continue
            if self._clock.now() < self._refused_until_s.get(owner, 0.0):
                continue
            quota = self._quota(owner, tenant)
            if quota is not None and quota.wait_s(self._clock.now()) > 0:
                n_of_key[owner] = MAX_OF_KEY  # all of the key wait for its tokens
                continue
            n_of_key[owner] += 1
            task = self._tasks[response_id] = begin_apart(self._compute(response_id))
            task.add_done_callback(partial(self._over, response_id))

    def _quota(self, owner: str, tenant: str) -> Quota | None:
        """Return what is left of a key's limits, by its terms of now; None where there is no such key."""
        terms = self._keyring.terms_of(tenant)
        return None if terms is None else self._keyring.quota(Caller(tenant, terms, owner))

    def _over(self, response_id: str, task: asyncio.Task[None]) -> None:
        del self._tasks[response_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            # The store failed, or a bug: it is begun again in the next round.
            _log.error("response_failed", response_id=response_id, error=str(error))
            self._paused_until_s = self._clock.now() + RETRY_S

    async def close(self) -> None:
        """Stop computing; what was written down is for the next process to go on from."""
        self._responses.bells.close()
        await self._stop()
        with suppress(StoreFailedError):
            await self._write()

    async def let_go(self) -> None:
        """Stop computing, and forget what is not written: another process goes on from what is."""
        await self._stop()
        self._pending.clear()
        self._begun.clear()

    async def _stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._writing is not None:
            self._writing.cancel()
            under_way = [task for task in (self._writing, self._batch) if task is not None]
            await asyncio.gather(*under_way, return_exceptions=True)
            self._writing = None

    async def _compute(self, response_id: str) -> None:
        if response_id not in self._begun:
            if (stored := await self._store.alone(responses.begin, response_id)) is None:
                return
            self._begun[response_id] = stored
        begun = self._begun[response_id]
        if (terms := self._keyring.terms_of(begun.tenant)) is None:
            _log.warning("response_without_key", response_id=begun.id, tenant=begun.tenant)
            await self._store(responses.cancel, begun.owner, begun.id)
            return
        if begun.n_begun > MAX_BEGUN:
            self._fail(begun, EngineDiedError())
            await self._flushed(begun.id)
            return
        compute = partial(self._responses.run, begun=begun, record=partial(self._record, begun.id))
        caller = Caller(begun.tenant, terms, begun.owner)

        def spend(n_tokens: int) -> None:
            if (quota := self._quota(begun.owner, begun.tenant)) is not None:
                quota.take(n_tokens, self._clock.now())

        for attempt in range(1, MAX_ATTEMPTS + 1):
            handler = partial(compute, attempt=attempt)
            result = await self._asker.ask(
                RESPONSES, begun.request, caller, handler=handler, id_=begun.id, spend=spend
            )
            if result.error is None:
                break
            if isinstance(result.error, RefusedError):
                pause_s = min(max(result.error.retry_after_s, PAUSE_S), MAX_PAUSE_S)
                self._n_refused[begun.id] += 1
                self._refused_until_s[begun.owner] = self._clock.now() + pause_s
                await self._store.alone(responses.put_back, begun.id)
                break
            if attempt == MAX_ATTEMPTS or not may_again(result.error):
                self._fail(begun, result.error)
                break
        await self._flushed(begun.id)

    async def _flushed(self, response_id: str) -> None:
        """Forget a response that is over, or was refused, once all that there is of it is in the store."""
        while any(pending_id == response_id for pending_id, *_ in self._pending):
            await self._written.wait()
        del self._begun[response_id]

    def _fail(self, begun: BegunResponse, error: Exception) -> None:
        body = orjson.loads(begun.body) | {"status": FAILED, "error": error_of(fault_of(error))}
        self._record(begun.id, None, body)

    def _record(self, response_id: str, row: EventRow | None, ended: dict[str, Any] | None) -> None:
        self._pending.append((response_id, row, ended))
        self._recorded.set()

    async def _write_on(self) -> None:
        """Write what comes, as much at once as came while the last was written."""
        while True:
            await self._recorded.wait()
            self._recorded.clear()
            self._batch = begin_apart(self._write())
            try:
                await asyncio.shield(self._batch)  # `_stop` waits for it
            except Exception as error:  # whatever it is, later answers are written
                _log.error("store_failed", error=str(error) or repr(error))
                await self._clock.sleep(RETRY_S)
                self._recorded.set()

    async def _write(self) -> None:
        """Write what came. Raises StoreFailedError, and then keeps it for the next time."""
        batch = self._pending[:]
        if not batch:
            return
        await self._store.alone(_write, batch)
        del self._pending[: len(batch)]
        self._written.set()
        self._written.clear()
        for response_id in {response_id for response_id, *_ in batch}:
            self._responses.bells.ring(response_id)


def _write(db: Any, batch: list[tuple[str, EventRow | None, dict[str, Any] | None]]) -> None:
    for response_id, row, ended in batch:
        if row is not None:
            responses.append(db, [row])
        if ended is not None:
            responses.end(db, response_id, ended)
