"""EngineServer: one engine's process, as ingresses and Serve call it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import psutil
from prometheus_client.samples import Exemplar

from cobali_ray.actors.loaded_model import LoadedModel
from cobali_ray.actors.model_host import ModelHost
from cobali_ray.actors.open_requests import OpenRequests
from cobali_ray.actors.processes import began_at
from cobali_ray.actors.tracing import EngineTracer
from cobali_ray.actors.where import stay_here, where_am_i
from cobali_ray.actors.wire import Pusher
from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.core.request.request import Request
from cobali_ray.core.views.cache import CacheView, SlotMove
from cobali_ray.core.views.progress import Place, RequestView, view_of_life
from cobali_ray.core.views.stats import Attendance, EngineState, EngineStatus, LoadView, TickFeed
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.opening import MonotonicClock, chat_template, model_path, pin
from cobali_ray.errors import (
    BadRequestError,
    CobaliError,
    InternalError,
    QueueFullError,
    RefusedError,
    ReleasedError,
    UnloadedError,
)
from cobali_ray.settings import EngineSettings, listed
from cobali_ray.telemetry.log import configure_logging
from cobali_ray.telemetry.names import ONLY_ENGINE, HttpAnswer, HttpTime
from cobali_ray.telemetry.onlooker import Onlooker
from cobali_ray.telemetry.snapshot import Snapshot
from cobali_ray.telemetry.usage import usage_of

RETRY_S = 1.0
ATTEND_S = 1.0
"""How long an `attend` call stays open."""
CACHE_SETTINGS = (
    "n_slots", "n_ctx", "kv", "kv_cells", "min_prefix", "host_cache_mib", "state_cache_mib", "disk_cache_dir",
    "disk_cache_gib", "slot_save_path",
)  # fmt: skip
"""What bounds the cache."""
LAST_S = 0.5
"""How long a process that is about to end waits for its last answers to be sent."""
LOAD_S = 0.1
"""How long the tick thread may take to report its load, which it does between two ticks."""
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
        self._began_s, self._process_began = self._clock.now(), began_at(os.getpid())
        self._began_unix_s = time.time()
        self._incarnation_id, self._n_restarts = uuid.uuid4().hex, 0
        self._onlooker, self._tracer = Onlooker("engine"), EngineTracer.open(settings, engine_id)
        place = where_am_i()
        self._pusher, self._node = Pusher(engine_id, **place), place["host"]
        self._requests = OpenRequests(self._pusher, self._tracer, self._cancel)
        self._answers = Counter[HttpAnswer]()
        self._counted: dict[str, int] = {}
        """The number of what was counted last of each ingress, by its address."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._paused = self._draining = False
        """Also for a model that is loaded later."""
        self._lost, self._losing = "", asyncio.Event()
        """The device that was lost, and why; the calls by which ingresses keep in touch wait for that."""
        self._n_expanding = 0
        """Requests whose images are being looked at."""
        self._slot_pool = ThreadPoolExecutor(1, thread_name_prefix="slots")
        self._host = ModelHost(
            settings, self._path, self._clock, self._open_model, lambda: len(self._requests)
        )

    def _open_model(self) -> LoadedModel:
        model = LoadedModel(
            self._settings,
            self._path,
            self._clock,
            self._requests.publish,
            engine_id=self._engine_id,
            node=self._node,
            began_unix_s=self._began_unix_s,
        )
        if self._paused:
            model.loop.act(Engine.pause)
        if self._draining:
            model.loop.drain()
        model.devices.on_loss(self._lose)
        return model

    def _lose(self, what: str) -> None:
        """Report a lost device to all ingresses, before this process ends. Called by a thread."""
        self._lost = what
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._losing.set)
            time.sleep(LAST_S)

    # -- requests -------------------------------------------------------------------------------------

    async def run(self, request: Request | EmbeddingRequest) -> CobaliError | None:
        """Take a request and return when it has ended; its events go to `request.reply_to`.

        A refusal is returned, not raised: it is an answer, and Ray would log it as a failure. So is the error
        of one whose events did not get out.
        """
        if (model := self._host.model) is None:
            return ReleasedError() if self._host.released else UnloadedError()
        if request.request_id in self._requests:
            return InternalError(f"request id {request.request_id} is in use")
        try:
            with self._requests.opened(request.request_id) as outcome:
                if isinstance(request, Request) and request.images:
                    request = await self._expanded(model, request)
                model.loop.submit(request)
                if isinstance(request, Request):
                    self._onlooker.look(model.feeder.note, request)
                    if self._tracer is not None:
                        self._tracer.note(request)
                return await outcome
        except (RefusedError, BadRequestError) as refusal:
            return ReleasedError() if self._host.released else refusal
        except BaseException:  # cancelled, or broken: nobody listens to this request any more
            model.loop.cancel(request.request_id)
            raise
        finally:
            self._host.touch()

    async def _expanded(self, model: LoadedModel, request: Request) -> Request:
        """Return a request with the rows of its images. Raises RefusedError or BadRequestError."""
        limits = self._settings.limits
        full = self._n_expanding >= limits.max_queue + model.loop.state().n_slots
        if full and not request.attempt:  # else another engine has accepted it
            raise QueueFullError("requests", limits.max_queue, RETRY_S)
        self._n_expanding += 1
        try:
            return await asyncio.wrap_future(model.loop.expand(request))
        finally:
            self._n_expanding -= 1

    def _cancel(self, request_id: str) -> None:
        if (model := self._host.model) is not None:
            model.loop.cancel(request_id)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the running ones. Returns whether all ended in time."""
        self._draining = True
        if self._host.model is not None:
            self._host.model.loop.drain()
        return await self._requests.wait(timeout_s)

    # -- the model ------------------------------------------------------------------------------------

    async def load(self) -> CobaliError | None:
        return await self._host.load()

    async def unload(self) -> CobaliError | None:
        return await self._host.unload()

    async def pause(self) -> int:
        """Park running requests and begin none until `resume`; return how many are parked."""
        self._paused, model = True, self._host.model
        return 0 if model is None else await asyncio.wrap_future(model.loop.act(Engine.pause))

    async def release(self) -> int:
        """Do the same and free the model's memory; its requests wait in their ingresses."""
        n_parked = await self.pause()
        await self._host.release()
        return n_parked

    async def resume(self) -> int | CobaliError:
        """End the pause; return how many requests waited for it, or why the model cannot be loaded yet."""
        if (error := await self._host.regain()) is not None:
            return error
        self._paused, model = False, self._host.model
        return 0 if model is None else await asyncio.wrap_future(model.loop.act(Engine.resume))

    async def move_slot(self, action: str, slot_id: int, filename: str) -> SlotMove | CobaliError:
        """Save, restore or erase a slot. A refusal is returned, as by `run`."""
        if (model := self._host.model) is None:
            return UnloadedError()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._slot_pool, model.slot_files.act, action, slot_id, filename
            )
        except (BadRequestError, UnloadedError) as refusal:  # the latter if it was let go meanwhile
            return refusal
        finally:
            self._host.touch()

    # -- questions ------------------------------------------------------------------------------------

    async def describe(self) -> dict[str, Any]:
        """Return what an ingress needs to know of the model, and whoever looks of the process."""
        facts = self._host.facts
        return {
            "card": facts.card,
            "model": facts.identity,
            "path": self._path,
            "chat_template": self._chat_template,
            "pid": os.getpid(),
            "n_readers": self._pusher.n_readers,
            "runs": facts.runs or {},
        }

    async def attend(
        self,
        waited: dict[HttpTime, list[Exemplar]],
        previous: Attendance | None,
        address: str = "",
        answers: Mapping[HttpAnswer, int] = MappingProxyType({}),
        number: int = 0,
    ) -> Attendance:
        """Count an ingress's HTTP times, and answer after a second: the open call fails if this process dies.

        An ingress that does not know this engine yet is answered at once. All get the highest number of
        restarts that any of them knows. `address` is where this one receives events, `number` is the number
        of these counts: the same ones, sent again, are not counted twice.
        """
        self._host.unload_if_idle()
        self._host.reload_if_whole()
        me, model = self._incarnation_id, self._host.model
        if previous is not None:
            self._n_restarts = max(self._n_restarts, previous.n_restarts + (previous.incarnation_id != me))
        if number > self._counted.get(address, 0):
            self._counted[address] = number
            self._answers.update(answers)
            if waited and model is not None:
                model.loop.look(partial(model.collector.on_http, waited))
        knows_me = previous is not None and previous.incarnation_id == me
        wire_key = self._pusher.meet(address, known=knows_me)
        if knows_me:
            self._loop = asyncio.get_running_loop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._losing.wait(), ATTEND_S)
        return Attendance(
            me,
            self._n_restarts,
            loaded=self._host.model is not None,
            released=self._host.released,
            busy=None if self._lost else await self._busy(),
            wire_key=wire_key,
            model=self._host.facts.identity,
            pid=os.getpid(),
            up_s=self._clock.now() - self._began_s,
            began=self._process_began,
            lost=self._lost,
        )

    async def _busy(self) -> LoadView | None:
        """Ask the tick thread for its load; None after LOAD_S, since an answer must not wait for a tick."""
        if (model := self._host.model) is None:
            return None
        answer = asyncio.wrap_future(model.loop.ask(Engine.load_view))
        done, _ = await asyncio.wait({answer}, timeout=LOAD_S)
        return answer.result() if done and answer.exception() is None else None

    async def state(self) -> EngineState:
        model = self._host.model
        state = replace(
            self._host.state(), engine_id=self._engine_id, idle_s=self._host.idle_s, paused=self._paused
        )
        if model is None:
            return state
        devices = model.devices.look()
        missing = ", ".join(device.name for device in devices if not device.there)
        if missing and not state.detail:
            state = replace(state, detail=f"without {missing}{model.room and f', with {model.room}'}")
        return replace(state, devices=devices)

    async def snapshot(self) -> Snapshot | None:
        """Return the counters, to be rendered elsewhere; None without a model."""
        if (model := self._host.model) is None:
            return None
        # The loop knows of a tick under way; the collector gets it when it is over.
        age_s, usage = model.loop.state().last_tick_age_s, usage_of(psutil.Process(), "engine")
        seen, devices = model.collector.snapshot(), model.devices.look()
        return replace(seen, last_tick_age_s=age_s, usage=usage, devices=devices)

    async def http_answers(self) -> dict[HttpAnswer, int]:
        """Return the HTTP requests of all ingresses, which are counted here."""
        return dict(self._answers)

    async def cache(self) -> CacheView | UnloadedError:
        """Return what slots and host memory hold, and how often it was reused."""
        if (model := self._host.model) is None:
            return UnloadedError()
        view = await asyncio.wrap_future(model.loop.ask(Engine.cache_view))
        seen, settings = model.collector.snapshot(), self._settings.model_dump(mode="json")
        requests, tokens = seen.counters["prefix_requests"], seen.counters["prefix_tokens"]
        return replace(
            view,
            tier_requests={tier: int(n) for tier, n in requests.items()},
            tier_tokens={tier: int(n) for tier, n in tokens.items()},
            settings={name: settings[name] for name in CACHE_SETTINGS},
        )

    async def find(self, name: str, tenant: str) -> list[RequestView]:
        """Return the progress of a tenant's requests of this name; none without a model."""
        if (model := self._host.model) is None:
            return []
        lives = model.collector.find(name, tenant)
        places: dict[str, Place] = {}
        if any(life.state == "queued" for life in lives):
            places = await asyncio.wrap_future(model.loop.ask(Engine.places))
        now_s = self._clock.now()
        return [view_of_life(life, places.get(life.request_id), now_s) for life in lives]

    async def ticks(self, last: int, since: int, before: int | None) -> TickFeed | UnloadedError:
        """Return records of ticks and requests as JSON, made on this event loop."""
        if (model := self._host.model) is None:
            return UnloadedError()
        return await model.feeder.read(last, since, before)

    def check_health(self) -> None:
        """Fail when the tick thread died or a tick hangs, so that Serve replaces this replica."""
        if (model := self._host.model) is None:
            return
        if model.loop.failure is not None:
            raise InternalError(f"the engine failed: {model.loop.failure}")
        state = model.loop.state()
        if state.status is EngineStatus.STALLED:
            raise InternalError(f"the engine hangs: {state.detail}")

    def __del__(self) -> None:
        """Stop the loop; Serve calls this when the replica goes."""
        host = getattr(self, "_host", None)
        if host is not None:
            if host.model is not None:
                host.model.loop.stop(timeout_s=5.0)
            self._pusher.close()
        tracer = getattr(self, "_tracer", None)
        if tracer is not None:
            tracer.close()


def _see(gpus: str) -> None:
    """Have CUDA know these alone, by their place on the bus; it looks when the model is opened."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, listed(gpus)))
