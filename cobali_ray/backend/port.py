"""Backend: the little the engine needs of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.logprobs import PromptRows
from cobali_ray.backend.markers import Markers
from cobali_ray.backend.projector import Projector
from cobali_ray.backend.sampling import RowSampler, SampleResult
from cobali_ray.chat.format import Format
from cobali_ray.chat.template import ChatTemplate
from cobali_ray.core.plan.adapters import Adapter
from cobali_ray.core.request.embedding import EmbeddingKind, TextPiece
from cobali_ray.core.request.limits import Grain
from cobali_ray.core.request.request import SamplingParams
from cobali_ray.core.views.stats import DeviceView

Cells: TypeAlias = Any
"""Cells of some tokens in a row, outside the cache: an array of bytes, opaque to everybody else."""
State: TypeAlias = Any
"""What a slot remembered behind some token beside its cells, likewise."""
IsCancelled: TypeAlias = Callable[[], bool]
"""Called now and then by long work: has its client left?"""


def never_cancelled() -> bool:
    """Say that the client waits for the result."""
    return False


class InfillMarks(NamedTuple):
    """Tokens around a place where text is missing; None where a vocabulary has no such token."""

    prefix: int
    """In front of what comes before the place; likewise the next."""
    suffix: int
    middle: int
    """Behind both: the answer follows."""
    repository: int | None = None
    """In front of the name of what the files belong to."""
    file: int | None = None
    """In front of a file's name."""
    bos: int | None = None
    """What every prompt begins with."""


class Words(Protocol):
    """A vocabulary: text to tokens and back, and the chat template. Thread-safe."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end an answer."""

    @property
    def chat(self) -> ChatTemplate:
        """The template, with the names of the tokens that it writes."""

    @property
    def form(self) -> Format:
        """How the template has the model write reasoning and tool calls."""

    @property
    def markers(self) -> Markers:
        """The texts around these, as the vocabulary has them."""

    @property
    def turn_marks(self) -> frozenset[int]:
        """The tokens that turns of a chat begin with; none where they begin with words."""

    @property
    def infill(self) -> InfillMarks | None:
        """The tokens that say where text is missing; None where the vocabulary has none."""

    def tokenize(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        n_most: int | None = None,
        is_cancelled: IsCancelled = never_cancelled,
    ) -> list[int]:
        """Turn text into token ids; `add_special` adds what the model wants at the start.

        Stops early once `is_cancelled` says so. Raises TooManyTokensError once there are more than `n_most`.
        """

    def pair(self, query: str, document: str, *, n_most: int | None = None) -> list[int]:
        """Return the tokens by which a model that ranks reads a document beside a query.

        Raises TooManyTokensError.
        """

    def detokenize(
        self, tokens: Sequence[int], *, special: bool = True, is_cancelled: IsCancelled = never_cancelled
    ) -> str:
        """Turn token ids into text; stops early once `is_cancelled` says so.

        Raises InvalidParameterError for an id outside the vocabulary.
        """


class Embedder(Protocol):
    """What makes vectors of texts. The thread of its backend calls it."""

    kind: EmbeddingKind

    def embed(self, pieces: Sequence[TextPiece]) -> Sequence[NDArray[np.float32]]:
        """Return the raw vector of each text; that of a text that is not complete yet means nothing.

        The first piece may continue the text that the last pass began with; nothing else is remembered.
        Raises BackendError; then nothing is remembered.
        """


class DeviceWatcher(Protocol):
    """What tells the state of a backend's devices. Any thread may call it."""

    def look(self) -> tuple[DeviceView, ...]:
        """Return what they were doing a moment ago; empty where the CPU computes alone."""

    def could_be_whole(self) -> bool:
        """Whether a device is missing that answers by now. Blocks for a few seconds."""

    def on_loss(self, report: Callable[[str], None]) -> None:
        """Have a thread call this with what was lost and why, just before the process ends for that."""


