"""LoadedModel: a model in memory, with all that was opened for it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import structlog

from cobali_ray import __version__
from cobali_ray.actors.placing import has_room, placed_workers
from cobali_ray.actors.ticks import TickFeeder
from cobali_ray.backend.port import DeviceWatcher
from cobali_ray.core.clock import Clock
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.views.stats import ModelCard
from cobali_ray.engine.engine import Engine, Sink
from cobali_ray.engine.loop import EngineLoop, Observer
from cobali_ray.engine.opening import model_hash, open_engine, projector_path, runs_on
from cobali_ray.engine.slot_files import SlotFiles
from cobali_ray.errors import CobaliError
from cobali_ray.models.files import parts_of
from cobali_ray.settings import EngineSettings
from cobali_ray.telemetry.collector import Collector
from cobali_ray.telemetry.log import TickLog

_log = structlog.get_logger(__name__)

CLOSE_S = 30.0
"""How long a model may take to be let go."""


class ModelFacts(NamedTuple):
    """What other processes know of a model."""

    identity: str
    """Identifies its files."""
    card: ModelCard | None = None
    """None: it was never opened."""
    runs: Mapping[str, object] | None = None
    """What a person who starts it wants to know."""


class LoadedModel:
    """An engine's tick loop, its telemetry, and the files of its slots."""

    facts: ModelFacts
    collector: Collector
    feeder: TickFeeder
    devices: DeviceWatcher
    room: str
    """In words, what the model got less of than the settings ask for; "" if it got everything."""

    def __init__(
        self,
        settings: EngineSettings,
        path: Path | None,
        clock: Clock,
        publish: Sink,
        *,
        engine_id: str,
        node: str,
        began_unix_s: float,
    ) -> None:
        """Load the model and begin to tick. Blocks; raises what loading raises.

        `began_unix_s` is when the process began: loading a model once more is no restart.
        """
        self._settings, self._path, self._clock = settings, path, clock
        self._engine_id, self._node, self._began_unix_s = engine_id, node, began_unix_s
        self._held = contextlib.ExitStack()
        """What must outlive the model."""
        self.loop = EngineLoop(
            self._open,
            clock,
            publish,
            stall_timeout_s=settings.processes.stall_timeout_s,
            max_predicted_ttft_s=settings.limits.max_predicted_ttft_s,
        )
        self.loop.start()
        self.loop.wait_open()
        self.slot_files = SlotFiles(
            self.loop, clock, settings.kept.slot_save_path, lambda: model_hash(settings, path)
        )

    def close(self, last_word: CobaliError | None = None) -> None:
        """Free its memory; open requests end with `last_word`. Blocks."""
        self.loop.stop(timeout_s=CLOSE_S, last_word=last_word)
        self._held.close()

    def could_be_whole(self) -> bool:
        """Whether a device is missing that could be had by now. Blocks for a few seconds."""
        missing = [view.name for view in self.devices.look() if not view.there]
        return self.devices.could_be_whole() and has_room(self._settings.llama, missing)

    def _open(self, sink: Sink) -> tuple[Engine, Observer]:
        settings, path = self._settings, self._path
        # Other files may lie there than when the process began.
        identity = identity_of(path, projector_path(settings))
        log: TickLog | None = None
        with contextlib.ExitStack() as held:
            if settings.log_ticks is not None:  # before the model, which would stay in memory if this failed
                log = held.enter_context(contextlib.closing(TickLog(settings.log_ticks, self._engine_id)))
            placed = held.enter_context(placed_workers(settings.llama))
            engine = open_engine(settings, sink, clock=self._clock, path=path, placed=placed)
            self._held = held.pop_all()
        limits = engine.limits
        runs = {
            "n_ctx": limits.n_ctx_slot, "n_slots": limits.n_slots, "runs_on": runs_on(settings, path),
        }  # fmt: skip
        card = _card(engine, settings, path)
        self.facts = ModelFacts(identity, card, runs)
        self.collector = self._collector(engine, log)
        self.feeder = self._feed(engine)
        self.devices, self.room = engine.backend.devices, _room(limits, settings)
        _log.info(
            "engine_open",
            model=card.model_id,
            n_slots=limits.n_slots,
            n_ctx=limits.n_ctx_slot,
            n_cells=limits.n_cells,
            token_budget=limits.token_budget,
            prefill_chunk=limits.prefill_chunk,
            selector=settings.selector,
        )
        return engine, self.collector

    def _collector(self, engine: Engine, log: TickLog | None) -> Collector:
        return Collector(
            engine.limits,
            engine_id=self._engine_id,
            model_name=self._settings.names[0],
            node=self._node,
            disk_bytes=self._settings.kept.disk_bytes,
            began_unix_s=self._began_unix_s,
            tick_log=log,
            now=self._clock.now,
        )

    def _feed(self, engine: Engine) -> TickFeeder:
        limits = engine.limits
        return TickFeeder(
            self.collector,
            self._clock,
            limits={
                "model": self._settings.names[0],
                "n_slots": limits.n_slots,
                "n_cells": limits.n_cells,
                "n_ctx_slot": limits.n_ctx_slot,
                "token_budget": limits.token_budget,
                "overlaps": engine.backend.overlaps,
                "limits": asdict(limits),
            },
            itl_target_s=self._settings.itl_target_s,
            words=engine.backend.words if self._settings.log_prompts else None,
        )


def _room(limits: EngineLimits, settings: EngineSettings) -> str:
    n_slots, n_cells = settings.limits.n_slots, settings.llama.kv_cells
    if n_slots != "auto" and limits.n_slots < n_slots:
        return f"{limits.n_slots} of {n_slots} slots"
    return f"{limits.n_cells} of {n_cells} KV cells" if n_cells and limits.n_cells < n_cells else ""


def _card(engine: Engine, settings: EngineSettings, path: Path | None) -> ModelCard:
    backend = engine.backend
    return ModelCard(
        model_id=settings.names[0],
        n_vocab=backend.n_vocab,
        n_ctx_slot=engine.limits.n_most,
        created_s=int(path.stat().st_mtime) if path else 0,
        description=f"{settings.model} on cobali_ray {__version__}",
        size_bytes=sum((path.parent / part).stat().st_size for part in parts_of(path.name)) if path else 0,
        sampling=settings.sampling(backend.sampling),
        generates=backend.generates,
        reuse=engine.reuse if backend.generates else None,
        embedding=None if backend.embedder is None else backend.embedder.kind,
        images=backend.projector is not None,
        adapters=backend.adapters,
    )


def identity_of(*paths: Path | None) -> str:
    """Return an identity of a model's files, without reading them."""
    stats = [(path.name, path.stat()) for path in paths if path is not None]
    return ", ".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats) or "scripted"
