"""Devices: what llama.cpp can put layers on, and which of that an engine uses."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_void_p
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from cobali_ray.backend import ggml
from cobali_ray.backend.config import AUTO, MAX_DEVICES, SPLIT_MODES, LlamaConfig
from cobali_ray.backend.endpoint import PLACED, WORKER, is_endpoint, is_lent, names_of
from cobali_ray.backend.loss import Loss
from cobali_ray.backend.rpc import OPEN_S, LentDevices
from cobali_ray.backend.rpc_build import built
from cobali_ray.backend.tunnel_key import TunnelAddress, TunnelKey
from cobali_ray.backend.workers import WorkerProcess
from cobali_ray.core.views.stats import DeviceView
from cobali_ray.errors import ConfigError
from cobali_ray.ports import authority

_log = structlog.get_logger(__name__)

_KINDS = {ggml.CPU: "CPU", ggml.GPU: "GPU", ggml.INTEGRATED: "integrated GPU"}


SPARE_S = 5.0
"""How long a worker may take to answer that the engine can go without."""


class ComputeDevice(NamedTuple):
    """A device as llama.cpp tells it."""

    name: str
    """As in the setting `devices`; workers that the engine or Ray starts are numbered."""
    description: str
    kind: str
    handle: int
    lent: bool = False
    """Whether a worker lends it."""
    busy_s: Callable[[], float | None] = lambda: None
    """How long it has computed, where that is known."""

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


def _device(
    base: Any, handle: int, name: str | None = None, worker: LentDevices | WorkerProcess | None = None
) -> ComputeDevice:
    kind = _KINDS.get(base.ggml_backend_dev_type(handle), "accelerator")
    if name is not None and worker is not None:
        return ComputeDevice(name, "lent by a worker", kind, handle, lent=True, busy_s=worker.busy_s)
    own, description = base.ggml_backend_dev_name(handle), base.ggml_backend_dev_description(handle)
    return ComputeDevice(own.decode(), description.decode(), kind, handle)


class Devices:
    """The devices of an engine, with the workers behind them, until they are closed."""

    def __init__(
        self,
        named: Sequence[ComputeDevice] | None,
        behind: Sequence[LentDevices | WorkerProcess] = (),
        missing: Sequence[str] = (),
        loss: Loss | None = None,
    ) -> None:
        """`named` None leaves the choice to llama.cpp: the GPUs of this machine.

        `missing` names the workers that did not answer, and that the engine goes without; `loss` is what
        happens when one of the others is lost.
        """
        self.missing, self.loss = tuple(missing), loss
        self._open = threading.Lock()
        self.used = tuple(filter(holds_layers, local_devices()) if named is None else named)
        self._named, self._behind = named, behind
        self._alive: tuple[Any, ...] = ()
        self._closed = False

    @property
    def lent(self) -> bool:
        """Whether workers lend any."""
        return any(device.lent for device in self.used)

    def look(self) -> tuple[DeviceView, ...]:
        """Return what each is doing; nothing once they are closed. Waits for the pass under way."""
        with self._open:  # asking a worker that was released would end this process
            if self._closed:
                return ()
            there = [(device, *device.memory) for device in self.used]
        views = [
            DeviceView(
                name=device.name, kind=device.kind, free_bytes=free, total_bytes=total, busy_s=device.busy_s()
            )
            for device, free, total in there
        ]
        missing = [DeviceView(name=name, kind="worker", there=False) for name in self.missing]
        return (*views, *missing)

    def all_answer(self, config: LlamaConfig) -> bool:
        """Whether workers that were left out would lend their devices now. Blocks for a few seconds.

        Workers that Ray places are not asked.
        """
        try:
            for name in filter(is_endpoint, self.missing):
                if config.worker_cache is not None:
                    LentDevices(
                        name, config.worker_cache, SPARE_S, tunnel=_tunnel(config, lambda _: None)
                    ).close()
        except ConfigError:
            return False
        return True

    def configure(self, params: Any, config: LlamaConfig) -> None:
        """Put them into the parameters of a model that is to be loaded; they must live until it is."""
        params.split_mode = SPLIT_MODES[config.split_mode]
        pointers = shares = None
        if self._named:  # else llama.cpp chooses, also what helps with layers that stay here
            handles = [device.handle for device in self._named]
            pointers = (c_void_p * (len(handles) + 1))(*handles, None)
            params.devices = ctypes.cast(pointers, c_void_p)
        if config.tensor_split:
            pairs = zip(names_of(config.devices), config.tensor_split, strict=True)
            left = [share for name, share in pairs if name not in self.missing]
            shares = (ctypes.c_float * MAX_DEVICES)(*left)
            params.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
        self._alive = (pointers, shares)

    def close(self) -> None:
        """Release the workers; the model must be freed by then."""
        with self._open:
            self._closed = True
            for worker in self._behind:
                worker.close()
            self._behind = ()
            if self.loss is not None:
                self.loss.close()


def open_devices(config: LlamaConfig) -> Devices:
    """Find the devices that the settings name, and connect to the workers. Raises ConfigError."""
    if not config.n_gpu_layers:
        return Devices(())
    if config.devices == (AUTO,) and config.split_mode != "none":
        return Devices(None)
    behind: list[LentDevices | WorkerProcess] = []
    missing: list[str] = []
    loss = Loss() if any(map(is_lent, config.devices)) else None
    try:
        named = list(_resolve(config, behind, missing, loss))
        if config.split_mode == "none":
            named = _main(named, config.main_device)
    except BaseException:
        for worker in behind:
            worker.close()
        if loss is not None:
            loss.close()
        raise
    return Devices(named, behind, missing, loss)


def _tunnel(
    config: LlamaConfig, lose: Callable[[str], None]
) -> tuple[TunnelKey, Callable[[str], None]] | None:
    file = config.worker_key_file
    return None if file is None else (TunnelKey.read(file, "worker_key_file"), lose)


def _main(named: list[ComputeDevice], name: str | None) -> list[ComputeDevice]:
    """Return the one device that is used: the one of this name, or else the first; none if there is none."""
    if name is None:
        return named[:1]
    chosen = [device for device in named if device.name == name]
    if not chosen:
        names = ", ".join(device.name for device in named) or "none"
        raise ConfigError("main_device", f"{name} is not among the devices, which are: {names}")
    return chosen


def _resolve(
    config: LlamaConfig, behind: list[LentDevices | WorkerProcess], missing: list[str], loss: Loss | None
) -> Iterator[ComputeDevice]:
    """Yield the devices that each word of the setting means; workers, to be closed later, go to `behind`.

    A worker that the engine may go without, and that does not answer, goes to `missing`.
    """
    words, cache = config.devices, config.worker_cache
    if loss is None:  # workers lend none of them
        for word in words:
            yield from filter(holds_layers, local_devices()) if word == AUTO else [_local(word)]
        return
    if cache is None:
        raise ConfigError("devices", "workers need a folder for the library that is built for them")
    if (of_ray := [word for word in words if word in PLACED]) and not config.placed:
        raise ConfigError("devices", f"{of_ray[0]}: only engines of a server have workers placed by Ray")
    if WORKER in words:
        built(cache)  # once, and before any of them has a deadline
    base, placed = ggml.load(), iter(config.placed)
    started = [
        WorkerProcess(cache, n_threads=config.n_threads, memory_mib=config.worker_memory_mib)
        for word in words
        if word == WORKER
    ]
    behind += started
    for word, name in zip(words, names_of(words), strict=True):
        worker: LentDevices | WorkerProcess
        if word == WORKER:
            worker = own = started.pop(0)
            loss.expect(name, own.endpoint)
            handles = own.connect(partial(loss.end, name))
        elif word in PLACED or is_endpoint(word):
            try:
                if word in PLACED:
                    worker = _placed(name, next(placed), cache, loss)
                else:
                    worker = _reached(word, config, cache, loss, n_missing=len(missing))
            except _LeftOutError as why:
                _log.error("device_left_out", worker=name, why=str(why))
                missing.append(name)
                continue
            behind.append(worker)
            handles = worker.handles
        else:
            yield _local(word)
            continue
        yield from (_device(base, handle, name, worker) for handle in handles)
    if len(missing) == len(words):
        raise ConfigError("devices", f"none is there: {' and '.join(missing)}")


class _LeftOutError(Exception):
    """Why the engine goes without a worker."""


def _placed(name: str, address: TunnelAddress | None, cache: Path, loss: Loss) -> LentDevices:
    if address is None:
        raise _LeftOutError("Ray has no room for it")
    where = authority(address.host, address.port)
    _log.info("placed", device=name, worker=where)
    return LentDevices(where, cache, tunnel=(address.key, partial(loss.end, f"{name} at {where}")))


def _reached(endpoint: str, config: LlamaConfig, cache: Path, loss: Loss, *, n_missing: int) -> LentDevices:
    """Connect to a worker that others started; another device must be left where it may be missing."""
    spare = config.split_fallback and n_missing + 1 < len(config.devices)
    tunnel = _tunnel(config, partial(loss.end, endpoint))
    if tunnel is None:
        loss.expect(endpoint, endpoint)
    try:
        return LentDevices(endpoint, cache, SPARE_S if spare else OPEN_S, tunnel=tunnel)
    except ConfigError as error:
        if spare:
            raise _LeftOutError(error.message) from None
        raise


def _local(name: str) -> ComputeDevice:
    devices = local_devices()
    able = [device for device in devices if holds_layers(device)]
    for device in devices:
        if device.name == name and device in able:
            return device
        if device.name == name:
            why = "holds no layers: the CPU computes those that n_gpu_layers leaves"
            raise ConfigError("devices", f"{name} {why}")
    here = ", ".join(device.name for device in able) or "none but the CPU"
    raise ConfigError("devices", f"there is no {name}; llama.cpp finds {here}")
