"""The queue: which waiting request is next. Pure.

The better class goes first, the lower number; in a class the tenant that was served least (`fair.py`); of a
tenant preempted requests, then the oldest. So with one tenant and one class: first come, first
served. A class counts as one better for every `AGEING_S` that it had no turn, so that nobody waits for ever.

Requests for slots leave the queue with their turn; embedding requests have many, and go to the end of their
line after each.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from cobali_ray.core.queue.fair import used
from cobali_ray.core.request.lifecycle import Status
from cobali_ray.core.request.sequence import Account, OpenRequest

AGEING_S = 10.0
PATIENCE_S = 120.0
"""How long a request that could have its turn waits at most for programs that began before it."""
MAX_PARKED = 2
"""Times that a sequence may be preempted for others that are due."""
_T = TypeVar("_T", bound=OpenRequest)


class _Line(Generic[_T]):
    """One tenant's waiting requests of one class, in order."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.requests: OrderedDict[str, _T] = OrderedDict()

    def add(self, request: _T, now_s: float) -> None:
        """Add a request behind those whose programs began before its own, and those that have waited long."""
        passed = []
        if request.since_s < request.arrived_s:
            long_ago_s = now_s - PATIENCE_S
            others = self.requests.values()
            passed = [
                other.request_id
                for other in others
                if other.since_s > request.since_s and other.arrived_s > long_ago_s
            ]
        self.requests[request.request_id] = request
        for request_id in passed:
            self.requests.move_to_end(request_id)

    def newest(self) -> _T | None:
        """Return the newest request that never had a turn, here or elsewhere, unless it is next."""
        last = next(reversed(self.requests.values()))
        began = last.assigned_s is not None or last.request.attempt
        return last if len(self.requests) > 1 and not began else None


def _served(line: _Line[_T]) -> float:
    return line.account.served


class _Class(Generic[_T]):
    """The waiting requests of one class, by tenant."""

    def __init__(self, priority: int, since_s: float) -> None:
        self.priority = priority
        self.since_s = since_s
        """When it had its last turn, or began to wait."""
        self.lines: dict[str, _Line[_T]] = {}

    def level(self, now_s: float) -> float:
        """Return the class that it counts as now: better the longer it has had no turn."""
        return self.priority - (now_s - self.since_s) / AGEING_S

    def __iter__(self) -> Iterator[_T]:
        lines = list(self.lines.values())
        if len(lines) > 1:  # mostly only the first requests are read
            first = min(lines, key=_served)
            yield from first.requests.values()
            lines.remove(first)
            lines.sort(key=_served)
        for line in lines:
            yield from line.requests.values()


class WaitingQueue(Generic[_T]):
    """A queue that any request can leave, with its tokens counted."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class[_T]] = {}
        self._n = 0
        self.n_tokens = 0
        """Tokens of all that wait: of their prompts, or of texts that are not computed."""

    def __len__(self) -> int:
        return self._n

    def push(self, request: _T, now_s: float) -> None:
        """Add behind all others of its tenant and class but those whose programs began later."""
        of_class = self._classes.get(request.priority)
        if of_class is None:
            of_class = self._classes[request.priority] = _Class(request.priority, now_s)
        account = request.account
        line = of_class.lines.get(account.tenant)
        if line is None:
            line = of_class.lines[account.tenant] = _Line(account)
        line.add(request, now_s)
        self._count(request, 1)

    def push_front(self, request: _T, now_s: float) -> None:
        """Add before all others of its tenant and class."""
        self.push(request, now_s)
        line = self._classes[request.priority].lines[request.account.tenant]
        line.requests.move_to_end(request.request_id, last=False)

    def __iter__(self) -> Iterator[_T]:
        """Yield all requests, the best class first."""
        for _, of_class in sorted(self._classes.items()):
            yield from of_class

    def ready(self, now_s: float | None = None) -> Iterator[_T]:
        """Yield the ready requests in the order of their turns; without a time classes do not age."""
        classes: Iterable[_Class[_T]] = self._classes.values()
        if len(self._classes) > 1:
            classes = sorted(classes, key=lambda c: c.priority if now_s is None else c.level(now_s))
        for of_class in classes:
            for request in of_class:
                if request.status is Status.QUEUED:
                    yield request

    @property
    def has_ready(self) -> bool:
        lines = (line for of_class in self._classes.values() for line in of_class.lines.values())
        return any(request.status is Status.QUEUED for line in lines for request in line.requests.values())

    @property
    def n_lines(self) -> int:
        """How many tenants have waiting requests, each counted in each of its classes."""
        return sum([len(of_class.lines) for of_class in self._classes.values()])

    def fullest(self, beside: Account, most: int, most_tokens: int) -> Account | None:
        """Return the account that fills the queue's bounds most, by weight, if it does more than this one."""
        n, n_tokens = Counter[str](), Counter[str]()
        accounts = {beside.tenant: beside}
        for request in self:
            tenant = request.account.tenant
            accounts[tenant] = request.account
            n[tenant] += 1
            n_tokens[tenant] += request.n_waiting_tokens

        def use(account: Account) -> float:
            return used(n[account.tenant], n_tokens[account.tenant], most, most_tokens) / account.weight

        account = max(accounts.values(), key=use)
        return account if use(account) > use(beside) else None

    def newest(self, account: Account) -> _T | None:
        """Return a tenant's newest request that never had a turn, of its worst class first."""
        for _, of_class in sorted(self._classes.items(), reverse=True):
            if (line := of_class.lines.get(account.tenant)) and (newest := line.newest()):
                return newest
        return None

    def newest_worse(self, priority: int) -> _T | None:
        """Return the newest request that never had a turn, of the worst class, if worse than this one."""
        for worst, of_class in sorted(self._classes.items(), reverse=True):
            newest_of_lines = [newest for line in of_class.lines.values() if (newest := line.newest())]
            if worst > priority and newest_of_lines:
                return max(newest_of_lines, key=lambda request: request.arrived_s)
        return None

    def turn(self, request: _T, now_s: float) -> bool:
        """Give a request its turn, which puts it last in its line; return whether its class's age gave it."""
        own = self._classes[request.priority]
        better = [other for other in self._classes.values() if other.priority < own.priority]
        aged = any(other.level(now_s) > own.level(now_s) for other in better)
        own.since_s = now_s
        own.lines[request.account.tenant].requests.move_to_end(request.request_id)
        return aged

    def remove(self, request: _T) -> None:
        of_class, tenant = self._classes[request.priority], request.account.tenant
        line = of_class.lines[tenant]
        del line.requests[request.request_id]
        if not line.requests:
            del of_class.lines[tenant]
            if not of_class.lines:
                del self._classes[request.priority]
        self._count(request, -1)

    def _count(self, request: _T, n: int) -> None:
        self._n += n
        self.n_tokens += n * request.n_waiting_tokens
        request.account.n_waiting += n
