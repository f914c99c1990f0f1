"""LlamaEmbedder: a llama.cpp context of its own that makes one vector of each text, or a score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend import library, memory
from cobali_ray.backend.config import FLASH, LlamaConfig
from cobali_ray.core.request.embedding import EmbeddingKind, Pooling, TextPiece
from cobali_ray.errors import BackendError, ConfigError

MAX_TEXTS = 256
"""llama.cpp's own bound on sequences of a context."""
PLAIN_TOGETHER, FLASH_TOGETHER = 128, 512
"""Tokens of texts that are computed together. Plain attention is computed between all tokens of a pass,
whichever text they are of, so that longer passes take longer per text: 18 against 13.5 ms of a MiniLM at 256
tokens, where flash attention takes 9.5."""
MAX_PLAIN = 2048
"""Tokens of a text up to which a CPU computes plain attention, which rounds alike in any company. Flash
attention does not: vectors of length 1 differ by 2e-4 in one number. Longer texts would take gigabytes."""
_POOLINGS: dict[Pooling, int] = {"mean": 1, "cls": 2, "last": 3, "rank": 4}
_NAMES: dict[str, Pooling] = {str(number): name for name, number in _POOLINGS.items()}


def pooling_of(lc: Any, model: Any) -> Pooling | None:
    """Return how the model's file says that texts are pooled; None where it does not."""
    name = library.metadata(lc, model, "general.architecture")
    return _NAMES.get(library.metadata(lc, model, f"{name}.pooling_type"))


def only_embeds(lc: Any, model: Any) -> bool:
    """Whether a model is no use but for embedding: its file says how to pool, or that it reads both ways."""
    name = library.metadata(lc, model, "general.architecture")
    both_ways = library.metadata(lc, model, f"{name}.attention.causal") == "false"
    return both_ways or pooling_of(lc, model) is not None


