"""Router: which engine a request goes to, by the least predicted time to its first token. Pure.

    wait for a slot + seconds of prefill ahead of it + seconds for those of its own tokens that are not there

One number weighs load against prefixes: an engine that holds a conversation is worth a queue as long as the
prefill it saves, and no longer. What engines publish of their load is a little old; what this router has
sent there since is added to it. What they hold is this router's own history of what it sent, by the names of
blocks of 64 tokens, put right by what requests really found there.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cobali_ray.core.cache.host_tier import chain
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.core.views.stats import LoadView

BLOCK = 64
"""Tokens of a block: as many as host memory keeps together."""
LAG_S = 0.05
"""What was sent to an engine so shortly before its view came may not be in it."""
GUESS_S = 0.001
"""Seconds per prompt token where no engine can tell."""


def load_of(scheduler: Scheduler) -> LoadView:
    """Return what an engine publishes, from its scheduler between two ticks."""
    slots, queue, limits, texts = scheduler.slots, scheduler.queue, scheduler.limits, scheduler.texts
    pace = scheduler.pace()
    token_s = pace.token_s if pace else texts.token_s
    return LoadView(
        ahead=[(s.n_prefilled, len(s.tokens)) for s in (*slots.running, *queue) if not s.decoding],
        n_free=slots.n_idle - len(queue),
        slot_s=scheduler.stay_s / limits.n_slots,
        token_s=token_s,
        depth_s=pace.depth_s if pace else 0.0,
        n_kept=limits.n_cells + limits.n_host_cells,
        embed_s=texts.wait_s,
        paused=scheduler.paused,
    )


def names_of(tokens: Sequence[int], salt: str | None) -> list[bytes]:
    """Return the names of a prompt's whole blocks, each of which stands for all that is before it too.

    Names under one salt are never those under another; a prompt that shares with nobody (None) has none.
    """
    if salt is None:
        return []
    # Not the last token, which is always computed.
    return [name for end, name in chain(array("i", tokens), len(tokens) - 1, salt, BLOCK) if end]


class Route(NamedTuple):
    """Where a request goes, and what is expected there."""

    engine_id: str
    ttft_s: float
    """Predicted time to its first token."""
    n_held: int
    """Tokens of the prompt that the engine holds, as far as is known."""
    own_s: float
    """Predicted time for the others."""
    names: Sequence[bytes]
    """Those of the prompt's blocks."""


class _Booking(NamedTuple):
    engine_id: str
    booked_s: float
    own_s: float
    n_held: int


class _Pace(NamedTuple):
    """How fast an engine is."""

    token_s: float
    depth_s: float
    slot_s: float

    def prefill_s(self, start: int, end: int) -> float:
        return (end - start) * (self.token_s + self.depth_s * (start + end) / 2)


