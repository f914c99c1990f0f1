"""EngineServer: one process, one device, one EngineLoop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import uuid
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import structlog

from cobali_ray import __version__
from cobali_ray.actors.processes import began_at
from cobali_ray.actors.ticks import TickFeeder
from cobali_ray.actors.tracing import EngineTracer
from cobali_ray.actors.where import stay_here, where_am_i
from cobali_ray.actors.wire import Pusher
from cobali_ray.backend import memory
from cobali_ray.core.cache import CacheView, SlotMove
from cobali_ray.core.embedding import EmbeddingRequest
from cobali_ray.core.events import End, Word
from cobali_ray.core.request import Request
from cobali_ray.core.stats import Attendance, EngineState, EngineStatus, LoadView, ModelCard, TickFeed
from cobali_ray.engine.context import needed_bytes
from cobali_ray.engine.engine import Engine, Sink
from cobali_ray.engine.loop import EngineLoop, Observer
from cobali_ray.engine.opening import (
    MonotonicClock,
    chat_template,
    files_beside,
    model_hash,
    model_path,
    open_engine,
    pin,
    projector_path,
    runs_on,
)
from cobali_ray.engine.slot_files import SlotFiles
from cobali_ray.errors import (
    BadRequestError,
    CobaliError,
    EventsLostError,
    InternalError,
    ModelBusyError,
    ModelTooLargeError,
    NoRoomError,
    QueueFullError,
    RefusedError,
    UnloadedError,
)
from cobali_ray.settings import EngineSettings, listed
from cobali_ray.telemetry.collector import Collector
from cobali_ray.telemetry.log import TickLog, configure_logging
from cobali_ray.telemetry.names import ONLY_ENGINE, HttpTime
from cobali_ray.telemetry.observer import Telemetry
from cobali_ray.telemetry.onlooker import Onlooker
from cobali_ray.telemetry.snapshot import Snapshot
from cobali_ray.telemetry.usage import usage_of

_log = structlog.get_logger(__name__)

CLOSE_S = 30.0
"""How long a model may take to be let go."""
RETRY_S = 1.0
ATTEND_S = 1.0
"""How long the call stays open by which an ingress keeps in touch."""


CACHE_SETTINGS = (
    "n_slots", "n_ctx", "kv", "kv_cells", "min_prefix", "host_cache_mib", "disk_cache_dir", "disk_cache_gib",
    "slot_save_path",
)  # fmt: skip
"""What bounds the cache."""
LOAD_S = 0.1
"""How long the tick thread may take to say how busy it is: it answers between two ticks."""
SWITCH_S = 0.0005
"""How long another thread may keep the tick thread from the interpreter; Python's own is 5 ms. A tick calls
llama.cpp some fifteen times and asks for the interpreter after each."""


class EngineServer:
    """The engine as a Serve deployment. Plain Python: a test can just build it.

    A request is one open call of `run`, so that cancellation and death reach the right one by Ray's own
    means; its tokens travel apart, by one message per tick and ingress (see `wire`).
    """

    def __init__(self, settings: EngineSettings, engine_id: str = ONLY_ENGINE) -> None:
        about = {"engine_id": engine_id}
        # Serve buffers sys.stderr.
        configure_logging(level=settings.server.log_level, stream=sys.__stderr__, about=about)
        sys.setswitchinterval(SWITCH_S)
        stay_here()
        self._settings, self._engine_id = settings, engine_id
        if settings.processes.cores is not None:
            pin(settings.processes.cores)
        if settings.processes.gpus is not None:
            _see(settings.processes.gpus)
        self._path, self._chat_template = model_path(settings), chat_template(settings)
        self._clock = MonotonicClock()
        self._began_s = self._clock.now()
        self._process_began = began_at(os.getpid())
        self._telemetry: Telemetry | None = None
        self._done: dict[str, asyncio.Future[CobaliError | None]] = {}
        self._n_expanding = 0
        """Requests whose images are being looked at."""
        self._onlooker = Onlooker("engine")
        self._tracer = EngineTracer.open(settings, engine_id)
        self._n_restarts = 0
        self._answers_with = _identity(self._path)
        self._asyncio: asyncio.AbstractEventLoop | None = None
        place = where_am_i()
        self._pusher, self._node = Pusher(engine_id, **place), place["host"]
        self._lost: set[str] = set()
        """Open requests of which an event did not get out; of the tick thread."""
        self._incarnation_id = uuid.uuid4().hex
        self._slot_pool = ThreadPoolExecutor(1, thread_name_prefix="slots")
        self._load_pool = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._card: ModelCard | None = None
        self._runs: dict[str, Any] = {}
        """What a person who starts it wants to know, once the model is loaded."""
        self._loop = self._new_loop()
        self._turn, self._moves = asyncio.Lock(), set[asyncio.Task[CobaliError | None]]()
        self._used_s = self._clock.now()
        self._without = EngineState(status=EngineStatus.UNLOADED)
        """How things are while there is no model."""
        self._loaded = False
        if settings.processes.load == "eager":
            self._open_loop()

    def _new_loop(self) -> EngineLoop:
        """Return a loop that holds nothing yet and refuses all."""
        return EngineLoop(
            self._open,
            self._clock,
            self._publish,
            stall_timeout_s=self._settings.processes.stall_timeout_s,
            max_predicted_ttft_s=self._settings.limits.max_predicted_ttft_s,
        )

    def _open_loop(self) -> None:
        """Load the model and begin to tick. Blocks; raises what loading raises."""
        settings, loop = self._settings, self._new_loop()
        loop.start()
        loop.wait_open()
        self._slot_files = SlotFiles(
            loop, self._clock, settings.kept.slot_save_path, lambda: model_hash(settings, self._path)
        )
        self._loop, self._loaded, self._used_s = loop, True, self._clock.now()

    def _close_loop(self) -> None:
        """Give the model's memory back. Blocks."""
        loop, self._loop = self._loop, self._new_loop()
        loop.stop(timeout_s=CLOSE_S)
        self._telemetry = None
        del self._slot_files

    def _open(self, sink: Sink) -> tuple[Engine, Observer]:
        # Other files may lie there than when the process began.
        self._answers_with = _identity(self._path, projector_path(self._settings))
        engine = open_engine(self._settings, sink, clock=self._clock, path=self._path)
        backend, limits = engine.backend, engine.limits
        self._card = ModelCard(
            model_id=self._settings.names[0],
            n_vocab=backend.n_vocab,
            n_ctx_slot=limits.n_most,
            created_s=int(self._path.stat().st_mtime) if self._path else 0,
            description=f"{self._settings.model} on cobali_ray {__version__}",
            sampling=self._settings.sampling(backend.sampling),
            generates=backend.generates,
            embedding=None if backend.embedder is None else backend.embedder.kind,
            images=backend.projector is not None,
            adapters=backend.adapters,
        )
        collector = Collector(
            engine_id=self._engine_id,
            model_name=self._card.model_id,
            node=self._node,
            n_slots=limits.n_slots,
            n_cells=limits.n_cells,
            token_budget=limits.token_budget,
            n_ctx_slot=limits.n_ctx_slot,
            n_host_cells=limits.n_host_cells,
            cell_bytes=limits.cell_bytes,
            disk_bytes=self._settings.kept.disk_bytes,
            max_queue=limits.max_queue,
            max_queue_tokens=limits.max_queue_tokens,
            opened_at_s=time.time(),
            now=self._clock.now,
        )
        file = self._settings.log_ticks
        tick_log = TickLog(file, self._engine_id) if file else None
        self._telemetry = Telemetry(collector, tick_log)
        target_s = self._settings.itl_target_s
        self._feeder = TickFeeder(
            collector,
            self._clock,
            limits={
                "model": self._card.model_id,
                "n_slots": limits.n_slots,
                "n_cells": limits.n_cells,
                "n_ctx_slot": limits.n_ctx_slot,
                "token_budget": limits.token_budget,
                "overlaps": backend.overlaps,
                "limits": asdict(limits),
            },
            itl_target_s=0.0 if target_s == "auto" else target_s,
            words=backend.words if self._settings.log_prompts else None,
        )
        self._runs = {
            "n_ctx": limits.n_ctx_slot,
            "n_slots": limits.n_slots,
            "runs_on": runs_on(self._settings, self._path),
        }
        _log.info(
            "engine_open",
            model=self._card.model_id,
            n_slots=limits.n_slots,
            n_ctx=limits.n_ctx_slot,
            n_cells=limits.n_cells,
            token_budget=limits.token_budget,
            prefill_chunk=limits.prefill_chunk,
            selector=self._settings.selector,
        )
        return engine, self._telemetry

    # -- called over the Serve handle -------------------------------------------------------------------

    async def run(self, request: Request | EmbeddingRequest) -> CobaliError | None:
        """Take a request and return when it has ended; its events go to `request.reply_to`.

        A refusal is returned, not raised: it is an answer, and Ray would log it as a failure. So is the error
        of one whose events did not get out.
        """
        self._asyncio = asyncio.get_running_loop()
        if not self._loaded:
            return UnloadedError()
        if request.request_id in self._done:
            return InternalError(f"request id {request.request_id} is in use")
        done: asyncio.Future[CobaliError | None] = self._asyncio.create_future()
        self._done[request.request_id] = done
        try:
            if isinstance(request, Request) and request.images:
                request = await self._expanded(request)
            self._loop.submit(request)
            if isinstance(request, Request):
                self._onlooker.look(self._feeder.note, request)
                if self._tracer is not None:
                    self._tracer.note(request)
            return await done
        except (RefusedError, BadRequestError) as refusal:
            return refusal
        except BaseException:  # cancelled, or broken: nobody listens to this request any more
            self._loop.cancel(request.request_id)
            raise
        finally:
            del self._done[request.request_id]
            self._used_s = self._clock.now()

    async def _expanded(self, request: Request) -> Request:
        """Return a request with the rows that its images come to. Raises RefusedError or BadRequestError."""
        if self._n_expanding >= self._settings.limits.max_queue + self._settings.limits.n_slots:
            raise QueueFullError("requests", self._settings.limits.max_queue, RETRY_S)
        self._n_expanding += 1
        try:
            return await asyncio.wrap_future(self._loop.expand(request))
        finally:
            self._n_expanding -= 1

    async def load(self) -> CobaliError | None:
        """Load the model, unless it is there; return why it cannot be. Goes on if whoever asked has left."""
        return await asyncio.shield(self._in_turn(self._load()))

    async def unload(self) -> CobaliError | None:
        """Give the model's memory back, unless requests are open."""
        return await asyncio.shield(self._in_turn(self._unload()))

    def _in_turn(self, move: Coroutine[Any, Any, CobaliError | None]) -> asyncio.Task[CobaliError | None]:
        async def wait() -> CobaliError | None:
            async with self._turn:
                return await move

        task = asyncio.ensure_future(wait())
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)
        return task

    async def _load(self) -> CobaliError | None:
        if self._loaded:
            return None
        self._without = EngineState(status=EngineStatus.LOADING, detail="loading the model")
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._load_pool, self._check_room)
            await loop.run_in_executor(self._load_pool, self._open_loop)
        except (NoRoomError, ModelTooLargeError) as refusal:
            self._without = EngineState(status=EngineStatus.UNLOADED, detail=str(refusal))
            return refusal
        except Exception as error:
            self._without = EngineState(status=EngineStatus.FAILED, detail=str(error))
            return error if isinstance(error, CobaliError) else InternalError(repr(error))
        return None

    def _check_room(self) -> None:
        """Refuse a model that Linux would kill for. What a GPU holds is llama.cpp's to find out."""
        n_bytes, most = needed_bytes(self._settings, self._path), memory.most_bytes()
        n_bytes += sum(path.stat().st_size for path in files_beside(self._settings, self._path))
        if most is not None and n_bytes > most:
            raise ModelTooLargeError(n_bytes, most)
        free = memory.available_bytes()
        if free is not None and n_bytes > free:
            raise NoRoomError(n_bytes, free)

    async def _unload(self) -> CobaliError | None:
        if not self._loaded:
            return None
        if self._done:
            return ModelBusyError(len(self._done))
        self._loaded, self._without = False, EngineState(status=EngineStatus.UNLOADED)
        await asyncio.get_running_loop().run_in_executor(self._load_pool, self._close_loop)
        return None

    def _unload_if_idle(self) -> None:
        most_s = self._settings.processes.keep_alive_s
        if most_s is not None and self._loaded and self._idle_s > most_s:
            _log.info("let_go", idle_s=round(self._idle_s, 1))
            self._in_turn(self._unload())

    @property
    def _idle_s(self) -> float:
        return 0.0 if self._done else self._clock.now() - self._used_s

    async def describe(self) -> dict[str, Any]:
        """Return what an ingress needs to know: id, process and readers, and the model."""
        return {
            "engine_id": self._engine_id,
            "card": self._card,
            "path": self._path,
            "chat_template": self._chat_template,
            "pid": os.getpid(),
            "n_readers": self._pusher.n_readers,
            "runs": self._runs,
        }

    async def attend(
        self, waited: dict[HttpTime, list[float]], known: Attendance | None, address: str = ""
    ) -> Attendance:
        """Count what an ingress's clients waited for, and answer after a second: an open call shows a death.

        Whoever does not know this engine yet is answered at once. The most restarts that any ingress knows of
        are what all of them hear. `address` is where this one hears engines.
        """
        self._unload_if_idle()
        me = self._incarnation_id
        if known is not None:
            self._n_restarts = max(self._n_restarts, known.n_restarts + (known.incarnation_id != me))
        if waited and self._telemetry is not None:
            self._loop.look(partial(self._telemetry.collector.on_http, waited))
        knows_me = known is not None and known.incarnation_id == me
        wire_key = self._pusher.meet(address, known=knows_me)
        if knows_me:
            await asyncio.sleep(ATTEND_S)
        return Attendance(
            me,
            self._n_restarts,
            loaded=self._loaded,
            busy=await self._busy(),
            wire_key=wire_key,
            model=self._answers_with,
            pid=os.getpid(),
            up_s=self._clock.now() - self._began_s,
            began=self._process_began,
        )

    async def _busy(self) -> LoadView | None:
        """Ask the tick thread how busy it is; not for long, since an answer must not wait for a tick."""
        if not self._loaded:
            return None
        answer = asyncio.wrap_future(self._loop.ask(Engine.load))
        done, _ = await asyncio.wait({answer}, timeout=LOAD_S)
        return answer.result() if done and answer.exception() is None else None

    async def state(self) -> EngineState:
        """Say how the engine is doing."""
        state = self._loop.state() if self._loaded else self._without
        return replace(state, engine_id=self._engine_id, idle_s=self._idle_s)

    async def snapshot(self) -> Snapshot | None:
        """Return the counters, for whoever renders them."""
        if self._telemetry is None:
            return None
        # The loop knows of a tick under way; the collector hears of it when it is over.
        age_s = self._loop.state().last_tick_age_s
        usage = usage_of(psutil.Process(), "engine")
        return replace(self._telemetry.collector.snapshot(), last_tick_age_s=age_s, usage=usage)

    async def cache(self) -> CacheView | None:
        """Return what slots and host memory hold, and what it was good for; None without a model."""
        if not self._loaded:
            return None
        view = await asyncio.wrap_future(self._loop.ask(Engine.cache_view))
        if self._telemetry is None:
            return view
        seen, settings = self._telemetry.collector.snapshot(), self._settings.model_dump(mode="json")
        return replace(
            view,
            tier_requests=seen.tier_requests,
            tier_tokens=seen.tier_tokens,
            settings={name: settings[name] for name in CACHE_SETTINGS},
        )

    async def move_slot(self, action: str, slot_id: int, filename: str) -> SlotMove | CobaliError:
        """Save, restore or erase a slot. A refusal is returned, as by `run`."""
        if not self._loaded:
            return UnloadedError()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._slot_pool, self._slot_files.act, action, slot_id, filename
            )
        except BadRequestError as refusal:
            return refusal

    async def ticks(self, last: int, since: int, before: int | None) -> TickFeed | None:
        """Return records of ticks and requests as JSON, made on this event loop; None without a model."""
        if not self._loaded:
            return None
        return await self._feeder.read(last, since, before)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the running ones. Returns whether all ended in time."""
        self._loop.drain()
        if self._done:
            await asyncio.wait(self._done.values(), timeout=timeout_s)
        return not self._done

    def check_health(self) -> None:
        """Fail when the tick thread died or a tick hangs, so that Serve replaces this replica."""
        if self._loop.failure is not None:
            raise InternalError(f"the engine failed: {self._loop.failure}")
        state = self._loop.state()
        if state.status is EngineStatus.STALLED:
            raise InternalError(f"the engine hangs: {state.detail}")

    def __del__(self) -> None:
        """Stop the loop; Serve calls this when the replica goes."""
        loop = getattr(self, "_loop", None)
        if loop is not None:
            loop.stop(timeout_s=5.0)
            self._pusher.close()
        tracer = getattr(self, "_tracer", None)
        if tracer is not None:
            tracer.close()

    # -- called by the tick thread ----------------------------------------------------------------------

    def _publish(self, batch: list[tuple[str, Word]]) -> None:
        try:
            # After a gap nothing more is said: no answer looks whole that is not.
            whole = [(to, e) for to, e in batch if e.request_id not in self._lost] if self._lost else batch
            lost = self._pusher.send(whole)
            self._lost |= lost
            for request_id in lost:
                self._loop.cancel(request_id)
        finally:
            if ended := [event for _, event in batch if isinstance(event, End)]:
                gaps = self._lost.intersection(end.request_id for end in ended)
                self._lost -= gaps
                self._say_ended(ended, gaps)

    def _say_ended(self, ended: list[End], gaps: set[str]) -> None:
        if self._asyncio is not None:
            # RuntimeError: the event loop is closed, so nobody waits any longer.
            with contextlib.suppress(RuntimeError):
                self._asyncio.call_soon_threadsafe(self._finish, ended, gaps, time.time_ns())

    def _finish(self, ended: list[End], gaps: set[str], ended_ns: int) -> None:
        for end in ended:
            done = self._done.get(end.request_id)
            if done is not None and not done.done():
                done.set_result(EventsLostError() if end.request_id in gaps else None)
        if self._tracer is not None:
            for end in ended:
                self._tracer.end(end, ended_ns)


def _see(gpus: str) -> None:
    """Have CUDA know these alone, by their place on the bus; it looks when the model is opened."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, listed(gpus)))


def _identity(*paths: Path | None) -> str:
    """Return what tells a model's files from others, without reading them."""
    stats = [(path.name, path.stat()) for path in paths if path is not None]
    return ", ".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats) or "scripted"
