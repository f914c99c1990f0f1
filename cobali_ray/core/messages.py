"""The scheduler's vocabulary: events in, instructions out. All of them are values.

Times are seconds on the engine's clock and come in with the events. A tick is, inline: TickBegun, Sampled,
Emitted, TickEnded; where host work hides behind the device: TickBegun, Emitted (the last tick's), Sampled,
TickEnded. If texts are embedded in it, Embedded follows TickBegun. Whatever else happens comes in between, in
any order.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from typing import NamedTuple, TypeAlias

from cobali_ray.core.plan.plan import Plan
from cobali_ray.core.request.embedding import EmbeddingRequest, TextPiece
from cobali_ray.core.request.events import End, FinishReason
from cobali_ray.core.request.request import Request
from cobali_ray.errors import CobaliError

# -- events ---------------------------------------------------------------------------------------------


class Submitted(NamedTuple):
    """A request came in. Whatever happens to it, it ends with one End."""

    request: Request | EmbeddingRequest
    now_s: float
    ready: bool = True
    """False: something it needs is still being prepared, and Ready follows."""
    arrived_s: float | None = None
    """When it came, if that was earlier: what comes during a tick is taken after it."""


class Ready(NamedTuple):
    """What a request lacked has been prepared."""

    request_id: str
    now_s: float


class Cancelled(NamedTuple):
    """The client has left; unknown and ended requests are ignored."""

    request_id: str
    now_s: float


class Paused(NamedTuple):
    """Compute nothing until Resumed comes: the next tick parks all running requests."""

    now_s: float


class Resumed(NamedTuple):
    """Parked requests continue."""

    now_s: float


class TickBegun(NamedTuple):
    """The backend is free for the next pass."""

    now_s: float


class Embedded(NamedTuple):
    """The texts of an Embed are computed and their vectors sent; the tick continues."""

    failed: Mapping[str, CobaliError]
    """Requests with a text that could not be computed, and why."""
    now_s: float


class Refused(NamedTuple):
    """The pass of a Compute was not computed; the answer is another Compute."""

    error: CobaliError
    slot_id: int | None
    """The slot at fault; None: the cache is full."""
    now_s: float


class Sampled(NamedTuple):
    """The pass is computed, and its rows are drawn."""

    tokens: Seq[int]
    """One per row of the plan."""
    failed: Mapping[int, CobaliError]
    """Rows that could not be drawn, and why."""
    now_s: float
    complete: Collection[int] = ()
    """Rows whose token completes what their grammar allows: nothing can follow."""
    n_each: Seq[int] | None = None
    """Tokens of each row, one after another, where the plan has drafts; then tokens are meant above where
    rows are named. None: one each."""


class Stopped(NamedTuple):
    """A stop string ended the text of a request."""

    request_id: str
    stop: str | None
    n_dropped: int = 0
    """Tokens that were drawn in the same pass behind the one with the stop string."""


class Emitted(NamedTuple):
    """The text of the last Emit has been sent."""

    stopped: Seq[Stopped]
    now_s: float


class Moved(NamedTuple):
    """Cells were moved between slots and host memory, as instructed."""

    n_tokens: int
    """Tokens whose cells were moved; those that went there and back in one tick count twice."""
    seconds: float
    lost: Seq[int]
    """Blocks that could not be saved."""


class StatesMoved(NamedTuple):
    """States were saved and restored, as instructed."""

    n: int
    seconds: float
    lost: Seq[int]
    """States that could not be saved or restored."""


class Unrestored(NamedTuple):
    """Slots that were to be restored are empty; the pass was not computed."""

    slot_ids: Collection[int]
    block_ids: Collection[int]
    """What they were to hold."""
    now_s: float


class Filled(NamedTuple):
    """An idle slot is to hold these tokens, whose cells come from a file once there is room for them."""

    slot_id: int
    tokens: array[int]
    salt: str
    states: Seq[tuple[int, bytes]] = ()
    """Their states: after how many tokens, and the name for `Hold`."""


class Emptied(NamedTuple):
    """An idle slot is to be emptied."""

    slot_id: int


class BlocksListed(NamedTuple):
    """The files of the disk tier were listed."""

    names: Collection[bytes]
    """Blocks and states that can be read."""
    n_bytes: int
    """What all files take."""


class BlocksWritten(NamedTuple):
    """Blocks and states are on disk: written now or before."""

    names: Collection[bytes]
    n_new: int
    """Whole blocks that were written now."""
    n_bytes: int
    """What all files take now."""
    missing: Collection[bytes] = ()
    """Blocks and states that could not be written."""
    removed: Collection[bytes] = ()
    """Missing ones that were there before: another engine made room."""


class BlocksLoaded(NamedTuple):
    """Blocks were read from disk, as instructed."""

    load_id: int
    start: int
    """Position of the first one in its tokens; they are adjacent."""
    names: Seq[bytes]
    missing: Collection[bytes] = ()
    """Blocks and states that could not be read."""
    done: bool = True
    """Whether this was the last part of the load."""
    n_bytes: int = 0
    """Bytes read, and in how many seconds."""
    seconds: float = 0.0


class EngineStopping(NamedTuple):
    """The engine stops: what slots hold is to be saved."""

    now_s: float


class TickEnded(NamedTuple):
    """All work of the tick is done."""

    now_s: float


class Failed(NamedTuple):
    """An error that ends one request, or all of them."""

    error: CobaliError
    now_s: float
    request_id: str | None = None
    """None: every open request, and the cache holds nothing that can be trusted."""


Event: TypeAlias = (
    Submitted | Ready | Cancelled | Paused | Resumed | TickBegun | Embedded | Refused | Sampled | Emitted
    | TickEnded | Moved | StatesMoved | Unrestored | Filled | Emptied | BlocksListed | BlocksWritten
    | BlocksLoaded
    | EngineStopping | Failed
)  # fmt: skip

# -- instructions ---------------------------------------------------------------------------------------


class Truncate(NamedTuple):
    """Cut a slot's cache to its first tokens; to 0 where a slot can only be restored to a state."""

    slot_id: int
    n_keep: int


