"""Fairness: virtual token counters of what every tenant was served; the one with the least is next. Pure.

A counter is what was computed for a tenant, by its weight: prompt tokens that were not cached, tokens of
texts to embed, and output tokens twice. Of those who wait, the one with the least is served; so two that
always wait differ by a few requests at most, however many one of them sends. A tenant saves up nothing while
it has none waiting: coming back, it begins where the others are (Sheng et al., "Fairness in Serving Large
Language Models", OSDI '24), less a small credit, so that a tenant with few requests need not wait.

Each engine counts for itself. If a model has several, the ingress sees what each of them serves, and sends
along with a request what the others served its tenant since the last time.

A sequence's rank is its class and its tenant's counter. The queue, the order of prompts (`plan.py`) and the
choice of whose gaps a prompt may stretch (`pace.py`) follow it. If a request is due and no slot is free,
another sequence is parked, as when cells run out (`Slots.victims`). While all open requests have one tenant
and one class, none of this is considered.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import Account, Sequence

OUTPUT_COST = 2.0
"""What an output token counts, in prompt tokens."""
CREDIT = 8192.0
"""How far below the others' counters a tenant begins that had nothing waiting."""
MAX_ELSEWHERE = 32768.0
"""What other engines served counts up to this at once, so that long use of them shuts no tenant out here."""

PARKING = 2048.0
"""How much more than another a tenant must have been served to be preempted for it."""


def yields(rank: tuple[int, float], other: tuple[int, float]) -> bool:
    """Return whether a rank yields to another: its class is worse, or its tenant was served far more."""
    return rank[0] > other[0] or rank[1] > other[1] + PARKING


class Accounts:
    """The accounts of all tenants so far: at most as many as there are keys."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._lines: Counter[tuple[int, str]] = Counter()
        """Open requests for slots by class and tenant."""
        self._left = 0.0
        """The counter of the last tenant whose open requests all ended."""

    @property
    def several(self) -> bool:
        """Whether slots are shared: there are open requests of more than one tenant or class."""
        return len(self._lines) > 1

    def enter(self, request: Request) -> Account:
        """Open a request for a slot; see `open`."""
        account = self.open(request, request.served_elsewhere)
        self._lines[request.priority, request.tenant] += 1
        return account

    def open(self, request: Request | EmbeddingRequest, served_elsewhere: float = 0.0) -> Account:
        """Open a request that is about to wait; its tenant's counter is lifted if it had none waiting."""
        account = self._accounts.get(request.tenant)
        if account is None:
            account = self._accounts[request.tenant] = Account(request.tenant, request.weight)
        account.weight = request.weight
        account.charge(served_elsewhere)
        if not account.n_waiting and len(self._accounts) > 1:
            others = [other for other in self._accounts.values() if other.n_open and other is not account]
            others = [other for other in others if other.n_waiting] or others
            behind = min([other.served for other in others], default=self._left)
            account.served = max(account.served, behind - CREDIT / account.weight)
        account.n_open += 1
        return account

    def leave(self, sequence: Sequence) -> None:
        """Close a request for a slot that has ended."""
        self._lines[sequence.line] -= 1
        if not self._lines[sequence.line]:
            del self._lines[sequence.line]
        self.close(sequence.account)

    def close(self, account: Account) -> None:
        account.n_open -= 1
        if not account.n_open:
            self._left = max(self._left, account.served)

    def weights(self, priority: int) -> dict[str, float]:
        """Return the weights of the tenants with open requests for slots of a class."""
        tenants = [tenant for of_class, tenant in self._lines if of_class == priority]
        return {tenant: self._accounts[tenant].weight for tenant in tenants}


class ServedElsewhere:
    """What each engine of a model served to each tenant, so that the others can count it.

    n = elsewhere.take("a", tenant)  # sent along to engine a as Request.served_elsewhere
    elsewhere.put_back("a", tenant, n)  # it did not take the request
    elsewhere.note("a", tenant, n_computed + OUTPUT_COST * n_output)  # it served that
    """

    def __init__(self) -> None:
        self._served: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """By tenant, by engine."""
        self._sent: defaultdict[tuple[str, str], float] = defaultdict(float)
        """What of the others' sum an engine was sent, by engine and tenant."""

    def note(self, engine_id: str, tenant: str, n_tokens: float) -> None:
        """Record what an engine served, in prompt tokens."""
        by_engine = self._served[tenant]
        by_engine[engine_id] = by_engine.get(engine_id, 0.0) + n_tokens

    def take(self, engine_id: str, tenant: str) -> float:
        """Return what the other engines served since the last call for this engine."""
        others = sum([n for other_id, n in self._served[tenant].items() if other_id != engine_id])
        sent = self._sent[engine_id, tenant]
        self._sent[engine_id, tenant] = others
        return min(others - sent, MAX_ELSEWHERE)

    def put_back(self, engine_id: str, tenant: str, n_tokens: float) -> None:
        """Undo `take`: the engine did not get the number after all."""
        self._sent[engine_id, tenant] -= n_tokens


def used(n: int, n_tokens: int, most: int, most_tokens: int) -> float:
    """Return the share of the queue's bounds that some requests fill."""
    return max(n / max(most, 1), n_tokens / max(most_tokens, 1))
