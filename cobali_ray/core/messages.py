"""What the scheduler is told, and what it answers: events in, instructions out. All of them are values.

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
    """What a request waited for is there."""

    request_id: str
    now_s: float


class Cancelled(NamedTuple):
    """Nobody wants the request any longer; unknown and ended ones are ignored."""

    request_id: str
    now_s: float


class Paused(NamedTuple):
    """Nothing is to be computed until Resumed comes: the next tick parks all who run."""

    now_s: float


class Resumed(NamedTuple):
    """Who was parked goes on."""

    now_s: float


class TickBegun(NamedTuple):
    """The backend is free for the next pass."""

    now_s: float


class Embedded(NamedTuple):
    """The texts asked for are computed, and their vectors told; the tick goes on."""

    failed: Mapping[str, CobaliError]
    """Requests some of whose texts could not be, and why."""
    now_s: float


class Refused(NamedTuple):
    """The pass asked for was not computed; the answer is another one."""

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
    n_unsaid: int = 0
    """Tokens that were drawn in the same pass behind the one with the stop string."""


class Emitted(NamedTuple):
    """The text of the tokens last told to emit is out."""

    stopped: Seq[Stopped]
    now_s: float


class Moved(NamedTuple):
    """Cells were moved between slots and host memory, as was said."""

    n_tokens: int
    """Those that went there and came back at once count twice."""
    seconds: float
    lost: Seq[int]
    """Blocks that could not be saved."""


class StatesMoved(NamedTuple):
    """States were saved and put back, as was said."""

    n: int
    seconds: float
    lost: Seq[int]
    """Those that could not be saved, or that a slot did not go back to."""


class Unrestored(NamedTuple):
    """Slots that were to be filled, or put back to a state, are empty; the pass was not computed."""

    slot_ids: Collection[int]
    block_ids: Collection[int]
    """What they were to hold."""
    now_s: float


class Filled(NamedTuple):
    """An idle slot is to hold these tokens; their cells come from outside once there is room for them."""

    slot_id: int
    tokens: array[int]
    salt: str
    states: Seq[tuple[int, bytes]] = ()
    """States of theirs that come along: behind how many, and what `Hold` is to call it."""


class Emptied(NamedTuple):
    """An idle slot is to hold nothing."""

    slot_id: int


class BlocksListed(NamedTuple):
    """The files of the disk tier were looked at."""

    names: Collection[bytes]
    """Blocks and states that can be read."""
    n_bytes: int
    """What all files take."""


class BlocksWritten(NamedTuple):
    """Blocks and states were written to disk, or were there."""

    names: Collection[bytes]
    n_new: int
    """How many whole blocks were not."""
    n_bytes: int
    """What all files take now."""
    missing: Collection[bytes] = ()
    """Those that could not be."""


class BlocksLoaded(NamedTuple):
    """Blocks were read from disk, as was said."""

    load_id: int
    start: int
    """Where the first of them lies in its tokens; they follow each other."""
    names: Seq[bytes]
    missing: Collection[bytes] = ()
    """Those that could not be read."""
    done: bool = True
    """Whether nothing more comes."""
    n_bytes: int = 0
    """What was read; the next: how long that took."""
    seconds: float = 0.0


class EngineStopping(NamedTuple):
    """The engine stops: whatever is worth keeping should be."""

    now_s: float


class TickEnded(NamedTuple):
    """All work of the tick is done."""

    now_s: float


class Failed(NamedTuple):
    """Something broke: one request, or all there is."""

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
    """Cut a slot's cache to its first tokens: any, or none where only states can be gone back to."""

    slot_id: int
    n_keep: int


class SaveState(NamedTuple):
    """Keep the state of a slot, which holds so many tokens."""

    slot_id: int
    state_id: int
    n_tokens: int


class RestoreState(NamedTuple):
    """Put a slot back to where a state was saved, behind its first tokens."""

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
    """Exchange the sequence ids that two slots compute under; both keep what they hold."""

    slot_id: int
    other_id: int
    n_cells: int
    """What they hold together, all of which is moved."""


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
    """Keep blocks that were read in host memory: `(block_id, name)` of each; the others are not wanted."""

    blocks: Seq[tuple[int, bytes]]
    states: Seq[tuple[int, bytes]] = ()
    """The same of states."""


class StoreBlocks(NamedTuple):
    """Write blocks of host memory to disk, if they are not there: `(block_id, name)` of each, first to last.

    They are the beginning of one sequence, and were needed now.
    """

    blocks: Seq[tuple[int, bytes]]


class StoreState(NamedTuple):
    """Write a state to disk if it is not there, and the shorter block before it."""

    state_id: int
    name: bytes
    tail: tuple[int, bytes] | None
    """The block's id and name; None: there is none, or it is not kept."""
    depth: int
    """How many whole blocks lie before it."""


class BackupPart(NamedTuple):
    """What is to be on disk under a name; without cells and state it should be there, and was needed now."""

    name: bytes
    cells: tuple[int, int] | None = None
    """Where the tokens lie whose cells these are."""
    state_id: int | None = None


class BackUp(NamedTuple):
    """Write what an idle slot holds to disk, without a place for it in host memory."""

    slot_id: int
    n_tokens: int
    """How many it holds."""
    runs: Seq[tuple[int, Seq[BackupPart]]]
    """Parts of its text that follow each other, and how many blocks lie before the first."""


class Assign(NamedTuple):
    """From now on a slot's rows are drawn for this request."""

    slot_id: int
    request_id: str


class Embed(NamedTuple):
    """Compute these texts and tell their vectors, before anything else of the tick."""

    pieces: tuple[TextPiece, ...]
    begun: tuple[EmbeddingRequest, ...]
    """Requests of which nothing was computed before."""


class Compute(NamedTuple):
    """Compute this plan, then draw its rows."""

    plan: Plan


class Emit(NamedTuple):
    """Tell what these tokens say: of each request that has not ended, the token drawn in this row.

    Tokens of one request follow each other.
    """

    tokens: tuple[Drawn, ...]


Drawn: TypeAlias = tuple[str, int, int, FinishReason | None]
"""(request_id, token, row, why it is the last of its request, if it is)."""


class Finish(NamedTuple):
    """Tell that a request ended."""

    reply_to: str
    end: End


class Clear(NamedTuple):
    """Forget every slot's cache, and what host memory holds."""


Instruction: TypeAlias = (
    Truncate | SaveState | RestoreState | ForgetStates | Copy | Swap | Save | Restore | Forget | LoadBlocks
    | Hold | StoreBlocks | StoreState | BackUp | Assign | Embed | Compute | Emit | Finish | Clear
)  # fmt: skip