class SaveState(NamedTuple):
    """Keep the state of a slot, which holds so many tokens."""

    slot_id: int
    state_id: int
    n_tokens: int


class RestoreState(NamedTuple):
    """Restore a saved state of a slot, after its first tokens."""

    slot_id: int
    state_id: int
    n_keep: int


class ForgetStates(NamedTuple):
    """Free the host memory of these states."""

    state_ids: Seq[int]


class Copy(NamedTuple):
    """Copy the first tokens of a slot's cache to an empty slot."""

    donor_id: int
    slot_id: int
    n_keep: int


class Swap(NamedTuple):
    """Exchange the sequence ids of two slots; both keep what they hold."""

    slot_id: int
    other_id: int
    n_cells: int
    """Cells that both hold together: all of them are moved."""


class Save(NamedTuple):
    """Keep some of a slot's cells in host memory: `(block_id, start, end)` of each block of its tokens."""

    slot_id: int
    blocks: Seq[tuple[int, int, int]]


class Restore(NamedTuple):
    """Fill an empty slot with the first tokens of these blocks, which follow each other."""

    slot_id: int
    block_ids: Seq[int]
    n_keep: int
    state_id: int | None = None
    """The state behind them, where a slot has one; there may be no blocks then."""


class Forget(NamedTuple):
    """Free the host memory of these blocks."""

    block_ids: Seq[int]


class LoadBlocks(NamedTuple):
    """Read blocks from disk that follow each other in a request's tokens, and a state behind them."""

    load_id: int
    start: int
    names: Seq[bytes]


class Hold(NamedTuple):
    """Keep blocks that were read in host memory: `(block_id, name)` of each; drop the others."""

    blocks: Seq[tuple[int, bytes]]
    states: Seq[tuple[int, bytes]] = ()
    """The same of states."""


class StoreBlocks(NamedTuple):
    """Write blocks of host memory to disk unless they are there: `(block_id, name)` of each, in order.

    They begin one sequence, and count as used now.
    """

    blocks: Seq[tuple[int, bytes]]


class StoreState(NamedTuple):
    """Write a state to disk unless it is there, and the shorter block before it."""

    state_id: int
    name: bytes
    tail: tuple[int, bytes] | None
    """The block's id and name; None: there is none, or it is not kept."""
    depth: int
    """How many whole blocks lie before it."""


class BackupPart(NamedTuple):
    """What a name stands for on disk; without cells and state it is there, and counts as used now."""

    name: bytes
    cells: tuple[int, int] | None = None
    """The range of tokens that the cells are of."""
    state_id: int | None = None


class BackUp(NamedTuple):
    """Write what an idle slot holds to disk, past host memory."""

    slot_id: int
    n_tokens: int
    """How many it holds."""
    runs: Seq[tuple[int, Seq[BackupPart]]]
    """Parts of its text that follow each other, and how many blocks lie before the first."""


class Assign(NamedTuple):
    """From now on a slot belongs to this request."""

    slot_id: int
    request_id: str


class Embed(NamedTuple):
    """Compute these texts and send their vectors, before anything else of the tick."""

    pieces: tuple[TextPiece, ...]
    begun: tuple[EmbeddingRequest, ...]
    """Requests whose first texts these are."""


class Compute(NamedTuple):
    """Compute this plan, then sample its rows."""

    plan: Plan


class Emit(NamedTuple):
    """Turn sampled tokens into text and send it: of each request that has not ended, the token of a row.

    Tokens of one request are adjacent.
    """

    tokens: tuple[Drawn, ...]


Drawn: TypeAlias = tuple[str, int, int, FinishReason | None]
"""(request_id, token, row, finish reason if it is the last token of its request)."""


class Finish(NamedTuple):
    """Send the end event of a request."""

    reply_to: str
    end: End


class Clear(NamedTuple):
    """Forget every slot's cache, and what host memory holds."""


Instruction: TypeAlias = (
    Truncate | SaveState | RestoreState | ForgetStates | Copy | Swap | Save | Restore | Forget | LoadBlocks
    | Hold | StoreBlocks | StoreState | BackUp | Assign | Embed | Compute | Emit | Finish | Clear
)  # fmt: skip