class LlamaEmbedder:
    """An Embedder on llama.cpp, which aborts on what it cannot compute: every pass is checked before."""

    def __init__(self, model: Any, *, pooling: Pooling, config: LlamaConfig) -> None:
        """`n_ctx_slot` bounds the tokens of a text. Raises ConfigError."""
        self._lc = lc = library.load()
        self._model = model
        name = library.metadata(lc, model, "general.architecture")
        causal = library.metadata(lc, model, f"{name}.attention.causal") != "false"
        n_most = min(config.n_ctx, int(lc.llama_model_n_ctx_train(model)) or config.n_ctx)
        # With causal attention a text's last vector is what it would be in one piece; no mean of all is.
        splits = causal and pooling in {"last", "rank"}
        self._plain = config.flash_attn == "off" or not (
            config.flash_attn == "on" or config.n_gpu_layers or (n_most > MAX_PLAIN and not splits)
        )
        together = PLAIN_TOGETHER if self._plain else FLASH_TOGETHER
        n_batch = together if splits else max(together, n_most)
        n_cells = n_most + n_batch if splits else n_batch
        if causal and not config.n_gpu_layers:
            self._require_memory(n_cells, n_batch)
        self._context = self._open(n_cells, n_batch, _POOLINGS[pooling], config)
        self._memory = lc.llama_get_memory(self._context)
        splits = splits and bool(self._memory)
        n_scores = max(int(lc.llama_model_n_cls_out(model)), 1)
        self._n_read = n_scores if pooling == "rank" else int(lc.llama_model_n_embd_out(model))
        self.kind = EmbeddingKind(
            width=1 if pooling == "rank" else self._n_read,
            n_most=n_most if splits else min(n_most, n_batch),
            n_batch=n_batch,
            n_together=together,
            n_texts=min(MAX_TEXTS, n_batch),
            pooling=pooling,
            splits=splits,
            # llama.cpp's graph of these ends with a softmax over yes and no.
            probability=pooling == "rank" and name in {"qwen3", "qwen3vl"},
        )
        self._begun: int = 0
        """Tokens computed of the text that goes on."""
        self._token, self._position = np.empty(n_batch, np.int32), np.empty(n_batch, np.int32)
        self._text, output = np.empty(n_batch, np.int32), np.ones(n_batch, np.int8)
        self._batch = library.raw_batch(
            lc, token=self._token, position=self._position, seq=self._text, output=output
        )

    def _require_memory(self, n_cells: int, n_batch: int) -> None:
        """Refuse what Linux would kill for: cells, and the logits that llama.cpp makes of each token."""
        lc, model = self._lc, self._model
        n_vocab = int(lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model)))
        needed, available = (
            memory.kv_bytes(lc, model, n_cells) + 4 * n_batch * n_vocab,
            memory.available_bytes(),
        )
        if available is not None and needed > available:
            raise ConfigError(
                "pooling",
                f"embedding takes {needed / 1e9:.1f} GB and {available / 1e9:.1f} GB are free: lower n_ctx",
            )

    def _open(self, n_cells: int, n_batch: int, pooling: int, config: LlamaConfig) -> Any:
        lc = self._lc
        params = lc.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_cells, n_batch, n_batch
        params.n_seq_max = min(MAX_TEXTS, n_batch)  # it aborts where a pass has not a token for each
        params.n_threads = params.n_threads_batch = config.n_threads
        params.flash_attn_type = FLASH["off" if self._plain else config.flash_attn]
        params.embeddings, params.pooling_type = True, pooling
        params.kv_unified = True  # else a pass is cut, and a mean is one of a part of its text
        params.no_perf = True
        library.forget_errors()
        context = lc.llama_init_from_model(self._model, params)
        if not context:
            raise ConfigError("pooling", f"llama.cpp opened no context to embed texts: {library.errors()}")
        return context

    def embed(self, pieces: Sequence[TextPiece]) -> list[NDArray[np.float32]]:
        """Compute a pass; see the port."""
        lc, memory = self._lc, self._memory
        self._check(pieces)
        if memory and not pieces[0].start:
            lc.llama_memory_clear(memory, False)
        at = 0
        for number, piece in enumerate(pieces):
            end = at + len(piece.tokens)
            self._token[at:end] = piece.tokens
            self._position[at:end] = np.arange(piece.start, piece.start + end - at)
            self._text[at:end] = number
            at = end
        self._batch.n_tokens = at
        self._begun = 0
        library.forget_errors()
        if (code := lc.llama_decode(self._context, self._batch)) != 0:
            raise BackendError(f"llama_decode returned {code}: {library.errors()}")
        rows = [self._row(number) for number in range(len(pieces))]
        if not pieces[0].last:
            self._begun = pieces[0].start + len(pieces[0].tokens)
            for number in range(1, len(pieces)):
                lc.llama_memory_seq_rm(memory, number, -1, -1)
        return rows

    def _check(self, pieces: Sequence[TextPiece]) -> None:
        """Raise BackendError for what would end the process."""
        kind, first = self.kind, pieces[0]
        n_tokens = sum(len(piece.tokens) for piece in pieces)
        problem = None
        if not 0 < n_tokens <= kind.n_batch or len(pieces) > kind.n_texts:
            problem = f"{len(pieces)} texts with {n_tokens} tokens"
        elif first.start and first.start != self._begun:
            problem = f"a text goes on at {first.start}, and {self._begun} of its tokens are there"
        elif any(piece.start or not piece.last for piece in pieces[1:]) or (
            not first.last and not kind.splits
        ):
            problem = "a text is not whole"
        elif any(not piece.tokens or piece.start + len(piece.tokens) > kind.n_most for piece in pieces):
            problem = f"a text of none or of more than {kind.n_most} tokens"
        if problem:
            raise BackendError(f"a pass to embed: {problem}")

    def _row(self, number: int) -> NDArray[np.float32]:
        pointer = self._lc.llama_get_embeddings_seq(self._context, number)
        if not pointer:
            raise BackendError("llama.cpp has no vector of a text")
        return np.ctypeslib.as_array(pointer, (self._n_read,))[: self.kind.width].copy()

    def close(self) -> None:
        if self._context:
            self._lc.llama_free(self._context)
        self._context = None
