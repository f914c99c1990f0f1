"""What one tick did, and how the engine is doing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from cobali_ray.core.plan.adapters import Adapter
from cobali_ray.core.plan.plan import Plan
from cobali_ray.core.request.embedding import EmbeddingKind
from cobali_ray.core.request.events import Tier
from cobali_ray.core.request.limits import Begins, EngineLimits
from cobali_ray.core.request.request import NEUTRAL, SamplingParams

PREFILL, DECODE = 0, 1
"""The kinds of span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickStats:
    """One record per tick. Counts are tokens unless named otherwise; times are seconds."""

    tick_id: int
    started_s: float
    n_decode: int = 0
    """Decode tokens computed, one a stream."""
    n_prefill: int = 0
    """Prefill tokens computed."""
    n_sequences: int = 0
    """Sequences in the batch (spans)."""
    n_sampled: int = 0
    """Output tokens gained: one a row, and those of drafts that were right."""
    n_idle: int
    """Slots without a request, after the tick; likewise the next two."""
    n_prefilling: int = 0
    n_generating: int = 0
    n_queued: int = 0
    """Requests waiting for a slot."""
    n_queued_tokens: int = 0
    """Prompt tokens of the waiting requests."""
    plan_s: float = 0.0
    """Mailbox, expiry, assigning and planning."""
    forward_s: float = 0.0
    """From handing over the batch to logits ready; with overlap it contains the last tick's publish."""
    sample_s: float = 0.0
    publish_s: float = 0.0
    """Detokenising, stop strings, events, hand-over."""
    total_s: float = 0.0
    n_cells: int
    """KV cells in all."""
    n_cells_used: int = 0
    n_cells_idle: int = 0
    """Of the used ones: held by idle slots for prefix reuse, free to be dropped."""
    n_reused_graphs: int = 0
    """Forward passes of this tick that reused the previous compute graph."""
    n_preempted: int = 0
    n_finished: int = 0
    """Requests that ended in this tick."""
    n_host_cells: int = 0
    """Tokens that host memory keeps, after the tick."""
    n_host_hits: int = 0
    """Requests that began from there in this tick."""
    n_restored: int = 0
    """Tokens brought back from there; the next two: moved there, and given up there for room."""
    n_saved: int = 0
    n_evicted: int = 0
    n_disk_bytes: int = 0
    """What the files of the disk tier take."""
    n_disk_hits: int = 0
    """Requests for which something was read there since the last tick; next, tokens read and written."""
    n_loaded: int = 0
    n_written: int = 0
    n_adapter_changes: int = 0
    """Forward passes of this tick that were computed under another adapter than the one before."""
    n_drafted: int = 0
    """Tokens of drafts computed, and those of them that were right."""
    n_accepted: int = 0
    n_embedded: int = 0
    """Tokens of texts that were embedded just before the tick; next, the texts."""
    n_texts: int = 0
    n_texts_queued: int = 0
    """Texts that wait to be embedded, after it."""
    embed_s: float = 0.0
    """How long that took; not in `total_s`, unless the tick was nothing else."""
    predicted_s: float = 0.0
    """What the tick-time model expected of `total_s`; 0 while it knows too little."""
    target_s: float = 0.0
    """The ITL target that bounded this tick's prefill; 0 where nothing did."""
    chunks: Sequence[int] = ()
    """Tokens of each prompt chunk; they add up to `n_prefill`."""
    gaps_s: Sequence[float] = ()
    """ITL samples: for each stream that gained a token, time since its previous one."""
    ttfts_s: Sequence[float] = ()
    """Of each request that gained its first token, time since it came to the engine."""
    plan: Plan | None = None
    """What was computed, by slot; None where only texts were."""

    @property
    def spans(self) -> list[tuple[int, int, int, int]]:
        """The (slot_id, start, length, kind) of each span, in slot order: made when it is read."""
        if self.plan is None:
            return []
        own = {chunk.slot_id for chunk in self.plan.chunks}
        return sorted([(i, start, n, PREFILL if i in own else DECODE) for i, start, n, _ in self.plan.spans])

    @property
    def n_tokens(self) -> int:
        """What was computed, drafts included."""
        return self.n_decode + self.n_prefill + self.n_drafted

    @property
    def n_running(self) -> int:
        """Requests in slots, after it."""
        return self.n_prefilling + self.n_generating

    @property
    def kv_usage(self) -> float:
        """Share of KV cells held by running requests, 0 to 1; kept prefixes count as free."""
        return (self.n_cells_used - self.n_cells_idle) / self.n_cells


class TickFeed(NamedTuple):
    """Records of ticks and requests, encoded."""

    incarnation_id: str
    """Another one after the engine was started anew; tick ids then begin at 0 again."""
    next: int
    """The id of the tick that is recorded next: where to go on reading."""
    body: bytes
    """A JSON object; docs/traces.md has its fields. Each `x_request_id` in it is still `tenant/id`."""

    def body_for(self, tenant: str) -> bytes:
        """Return it as a tenant may read it: the ids that other tenants chose are empty."""
        own = tenant.encode()
        return _SENT_AS.sub(lambda match: match[1] + (match[3] if match[2] == own else b"") + b'"', self.body)


_SENT_AS = re.compile(rb'("x_request_id":")([^"/]*)/([^"]*)"')
"""Neither part has a quote or a slash, and inside of texts quotes are escaped."""


