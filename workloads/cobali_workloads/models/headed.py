"""A built-in model that brings a head to guess with: `builtin:synthetic-head`, made here and never trained.

What its layers compute costs as much as in any model of their shape, and their last matrices are zero: so
what it says next depends on its last token alone, one after another around all of the vocabulary, and text
never repeats itself. The head says the same of most tokens, and something else of the rest.
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
_N_LAYERS, _WIDTH, _FFN, _N_HEADS, _HEAD, _N_VOCAB = 12, 512, 1536, 8, 64, 4096
_INNER, _STATE, _GROUPS = 2 * _WIDTH, 32, 2
_RANK = _INNER // _STATE
_FACTS = {
    "context_length": 8192, "vocab_size": _N_VOCAB, "embedding_length": _WIDTH, "feed_forward_length": _FFN,
    "block_count": _N_LAYERS + 1, "nextn_predict_layers": 1, "full_attention_interval": 2,
    "attention.head_count": _N_HEADS, "attention.head_count_kv": _N_HEADS, "attention.key_length": _HEAD,
    "attention.value_length": _HEAD, "rope.dimension_count": _HEAD, "ssm.inner_size": _INNER,
    "ssm.conv_kernel": 4, "ssm.state_size": _STATE, "ssm.group_count": _GROUPS, "ssm.time_step_rank": _RANK,
}  # fmt: skip
_SURE = 0.5
"""How far the token that it says is above the others, in spreads."""


@dataclass(frozen=True, slots=True)
class SyntheticHead(MadeModel):
    """The same name, quant and seed give the same bytes."""

    name: str
    description: str
    quants: tuple[str, ...]
    agrees: float
    """Of how many tokens the head says what the model does, 0 to 1."""

    def _facts(self, quant: str, order: Order) -> str:  # noqa: ARG002 there is one of it
        return f"{_RECIPE} {sorted(_FACTS.items())} {self.agrees} {TrainedVocabulary().digest()}"

    def _make(self, path: Path, quant: str, order: Order) -> None:
        write_whole(path, 80 << 20, lambda part: self._write(part, quant, order.seed))

    def _write(self, path: Path, quant: str, seed: int) -> None:
        from gguf import GGMLQuantizationType, GGUFWriter, quants

        from cobali_workloads.models.writer import add_vocabulary

        writer = GGUFWriter(path, _ARCHITECTURE)
        try:
            writer.add_type("model")
            writer.add_name(self.name)
            writer.add_description("Made by hand, never trained; its text means nothing.")
            for key, number in _FACTS.items():
                writer.add_uint32(f"{_ARCHITECTURE}.{key}", number)
            writer.add_array(f"{_ARCHITECTURE}.rope.dimension_sections", [_HEAD // 8] * 4)
            writer.add_float32(f"{_ARCHITECTURE}.rope.freq_base", 10_000.0)
            writer.add_layer_norm_rms_eps(1e-6)
            add_vocabulary(writer, TrainedVocabulary().load(_N_VOCAB))
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
        n_said = _N_VOCAB - len(CONTROL_TOKENS)
        embeddings = rng.standard_normal((_N_VOCAB, _WIDTH), dtype=np.float32)
        ring = rng.permutation(n_said)
        says = np.zeros_like(embeddings)
        says[np.roll(ring, -1)] = embeddings[ring] * (_SURE / np.sqrt(_WIDTH))
        guesses, others = says.copy(), rng.permutation(n_said)[round(self.agrees * n_said) :]
        guesses[others] = says[np.roll(others, 1)]
        yield "token_embd.weight", embeddings
        yield "output_norm.weight", np.ones(_WIDTH, np.float32)
        yield "output.weight", says
        for layer in range(_N_LAYERS + 1):
            gated = layer == _N_LAYERS or layer % 2 == 1
            for name, values in ((_attention(rng) if gated else _delta(rng)) | _feed_forward(rng)).items():
                yield f"blk.{layer}.{name}", values
        head = f"blk.{_N_LAYERS}.nextn"
        yield f"{head}.eh_proj.weight", np.eye(_WIDTH, 2 * _WIDTH, dtype=np.float32)
        yield f"{head}.enorm.weight", np.ones(_WIDTH, np.float32)
        yield f"{head}.hnorm.weight", np.ones(_WIDTH, np.float32)
        yield f"{head}.shared_head_head.weight", guesses


def _layer(
    rng: np.random.Generator, ones: dict[str, int], drawn: dict[str, tuple[int, int]], last: str
) -> _Tensors:
    """Return a layer's tensors: norms, matrices by rows and columns, and the last one, which is zero."""
    made = {f"{name}.weight": np.ones(n, np.float32) for name, n in ones.items()}
    for name, (n_out, n_in) in drawn.items():
        values = rng.standard_normal((n_out, n_in), dtype=np.float32) / np.float32(np.sqrt(n_in))
        made[f"{name}.weight"] = values * (name != last)
    return made


def _attention(rng: np.random.Generator) -> _Tensors:
    width = _N_HEADS * _HEAD
    return _layer(
        rng,
        {"attn_norm": _WIDTH, "attn_q_norm": _HEAD, "attn_k_norm": _HEAD},
        {"attn_q": (2 * width, _WIDTH), "attn_k": (width, _WIDTH), "attn_v": (width, _WIDTH),
         "attn_output": (_WIDTH, width)},
        "attn_output",
    )  # fmt: skip


def _delta(rng: np.random.Generator) -> _Tensors:
    mixed = 2 * _GROUPS * _STATE + _INNER
    made = _layer(
        rng,
        {"attn_norm": _WIDTH, "ssm_norm": _STATE},
        {"attn_qkv": (mixed, _WIDTH), "attn_gate": (_INNER, _WIDTH), "ssm_conv1d": (mixed, 4),
         "ssm_alpha": (_RANK, _WIDTH), "ssm_beta": (_RANK, _WIDTH), "ssm_out": (_WIDTH, _INNER)},
        "ssm_out",
    )  # fmt: skip
    return made | {"ssm_dt.bias": np.zeros(_RANK, np.float32), "ssm_a": np.full(_RANK, -0.5, np.float32)}


def _feed_forward(rng: np.random.Generator) -> _Tensors:
    return _layer(
        rng,
        {"post_attention_norm": _WIDTH},
        {"ffn_gate": (_FFN, _WIDTH), "ffn_up": (_FFN, _WIDTH), "ffn_down": (_WIDTH, _FFN)},
        "ffn_down",
    )


SYNTHETIC_HEADS = (
    SyntheticHead(
        "synthetic-head",
        "12 hybrid layers of width 512 and a head that guesses 4 of 5 next tokens: what drafts are worth",
        ("Q8_0",),
        0.8,
    ),
)
