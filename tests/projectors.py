"""Projectors with random weights, as GGUF files that llama.cpp's mtmd takes, and pictures to show them.

One for each way in which rows of an image are computed: `mlp` (LLaVA's: causal), `gemma3` (all rows see each
other) and `qwen2vl_merger` (positions in two dimensions, fewer than rows).
"""

import struct
import zlib

import numpy as np
from gguf import GGUFWriter

SIDE, PATCH, WIDTH, HEADS, FFN, LAYERS = 32, 8, 64, 4, 128, 2
N_PATCHES = (SIDE // PATCH) ** 2


def write_projector(path, kind, *, n_out=256, seed=0):
    """Write a projector for a text model of width `n_out`, and return its path."""
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", kind)
    writer.add_bool("clip.use_gelu", True)
    for key, value in {
        "embedding_length": WIDTH,
        "feed_forward_length": FFN,
        "block_count": LAYERS,
        "projection_dim": n_out,
        "attention.head_count": HEADS,
        "image_size": SIDE,
        "patch_size": PATCH,
    }.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])

    def add(name, *shape, gain=1.0, mean=0.0):
        spread = gain / np.sqrt(np.prod(shape[1:], dtype=float) or 1.0)
        writer.add_tensor(name, (mean + spread * rng.standard_normal(shape)).astype(np.float32))

    add("v.patch_embd.weight", WIDTH, 3, PATCH, PATCH, gain=2.0)
    if kind == "qwen2vl_merger":
        add("v.patch_embd.weight.1", WIDTH, 3, PATCH, PATCH, gain=2.0)
    else:
        add("v.position_embd.weight", N_PATCHES, WIDTH, gain=4.0)
    for layer in range(LAYERS):
        at = f"v.blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            add(f"{at}.{part}.weight", WIDTH, WIDTH)
            add(f"{at}.{part}.bias", WIDTH, gain=0.1)
        for part in ("ln1", "ln2"):
            add(f"{at}.{part}.weight", WIDTH, gain=0.05, mean=1.0)
            add(f"{at}.{part}.bias", WIDTH, gain=0.05)
        add(f"{at}.ffn_up.weight", FFN, WIDTH)
        add(f"{at}.ffn_up.bias", FFN, gain=0.1)
        add(f"{at}.ffn_down.weight", WIDTH, FFN)
        add(f"{at}.ffn_down.bias", WIDTH, gain=0.1)
    add("v.post_ln.weight", WIDTH, gain=0.05, mean=1.0)
    add("v.post_ln.bias", WIDTH, gain=0.05)
    if kind == "gemma3":
        writer.add_uint32("clip.vision.projector.scale_factor", 2)
        add("mm.input_projection.weight", WIDTH, n_out, gain=0.3)
        add("mm.soft_emb_norm.weight", WIDTH, gain=0.05, mean=1.0)
    else:
        n_in = 4 * WIDTH if kind == "qwen2vl_merger" else WIDTH
        add("mm.0.weight", n_in, n_in)
        add("mm.0.bias", n_in, gain=0.1)
        add("mm.2.weight", n_out, n_in, gain=0.3)
        add("mm.2.bias", n_out, gain=0.02)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def png(width=40, height=30, seed=0):
    """Return a PNG file of noise in coarse squares."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    pixels = pixels.repeat(8, 0).repeat(8, 1)[:height, :width]
    return png_of(pixels)


def png_of(pixels):
    """Return the PNG file of an array of rows of pixels of three bytes."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
