"""Devices that a worker lends over llama.cpp's RPC: greeted with a deadline, and held while they are in use.

llama.cpp itself ends the process where a worker does not answer, and waits for ever where it serves another
engine: a worker serves one connection, then the next. So it is greeted first by a connection of our own, and
one is kept open for as long as its devices are in use.
"""

from __future__ import annotations

import ctypes
import functools
import socket
import struct
import threading
import time
from collections.abc import Callable
from ctypes import c_char_p, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from cobali_ray.backend import ggml, rpc_build
from cobali_ray.backend.endpoint import address_of
from cobali_ray.backend.tunnel import Tunnel
from cobali_ray.backend.tunnel_key import TunnelKey
from cobali_ray.errors import ConfigError

PROTOCOL = (7, 0, 0)
"""What the pinned llama.cpp speaks; both ends must be the same version of it."""
OPEN_S = 30.0
"""How long a worker may take to answer: one that was restarted, or whose last engine is just leaving."""
_HELLO, _CAPS = 14, 24
"""The number of the greeting, and the bytes of what each side says about faster transports: nothing."""
_PAUSE_S = 0.1


@functools.cache
def load(cache: Path) -> Any:
    """Load the library, built if need be. Raises ConfigError."""
    ggml.load()
    lib = ctypes.CDLL(str(rpc_build.built(cache)))
    lib.ggml_backend_rpc_add_server.restype = c_void_p
    lib.ggml_backend_rpc_add_server.argtypes = (c_char_p,)
    lib.ggml_backend_rpc_start_server.restype = None
    lib.ggml_backend_rpc_start_server.argtypes = (c_char_p, c_char_p, c_size_t, c_size_t, c_void_p)
    return lib


def greet(
    endpoint: str,
    timeout_s: float = OPEN_S,
    require_alive: Callable[[], None] | None = None,
    name: str | None = None,
) -> None:
    """Wait until a worker is there, is free and speaks our version. Raises ConfigError that names it.

    `require_alive` is called meanwhile, and raises an error once the worker will never answer.
    """
    address, deadline, name = address_of(endpoint), time.monotonic() + timeout_s, name or endpoint
    while True:
        if require_alive is not None:
            require_alive()
        left = deadline - time.monotonic()
        try:
            with socket.create_connection(address, max(left, _PAUSE_S)) as sock:
                sock.settimeout(max(deadline - time.monotonic(), _PAUSE_S))
                answer = _hello(sock)
                break
        except TimeoutError:
            busy = (
                f"no answer within {timeout_s:.0f} s: it serves one engine at a time, so another may have it"
            )
            raise ConfigError("devices", f"the worker at {name}: {busy}") from None
        except OSError as error:
            if left < _PAUSE_S:
                why = f"nobody answers there ({error.strerror or error}); `cobali worker` starts one"
                raise ConfigError("devices", f"the worker at {name}: {why}") from None
            threading.Event().wait(_PAUSE_S)
    if answer != PROTOCOL:
        ours, theirs = (".".join(map(str, version)) for version in (PROTOCOL, answer))
        what = (
            f"speaks version {theirs} of the protocol, and this is {ours}: start it with the same cobali_ray"
        )
        raise ConfigError("devices", f"the worker at {name} {what}")


def _hello(sock: socket.socket) -> tuple[int, ...]:
    sock.sendall(struct.pack("<BQ", _HELLO, _CAPS) + bytes(_CAPS))
    answer = b""
    while len(answer) < 8 + 4 + _CAPS:
        more = sock.recv(8 + 4 + _CAPS - len(answer))
        if not more:
            raise ConnectionError("it closed the connection")
        answer += more
    return tuple(answer[8:11])


class LentDevices:
    """The devices of a worker, and the connection that keeps other engines from it."""

    def __init__(
        self,
        endpoint: str,
        cache: Path,
        timeout_s: float = OPEN_S,
        require_alive: Callable[[], None] | None = None,
        tunnel: tuple[TunnelKey, Callable[[str], None]] | None = None,
    ) -> None:
        """Connect, through a tunnel if there is a key, and a function that gets the reason when it is lost.

        Raises ConfigError that names the endpoint; `require_alive` as for `greet`.
        """
        lib, base = load(cache), ggml.load()  # which may have to be built first
        self._held: list[int] = []
        self._lock, self._connected, self._late = threading.Lock(), False, False
        self._tunnel = None if tunnel is None else Tunnel(endpoint, tunnel[0], timeout_s, tunnel[1])
        try:
            self._connect(lib, base, endpoint, timeout_s, require_alive)
        except BaseException:
            if not self._late:
                self.close()
            raise

    def _connect(
        self, lib: Any, base: Any, name: str, timeout_s: float, require_alive: Callable[[], None] | None
    ) -> None:
        reached_at = name if self._tunnel is None else self._tunnel.endpoint
        greet(reached_at, timeout_s, require_alive, name)
        self.endpoint = ":".join(map(str, address_of(reached_at)))
        handles: list[int] = []

        def connect() -> None:  # it has no deadline of its own
            reg = lib.ggml_backend_rpc_add_server(self.endpoint.encode())
            n = base.ggml_backend_reg_dev_count(reg) if reg else 0
            devices = [base.ggml_backend_reg_dev_get(reg, i) for i in range(n)]
            self._held = [base.ggml_backend_dev_init(device, None) for device in devices]
            handles.extend(devices)
            with self._lock:
                self._connected = True
            if self._late:  # llama.cpp takes no lost connection, so it is closed now that it is there
                self.close()

        thread = threading.Thread(target=connect, name="connect", daemon=True)
        thread.start()
        thread.join(timeout_s)
        with self._lock:
            self._late = thread.is_alive() and not self._connected
        if self._late:
            raise ConfigError("devices", f"the worker at {name} was taken by another engine meanwhile")
        self.handles = tuple(handles)

    def busy_s(self) -> float | None:
        """Return how long the worker has computed, as far as it tells; only a tunnel carries that."""
        tunnel = self._tunnel
        return None if tunnel is None else tunnel.facts.busy_s

    def close(self) -> None:
        """Release the worker; what lies on its devices must be freed by then."""
        for backend in self._held:
            ggml.load().ggml_backend_free(backend)
        self._held = []
        if self._tunnel is not None:
            self._tunnel.close()
            self._tunnel = None
