"""Tiny random models of llama.cpp's architecture families, written when a test asks for one.

Two to four layers of width 64. Their windows are 32 tokens, so that short prompts leave them. Weights are
such that the next token depends on all that a token sees: a cell too few shows in the logits.
"""

import zlib
from dataclasses import dataclass, field

import numpy as np
from gguf import GGUFWriter

from cobali_ray.models.vocabulary import TrainedVocabulary
from cobali_ray.models.writer import _add_vocabulary

N_VOCAB, WIDTH, HEADS, HEAD, FFN, EXPERTS = 512, 64, 2, 32, 96, 4
WINDOW, N_TRAINED = 32, 4096
D_INNER, D_STATE, GROUPS, RANK = 128, 32, 2, 4
"""Of states: their width, and what they are shared by."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture: what its file says of itself, and the sizes of its tensors, in ggml's order."""

    arch: str
    keys: dict = field(default_factory=dict)
    tensors: dict
    windows: bool = False
    states: bool = False
    """A token's predecessors are remembered as a state, in some layers or in all."""


def _layers(n, make):
    return {f"blk.{i}.{name}": shape for i in range(n) for name, shape in make(i).items()}


def _model(layers, *, tied=False):
    ends = {"token_embd.weight": (WIDTH, N_VOCAB), "output_norm.weight": (WIDTH,)}
    return ends | ({} if tied else {"output.weight": (WIDTH, N_VOCAB)}) | layers


