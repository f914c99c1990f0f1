"""Built-in hybrid models that bring a head to guess with, as Qwen 3.5 does: made here and never trained.

What its layers compute costs as much as in any model of their shape, and their last matrices are zero: so the
next token depends on the last one alone, in a ring around the whole vocabulary, and text never repeats.
The head guesses the same token after most, and another one after the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cobali_ray.models.store import write_whole
from cobali_workloads.models.made import MadeModel
from cobali_workloads.models.vocabulary import CONTROL_TOKENS, TrainedVocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cobali_ray.models.builtin import Order

_Tensors: TypeAlias = dict[str, NDArray[np.float32]]
_RECIPE = 1
"""Raise it when the same name and seed come to stand for other bytes."""
_ARCHITECTURE = "qwen35"
_SURE = 0.5
"""How far the logit of the next token is above the others, in spreads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridShape:
    """Layers with gated delta rules, every so many of which have attention instead; the head has it, too."""

    n_layers: int
    width: int
    ffn: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    attention_every: int
    inner: int
    """Values of a delta layer's state for each of its keys."""
    state: int
    groups: int
    n_vocab: int = 4096
    n_ctx_train: int = 8192

    @property
    def rank(self) -> int:
        """Heads of a delta layer."""
        return self.inner // self.state

    def facts(self) -> dict[str, int]:
        """Return what a file says of it."""
        return {
            "context_length": self.n_ctx_train, "vocab_size": self.n_vocab, "embedding_length": self.width,
            "feed_forward_length": self.ffn, "block_count": self.n_layers + 1, "nextn_predict_layers": 1,
            "full_attention_interval": self.attention_every, "attention.head_count": self.n_heads,
            "attention.head_count_kv": self.n_kv_heads, "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim, "rope.dimension_count": self.head_dim,
            "ssm.inner_size": self.inner, "ssm.conv_kernel": 4, "ssm.state_size": self.state,
            "ssm.group_count": self.groups, "ssm.time_step_rank": self.rank,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class SyntheticHead(MadeModel):
    """The same name, quant and seed give the same bytes."""

    name: str
    description: str
    shape: HybridShape
    quants: tuple[str, ...]
    agrees: float
    """Share of the tokens after which the head guesses what the model says, 0 to 1."""

    def _facts(self, quant: str, order: Order) -> str:  # noqa: ARG002 there is one of it
        return f"{_RECIPE} {self.shape} {self.agrees} {TrainedVocabulary().digest()}"

    def _make(self, path: Path, quant: str, order: Order) -> None:
        write_whole(path, _room(self.shape), lambda part: self._write(part, quant, order.seed))

    def _write(self, path: Path, quant: str, seed: int) -> None:
        from gguf import GGMLQuantizationType, GGUFWriter, quants

        from cobali_workloads.models.writer import add_vocabulary

        writer = GGUFWriter(path, _ARCHITECTURE)
        try:
            writer.add_type("model")
            writer.add_name(self.name)
            writer.add_description("Made by hand, never trained; its text means nothing.")
            for key, number in self.shape.facts().items():
                writer.add_uint32(f"{_ARCHITECTURE}.{key}", number)
            writer.add_array(f"{_ARCHITECTURE}.rope.dimension_sections", [self.shape.head_dim // 8] * 4)
            writer.add_float32(f"{_ARCHITECTURE}.rope.freq_base", 10_000.0)
            writer.add_layer_norm_rms_eps(1e-6)
            add_vocabulary(writer, TrainedVocabulary().load(self.shape.n_vocab))
            kind = GGMLQuantizationType[quant]
            for name, values in self._tensors(np.random.default_rng(seed)):
                if values.ndim == 1 or "ssm_conv" in name:
                    writer.add_tensor(name, values)
                else:
                    writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()

    def _tensors(self, rng: np.random.Generator) -> Iterator[tuple[str, NDArray[np.float32]]]:
        shape, width = self.shape, self.shape.width
        n_plain = shape.n_vocab - len(CONTROL_TOKENS)
        embeddings = rng.standard_normal((shape.n_vocab, width), dtype=np.float32)
        ring = rng.permutation(n_plain)
        output = np.zeros_like(embeddings)
        output[np.roll(ring, -1)] = embeddings[ring] * (_SURE / np.sqrt(width))
        guesses, others = output.copy(), rng.permutation(n_plain)[round(self.agrees * n_plain) :]
        guesses[others] = output[np.roll(others, 1)]
        yield "token_embd.weight", embeddings
        yield "output_norm.weight", np.ones(width, np.float32)
        yield "output.weight", output
        for layer in range(shape.n_layers + 1):
            attends = layer == shape.n_layers or (layer + 1) % shape.attention_every == 0
            mixes = _attention(rng, shape) if attends else _delta(rng, shape)
            for name, values in (mixes | _feed_forward(rng, shape)).items():
                yield f"blk.{layer}.{name}", values
        head = f"blk.{shape.n_layers}.nextn"
        yield f"{head}.eh_proj.weight", np.eye(width, 2 * width, dtype=np.float32)
        yield f"{head}.enorm.weight", np.ones(width, np.float32)
        yield f"{head}.hnorm.weight", np.ones(width, np.float32)
        yield f"{head}.shared_head_head.weight", guesses


def _layer(
    rng: np.random.Generator, norms: dict[str, int], drawn: dict[str, tuple[int, int]], last: str
) -> _Tensors:
    """Return a layer's tensors: norms, matrices by rows and columns, and the last one, which is zero."""
    made = {f"{name}.weight": np.ones(n, np.float32) for name, n in norms.items()}
    for name, (n_out, n_in) in drawn.items():
        values = rng.standard_normal((n_out, n_in), dtype=np.float32) / np.float32(np.sqrt(n_in))
        made[f"{name}.weight"] = values * (name != last)
    return made


def _attention(rng: np.random.Generator, shape: HybridShape) -> _Tensors:
    width, dim = shape.width, shape.head_dim
    queries, keys = shape.n_heads * dim, shape.n_kv_heads * dim
    return _layer(
        rng,
        {"attn_norm": width, "attn_q_norm": dim, "attn_k_norm": dim},
        {"attn_q": (2 * queries, width), "attn_k": (keys, width), "attn_v": (keys, width),
         "attn_output": (width, queries)},
        "attn_output",
    )  # fmt: skip


def _delta(rng: np.random.Generator, shape: HybridShape) -> _Tensors:
    width, inner, rank = shape.width, shape.inner, shape.rank
    mixed = 2 * shape.groups * shape.state + inner
    made = _layer(
        rng,
        {"attn_norm": width, "ssm_norm": shape.state},
        {"attn_qkv": (mixed, width), "attn_gate": (inner, width), "ssm_conv1d": (mixed, 4),
         "ssm_alpha": (rank, width), "ssm_beta": (rank, width), "ssm_out": (width, inner)},
        "ssm_out",
    )  # fmt: skip
    return made | {"ssm_dt.bias": np.zeros(rank, np.float32), "ssm_a": np.full(rank, -0.5, np.float32)}


def _feed_forward(rng: np.random.Generator, shape: HybridShape) -> _Tensors:
    width, ffn = shape.width, shape.ffn
    return _layer(
        rng,
        {"post_attention_norm": width},
        {"ffn_gate": (ffn, width), "ffn_up": (ffn, width), "ffn_down": (width, ffn)},
        "ffn_down",
    )


def _room(shape: HybridShape) -> int:
    """Return bytes that are enough for a file of it, with two for each weight."""
    delta = shape.width * (4 * shape.groups * shape.state + 4 * shape.inner)
    return 2 * (shape.n_layers + 1) * (delta + 3 * shape.width * shape.ffn) + (40 << 20)


SYNTHETIC_HEADS = (
    SyntheticHead(
        "synthetic-head",
        "12 hybrid layers of width 512 and a head that guesses 4 of 5 next tokens: what drafts are worth",
        HybridShape(
            n_layers=12, width=512, ffn=1536, n_heads=8, n_kv_heads=8, head_dim=64, attention_every=2,
            inner=1024, state=32, groups=2,
        ),
        ("Q8_0",),
        0.8,
    ),
    SyntheticHead(
        "synthetic-hybrid-0.5b",
        "the same with 24 layers of width 1,024, three of four without attention: for benchmarks",
        HybridShape(
            n_layers=24, width=1024, ffn=3072, n_heads=16, n_kv_heads=4, head_dim=64, attention_every=4,
            inner=2048, state=128, groups=16,
        ),
        ("Q8_0",),
        0.8,
    ),
)  # fmt: skip
