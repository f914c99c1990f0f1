"""What the KV cache and host memory hold, to be shown. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cobali_ray.core.scheduler import Scheduler


class SlotView(NamedTuple):
    """One slot. Counts are tokens."""

    slot_id: int
    n_tokens: int
    """What it holds."""
    request_id: str | None = None
    """Who computes in it; None: idle, and the rest says nothing."""
    n_prompt: int = 0
    n_prefilled: int = 0
    n_cached: int = 0
    n_output: int = 0
    n_left: int = 0
    """Output tokens until its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheView:
    """What is held, by whom, and what it was good for so far. Counts are tokens unless named otherwise."""

    slots: tuple[SlotView, ...]
    n_ctx_slot: int
    n_cells: int
    n_cells_running: int
    n_cells_idle: int
    cell_bytes: int
    """Of a token in host memory; 0 where nothing can be kept there."""
    n_host_cells: int
    """Most that host memory may hold."""
    n_host_used: int
    n_host_blocks: int
    """Blocks of 64 tokens and shorter."""
    n_host_salts: int
    n_host_hits: int
    """Requests, preempted ones too, that began from there; the next three: moved there, back, given up."""
    n_host_saved: int
    n_host_restored: int
    n_host_evicted: int
    state_bytes: int = 0
    """Of a saved state; 0 where a slot can be cut anywhere and needs none."""
    n_states: int = 0
    """States that are kept; the next four: most of them, and saved, put back, and given up so far."""
    n_states_most: int = 0
    n_states_saved: int = 0
    n_states_restored: int = 0
    n_states_evicted: int = 0
    n_disk_bytes: int = 0
    """What all files of the disk tier take."""
    n_disk_hits: int = 0
    """Requests for which something was read; the next two: tokens read, and written."""
    n_disk_loaded: int = 0
    n_disk_written: int = 0
    disk_trouble: str = ""
    """Why nothing could be written there; empty where it could. And for how long that is not tried again."""
    disk_paused_s: float = 0.0
    tier_requests: Mapping[str, int] = field(default_factory=dict)
    """Requests by where their beginning came from; next, their prompt tokens."""
    tier_tokens: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What bounds it all."""


class SlotMove(NamedTuple):
    """What an action on a slot did."""

    slot_id: int
    n_tokens: int
    """Saved, restored, or erased."""
    filename: str = ""
    n_bytes: int = 0
    """Of the file."""
    seconds: float = 0.0


def view_of(scheduler: Scheduler) -> CacheView:
    """Look at the books; only between two events."""
    slots, tiers, limits = scheduler.slots, scheduler.tiers, scheduler.limits
    host, disk, states = tiers.host, tiers.disk, tiers.states
    return CacheView(
        slots=tuple(
            SlotView(i, slots.held(i).n_tokens)
            if s is None
            else SlotView(
                i,
                s.n_computed,
                s.request_id,
                s.n_prompt,
                min(s.n_computed, s.n_prompt),
                s.n_cached,
                s.n_output,
                s.n_most - len(s.tokens),
            )
            for i, s in enumerate(slots.by_slot)
        ),
        n_ctx_slot=limits.n_ctx_slot,
        n_cells=limits.n_cells,
        n_cells_running=slots.n_used_running(),
        n_cells_idle=slots.n_used_idle(),
        cell_bytes=limits.cell_bytes,
        n_host_cells=host.n_cells,
        n_host_used=host.n_used,
        n_host_blocks=host.n_blocks,
        n_host_salts=host.n_salts,
        n_host_hits=host.n_hits,
        n_host_saved=host.n_saved,
        n_host_restored=host.n_restored,
        n_host_evicted=host.n_evicted,
        state_bytes=limits.state_bytes,
        n_states=len(states),
        n_states_most=states.n_most,
        n_states_saved=states.n_saved,
        n_states_restored=states.n_restored,
        n_states_evicted=states.n_evicted,
        n_disk_bytes=disk.n_bytes,
        n_disk_hits=disk.n_hits,
        n_disk_loaded=disk.n_loaded,
        n_disk_written=disk.n_written,
    )
