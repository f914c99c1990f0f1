"""TickFeeder: an engine's feed of ticks, encoded on its event loop. Knows no Ray."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from contextlib import suppress
from typing import Any, Literal

from cobali_ray.backend.port import Words
from cobali_ray.core.clock import Clock
from cobali_ray.core.request.request import Request
from cobali_ray.core.views.stats import TickFeed
from cobali_ray.errors import CobaliError
from cobali_ray.telemetry.collector import RING, Collector
from cobali_ray.telemetry.feed import MAX_PROMPT_CHARS, feed_json, lives_json, ticks_json

SLICE = 32
"""Ticks made into JSON before the tick thread may have the interpreter."""


class TickFeeder:
    """Reads the collector's records. One per engine process; its `incarnation_id` tells it from the last."""

    def __init__(
        self,
        collector: Collector,
        clock: Clock,
        *,
        limits: dict[str, Any],
        itl_target_s: float | Literal["auto"] | None,
        words: Words | None = None,
    ) -> None:
        """`limits` are facts of the engine for readers; `words`, if given, shows prompts."""
        self.incarnation_id = uuid.uuid4().hex
        self._collector, self._clock, self._limits = collector, clock, limits
        self._words, self._itl_target = words, "off" if itl_target_s is None else "fixed"
        if isinstance(itl_target_s, str):
            self._itl_target, itl_target_s = itl_target_s, None
        self._itl_target_s = itl_target_s
        self._prompts: OrderedDict[str, str] = OrderedDict()

    def note(self, request: Request) -> None:
        """Keep the beginning of a prompt, where prompts may be shown."""
        if self._words is None:
            return
        with suppress(CobaliError):  # a text that cannot be shown harms nobody
            tokens = [token for token in request.prompt[:MAX_PROMPT_CHARS] if token >= 0]
            text = self._words.detokenize(tokens, special=True)
            self._prompts[request.request_id] = text[:MAX_PROMPT_CHARS]
        while len(self._prompts) > RING:
            self._prompts.popitem(last=False)

    async def read(self, last: int, since: int, before: int | None) -> TickFeed:
        """Return the newest `last` of the ticks `since .. before`, encoded."""
        seen = self._collector.seen(last, since, before)
        now_s, unix_s, lives = self._clock.now(), time.time(), seen.lives()
        parts = []
        for start in range(0, len(seen.ticks), SLICE):
            parts.append(ticks_json(seen.ticks[start : start + SLICE]))
            await asyncio.sleep(0)
        if self._itl_target == "auto":
            targets = (stats.target_s for stats in reversed(seen.ticks))
            self._itl_target_s = next(filter(None, targets), self._itl_target_s)
        head = {
            "engine": {
                "engine_id": self._collector.engine_id,
                "node": self._collector.node,
                "incarnation_id": self.incarnation_id,
                **self._limits,
                "itl_target": self._itl_target,
                "itl_target_s": self._itl_target_s,
            },
            "now_s": now_s,
            "unix_s": unix_s,
            "next": seen.next,
        }
        body = feed_json(head, parts, lives_json(lives, self._prompts))
        return TickFeed(self.incarnation_id, seen.next, body)
