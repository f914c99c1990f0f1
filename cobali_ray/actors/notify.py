"""Messages to a service manager: systemd's datagrams to the socket that $NOTIFY_SOCKET names.

With `Type=notify`, systemd counts the server as started at READY=1 and not when its process begins; STATUS is
what `systemctl status` shows.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import MutableMapping
from typing import Any

from cobali_ray.actors.output import EventOutput, event_of
from cobali_ray.models.builtin import Progress
from cobali_ray.telemetry.lines import readable

SOCKET = "NOTIFY_SOCKET"
_STATES = {"ready": "READY=1", "draining": "STOPPING=1", "broken_off": "STOPPING=1"}
_SHOWN = frozenset({"settings_read", "settings_kept", "node_died", *_STATES})


def notifying(output: EventOutput, environ: MutableMapping[str, str]) -> EventOutput:
    """Return an output that also tells the service manager, if one listens; no child inherits the socket."""
    address = environ.pop(SOCKET, "")
    return NotifyingOutput(output, address) if address.startswith(("/", "@")) else output


class NotifyingOutput:
    """Events go to an output; those that a service manager should know of go there as well."""

    def __init__(self, output: EventOutput, address: str) -> None:
        """`address` is a path, or after an @ an abstract name."""
        self._output, self._address = output, address.replace("@", "\0", 1)

    def say(self, event: str, *, level: str = "info", **facts: Any) -> None:
        self._output.say(event, level=level, **facts)
        if event in _SHOWN:
            self._tell(*filter(None, [_STATES.get(event), f"STATUS={_status(event, level, facts)}"]))

    def take(self, line: str, source: str) -> None:
        self._output.take(line, source)

    def working(self, what: str) -> contextlib.AbstractContextManager[Progress]:
        self._tell(f"STATUS=Starting: {what}")
        return self._output.working(what)

    def close(self) -> None:
        self._output.close()

    def _tell(self, *lines: str) -> None:
        # A service manager that no longer listens does not end the server.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)


def _status(event: str, level: str, facts: dict[str, Any]) -> str:
    """Return one line."""
    if event == "ready":
        names = ", ".join(str(model["model"]) for model in facts["models"])
        return f"Serving {names} at {facts['url']}"
    line = readable(event_of(event, level, facts), 200)
    return "" if line is None else " ".join(line.plain[8:].split())
