"""A Backend without a model: it checks what a KV cache would check and answers from what it holds.

Every slot's cache is a chain of hashes over its tokens, and the logits of a position are a fixed function
of its hash. So a request's greedy answer depends on its own tokens and adapter and on nothing else, and a
scheduler that mixes up slots or adapters, skips a token or computes one twice changes the answer.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend.batch import TickBatch, check_batch
from cobali_ray.backend.logprobs import MAX_SCORED, PromptRows
from cobali_ray.backend.markers import Markers
from cobali_ray.backend.pass_rows import n_rows_of, use_rows
from cobali_ray.backend.port import DeviceWatcher, Embedder, InfillMarks, IsCancelled, Words, never_cancelled
from cobali_ray.backend.projector import Projector
from cobali_ray.backend.sampling import RowSampler, SampleResult
from cobali_ray.chat.derivation import derive
from cobali_ray.chat.format import Format
from cobali_ray.chat.template import ChatTemplate
from cobali_ray.core.plan.adapters import Adapter
from cobali_ray.core.plan.goodput import MAX_ROWS, SIZES
from cobali_ray.core.request.embedding import EmbeddingKind, TextPiece
from cobali_ray.core.request.limits import Grain
from cobali_ray.core.request.request import NEUTRAL
from cobali_ray.core.views.stats import DeviceView
from cobali_ray.errors import (
    BackendError,
    CacheFullError,
    InvalidParameterError,
    SlotFaultError,
    TooManyTokensError,
)

N_BYTES = 256
END_TOKEN = 256
N_VOCAB = 260
CELL_BYTES = 1024
STATE_BYTES = 8
_WIDTH = 16
_N_ROWS = 1024
_MASK = (1 << 64) - 1
_PRINTABLE = range(32, 127)
_ONE_BELOW_THE_OTHER = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def _chain(state: int, token: int) -> int:
    """Mix one token into a hash (the finaliser of SplitMix64)."""
    z = (state + 0x9E3779B97F4A7C15 * (token + 1)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    return z ^ (z >> 31)


@lru_cache(maxsize=8)
def _logit_rows(seed: int, end_bias: float) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(0.0, 2.0, (_N_ROWS, N_VOCAB)).astype(np.float32)
    rows[:, _PRINTABLE.start : _PRINTABLE.stop] += 4.0
    rows[:, N_BYTES:] -= 1e4
    rows[:, END_TOKEN] = np.where(rng.random(_N_ROWS) < end_bias, 1e3, -1e4)
    return rows


class ScriptedBackend:
    """256 byte tokens, one end token, deterministic answers; optionally one pass every `tick_s` seconds."""

    def __init__(
        self,
        *,
        n_slots: int = 4,
        n_ctx_slot: int = 4096,
        n_cells: int | None = None,
        n_batch: int = 2048,
        seed: int = 0,
        end_probability: float = 0.0,
        tick_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.perf_counter,
        overlaps: bool = False,
        strict: bool = True,
        copies: bool = True,
        shares: bool = False,
        dense: bool = True,
        keeps_states: bool = False,
        states_alone: bool = False,
        has_head: bool = False,
        n_scored_rows: int = MAX_SCORED,
        embedder: Embedder | None = None,
        adapters: tuple[Adapter, ...] = (),
    ) -> None:
        self.n_slots, self.n_vocab, self.n_batch = n_slots, N_VOCAB, n_batch
        self.n_ctx_slot = n_ctx_slot
        self.n_cells = n_slots * n_ctx_slot if n_cells is None else n_cells
        self.end_tokens = frozenset({END_TOKEN})
        self.sampling = NEUTRAL
        self.overlaps = overlaps
        self.grain, self.cuts_tails = Grain(), not keeps_states
        self.max_draft, self.has_head = SIZES[-1], has_head
        if keeps_states:
            self.max_draft = 0 if shares else SIZES[1]
        self.keeps_states, self.states_alone = keeps_states, states_alone
        self.copies, self.shares, self.dense = copies, shares, dense
        self.n_scored_rows = n_scored_rows
        self.adapters, self._adapter = adapters, 0
        self.devices: DeviceWatcher = NoDevices()
        self.words: Words = ByteVocab()
        self.generates, self.embedder = True, embedder
        self.projector: Projector | None = None
        self._rows = _logit_rows(seed, end_probability).copy()  # tests write to them
        self._strict = strict
        self._tick_s, self._sleep, self._now = tick_s, sleep, now
        self._hashes: list[list[int]] = [[] for _ in range(n_slots)]
        self._cells: list[list[object]] = [[] for _ in range(n_slots)]
        """Where each token lies, if slots can share cells."""
        self.seq_ids = list(range(n_slots))
        """The id of each slot, for tests to read: nothing depends on it here."""
        self._behind = [0] * n_slots
        """The state of each slot behind its last token, which models with states go on from."""
        self._keeps = [0] * n_slots
        """The fewest tokens each slot can be cut to, if it has states: drafts are cut off, once."""
        self._computed: list[int] | None = None
        """Which of `_rows` the last pass gave, until they are sampled."""
        self._sampled_slots: list[int] = []
        self._lasts: list[int] = []
        """The number of the last row of each of these slots."""
        self._expected: dict[int, RowSampler] = {}
        self._seeds: dict[int, int] = {}
        """What the chains of slots begin with, where tests set it."""
        self._done_s = 0.0
        self.n_forwards = 0

    def use(self, adapter: str) -> None:
        """Mix the adapter into all tokens that follow."""
        if adapter and adapter not in {loaded.key for loaded in self.adapters}:
            raise BackendError(f"there is no adapter {adapter}")
        self._adapter = int.from_bytes(blake2b(adapter.encode(), digest_size=8).digest()) if adapter else 0

    def forward(self, batch: TickBatch) -> None:
        """Check the batch as a cache would, then extend the slots' hash chains."""
        self._check(batch)
        n_used = self.n_used()
        if n_used + batch.n_tokens > self.n_cells:
            raise CacheFullError(f"{n_used} of {self.n_cells} cells used, {batch.n_tokens} more wanted")
        tokens = batch.token[: batch.n_tokens].tolist()
        computed, at = [], 0
        self._sampled_slots = [span.slot_id for span in batch.spans if span.sample]
        ends = itertools.accumulate(span.sample for span in batch.spans)
        self._lasts = [end - 1 for span, end in zip(batch.spans, ends, strict=True) if span.sample]
        for span in batch.spans:
            chain = self._hashes[span.slot_id]
            state = self._stands(span.slot_id)
            for token in tokens[at : at + span.length]:
                state = _chain(state ^ self._adapter, token)
                chain.append(state)
            self._behind[span.slot_id], self._keeps[span.slot_id] = state, span.start + 1
            if self.shares:
                self._cells[span.slot_id] += [object() for _ in range(span.length)]
            at += span.length
            computed += [state % _N_ROWS for state in chain[len(chain) - span.sample :]]
        self._computed = computed
        self.n_forwards += 1
        now = self._now()
        # Paced by the period: host work between passes counts, as long as it fits.
        self._done_s = (self._done_s if now - self._done_s < self._tick_s else now) + self._tick_s
        if not self.overlaps:
            self.wait()

    def _stands(self, slot_id: int) -> int:
        """Return the hash a slot goes on from; where its state is not that of its last token, a wrong one."""
        chain, behind = self._hashes[slot_id], self._behind[slot_id]
        if not chain:
            return self._seeds.get(slot_id, 0)
        return chain[-1] if chain[-1] == behind or not self.keeps_states else _chain(behind, N_VOCAB)

    def _check(self, batch: TickBatch) -> None:
        n_cached = np.array([len(chain) for chain in self._hashes], np.int32)
        n_rows = check_batch(
            batch, n_cached, n_ctx_slot=self.n_ctx_slot, n_batch=self.n_batch, n_vocab=self.n_vocab
        )
        if not self._strict:
            return
        if n_rows > max(self.n_slots, MAX_ROWS) + self.n_scored_rows:
            raise BackendError(f"{n_rows} rows")
        at = 0
        for slot_id, start, length, sample in batch.spans:
            end = at + length
            if (batch.position[at:end] != np.arange(start, start + length)).any():
                raise SlotFaultError(slot_id, "positions differ from the span")
            if (batch.slot[at:end] != slot_id).any():
                raise SlotFaultError(slot_id, "slot ids differ from the span")
            if not batch.output[end - sample : end].all() or batch.output[at : end - sample].any():
                raise SlotFaultError(slot_id, "logits wanted elsewhere than at the end")
            at = end

    def wait(self) -> None:
        """Sleep until the scripted forward pass is over."""
        if self._tick_s and (left := self._done_s - self._now()) > 0:
            self._sleep(left)

    def guess(self, streams: Sequence[tuple[int, int, int]]) -> list[list[int]]:
        """Return the likeliest tokens, and one that is wrong after some."""
        drafts = []
        for slot_id, token, n in streams:
            state, draft = self._stands(slot_id), [token]
            for _ in range(n):
                state = _chain(state ^ self._adapter, draft[-1])
                draft.append(int(self._rows[state % _N_ROWS].argmax()) if state % 5 else 0)
            drafts.append(draft[1:])
        return drafts

    def expect(self, slot_id: int, row: RowSampler) -> None:
        self._expected[slot_id] = row

    def sample(
        self,
        rows: list[RowSampler],
        drafts: Sequence[Sequence[int]] = (),
        prompts: Sequence[PromptRows] = (),
    ) -> SampleResult:
        """Sample the scripted logits, through the real sampler."""
        n_rows = n_rows_of(rows, drafts, prompts)
        if self._computed is None or n_rows != len(self._computed):
            raise BackendError(f"{n_rows} rows to sample, {self._computed and len(self._computed)} computed")
        if self._strict:
            self._check_expected(rows, prompts)
        computed, self._computed = self._computed, None
        return use_rows(self._rows[computed], rows, drafts, prompts)

    def _check_expected(self, rows: list[RowSampler], prompts: Sequence[PromptRows]) -> None:
        """Check that the last row of each span, unless it is measured, is drawn by the expected sampler."""
        measured = {first + len(tokens) - 1 for first, tokens, _ in prompts if tokens}
        lasts = zip(self._sampled_slots, self._lasts, strict=True)
        slots = [slot_id for slot_id, last in lasts if last not in measured]
        for slot_id, row in zip(slots, rows, strict=True):
            if self._expected.get(slot_id) is not row:
                raise BackendError(f"slot {slot_id} is sampled for another than was expected")

    def truncate(self, slot_id: int, n_keep: int) -> None:
        if n_keep > len(self._hashes[slot_id]):
            raise SlotFaultError(slot_id, f"keep {n_keep} of {len(self._hashes[slot_id])} tokens")
        chain = self._hashes[slot_id]
        if self.keeps_states and 0 < n_keep < len(chain):
            if not max(len(chain) - self.max_draft, self._keeps[slot_id]) <= n_keep:
                raise SlotFaultError(slot_id, f"cannot be cut to {n_keep} tokens")
            self._behind[slot_id], self._keeps[slot_id] = chain[n_keep - 1], len(chain)
        del chain[n_keep:]
        del self._cells[slot_id][n_keep:]

    def copy(self, donor_id: int, slot_id: int, n_keep: int) -> None:
        donor, chain = self._hashes[donor_id], self._hashes[slot_id]
        if chain or n_keep > len(donor):
            raise SlotFaultError(slot_id, f"holds {len(chain)} tokens, {n_keep} of {len(donor)} to be copied")
        if self.keeps_states and n_keep < len(donor):
            raise SlotFaultError(slot_id, f"gets no {n_keep} of {len(donor)} tokens")
        if not self.shares and self.n_used() + n_keep > self.n_cells:
            raise CacheFullError(f"no cells for a copy of {n_keep} tokens")
        chain += donor[:n_keep]
        self._behind[slot_id] = self._behind[donor_id]
        self._cells[slot_id] += self._cells[donor_id][:n_keep]

    def swap(self, slot_id: int, other_id: int) -> None:
        ids = self.seq_ids
        ids[slot_id], ids[other_id] = ids[other_id], ids[slot_id]

    def measure_cell(self) -> int:
        """Return what a small model's cell takes; the hashes take less."""
        return 0 if self.states_alone else CELL_BYTES

    def measure_state(self) -> int:
        """Return what a hash takes, where there are states."""
        return STATE_BYTES if self.keeps_states else 0

    def save_state(self, slot_id: int, n_tokens: int) -> NDArray[np.uint8]:
        if not 0 < n_tokens == len(self._hashes[slot_id]):
            raise SlotFaultError(
                slot_id, f"holds {len(self._hashes[slot_id])} tokens, {n_tokens} to be saved"
            )
        return np.array([self._behind[slot_id]], np.uint64).view(np.uint8)

    def restore_state(self, slot_id: int, state: NDArray[np.uint8], n_keep: int) -> None:
        """Put a state into a slot; one that is not of its tokens shows in the answer."""
        chain = self._hashes[slot_id]
        if self.states_alone:
            chain[:] = [int(state.view(np.uint64)[0])] * n_keep
        if not 0 < n_keep <= len(chain):
            raise SlotFaultError(slot_id, f"holds {len(chain)} tokens and cannot go back to {n_keep}")
        del chain[n_keep:]
        del self._cells[slot_id][n_keep:]
        self._behind[slot_id] = int(state.view(np.uint64)[0])

    def cell_kind(self) -> str:
        return "scripted"

    def save(self, slot_id: int, spans: Sequence[tuple[int, int]]) -> list[NDArray[np.uint8]]:
        """Return these parts of the slot's chain, each hash in as many bytes as a cell takes."""
        chain = self._hashes[slot_id]
        if any(not 0 <= start < end <= len(chain) for start, end in spans):
            raise SlotFaultError(slot_id, f"holds {len(chain)} tokens, {spans} to be saved")
        saved = []
        for start, end in spans:
            cells = np.zeros((end - start, CELL_BYTES // 8), np.uint64)
            cells[:, 0] = chain[start:end]
            saved.append(cells.view(np.uint8).ravel())
        return saved

    def restore(
        self,
        slot_id: int,
        cells: Sequence[NDArray[np.uint8]],
        n_keep: int,
        state: NDArray[np.uint8] | None = None,
    ) -> None:
        """Put the parts together; what is no beginning of a chain shows in the answer."""
        chain = self._hashes[slot_id]
        if self.states_alone and state is not None:
            self.restore_state(slot_id, state, n_keep)
            return
        saved = [state for part in cells for state in part.view(np.uint64)[:: CELL_BYTES // 8].tolist()]
        if chain or not 0 < n_keep <= len(saved):
            raise SlotFaultError(
                slot_id, f"holds {len(chain)} tokens, {n_keep} of {len(saved)} to be restored"
            )
        if self.n_used() + n_keep > self.n_cells:
            raise CacheFullError(f"no cells for {n_keep} saved tokens")
        chain += saved[:n_keep]
        if state is not None:
            self._behind[slot_id] = int(state.view(np.uint64)[0])
        if self.shares:
            self._cells[slot_id] += [object() for _ in range(n_keep)]

    def clear(self) -> None:
        for chain, cells in zip(self._hashes, self._cells, strict=True):
            chain.clear()
            cells.clear()
        self.seq_ids.sort()

    def n_used(self) -> int:
        """Return how many cells hold a token of any slot."""
        if self.shares:
            return len(set(itertools.chain.from_iterable(self._cells)))
        return sum(map(len, self._hashes))

    def piece(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < N_BYTES else b""

    def n_reused(self) -> int:
        return 0  # there is no graph

    def close(self) -> None:
        """Do nothing."""


class NoDevices:
    """Nothing is computed on a device."""

    def look(self) -> tuple[DeviceView, ...]:
        return ()

    def could_be_whole(self) -> bool:
        return False

    def on_loss(self, report: Callable[[str], None]) -> None:
        """Do nothing: nothing can be lost."""


class ScriptedEmbedder:
    """A text's vector is a function of its tokens, in whatever company and pieces they come."""

    def __init__(self, n_most: int = 512, *, n_batch: int = 512, splits: bool = False) -> None:
        n_batch = n_batch if splits else max(n_batch, n_most)
        self.kind = EmbeddingKind(_WIDTH, n_most, n_batch, n_batch, 256, "last", splits=splits)
        self._begun = (0, 0)
        """Tokens of the text that goes on, and their hash."""

    def embed(self, pieces: Sequence[TextPiece]) -> list[NDArray[np.float32]]:
        """Check the pass as llama.cpp's would be, and hash its texts."""
        rows = []
        if sum(len(piece.tokens) for piece in pieces) > self.kind.n_batch or len(pieces) > self.kind.n_texts:
            raise BackendError("too much for one pass")
        for number, piece in enumerate(pieces):
            n, state = self._begun if piece.start else (0, 0)
            if piece.start != n or (number and (n or not piece.last)) or not (piece.last or self.kind.splits):
                raise BackendError(f"text {piece.text_id} goes on at {piece.start}, and {n} tokens are there")
            for token in piece.tokens:
                state = _chain(state, token)
            self._begun = (0, 0) if piece.last else (n + len(piece.tokens), state)
            rows.append(np.random.default_rng(state).normal(size=_WIDTH).astype(np.float32))
        return rows


class ByteVocab:
    """The scripted model's vocabulary: one token per byte of UTF-8."""

    end_tokens = frozenset({END_TOKEN})

    turn_marks: frozenset[int] = frozenset()
    infill: InfillMarks | None = None

    def __init__(self, chat_template: str | None = None) -> None:
        self._chat_template = chat_template

    @cached_property
    def chat(self) -> ChatTemplate:
        return ChatTemplate(self._chat_template or _ONE_BELOW_THE_OTHER, spent_s=time.thread_time)

    @cached_property
    def form(self) -> Format:
        return derive(self.chat)

    @cached_property
    def markers(self) -> Markers:
        return Markers(self)

    def tokenize(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        n_most: int | None = None,
        is_cancelled: IsCancelled = never_cancelled,
    ) -> list[int]:
        del add_special, parse_special, is_cancelled
        data = text.encode("utf-8", "replace")
        if n_most is not None and len(data) > n_most:
            raise TooManyTokensError(len(data), n_most)
        return list(data)

    def pair(self, query: str, document: str, *, n_most: int | None = None) -> list[int]:
        return self.tokenize(f"{query}\n{document}", n_most=n_most)

    def detokenize(
        self, tokens: Sequence[int], *, special: bool = True, is_cancelled: IsCancelled = never_cancelled
    ) -> str:
        del special, is_cancelled
        for token in tokens:
            if not 0 <= token < N_VOCAB:
                raise InvalidParameterError("tokens", f": token id {token} is not in 0 .. {N_VOCAB - 1}")
        return bytes(t for t in tokens if t < N_BYTES).decode("utf-8", "replace")
