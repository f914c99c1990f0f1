"""Random LoRA adapters, for whatever model they stand beside: `builtin:synthetic-adapter[:SEED]`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

from cobali_ray.models.store import write_whole
from cobali_workloads.models.shapes import TensorPlan

_RECIPE = 1
"""Raise it when the same model and seed come to stand for other bytes."""
_TARGETS = ("attn_q.weight", "attn_v.weight", "ffn_up.weight")
_RANK, _ALPHA = 8, 16.0
_GAIN = 0.5
"""What it adds to a product, in spreads of what goes in, before alpha / rank."""


def make_adapter(
    architecture: str, shapes: Mapping[str, tuple[int, ...]], seed: int, cache_dir: Path
) -> Path:
    """Return a random adapter for a model of these shapes; the same seed gives the same bytes."""
    targets = {name: shape for name, shape in shapes.items() if name.endswith(_TARGETS)}
    facts = f"{_RECIPE} {architecture} {sorted(targets.items())}"
    digest = hashlib.sha256(facts.encode()).hexdigest()[:10]
    path = cache_dir / f"synthetic-adapter-{architecture}-s{seed}-{digest}.gguf"
    plans = [plan for name, shape in targets.items() for plan in _pair(name, shape)]
    if not path.exists():
        n_bytes = sum(plan.n_bytes for plan in plans)
        write_whole(path, n_bytes, lambda part: _write(part, architecture, plans, seed))
    return path


def _pair(name: str, shape: tuple[int, ...]) -> tuple[TensorPlan, TensorPlan]:
    n_out, n_in = shape[-2:]
    return (
        TensorPlan(f"{name}.lora_a", (_RANK, n_in), "F32", 0.0, 1 / math.sqrt(n_in)),
        TensorPlan(f"{name}.lora_b", (n_out, _RANK), "F32", 0.0, _GAIN / math.sqrt(_RANK)),
    )


def _write(path: Path, architecture: str, plans: list[TensorPlan], seed: int) -> None:
    from gguf import GGUFWriter

    from cobali_workloads.models.writer import write_tensors

    writer = GGUFWriter(path, architecture)
    try:
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", _ALPHA)
        write_tensors(writer, plans, seed)
    finally:
        writer.close()
