"""Open requests. One for a slot is a sequence: its tokens so far, and how many of them are computed."""

from __future__ import annotations

from array import array
from math import inf
from typing import NamedTuple

from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.core.request.events import FinishReason, RequestStats, Tier
from cobali_ray.core.request.lifecycle import Status, StatusChange, advance
from cobali_ray.core.request.request import Request

NO_SLOT = -1


class Account:
    """One tenant's counter, and where its open requests are."""

    __slots__ = ("n_open", "n_waiting", "served", "tenant", "weight")

    def __init__(self, tenant: str, weight: float) -> None:
        self.tenant, self.weight = tenant, weight
        self.served = 0.0
        """Tokens computed for it, divided by its weight."""
        self.n_open = self.n_waiting = 0

    def charge(self, n_tokens: float) -> None:
        self.served += n_tokens / self.weight


class Stay(NamedTuple):
    """One time a request had a slot. Moments are seconds on the engine's clock."""

    slot_id: int
    since_s: float
    until_s: float | None = None
    """None while it holds the slot."""
    n_computed: int = 0
    """Tokens computed when it gave the slot back."""


class OpenRequest:
    """A request until its end, for tokens or for vectors. Times are seconds on the engine's clock."""

    __slots__ = (
        "account", "arrived_s", "assigned_s", "deadline_s", "priority", "request", "request_id", "since_s",
        "status", "stop",
    )  # fmt: skip

    request: Request | EmbeddingRequest

    def __init__(
        self, request: Request | EmbeddingRequest, account: Account, *, arrived_s: float, ready: bool = True
    ) -> None:
        self.request, self.account = request, account
        self.request_id, self.priority = request.request_id, request.priority
        self.status = Status.QUEUED if ready else Status.NOT_READY
        self.arrived_s = self.since_s = arrived_s
        """When it came, and when the program began that it is part of."""
        self.deadline_s = inf if request.timeout_s is None else arrived_s + request.timeout_s
        self.assigned_s: float | None = None
        """When it had its first turn."""
        self.stop: str | None = None
        """The stop string that ended its text."""

    @property
    def n_waiting_tokens(self) -> int:
        """The tokens that it counts as while it waits."""
        return self.request.n_prompt

    @property
    def line(self) -> tuple[int, str]:
        return self.priority, self.account.tenant

    def change(self, change: StatusChange) -> None:
        self.status = advance(self.status, change)

    def stats(self, now_s: float) -> RequestStats:
        """Return its life in numbers, as of `now_s`."""
        assigned_s, arrived_s, received_s = self.assigned_s, self.arrived_s, self.request.received_s
        return RequestStats(
            n_prompt=self.request.n_prompt,
            n_cached=0,
            n_output=0,
            queue_s=None if assigned_s is None else assigned_s - arrived_s,
            prefill_s=None,
            ttft_s=None,
            decode_s=None,
            e2e_s=now_s - arrived_s,
            intake_s=None if received_s is None else max(arrived_s - received_s, 0.0),
        )


