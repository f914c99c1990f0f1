"""What a cache with sliding windows takes, and what it would take if all layers kept all tokens.

By llama.cpp's own account, for the layers, windows and heads of models that people load: their files have
narrow weights of no content, and nothing of them is loaded. `-s` shows the table.
"""

import sys
from dataclasses import dataclass

import archs
import pytest
from arch_layers import GEMMA_NORMS, N_VOCAB, WIDTH, attention, ffn, gpt_oss, without
from structlog.testing import capture_logs

from cobali_ray.backend.cache_need import cache_need
from cobali_ray.backend.devices import open_devices
from cobali_ray.backend.fit import need_here
from cobali_ray.engine.opening import llama_config
from cobali_ray.models.ggufmeta import read_header
from cobali_ray.settings import read_settings

pytestmark = pytest.mark.model

N_SLOTS = 4
CONTEXTS = (32_768, 131_072)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The attention of a model: one of `every` layers, the last of them, has no window."""

    arch: str
    n_layers: int
    every: int
    window: int
    heads: int
    heads_kv: int
    head: int
    wide_heads_kv: int = 0
    wide_head: int = 0
    """Of the layers without a window, if they differ."""
    n_shared: int = 0
    """The last layers, which keep nothing of their own."""

    def has_window(self, layer):
        return layer % self.every < self.every - 1

    def layer(self, i):
        window = self.has_window(i) or not self.wide_head
        head, heads_kv = (self.head, self.heads_kv) if window else (self.wide_head, self.wide_heads_kv)
        sizes = {"head": head, "heads": self.heads, "heads_kv": heads_kv}
        if self.arch == "gpt-oss":
            return gpt_oss(i, **sizes)
        made = attention(**sizes, norms=True) | GEMMA_NORMS | ffn()
        if self.arch == "gemma3n":
            return made | {
                "inp_gate.weight": (WIDTH, 256), "proj.weight": (256, WIDTH), "post_norm.weight": (WIDTH,),
                "altup_correct_coef.weight": (4, 4), "altup_correct_scale.weight": (WIDTH,),
                "altup_predict_coef.weight": (4, 16), "altup_router.weight": (WIDTH, 4),
                "altup_router_norm.weight": (WIDTH,), "laurel_l.weight": (WIDTH, 64),
                "laurel_r.weight": (64, WIDTH), "laurel_post_norm.weight": (WIDTH,),
            }  # fmt: skip
        return without(made, "attn_k", "attn_v") if i >= self.n_layers - self.n_shared else made

    def family(self):
        keys = {
            "context_length": max(CONTEXTS),
            "attention.sliding_window": self.window,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.heads_kv,
            "attention.key_length": self.head,
            "attention.value_length": self.head,
            "rope.dimension_count": self.head,
        }
        tensors = {
            f"blk.{i}.{name}": size for i in range(self.n_layers) for name, size in self.layer(i).items()
        }
        model = archs._model(tensors, tied=self.arch != "gpt-oss")
        if self.arch == "gpt-oss":
            keys = archs._MOE | keys
        if self.arch == "gemma3n":
            width = 256 * self.n_layers
            model |= {
                "altup_proj.weight": (WIDTH, WIDTH, 3), "altup_unembd_proj.weight": (WIDTH, WIDTH, 3),
                "per_layer_token_embd.weight": (width, N_VOCAB), "per_layer_proj_norm.weight": (256,),
                "per_layer_model_proj.weight": (WIDTH, width),
            }  # fmt: skip
        if self.wide_head:
            windows = [self.has_window(i) for i in range(self.n_layers)]
            model["rope_freqs.weight"] = (self.wide_head // 2,)
            keys |= {
                "attention.sliding_window_pattern": windows,
                "attention.head_count_kv": [self.heads_kv if one else self.wide_heads_kv for one in windows],
                "attention.shared_kv_layers": self.n_shared,
                "embedding_length_per_layer_input": 0,
                "rope.dimension_count": self.wide_head,
                "rope.dimension_count_swa": self.head,
            }
            for what in ("key", "value"):
                keys[f"attention.{what}_length"] = self.wide_head
                keys[f"attention.{what}_length_swa"] = self.head
        return archs.Family(arch=self.arch, keys=keys, tensors=model)


GEMMA = {"every": 6, "window": 1024}
GEMMA_3N = {"arch": "gemma3n", "every": 5, "window": 512, "heads": 8, "heads_kv": 2, "head": 256}
GEMMA_4 = GEMMA | {"arch": "gemma4", "head": 256, "wide_head": 512}
GPT_OSS = {"arch": "gpt-oss", "every": 2, "window": 128, "heads": 64, "heads_kv": 8, "head": 64}
SHAPES = {
    "Gemma 3 4B": Shape(arch="gemma3", n_layers=34, heads=8, heads_kv=4, head=256, **GEMMA),
    "Gemma 3 12B": Shape(arch="gemma3", n_layers=48, heads=16, heads_kv=8, head=256, **GEMMA),
    "Gemma 3 27B": Shape(arch="gemma3", n_layers=62, heads=32, heads_kv=16, head=128, **GEMMA),
    "Gemma 3n E2B": Shape(n_layers=30, **GEMMA_3N),
    "Gemma 3n E4B": Shape(n_layers=35, **GEMMA_3N),
    "Gemma 4 E2B": Shape(
        n_layers=35,
        heads=8,
        heads_kv=1,
        wide_heads_kv=1,
        n_shared=20,
        **GEMMA_4 | {"window": 512, "every": 5},
    ),
    "Gemma 4 E4B": Shape(
        n_layers=42, heads=8, heads_kv=2, wide_heads_kv=2, n_shared=18, **GEMMA_4 | {"window": 512}
    ),
    "Gemma 4 26B-A4B": Shape(n_layers=30, heads=16, heads_kv=8, wide_heads_kv=2, **GEMMA_4),
    "Gemma 4 31B": Shape(n_layers=60, heads=32, heads_kv=16, wide_heads_kv=4, **GEMMA_4),
    "gpt-oss 20B": Shape(n_layers=24, **GPT_OSS),
    "gpt-oss 120B": Shape(n_layers=36, **GPT_OSS),
}


def account(path, n_ctx, speculation):
    """Return what llama.cpp says that the cache takes; where streams draft, all layers keep all tokens."""
    asked = {"model": str(path), "n_slots": N_SLOTS, "n_ctx": n_ctx, "n_threads": 1, "n_gpu_layers": 0}
    config = llama_config(read_settings(asked | {"speculation": speculation}), path)
    with capture_logs():
        n_bytes = need_here(config, open_devices(config)).cells
    assert config.cache_bytes == pytest.approx(n_bytes, rel=0.01), "what is said without llama.cpp"
    return n_bytes


@pytest.fixture(scope="module")
def show():
    """Write a row of the table."""
    contexts = "".join([f" all tokens, {n // 1024}k | windows | ratio |" for n in CONTEXTS])
    sys.stdout.write(f"\n| model |{contexts} bound |\n{'|---' * 8}|\n")
    return lambda row: (sys.stdout.write(f"{row}\n"), sys.stdout.flush())


QUICK = {"gpt-oss 20B", "Gemma 3n E4B", "Gemma 4 E4B"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in SHAPES]
)
def test_windows_leave_room_for_more(tmp_path, show, name):
    path, ratios, shown = archs.write_header(tmp_path / "m.gguf", SHAPES[name].family()), [], ""
    need = cache_need(read_header(path).metadata)
    bound = (need.cell_bytes + need.window_cell_bytes) / need.cell_bytes
    for n_ctx in CONTEXTS:
        everything, windows = (account(path, n_ctx, speculation) for speculation in ("auto", "off"))
        ratios.append(everything / windows)
        shown += f" {everything / 1e9:.1f} | {windows / 1e9:.1f} | {ratios[-1]:.2f} |"
    show(f"| {name} |{shown} {bound:.2f} |")
    assert min(3, 0.9 * bound) < min(ratios) <= max(ratios) < bound
