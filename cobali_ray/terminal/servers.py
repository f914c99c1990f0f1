"""The server to talk to: one that runs, or one that is started for as long as somebody talks."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import IO, Annotated, Final

import httpx2
import typer
from rich.console import Console

from cobali_ray.command_line import DEFAULT_URL, is_ready
from cobali_ray.errors import ConfigError, NoServerError, StartError
from cobali_ray.models.completion import complete_model
from cobali_ray.ports import LOOPBACK, free_port
from cobali_ray.signals import end_with_parent, ended_in_order
from cobali_ray.terminal.asking import ServerClient

POLL_S: Final = 0.1
STOP_TIMEOUT_S: Final = 60.0

Url = Annotated[
    str | None,
    typer.Option(
        help=f"A running server. Default: {DEFAULT_URL}, or one started for this command.", show_default=False
    ),
]
Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A model of the running server, or one to start a server with, as for `cobali serve`.",
        autocompletion=complete_model,
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A model of the running server, or one to start a server with.",
        autocompletion=complete_model,
        show_default=False,
    ),
]


@contextlib.contextmanager
def server_for(
    model: str | None, *, url: str | None, key: str | None, console: Console
) -> Iterator[tuple[ServerClient, str]]:
    """Yield a server that has the model, or any where none is named, and the model's name there.

    Without `url` it is the one at the usual address, if it has the model; else one is started, and ends
    with the block.

    Raises:
        ConfigError, StartError: what to change, in one line.
    """
    with contextlib.closing(ServerClient(url or DEFAULT_URL, key)) as there:
        try:
            names = there.models()
        except NoServerError:
            if url is not None:
                raise
            names = []
        if model in names or (names and model is None):
            yield there, model or names[0]
            return
        if url is not None:
            raise ConfigError("MODEL", f"{there.url} has no model '{model}'; it has {', '.join(names)}")
    with _started(model, console) as own, contextlib.closing(ServerClient(own, key)) as there:
        yield there, there.models()[0]


@contextlib.contextmanager
def _started(model: str | None, console: Console) -> Iterator[str]:
    """Run `cobali serve` on a free port while inside, and yield its address once it is ready."""
    _provide(model)
    port = free_port()
    url, name = f"http://127.0.0.1:{port}", model or "the default model"
    words = [*([model] if model else []), "--host", LOOPBACK, "--port", str(port)]
    with tempfile.TemporaryFile() as log, ended_in_order((signal.SIGHUP, signal.SIGTERM)):
        child = subprocess.Popen(  # noqa: S603 ourselves
            [sys.executable, sys.argv[0], "serve", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the answer, not for the server
            preexec_fn=partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509 no thread of ours runs yet
        )
        try:
            took_s = _wait_ready(child, url, log, name, console)
            console.print(
                f"Started a server with {name} at {url} in {took_s:.0f} s; it ends with this command.",
                style="dim",
                markup=False,
                highlight=False,
            )
            yield url
        finally:
            _stop(child, console)


def _provide(model: str | None) -> None:
    """Make or download the model here, where its progress shows."""
    if model is not None and not model.startswith("builtin:scripted"):
        from cobali_ray.models.commands import progress_bars
        from cobali_ray.models.registry import resolve

        with progress_bars() as progress:
            resolve(model, progress=progress)


def _wait_ready(
    child: subprocess.Popen[bytes], url: str, log: IO[bytes], name: str, console: Console
) -> float:
    started = time.monotonic()
    with httpx2.Client(base_url=url) as http, console.status("") as status:
        while not is_ready(http):
            if child.poll() is not None:
                raise StartError("The server", _last_words(log))
            status.update(f"starting a server with {name}: {time.monotonic() - started:.0f} s")
            time.sleep(POLL_S)
    return time.monotonic() - started


def _last_words(log: IO[bytes]) -> str:
    """Return the error that a server ended with."""
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line.partition("Error:")[2].strip() for line in lines if "Error:" in line]
    return (errors or lines or ["it said nothing"])[-1]


def _stop(child: subprocess.Popen[bytes], console: Console) -> None:
    """End the server, drained; the second Ctrl-C skips the draining, and the third kills it."""
    if child.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError), console.status("stopping the server"):
        for _ in range(2):
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
                child.wait(STOP_TIMEOUT_S)
                return
        child.kill()
