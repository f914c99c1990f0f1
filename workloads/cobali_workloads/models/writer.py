"""Write a random model as a GGUF file that llama.cpp takes for one of the Qwen2 kind."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
from gguf import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFWriter, LlamaFileType

from cobali_workloads.models.shapes import plan_tensors
from cobali_workloads.models.vocabulary import END_OF_MESSAGE, END_OF_TEXT, Vocabulary
from cobali_workloads.models.weights import draw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cobali_workloads.models.shapes import ModelShape, TensorPlan

_ARCHITECTURE = "qwen2"
_FILE_TYPES = {
    "F16": LlamaFileType.MOSTLY_F16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": LlamaFileType.MOSTLY_Q4_0,
}


def write_model(
    path: Path,
    name: str,
    shape: ModelShape,
    quant: str,
    vocabulary: Vocabulary,
    *,
    seed: int,
    progress: Callable[[float], None],
) -> None:
    """Write the model, one tensor at a time: memory stays at the size of the largest.

    `quant` is one of F16, Q8_0 and Q4_0. `progress` is called with the share of the bytes written, 0 to 1.
    """
    plans = plan_tensors(shape, quant)
    writer = GGUFWriter(path, _ARCHITECTURE)
    try:
        _describe(writer, name, shape, quant, seed)
        add_vocabulary(writer, vocabulary)
        write_tensors(writer, plans, seed, progress)
    finally:
        writer.close()


def write_tensors(
    writer: GGUFWriter,
    plans: Sequence[TensorPlan],
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write a file's metadata, then its tensors, drawn one at a time."""
    for plan in plans:
        _announce(writer, plan)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    total, done = sum(plan.n_bytes for plan in plans), 0
    for plan in plans:
        writer.write_tensor_data(draw(plan, seed))
        done += plan.n_bytes
        if progress is not None:
            progress(done / total)


def _describe(writer: GGUFWriter, name: str, shape: ModelShape, quant: str, seed: int) -> None:
    writer.add_type("model")
    writer.add_name(name)
    writer.add_description(
        f"Random weights (seed {seed}), never trained, for tests and benchmarks; its text means nothing."
    )
    writer.add_file_type(_FILE_TYPES[quant])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    writer.add_block_count(shape.n_layers)
    writer.add_context_length(shape.n_ctx_train)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.ffn_width)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.n_vocab)


def add_vocabulary(writer: GGUFWriter, vocabulary: Vocabulary) -> None:
    """Write the tokens, what they merge from, and the chat template of the Qwen2 kind."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.pre)
    # Bytes, for tokens read from a file may hold what is not UTF-8.
    writer.add_token_list([token.encode("utf-8", "surrogateescape") for token in vocabulary.tokens])
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges([merge.encode("utf-8", "surrogateescape") for merge in vocabulary.merges])
    end_of_text = vocabulary.token_id(END_OF_TEXT)
    writer.add_bos_token_id(end_of_text)
    writer.add_eos_token_id(vocabulary.token_id(END_OF_MESSAGE))
    writer.add_pad_token_id(end_of_text)
    writer.add_add_bos_token(False)
    template = resources.files("cobali_workloads.models") / "chatml.jinja"
    writer.add_chat_template(template.read_text(encoding="utf-8"))


def _announce(writer: GGUFWriter, plan: TensorPlan) -> None:
    kind = GGMLQuantizationType[plan.kind]
    # With a dtype other than uint8 the writer takes the shape for one of values, not of bytes.
    writer.add_tensor_info(plan.name, plan.shape, np.dtype("float32"), plan.n_bytes, kind)