class Sequence(OpenRequest):
    """A request for a slot. Its tokens are the one thing in the core that grows."""

    __slots__ = (
        "cached_from", "cuts", "decoding", "earlier", "end_tokens", "ending", "first_token_s", "last_token_s",
        "n_awaited", "n_cached", "n_dropped", "n_most", "n_parked", "n_passed", "n_preempted", "n_prefilled",
        "n_prompt", "n_scored", "salt", "seq_id", "slot_id", "stays", "tokens",
    )  # fmt: skip

    request: Request

    def __init__(
        self,
        request: Request,
        *,
        arrived_s: float,
        ready: bool = True,
        end_tokens: frozenset[int] = frozenset(),
        account: Account | None = None,
    ) -> None:
        account = account or Account(request.tenant, request.weight)
        super().__init__(request, account, arrived_s=arrived_s, ready=ready)
        stop_ids = request.sampling.stop_token_ids
        self.end_tokens = end_tokens.union(stop_ids) if stop_ids else end_tokens
        self.salt = request.salt
        self.n_awaited = 0 if ready else 1
        """Things that must be there before it may have a slot."""
        self.tokens = array("i", request.prompt)
        self.n_prompt = len(self.tokens)
        self.tokens.extend(request.sent_tokens)
        scores_prompt = request.n_prompt_logprobs is not None and not request.sent_tokens
        self.n_scored = request.n_scored if scores_prompt else self.n_prompt
        """Tokens of its prompt whose logprobs are sent; all, if none are wanted."""
        self.n_most = request.n_most
        self.n_prefilled = 0
        """Tokens computed before it began to decode."""
        self.decoding = False
        """Whether only the token sampled last is left to compute."""
        self.slot_id = self.seq_id = NO_SLOT
        """Its slot, and the id that llama.cpp computes that slot under at present."""
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.n_cached = 0
        self.cached_from: Tier = "none"
        self.cuts: tuple[int, ...] = ()
        """At how many of its tokens its state is to be saved, ascending; see `cuts_of`."""
        self.earlier = array("i")
        """If it begins with tokens of an idle slot: the last of these, and those that followed them there."""
        self.n_passed = 0
        """Tokens of later prompts that were computed ahead of this one's."""
        self.n_preempted = 0
        self.n_parked = 0
        """How often it was preempted for others, and not because it was the youngest."""
        self.stays: tuple[Stay, ...] = ()
        """Every time it had a slot, for telemetry."""
        self.n_dropped = 0
        """Tokens sampled in one pass with what turned out to end the answer, behind it."""
        self.ending: FinishReason | None = None
        """Set when its last token is sampled, before its text is sent."""

    @property
    def n_output(self) -> int:
        return len(self.tokens) - self.n_prompt - self.n_dropped

    @property
    def n_computed(self) -> int:
        """Tokens in the KV cache: all but the last one of a sequence that decodes."""
        return len(self.tokens) - 1 if self.decoding else self.n_prefilled

    @property
    def adapter(self) -> str:
        """The key of the adapter that its next tokens are computed under."""
        return self.request.adapter if self.n_computed >= self.request.n_plain else ""

    @property
    def n_common(self) -> int:
        """Tokens in the KV cache that others of its salt can begin with."""
        return min(self.n_computed, self.request.n_plain or self.n_computed)

    @property
    def n_pending(self) -> int:
        return len(self.tokens) - self.n_computed

    @property
    def n_reusable(self) -> int:
        """How many of its first tokens need not be computed if they are there.

        Never the last two: the last gives the logits, and one alone rounds differently (see `piece`). Nor one
        whose row gives a logprob of the prompt that is still to be sent.
        """
        most = min(len(self.tokens) - 2, self.request.n_plain or len(self.tokens))
        return most if self.n_unscored is None else min(most, self.n_unscored)

    @property
    def n_resumable(self) -> int:
        """The same where slots go back to states: an answer under way goes on from all but its last token."""
        answers = self.n_output and self.n_unscored is None and not self.request.n_plain
        return len(self.tokens) - 1 if answers else self.n_reusable

    @property
    def n_unscored(self) -> int | None:
        """The first of its tokens whose row is wanted for the logprob of the next; None: of no token."""
        return max(self.n_scored - 1, 0) if self.n_scored < self.n_prompt else None

    @property
    def rank(self) -> tuple[int, float]:
        """Its class, and what its tenant was served: the least goes first."""
        return self.priority, self.account.served

    def hold_back(self) -> None:
        """Wait for one more thing; only before it is queued."""
        self.status = Status.NOT_READY
        self.n_awaited += 1

    def note_ready(self) -> None:
        """Note that one thing it waited for is there."""
        self.n_awaited -= 1
        if self.n_awaited == 0 and self.status is Status.NOT_READY:
            self.change(StatusChange.READY)

    def enter_slot(self, now_s: float) -> None:
        """Note that its slot is its own from now on."""
        self.stays = (*self.stays, Stay(self.slot_id, now_s))

    def leave_slot(self, now_s: float, n_computed: int) -> None:
        """Note that it gives its slot back, which holds `n_computed` tokens of it."""
        if self.slot_id != NO_SLOT:
            last = self.stays[-1]._replace(until_s=now_s, n_computed=n_computed)
            self.stays = (*self.stays[:-1], last)
        self.slot_id = self.seq_id = NO_SLOT
        self.n_prefilled, self.decoding = 0, False

    def stats(self, now_s: float) -> RequestStats:
        first_s, assigned_s, last_s = self.first_token_s, self.assigned_s, self.last_token_s
        return super().stats(now_s)._replace(
            n_cached=self.n_cached, n_output=self.n_output, n_preempted=self.n_preempted,
            prefill_s=None if first_s is None or assigned_s is None else first_s - assigned_s,
            ttft_s=None if first_s is None else first_s - self.arrived_s,
            decode_s=None if first_s is None or last_s is None else last_s - first_s,
            cached_from=self.cached_from, n_said=len(self.request.sent_tokens),
        )  # fmt: skip
