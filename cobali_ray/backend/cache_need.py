"""What a model's cache will take, by what its file says of its layers. Pure.

A layer with attention keeps keys and values of every token, a layer with latent attention one vector of each,
a recurrent one a state for each slot, and some keep nothing of their own. Where a file does not say which
layers are which, the result is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cobali_ray.backend.memory import HOST_CELL_BYTES, number_bytes
from cobali_ray.core.request.limits import Begins, CellType

STATE_CELL_BYTES = 12
"""What llama.cpp writes about a token of a saved state, beside its keys and values."""
RECURRENT = frozenset({"arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7"})
"""Architectures all of whose layers are recurrent, and have no attention."""
BOTH = frozenset({"falcon-h1"})
"""Those whose layers have both."""
INTERVALS = {"qwen35": 4, "qwen35moe": 4, "qwen3next": 4}
"""Those in which every so many layers have attention, unless the file says otherwise."""
COMPRESSED = frozenset({"deepseek4"})
"""Those that forget a text as a whole or not at all."""
GOES_BACK = frozenset({"lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe"})
"""Those whose states of the last tokens can be kept, so that drafts can be cut off."""
INDEXED = frozenset({"deepseek32"})
"""Those of which each layer keeps a key for its indexer, too; in others, only some do."""
UNKNOWN = frozenset({"deepseek4"})
"""Those that keep what is not counted here."""
OWNING = {"gemma3n": 20}
"""Those in which only so many layers, the first, keep anything, whatever the file says."""
WINDOWS = {"cohere2": 4, "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "olmo2": 4}
"""Those in which one of so many layers, the last, has no window, unless the file says otherwise."""
_F32, _STEP = 4, 256


class CacheNeed(NamedTuple):
    """The bytes of a cache, beside buffers for computing."""

    cell_bytes: int
    """Of one token."""
    slot_bytes: int
    """Of the states of one slot."""
    window_cell_bytes: int = 0
    """Of one token in layers with windows, which keep fewer of them; these are not among the other cells."""
    n_window: int = 0
    """Tokens of the window."""

    @property
    def state_bytes(self) -> int:
        """Of a saved state of a text that fills the window."""
        if not self.window_cell_bytes:
            return self.slot_bytes
        return self.slot_bytes + self.n_window * (self.window_cell_bytes - HOST_CELL_BYTES + STATE_CELL_BYTES)

    def total(self, n_cells: int, n_slots: int, n_window_cells: int) -> int:
        """Return the bytes of all, with so many cells in layers with windows."""
        cells = n_cells * self.cell_bytes + n_window_cells * self.window_cell_bytes
        return cells + n_slots * self.slot_bytes

    def n_window_cells(self, n_ctx: int, n_slots: int, n_batch: int, *, unified: bool) -> int:
        """Return the cells that llama.cpp gives a layer with windows: of these, and of a batch."""
        n_pools, n_in_pool = (1, n_slots) if unified else (n_slots, 1)
        n_cells = self.n_window * n_in_pool + n_batch
        return n_pools * min(-(-n_cells // _STEP) * _STEP, n_ctx * n_in_pool)


def cache_need(
    metadata: Mapping[str, Any],
    *,
    type_k: CellType = "f16",
    type_v: CellType = "f16",
    n_drafted: int = 0,
    head: bool = False,
) -> CacheNeed | None:
    """Return what a cache takes by the metadata of a file; None where they do not say enough.

    `n_drafted`: tokens of a draft that states allow for; `head`: whether the model's own head is used.
    """
    file = _Metadata(metadata)
    n_layers, width = file.number("block_count"), file.number("embedding_length")
    n_heads_behind = file.number("nextn_predict_layers")
    n_layers -= n_heads_behind
    n_indexed = file.number("attention.indexer.key_length")
    if file.name in UNKNOWN or not (n_layers > 0 and width) or (n_indexed and file.name not in INDEXED):
        return None
    recurrent = [file.is_recurrent(i) for i in range(n_layers)]
    if None in recurrent:
        return None
    recurrent += [False] * n_heads_behind * head
    n_owning = OWNING.get(file.name, len(recurrent) - file.number("attention.shared_kv_layers"))
    n_keys, n_values = [0, 0], [0, 0]
    for i in range(min(n_owning, len(recurrent))):
        if file.name in RECURRENT or (recurrent[i] and file.name not in BOTH):
            continue
        n_heads = file.number("attention.head_count", i)
        n_heads_kv = file.number("attention.head_count_kv", i, default=n_heads)
        if not n_heads and n_heads_kv:
            return None
        n_each = width // n_heads if n_heads else 0
        window = "_swa" if file.has_window(i) else ""
        if window and not file.tells_windows and file.varies("attention.key_length"):
            return None
        key = file.number(f"attention.key_length{window}") or file.number("attention.key_length") or n_each
        value = file.number(f"attention.value_length{window}") or file.number("attention.value_length")
        if file.number("attention.kv_lora_rank"):  # values are a part of the keys
            n_keys[0] += (
                file.number("attention.kv_lora_rank") + file.number("rope.dimension_count") + n_indexed
            )
        else:
            windowed = bool(window) and file.tells_windows
            n_keys[windowed] += n_heads_kv * key
            n_values[windowed] += n_heads_kv * (value or n_each)
    tensors = [
        number_bytes(k, type_k) + number_bytes(v, type_v) for k, v in zip(n_keys, n_values, strict=True)
    ]
    cell_bytes, window_cell_bytes = [n + HOST_CELL_BYTES * bool(n) for n in tensors]
    n_states, n_window = recurrent.count(True), file.number("attention.sliding_window")
    if file.name in GOES_BACK:
        n_states *= 1 + n_drafted
    return CacheNeed(cell_bytes, n_states * file.state_bytes(width), window_cell_bytes, n_window)


def begins(metadata: Mapping[str, Any]) -> Begins | None:
    """Return where a prompt may part from an earlier one, by the metadata of a file; None: not known."""
    file = _Metadata(metadata)
    layers = range(file.number("block_count"))
    if file.name in COMPRESSED:
        return "never"
    if any(file.is_recurrent(i) or file.has_window(i) for i in layers):
        return "at states"
    return None if file.name in UNKNOWN or any(file.is_recurrent(i) is None for i in layers) else "anywhere"


class _Metadata:
    """What a file says of its architecture."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.name: str = metadata.get("general.architecture", "")
        self._metadata = metadata

    def _value(self, key: str) -> Any:
        return self._metadata.get(f"{self.name}.{key}")

    def number(self, key: str, layer: int = 0, *, default: int = 0) -> int:
        """Return a number, of a layer where each has its own."""
        value = self._value(key)
        if isinstance(value, list):
            value = value[layer] if layer < len(value) else default
        return int(value) if isinstance(value, int) else default

    @property
    def tells_windows(self) -> bool:
        """Whether it is known which layers have windows, if any do."""
        return isinstance(self._value("attention.sliding_window_pattern"), list) or self.name in WINDOWS

    def varies(self, key: str) -> bool:
        """Whether layers with windows have another number than those without."""
        return self.number(f"{key}_swa") not in {0, self.number(key)}

    def has_window(self, layer: int) -> bool:
        """Whether a layer has a sliding window, or may have one."""
        if not self.number("attention.sliding_window"):
            return False
        if isinstance(self._value("attention.sliding_window_pattern"), list):
            return bool(self.number("attention.sliding_window_pattern", layer))
        every = WINDOWS.get(self.name, 0)
        return not every or layer % every < every - 1

    def is_recurrent(self, layer: int) -> bool | None:
        """Say whether a layer has a state; None where the file does not tell."""
        sizes = ("ssm.inner_size", "ssm.state_size", "shortconv.l_cache", "wkv.head_size", "kda.head_dim")
        if not any(map(self.number, sizes)):
            return False
        if self.name in RECURRENT | BOTH:
            return True
        for key in ("attention.recurrent_layers", "attention.head_count_kv"):
            if isinstance(self._value(key), list):
                has = self.number(key, layer) > 0
                if key == "attention.recurrent_layers":
                    return has
                # A layer without attention may be nothing but a feed-forward network.
                by_layer = isinstance(self._value("feed_forward_length"), list)
                alone = self.name.startswith("nemotron_h") and self.number("feed_forward_length", layer) > 0
                return not has and not (by_layer and alone)
        interval = self.number("full_attention_interval") or INTERVALS.get(self.name, 0)
        return (layer + 1) % interval != 0 if interval else None

    def state_bytes(self, width: int) -> int:
        """Return the bytes of the state of one recurrent layer."""
        if cache := self.number("shortconv.l_cache"):
            return _F32 * width * (cache - 1)
        if head := self.number("wkv.head_size"):
            return _F32 * width * (self.number("token_shift_count", default=2) + head)
        if head := self.number("kda.head_dim"):
            n_shifted = 3 * max(self.number("ssm.conv_kernel") - 1, 0)
            return _F32 * self.number("attention.head_count") * head * (n_shifted + head)
        inner, size = self.number("ssm.inner_size"), self.number("ssm.state_size")
        n_shifted = max(self.number("ssm.conv_kernel") - 1, 0) * (
            inner + 2 * self.number("ssm.group_count") * size
        )
        return _F32 * (n_shifted + size * inner)
