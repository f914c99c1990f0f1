"""The tensors of one layer of each kind, by the order of their sizes in ggml: a row's length first."""

import os

TIMES = int(os.environ.get("ARCHS_TIMES", "1"))
"""How much wider they are than is enough to compute with: where memory is measured, it is to be some."""
N_VOCAB, WIDTH, HEADS, HEAD, FFN, EXPERTS = 512, 64 * TIMES, 2 * TIMES, 32, 96 * TIMES, 4
WINDOW, N_TRAINED = 32, 4096
D_INNER, D_STATE, GROUPS = 128 * TIMES, 32 * min(TIMES, 4), 2
"""Of states: their width, and what they are shared by."""
RANK = D_INNER // D_STATE


def attention(*, head=HEAD, heads=HEADS, heads_kv=HEADS, norms=False):
    made = {
        "attn_norm.weight": (WIDTH,),
        "attn_q.weight": (WIDTH, heads * head),
        "attn_k.weight": (WIDTH, heads_kv * head),
        "attn_v.weight": (WIDTH, heads_kv * head),
        "attn_output.weight": (heads * head, WIDTH),
    }
    return made | ({"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)} if norms else {})


def ffn():
    up = {f"ffn_{name}.weight": (WIDTH, FFN) for name in ("gate", "up")}
    return up | {"ffn_down.weight": (FFN, WIDTH)}


def experts():
    up = {f"ffn_{name}_exps.weight": (WIDTH, FFN, EXPERTS) for name in ("gate", "up")}
    return {"ffn_gate_inp.weight": (WIDTH, EXPERTS)} | up | {"ffn_down_exps.weight": (FFN, WIDTH, EXPERTS)}


def without(tensors, *beginnings):
    return {name: shape for name, shape in tensors.items() if not name.startswith(beginnings)}


def norms(*names):
    return {f"{name}.weight": (WIDTH,) for name in names}


def mamba2():
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


def gated_delta():
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


def gpt_oss(_, *, head=HEAD, heads=HEADS, heads_kv=HEADS):
    biases = {
        f"attn_{name}.bias": (n * head,) for name, n in zip("qkv", (heads, heads_kv, heads_kv), strict=True)
    }
    biases |= {"attn_output.bias": (WIDTH,), "ffn_gate_inp.bias": (EXPERTS,), "attn_sinks.weight": (heads,)}
    biases |= {f"ffn_{name}_exps.bias": (FFN, EXPERTS) for name in ("gate", "up")}
    biases |= {"ffn_down_exps.bias": (WIDTH, EXPERTS)}
    made = attention(head=head, heads=heads, heads_kv=heads_kv)
    return made | norms("post_attention_norm") | experts() | biases


def nextn(layer):
    """A layer that guesses: it reads a token, and what the others made of the one before."""
    return layer | {"nextn.eh_proj.weight": (2 * WIDTH, WIDTH)} | norms("nextn.enorm", "nextn.hnorm")


LATENT, NOPE, ROPE, Q_LATENT = 64 * TIMES, 32, 32, 32
INDEX_HEADS, INDEX_WIDTH, MANY = 2, 64, 1024
"""Of what says which tokens to attend to: all of them, or rounding would choose."""


def shared_expert():
    return {
        "exp_probs_b.bias": (EXPERTS,),
        "ffn_gate_shexp.weight": (WIDTH, FFN),
        "ffn_up_shexp.weight": (WIDTH, FFN),
        "ffn_down_shexp.weight": (FFN, WIDTH),
    }


def latent(i):
    made = {
        "attn_q_a.weight": (WIDTH, Q_LATENT),
        "attn_q_a_norm.weight": (Q_LATENT,),
        "attn_q_b.weight": (Q_LATENT, HEADS * (NOPE + ROPE)),
        "attn_kv_a_mqa.weight": (WIDTH, LATENT + ROPE),
        "attn_kv_a_norm.weight": (LATENT,),
        "attn_k_b.weight": (NOPE, LATENT, HEADS),
        "attn_v_b.weight": (LATENT, HEAD, HEADS),
        "attn_output.weight": (HEADS * HEAD, WIDTH),
    }
    made |= norms("attn_norm", "ffn_norm")
    return made | (ffn() if i == 0 else experts() | shared_expert())


def indexed(i):
    return latent(i) | {
        "indexer.k_norm.weight": (INDEX_WIDTH,),
        "indexer.k_norm.bias": (INDEX_WIDTH,),
        "indexer.proj.weight": (WIDTH, INDEX_HEADS),
        "indexer.attn_k.weight": (WIDTH, INDEX_WIDTH),
        "indexer.attn_q_b.weight": (Q_LATENT, INDEX_HEADS * INDEX_WIDTH),
    }


KDA_HEAD, KDA = HEAD, HEADS * HEAD


def kimi_delta():
    made = {
        "attn_norm.weight": (WIDTH,),
        "attn_output.weight": (KDA, WIDTH),
        "ssm_f_a.weight": (WIDTH, KDA_HEAD),
        "ssm_f_b.weight": (KDA_HEAD, KDA),
        "ssm_g_a.weight": (WIDTH, KDA_HEAD),
        "ssm_g_b.weight": (KDA_HEAD, KDA),
        "ssm_beta.weight": (WIDTH, HEADS),
        "ssm_a": (1, HEADS),
        "ssm_dt.bias": (KDA,),
        "ssm_norm.weight": (KDA_HEAD,),
    }
    for name in "qkv":
        made |= {f"attn_{name}.weight": (WIDTH, KDA), f"ssm_conv1d_{name}.weight": (4, 1, KDA)}
    return made | norms("ffn_norm") | ffn()


def kimi_latent():
    made = without(latent(1), "attn_q")
    return made | {"attn_q.weight": (WIDTH, HEADS * (NOPE + ROPE))}


STREAMS = 4
"""Residual streams that layers mix; llama.cpp knows no other number."""


def compressed(i):
    """Keys and values of 4 tokens become one in the first layer, and of 128 in the second."""
    n_together, twice = ((4, 2), (128, 1))[i]
    mixed = (2 + STREAMS) * STREAMS
    made = {
        "attn_sinks.weight": (HEADS,),
        "attn_q_a.weight": (WIDTH, Q_LATENT),
        "attn_q_a_norm.weight": (Q_LATENT,),
        "attn_q_b.weight": (Q_LATENT, HEADS * HEAD),
        "attn_kv.weight": (WIDTH, HEAD),
        "attn_kv_a_norm.weight": (HEAD,),
        "attn_output_a.weight": (HEADS * HEAD // 2, 2 * Q_LATENT),
        "attn_output_b.weight": (2 * Q_LATENT, WIDTH),
    }
    for half in ("attn", "ffn"):
        made |= {
            f"hc_{half}_fn.weight": (STREAMS * WIDTH, mixed),
            f"hc_{half}_base.weight": (mixed,),
            f"hc_{half}_scale.weight": (3,),
        }
    for what, width in [("attn", HEAD)] + [("indexer", INDEX_WIDTH)] * (i == 0):
        made |= {
            f"{what}_compressor_kv.weight": (WIDTH, twice * width),
            f"{what}_compressor_gate.weight": (WIDTH, twice * width),
            f"{what}_compressor_ape.weight": (twice * width, n_together),
            f"{what}_compressor_norm.weight": (width,),
        }
    if i == 0:
        made["indexer.proj.weight"] = (WIDTH, INDEX_HEADS)
        made["indexer.attn_q_b.weight"] = (Q_LATENT, INDEX_HEADS * INDEX_WIDTH)
    return made | norms("attn_norm", "ffn_norm") | experts() | shared_expert()


def short_convolution():
    return {
        "attn_norm.weight": (WIDTH,),
        "shortconv.conv.weight": (3, WIDTH),
        "shortconv.in_proj.weight": (WIDTH, 3 * WIDTH),
        "shortconv.out_proj.weight": (WIDTH, WIDTH),
    }


PER_LAYER, WIDE_HEAD = 16, 64
GEMMA_NORMS = norms("post_attention_norm", "ffn_norm", "post_ffw_norm")


def gemma4(i):
    made = attention(head=HEAD if i % 2 == 0 else WIDE_HEAD, norms=True) | ffn()
    if i >= 2:  # these read what the two layers before them keep
        made = without(made, "attn_k", "attn_v")
    made |= GEMMA_NORMS | norms("post_norm")
    return made | {"inp_gate.weight": (WIDTH, PER_LAYER), "proj.weight": (PER_LAYER, WIDTH)}


OLMO_NORMS = norms("post_attention_norm", "post_ffw_norm") | {
    f"attn_{name}_norm.weight": (HEADS * HEAD,) for name in "qk"
}
