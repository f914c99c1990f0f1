"""What the KV cache and host memory hold, to be shown. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cobali_ray.core.request.sequence import Sequence
from cobali_ray.core.scheduler import Scheduler


class SlotView(NamedTuple):
    """One slot. Counts are tokens."""

    slot_id: int
    n_tokens: int
    """What it holds."""
    request_id: str | None = None
    """The request in it; None: it is idle, and the fields below mean nothing."""
    n_prompt: int = 0
    n_prefilled: int = 0
    n_cached: int = 0
    n_output: int = 0
    n_left: int = 0
    """Output tokens until its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheView:
    """What the cache holds, in which slots, and its hits so far; clients get all but the slots."""

    slots: tuple[SlotView, ...]
    n_ctx_slot: int
    kv_cells: Mapping[str, int]
    host: Mapping[str, int]
    states: Mapping[str, int]
    """All 0 where a slot can be cut anywhere and needs none."""
    disk: Mapping[str, Any]
    tier_requests: Mapping[str, int] = field(default_factory=dict)
    """Requests by the tier of their reused prefix; next, their prompt tokens."""
    tier_tokens: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings that bound it."""


class SlotMove(NamedTuple):
    """What an action on a slot did."""

    slot_id: int
    n_tokens: int
    """Saved, restored, or erased."""
    filename: str = ""
    n_bytes: int = 0
    """Of the file."""
    seconds: float = 0.0


def _busy(s: Sequence) -> SlotView:
    n_prefilled, n_left = min(s.n_computed, s.n_prompt), s.n_most - len(s.tokens)
    return SlotView(
        s.slot_id, s.n_computed, s.request_id, s.n_prompt, n_prefilled, s.n_cached, s.n_output, n_left
    )


def view_of(scheduler: Scheduler, trouble: str = "", paused_s: float = 0.0) -> CacheView:
    """Look at the books; only between two events.

    `trouble` says why the disk could not be written, and `paused_s` for how long that is not tried again.
    """
    slots, tiers, limits = scheduler.slots, scheduler.tiers, scheduler.limits
    host, disk, states = tiers.host, tiers.disk, tiers.states
    n_running, n_idle = slots.n_used_running(), slots.n_used_idle()
    return CacheView(
        slots=tuple([
            SlotView(i, slots.held(i).n_tokens) if s is None else _busy(s)
            for i, s in enumerate(slots.by_slot)
        ]),
        n_ctx_slot=limits.n_ctx_slot,
        kv_cells={
            "n": limits.n_cells, "n_running": n_running, "n_idle": n_idle,
            "n_free": limits.n_cells - n_running - n_idle,
        },
        host={
            "bytes": host.n_used * limits.cell_bytes, "limit_bytes": host.n_cells * limits.cell_bytes,
            "n_tokens": host.n_used, "n_blocks": host.n_blocks, "n_salts": host.n_salts,
            "n_hits": host.n_hits, "n_saved_tokens": host.n_saved, "n_restored_tokens": host.n_restored,
            "n_evicted_tokens": host.n_evicted,
        },
        states={
            "bytes": len(states) * limits.state_bytes, "limit_bytes": states.n_most * limits.state_bytes,
            "n": len(states), "n_saved": states.n_saved, "n_restored": states.n_restored,
            "n_evicted": states.n_evicted,
        },
        disk={
            "bytes": disk.n_bytes, "n_hits": disk.n_hits, "n_read_tokens": disk.n_loaded,
            "n_written_tokens": disk.n_written, "trouble": trouble or None, "paused_s": round(paused_s, 1),
        },
    )  # fmt: skip