def _attention(*, head=HEAD, heads_kv=HEADS, norms=False):
    made = {
        "attn_norm.weight": (WIDTH,),
        "attn_q.weight": (WIDTH, HEADS * head),
        "attn_k.weight": (WIDTH, heads_kv * head),
        "attn_v.weight": (WIDTH, heads_kv * head),
        "attn_output.weight": (HEADS * head, WIDTH),
    }
    return made | ({"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)} if norms else {})


def _ffn():
    up = {f"ffn_{name}.weight": (WIDTH, FFN) for name in ("gate", "up")}
    return up | {"ffn_down.weight": (FFN, WIDTH)}


def _experts():
    up = {f"ffn_{name}_exps.weight": (WIDTH, FFN, EXPERTS) for name in ("gate", "up")}
    return {"ffn_gate_inp.weight": (WIDTH, EXPERTS)} | up | {"ffn_down_exps.weight": (FFN, WIDTH, EXPERTS)}


def _without(tensors, *beginnings):
    return {name: shape for name, shape in tensors.items() if not name.startswith(beginnings)}


def _norms(*names):
    return {f"{name}.weight": (WIDTH,) for name in names}


def _mamba2():
    return {
        "attn_norm.weight": (WIDTH,),
        "ssm_in.weight": (WIDTH, 2 * D_INNER + 2 * GROUPS * D_STATE + RANK),
        "ssm_conv1d.weight": (4, D_INNER + 2 * GROUPS * D_STATE),
        "ssm_conv1d.bias": (D_INNER + 2 * GROUPS * D_STATE,),
        "ssm_dt.bias": (RANK,),
        "ssm_a": (1, RANK),
        "ssm_d": (1, RANK),
        "ssm_norm.weight": (D_INNER // GROUPS, GROUPS),
        "ssm_out.weight": (D_INNER, WIDTH),
    }


def _gated_delta():
    keys = GROUPS * D_STATE
    return {
        "attn_norm.weight": (WIDTH,),
        "attn_qkv.weight": (WIDTH, 2 * keys + D_INNER),
        "attn_gate.weight": (WIDTH, D_INNER),
        "ssm_conv1d.weight": (4, 2 * keys + D_INNER),
        "ssm_dt.bias": (RANK,),
        "ssm_a": (RANK,),
        "ssm_alpha.weight": (WIDTH, RANK),
        "ssm_beta.weight": (WIDTH, RANK),
        "ssm_norm.weight": (D_STATE,),
        "ssm_out.weight": (D_INNER, WIDTH),
    }


def _gpt_oss(_):
    biases = {f"attn_{name}.bias": (HEADS * HEAD,) for name in "qkv"}
    biases |= {"attn_output.bias": (WIDTH,), "ffn_gate_inp.bias": (EXPERTS,), "attn_sinks.weight": (HEADS,)}
    biases |= {f"ffn_{name}_exps.bias": (FFN, EXPERTS) for name in ("gate", "up")}
    biases |= {"ffn_down_exps.bias": (WIDTH, EXPERTS)}
    return _attention() | _norms("post_attention_norm") | _experts() | biases


LATENT, NOPE, ROPE, Q_LATENT = 64, 32, 32, 32


def _latent(i):
    return {
        "attn_norm.weight": (WIDTH,),
        "attn_q_a.weight": (WIDTH, Q_LATENT),
        "attn_q_a_norm.weight": (Q_LATENT,),
        "attn_q_b.weight": (Q_LATENT, HEADS * (NOPE + ROPE)),
        "attn_kv_a_mqa.weight": (WIDTH, LATENT + ROPE),
        "attn_kv_a_norm.weight": (LATENT,),
        "attn_k_b.weight": (NOPE, LATENT, HEADS),
        "attn_v_b.weight": (LATENT, HEAD, HEADS),
        "attn_output.weight": (HEADS * HEAD, WIDTH),
        "ffn_norm.weight": (WIDTH,),
    } | (_ffn() if i == 0 else _experts() | {
        "exp_probs_b.bias": (EXPERTS,),
        "ffn_gate_shexp.weight": (WIDTH, FFN),
        "ffn_up_shexp.weight": (WIDTH, FFN),
        "ffn_down_shexp.weight": (FFN, WIDTH),
    })  # fmt: skip


PER_LAYER, WIDE_HEAD = 16, 64
_GEMMA_NORMS = _norms("post_attention_norm", "ffn_norm", "post_ffw_norm")


def _gemma4(i):
    made = _attention(head=HEAD if i % 2 == 0 else WIDE_HEAD, norms=True) | _ffn()
    if i >= 2:  # these read what the two layers before them keep
        made = _without(made, "attn_k", "attn_v")
    made |= _GEMMA_NORMS | _norms("post_norm")
    return made | {"inp_gate.weight": (WIDTH, PER_LAYER), "proj.weight": (PER_LAYER, WIDTH)}


_OLMO_NORMS = _norms("post_attention_norm", "post_ffw_norm") | {
    f"attn_{name}_norm.weight": (HEADS * HEAD,) for name in "qk"
}
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

FAMILIES = {
    "dense": Family(
        arch="llama", tensors=_model(_layers(2, lambda _: _attention() | _norms("ffn_norm") | _ffn()))
    ),
    "moe": Family(
        arch="qwen3moe",
        keys=_MOE,
        tensors=_model(_layers(2, lambda _: _attention(norms=True) | _norms("ffn_norm") | _experts())),
    ),
    "window": Family(
        arch="gemma3",
        keys=_ALTERNATING,
        tensors=_model(_layers(2, lambda _: _attention(norms=True) | _GEMMA_NORMS | _ffn())),
        windows=True,
    ),
    "window-one-in-four": Family(
        arch="cohere2",
        keys=_ONE_IN_FOUR | {"logit_scale": 1.0},
        tensors=_model(_layers(4, lambda _: _attention() | _ffn()), tied=True),
        windows=True,
    ),
    "window-norms-behind": Family(
        arch="olmo2",
        keys=_ONE_IN_FOUR,
        tensors=_model(_layers(4, lambda _: _without(_attention(), "attn_norm") | _OLMO_NORMS | _ffn())),
        windows=True,
    ),
    "window-sinks": Family(
        arch="gpt-oss", keys=_ALTERNATING | _MOE, tensors=_model(_layers(2, _gpt_oss)), windows=True
    ),
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
            _layers(4, _gemma4)
            | {
                "rope_freqs.weight": (WIDE_HEAD // 2,),
                "per_layer_token_embd.weight": (PER_LAYER * 4, N_VOCAB),
                "per_layer_model_proj.weight": (WIDTH, PER_LAYER * 4),
                "per_layer_proj_norm.weight": (PER_LAYER,),
            }
        ),
        windows=True,
    ),
    "latent": Family(
        arch="deepseek2",
        keys=_MOE
        | {
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
        },
        tensors=_model(_layers(2, _latent)),
    ),
    "hybrid-delta": Family(
        arch="qwen35",
        keys=_SSM | {"full_attention_interval": 2, "rope.dimension_sections": [4, 4, 4, 4]},
        tensors=_model(
            _layers(
                2,
                lambda i: (
                    (
                        _gated_delta()
                        if i == 0
                        else _attention(norms=True) | {"attn_q.weight": (WIDTH, 2 * HEADS * HEAD)}
                    )
                    | _norms("post_attention_norm")
                    | _ffn()
                ),
            )
        ),
        states=True,
    ),
    "hybrid-mamba": Family(
        arch="granitehybrid",
        keys=_SSM | {"attention.head_count_kv": [0, HEADS], "logit_scale": 1.0, "residual_scale": 1.0},
        tensors=_model(
            _layers(2, lambda i: (_mamba2() if i == 0 else _attention()) | _norms("ffn_norm") | _ffn())
        ),
        states=True,
    ),
    "recurrent": Family(
        arch="mamba2",
        keys=_SSM | {"feed_forward_length": 0, "attention.head_count": 0},
        tensors=_model(_layers(2, lambda _: _mamba2())),
        states=True,
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


_VOCABULARY = []


def write(path, name):
    """Write the family's model; the same name gives the same bytes."""
    family = FAMILIES[name]
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
    if not _VOCABULARY:
        _VOCABULARY.append(TrainedVocabulary().load(N_VOCAB))
    _add_vocabulary(writer, _VOCABULARY[0])
    for tensor, shape in family.tensors.items():
        writer.add_tensor(tensor, _drawn(tensor, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
