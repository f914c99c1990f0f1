"""LlamaConfig: how a model is opened, checked before llama.cpp sees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le

from cobali_ray.backend.endpoint import (
    PLACED,
    RAY_CPU,
    WORKER,
    address_of,
    is_endpoint,
    is_lent,
    require_here,
)
from cobali_ray.backend.memory import TYPES
from cobali_ray.core.plan.adapters import Adapter
from cobali_ray.core.request.embedding import ChosenPooling
from cobali_ray.core.request.limits import MAX_COUNT, MAX_SLOTS, PLAIN_CELL_TYPES, CellType, Grain
from cobali_ray.errors import ConfigError

if TYPE_CHECKING:
    from cobali_ray.backend.tunnel_key import TunnelAddress

FLASH = {"auto": -1, "off": 0, "on": 1}
"""How llama.cpp numbers what `flash_attn` may be."""
FEWEST_SLOTS = 32
"""As others measured llama.cpp's device sampling: a loss with one slot, neither with 16, a gain with 32."""
AUTO = "auto"
"""The word of `devices` for the GPUs that llama.cpp finds."""
MAX_DEVICES = 16
"""llama.cpp's own bound."""
SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
"""How llama.cpp numbers what `split_mode` may be."""
_ATTENTION_TILE = 64
DEEP = 2048
"""Tokens of a slot from which on the kind of attention is worth measuring."""
DEFAULT_N_CTX = 4096
STATE_DRAFT = 3
"""Most tokens of a draft where a slot has states: each takes another state of every slot."""
MAX_THREADS = 512
"""What ggml can compute with."""
MAX_CELLS = MAX_COUNT  # positions are int32, and a larger n_ctx would wrap around without a word


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSettings:
    """What an operator asks of llama.cpp. Counts are tokens unless the name says otherwise."""

    n_ctx: Annotated[int, Ge(16), Le(MAX_COUNT)] | Literal["auto"] = DEFAULT_N_CTX
    """Most tokens of one request, prompt and answer together; auto: what the model was trained for, or less
    if half of the memory left after its weights cannot hold that for every slot."""
    kv: Literal["auto", "split", "unified"] = "auto"
    """auto: unified where kv_cells overcommits the cache, split otherwise."""
    kv_cells: Annotated[int, Ge(16), Le(MAX_COUNT)] | None = None
    """KV cells of all slots together; None: n_slots * n_ctx. Needs a unified cache."""
    type_k: CellType = "f16"
    """How keys are stored in the KV cache."""
    type_v: CellType = "f16"
    """The same for values; all but f16 and bf16 need flash attention."""
    n_threads: Annotated[int, Ge(1), Le(MAX_THREADS)] | None = None
    """None: one per physical core this process may use, within the CPU quota of its control groups."""
    threads_wait: Literal["auto", "active", "passive"] = "auto"
    """How compute threads wait for each other: active spins (fast on an idle machine), passive sleeps (safe
    on a busy one), auto spins briefly and then sleeps."""
    n_gpu_layers: Annotated[int, Ge(-1), Le(MAX_COUNT)] | Literal["auto"] = "auto"
    """Layers on the GPU; auto puts all there if llama.cpp was built for one, -1 means all."""
    devices: tuple[str, ...] = (AUTO,)
    """What layers are put on: devices by llama.cpp's names, HOST:PORT of workers, `worker` for one that is
    started here with the engine, `ray-gpu` or `ray-cpu` for one that Ray places on some node of the cluster;
    auto: the GPUs that llama.cpp finds."""
    split_mode: Literal["layer", "row", "tensor", "none"] = "layer"
    """How a model lies on several devices: whole layers, or parts of each; none: on one device alone."""
    tensor_split: tuple[Annotated[float, Ge(0)], ...] = ()
    """How much of the model each device gets, in proportion; empty: by their free memory."""
    split_fallback: bool = False
    """Whether an engine serves without a worker that does not answer, or that Ray has no room for, if the
    others can hold the model, with fewer slots if need be; it takes the worker back when it can and nothing
    is open."""
    main_device: str | None = None
    """The one device used with split_mode: none; None: the first."""
    worker_memory_mib: Annotated[int, Ge(16), Le(MAX_COUNT)] | None = None
    """Memory that each `worker` and `ray-cpu` in devices may lend; None: what is free."""
    worker_key_file: Path | None = None
    """The file that `cobali worker --listen` has as --key-file. With it, each HOST:PORT in devices is reached
    through an encrypted tunnel, also on another machine; None: on this machine alone, not encrypted."""
    flash_attn: Literal["auto", "on", "off"] = "auto"
    device_sampling: Literal["auto", "on", "off"] = "auto"
    """Whether the device picks each row's 128 likeliest tokens; auto: where the whole model is on a GPU and
    there are at least 32 slots."""
    pooling: ChosenPooling | None = None
    """How the vectors of a text's tokens become one; None: as the model's file says. With it, a model that
    generates text also embeds, in a second context."""

    @property
    def unified(self) -> bool:
        """Whether all slots share one KV pool."""
        return self.kv == "unified" or (self.kv == "auto" and self.kv_cells is not None)

    @property
    def borrows_all(self) -> bool:
        """Whether workers lend all devices that are named."""
        return all(map(is_lent, self.devices))

    @property
    def n_named_here(self) -> int:
        """How many devices of this machine are named."""
        return sum(not is_lent(word) for word in self.devices) if self.devices != (AUTO,) else 0

    def faults_of_devices(self) -> Iterator[str]:
        """Say which settings of devices cannot be used, and why."""
        named, n = self.devices != (AUTO,), len(self.devices)
        others = [word for word in self.devices if word not in {WORKER, *PLACED}]
        if not n or not all(self.devices):
            yield "devices: must name at least one, or be auto"
        if named and AUTO in self.devices:
            yield "devices: auto stands alone"
        if n > MAX_DEVICES:
            yield f"devices: llama.cpp takes at most {MAX_DEVICES}, got {n}"
        if len(set(others)) < len(others):
            yield "devices: one is named twice"
        if named and self.n_gpu_layers == 0:
            yield "devices: with n_gpu_layers: 0, none of them gets a layer"
        for word in filter(is_endpoint, others):
            try:
                address_of(word) if self.worker_key_file is not None else require_here(word)
            except ValueError as error:
                yield f"devices: {error}"
        if self.split_mode == "row" and any(map(is_lent, self.devices)):
            yield "split_mode: row needs devices that divide matrices, which workers do not"
        if self.main_device is not None and self.split_mode != "none":
            yield f"main_device: needs split_mode: none, got {self.split_mode}"
        if self.tensor_split:
            if self.split_mode == "none":
                yield "tensor_split: with split_mode: none, there is one device"
            if not named or len(self.tensor_split) != n:
                yield "tensor_split: needs a number for each device, and devices that are named"
            if not any(self.tensor_split):
                yield "tensor_split: one number must be above 0"
        if self.split_mode == "tensor" and self.flash_attn == "off":
            yield "split_mode: tensor needs flash_attn: on or auto, got off"
        if self.split_mode == "tensor" and not {self.type_k, self.type_v} <= PLAIN_CELL_TYPES:
            yield f"split_mode: tensor takes no quantised cells, got {self.type_k} and {self.type_v}"
        if self.worker_memory_mib is not None and not {WORKER, RAY_CPU} & {*self.devices}:
            yield "worker_memory_mib: needs a `worker` or `ray-cpu` among the devices"
        lent_by_others = PLACED & {*self.devices} or any(map(is_endpoint, others))
        if self.split_fallback and (n == 1 or not lent_by_others or self.split_mode == "none"):
            yield "split_fallback: needs HOST:PORT, ray-gpu or ray-cpu, another device, and a split_mode"
        if self.worker_key_file is not None and not any(map(is_endpoint, others)):
            yield "worker_key_file: needs the HOST:PORT of a worker among the devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(LlamaSettings):
    """How to open a model: the settings, with a number for each auto, and what its files say."""

    n_ctx: int
    n_threads: int
    n_gpu_layers: int = 0
    path: Path
    n_slots: int
    fewer_slots: bool = False
    """Whether there may be fewer, where a device cannot hold so many."""
    n_batch: int
    speculation: bool = False
    """Whether streams' drafts may be computed."""
    head: bool = False
    """Whether the file has a head that can guess them."""
    mmproj: Path | None = None
    """The projector that turns images into rows, for models that were trained with one."""
    adapters: tuple[Adapter, ...] = ()
    """Loaded beside the model; their files were checked."""
    worker_cache: Path | None = None
    """A folder for the library by which workers are reached."""
    placed: tuple[TunnelAddress | None, ...] = field(default=(), repr=False)
    """The workers that Ray has placed for words of `devices`, in their order; None: it had no room."""
    cache_bytes: int | None = None
    """What its cache will take, by the metadata of its file; None: not known."""
    measurements: Path | None = None
    """A folder that remembers what was measured of a model; None: whatever needs it is measured anew."""

    def __post_init__(self) -> None:
        if not 1 <= self.n_slots <= MAX_SLOTS:
            raise ConfigError("n_slots", f"must be in 1 .. {MAX_SLOTS}, got {self.n_slots}")
        if not 1 <= self.n_cells_requested <= MAX_CELLS:
            raise ConfigError(
                "n_ctx", f"{self.n_slots} slots of {self.n_ctx} tokens are not in 1 .. {MAX_CELLS}"
            )
        if self.n_batch < self.n_slots:
            raise ConfigError("token_budget", f"{self.n_batch} cannot feed {self.n_slots} slots")
        if self.n_batch > self.n_cells_requested:
            raise ConfigError(
                "token_budget", f"{self.n_batch}, but there are {self.n_cells_requested} KV cells"
            )
        if self.flash_attn == "off" and self.needs_flash:
            raise ConfigError("type_v", f"{self.type_v} needs flash_attn: on or auto, got off")

    @property
    def n_cells_requested(self) -> int:
        """KV cells to allocate."""
        return (self.unified and self.kv_cells) or self.n_slots * self.n_ctx

    @property
    def reproducible(self) -> bool:
        """Whether a request's logits shall not depend on its company.

        Flash attention and a unified cache sum in an order that depends on chunks and other slots.
        """
        return self.flash_attn == "off" and not self.unified and not self.n_gpu_layers

    @property
    def needs_flash(self) -> bool:
        """Whether there is no choice: plain attention reads no quantised values."""
        return self.type_v not in PLAIN_CELL_TYPES

    @property
    def ggml_types(self) -> tuple[int, int]:
        """The types of keys and values by ggml's numbers."""
        return TYPES[self.type_k].ggml_type, TYPES[self.type_v].ggml_type

    @property
    def verifies(self) -> bool:
        """Whether drafts are computed: never where results are to be reproducible.

        Rows of one sequence computed together round differently than one by one.
        """
        return self.speculation and not self.reproducible

    @property
    def measures_attention(self) -> bool:
        """Whether opening tries plain attention as well.

        A GPU keeps llama.cpp's own choice; so does a unified cache, where rows attend to everybody's cells
        and only flash attention passes over those of others. In short slots plain attention has no chance:
        where it wins a row and a short chunk there, many rows and long chunks lose more.
        """
        choice = self.flash_attn == "auto" and not self.needs_flash and self.n_ctx >= DEEP
        return choice and not self.unified and not self.n_gpu_layers

    def grain(self, *, n_heads: int, pass_cells: int | None = None) -> Grain:
        """Return which chunks llama.cpp computes well, for a model with `n_heads` attention heads.

        `pass_cells` is known where plain attention was measured and chosen: see `Grain`.

        Its flash attention on a CPU shares tokens times heads among four times as many pieces as threads,
        and computes a piece in tiles of 64 tokens of one head; fewer than 64 tokens go one by one. In a
        split cache, the first token of every sequence of a batch is computed together. A model that only
        keeps states has no heads.
        """
        plain = self.flash_attn == "off" or not n_heads
        if pass_cells is not None or self.n_gpu_layers or plain or self.unified:
            return Grain(pass_cells=pass_cells, beside=int(not self.unified))
        pieces = 1 if self.n_threads == 1 else 4 * self.n_threads
        step = _ATTENTION_TILE * max(1 if pieces == 1 else 2, -(-pieces // n_heads))
        return Grain(step=step, least=_ATTENTION_TILE, beside=1)

    def all_on_gpu(self, n_layers: int) -> bool:
        """Whether all layers shall be on a GPU, the output layer, which is the last to go, among them."""
        return self.n_gpu_layers < 0 or self.n_gpu_layers > n_layers

    def picks_on_device(self, *, offloads: bool, n_layers: int) -> bool:
        """Whether the device shall pick each row's likeliest tokens, given whether llama.cpp has a GPU.

        Never in the reproducible configuration, which gathers whole rows from several calls. By itself only
        where the whole model is on a GPU and rows are many.
        """
        if self.device_sampling == "auto":
            return offloads and self.all_on_gpu(n_layers) and self.n_slots >= FEWEST_SLOTS
        return self.device_sampling == "on" and not self.reproducible
