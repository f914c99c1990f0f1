"""Tiny random models of llama.cpp's architecture families, written when a test asks for one.

Two to four layers of width 64. Their windows are 32 tokens, so that short prompts leave them. Weights are
such that the next token depends on all that a token sees: a cell too few shows in the logits.
"""

import functools
import math
import os
import zlib
from dataclasses import dataclass, field

import numpy as np
import pytest
from arch_layers import (
    D_INNER,
    D_STATE,
    EXPERTS,
    FFN,
    GEMMA_NORMS,
    GROUPS,
    HEAD,
    HEADS,
    INDEX_HEADS,
    INDEX_WIDTH,
    KDA_HEAD,
    LATENT,
    MANY,
    N_TRAINED,
    N_VOCAB,
    NOPE,
    OLMO_NORMS,
    PER_LAYER,
    Q_LATENT,
    RANK,
    ROPE,
    STREAMS,
    WIDE_HEAD,
    WIDTH,
    WINDOW,
    attention,
    compressed,
    experts,
    ffn,
    gated_delta,
    gemma4,
    gpt_oss,
    indexed,
    kimi_delta,
    kimi_latent,
    latent,
    mamba2,
    nextn,
    norms,
    shared_expert,
    short_convolution,
    without,
)
from gguf import GGUFWriter

from cobali_workloads.models.vocabulary import TrainedVocabulary
from cobali_workloads.models.writer import add_vocabulary


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture: what its file says of itself, and the sizes of its tensors, in ggml's order."""

    arch: str
    keys: dict = field(default_factory=dict)
    tensors: dict


def _layers(n, make):
    return {f"blk.{i}.{name}": shape for i in range(n) for name, shape in make(i).items()}


def _model(layers, *, tied=False):
    ends = {"token_embd.weight": (WIDTH, N_VOCAB), "output_norm.weight": (WIDTH,)}
    return ends | ({} if tied else {"output.weight": (WIDTH, N_VOCAB)}) | layers


