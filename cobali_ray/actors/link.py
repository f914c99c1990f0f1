"""EngineLink: keeps an `attend` call to an engine open, and sends its results to the dispatcher."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import grpc  # type: ignore[import-untyped]
import structlog
from prometheus_client.samples import Exemplar
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from cobali_ray.actors.processes import has_ended
from cobali_ray.core.dispatch.engines import EngineRecord
from cobali_ray.core.dispatch.messages import Attended, Event, Lost, Silent
from cobali_ray.errors import CobaliError, EngineDiedError, InternalError
from cobali_ray.telemetry.names import HttpAnswer, HttpTime

_log = structlog.get_logger(__name__)

SILENT_S: Final = 2.0
"""After so long without an answer an engine counts as away, though no call has failed."""
POLL_S: Final = 0.5
"""How often a silent engine is checked."""
RETRY_S: Final = 0.1
MAX_VALUES: Final = 10_000
"""Values of one histogram that may wait for an engine that is away."""


class EngineLink:
    """Keeps one call of the engine open, which its death fails at once, and which returns every second.

    With it go the HTTP requests that have ended here, and what their clients waited for: the engine counts
    those of all ingresses, so that each one's `/metrics` has the sums. What went with a call that failed goes
    again with the same number, so that an engine that had counted it does not count it twice.
    """

    def __init__(
        self,
        engine: Any,
        record: EngineRecord,
        on_event: Callable[[Event], None],
        *,
        address: str = "",
        admit: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`address`: of this ingress, for engines on other nodes; `admit` takes the key of such an engine."""
        self._engine, self._record, self._on_event, self._now = engine, record, on_event, now
        self._address, self._admit = address, admit
        self._values: dict[HttpTime, list[Exemplar]] = {}
        self._answers = Counter[HttpAnswer]()
        self._sent: tuple[dict[HttpTime, list[Exemplar]], dict[HttpAnswer, int]] | None = None
        """What goes with a call until one is answered, and its number."""
        self._number = 0
        self._call: asyncio.Future[Any] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running event loop; calling it again changes nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep())

    def close(self) -> None:
        """Close the open call."""
        if self._task is not None:
            self._task.cancel()

    def observe(self, name: HttpTime, waited: Exemplar) -> None:
        """Keep a value until the next call takes it along."""
        values = self._values.setdefault(name, [])
        if len(values) < MAX_VALUES:
            values.append(waited)

    def count(self, answer: HttpAnswer) -> None:
        """Keep the count of an ended HTTP request likewise."""
        self._answers[answer] += 1

    def ask_again(self) -> None:
        """Give up the open call, which counts as lost, and make another one."""
        if self._call is not None:
            self._call.cancel()

    async def _keep(self) -> None:
        while True:
            answered = False
            try:
                answered = await self._attend()
            except Exception:  # whatever was wrong with one answer, the next call must be made
                _log.exception("attend_failed", engine_id=self._record.engine_id)
            if not answered:
                await asyncio.sleep(RETRY_S)

    async def _attend(self) -> bool:
        """Make one call; return whether it was answered."""
        engine_id, began_s = self._record.engine_id, self._now()
        if self._sent is None:
            self._sent, self._number = (self._values, dict(self._answers)), self._number + 1
            self._values, self._answers = {}, Counter()
        values, answers = self._sent
        arguments = values, self._record.attendance, self._address, answers, self._number
        self._call = call = outcome(self._engine.attend.remote(*arguments))
        try:
            await self._answered(call, began_s)
        finally:
            call.cancel()
        error = EngineDiedError() if call.cancelled() else call.exception()
        if error is None:
            self._sent = None
            self._admit(call.result().wire_key)
            self._on_event(Attended(engine_id, call.result(), began_s))
        elif isinstance(error, EngineDiedError):  # or it is stopping, which cancels its calls
            self._on_event(Lost(engine_id))
        else:
            _log.error("attend_failed", engine_id=engine_id, error=str(error))
        return error is None

    async def _answered(self, call: asyncio.Future[Any], began_s: float) -> None:
        """Wait for an answer. Silence is counted in checks, so a halt of this process is none."""
        silent_s = 0.0
        while not call.done():
            await asyncio.wait({call}, timeout=POLL_S)
            silent_s += POLL_S
            if not call.done() and silent_s >= SILENT_S:
                self._on_event(Silent(self._record.engine_id, silent_s, began_s, self._has_ended()))

    def _has_ended(self) -> bool:
        """Return whether the engine's process has ended though no call failed; False on another machine."""
        last = self._record.attendance
        return last is not None and not last.wire_key and has_ended(last.pid, last.began)


def outcome(response: Any) -> asyncio.Task[Any]:
    """Wait for a Serve call; cancelling the wait cancels it. Raises EngineDiedError and InternalError."""
    waiting = asyncio.ensure_future(_outcome(response))
    waiting.add_done_callback(lambda done: response.cancel() if done.cancelled() else None)
    return waiting


async def _outcome(response: Any) -> Any:
    try:
        return await response
    except RayTaskError as error:
        if isinstance(error.cause, RayError):
            raise EngineDiedError from error
        raise InternalError(repr(error.cause)) from error
    except (RayError, RayServeException, grpc.RpcError) as error:
        raise EngineDiedError from error
    except CobaliError:
        raise
    except Exception as error:  # over gRPC, Serve raises what was raised there
        raise InternalError(repr(error)) from error
