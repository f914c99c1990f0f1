"""The shapes of the models we make, and which tensors a shape and a quant stand for."""

from __future__ import annotations

import math
from dataclasses import dataclass

_BLOCKS = {"F32": (1, 4), "F16": (1, 2), "Q8_0": (32, 34), "Q4_0": (32, 18)}
"""Values and bytes of one block of each type, as ggml stores it."""
QKV_BIAS_STD = 0.1
_BRANCH_SCORE_STD = 1.7


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What a decoder of the Qwen2 kind looks like; input and output embeddings are one tensor."""

    n_layers: int
    width: int
    n_heads: int
    n_kv_heads: int
    ffn_width: int
    n_vocab: int
    n_ctx_train: int = 32768
    rope_base: float = 1_000_000.0

    def __post_init__(self) -> None:
        if self.width % self.n_heads or self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"{self.n_heads} heads, {self.n_kv_heads} for KV, do not share a width of {self.width}"
            )

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.n_heads

    @property
    def kv_width(self) -> int:
        """Width of one token's keys, or values, of all KV heads."""
        return self.head_dim * self.n_kv_heads


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor to draw: `shape` rows first, values with this mean and standard deviation."""

    name: str
    shape: tuple[int, ...]
    kind: str
    mean: float
    std: float

    @property
    def row_bytes(self) -> int:
        """Bytes of one row as stored."""
        n_values, n_bytes = _BLOCKS[self.kind]
        return self.shape[-1] // n_values * n_bytes

    @property
    def n_bytes(self) -> int:
        """Bytes of all of it as stored."""
        return self.row_bytes * math.prod(self.shape[:-1])


def plan_tensors(shape: ModelShape, quant: str) -> tuple[TensorPlan, ...]:
    """List the tensors of a model in file order.

    The spread of each is chosen such that a random model still behaves like one that reads its prompt: each
    branch adds about as much as the stream holds, so what a token becomes depends on what stood before it;
    the scores of attention are spread wide enough that a head looks at few tokens instead of averaging all;
    the embeddings are small, else the tied output would answer each token with itself, and the last norm
    brings the logits back to a spread of about 3.
    In a Q4_0 file the tied embedding is Q8_0: llama.cpp's own mix for a width that no K-quant divides, and
    one bit and a half above its mix (Q6_K) for the others.
    """
    matrix, width, ffn = quant, shape.width, shape.ffn_width
    embedding = "Q8_0" if quant == "Q4_0" else quant
    embedding_std = 0.02
    last_norm = 3.0 / (embedding_std * math.sqrt(width))

    def norm(name: str, mean: float = 1.0) -> TensorPlan:
        return TensorPlan(f"{name}.weight", (width,), "F32", mean, 0.05 * mean)

    def bias(name: str, n: int) -> TensorPlan:
        return TensorPlan(f"{name}.bias", (n,), "F32", 0.0, QKV_BIAS_STD)

    def weight(name: str, n_out: int, n_in: int, gain: float) -> TensorPlan:
        return TensorPlan(f"{name}.weight", (n_out, n_in), matrix, 0.0, gain / math.sqrt(n_in))

    plans = [
        TensorPlan("token_embd.weight", (shape.n_vocab, width), embedding, 0.0, embedding_std),
        norm("output_norm", last_norm),
    ]
    for layer in range(shape.n_layers):
        at = f"blk.{layer}"
        plans += [
            norm(f"{at}.attn_norm"),
            weight(f"{at}.attn_q", width, width, _BRANCH_SCORE_STD),
            bias(f"{at}.attn_q", width),
            weight(f"{at}.attn_k", shape.kv_width, width, _BRANCH_SCORE_STD),
            bias(f"{at}.attn_k", shape.kv_width),
            weight(f"{at}.attn_v", shape.kv_width, width, 1.0),
            bias(f"{at}.attn_v", shape.kv_width),
            weight(f"{at}.attn_output", width, width, 1.0),
            norm(f"{at}.ffn_norm"),
            weight(f"{at}.ffn_gate", ffn, width, 1.0),
            weight(f"{at}.ffn_up", ffn, width, 1.0),
            weight(f"{at}.ffn_down", width, ffn, 1.7),
        ]
    return tuple(plans)