@dataclass(slots=True)
class _Engine:
    """What is known of one engine."""

    view: LoadView
    seen_s: float
    used_s: float = 0.0
    """When it was chosen last."""
    held: dict[bytes, None] = field(default_factory=dict)
    """Blocks sent there, those first that were needed longest ago. A block is never older here than those
    behind it, so that what is forgotten has nothing behind it."""
    since: dict[str, _Booking] = field(default_factory=dict)
    """Requests sent there that its view does not know of, in the order of time."""

    def ttft_s(self, own_s: float, now_s: float, pace: _Pace) -> float:
        """Return how long a prompt that takes `own_s` would wait for its first token.

        It is computed before longer ones, which let pass as much as they have left.
        """
        view = self.view
        ahead_s, at_s = sum(min(pace.prefill_s(*span), own_s) for span in view.ahead), self.seen_s
        ahead_s += min(view.embed_s, own_s)  # prompts and texts take turns
        for booking in self.since.values():
            ahead_s = max(ahead_s - (booking.booked_s - at_s), 0.0) + min(booking.own_s, own_s)
            at_s = booking.booked_s
        n_waiting = len(self.since) + 1 - view.n_free
        return max(n_waiting, 0) * pace.slot_s + max(ahead_s - (now_s - at_s), 0.0) + own_s

    def n_blocks(self, names: Sequence[bytes]) -> int:
        """Return how many of a prompt's blocks it holds, by bisection."""
        held, low, high = self.held, 0, len(names)
        while low < high:
            middle = (low + high + 1) // 2
            if names[middle - 1] in held:
                low = middle
            else:
                high = middle - 1
        return low

    def keep(self, names: Sequence[bytes]) -> None:
        """Note that it holds these from now on, and nothing that it has no room for."""
        held = self.held
        for name in reversed(names):
            held.pop(name, None)
            held[name] = None
        self.forget(len(held) - self.view.n_kept // BLOCK)

    def forget(self, n_blocks: int) -> None:
        """Forget so many blocks, those that were needed longest ago."""
        for name in [name for name, _ in zip(self.held, range(n_blocks), strict=False)]:
            del self.held[name]


class Router:
    """Chooses engines. Times are seconds on one clock, the caller's.

    router.published("a", load_of(scheduler), now_s)  # whenever an engine says how it is doing
    route = router.choose(prompt, salt, now_s)  # None: there is no engine
    router.booked(request_id, route, now_s)  # it is sent to route.engine_id
    router.released(request_id, n_cached)  # its first token is there
    router.released(request_id)  # it ended without a token; where it was refused, choose again without={"a"}
    router.left("a")  # the engine is gone, or starts anew
    """

    def __init__(self, handicaps: Mapping[str, float] | None = None) -> None:
        """`handicaps`: seconds that an engine must save a request, more than those without, to be chosen."""
        self._handicaps = handicaps or {}
        self._engines: dict[str, _Engine] = {}
        self._bookings: dict[str, _Booking] = {}

    def published(self, engine_id: str, view: LoadView, now_s: float) -> None:
        """Take an engine's view of its load; from the first one on it can be chosen."""
        engine = self._engines.get(engine_id)
        if engine is None:
            self._engines[engine_id] = _Engine(view, now_s)
            return
        engine.view, engine.seen_s = view, now_s
        engine.since = {i: b for i, b in engine.since.items() if b.booked_s > now_s - LAG_S}

    def left(self, engine_id: str) -> None:
        if self._engines.pop(engine_id, None) is None:
            return
        self._bookings = {i: b for i, b in self._bookings.items() if b.engine_id != engine_id}

    def choose(
        self,
        tokens: Sequence[int],
        salt: str | None,
        now_s: float,
        without: Collection[str] = (),
        common: Sequence[int] | None = None,
    ) -> Route | None:
        """Return the engine with the least predicted time to first token; equal ones take turns.

        One that is paused is only chosen where all are.
        `common`: the first of the tokens, where others of the salt can begin with these alone.
        """
        names, n = names_of(tokens if common is None else common, salt), len(tokens)
        # An engine that cannot tell is taken to be fast: otherwise a new one would never be measured.
        views = [engine.view for engine in self._engines.values()]
        token_s = min([view.token_s for view in views if view.token_s], default=GUESS_S)
        slot_s = min([view.slot_s for view in views if view.slot_s], default=0.0)
        best: tuple[bool, float, float] | None = None
        route = None
        for engine_id, engine in self._engines.items():
            if engine_id in without:
                continue
            view = engine.view
            pace = _Pace(view.token_s or token_s, view.depth_s, view.slot_s or slot_s)
            n_held = BLOCK * engine.n_blocks(names)
            own_s = pace.prefill_s(n_held, n)
            ttft_s = engine.ttft_s(own_s, now_s, pace)
            rank = (view.paused, ttft_s + self._handicaps.get(engine_id, 0.0), engine.used_s)
            if best is None or rank < best:
                best = rank
                route = Route(engine_id, ttft_s, n_held, own_s, names)
        return route

    def booked(self, request_id: str, route: Route, now_s: float) -> None:
        """Note that a request is sent to an engine, which will hold its prompt, and to no other."""
        self.released(request_id)
        if (engine := self._engines.get(route.engine_id)) is None:
            return
        booking = _Booking(route.engine_id, now_s, route.own_s, route.n_held)
        self._bookings[request_id] = engine.since[request_id] = booking
        engine.used_s = now_s
        engine.keep(route.names)

    def released(self, request_id: str, n_cached: int | None = None) -> None:
        """Note that a prompt is computed, or waits no longer; `n_cached` tokens of it were found there.

        If that is less than was expected, the engine keeps less than was thought: as many blocks are
        forgotten, and not all that are older than what was missed, since engines do not give up strictly by
        age. Engines that are not known are ignored.
        """
        if (booking := self._bookings.pop(request_id, None)) is None:
            return
        engine = self._engines[booking.engine_id]
        engine.since.pop(request_id, None)
        if n_cached is not None:
            engine.forget((booking.n_held - n_cached) // BLOCK)
