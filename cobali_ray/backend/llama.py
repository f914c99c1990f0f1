"""LlamaBackend: llama.cpp as a black box that computes one checked batch at a time."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from cobali_ray.backend import library
from cobali_ray.backend.advice import advised
from cobali_ray.backend.batch import TickBatch, by_length, check_batch
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.device_candidates import DeviceCandidates
from cobali_ray.backend.device_watch import DeviceWatch
from cobali_ray.backend.devices import Devices, open_devices
from cobali_ray.backend.embedder import LlamaEmbedder
from cobali_ray.backend.head import DraftHead, open_head
from cobali_ray.backend.llama_slots import LlamaSlots
from cobali_ray.backend.loading import (
    check_types,
    load_model,
    open_context,
    plain_attention,
    plain_micro_batch,
)
from cobali_ray.backend.logprobs import PromptRows, n_scored_rows
from cobali_ray.backend.lora import LoraAdapters
from cobali_ray.backend.pass_rows import n_rows_of, use_rows
from cobali_ray.backend.port import DeviceWatcher, Embedder, State, Words
from cobali_ray.backend.projector import Projector
from cobali_ray.backend.sampling import RowSampler, SampleResult
from cobali_ray.backend.sampling_top import sample_candidates
from cobali_ray.backend.vocab import Vocab
from cobali_ray.core.plan.goodput import SIZES
from cobali_ray.core.plan.plan import Span
from cobali_ray.errors import BackendError, CacheFullError, SlotFaultError

_log = structlog.get_logger(__name__)


class LlamaBackend(LlamaSlots):
    """A Backend on llama.cpp. Every batch is checked before the library sees it, because it aborts."""

    def __init__(self, config: LlamaConfig, model: Any = None, devices: Devices | None = None) -> None:
        """Take over a loaded model with its devices, or load it. Raises ConfigError; then all is freed."""
        self._lc = library.load()
        self._context = None
        self.projector: Projector | None = None
        self._device: DeviceCandidates | None = None
        self._head: DraftHead | None = None
        self._unfollowed: TickBatch | None = None
        """The last batch, while the head has not followed it."""
        self._embedder: LlamaEmbedder | None = None
        self._devices, self._model = devices or open_devices(config), model
        try:
            self._model = model or load_model(config, self._devices)
            self._set_up(config)
            self.devices: DeviceWatcher = DeviceWatch(self._devices, config)
        except BaseException:  # else its memory would be lost until the process ends
            self.close()
            raise

    def _set_up(self, config: LlamaConfig) -> None:
        lc = self._lc
        self.words: Words = (vocab := Vocab(self._model))
        self.piece = vocab.piece
        n_layers = int(lc.llama_model_n_layer(self._model))
        self.overlaps = config.all_on_gpu(n_layers) and bool(self._devices.used)
        check_types(lc, self._model, config)
        if config.mmproj is not None:
            on_gpu = config.n_gpu_layers != 0
            self.projector = Projector(self._model, config.mmproj, n_threads=config.n_threads, on_gpu=on_gpu)
        self._lora, self._used = LoraAdapters(lc, self._model, config.adapters), ""
        self.adapters = config.adapters
        if config.picks_on_device(offloads=self.overlaps, n_layers=n_layers):
            self._device = DeviceCandidates(lc, n_slots=config.n_slots, n_vocab=vocab.n_vocab)
        self.n_scored_rows = n_scored_rows(vocab.n_vocab)
        whole = self.projector is not None and not self.projector.causal
        plain = plain_attention(lc, self._model, config, plain_micro_batch(config, whole=whole))
        self._context, self._n_outputs = open_context(
            lc,
            self._model,
            config,
            plain=plain is not None,
            whole=whole,
            n_devices=len(self._devices.used) if self.overlaps else 0,
            configure=None if self._device is None else self._device.configure,
        )
        self._open_slots(config)
        self.n_vocab = vocab.n_vocab
        self.end_tokens = vocab.end_tokens
        self.sampling = advised(partial(library.metadata, lc, self._model))
        self.grain = config.grain(
            n_heads=int(lc.llama_model_n_head(self._model)),
            pass_cells=None if plain is None else plain.pass_cells,
        )
        self.max_draft = 0
        if config.verifies and self._device is None:
            self.max_draft = SIZES[-1] if self.cuts_tails else int(lc.llama_n_rs_seq(self._context))
        if self.max_draft and config.head:
            self._head = open_head(self._model, self._context, config)
        self.has_head = self._head is not None
        self.generates = True
        if config.pooling is not None:
            self._embedder = LlamaEmbedder(self._model, pooling=config.pooling, config=config)
        self.embedder: Embedder | None = self._embedder
        self._n_rows = 0
        self._logits: NDArray[np.float32] | None = None
        """The last tick's logits where they were gathered; None where they lie in the context."""
        self._part = TickBatch(self.n_batch)
        if self._device is not None:
            self._try_device(self._device)
        if self._lora.keys:
            self._try_adapters()

    def _try_device(self, device: DeviceCandidates) -> None:
        """Compute one token; where no candidates come of it (a device without top_k), do without."""
        self._part.fill((Span(0, 0, 1, sample=True),), [array("i", [0])])
        self._decode(self._part)
        picks = device.picks(self._context, 1)
        self.clear()
        if not picks:
            _log.warning("no_device_sampling", detail="llama.cpp gave no candidates for a row")
            device.detach(self._context)
            device.close()
            self._device = None

    def _try_adapters(self) -> None:
        """Compute a token under each, so that changing between them never needs new memory.

        llama.cpp aborts where it finds none then.
        """
        for key in (*self._lora.keys, ""):
            self.use(key)
            self._part.fill((Span(0, 0, 1, sample=True),), [array("i", [0])])
            self._decode(self._part)
            self.clear()

    def use(self, adapter: str) -> None:
        if adapter != self._used:
            self._lora.use(self._context, adapter)
            self._used = adapter

    def forward(self, batch: TickBatch) -> None:
        n_rows = check_batch(
            batch, self._n_cached, n_ctx_slot=self.n_ctx_slot, n_batch=self.n_batch, n_vocab=self.n_vocab
        )
        if n_rows > self._n_outputs:
            raise BackendError(f"{n_rows} rows of logits, and there is room for {self._n_outputs}")
        self._n_rows, self._logits, self._unfollowed = 0, None, None
        if self._device is not None:
            self._device.prepare(self._context, batch.sampled_slots())
        if batch.embedded or not self._images.positions.plain:
            self._compute_apart(batch, n_rows)
        else:
            self._compute(batch, n_rows)
            self._unfollowed = batch
        self._n_rows = n_rows

    def _compute_apart(self, batch: TickBatch, n_rows: int) -> None:
        """Compute images, then the tokens, whose logits are then those of the last call."""
        done: list[Span] = []
        states: dict[int, State] = {}
        try:
            for number, rows in batch.embedded.items():
                span = batch.spans[number]
                library.forget_errors()
                if self.keeps_states and span.start:
                    states[span.slot_id] = self.save_state(span.slot_id, span.start)
                code = self._images.compute(span, rows, self._seq_id(span.slot_id))
                self._check_code(code, span.length)
                self._n_cached[span.slot_id] += span.length
                done.append(span)
            text = self._images.text_of(batch)
            if text.n_tokens:
                self._compute(text, n_rows)
        except (CacheFullError, SlotFaultError):
            for span in done:
                if span.slot_id in states:
                    self.restore_state(span.slot_id, states[span.slot_id], span.start)
                else:
                    self.truncate(span.slot_id, span.start)
            raise

    def _compute(self, batch: TickBatch, n_rows: int) -> None:
        """Compute tokens: in one call, or where results must not depend on company, one for each length.

        llama.cpp would cut such a batch unevenly. The rows of all calls are gathered in order.
        """
        groups = by_length(batch.spans) if self._reproducible else []
        if len(groups) <= 1:
            self._decode(batch)
            return
        logits = np.empty((n_rows, self.n_vocab), np.float32)
        row_of = list(itertools.accumulate((span.sample for span in batch.spans), initial=0))
        for group in groups:
            self._part.take(batch, group)
            self._decode(self._part)
            if rows := [row for i in group for row in range(row_of[i], row_of[i + 1])]:
                logits[rows] = self._read_logits(len(rows))
        self._logits = logits

    def wait(self) -> None:
        """Block until the device is done; a CPU is already. Then the head follows."""
        if self.overlaps:
            self._lc.llama_synchronize(self._context)
        if self._head is not None and self._unfollowed is not None:
            self._head.follow(self._unfollowed)
        self._unfollowed = None

    def sample(
        self,
        rows: list[RowSampler],
        drafts: Sequence[Sequence[int]] = (),
        prompts: Sequence[PromptRows] = (),
    ) -> SampleResult:
        """Sample from the device's candidates, or else from the context's own logits, read in place."""
        n_rows = n_rows_of(rows, drafts, prompts)
        if n_rows != self._n_rows:
            raise BackendError(f"{n_rows} rows to sample, {self._n_rows} computed")
        if self._device is not None and self._device.attached and rows:
            return sample_candidates(*self._device.read(self._context, len(rows)), rows)
        logits = self._read_logits(n_rows) if self._logits is None else self._logits
        return use_rows(logits, rows, drafts, prompts)

    def _read_logits(self, n_rows: int) -> NDArray[np.float32]:
        pointer = self._lc.llama_get_logits(self._context)
        if not pointer:
            raise BackendError("llama.cpp has no logits")
        return np.ctypeslib.as_array(pointer, (n_rows, self.n_vocab))

    def guess(self, streams: Sequence[tuple[int, int, int]]) -> list[list[int]]:
        if self._head is None:
            raise BackendError("this model brings no head")
        return self._head.guess(streams)

    def expect(self, slot_id: int, row: RowSampler) -> None:
        if self._device is not None:
            self._device.expect(slot_id, row)

    def n_reused(self) -> int:
        return int(self._lc.llama_perf_context(self._context).n_reused)

    def close(self) -> None:
        if self._embedder is not None:
            self._embedder.close()
        if self._head is not None:
            self._head.close()
        if self._context:
            self._lc.llama_free(self._context)
        if self._device is not None:
            self._device.close()
        if self.projector is not None:
            self.projector.close()
        if self._model:
            self._lc.llama_model_free(self._model)
        self._context = self._model = self._head = None
        self._devices.close()
