"""What a model will take of each device, by llama.cpp's own account, and what would make it fit."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterable, Iterator
from ctypes import c_int, c_size_t, c_void_p
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import structlog

from cobali_ray.backend import ggml, library, memory
from cobali_ray.backend.cache_need import CacheNeed
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.devices import Devices
from cobali_ray.backend.memory import HOST_CELL_BYTES
from cobali_ray.backend.params import context_params, head_params, model_params
from cobali_ray.errors import ConfigError

_log = structlog.get_logger(__name__)

_BREAKDOWN = "_Z26llama_get_memory_breakdownPK13llama_context"
"""llama.cpp's account of a context, a `std::map` of types of buffers to three sizes."""
_MAX_NODES = "_ZNK13llama_context15graph_max_nodesEj"
"""How many nodes a graph of a context has room for, where a pass has so many tokens."""
_N_GRAPHS = 3
"""llama.cpp keeps one to reserve buffers with, one of passes that give logits, and one of the others."""
_SMALL_CELLS = "q8_0", 17 / 32
"""A type of smaller cells, and the share of the memory of f16 that they take."""
_MIB = 1 << 20
_TRIAL_N_CTX = 16_384, 32_768
"""Contexts longer than windows and batches, from which on a cache grows with each token."""


class _ContextNeed(NamedTuple):
    """What llama.cpp says that a context takes."""

    buffers: list[tuple[int, list[int]]]
    """Kinds of buffers, with their bytes for weights, cells and computing."""
    graphs: int
    """Bytes of this machine's memory for the nodes of graphs, which are in no buffer."""


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
    if (need := _need_of_context(config, devices)) is None:
        return None
    of = ggml.load().ggml_backend_buft_get_device
    return [
        _sum(
            device.name,
            [sizes for kind, sizes in need.buffers if of(kind) == device.handle],
            device.memory[0],
        )
        for device in devices.used
    ]


def need_here(config: LlamaConfig, devices: Devices) -> MemoryNeed | None:
    """Return what it will take of this machine's own memory, likewise."""
    if (context_need := _need_of_context(config, devices)) is None:
        return None
    base = ggml.load()
    of, is_host, cpu = (
        base.ggml_backend_buft_get_device, base.ggml_backend_buft_is_host,
        base.ggml_backend_dev_by_type(ggml.CPU),
    )  # fmt: skip
    here = [sizes for kind, sizes in context_need.buffers if is_host(kind) or of(kind) == cpu]
    need = _sum("CPU", here, memory.available_bytes() or 0)
    cells = need.cells + HOST_CELL_BYTES * config.n_cells_requested
    return need._replace(cells=cells, buffers=need.buffers + context_need.graphs)


def estimated_need(config: LlamaConfig) -> CacheNeed | None:
    """Return what a token and a slot of a cache take on this machine, for a file that does not tell.

    llama.cpp accounts for two contexts with these slots. What does not grow with the text, such as windows,
    counts as the slots'. None: there is no account.
    """
    kind: Literal["unified", "split"] = "unified" if config.unified else "split"
    trials = [replace(config, n_ctx=n, kv=kind, kv_cells=None) for n in _TRIAL_N_CTX]
    cells = [need.cells for trial in trials if (need := need_here(trial, Devices(()))) is not None]
    if len(cells) < len(trials):
        return None
    n_more = trials[1].n_cells_requested - trials[0].n_cells_requested
    cell_bytes = math.ceil((cells[1] - cells[0]) / n_more)
    of_slots = cells[0] - cell_bytes * trials[0].n_cells_requested
    return CacheNeed(cell_bytes, max(math.ceil(of_slots / config.n_slots), 0))


def _need_of_context(config: LlamaConfig, devices: Devices) -> _ContextNeed | None:
    """Open a model without its weights, and return what it would take."""
    lc = library.load()
    library_of_llama = lc.llama_cpp._lib  # noqa: SLF001 - the function is exported, and not wrapped
    account = getattr(library_of_llama, _BREAKDOWN, None) if sys.platform == "linux" else None
    if account is None or config.split_mode == "tensor":  # whose parts are accounted for as one device
        return None
    account.restype, account.argtypes = _MapHead, (c_void_p,)
    params = model_params(lc, config, devices)
    params.no_alloc, params.load_mode = True, 0
    if not (model := lc.llama_model_load_from_file(str(config.path).encode(), params)):
        return None
    contexts: list[Any] = []
    try:
        contexts.append(lc.llama_init_from_model(model, context_params(lc, model, config)))
        if contexts[0] and config.head and config.verifies:
            contexts.append(lc.llama_init_from_model(model, head_params(lc, config, contexts[0])))
        buffers, graphs = list[tuple[int, list[int]]](), 0
        for context in filter(None, contexts):
            for node in _nodes(account(context).root):
                weights, *others = node.sizes
                buffers.append((node.kind, [weights if context == contexts[0] else 0, *others]))
            graphs += _graph_bytes(library_of_llama, context, int(lc.llama_n_ubatch(context)))
        return _ContextNeed(buffers, graphs) if contexts[0] else None
    finally:
        for context in filter(None, reversed(contexts)):
            lc.llama_free(context)
        lc.llama_model_free(model)


