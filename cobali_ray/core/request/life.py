"""Life: one request's numbers and times as telemetry shows them, open or ended."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from cobali_ray.core.request.events import End, FinishReason, Tier
from cobali_ray.core.request.sequence import Sequence, Stay

State: TypeAlias = Literal["queued", "prefilling", "generating", "ended"]


class Life(NamedTuple):
    """One request as the feed of ticks shows it. Moments are seconds on the engine's clock."""

    request_id: str
    slot_id: int | None
    """The slot it holds; of an ended request, the last one it held."""
    state: State
    n_prompt: int
    n_cached: int
    n_computed: int
    """Tokens in its slot's cache; of an ended request, when it gave the slot back."""
    n_output: int
    arrived_s: float
    assigned_s: float | None
    first_token_s: float | None
    ended_s: float | None
    finish_reason: FinishReason | None
    error: str | None
    """The class of the error that ended it; see errors.py."""
    n_preempted: int
    stays: tuple[Stay, ...]
    """Every time it had a slot: more than one if it was preempted."""
    received_s: float | None = None
    """When its HTTP request began to arrive at the server; None without HTTP."""
    cached_from: Tier = "none"
    """Where the cached tokens came from."""
    tenant: str = ""
    """The name of its key; "" without keys."""
    priority: int = 0
    attempt: int = 0
    """How many engines had it before."""
    n_said: int = 0
    """Tokens of its answer that earlier engines sent."""
    model: str = ""
    """The name of the model or adapter asked for; "" without HTTP."""
    x_request_id: str = ""
    """The id of its HTTP request; "" without HTTP."""


_OF_SEQUENCE = (
    "request_id", "n_prompt", "n_cached", "n_output", "arrived_s", "assigned_s", "n_preempted", "cached_from",
    "priority",
)  # fmt: skip
_OF_REQUEST = ("received_s", "attempt", "model", "x_request_id")
"""Fields with the same name in `Request`."""


def life_of(sequence: Sequence) -> Life:
    """Return an open request's life; may be called while a tick runs, and is then at most one tick off."""
    waiting = sequence.status.waiting
    n_computed, first_token_s, stays = sequence.n_computed, sequence.first_token_s, sequence.stays
    holds = bool(stays) and stays[-1].until_s is None
    if (
        stays and not holds and not waiting
    ):  # its slot is free, the text of its last token is still to be sent
        n_computed = stays[-1].n_computed
    state: State = "generating"
    if waiting:
        state = "queued"
    elif first_token_s is None or n_computed < sequence.n_prompt:
        state = "prefilling"
    return Life(
        **{name: getattr(sequence, name) for name in _OF_SEQUENCE},
        **{name: getattr(sequence.request, name) for name in _OF_REQUEST},
        slot_id=stays[-1].slot_id if holds else None,
        state=state,
        n_computed=n_computed,
        first_token_s=first_token_s,
        ended_s=None,
        finish_reason=None,
        error=None,
        stays=stays,
        tenant=sequence.account.tenant,
        n_said=len(sequence.request.sent_tokens),
    )


def ended_life(sequence: Sequence, end: End) -> Life:
    """Return an ended request's life, which is kept when its sequence is dropped."""
    ended_s = sequence.arrived_s + end.stats.e2e_s
    stays = sequence.stays
    if stays and stays[-1].until_s is None:
        # Its slot comes back later, with the token in flight; for the request it is over now.
        last = stays[-1]
        stays = (*stays[:-1], last._replace(until_s=ended_s, n_computed=sequence.n_computed))
    return life_of(sequence)._replace(
        slot_id=stays[-1].slot_id if stays else None,
        state="ended",
        n_computed=stays[-1].n_computed if stays else 0,
        n_output=end.stats.n_output,
        ended_s=ended_s,
        finish_reason=end.finish_reason,
        error=None if end.error is None else type(end.error).__name__,
        stays=stays,
    )
