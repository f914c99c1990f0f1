"""Host tier: which prefixes host memory keeps beside those in slots. Pure: it counts tokens and names blocks.

A tree of blocks of 64 tokens: a beginning that several sequences share lies there once, an entry is given up
from its end, and a lookup takes a dictionary per block. The last block of an entry may be shorter, so that a
sequence comes back to the very token where it was left; nothing lies behind such a tail. Each salt has a root
of its own, so that what was kept under one is never found under another; room is made among all of them.

A hit leaves everything where it is. What was used longest ago goes first, from its end: what uses a block
uses all before it. All blocks cost about the same per token, to keep and to compute again, and how often one
was used says little more (`cobali bench keep`): conversations that are over were used often, too.

It takes what a slot is about to lose, if that is at least a block long: a prefix that is cut or dropped, or a
preempted sequence. A tick moves one sequence and, beyond that, what fits in `MOVE_S`. What could not be saved
is forgotten; what cannot be restored is computed in the same tick (`Unrestored`). Where slots only go back to
states, each is kept with the cells before it (states.py). There is no host memory for cells that llama.cpp
does not write one by one (`LlamaBackend.measure_cell`).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from hashlib import blake2b

MOVE_S = 0.002
"""Seconds of a tick that may go into moving cells between the tiers, beyond the first move."""
_S_PER_BYTE = 1e-9
_LEARN = 0.2
NAME_BYTES = 20
"""Of a block's name."""


def name_behind(name: bytes, tokens: bytes) -> bytes:
    """Return the name of a block with these tokens after the block called `name`: a hash of both.

    So it stands for a whole beginning, and no other text has the same.
    """
    return blake2b(name + tokens, digest_size=NAME_BYTES).digest()


def root_name(salt: str) -> bytes:
    """Return the name that stands before a salt's first blocks, so that no two salts share names."""
    return blake2b(salt.encode(), digest_size=NAME_BYTES).digest() if salt else b""


def chain(tokens: array[int], most: int, salt: str, block: int) -> Iterator[tuple[int, bytes]]:
    """Yield where whole blocks of a text's first `most` tokens end, and their names; the root first, at 0."""
    name = root_name(salt)
    yield 0, name
    for end in range(block, min(most, len(tokens)) + 1, block):
        name = name_behind(name, tokens[end - block : end].tobytes())
        yield end, name


class Block:
    """Some tokens of a text, after those of its parent."""

    __slots__ = ("block_id", "children", "end", "key", "name", "parent", "start", "tails")

    def __init__(self, block_id: int, parent: Block | None, key: bytes, start: int, end: int) -> None:
        self.block_id, self.parent, self.key = block_id, parent, key
        self.start, self.end = start, end
        """Where its tokens lie in a sequence that holds them."""
        self.children: dict[bytes, Block] = {}
        """Whole blocks behind it, by their tokens."""
        self.tails: dict[bytes, Block] = {}
        """Shorter ones."""
        self.name = b""
        """What it is called outside; see `name_behind`."""

    @property
    def n_tokens(self) -> int:
        return self.end - self.start

    @property
    def behind(self) -> Sequence[Block]:
        return [*self.children.values(), *self.tails.values()]


