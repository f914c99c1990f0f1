"""What looks on in an engine process: the collector, and the tick log where one is asked for."""

from __future__ import annotations

from contextlib import suppress

import structlog

from cobali_ray.core.views.stats import TickStats
from cobali_ray.telemetry.collector import Collector
from cobali_ray.telemetry.log import TickLog

_log = structlog.get_logger(__name__)


class Telemetry:
    """Hands everything to the collector, and ticks to their log as well. Called by the tick thread only."""

    def __init__(self, collector: Collector, tick_log: TickLog | None) -> None:
        self.collector, self._tick_log = collector, tick_log
        self.on_submit, self.on_embed, self.on_end = collector.on_submit, collector.on_embed, collector.on_end
        self.on_refusal, self.on_idle = collector.on_refusal, collector.on_idle

    def on_tick(self, stats: TickStats) -> None:
        """Count the tick, and write its line if asked to."""
        self.collector.on_tick(stats)
        if self._tick_log is None:
            return
        try:
            self._tick_log.write(stats)
        except (OSError, ValueError) as error:
            # Only the log is given up: if this raised, the tick thread would call no observer any more.
            tick_log, self._tick_log = self._tick_log, None
            facts = {"setting": "log_ticks", "file": str(tick_log.path), "error": str(error)}
            what = "no tick is written until the model is loaded anew; name a file on another disk"
            with suppress(OSError, ValueError):  # a disk that is full for one log may be so for the other
                _log.error("tick_log_stopped", **facts, detail=what)
            with suppress(OSError):
                tick_log.close()
