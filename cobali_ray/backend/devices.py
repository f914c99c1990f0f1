"""Devices: what llama.cpp can put layers on, and which of that an engine uses."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import c_void_p
from typing import Any, NamedTuple

from cobali_ray.backend import ggml
from cobali_ray.backend.config import AUTO, MAX_DEVICES, SPLIT_MODES, LlamaConfig
from cobali_ray.backend.endpoint import WORKER, is_endpoint, is_lent
from cobali_ray.backend.rpc import LentDevices
from cobali_ray.backend.rpc_build import built
from cobali_ray.backend.workers import WorkerProcess
from cobali_ray.errors import ConfigError

_KINDS = {ggml.CPU: "CPU", ggml.GPU: "GPU", ggml.INTEGRATED: "integrated GPU"}


class ComputeDevice(NamedTuple):
    """A device as llama.cpp tells it."""

    name: str
    """As in the setting `devices`; of a worker, its endpoint."""
    description: str
    kind: str
    handle: int
    lent: bool = False
    """Whether a worker lends it."""

    @property
    def memory(self) -> tuple[int, int]:
        """The bytes that are free on it, and all that it has."""
        return ggml.memory_of(self.handle)


def local_devices() -> list[ComputeDevice]:
    """Return the devices of this machine, the CPU among them."""
    base = ggml.load()
    return [_device(base, base.ggml_backend_dev_get(i)) for i in range(base.ggml_backend_dev_count())]


def holds_layers(device: ComputeDevice) -> bool:
    """Whether layers can lie on it; a CPU computes what lies on none, and accelerators only help it."""
    return device.kind in {_KINDS[ggml.GPU], _KINDS[ggml.INTEGRATED]}


def has_gpu() -> bool:
    """Whether llama.cpp was built for a GPU that this machine has.

    Its own `llama_supports_gpu_offload` says yes wherever its RPC is compiled in.
    """
    return any(map(holds_layers, local_devices()))


def _device(base: Any, handle: int, endpoint: str | None = None) -> ComputeDevice:
    kind = _KINDS.get(base.ggml_backend_dev_type(handle), "accelerator")
    if endpoint is not None:
        return ComputeDevice(endpoint, "lent by a worker", kind, handle, lent=True)
    name, description = base.ggml_backend_dev_name(handle), base.ggml_backend_dev_description(handle)
    return ComputeDevice(name.decode(), description.decode(), kind, handle)


class Devices:
    """The devices of an engine, with the workers behind them, until they are closed."""

    def __init__(
        self, named: Sequence[ComputeDevice] | None, behind: Sequence[LentDevices | WorkerProcess] = ()
    ) -> None:
        """`named` None leaves the choice to llama.cpp: the GPUs of this machine."""
        self.used = tuple(filter(holds_layers, local_devices()) if named is None else named)
        self._named, self._behind = named, behind
        self._alive: tuple[Any, ...] = ()

    @property
    def lent(self) -> bool:
        """Whether workers lend any."""
        return any(device.lent for device in self.used)

    def configure(self, params: Any, config: LlamaConfig) -> None:
        """Put them into the parameters of a model that is to be loaded; they must live until it is."""
        params.split_mode = SPLIT_MODES[config.split_mode]
        pointers = shares = None
        if self._named:  # else llama.cpp chooses, also what helps with layers that stay here
            handles = [device.handle for device in self._named]
            pointers = (c_void_p * (len(handles) + 1))(*handles, None)
            params.devices = ctypes.cast(pointers, c_void_p)
        if config.tensor_split:
            shares = (ctypes.c_float * MAX_DEVICES)(*config.tensor_split)
            params.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
        self._alive = (pointers, shares)

    def close(self) -> None:
        """Let the workers go; the model must be freed."""
        for one in self._behind:
            one.close()
        self._behind = ()


def open_devices(config: LlamaConfig) -> Devices:
    """Find the devices that the settings name, and connect to the workers. Raises ConfigError."""
    if not config.n_gpu_layers:
        return Devices(())
    if config.devices == (AUTO,) and config.split_mode != "none":
        return Devices(None)
    behind: list[LentDevices | WorkerProcess] = []
    try:
        named = list(_found(config, behind))
        if config.split_mode == "none":
            named = _main(named, config.main_device)
    except BaseException:
        for one in behind:
            one.close()
        raise
    return Devices(named, behind)


def _main(named: list[ComputeDevice], name: str | None) -> list[ComputeDevice]:
    """Return the one device that is used: the one of this name, or else the first; none if there is none."""
    if name is None:
        return named[:1]
    chosen = [device for device in named if device.name == name]
    if not chosen:
        names = ", ".join(device.name for device in named) or "none"
        raise ConfigError("main_device", f"{name} is not among the devices, which are: {names}")
    return chosen


def _found(config: LlamaConfig, behind: list[LentDevices | WorkerProcess]) -> Iterator[ComputeDevice]:
    """Find what each word of the setting means; what has to be closed later goes to `behind`."""
    base, cache = ggml.load(), config.worker_cache
    if cache is None and any(map(is_lent, config.devices)):
        raise ConfigError("devices", "workers need a folder for the library that is built for them")
    if cache is not None and WORKER in config.devices:
        built(cache)  # once, and before any of them has a deadline
    started = {
        number: WorkerProcess(cache, n_threads=config.n_threads, memory_mib=config.worker_memory_mib)
        for number, word in enumerate(config.devices)
        if word == WORKER and cache is not None
    }
    behind += started.values()
    for number, word in enumerate(config.devices):
        if worker := started.get(number):
            yield from (_device(base, handle, worker.endpoint) for handle in worker.connect())
        elif is_endpoint(word) and cache is not None:
            behind.append(lent := LentDevices(word, cache))
            yield from (_device(base, handle, word) for handle in lent.handles)
        elif word == AUTO:
            yield from filter(holds_layers, local_devices())
        else:
            yield _local(word)


def _local(name: str) -> ComputeDevice:
    found = local_devices()
    able = [device for device in found if holds_layers(device)]
    for device in found:
        if device.name == name and device in able:
            return device
        if device.name == name:
            why = "holds no layers: the CPU computes those that n_gpu_layers leaves"
            raise ConfigError("devices", f"{name} {why}")
    here = ", ".join(device.name for device in able) or "none but the CPU"
    raise ConfigError("devices", f"there is no {name}; llama.cpp finds {here}")
