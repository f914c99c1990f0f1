"""Disk tier: which blocks are on disk, by name, and which requests wait for some. Pure: it moves no bytes.

A block's name is a hash of its tokens and of the name of the block before it, so that it stands for a whole
beginning: a lookup is a hash and a set per block, nothing but names is remembered, and no other text has the
same name. States (states.py) lie among the blocks, under longer names; only where one stands behind it, a
block may be shorter than others. What makes cells unreadable to others (the model, how they are laid out) is
no part of a name: whoever keeps the files keeps those apart.

Reading pays where it is predicted to take less time than computing the same tokens. What it takes is learnt
from the reads; what was too slow fades, so that a disk that had a bad time is tried again.

Files are read into host memory before their request gets a slot; it waits for them in the queue, no longer
than `WAIT_S`, and nobody waits for it.

Trouble with the disk never ends a request: it is logged once, and the prompt is computed.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cobali_ray.core.cache.host_tier import NAME_BYTES, Block, chain, name_behind
from cobali_ray.core.cache.states import StateIndex
from cobali_ray.core.request.sequence import Sequence as Request

WAIT_S = 2.0
"""The longest that a request waits for the disk; what is read by then is used."""
_LEARN = 0.2
_FADE = 0.98
"""Factor by which a predicted reading time falls each time that reading was not worth it."""


@dataclass(slots=True)
class Loading:
    """A request for which blocks are being read."""

    sequence: Request
    names: Sequence[bytes]
    n_cells: int
    """How many of its first tokens have cells once all is read."""
    n_state: int
    """After how many of them a state is read, too; 0: none is."""
    due_s: float
    """When it continues without them."""
    waits: bool = True
    """Whether it still waits."""
    is_hit: bool = False
    """Whether any of them could be read."""


class DiskTier:
    """The books of what is on disk. Before `listed` was called, nothing is there and nothing is written."""

    def __init__(self, block: int = 64) -> None:
        self._block = block
        self.open = False
        """Whether there is a disk tier, and its files are listed."""
        self._names: set[bytes] = set()
        self._states = StateIndex(block)
        self._s_per_byte = 0.0
        """Seconds that reading a byte takes; 0: unknown."""
        self._loading: dict[int, Loading] = {}
        """Oldest first."""
        self._coming: set[bytes] = set()
        """Names of all that is being read."""
        self.writing: set[bytes] = set()
        """Names of what a backup writes."""
        self._next_id = 0
        self.n_hits = self.n_loaded = self.n_written = 0
        """Requests for which something was read so far, and tokens: read, and written."""
        self.n_bytes = 0
        """What all files take, those of other models too, as far as is known."""

    def listed(self, names: Collection[bytes], n_bytes: int) -> None:
        self.open, self._names, self._states, self.n_bytes = True, set(), StateIndex(self._block), n_bytes
        self._add(names)

    def _add(self, names: Collection[bytes]) -> None:
        for name in set(names) - self._names:
            if is_state(name):
                self._states.add(name)
        self._names.update(names)

    def _remove(self, names: Collection[bytes]) -> None:
        for name in names:
            if name in self._names:
                self._names.remove(name)
                if is_state(name):
                    self._states.remove(name)

    def written(
        self,
        names: Collection[bytes],
        n_new: int,
        n_bytes: int,
        missing: Collection[bytes] = (),
        removed: Collection[bytes] = (),
    ) -> None:
        """Record blocks on disk, how many are new, the bytes of all files, and blocks that are missing."""
        self._add(names)
        self._remove(removed)
        self.writing.difference_update(names, missing)
        self.n_written += n_new * self._block
        self.n_bytes = n_bytes

    def behind(self, name: bytes, tokens: array[int], start: int, most: int) -> list[bytes]:
        """Return the names of the blocks on disk that continue `tokens` after the block with this name.

        The first of them begins at `start`, none at or beyond `most`.
        """
        names: list[bytes] = []
        while start < most and start + self._block <= len(tokens):
            name = name_behind(name, tokens[start : start + self._block].tobytes())
            if name not in self._names:
                break
            names.append(name)
            start += self._block
        return names

    def states(self, tokens: array[int], most: int, salt: str) -> list[tuple[int, bytes]]:
        """Return a text's states on disk, the shallowest first: after how many tokens, and the name."""
        names = self._states.along(chain(tokens, most, salt, self._block), tokens, most)
        return [(n, name) for n, name in names if self.has(name)]

    def has(self, name: bytes) -> bool:
        return name in self._names

    def pays(self, n_bytes: int, compute_s: float) -> bool:
        """Return whether reading `n_bytes` takes less time than computing, as far as both are known."""
        if not compute_s or n_bytes * self._s_per_byte <= compute_s:
            return True
        self._s_per_byte *= _FADE
        return False

    def learn(self, n_bytes: int, seconds: float) -> None:
        """Learn how long a read took."""
        if n_bytes:
            before = self._s_per_byte
            self._s_per_byte = before + (_LEARN if before else 1.0) * (seconds / n_bytes - before)

    def load(
        self,
        sequence: Request,
        names: Sequence[bytes],
        now_s: float,
        *,
        n_cells: int,
        n_state: int = 0,
        most_s: float = WAIT_S,
    ) -> tuple[int, Sequence[bytes]]:
        """Let a request wait for these blocks; return the load's id, and what is to be read.

        That is from the first that is not being read already: reads are done one after the other, so that
        those before it are there first.
        """
        n_coming = next((i for i, name in enumerate(names) if name not in self._coming), len(names))
        unread = names[n_coming:]
        self._next_id += 1
        due_s = now_s + min(most_s, WAIT_S)
        self._loading[self._next_id] = Loading(sequence, unread, n_cells, n_state, due_s)
        self._coming.update(unread)
        return self._next_id, unread

    def loading(self, load_id: int) -> Loading | None:
        """Return the load, if what it reads is still of use."""
        return self._loading.get(load_id)

    def loaded(self, loading: Loading, n_new: int, missing: Collection[bytes], *, of_use: bool) -> None:
        """Record how many tokens' cells were read, whether anything is of use, and what could not be read."""
        self.n_loaded += n_new
        if of_use and not loading.is_hit:
            loading.is_hit = True
            self.n_hits += 1
        self._remove(missing)

    def done(self, load_id: int) -> None:
        self._coming.difference_update(self._loading.pop(load_id).names)

    def soonest(self) -> float | None:
        """Return when the first waiting request will have waited long enough; None: none waits."""
        return min([loading.due_s for loading in self._loading.values() if loading.waits], default=None)

    def overdue(self, now_s: float) -> list[Request]:
        """Return the requests that have waited long enough."""
        late = [loading for loading in self._loading.values() if loading.waits and loading.due_s <= now_s]
        for loading in late:
            loading.waits = False
        return [loading.sequence for loading in late]

    def forget_requests(self) -> None:
        """Forget all waiting requests and loads, when all requests have ended, and what a backup writes.

        The last instructions may never have reached the disk.
        """
        self._loading.clear()
        self._coming.clear()
        self.writing.clear()


def is_state(name: bytes) -> bool:
    """Return whether this is the name of a state, and not of a block."""
    return len(name) > NAME_BYTES


def whole(blocks: Sequence[Block], block: int) -> Sequence[Block]:
    """Return the whole blocks of a prefix, without a shorter tail: those that may be on disk."""
    return blocks[:-1] if blocks and blocks[-1].n_tokens < block else blocks
