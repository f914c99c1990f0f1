"""Built-in models with random weights: their names, their shapes, and how one gets into the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cobali_ray.models.store import write_whole
from cobali_workloads.models.made import MadeModel
from cobali_workloads.models.shapes import ModelShape, plan_tensors
from cobali_workloads.models.vocabulary import (
    CopiedVocabulary,
    PaddedVocabulary,
    TrainedVocabulary,
    VocabularySource,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cobali_ray.models.builtin import Order

_RECIPE = 1
"""Raise it when the same name, seed and vocabulary come to stand for other bytes."""
_QUANTISED_FROM = {"Q4_K_M": "Q8_0", "Q5_K_M": "Q8_0"}
"""K-quants are llama.cpp's to make; the rest is drawn directly."""
_HEADER_BYTES = 12 << 20  # the largest vocabulary here and its merges, generously


@dataclass(frozen=True, slots=True)
class SyntheticModel(MadeModel):
    """Random weights in a named shape; the same name, quant, seed and vocabulary give the same bytes."""

    name: str
    description: str
    shape: ModelShape
    quants: tuple[str, ...]
    vocabulary: Callable[[Path | None], VocabularySource]

    def _facts(self, quant: str, order: Order) -> str:  # noqa: ARG002 all quants have them
        return f"{_RECIPE} {self.shape} {self.vocabulary(order.vocab_gguf).digest()}"

    def _make(self, path: Path, quant: str, order: Order) -> None:
        if quant in _QUANTISED_FROM:
            self._quantise(path, quant, order)
        else:
            self._write(path, quant, order)

    def _write(self, path: Path, quant: str, order: Order) -> None:
        from cobali_workloads.models.writer import write_model

        order.progress(f"{self.name}: vocabulary", 0.0)
        vocabulary = self.vocabulary(order.vocab_gguf).load(self.shape.n_vocab)
        n_bytes = sum(plan.n_bytes for plan in plan_tensors(self.shape, quant)) + _HEADER_BYTES

        def fill(part: Path) -> None:
            write_model(
                part,
                self.name,
                self.shape,
                quant,
                vocabulary,
                seed=order.seed,
                progress=lambda done: order.progress(f"{self.name}: {quant} weights", done),
            )

        write_whole(path, n_bytes, fill)

    def _quantise(self, path: Path, quant: str, order: Order) -> None:
        from cobali_workloads.models.quantize import quantize_file

        source_quant = _QUANTISED_FROM[quant]
        source = self.provide(source_quant, order)
        order.progress(f"{self.name}: {source_quant} to {quant}", 0.0)
        write_whole(path, source.stat().st_size, lambda part: quantize_file(source, part, quant))


def _own(_: Path | None) -> VocabularySource:
    return TrainedVocabulary()


def _copied_or_padded(path: Path | None) -> VocabularySource:
    return PaddedVocabulary() if path is None else CopiedVocabulary(path)


def _tiny(n_vocab: int) -> ModelShape:
    return ModelShape(n_layers=4, width=256, n_heads=4, n_kv_heads=2, ffn_width=768, n_vocab=n_vocab)


N_QWEN_TOKENS = 151_936
SYNTHETIC_MODELS = (
    SyntheticModel(
        "synthetic-tiny",
        "random weights, 4 layers of width 256, 4,096 tokens: for tests",
        _tiny(4096),
        ("Q8_0", "F16"),
        _own,
    ),
    SyntheticModel(
        "synthetic-tiny-152k",
        "random weights, synthetic-tiny with 151,936 tokens: what a large vocabulary costs",
        _tiny(N_QWEN_TOKENS),
        ("Q8_0", "F16"),
        _copied_or_padded,
    ),
    SyntheticModel(
        "synthetic-qwen2.5-0.5b",
        "random weights in the shape of Qwen2.5-0.5B: for benchmarks",
        ModelShape(n_layers=24, width=896, n_heads=14, n_kv_heads=2, ffn_width=4864, n_vocab=N_QWEN_TOKENS),
        ("Q4_0", "Q8_0", "Q5_K_M"),
        _copied_or_padded,
    ),
    SyntheticModel(
        "synthetic-qwen2.5-1.5b",
        "random weights in the shape of Qwen2.5-1.5B: for benchmarks",
        ModelShape(n_layers=28, width=1536, n_heads=12, n_kv_heads=2, ffn_width=8960, n_vocab=N_QWEN_TOKENS),
        ("Q4_K_M", "Q8_0", "Q4_0"),
        _copied_or_padded,
    ),
)
