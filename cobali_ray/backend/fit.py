"""What a model will take of each device, by llama.cpp's own account, and what would make it fit."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from ctypes import c_int, c_size_t, c_void_p
from dataclasses import replace
from typing import Any, NamedTuple

import structlog

from cobali_ray.backend import ggml, library
from cobali_ray.backend.config import FLASH, LlamaConfig
from cobali_ray.backend.devices import ComputeDevice, Devices
from cobali_ray.errors import ConfigError

_log = structlog.get_logger(__name__)

_BREAKDOWN = "_Z26llama_get_memory_breakdownPK13llama_context"
"""llama.cpp's account of a context, a `std::map` of types of buffers to three sizes."""
_SMALL_CELLS = "q8_0", 17 / 32
"""And what they take of the memory of f16."""
_MIB = 1 << 20


class _MapHead(ctypes.Structure):
    """A `std::map` of libstdc++, which its root is read from."""

    _fields_ = (("compare", c_size_t), ("color", c_size_t), ("root", c_void_p), ("ends", c_void_p * 2),
                ("n", c_size_t))  # fmt: skip


class _MapNode(ctypes.Structure):
    _fields_ = (("color", c_int), ("parent", c_void_p), ("left", c_void_p), ("right", c_void_p),
                ("kind", c_void_p), ("sizes", c_size_t * 3))  # fmt: skip


class MemoryNeed(NamedTuple):
    """What is needed of one device, in bytes."""

    device: str
    weights: int
    cells: int
    """KV cells and states."""
    buffers: int
    """For computing."""
    free: int

    @property
    def needed(self) -> int:
        """All of it."""
        return self.weights + self.cells + self.buffers

    @property
    def fits(self) -> bool:
        """Whether that much is free."""
        return self.needed <= self.free


def needs(config: LlamaConfig, devices: Devices) -> list[MemoryNeed] | None:
    """Return what the model will take of each device it uses; None where that cannot be told.

    The model's file is read, and nothing of it is loaded.
    """
    lc = library.load()
    library_of_llama = lc.llama_cpp._lib  # noqa: SLF001 - the function is exported, and not wrapped
    account = getattr(library_of_llama, _BREAKDOWN, None) if sys.platform == "linux" else None
    if account is None or config.split_mode == "tensor":  # whose parts are accounted for as one device
        return None
    account.restype, account.argtypes = _MapHead, (c_void_p,)
    params = lc.llama_model_default_params()
    params.n_gpu_layers, params.no_alloc, params.load_mode = config.n_gpu_layers, True, 0
    devices.configure(params, config)
    if not (model := lc.llama_model_load_from_file(str(config.path).encode(), params)):
        return None
    try:
        if not (context := lc.llama_init_from_model(model, _context_params(lc, config))):
            return None
        try:
            return [_need(device, account(context)) for device in devices.used]
        finally:
            lc.llama_free(context)
    finally:
        lc.llama_model_free(model)


def _context_params(lc: Any, config: LlamaConfig) -> Any:
    """Return what of a context decides about memory."""
    params = lc.llama_context_default_params()
    params.n_ctx, params.n_seq_max = config.n_cells_requested, config.n_slots
    params.n_batch = params.n_ubatch = config.n_batch
    params.flash_attn_type = FLASH["on" if config.needs_flash else config.flash_attn]
    params.type_k, params.type_v = config.ggml_types
    params.kv_unified = config.unified
    return params


def _need(device: ComputeDevice, account: _MapHead) -> MemoryNeed:
    base, (weights, cells, buffers) = ggml.load(), (0, 0, 0)
    for node in _nodes(account.root):
        if base.ggml_backend_buft_get_device(node.kind) == device.handle:
            weights, cells, buffers = weights + node.sizes[0], cells + node.sizes[1], buffers + node.sizes[2]
    return MemoryNeed(device.name, weights, cells, buffers, free=device.memory[0])


def _nodes(at: int | None) -> Iterator[_MapNode]:
    if at:
        node = _MapNode.from_address(at)
        yield from _nodes(node.left)
        yield node
        yield from _nodes(node.right)