_ALTERNATING = {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": [True, False]}
_ONE_IN_FOUR = {"attention.sliding_window": WINDOW}
_MOE = {  # all are used: where one of them changes places with another, rounding would show
    "expert_count": EXPERTS, "expert_used_count": EXPERTS, "expert_feed_forward_length": FFN,
    "expert_shared_count": 1, "expert_weights_scale": 1.0,
}  # fmt: skip
_SSM = {
    "ssm.inner_size": D_INNER, "ssm.conv_kernel": 4, "ssm.state_size": D_STATE, "ssm.group_count": GROUPS,
    "ssm.time_step_rank": RANK,
}  # fmt: skip
_LATENT = _MOE | {
    "leading_dense_block_count": 1,
    "expert_gating_func": 2,
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": Q_LATENT,
    "attention.kv_lora_rank": LATENT,
    "attention.key_length": LATENT + ROPE,
    "attention.value_length": LATENT,
    "attention.key_length_mla": NOPE + ROPE,
    "attention.value_length_mla": HEAD,
    "rope.dimension_count": ROPE,
}
_INDEXER = {
    "attention.indexer.head_count": INDEX_HEADS,
    "attention.indexer.key_length": INDEX_WIDTH,
    "attention.indexer.top_k": MANY,
}


def _gated_attention():
    return attention(norms=True) | {"attn_q.weight": (WIDTH, 2 * HEADS * HEAD)}


_POST = norms("post_attention_norm")
_DELTA = _SSM | {"full_attention_interval": 2, "rope.dimension_sections": [4, 4, 4, 4]}
_MOE_LAYER = attention(norms=True) | _POST | experts() | shared_expert()
_DELTA_LAYERS = (gated_delta(), _gated_attention(), nextn(_gated_attention()))
_GATED_EXPERTS = _POST | experts() | without(shared_expert(), "exp") | {"ffn_gate_inp_shexp.weight": (WIDTH,)}
_HEAD = {"nextn_predict_layers": 1}
FAMILIES = {
    "dense": Family(
        arch="llama", tensors=_model(_layers(2, lambda _: attention() | norms("ffn_norm") | ffn()))
    ),
    "moe": Family(
        arch="qwen3moe",
        keys=_MOE,
        tensors=_model(_layers(2, lambda _: attention(norms=True) | norms("ffn_norm") | experts())),
    ),
    "moe-head": Family(
        arch="glm4moe",
        keys=_MOE | _HEAD | {"leading_dense_block_count": 1},
        tensors=_model(
            _layers(3, lambda i: (attention(norms=True) | _POST | ffn(), _MOE_LAYER, nextn(_MOE_LAYER))[i])
        ),
    ),
    "window": Family(
        arch="gemma3",
        keys=_ALTERNATING,
        tensors=_model(_layers(2, lambda _: attention(norms=True) | GEMMA_NORMS | ffn())),
    ),
    "window-one-in-four": Family(
        arch="cohere2",
        keys=_ONE_IN_FOUR | {"logit_scale": 1.0},
        tensors=_model(_layers(4, lambda _: attention() | ffn()), tied=True),
    ),
    "window-norms-behind": Family(
        arch="olmo2",
        keys=_ONE_IN_FOUR,
        tensors=_model(_layers(4, lambda _: without(attention(), "attn_norm") | OLMO_NORMS | ffn())),
    ),
    "window-sinks": Family(arch="gpt-oss", keys=_ALTERNATING | _MOE, tensors=_model(_layers(2, gpt_oss))),
    "window-shared-kv": Family(
        arch="gemma4",
        keys=_ALTERNATING
        | {
            "attention.sliding_window_pattern": [True, False, True, False],
            "attention.shared_kv_layers": 2,
            "attention.key_length": WIDE_HEAD,
            "attention.value_length": WIDE_HEAD,
            "attention.key_length_swa": HEAD,
            "attention.value_length_swa": HEAD,
            "rope.dimension_count": WIDE_HEAD,
            "rope.dimension_count_swa": HEAD,
            "embedding_length_per_layer_input": PER_LAYER,
        },
        tensors=_model(
            _layers(4, gemma4)
            | {
                "rope_freqs.weight": (WIDE_HEAD // 2,),
                "per_layer_token_embd.weight": (PER_LAYER * 4, N_VOCAB),
                "per_layer_model_proj.weight": (WIDTH, PER_LAYER * 4),
                "per_layer_proj_norm.weight": (PER_LAYER,),
            }
        ),
    ),
    "latent": Family(arch="deepseek2", keys=_LATENT, tensors=_model(_layers(2, latent))),
    "latent-indexed": Family(
        arch="deepseek32",
        keys=_LATENT | _INDEXER | {"expert_group_count": 1, "expert_group_used_count": 1},
        tensors=_model(_layers(2, indexed)),
    ),
    "compressed": Family(
        arch="deepseek4",
        keys=_MOE
        | _INDEXER
        | {
            "expert_weights_norm": True,
            "expert_gating_func": 4,
            "swiglu_clamp_exp": 7.0,
            "attention.head_count_kv": 1,
            "attention.q_lora_rank": Q_LATENT,
            "attention.output_group_count": 2,
            "attention.output_lora_rank": Q_LATENT,
            "attention.sliding_window": WINDOW,
            "attention.compress_ratios": [4, 128],
            "attention.compress_rope_freq_base": 10_000.0,
            "hyper_connection.count": STREAMS,
            "hyper_connection.sinkhorn_iterations": 3,
            "hyper_connection.epsilon": 1e-6,
            "hash_layer_count": 0,
        },
        tensors=_model(
            _layers(2, compressed)
            | {
                "output_hc_fn.weight": (STREAMS * WIDTH, STREAMS),
                "output_hc_base.weight": (STREAMS,),
                "output_hc_scale.weight": (1,),
            }
        ),
    ),
    "hybrid-delta": Family(
        arch="qwen35",
        keys=_DELTA | _HEAD,
        tensors=_model(_layers(3, lambda i: _DELTA_LAYERS[i] | _POST | ffn())),
    ),
    "hybrid-delta-moe": Family(
        arch="qwen35moe",
        keys=_DELTA | _MOE | _HEAD | {"expert_shared_feed_forward_length": FFN},
        tensors=_model(_layers(3, lambda i: _DELTA_LAYERS[i] | _GATED_EXPERTS)),
    ),
    "hybrid-mamba": Family(
        arch="granitehybrid",
        keys=_SSM | {"attention.head_count_kv": [0, HEADS], "logit_scale": 1.0, "residual_scale": 1.0},
        tensors=_model(
            _layers(2, lambda i: (mamba2() if i == 0 else attention()) | norms("ffn_norm") | ffn())
        ),
    ),
    "hybrid-convolution": Family(
        arch="lfm2",
        keys={"attention.head_count_kv": [0, HEADS], "shortconv.l_cache": 3},
        tensors=without(
            _model(
                _layers(
                    2,
                    lambda i: (
                        (short_convolution() if i == 0 else attention(norms=True)) | norms("ffn_norm") | ffn()
                    ),
                )
            ),
            "output_norm",
        )
        | norms("token_embd_norm"),
    ),
    "hybrid-delta-experts": Family(
        arch="qwen3next",
        keys=_DELTA | _MOE | {"expert_shared_feed_forward_length": FFN},
        tensors=_model(
            _layers(
                2,
                lambda i: (
                    (
                        without(gated_delta(), "ssm_alpha", "ssm_beta")
                        | {"ssm_ba.weight": (WIDTH, 2 * RANK)},
                        _gated_attention(),
                    )[i]
                    | _GATED_EXPERTS
                ),
            )
        ),
    ),
    "hybrid-both": Family(
        arch="falcon-h1",
        keys=_SSM,
        tensors=_model(_layers(2, lambda _: mamba2() | attention() | {"ffn_norm": (WIDTH,)} | ffn())),
    ),
    "hybrid-apart": Family(
        arch="nemotron_h",
        keys=_SSM | {"attention.head_count_kv": [0, HEADS, 0], "feed_forward_length": [0, 0, FFN]},
        tensors=_model(
            _layers(3, lambda i: (mamba2(), attention(), norms("attn_norm") | without(ffn(), "ffn_gate"))[i])
        ),
    ),
    "hybrid-latent": Family(
        arch="kimi-linear",
        keys=without(_LATENT, "attention.q_lora_rank")
        | {"attention.head_count_kv": [0, 1], "ssm.conv_kernel": 4, "kda.head_dim": KDA_HEAD},
        tensors=_model(_layers(2, lambda i: (kimi_delta(), kimi_latent())[i])),
    ),
    "recurrent": Family(
        arch="mamba2",
        keys=_SSM | {"feed_forward_length": 0, "attention.head_count": 0},
        tensors=_model(_layers(2, lambda _: mamba2())),
    ),
}


def _keys(family):
    n_layers = 1 + max(int(name.split(".")[1]) for name in family.tensors if name.startswith("blk."))
    said = {
        "vocab_size": N_VOCAB, "context_length": N_TRAINED, "embedding_length": WIDTH,
        "block_count": n_layers,
        "feed_forward_length": FFN, "attention.head_count": HEADS, "attention.head_count_kv": HEADS,
        "attention.key_length": HEAD, "attention.value_length": HEAD, "rope.dimension_count": HEAD,
        "rope.freq_base": 10_000.0, "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.layer_norm_epsilon": 1e-6,
    }  # fmt: skip
    return said | family.keys


def _drawn(name, shape):
    """Draw a tensor; `shape` is in ggml's order, the length of a row first."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    drawn = rng.standard_normal(shape[::-1]).astype(np.float32)
    if name == "rope_freqs.weight":
        return np.ones(shape[::-1], np.float32)
    if name.endswith("ssm_a"):
        return -np.exp(drawn - 1)  # states fade, some faster than others
    if "norm" in name:
        return 1 + drawn / 10
    if len(shape) == 1 or name.endswith((".bias", "ssm_d")):
        return drawn / 10
    if name.startswith(("token_embd", "per_layer_token_embd")):
        return drawn / 10
    gain = 2.0 if "attn_q" in name or "attn_k" in name or "output" in name else 1.0
    return drawn * np.float32(gain / np.sqrt(shape[0]))


@functools.cache
def _vocabulary():
    return TrainedVocabulary().load(N_VOCAB)


def _begin(path, family):
    writer = GGUFWriter(path, family.arch)
    writer.add_name(f"random {family.arch}")
    for key, value in _keys(family).items():
        add = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            list: writer.add_array,
        }
        add[type(value)](f"{family.arch}.{key}", value)
    add_vocabulary(writer, _vocabulary())
    return writer


def write(path, name):
    """Write the family's model; the same name gives the same bytes."""
    writer = _begin(path, family := FAMILIES[name])
    for tensor, shape in family.tensors.items():
        writer.add_tensor(tensor, _drawn(tensor, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Return a function that gives a family's model, which is written once."""
    folder = tmp_path_factory.mktemp("archs")
    return functools.cache(lambda family: write(folder / f"{family}.gguf", family))


def write_header(path, family):
    """Write a model whose weights are a hole in the file: enough to see what it would take."""
    writer, n_bytes = _begin(path, family), 0
    for tensor, shape in family.tensors.items():
        n_bytes += (size := 4 * math.prod(shape)) + -size % writer.data_alignment
        writer.add_tensor_info(tensor, shape[::-1], np.dtype(np.float32), size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, path.stat().st_size + writer.data_alignment + n_bytes)
    return path
