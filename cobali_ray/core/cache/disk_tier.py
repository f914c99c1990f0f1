"""Disk tier: which blocks lie in files, by name, and which requests wait for some. Pure: others move bytes.

A block's name is a hash of its tokens and of the name of the block before it, so that it stands for a whole
beginning: a lookup is a hash and a set per block, nothing but names is remembered, and no other text has the
same name. Only whole blocks lie on disk. What makes cells unreadable to others (the model, how they are laid
out) is no part of a name: whoever keeps the files keeps those apart.

Files are read into host memory before their request gets a slot; it waits for them in the queue, no longer
than `WAIT_S`, and nobody waits for it.

Trouble with the disk never ends a request: it is logged once, and the prompt is computed.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cobali_ray.core.cache.host_tier import Block, name_behind
from cobali_ray.core.request.sequence import Sequence as Request

WAIT_S = 2.0
"""The longest that a request waits for the disk; what is read by then is used."""


@dataclass(slots=True)
class Loading:
    """A request for which blocks are being read."""

    sequence: Request
    names: Sequence[bytes]
    due_s: float
    """When it goes on without them."""
    waits: bool = True
    """Whether it still waits."""
    is_hit: bool = False
    """Whether anything came of it."""


class DiskTier:
    """The books of what is on disk. Before `listed` was told there is nothing, and nothing is kept."""

    def __init__(self, block: int = 64) -> None:
        self._block = block
        self._names: set[bytes] | None = None
        self._loading: dict[int, Loading] = {}
        """Oldest first."""
        self._coming: set[bytes] = set()
        """Names of all that is being read."""
        self._next_id = 0
        self.n_hits = self.n_loaded = self.n_written = 0
        """Requests for which something was read so far, and tokens: read, and written."""
        self.n_bytes = 0
        """What all files take, those of other models too, as far as is known."""

    @property
    def open(self) -> bool:
        """Whether there is a disk tier, and it is known what it has."""
        return self._names is not None

    def listed(self, names: Collection[bytes], n_bytes: int) -> None:
        self._names, self.n_bytes = set(names), n_bytes

    def written(self, names: Collection[bytes], n_new: int, n_bytes: int) -> None:
        """Note what is there, how many blocks of it are new, and what all files take now."""
        if self._names is not None:
            self._names.update(names)
        self.n_written += n_new * self._block
        self.n_bytes = n_bytes

    def behind(self, name: bytes, tokens: array[int], start: int, most: int) -> list[bytes]:
        """Return the names of the blocks on disk that `tokens` go on with, behind the one with this name.

        The first of them begins at `start`, none at or beyond `most`.
        """
        found: list[bytes] = []
        if self._names:
            while start < most and start + self._block <= len(tokens):
                name = name_behind(name, tokens[start : start + self._block].tobytes())
                if name not in self._names:
                    break
                found.append(name)
                start += self._block
        return found

    def load(self, sequence: Request, names: Sequence[bytes], now_s: float) -> tuple[int, Sequence[bytes]]:
        """Note that a request waits for these blocks; return a number for that, and what is to be read.

        That is from the first that is not being read already: reads are done one after the other, so that
        those are there before.
        """
        n_coming = next((i for i, name in enumerate(names) if name not in self._coming), len(names))
        wanted = names[n_coming:]
        self._next_id += 1
        self._loading[self._next_id] = Loading(sequence, wanted, now_s + WAIT_S)
        self._coming.update(wanted)
        return self._next_id, wanted

    def loading(self, load_id: int) -> Loading | None:
        """Return who waits, if what is being read for it is still of use."""
        return self._loading.get(load_id)

    def loaded(self, loading: Loading, n_new: int, missing: Collection[bytes]) -> None:
        """Note that so many tokens came, and what could not be read."""
        self.n_loaded += n_new
        if n_new and not loading.is_hit:
            loading.is_hit = True
            self.n_hits += 1
        if self._names is not None:
            self._names.difference_update(missing)

    def done(self, load_id: int) -> None:
        self._coming.difference_update(self._loading.pop(load_id).names)

    def soonest(self) -> float | None:
        """Return when the first of those that wait will have waited long enough."""
        return next((one.due_s for one in self._loading.values() if one.waits), None)

    def overdue(self, now_s: float) -> list[Request]:
        """Return the requests that wait no longer."""
        late = [one for one in self._loading.values() if one.waits and one.due_s <= now_s]
        for one in late:
            one.waits = False
        return [one.sequence for one in late]

    def forget_requests(self) -> None:
        """Forget who waits, and what is being read: nobody is here any more to whom it belonged."""
        self._loading.clear()
        self._coming.clear()


def whole(blocks: Sequence[Block], block: int) -> Sequence[Block]:
    """Return the blocks of a beginning without its tail: what may lie on disk."""
    return blocks[:-1] if blocks and blocks[-1].n_tokens < block else blocks
