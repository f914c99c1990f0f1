"""Where servers of this machine listen: ports that nobody has, folders whose sockets can have names."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import tempfile
from ipaddress import ip_address

from cobali_ray.errors import ConfigError

LOOPBACK = "127.0.0.1"
FIRST, LAST = 20_000, 30_000
"""Blocks of ports are taken from here: below what Linux gives to outgoing connections."""
SINGLE = range(30_000, 32_768)
"""And single ones from here, the last that it gives to nobody."""
_SIZE = 64
_handed_out: set[int] = set()
FOLDER = "cobali-serve-"
"""How the name of a server's own folder begins."""


def socket_dir() -> str:
    """Return where folders of sockets lie: where temporary files do, unless that path is longer than `/tmp`.

    A socket's path may have 107 bytes, and Serve's names for those of HAProxy take nearly all of them.
    """
    return min(tempfile.gettempdir(), "/tmp", key=len)  # noqa: S108 folders in it are private


def free_port() -> int:
    """Return a port that nobody listens on right now, and that was not returned in this process before.

    The kernel's own choice may be taken by an outgoing connection before the caller listens there: a starting
    server makes hundreds of connections first.

    Raises:
        ConfigError: there is none.
    """
    for port in secrets.SystemRandom().sample(SINGLE, len(SINGLE)):
        if port not in _handed_out and _is_free(port):
            _handed_out.add(port)
            return port
    raise ConfigError("port", f"no free port from {SINGLE.start} to {SINGLE.stop - 1}")


def free_blocks(n: int) -> list[range]:
    """Return `n` blocks of 64 neighbouring ports that nobody listens on right now.

    They are chosen at random, so that two servers that start at the same time hardly choose the same.

    Raises:
        ConfigError: there are not so many.
    """
    starts = list(range(FIRST, LAST - _SIZE + 1, _SIZE))
    secrets.SystemRandom().shuffle(starts)
    blocks: list[range] = []
    for start in starts:
        block = range(start, start + _SIZE)
        if all(map(_is_free, block)):
            blocks.append(block)
            if len(blocks) == n:
                return blocks
    raise ConfigError("port", f"no {n} blocks of {_SIZE} free ports from {FIRST} to {LAST}")


def require_free(host: str, port: int) -> None:
    """Raise ConfigError if the address is taken, or cannot be had for another reason."""
    if not 0 < port < 1 << 16:
        raise ConfigError("port", f"must be from 1 to 65535, got {port}")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise _not_ours(host, port, error) from error
        except ValueError:  # no name of a machine has such characters, or is so long
            raise ConfigError("host", "must be an address or a name of this machine") from None


def _not_ours(host: str, port: int, error: OSError) -> ConfigError:
    """Say why an address cannot be had, and what to change."""
    address = authority(host, port)
    if error.errno == errno.EADDRINUSE:
        return ConfigError("port", f"{address} is in use{_user_of(port)}; choose another with --port")
    if error.errno == errno.EACCES:
        return ConfigError("port", f"only root may listen on {address}; choose one above 1023 with --port")
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return ConfigError("host", f"this machine has no address {host}; 0.0.0.0 means all of its addresses")
    return ConfigError("port", f"cannot listen on {address}: {error.strerror}")


def _user_of(port: int) -> str:
    """Say who listens on a port, if this account may know."""
    import psutil  # not above: the front end's launcher reads this file, on a bare Python

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1] == port and connection.pid:
                user = psutil.Process(connection.pid)
                ours = any(FOLDER in word for word in user.cmdline())
                whose = ", the front end of a `cobali serve`" if ours else ""
                return f" by {user.name()} (process {connection.pid}){whose}"
    return ""


def authority(host: str, port: int) -> str:
    """Return host and port as URLs have them, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reached_at(host: str) -> str:
    """Return where this machine reaches a server that listens on `host`, which may mean all addresses."""
    try:
        address = ip_address(host)
    except ValueError:  # a name
        return host
    return {4: LOOPBACK, 6: "::1"}[address.version] if address.is_unspecified else host


def _is_free(port: int) -> bool:
    """Whether nobody listens, not even a server that would share the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