def _graph_bytes(library_of_llama: Any, context: Any, n_tokens: int) -> int:
    """Return what graphs of a context take; 0 where llama.cpp does not say how large they may be."""
    if (max_nodes := getattr(library_of_llama, _MAX_NODES, None)) is None:
        return 0
    max_nodes.restype, max_nodes.argtypes = ctypes.c_uint32, (c_void_p, ctypes.c_uint32)
    base, n = ggml.load(), int(max_nodes(context, n_tokens))
    return _N_GRAPHS * (n * int(base.ggml_tensor_overhead()) + int(base.ggml_graph_overhead_custom(n, False)))


def _sum(name: str, buffers: Iterable[list[int]], free: int) -> MemoryNeed:
    weights, cells, computing = (sum(sizes) for sizes in zip([0, 0, 0], *buffers, strict=True))
    return MemoryNeed(name, weights, cells, computing, free)


def _nodes(at: int | None) -> Iterator[_MapNode]:
    if at:
        node = _MapNode.from_address(at)
        yield from _nodes(node.left)
        yield node
        yield from _nodes(node.right)


def fitting(config: LlamaConfig, devices: Devices) -> LlamaConfig:
    """Return how the model fits: as configured, or with fewer slots or cells where that is allowed.

    It is where a worker is missing, or `n_slots` is auto. What workers cannot hold is refused: a CPU behind
    one takes any allocation, and Linux kills it later. What is too large for a GPU of this machine llama.cpp
    finds out itself. Raises ConfigError.
    """
    if not (devices.lent or config.fewer_slots) or (refusal := too_large(config, devices)) is None:
        return config
    device_needs = needs(config, devices) if devices.missing or config.fewer_slots else None
    smaller = None if device_needs is None else _smaller(config, device_needs)
    if smaller is None or too_large(smaller, devices) is not None:
        raise refusal
    _log.warning("smaller", n_slots=smaller.n_slots, kv_cells=smaller.kv_cells, missing=devices.missing)
    return smaller


def _smaller(config: LlamaConfig, device_needs: list[MemoryNeed]) -> LlamaConfig | None:
    """Return the settings with as many slots, or cells of a pool, as fit; None if none do."""
    n_cells = int(config.n_cells_requested * min(_share_of_cells(need) for need in device_needs))
    if config.unified and config.kv_cells:
        return replace(config, kv_cells=n_cells) if n_cells >= config.n_batch else None
    n_slots = n_cells // config.n_ctx
    return replace(config, n_slots=n_slots) if n_slots and n_slots * config.n_ctx >= config.n_batch else None


def too_large(config: LlamaConfig, devices: Devices) -> ConfigError | None:
    """Return an error that says what would make the model fit; None where it does, or that is not known."""
    if not devices.used or (device_needs := needs(config, devices)) is None:
        return None
    for need in device_needs:
        _log.info(
            "device",
            name=need.device,
            weights_mib=need.weights // _MIB,
            cells_mib=need.cells // _MIB,
            buffers_mib=need.buffers // _MIB,
            free_mib=need.free // _MIB,
        )
    return refusal_of(config, device_needs)


def refusal_of(config: LlamaConfig, device_needs: list[MemoryNeed]) -> ConfigError | None:
    """Say what would make it fit, if any device is too small."""
    short = [need for need in device_needs if not need.fits]
    if not short:
        return None
    worst = max(short, key=lambda need: need.needed - need.free)
    lacking = sum(need.needed - need.free for need in short)
    problem = (
        f"{worst.device} has {_gb(worst.free)} free, and the model takes {_gb(worst.needed)} there: "
        f"{_gb(worst.weights)} for weights, {_gb(worst.cells)} for {config.n_cells_requested} KV cells, "
        f"{_gb(worst.buffers)} for computing"
    )
    remedies = list(_remedies(config, short))
    remedies.append(f"add a device that has {_gb(lacking)} free to devices, here or on another machine")
    return ConfigError("devices", f"{problem}. To make it fit: {'; or '.join(remedies)}")


def _remedies(config: LlamaConfig, short: list[MemoryNeed]) -> Iterator[str]:
    """Say what may be lowered, if anything, so that cells fit beside weights and buffers everywhere."""
    share = min(_share_of_cells(need) for need in short)
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
    if any(need.weights > need.free for need in short):
        yield "use a model with smaller weights"
    elif share <= 0:
        yield f"lower token_budget, which is {config.n_batch}"


def _share_of_cells(need: MemoryNeed) -> float:
    """Return the part of the cells that there is room for."""
    room = need.free - need.weights - need.buffers
    return max(min(room / need.cells, 1.0), 0.0) if need.cells else float(room >= 0)


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"
