"""The waiting line: first come, first served; who was preempted goes to its head."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from cobali_ray.core.lifecycle import Status
from cobali_ray.core.sequence import Sequence


class WaitingQueue:
    """A FIFO of sequences that any of them can leave, with the prompt tokens it holds counted."""

    def __init__(self) -> None:
        self._line: OrderedDict[str, Sequence] = OrderedDict()
        self.n_tokens = 0
        """Prompt tokens of all waiting requests."""

    def __len__(self) -> int:
        return len(self._line)

    def push(self, sequence: Sequence) -> None:
        """Add to the end."""
        self._line[sequence.request_id] = sequence
        self.n_tokens += sequence.n_prompt

    def push_front(self, sequence: Sequence) -> None:
        """Add to the head."""
        self.push(sequence)
        self._line.move_to_end(sequence.request_id, last=False)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._line.values())

    def head(self) -> Sequence | None:
        """Return who is next, without removing it; who is not ready yet is passed over."""
        return next((s for s in self._line.values() if s.status is Status.QUEUED), None)

    def remove(self, sequence: Sequence) -> None:
        """Take a waiting sequence out, wherever it stands."""
        del self._line[sequence.request_id]
        self.n_tokens -= sequence.n_prompt
