"""Loss: what happens when a worker is lost, without which its engine cannot compute: the process ends.

Its open requests go on in the process that takes its place, as after any other death. llama.cpp would end it
at the next pass, without saying which worker it was; here `report` is called with that first.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
from collections.abc import Callable

import structlog

from cobali_ray.backend import ggml
from cobali_ray.backend.endpoint import address_of

_log = structlog.get_logger(__name__)

_LOOK_S = 0.5
_OnAbort = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


class Loss:
    """Ends this process when a worker is lost; once, however many threads notice."""

    def __init__(self) -> None:
        """Also replace what llama.cpp calls before it aborts."""
        self.report: Callable[[str], None] = lambda _: None
        """Called with what was lost and why, by a thread, as the last thing; it may block for a moment."""
        self._beside: dict[str, str] = {}
        self._first = threading.Lock()
        self._on_abort = _OnAbort(self._aborted)  # kept as long as llama.cpp may call it
        ggml.load().ggml_set_abort_callback(self._on_abort)

    def expect(self, worker: str, endpoint: str) -> None:
        """Note a worker whose end llama.cpp itself may notice: there is no tunnel to it."""
        self._beside[worker] = endpoint

    def end(self, worker: str, why: str) -> None:
        """End this process, as it has lost a worker."""
        with self._first:  # which is never released
            _log.error("worker_lost", worker=worker, why=why)
            self.report(f"{worker} ({why})")
            sys.stdout.flush()
            sys.stderr.flush()
            os.abort()

    def _aborted(self, message: bytes) -> None:
        text = message.decode(errors="replace")
        if lost := [worker for worker, endpoint in self._beside.items() if _is_lost(endpoint)]:
            self.end(" and ".join(lost), text.partition(": ")[2])  # behind a line of llama.cpp's source
        _log.error("llama_cpp_aborted", why=text)

    def close(self) -> None:
        """Let llama.cpp abort as it does by itself."""
        ggml.load().ggml_set_abort_callback(None)


def _is_lost(endpoint: str) -> bool:
    try:
        socket.create_connection(address_of(endpoint), _LOOK_S).close()
    except TimeoutError:  # it is there, and busy
        return False
    except OSError:
        return True
    return False
