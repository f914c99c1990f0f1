"""What one engine and one tick may do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Gt, Le

from cobali_ray.errors import ConfigError

MAX_COUNT = (1 << 31) - 1
"""What llama.cpp can count to."""
MAX_S = 1e9
"""Thirty years, which every clock can wait."""
Count: TypeAlias = Annotated[int, Ge(0), Le(MAX_COUNT)]
Seconds: TypeAlias = Annotated[float, Gt(0), Le(MAX_S)]

PrefillOrder: TypeAlias = Literal["fcfs", "shortest"]
CellType: TypeAlias = Literal["f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
"""How keys or values are stored in the KV cache, by ggml's names."""
Begins: TypeAlias = Literal["anywhere", "at states", "never"]
"""How a prompt may reuse what was computed for an earlier one: up to any token, up to a state, or never."""
PLAIN_CELL_TYPES: frozenset[CellType] = frozenset({"f16", "bf16"})
"""Those that are not quantised."""

MAX_SLOTS = 256
"""Sequences that llama.cpp keeps apart in one context."""
DEFAULT_SLOTS = 16
MIN_SCORED_ROWS = 2
"""A chunk of one token is computed by another kernel, which rounds differently."""
_MANY_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Grain:
    """Which prefill chunks a backend computes well. Counts are tokens; the default knows no difference."""

    step: int = 1
    """Chunks of a multiple of this many tokens are the cheapest per token."""
    least: int = 1
    """Shorter chunks are computed by another kernel, with costs of its own."""
    beside: int = 0
    """How many tokens of a chunk beside decode tokens do not count: they are computed with those."""
    pass_cells: int | None = None
    """Not None: the rows of a micro-batch all take as long as its deepest, and one micro-batch more takes as
    long as a row's attention to so many cells; see runs.py."""

    def counted(self, length: int, *, mixed: bool) -> int:
        """Return how many tokens of a chunk the steps are counted in."""
        return length - self.beside if mixed else length

    def padded(self, length: int, *, mixed: bool) -> int:
        """Return the tokens whose attention is computed for a chunk: whole steps, or 0 if it is too short."""
        counted = self.counted(length, mixed=mixed)
        return -(-counted // self.step) * self.step if counted >= self.least else 0

    def ragged(self, length: int, *, mixed: bool) -> bool:
        """Whether a chunk of several steps is so far from whole ones that it takes clearly longer."""
        counted = self.counted(length, mixed=mixed)
        return self.step < counted < _MANY_STEPS * self.step and counted % self.step > 0

    def fit(self, length: int, *, mixed: bool) -> int:
        """Return the largest chunk that is computed well, of at most `length` tokens.

        Of whole steps if there is a step, else anything in tiles, else 0.
        """
        counted = self.counted(length, mixed=mixed)
        if counted < self.least:
            return 0
        return length - counted % self.step if counted >= self.step else length

    def sizes(self, lengths: Iterable[int], *, mixed: bool) -> tuple[int, ...]:
        """Return which chunks of about these lengths there are, ascending."""
        if self.step == 1:
            return tuple(lengths)
        beside = self.beside if mixed else 0
        return tuple(sorted({self.fit(n + beside, mixed=mixed) or n for n in lengths}))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """The bounds that an operator sets. Counts are tokens unless the name says otherwise."""

    n_slots: Annotated[int, Ge(1), Le(MAX_SLOTS)] | Literal["auto"] = DEFAULT_SLOTS
    """auto: 16, or as many as half of the memory left after the model's weights holds."""
    prefill_chunk: Count = 512
    """Most prompt tokens of one request in one tick; 0 computes every prompt whole."""
    token_budget: Annotated[int, Ge(1), Le(MAX_COUNT)] | None = None
    """Most tokens in one tick; None: one chunk plus one token for every slot."""
    min_prefix: Count = 32
    """Shortest prefix worth reusing; 0: never reuse one."""
    max_queue: Count = 128
    """How many requests may wait before new ones get 429."""
    max_queue_tokens: Count = 262_144
    """How many prompt tokens may wait before new requests get 429."""
    max_predicted_ttft_s: Seconds | None = None
    """Refuse a request (429) if its answer is predicted to begin later; None: take whatever the queue has
    room for."""

    def chunk(self, n_ctx: int) -> int:
        """Most prompt tokens of one request in one tick, where a slot has room for `n_ctx`."""
        return self.prefill_chunk or n_ctx

    def budget(self, n_slots: int, n_ctx: int) -> int:
        """Most tokens in one tick of so many slots, each of which has room for `n_ctx`."""
        return self.token_budget or min(min(self.chunk(n_ctx), n_ctx) + n_slots, n_slots * n_ctx)

    def on(self, n_slots: int, n_ctx: int, **facts: Any) -> EngineLimits:
        """Return the bounds of an engine. `facts`: the fields of `EngineLimits` that its backend knows."""
        bounds = {
            "n_slots": n_slots, "prefill_chunk": self.chunk(n_ctx), "n_ctx_slot": n_ctx,
            "token_budget": self.budget(n_slots, n_ctx),
        }  # fmt: skip
        return EngineLimits(**asdict(self) | bounds | facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits(LimitSettings):
    """Bounds the scheduler keeps: those that were set, each a number, and what the backend has."""

    n_slots: int = DEFAULT_SLOTS
    token_budget: int
    n_ctx_slot: int
    """Most tokens of one sequence in the KV cache."""
    n_cells: int
    """KV cells of all slots together; less than n_slots * n_ctx_slot means overcommitted."""
    prefill_order: PrefillOrder = "fcfs"
    """Which prompts come first; a server's engine has "shortest", the others are for comparison."""
    n_host_cells: int = 0
    """Cells that host memory may hold beside the cache; 0: it holds none."""
    host_block: int = 64
    """Tokens that are moved there together, and the shortest prefix that is."""
    cell_bytes: int = 0
    """What a cell takes there."""
    keeps_images: bool = True
    """Whether what a slot with an image holds can be kept there, too."""
    state_bytes: int = 0
    """What a saved state takes; 0: a slot can be cut to any prefix and needs none. See states.py."""
    n_states: int = 0
    """How many states may be kept."""
    state_step: int = 16
    """Least tokens between two states: computing fewer takes less time than moving a state."""
    states_alone: bool = False
    """Whether a state is all that a slot holds, so that it can be put into an empty one."""
    copies: bool = False
    """Whether a slot's prefix can be copied to another."""
    shares: bool = False
    """Whether such a copy takes no cells of its own, as in a unified cache."""
    dense: bool = False
    """Whether gaps between busy sequence ids cost a pass, as in a split cache, and can be closed."""
    n_scored_rows: int = 256
    """Rows of logits that one tick may compute for logprobs of prompts, beside those that are drawn from."""
    grain: Grain = Grain()

    def __post_init__(self) -> None:
        for name in ("n_slots", "n_ctx_slot", "n_cells", "token_budget", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise ConfigError(name, f"must be at least 1, got {getattr(self, name)}")
        if self.token_budget < self.n_slots:
            raise ConfigError("token_budget", f"{self.token_budget} cannot feed {self.n_slots} slots")

    @property
    def n_most(self) -> int:
        """Largest number of KV tokens that one request can ever hold."""
        return min(self.n_ctx_slot, self.n_cells)
