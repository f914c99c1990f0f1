"""What the devices of an engine are doing: asked in the background, as that may wait for a pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.devices import Devices
from cobali_ray.core.views.stats import DeviceView

FRESH_S = 1.0
"""A state younger than this is not updated."""


class DeviceWatch:
    """Returns the last known state, and has a thread ask for the next."""

    def __init__(self, devices: Devices, config: LlamaConfig) -> None:
        self._devices, self._config = devices, config
        self._views = devices.look()
        self._updated_s = time.monotonic()
        self._asking: threading.Thread | None = None

    def look(self) -> tuple[DeviceView, ...]:
        idle = self._asking is None or not self._asking.is_alive()
        if idle and self._views and time.monotonic() - self._updated_s >= FRESH_S:
            self._asking = threading.Thread(target=self._ask, daemon=True, name="devices")
            self._asking.start()
        return self._views

    def could_be_whole(self) -> bool:
        return bool(self._devices.missing) and self._devices.all_answer(self._config)

    def on_loss(self, report: Callable[[str], None]) -> None:
        if self._devices.loss is not None:
            self._devices.loss.report = report

    def _ask(self) -> None:
        views, now_s = self._devices.look(), time.monotonic()
        took_s, self._updated_s = now_s - self._updated_s, now_s
        if views:
            before = {view.name: view.busy_s for view in self._views}
            self._views = tuple(_with_share(view, before.get(view.name), took_s) for view in views)


def _with_share(view: DeviceView, before_s: float | None, took_s: float) -> DeviceView:
    if view.busy_s is None or before_s is None or took_s <= 0:
        return view
    return replace(view, busy_share=min(max((view.busy_s - before_s) / took_s, 0.0), 1.0))
