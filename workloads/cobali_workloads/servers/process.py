"""A server as a child process: started in the background, polled until ready, ended by its own id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2
import yaml

from cobali_ray.errors import ConfigError
from cobali_ray.ports import free_port
from cobali_workloads.servers.llama_server import PeerSettings

READY_POLL_S = 0.2
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 45.0


class ServerProcess:
    """Runs while the `with` block does; whatever ends the block, Ctrl-C too, ends the server."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        url: str,
        ready: str,
        environ: Mapping[str, str],
        log: Path,
    ) -> None:
        self.name, self.command, self.url = name, list(command), url
        self._ready, self._environ, self._log = ready, dict(environ), log

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C reaches us alone, and we end the server in order.
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self.command, stdout=log, stderr=subprocess.STDOUT, env=self._environ, start_new_session=True
            )
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        with httpx2.Client(timeout=5.0) as http:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise ConfigError(self.name, f"ended at its start:\n{self._log_end()}")
                with contextlib.suppress(httpx2.TransportError):
                    if http.get(f"{self.url}{self._ready}").status_code == 200:
                        return
                time.sleep(READY_POLL_S)
        raise ConfigError(self.name, f"was not ready after {START_TIMEOUT_S:.0f} s:\n{self._log_end()}")

    def _log_end(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-2000:]

    def stop(self) -> None:
        """Ask it to end, and make it end if it does not."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def mapped_libraries(self) -> list[str]:
        """Return the llama.cpp libraries that are loaded in the process, from /proc; empty elsewhere."""
        maps = Path(f"/proc/{self.pid}/maps")
        lines = maps.read_text(encoding="utf-8").splitlines() if maps.exists() else []
        files = {line.split(None, 5)[-1] for line in lines if "/" in line}
        return sorted(file for file in files if Path(file).name.startswith(("libllama", "libggml")))


def our_server(settings: PeerSettings, folder: Path, extra: Mapping[str, object]) -> ServerProcess:
    """Return `cobali serve` on a free port with the same settings; `extra` are further ones."""
    values: dict[str, object] = {
        "model": str(settings.model), "n_slots": settings.n_slots, "n_ctx": settings.n_ctx,
        "n_threads": settings.n_threads, "threads_wait": settings.requested_wait,
        "log_level": "warning", **extra,
    }  # fmt: skip
    return cobali_server(values, folder, settings.environ())


def cobali_server(values: Mapping[str, object], folder: Path, environ: Mapping[str, str]) -> ServerProcess:
    """Return `cobali serve` on a free port with these settings; config and log lie in `folder`."""
    port = free_port()
    config = folder / "serve_config.yaml"
    http = {"host": "127.0.0.1", "port": port}
    config.write_text(yaml.safe_dump({"http_options": http, "applications": [{"args": values}]}))
    run = "from cobali_ray.cli import main; main()"
    return ServerProcess(
        "cobali",
        [sys.executable, "-c", run, "serve", "--config", str(config)],
        url=f"http://127.0.0.1:{port}",
        ready="/ready",
        environ=environ,
        log=folder / "cobali.log",
    )
