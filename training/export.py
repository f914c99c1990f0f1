"""Write the trained model as a GGUF file that llama.cpp takes for one of the Qwen2 kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFWriter, LlamaFileType, quants
from numpy.typing import NDArray

from cobali_workloads.models.vocabulary import Vocabulary
from cobali_workloads.models.writer import add_vocabulary
from training.model import Decoder, Shape

FILE_TYPES = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
}
NAME = "tiny"
DESCRIPTION = (
    "A very small chat model trained from scratch on a generated corpus: "
    "a demonstration and a test object of cobali_ray, not an assistant to rely on."
)
TEMPERATURE = 0.3
"""What the file advises: few of its likeliest tokens are wrong, and most of the others are."""
_TOP_NAMES = {"embedding.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
_NAMES = {
    "attn_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "attn.q.weight": "attn_q.weight",
    "attn.q.bias": "attn_q.bias",
    "attn.k.weight": "attn_k.weight",
    "attn.k.bias": "attn_k.bias",
    "attn.v.weight": "attn_v.weight",
    "attn.v.bias": "attn_v.bias",
    "attn.o.weight": "attn_output.weight",
    "gate.weight": "ffn_gate.weight",
    "up.weight": "ffn_up.weight",
    "down.weight": "ffn_down.weight",
}
_INNER_NAMES = {theirs: ours for ours, theirs in _NAMES.items()}
_OUTER_NAMES = {theirs: ours for ours, theirs in _TOP_NAMES.items()}


def write_gguf(path: Path, model: Decoder, vocabulary: Vocabulary, quant: str) -> None:
    """Write the file in one of F32, F16 and Q8_0, whole or not at all; norms and biases stay F32."""
    part = path.with_suffix(".part")
    writer = GGUFWriter(part, "qwen2")
    try:
        _describe(writer, model.shape, quant)
        add_vocabulary(writer, vocabulary)
        for name, values in tensors(model).items():
            _add(writer, name, values, quant if values.ndim == 2 else "F32")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    part.replace(path)


def tensors(model: Decoder) -> Mapping[str, NDArray[np.float32]]:
    """Return the weights under llama.cpp's names; the output is the embedding and not written twice."""
    by_name = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().float().cpu().numpy()
        if name.startswith("layers."):
            _, layer, inner = name.split(".", 2)
            by_name[f"blk.{layer}.{_NAMES[inner]}"] = values
        else:
            by_name[_TOP_NAMES[name]] = values
    return by_name


def model_name(tensor: str) -> str:
    """Return what the model calls a tensor of a file. An unknown one is a KeyError."""
    if tensor.startswith("blk."):
        _, layer, inner = tensor.split(".", 2)
        return f"layers.{layer}.{_INNER_NAMES[inner]}"
    return _OUTER_NAMES[tensor]


def _add(writer: GGUFWriter, name: str, values: NDArray[np.float32], kind: str) -> None:
    dtype = GGMLQuantizationType[kind]
    if kind == "F32":
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, quants.quantize(values, dtype), raw_dtype=dtype)


def _describe(writer: GGUFWriter, shape: Shape, quant: str) -> None:
    writer.add_type("model")
    writer.add_name(NAME)
    writer.add_description(DESCRIPTION)
    writer.add_languages(["en"])
    writer.add_sampling_temp(TEMPERATURE)
    writer.add_file_type(FILE_TYPES[quant])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    writer.add_block_count(shape.n_layers)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.ffn_width)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_vocab_size(shape.n_vocab)