class HostTier:
    """The books of host memory. Whoever moves the cells knows them by the ids of their blocks."""

    def __init__(self, n_cells: int, block: int = 64) -> None:
        """`n_cells`: most tokens to keep; 0 keeps nothing."""
        self.n_cells, self._block = n_cells, block
        self.n_used = 0
        """Tokens kept."""
        self.n_hits = self.n_restored = self.n_saved = self.n_evicted = 0
        """Sequences that began from here so far, and tokens: brought back, moved here, given up for room."""
        self._roots: dict[str, Block] = {}
        """By salt; one that nothing lies behind is let go."""
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        """Those first that were used longest ago; a block never comes before what lies behind it."""
        self.needed: Sequence[Block] = ()
        """A beginning that is being restored: what is saved meanwhile does not displace it."""
        self._next_id = 0

    @property
    def n_blocks(self) -> int:
        return len(self._blocks)

    @property
    def n_salts(self) -> int:
        """How many salts have blocks."""
        return len(self._roots)

    def match(self, tokens: array[int], most: int, salt: str = "") -> list[Block]:
        """Return the blocks of the longest prefix kept; the last may reach beyond `most` tokens."""
        node, blocks = self._root_of(salt), list[Block]()
        while node.end < most:
            child = node.children.get(self._key(tokens, node.end))
            if child is None:
                tail = self._tail(node, tokens, len(tokens))
                return blocks if tail is None else [*blocks, tail]
            blocks.append(child)
            node = child
        return blocks

    def tail(self, tokens: array[int], end: int, salt: str, blocks: Sequence[Block]) -> Block | None:
        """Return the shorter block at the end of the first `end` tokens, after these whole ones."""
        at = end // self._block
        parent = blocks[at - 1] if at else self._root_of(salt)
        return parent.tails.get(tokens[parent.end : end].tobytes())

    def use(self, blocks: Sequence[Block]) -> None:
        """Record that a prefix is used: its blocks from the first one on, all of which are kept."""
        for block in reversed(blocks):
            self._blocks.move_to_end(block.block_id)

    def keeps(self, block: Block) -> bool:
        return block.block_id in self._blocks

    def insert(self, tokens: array[int], n: int, salt: str = "") -> tuple[list[Block], list[int]]:
        """Keep the first `n` tokens for requests with this salt, as far as they are worth it.

        Returns the blocks that are new, and the ids of those that were given up.
        """
        new, removed = self._grow(tokens, n, salt)
        self.n_saved += sum([block.n_tokens for block in new])
        return new, removed

    def load(self, tokens: array[int], start: int, end: int, salt: str = "") -> tuple[list[Block], list[int]]:
        """Keep the tokens `start .. end`, which were read from the disk, if all before them are here.

        Returns what `insert` does.
        """
        blocks = self.match(tokens, end, salt)
        reach = sum([block.n_tokens for block in blocks if block.n_tokens == self._block])
        return self._grow(tokens, end, salt) if start <= reach < end else ([], [])

    def _grow(self, tokens: array[int], n: int, salt: str) -> tuple[list[Block], list[int]]:
        replaced: list[Block] = []
        path = [self._root_of(salt)]
        while path[-1].end + self._block <= n and (
            child := path[-1].children.get(self._key(tokens, path[-1].end))
        ):
            path.append(child)
        n_there = len(path)
        if (tail := self._tail(path[-1], tokens, n)) is not None:
            if tail.end == n:
                path.append(tail)
                n_there += 1
            else:  # it is part of what comes
                self._remove(tail, replaced)
        while path[-1].end < n:
            path.append(self._add(path[-1], tokens, min(path[-1].end + self._block, n)))
        if len(path) > 1:
            self._roots[salt] = path[0]
        self.use(path[1:])
        self.use([block for block in self.needed if self.keeps(block)])
        evicted = [block for block in self._make_room() if block not in path[n_there:]]
        new = [block for block in path[n_there:] if self.keeps(block)]
        self.n_evicted += sum([block.n_tokens for block in evicted])
        return new, [block.block_id for block in [*replaced, *evicted]]

    def drop(self, block_ids: Collection[int]) -> list[int]:
        """Forget blocks whose cells are lost, and all blocks after them; return the ids of both."""
        removed: list[Block] = []
        for block_id in block_ids:
            if (block := self._blocks.get(block_id)) is not None:
                self._remove(block, removed)
        return [block.block_id for block in removed]

    def clear(self) -> None:
        self._roots.clear()
        self._blocks.clear()
        self.n_used, self.needed = 0, ()

    def _root_of(self, salt: str) -> Block:
        if (root := self._roots.get(salt)) is None:
            root = Block(-1, None, salt.encode(), 0, 0)
            root.name = root_name(salt)
        return root

    def _key(self, tokens: array[int], start: int) -> bytes:
        return tokens[start : start + self._block].tobytes()

    def _tail(self, node: Block, tokens: array[int], most: int) -> Block | None:
        """Return the longest tail after `node` that matches the tokens, up to `most` of them."""
        if node.tails:
            for end in range(min(node.end + self._block - 1, most), node.end, -1):
                if (tail := node.tails.get(tokens[node.end : end].tobytes())) is not None:
                    return tail
        return None

    def _add(self, parent: Block, tokens: array[int], end: int) -> Block:
        block = Block(self._next_id, parent, tokens[parent.end : end].tobytes(), parent.end, end)
        self._next_id += 1
        block.name = name_behind(parent.name, block.key)
        self._siblings(parent, block)[block.key] = block
        self._blocks[block.block_id] = block
        self.n_used += block.n_tokens
        return block

    def _siblings(self, parent: Block, block: Block) -> dict[bytes, Block]:
        return parent.children if block.n_tokens == self._block else parent.tails

    def _remove(self, block: Block, removed: list[Block]) -> None:
        below = [block]
        while below:
            lower = below.pop()
            below += lower.behind
            del self._blocks[lower.block_id]
            self.n_used -= lower.n_tokens
            removed.append(lower)
        if (parent := block.parent) is None:
            return
        del self._siblings(parent, block)[block.key]
        if parent.parent is None and not parent.behind:
            self._roots.pop(parent.key.decode(), None)

    def _make_room(self) -> list[Block]:
        evicted: list[Block] = []
        while self.n_used > self.n_cells:
            self._remove(next(iter(self._blocks.values())), evicted)
        return evicted

    def problems(self) -> list[str]:
        problems = []
        if self.n_used != sum([block.n_tokens for block in self._blocks.values()]):
            problems.append("the cells in host memory are miscounted")
        if self.n_used > self.n_cells:
            problems.append("more cells in host memory than there may be")
        n_reached, place = 0, {block_id: i for i, block_id in enumerate(self._blocks)}
        if any(not root.behind for root in self._roots.values()):
            problems.append("a root is kept that nothing lies behind")
        below = [block for root in self._roots.values() for block in root.behind]
        while below:
            block = below.pop()
            n_reached += 1
            if self._blocks.get(block.block_id) is not block:
                problems.append(f"block {block.block_id} is in the tree and not in the books")
            elif any(place.get(child.block_id, 0) > place[block.block_id] for child in block.behind):
                problems.append(f"block {block.block_id} would go before what lies behind it")
            if any(child.parent is not block or child.start != block.end for child in block.behind):
                problems.append(f"something else lies behind block {block.block_id}")
            below += block.behind
        if n_reached != len(self._blocks):
            problems.append("a block in the books is not in the tree")
        return problems


class Moves:
    """A tick's budget for moving cells between the tiers: the first move, and `MOVE_S` beyond it."""

    def __init__(self, cell_bytes: int) -> None:
        """`cell_bytes`: of one token. Until a move was measured, moves are taken to be slow."""
        self.s_per_token = cell_bytes * _S_PER_BYTE
        """Seconds that moving a token takes; 0: unknown."""
        self._n_beyond: int | None = None
        """Tokens to be moved in this tick, beyond the first move; None before that."""
        self.spent_s = 0.0
        """Time that the moves of this tick took."""

    def begin(self) -> None:
        self._n_beyond, self.spent_s = None, 0.0

    def affords(self, n_tokens: int) -> bool:
        """Return whether moving so many tokens fits in the tick."""
        return self._n_beyond is None or (self._n_beyond + n_tokens) * self.s_per_token <= MOVE_S

    def plan(self, n_tokens: int) -> None:
        self._n_beyond = 0 if self._n_beyond is None else self._n_beyond + n_tokens

    def learn(self, n_tokens: int, seconds: float) -> None:
        self.spent_s += seconds
        seen, before = seconds / n_tokens, self.s_per_token
        self.s_per_token = before + (_LEARN if before else 1.0) * (seen - before)
