"""A process that lends a device to an engine: `cobali worker`, and what an engine starts itself.

It listens on loopback, as the protocol of llama.cpp has neither keys nor encryption, and whoever reaches a
worker can make it run code. Engines of other machines come through a tunnel, which has both.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import sys
import threading
from collections.abc import Sequence
from ctypes import POINTER, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import psutil
import structlog
import zmq

from cobali_ray.backend import ggml, memory, rpc, threads
from cobali_ray.backend.tunnel import WorkerFacts
from cobali_ray.backend.tunnel_key import CurvePair, TunnelAddress, TunnelKey
from cobali_ray.backend.tunnel_listener import TunnelListener
from cobali_ray.errors import ConfigError
from cobali_ray.ports import authority, require_free

_AHEAD = 1 << 30
"""Bytes beyond `memory_bytes` that the process may take: weights on their way, threads, Python."""
_TellMemory = ctypes.CFUNCTYPE(None, c_void_p, POINTER(c_size_t), POINTER(c_size_t))


class _DeviceHead(ctypes.Structure):
    """How ggml's `ggml_backend_device` begins."""

    _fields_ = (("get_name", c_void_p), ("get_description", c_void_p), ("get_memory", _TellMemory))


def serve(
    port: int,
    *,
    cache: Path,
    device: str | None = None,
    n_threads: int | None = None,
    memory_bytes: int | None = None,
    weights: Path | None = None,
    tunnel: TunnelAddress | None = None,
) -> None:
    """Lend a device until the process ends. Raises ConfigError.

    `device` is as llama.cpp names it; None: the CPU. `memory_bytes` bounds what a CPU lends. `weights` is a
    folder that keeps tensors above 10 MiB by their hash: an engine that comes again need not send them.
    """
    require_free("127.0.0.1", port)
    n_threads = n_threads or threads.default_n_threads()
    threads.apply_wait("auto", n_threads=n_threads)
    base, lib = ggml.load(), rpc.load(cache)
    handle = _handle(base, device)
    on_cpu = base.ggml_backend_dev_type(handle) == ggml.CPU
    if tunnel is not None:  # before memory is counted
        _listen(tunnel, port, n_threads if on_cpu else None)
    tell = None
    if on_cpu:
        tell = _bounded(handle, memory_bytes)  # kept as long as the process serves
    elif memory_bytes is not None:
        raise ConfigError("--memory", f"only the memory of a CPU can be bounded, not that of {device}")
    if weights is not None:
        weights.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in (signal.SIGINT, signal.SIGTERM):  # Python's own handlers wait for the call below to return
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    kept = None if weights is None else str(weights).encode()
    devices = (c_void_p * 1)(handle)
    lib.ggml_backend_rpc_start_server(f"127.0.0.1:{port}".encode(), kept, n_threads, 1, devices)
    del tell
    raise ConfigError("port", f"cannot serve on 127.0.0.1:{port}")


def _listen(tunnel: TunnelAddress, rpc_port: int, n_threads: int | None) -> None:
    """Let engines in; `n_threads` of a CPU, which is busy as long as this process is."""
    process = psutil.Process()

    def facts() -> WorkerFacts:
        times = process.cpu_times()
        return WorkerFacts(None if n_threads is None else (times.user + times.system) / n_threads)

    try:
        TunnelListener(tunnel.host, tunnel.port, tunnel.key, rpc_port, facts).start()
    except zmq.ZMQError as error:
        where = authority(tunnel.host, tunnel.port)
        raise ConfigError("--listen", f"cannot listen on {where}: {error.strerror}") from None


def _handle(base: Any, name: str | None) -> int:
    if name is None:
        return int(base.ggml_backend_dev_by_type(ggml.CPU))
    handles = [base.ggml_backend_dev_get(i) for i in range(base.ggml_backend_dev_count())]
    names = [base.ggml_backend_dev_name(handle).decode() for handle in handles]
    if name not in names:
        raise ConfigError("--device", f"there is no {name} here; there are {', '.join(names)}")
    return int(handles[names.index(name)])


def _bounded(handle: int, most: int | None) -> Any:
    """Let a CPU report, and take, no more memory than it may; return the callback, which must be kept.

    ggml itself reports all that the machine has as free.
    """
    before = _data_bytes()
    if most is not None:
        bound = before + most + _AHEAD
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))

    def tell(_device: int, free: Any, total: Any) -> None:
        whole = memory.most_bytes() or 0 if most is None else most
        left = whole if most is None else max(most - (_data_bytes() - before), 0)
        available = memory.available_bytes()
        free[0] = left if available is None else min(left, available)
        total[0] = whole

    head = ctypes.cast(handle, POINTER(_DeviceHead)).contents
    head.get_memory = function = _TellMemory(tell)
    return function


def _data_bytes() -> int:
    """Return the bytes of the process's own memory, written or not."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmData:"))


def _gpu() -> str:
    """Return the name of the first GPU that this process sees. Raises ConfigError."""
    base = ggml.load()
    handle = base.ggml_backend_dev_by_type(ggml.GPU) or base.ggml_backend_dev_by_type(ggml.INTEGRATED)
    if not handle:
        raise ConfigError("devices", "ray-gpu: llama.cpp finds no GPU on this node; see docs/devices.md")
    return str(base.ggml_backend_dev_name(handle).decode())


def _key_of_parent() -> TunnelKey:
    """Read what the parent writes first: the engine's public key, and a pair of our own."""
    engine, public, secret = sys.stdin.buffer.readline().split()
    return TunnelKey(CurvePair(engine), CurvePair(public, secret))


def _end_with_parent() -> None:
    """End when the pipe that is our standard input closes: the process that wrote to it has ended."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=watch, daemon=True, name="parent").start()


def main(words: Sequence[str]) -> None:
    """Serve as these arguments say, and end with the process that started this one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--listen", nargs=2, metavar=("HOST", "PORT"))
    arguments, tunnel = parser.parse_args(words), None
    if arguments.listen:
        host, port = arguments.listen
        tunnel = TunnelAddress(host, int(port), _key_of_parent())
    _end_with_parent()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),  # which is that of the engine
    )
    serve(
        arguments.port,
        cache=arguments.cache,
        device=_gpu() if arguments.gpu else None,
        n_threads=arguments.threads,
        memory_bytes=arguments.memory,
        weights=arguments.weights,
        tunnel=tunnel,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