class EngineStatus(StrEnum):
    """Whether new requests are taken."""

    LOADING = "loading"
    RESTARTING = "restarting"
    READY = "ready"
    DRAINING = "draining"
    STALLED = "stalled"
    UNLOADED = "unloaded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """What an engine tells of a device that it computes on."""

    name: str
    """As in the setting `devices`; workers that the engine or Ray starts are numbered."""
    kind: str
    there: bool = True
    """Whether layers are on it; if not, it did not answer, and the engine goes without it for now."""
    free_bytes: int = 0
    total_bytes: int = 0
    busy_s: float | None = None
    """How long it has computed; None if unknown."""
    busy_share: float | None = None
    """The part of the last seconds in which it computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """A look at the engine from outside."""

    status: EngineStatus
    n_running: int = 0
    n_queued: int = 0
    n_slots: int = 0
    last_tick_age_s: float = 0.0
    """Since the last finished tick, while there is work; 0 when idle."""
    down_s: float = 0.0
    """How long it has been away; 0 while it is there, or before it first was."""
    detail: str = ""
    idle_s: float = 0.0
    """Since its last request ended, while none is open."""
    engine_id: str = ""
    """The engine's id, as its ingress has it."""
    paused: bool = False
    """Whether requests that are taken wait until an operator has it go on."""
    devices: tuple[DeviceView, ...] = ()
    """What it computes on beside the CPU."""


class LoadView(NamedTuple):
    """What an engine publishes of its load. 0 seconds: too little was computed to tell."""

    ahead: Sequence[tuple[int, int]]
    """The tokens `start .. end` of each prompt inside that are not computed yet."""
    n_free: int
    """Free slots less waiting requests; negative: so many requests wait for a slot."""
    slot_s: float
    """How long until one more slot becomes free while all are busy."""
    token_s: float
    """What a prompt token takes beside the streams that run now."""
    depth_s: float
    """What it takes more for each position of its depth."""
    n_kept: int
    """Tokens that its slots and host memory can keep."""
    embed_s: float = 0.0
    """How long the texts take that wait to be embedded."""
    paused: bool = False
    """Whether requests wait for the end of a pause."""


class Attendance(NamedTuple):
    """An engine's answer to an `attend` call.

    With the call come the times that clients of that ingress waited, so that an engine's metrics count those
    of all ingresses, and how often it was restarted: all of them learn the highest count.
    """

    incarnation_id: str
    """Another one after the engine was started anew."""
    n_restarts: int
    """How often it was restarted, as far as any ingress knows."""
    loaded: bool = True
    """Whether it holds its model."""
    released: bool = False
    """Whether it gave that back in a pause, and loads it again after it."""
    busy: LoadView | None = None
    """How busy it is; None: it cannot say just now."""
    wire_key: str = ""
    """The key of its messages for this ingress, if it is on another node."""
    model: str = ""
    """Identifies the model file that it serves."""
    pid: int = 0
    """Its process; with a `wire_key`, on another machine than the ingress."""
    up_s: float = 0.0
    """How long ago that began. A process younger than the call shows a death that Serve hid by calling the
    successor."""
    began: int = 0
    """The same in ticks of its machine's clock: a later process with its id has another one."""
    lost: str = ""
    """The device that it has lost, and why; its process ends now."""


class Reuse(NamedTuple):
    """How a loaded model begins a prompt with what it computed for others."""

    begins: Begins
    """At states: only where one was saved; see states.py."""
    tiers: tuple[Tier, ...]
    """Where prefixes are kept."""
    state_bytes: int
    """What a saved state takes; 0 where none are needed."""
    drafts: bool
    """Whether tokens are guessed ahead."""


def reuse_of(limits: EngineLimits, *, disk: bool, drafts: bool) -> Reuse:
    """Return what an engine with these bounds reuses; `disk` and `drafts`: whether it has them."""
    if not limits.min_prefix:
        return Reuse("never", (), 0, drafts)
    has: dict[Tier, bool] = {
        "slot": True,
        "copy": limits.copies,
        "host": limits.n_host_cells > 0 or (limits.states_alone and limits.n_states > 0),
        "disk": disk,
    }
    begins: Begins = "at states" if limits.state_bytes else "anywhere"
    return Reuse(begins, tuple([tier for tier, there in has.items() if there]), limits.state_bytes, drafts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What clients may know of the served model."""

    model_id: str
    n_vocab: int
    n_ctx_slot: int
    """Most tokens of prompt and answer together."""
    created_s: int
    """Unix time of the model file."""
    description: str = ""
    size_bytes: int = 0
    """Of its files; 0 where it has none."""
    sampling: SamplingParams = NEUTRAL
    """What is used where a request says nothing."""
    generates: bool = True
    reuse: Reuse | None = None
    """Of a model that generates."""
    embedding: EmbeddingKind | None = None
    """What it makes of texts; None: it does not embed."""
    images: bool = False
    """Whether messages may have any."""
    adapters: tuple[Adapter, ...] = ()
    """What else it is served with, under names of their own; their ids are their places."""
    adapter: Adapter | None = None
    """Set where this is the card of one of them."""

    def under(self, name: str | None) -> ModelCard:
        """Return the card of the adapter of this name; of the model itself, where none has it.

        Texts are embedded without adapters.
        """
        adapter = next((adapter for adapter in self.adapters if adapter.name == name), None)
        if adapter is None:
            return self
        return replace(self, model_id=adapter.name, adapter=adapter, embedding=None)
