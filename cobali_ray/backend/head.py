"""DraftHead: the head that some models bring to guess their own next tokens (multi-token prediction, nextn).

It is one more layer. From a token, and from the hidden state that the other layers have for the token before
it, it says which token follows; with its own hidden state for that one it can guess another. Its cells are a
context of its own, whose sequences are the slots and whose positions are the numbers of their tokens. It
follows what the model computes, some tokens late, so that many go through it at once, and is copied with a
slot. No answer depends on it: it guesses without what it did not see, such as a prefix from host memory, or
an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from cobali_ray.backend import library
from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.params import head_params

_log = structlog.get_logger(__name__)
HEADS = frozenset({"glm4moe", "qwen35", "qwen35moe"})
"""Architectures whose heads were tried: llama.cpp ends the process where it cannot compute one."""
CATCH_UP = 64
"""So many tokens of a slot may be computed before they go through the head."""


def open_head(model: Any, trunk: Any, config: LlamaConfig) -> DraftHead | None:
    """Return the head of a model whose other layers a context computes; None where there can be none."""
    try:
        from llama_cpp import llama_cpp_ext as calls
    except (ImportError, AttributeError) as error:  # it looks for the functions when it is imported
        _log.warning("no_head", setting="speculation", detail=f"this llama.cpp has no calls for it: {error}")
        return None
    try:
        return DraftHead(calls, model, trunk, config)
    except OSError as error:
        _log.warning("no_head", setting="speculation", detail=f"llama.cpp does not open it: {error}")
        return None


class _Progress:
    """How far the head has come in one slot."""

    def __init__(self, width: int) -> None:
        self._unknown = np.zeros(width, np.float32)
        self.begin(0)

    def begin(self, n: int) -> None:
        """Begin behind `n` tokens; the hidden state of the last one is not known."""
        self.n_done = n
        """How many tokens of the slot are before what comes next in its cells."""
        self.tokens: list[int] = []
        """Those that the model computed since."""
        self.hidden: list[NDArray[np.float32]] = [self._unknown]
        """Hidden states of the model: of the token before each of these, and of the last of them."""

    @property
    def n_computed(self) -> int:
        """How many tokens of the slot the model computed, as far as is known."""
        return self.n_done + len(self.tokens)

    def mark_done(self, n: int) -> None:
        """Note that the cells have the first `n` of these tokens."""
        self.n_done += n
        del self.tokens[:n], self.hidden[:n]


class DraftHead:
    """Follows a context, and guesses for its slots."""

    def __init__(self, calls: Any, model: Any, trunk: Any, config: LlamaConfig) -> None:
        """Open a context for it; `calls` are llama.cpp's for heads. Raises OSError where there is none."""
        self._lc, self._calls, self._trunk = (lc := library.load()), calls, trunk
        self._n_vocab = int(lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model)))
        self._width = width = int(lc.llama_model_n_embd_out(model))
        params = head_params(lc, config, trunk)
        self._most, self._unified = int(params.n_batch), config.unified
        library.forget_errors()
        self._context = lc.llama_init_from_model(model, params)
        if not self._context:
            raise OSError(library.errors())
        self._memory = lc.llama_get_memory(self._context)
        for each in (self._context, trunk):  # of all rows: heads give the first ones if not all
            calls.llama_set_embeddings_nextn(each, True, False)
        self._arrays: dict[str, NDArray[Any]] = {
            name: np.zeros(self._most, np.int32) for name in ("token", "position", "seq")
        }
        self._arrays["output"] = np.zeros(self._most, np.int8)
        self._arrays["values"] = np.zeros((self._most, width), np.float32)
        self._raw = library.raw_batch(lc, **self._arrays)
        self._n_laid = 0
        self._slots = [_Progress(width) for _ in range(config.n_slots)]

    def follow(self, batch: TickBatch) -> None:
        """Note what the model has just computed; slots with many such tokens go through the head."""
        hidden = _rows(self._calls.llama_get_embeddings_nextn(self._trunk), batch.n_tokens, self._width)
        at, late = 0, []
        for slot_id, start, length, n_rows in batch.spans:
            progress, end = self._slots[slot_id], at + length
            if start != progress.n_computed or start == 0:
                self._lc.llama_memory_seq_rm(self._memory, slot_id, -1, -1)
                progress.begin(start)
            progress.tokens += batch.token[at:end].tolist()
            progress.hidden += list(hidden[at:end].copy())
            at = end
            if len(progress.tokens) > CATCH_UP and n_rows <= 1:  # else it may be a draft that is partly wrong
                late.append(slot_id)
        self._catch_up(late)

    def guess(self, streams: Sequence[tuple[int, int, int]]) -> list[list[int]]:
        """Return the tokens that probably follow in slots; see `Backend.guess`."""
        slots = [slot_id for slot_id, *_ in streams]
        if sum([len(self._slots[i].tokens) + 1 for i in slots]) > self._most:
            self._catch_up(slots)
        last = {slot_id: (token, self._slots[slot_id].hidden[-1]) for slot_id, token, _ in streams}
        drafts: dict[int, list[int]] = {slot_id: [] for slot_id in slots}
        at = {slot_id: self._slots[slot_id].n_computed for slot_id in slots}
        for i in range(max([n for *_, n in streams])):
            going = sorted([slot_id for slot_id, _, n in streams if n > i])
            for slot_id in going:
                if i == 0:
                    self._lay_tokens(slot_id, self._most)
                self._lay(slot_id, at[slot_id] + i, *last[slot_id], output=True)
            if not self._compute():
                break
            best = _rows(self._lc.llama_get_logits(self._context), len(going), self._n_vocab).argmax(axis=1)
            n_laid = int(self._raw.n_tokens)
            hidden = _rows(self._calls.llama_get_embeddings_nextn(self._context), n_laid, self._width)
            hidden = hidden[self._arrays["output"][:n_laid] != 0]
            for row, (slot_id, token) in enumerate(zip(going, best.tolist(), strict=True)):
                drafts[slot_id].append(token)
                last[slot_id] = token, hidden[row]
                if i == 0:
                    self._slots[slot_id].mark_done(at[slot_id] - self._slots[slot_id].n_done)
        for slot_id in slots:  # right guesses are computed again, with the model's own hidden states
            self._lc.llama_memory_seq_rm(self._memory, slot_id, self._slots[slot_id].n_done, -1)
        return [(drafts[slot_id] + [0] * n)[:n] for slot_id, _, n in streams]

    def copy(self, donor_id: int, slot_id: int) -> None:
        """Note that an empty slot got what another holds."""
        donor, progress = self._slots[donor_id], self._slots[slot_id]
        self._lc.llama_memory_seq_rm(self._memory, slot_id, -1, -1)
        progress.begin(0)
        if self._unified:
            self._lc.llama_memory_seq_cp(self._memory, donor_id, slot_id, -1, -1)
        elif donor.n_done and not library.copy_sequence(self._lc, self._context, donor_id, slot_id):
            return  # without what was before, as if it had not been seen
        progress.n_done = donor.n_done
        progress.tokens, progress.hidden = donor.tokens.copy(), donor.hidden.copy()

    def cut(self, slot_id: int, n_keep: int) -> None:
        """Note that a slot was cut to its first `n_keep` tokens."""
        progress = self._slots[slot_id]
        n_left = n_keep - progress.n_done
        if n_left >= 0:
            del progress.tokens[n_left:], progress.hidden[n_left + 1 :]
        else:
            self._lc.llama_memory_seq_rm(self._memory, slot_id, n_keep, -1)
            progress.begin(n_keep)

    def clear(self) -> None:
        """Forget every slot."""
        self._lc.llama_memory_clear(self._memory, True)
        for progress in self._slots:
            progress.begin(0)

    def close(self) -> None:
        """Free the context."""
        self._lc.llama_free(self._context)

    def _catch_up(self, slots: Sequence[int]) -> None:
        """Have what slots have computed go through the head, as many tokens at once as it takes."""
        while slots := [slot_id for slot_id in slots if self._slots[slot_id].tokens]:
            n_laid = {
                i: self._lay_tokens(i, self._most - self._n_laid) for i in slots if self._n_laid < self._most
            }
            if not self._compute():
                return
            for slot_id, n in n_laid.items():
                self._slots[slot_id].mark_done(n)

    def _lay_tokens(self, slot_id: int, most: int) -> int:
        """Lay out the next tokens of a slot that did not go through yet; return how many."""
        progress = self._slots[slot_id]
        tokens = progress.tokens[:most]
        for i, token in enumerate(tokens):
            self._lay(slot_id, progress.n_done + i, token, progress.hidden[i])
        return len(tokens)

    def _lay(
        self, slot_id: int, at: int, token: int, hidden: NDArray[np.float32], *, output: bool = False
    ) -> None:
        row = {"token": token, "position": at, "seq": slot_id, "output": output, "values": hidden}
        for name, value in row.items():
            self._arrays[name][self._n_laid] = value
        self._n_laid += 1

    def _compute(self) -> bool:
        """Compute what is laid out. Where that fails, the head begins anew in all slots."""
        self._raw.n_tokens, self._n_laid = self._n_laid, 0
        library.forget_errors()
        if not (code := self._lc.llama_decode(self._context, self._raw)):
            return True
        _log.warning("head_failed", code=code, detail=library.errors())
        self._lc.llama_memory_clear(self._memory, True)
        for progress in self._slots:
            progress.begin(progress.n_computed)
        return False


def _rows(pointer: Any, n: int, width: int) -> NDArray[np.float32]:
    return np.ctypeslib.as_array(pointer, (n, width))
