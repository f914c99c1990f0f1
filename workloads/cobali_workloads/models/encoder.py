"""Built-in models that generate nothing: BERT with random weights, to embed texts or to rank them."""

from __future__ import annotations

import math
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cobali_ray.models.store import write_whole
from cobali_workloads.models.made import MadeModel
from cobali_workloads.models.shapes import TensorPlan

if TYPE_CHECKING:
    from pathlib import Path

    from gguf import GGUFWriter, PoolingType

    from cobali_ray.models.builtin import Order

_RECIPE = 1
"""Raise it when the same name and seed come to stand for other bytes."""
_HEADER_BYTES = 1 << 20
_WORDS = (
    "a about all an and are as at be book but by can cat city day did do dog for from good have he her "
    "him his how i if in into is it its know like london look make man me moon more my new no not now "
    "of on one only or other our out paris people say see she sky so some sun take than that the their "
    "them then there they this time to two up us use was water way we well what when which who will "
    "with word work world year you "
)
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderShape:
    """What a BERT looks like; with `ranks` it ends in a head that scores a pair of texts."""

    n_layers: int
    width: int
    n_heads: int
    ffn_width: int
    n_ctx_train: int = 512
    ranks: bool = False


def vocabulary() -> tuple[str, ...]:
    """Return WordPiece's tokens as llama.cpp has them: only what begins a word has a mark."""
    letters = string.ascii_lowercase + string.digits + string.punctuation
    return tuple(
        dict.fromkeys((*SPECIALS, *(f"▁{c}" for c in letters), *letters, *(f"▁{w}" for w in _WORDS.split())))
    )


def plan_encoder(shape: EncoderShape, quant: str) -> tuple[TensorPlan, ...]:
    """Return the tensors, with spreads that keep layers from drowning what went before them.

    llama.cpp's GELU is a table of half precision: where the last bit tips over, a number behind it jumps.
    """
    width, ffn = shape.width, shape.ffn_width

    def norm(name: str) -> list[TensorPlan]:
        return [TensorPlan(f"{name}.weight", (width,), "F32", 1.0, 0.05), bias(name, width)]

    def bias(name: str, n: int) -> TensorPlan:
        return TensorPlan(f"{name}.bias", (n,), "F32", 0.0, 0.1)

    def linear(name: str, n_out: int, n_in: int, kind: str = quant, gain: float = 1.0) -> list[TensorPlan]:
        weight = TensorPlan(f"{name}.weight", (n_out, n_in), kind, 0.0, gain / math.sqrt(n_in))
        return [weight, bias(name, n_out)]

    plans = [
        TensorPlan("token_embd.weight", (len(vocabulary()), width), quant, 0.0, 0.2),
        TensorPlan("token_types.weight", (2, width), "F32", 0.0, 0.02),
        TensorPlan("position_embd.weight", (shape.n_ctx_train, width), "F32", 0.0, 0.05),
        *norm("token_embd_norm"),
    ]
    for layer in range(shape.n_layers):
        at = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            plans += linear(f"{at}.{name}", width, width)
        plans += norm(f"{at}.attn_output_norm")
        plans += linear(f"{at}.ffn_up", ffn, width) + linear(f"{at}.ffn_down", width, ffn, gain=0.25)
        plans += norm(f"{at}.layer_output_norm")
    if shape.ranks:
        plans += linear("cls", width, width, "F32") + linear("cls.output", 1, width, "F32")
    return tuple(plans)


@dataclass(frozen=True, slots=True)
class SyntheticEncoder(MadeModel):
    """Random weights in a named shape; the same name, quant and seed give the same bytes."""

    name: str
    description: str
    shape: EncoderShape
    quants: tuple[str, ...]
    pooling: Literal["MEAN", "RANK"]

    def _facts(self, quant: str, order: Order) -> str:  # noqa: ARG002 it has a vocabulary of its own
        return f"{_RECIPE} {self.shape} {self.pooling} {vocabulary()} {plan_encoder(self.shape, quant)}"

    def _make(self, path: Path, quant: str, order: Order) -> None:
        plans = plan_encoder(self.shape, quant)
        n_bytes = sum(plan.n_bytes for plan in plans) + _HEADER_BYTES
        write_whole(path, n_bytes, lambda part: self._write(part, plans, quant, order.seed))

    def _write(self, path: Path, plans: tuple[TensorPlan, ...], quant: str, seed: int) -> None:
        from gguf import GGUFWriter, LlamaFileType, PoolingType

        from cobali_workloads.models.writer import write_tensors

        writer = GGUFWriter(path, "bert")
        try:
            writer.add_type("model")
            writer.add_name(self.name)
            writer.add_description(
                f"Random weights (seed {seed}), never trained, for tests; its vectors mean nothing."
            )
            writer.add_file_type(LlamaFileType.ALL_F32 if quant == "F32" else LlamaFileType.MOSTLY_F16)
            self._describe(writer, PoolingType[self.pooling])
            write_tensors(writer, plans, seed)
        finally:
            writer.close()

    def _describe(self, writer: GGUFWriter, pooling: PoolingType) -> None:
        shape, tokens = self.shape, vocabulary()
        writer.add_context_length(shape.n_ctx_train)
        writer.add_embedding_length(shape.width)
        writer.add_block_count(shape.n_layers)
        writer.add_feed_forward_length(shape.ffn_width)
        writer.add_head_count(shape.n_heads)
        writer.add_layer_norm_eps(1e-12)
        writer.add_causal_attention(False)
        writer.add_pooling_type(pooling)
        writer.add_tokenizer_model("bert")
        writer.add_tokenizer_pre("bert-bge")
        writer.add_token_list(tokens)
        writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
        writer.add_token_type_count(2)
        of = SPECIALS.index
        writer.add_bos_token_id(of("[CLS]"))
        writer.add_eos_token_id(of("[SEP]"))
        writer.add_sep_token_id(of("[SEP]"))
        writer.add_unk_token_id(of("[UNK]"))
        writer.add_pad_token_id(of("[PAD]"))
        writer.add_mask_token_id(of("[MASK]"))
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)


SYNTHETIC_ENCODERS = (
    SyntheticEncoder(
        "synthetic-bert",
        "random weights, a BERT of 2 layers of width 64: embeds texts, for tests",
        EncoderShape(n_layers=2, width=64, n_heads=4, ffn_width=128),
        ("F32", "F16"),
        "MEAN",
    ),
    SyntheticEncoder(
        "synthetic-rank",
        "random weights, synthetic-bert with a head that ranks documents: for tests",
        EncoderShape(n_layers=2, width=64, n_heads=4, ffn_width=128, ranks=True),
        ("F32", "F16"),
        "RANK",
    ),
)
