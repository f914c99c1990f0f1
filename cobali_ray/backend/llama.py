"""LlamaBackend: llama.cpp as a black box that computes one checked batch at a time."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import structlog

from cobali_ray.backend import library
from cobali_ray.backend.batch import TickBatch, check_batch
from cobali_ray.backend.port import Words
from cobali_ray.backend.sampling import RowSampler, Sampled, sample_rows
from cobali_ray.backend.vocab import Vocab
from cobali_ray.errors import BackendError, CacheFullError, ConfigError, ModelNotFoundError

_log = structlog.get_logger(__name__)

MAX_SLOTS = 256
_NO_ROOM = 1
_FLASH = {"auto": -1, "off": 0, "on": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """How to open a model. Counts are tokens unless the name says otherwise."""

    path: Path
    n_slots: int
    n_ctx_slot: int
    n_cells: int | None = None
    """KV cells in all, only for a unified cache; None means n_slots * n_ctx_slot."""
    n_batch: int
    n_threads: int
    n_gpu_layers: int = 0
    unified: bool = False
    flash_attn: Literal["auto", "on", "off"] = "auto"


class LlamaBackend:
    """A Backend on llama.cpp. Every batch is checked before the library sees it, because it aborts."""

    def __init__(self, config: LlamaConfig) -> None:
        self._lc = lc = library.load()
        self._model = self._context = None
        if not 1 <= config.n_slots <= MAX_SLOTS:
            raise ConfigError("n_slots", f"must be in 1 .. {MAX_SLOTS}, got {config.n_slots}")
        self._model = self._load(config)
        self.words: Words = (vocab := Vocab(self._model))
        self.piece = vocab.piece
        self._context = self._open(config)
        self._memory = lc.llama_get_memory(self._context)
        self.n_slots, self.n_vocab = config.n_slots, vocab.n_vocab
        self.n_batch = int(lc.llama_n_batch(self._context))
        self.n_ctx_slot = min(config.n_ctx_slot, int(lc.llama_n_ctx_seq(self._context)))
        n_cells = int(lc.llama_n_ctx(self._context))
        self.n_cells = min(n_cells, config.n_cells or n_cells)
        self.end_tokens = vocab.end_tokens
        self.overlaps = bool(config.n_gpu_layers and lc.llama_supports_gpu_offload())
        self.cuts_tails = not (
            lc.llama_model_is_recurrent(self._model) or lc.llama_model_is_hybrid(self._model)
        )
        """Whether a slot can be cut to a prefix; recurrent models can only forget whole slots."""
        self._n_cached = [0] * config.n_slots
        self._raw: dict[int, tuple[Any, ...]] = {}
        self._n_rows = 0
        if self.n_batch < config.n_batch:
            self.close()
            raise ConfigError("token_budget", f"{config.n_batch}, but the context allows {self.n_batch}")

    def _load(self, config: LlamaConfig) -> Any:
        lc = self._lc
        params = lc.llama_model_default_params()
        params.n_gpu_layers = config.n_gpu_layers
        model = lc.llama_model_load_from_file(str(config.path).encode(), params)
        if not model:
            raise ModelNotFoundError("model", f"llama.cpp cannot load {config.path}: {library.last_error()}")
        if lc.llama_model_has_encoder(model):
            lc.llama_model_free(model)
            raise ConfigError("model", f"{config.path} is no decoder-only language model")
        return model

    def _open(self, config: LlamaConfig) -> Any:
        lc = self._lc
        params = lc.llama_context_default_params()
        params.n_ctx = config.n_slots * config.n_ctx_slot
        if config.unified and config.n_cells:
            params.n_ctx = config.n_cells
        params.n_batch = params.n_ubatch = config.n_batch
        params.n_seq_max = params.n_outputs_max = config.n_slots
        params.n_threads = params.n_threads_batch = config.n_threads
        params.flash_attn_type = _FLASH[config.flash_attn]
        params.kv_unified = config.unified
        params.no_perf = True
        context = lc.llama_init_from_model(self._model, params)
        if not context:
            lc.llama_model_free(self._model)
            raise ConfigError(
                "n_ctx",
                f"llama.cpp could not open {config.n_slots} slots of {config.n_ctx_slot} tokens "
                f"(too little memory?): {library.last_error()}",
            )
        return context

    def _raw_batch(self, batch: TickBatch) -> Any:
        """Return the llama_batch over the arrays' memory, made once per TickBatch."""
        known = self._raw.get(id(batch))
        if known is None:
            lc, size = self._lc, len(batch.token)
            one = np.ones(size, np.int32)
            rows = batch.slot.ctypes.data + batch.slot.itemsize * np.arange(size, dtype=np.uintp)

            def at(array: Any, kind: Any) -> Any:
                return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

            raw = lc.llama_batch(
                0,
                at(batch.token, lc.llama_token),
                None,
                at(batch.position, lc.llama_pos),
                at(one, ctypes.c_int32),
                at(rows, ctypes.POINTER(lc.llama_seq_id)),
                at(batch.wanted, ctypes.c_int8),
            )
            known = self._raw[id(batch)] = (raw, batch, one, rows)  # ctypes keeps none of them alive
        return known[0]

    def forward(self, batch: TickBatch) -> None:
        """Compute a batch; see the port for what is raised."""
        self._n_rows = check_batch(
            batch, self._n_cached, n_ctx_slot=self.n_ctx_slot, n_batch=self.n_batch, n_vocab=self.n_vocab
        )
        raw = self._raw_batch(batch)
        raw.n_tokens = batch.n_tokens
        code = self._lc.llama_decode(self._context, raw)
        if code == _NO_ROOM:
            raise CacheFullError(f"llama.cpp found no room for {batch.n_tokens} tokens")
        if code != 0:
            raise BackendError(f"llama_decode returned {code}: {library.last_error()}")
        for span in batch.spans:
            self._n_cached[span.slot_id] += span.length

    def wait(self) -> None:
        """Block until the device is done; a CPU is already."""
        if self.overlaps:
            self._lc.llama_synchronize(self._context)

    def sample(self, rows: list[RowSampler]) -> Sampled:
        """Sample from the context's own logits, read in place."""
        if len(rows) != self._n_rows:
            raise BackendError(f"{len(rows)} rows to sample, {self._n_rows} computed")
        pointer = self._lc.llama_get_logits(self._context)
        if not pointer:
            raise BackendError("llama.cpp has no logits")
        return sample_rows(np.ctypeslib.as_array(pointer, (len(rows), self.n_vocab)), rows)

    def keep(self, slot_id: int, n_keep: int) -> None:
        """Cut a slot's cache to its first tokens."""
        n_cached = self._n_cached[slot_id]
        if not 0 <= n_keep <= n_cached:
            raise BackendError(f"slot {slot_id} holds {n_cached} tokens, asked to keep {n_keep}")
        if n_keep == n_cached:
            return
        if not self._lc.llama_memory_seq_rm(self._memory, slot_id, n_keep or -1, -1):
            raise BackendError(f"slot {slot_id} cannot be cut to {n_keep} tokens")
        self._n_cached[slot_id] = n_keep

    def clear(self) -> None:
        """Forget every slot."""
        self._lc.llama_memory_clear(self._memory, True)
        self._n_cached = [0] * self.n_slots

    def n_reused(self) -> int:
        """Return how often llama.cpp reused its compute graph."""
        return int(self._lc.llama_perf_context(self._context).n_reused)

    def close(self) -> None:
        """Free context and model."""
        if self._context:
            self._lc.llama_free(self._context)
        if self._model:
            self._lc.llama_model_free(self._model)
        self._context = self._model = None