def fitting(config: LlamaConfig, devices: Devices) -> LlamaConfig:
    """Return how the model fits: as asked, or with fewer slots or cells where a worker is missing.

    What workers cannot hold is refused: a CPU behind one takes any allocation, and Linux kills it later.
    What is too large for a GPU of this machine llama.cpp finds out itself. Raises ConfigError.
    """
    if not devices.lent or (refusal := too_large(config, devices)) is None:
        return config
    found = needs(config, devices) if devices.missing else None
    smaller = None if found is None else _smaller(config, found)
    if smaller is None or too_large(smaller, devices) is not None:
        raise refusal
    _log.warning("smaller", n_slots=smaller.n_slots, kv_cells=smaller.kv_cells, missing=devices.missing)
    return smaller


def _smaller(config: LlamaConfig, found: list[MemoryNeed]) -> LlamaConfig | None:
    """Return the same with the slots, or cells of a pool, that there is room for; None if for none."""
    n_cells = int(config.n_cells_requested * min(_share_of_cells(one) for one in found))
    if config.unified and config.kv_cells:
        return replace(config, kv_cells=n_cells) if n_cells >= config.n_batch else None
    n_slots = n_cells // config.n_ctx
    return replace(config, n_slots=n_slots) if n_slots and n_slots * config.n_ctx >= config.n_batch else None


def too_large(config: LlamaConfig, devices: Devices) -> ConfigError | None:
    """Return an error that says what would make the model fit; None where it does, or that is not known."""
    if not devices.used or (found := needs(config, devices)) is None:
        return None
    for one in found:
        _log.info(
            "device",
            name=one.device,
            weights_mib=one.weights // _MIB,
            cells_mib=one.cells // _MIB,
            buffers_mib=one.buffers // _MIB,
            free_mib=one.free // _MIB,
        )
    return refusal_of(config, found)


def refusal_of(config: LlamaConfig, found: list[MemoryNeed]) -> ConfigError | None:
    """Say what would make it fit, if any device is too small."""
    short = [one for one in found if not one.fits]
    if not short:
        return None
    worst = max(short, key=lambda one: one.needed - one.free)
    lacking = sum(one.needed - one.free for one in short)
    said = (
        f"{worst.device} has {_gb(worst.free)} free, and the model takes {_gb(worst.needed)} there: "
        f"{_gb(worst.weights)} for weights, {_gb(worst.cells)} for {config.n_cells_requested} KV cells, "
        f"{_gb(worst.buffers)} for computing"
    )
    remedies = list(_remedies(config, short))
    remedies.append(f"add a device that has {_gb(lacking)} free to devices")
    return ConfigError("devices", f"{said}. To make it fit: {'; or '.join(remedies)}")


def _remedies(config: LlamaConfig, short: list[MemoryNeed]) -> Iterator[str]:
    """Say what may be lowered, if anything, so that cells fit beside weights and buffers everywhere."""
    share = min(_share_of_cells(one) for one in short)
    n_cells = int(config.n_cells_requested * share)
    if config.unified and config.kv_cells:
        if n_cells >= config.n_batch:
            yield f"lower kv_cells to {n_cells}"
    else:
        if n_slots := min(n_cells // config.n_ctx, config.n_slots - 1):
            yield f"lower n_slots to {n_slots}"
        if n_ctx := n_cells // config.n_slots // 256 * 256:
            yield f"lower n_ctx to {n_ctx}"
    if config.type_k == config.type_v == "f16" and config.flash_attn != "off" and share >= _SMALL_CELLS[1]:
        yield f"set type_k and type_v to {_SMALL_CELLS[0]}"
    if any(one.weights > one.free for one in short):
        yield "use a model with smaller weights"
    elif share <= 0:
        yield f"lower token_budget, which is {config.n_batch}"


def _share_of_cells(one: MemoryNeed) -> float:
    """Return the part of the cells that there is room for."""
    room = one.free - one.weights - one.buffers
    return max(min(room / one.cells, 1.0), 0.0) if one.cells else float(room >= 0)


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"
