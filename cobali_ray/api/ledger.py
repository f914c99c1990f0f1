"""The ledger: what all ingresses let in of each key, counted in one place, an engine's process. Knows no Ray.

It is asked for every request of a key with limits, where there are several ingresses. Where it does not
answer, each of them gives out its own part of the limits.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import NamedTuple, Protocol

from cobali_ray.api.clock import ApiClock
from cobali_ray.api.keys import Terms
from cobali_ray.api.quota import Quota
from cobali_ray.errors import RateLimitError

SILENT_S = 5.0
"""What an ingress let in that was not heard of for so long is no longer open."""


class Standing(NamedTuple):
    """What the ledger says to a request."""

    refusal: RateLimitError | None
    left: tuple[float | None, float | None]
    """In the buckets of requests and tokens."""


class Ledger:
    """What ingresses let in of every key; each has a name, `who`, and gives its requests tickets."""

    def __init__(self) -> None:
        self._quotas: dict[str, Quota] = {}
        self._open: defaultdict[str, defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        """Tickets by tenant, by who let them in."""
        self._heard_s: dict[str, float] = {}

    def heard(self, who: str, now_s: float) -> None:
        """Note that an ingress is there."""
        self._heard_s[who] = now_s

    def begin(self, who: str, tenant: str, terms: Terms, ticket: int, now_s: float) -> Standing:
        """Let a request in, or say why not."""
        self.heard(who, now_s)
        quota = self._quotas.get(tenant)
        if quota is None:
            quota = self._quotas[tenant] = Quota(terms, 1, now_s)
        elif quota.terms != terms:
            quota.renew(terms, now_s)
        tickets = self._open[tenant]
        for silent in [one for one in tickets if now_s - self._heard_s.get(one, 0.0) > SILENT_S]:
            del tickets[silent]
        quota.n_open = sum(map(len, tickets.values()))
        refusal = None
        try:
            quota.begin(now_s)
            tickets[who].add(ticket)
        except RateLimitError as error:
            refusal = error
        return Standing(refusal, quota.left(now_s))

    def note(self, who: str, tenant: str, ticket: int | None, n_tokens: int, now_s: float) -> None:
        """Take tokens; with a ticket its request has ended. One that is not known is as good as ended."""
        if ticket is not None:
            self._open[tenant][who].discard(ticket)
        if n_tokens and (quota := self._quotas.get(tenant)) is not None:
            quota.spend(n_tokens, now_s)


class Counting(Protocol):
    """A ledger in another process."""

    async def begin_counted(self, tenant: str, terms: Terms, ticket: int) -> Standing | None:
        """See Ledger; None: it does not answer."""
        ...

    def note_counted(self, tenant: str, ticket: int | None, n_tokens: int) -> None:
        """See Ledger; nobody waits for it."""
        ...


class Meter:
    """What one key may still do, asked at one ingress: as the ledger of all says, or by this one's part."""

    def __init__(
        self, tenant: str, terms: Terms, n_ingress: int, ledger: Counting | None, now_s: float
    ) -> None:
        self._tenant, self._ledger = tenant, ledger
        self._part, self._whole = Quota(terms, n_ingress, now_s), Quota(terms, 1, now_s)
        """The latter only shows what was heard last."""
        self._shown = self._part
        self._tickets = count(1)

    @property
    def terms(self) -> Terms:
        """What the key may do."""
        return self._part.terms

    def renew(self, terms: Terms, now_s: float) -> None:
        """Begin anew with other terms; what is open stays counted."""
        self._part.renew(terms, now_s)
        self._whole.renew(terms, now_s)

    async def begin(self, clock: ApiClock) -> int | None:
        """Let a request in; return its ticket, None if it is counted here. Raises RateLimitError."""
        if self._ledger is not None and self._part.limited:
            ticket, standing = next(self._tickets), None
            try:
                standing = await self._ledger.begin_counted(self._tenant, self.terms, ticket)
            finally:
                if standing is None:  # it may have been counted all the same
                    self._ledger.note_counted(self._tenant, ticket, 0)
            if standing is not None:
                self._shown = self._whole
                self._whole.set_left(standing.left, clock.now())
                if standing.refusal is not None:
                    raise standing.refusal
                return ticket
        self._shown = self._part
        self._part.begin(clock.now())
        return None

    def read(self, n_prompt: int, ticket: int | None, now_s: float) -> None:
        """Count a prompt. Raises RateLimitError where that many tokens are not left."""
        (self._part if ticket is None else self._whole).read(n_prompt, now_s)
        if ticket is not None and self._ledger is not None and self.terms.tokens_per_minute is not None:
            self._ledger.note_counted(self._tenant, None, n_prompt)

    def end(self, ticket: int | None, n_output: int, now_s: float) -> None:
        """Note the end of a request that was let in."""
        if ticket is None:
            self._part.end(n_output, now_s)
        elif self._ledger is not None:
            self._whole.spend(n_output, now_s)
            self._ledger.note_counted(self._tenant, ticket, n_output)

    def headers(self, now_s: float) -> list[tuple[bytes, bytes]]:
        """Return what is left, as OpenAI tells it."""
        return self._shown.headers(now_s)