class Backend(Protocol):
    """A model with a KV cache of `n_slots` sequences. One thread calls it."""

    n_slots: int
    n_vocab: int
    n_ctx_slot: int
    """Most tokens of one slot."""
    n_cells: int
    """KV cells of all slots together."""
    n_batch: int
    """Most tokens of one forward pass."""
    end_tokens: frozenset[int]
    sampling: SamplingParams
    """How the model's file advises to draw tokens where a request says nothing."""
    words: Words
    overlaps: bool
    """Whether `forward` returns before the pass is computed, so that host work can hide behind it."""
    grain: Grain
    """Which prefill chunks it computes well."""
    cuts_tails: bool
    """Whether a slot can be cut to any prefix."""
    keeps_states: bool
    """Whether a slot cannot be cut so, but can go back to where its state was saved."""
    states_alone: bool
    """Whether such a state is all that a slot holds, so that it can be put into an empty one."""
    copies: bool
    """Whether a prefix can be copied from one slot to another."""
    shares: bool
    """Whether such a copy takes no cells of its own."""
    dense: bool
    """Whether gaps between the sequence ids of busy slots cost a pass, and `swap` can close them."""
    generates: bool
    """Whether it generates text, and does not only embed."""
    embedder: Embedder | None
    max_draft: int
    """Most tokens of a stream's draft that one pass can compute and that can be cut off again; 0: none."""
    has_head: bool
    """Whether the model brings what guesses its next tokens."""
    n_scored_rows: int
    """Most rows of one pass that are not drawn from, but say how likely a prompt's tokens are."""

    adapters: tuple[Adapter, ...]
    """The adapters that `use` takes."""

    devices: DeviceWatcher
    projector: Projector | None
    """What turns images into rows; None: the model sees none."""

    def use(self, adapter: str) -> None:
        """Compute what follows under the adapter with this key, one of `adapters`; "" is none."""

    def forward(self, batch: TickBatch) -> None:
        """Compute the batch's tokens and remember them in the cache.

        Raises:
            CacheFullError: no room; nothing was computed, try again with less.
            SlotFaultError: that slot's span breaks a rule; nothing was computed.
            BackendError: anything else; what the cache holds is unknown, call `clear`.
        """

    def wait(self) -> None:
        """Return once the last forward pass is computed."""

    def expect(self, slot_id: int, row: RowSampler) -> None:
        """Note the sampler of a slot's next rows, so that a backend may compute no more than it needs."""

    def sample(
        self,
        rows: list[RowSampler],
        drafts: Sequence[Sequence[int]] = (),
        prompts: Sequence[PromptRows] = (),
    ) -> SampleResult:
        """Draw the next token of each sequence that the last forward pass has rows for, in batch order.

        With `drafts`, one for each, possibly empty: as many tokens as were guessed right, and the one behind.
        Rows of `prompts` are not drawn from; how likely they make its tokens is `SampleResult.scored`.
        """

    def guess(self, streams: Sequence[tuple[int, int, int]]) -> list[list[int]]:
        """Have the head guess what slots say next; only where it `has_head`.

        `streams` has slots, each with its token that is not computed yet, and how many to guess: so many are
        returned for each. Guesses that are wrong, or made up, cost time and nothing else.
        """

    def truncate(self, slot_id: int, n_keep: int) -> None:
        """Cut a slot's cache to its first `n_keep` tokens; 0 frees it, which every model can do.

        Where it does not `cuts_tails`, tokens of a draft can be cut off once, right after they were computed.
        """

    def measure_state(self) -> int:
        """Return the most bytes that a saved state takes; 0 where it does not `keeps_states`.

        The first time, every slot is forgotten.
        """

    def save_state(self, slot_id: int, n_tokens: int) -> State:
        """Return the state of a slot that holds so many tokens. Raises BackendError."""

    def restore_state(self, slot_id: int, state: State, n_keep: int) -> None:
        """Put a slot back to where a state was saved, behind its first `n_keep` tokens.

        The slot holds at least these, or it is empty and there are `states_alone`.
        Raises BackendError where that cannot be; then the slot is empty.
        """

    def copy(self, donor_id: int, slot_id: int, n_keep: int) -> None:
        """Copy the first `n_keep` tokens of a slot's cache to an empty slot; only where it `copies`.

        Where it `keeps_states`, they are all that the donor holds.
        """

    def swap(self, slot_id: int, other_id: int) -> None:
        """Exchange the sequence ids that two slots compute under, only where it is `dense`.

        Both slots keep what they hold; a slot's id is its number at first, and after `clear` again.
        Raises BackendError; then what the cache holds is unknown, call `clear`.
        """

    def measure_cell(self) -> int:
        """Return the bytes that one token's cells take outside the cache; 0 if they cannot be kept there.

        The first time, every slot is forgotten.
        """

    def cell_kind(self) -> str:
        """Return what saved cells depend on beside the model's file: only with the same can they be used.

        Called after `measure_cell`.
        """

    def save(self, slot_id: int, spans: Sequence[tuple[int, int]]) -> Sequence[Cells]:
        """Return the cells of each `(start, end)` of a slot's tokens, to be kept outside the cache.

        They are arrays of bytes, `measure_cell` for each token.
        """

    def restore(self, slot_id: int, cells: Sequence[Cells], n_keep: int, state: State | None = None) -> None:
        """Fill an empty slot with cells that were saved from token 0 on, and keep its first `n_keep` tokens.

        Where it `keeps_states`, with the state behind these.
        Raises BackendError where that cannot be; then the slot is empty.
        """

    def clear(self) -> None:
        """Forget every slot."""

    def piece(self, token_id: int) -> bytes:
        """Return the bytes that a token shows; control tokens show none."""

    def n_reused(self) -> int:
        """Return how many forward passes reused the compute graph, since the start."""

    def close(self) -> None:
        """Free the model."""
