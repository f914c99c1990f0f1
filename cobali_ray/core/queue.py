"""The waiting line: who of those who wait goes next. Pure.

The better class goes first, the lower number; in a class the tenant that was served least (`fair.py`); of a
tenant who came first, and before that who was preempted. So with one tenant and one class: first come, first
served. A class counts as one better for every `AGEING_S` that it had no turn, so that nobody waits for ever.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from cobali_ray.core.account import Account
from cobali_ray.core.lifecycle import Status
from cobali_ray.core.sequence import Sequence

AGEING_S = 10.0
MOST_PARKED = 2
"""Times that a sequence may lose its slot to others that are due."""


class _Line:
    """Who waits of one tenant in one class, in order."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.sequences: OrderedDict[str, Sequence] = OrderedDict()

    def newest(self) -> Sequence | None:
        """Return who came last and never had a slot, here or elsewhere, unless it is next."""
        last = next(reversed(self.sequences.values()))
        began = last.assigned_s is not None or last.request.attempt
        return last if len(self.sequences) > 1 and not began else None


def _served(line: _Line) -> float:
    return line.account.served


class _Class:
    """Who waits of one class, by tenant."""

    def __init__(self, priority: int, since_s: float) -> None:
        self.priority = priority
        self.since_s = since_s
        """When it had its last turn, or began to wait."""
        self.lines: dict[str, _Line] = {}

    def level(self, now_s: float) -> float:
        """Return what it counts as now: ever less while it has no turn."""
        return self.priority - (now_s - self.since_s) / AGEING_S

    def __iter__(self) -> Iterator[Sequence]:
        lines = list(self.lines.values())
        if len(lines) > 1:  # mostly nobody asks further than for the first
            first = min(lines, key=_served)
            yield from first.sequences.values()
            lines.remove(first)
            lines.sort(key=_served)
        for line in lines:
            yield from line.sequences.values()


class WaitingQueue:
    """A line of sequences that any of them can leave, with the prompt tokens it holds counted."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self._n = 0
        self.n_tokens = 0
        """Prompt tokens of all waiting requests."""

    def __len__(self) -> int:
        return self._n

    def push(self, sequence: Sequence, now_s: float) -> None:
        """Add behind all others of its tenant and class."""
        of_class = self._classes.get(sequence.priority)
        if of_class is None:
            of_class = self._classes[sequence.priority] = _Class(sequence.priority, now_s)
        account = sequence.account
        line = of_class.lines.get(account.tenant)
        if line is None:
            line = of_class.lines[account.tenant] = _Line(account)
        line.sequences[sequence.request_id] = sequence
        self._count(sequence, 1)

    def push_front(self, sequence: Sequence, now_s: float) -> None:
        """Add before all others of its tenant and class."""
        self.push(sequence, now_s)
        line = self._classes[sequence.priority].lines[sequence.account.tenant]
        line.sequences.move_to_end(sequence.request_id, last=False)

    def __iter__(self) -> Iterator[Sequence]:
        """Yield everybody, the best class first."""
        for _, of_class in sorted(self._classes.items()):
            yield from of_class

    def ready(self, now_s: float | None = None) -> Iterator[Sequence]:
        """Yield who is ready, in the order of their turns; without a time classes do not age."""
        classes: Iterable[_Class] = self._classes.values()
        if len(self._classes) > 1:
            classes = sorted(classes, key=lambda one: one.priority if now_s is None else one.level(now_s))
        for of_class in classes:
            for sequence in of_class:
                if sequence.status is Status.QUEUED:
                    yield sequence

    @property
    def has_ready(self) -> bool:
        """Whether somebody could get a slot."""
        lines = (line for of_class in self._classes.values() for line in of_class.lines.values())
        return any(s.status is Status.QUEUED for line in lines for s in line.sequences.values())

    def newest(self, account: Account) -> Sequence | None:
        """Return who of a tenant came last and never had a slot, of its worst class first."""
        for _, of_class in sorted(self._classes.items(), reverse=True):
            if (line := of_class.lines.get(account.tenant)) and (newest := line.newest()):
                return newest
        return None

    def newest_worse(self, priority: int) -> Sequence | None:
        """Return who came last and never had a slot, of the worst class, if that is worse than this one."""
        for worst, of_class in sorted(self._classes.items(), reverse=True):
            found = [newest for line in of_class.lines.values() if (newest := line.newest())]
            if worst > priority and found:
                return max(found, key=lambda sequence: sequence.arrived_s)
        return None

    def take(self, sequence: Sequence, now_s: float) -> None:
        """Take out who has its turn; if it has that by its class's age, it keeps its slot."""
        its = self._classes[sequence.priority]
        better = [one for one in self._classes.values() if one.priority < its.priority]
        if any(one.level(now_s) > its.level(now_s) for one in better):
            sequence.n_parked = MOST_PARKED
        its.since_s = now_s
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a waiting sequence out, wherever it stands."""
        of_class, tenant = self._classes[sequence.priority], sequence.account.tenant
        line = of_class.lines[tenant]
        del line.sequences[sequence.request_id]
        if not line.sequences:
            del of_class.lines[tenant]
            if not of_class.lines:
                del self._classes[sequence.priority]
        self._count(sequence, -1)

    def _count(self, sequence: Sequence, n: int) -> None:
        self._n += n
        self.n_tokens += n * sequence.n_prompt
        sequence.account.n_waiting += n
        sequence.account.n_waiting_tokens += n * sequence.n_prompt
