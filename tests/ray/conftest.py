"""One Ray and one Serve for the whole session, on the fast front end, on loopback."""

import asyncio
import atexit
import os
import shutil
import tempfile
import threading
import warnings
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from built_wheel import wheel_installed
from openai import AsyncOpenAI

from cobali_ray.actors.fork_server import ForkServer
from cobali_ray.actors.front import ports_held
from cobali_ray.actors.ray_private import altered
from cobali_ray.actors.serving import handle_of, set_environment
from cobali_ray.ports import free_port
from tests.waiting import until

FOLDER = Path(tempfile.mkdtemp(prefix="cobali-test-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def _set_environment():
    """Choose the front end. Serve reads these when it is imported, so it happens when this file is."""
    set_environment(os.environ, FOLDER)
    held = ExitStack()
    held.enter_context(ports_held(os.environ))  # tests may run other servers before this one starts
    atexit.register(held.close)


_set_environment()

SCRIPTED = {
    "model": "builtin:scripted:0.005",
    "log_level": "warning",
    "drain_timeout_s": 1,
}
APPS = {
    "main": SCRIPTED | {"n_slots": 8, "n_ctx": 4096, "n_ingress": 2, "model_aliases": ["other-name"]},
    "narrow": SCRIPTED
    | {
        "n_slots": 1,
        "n_ctx": 4096,
        "n_ingress": 2,
        "prefill_chunk": 8,
        "max_queue": 1,
        "max_body_bytes": 4096,
        "stall_timeout_s": 3,
    },
    "stuck": SCRIPTED | {"n_slots": 1, "model": "builtin:scripted:3600", "stall_timeout_s": 0.2},
}


class Server:
    """One application of the cluster, as its clients see it."""

    def __init__(self, name, port):
        self.name, self.url = name, f"http://127.0.0.1:{port}/{name}"

    def http(self):
        """Return a client with connections of its own."""
        return httpx2.AsyncClient(base_url=self.url, timeout=60.0)

    def openai(self):
        return AsyncOpenAI(api_key="any", base_url=f"{self.url}/v1", max_retries=0, timeout=60.0)

    async def engine(self):
        """Return what the engine says of itself."""
        return await asyncio.to_thread(self._call, "engine", "describe")

    async def drain(self, timeout_s):
        """Drain every ingress through the app's handle, as `cobali serve` does; return what each says."""

        def drained():
            return handle_of(self.name, "ingress").broadcast("drain", timeout_s).results(timeout_s=60)

        return await asyncio.to_thread(drained)

    def _call(self, deployment, method, *args):
        return getattr(handle_of(self.name, deployment), method).remote(*args).result(timeout_s=60)

    async def submit(self, request):
        """Hand a request to the engine past the API and its checks; nobody reads what it says."""
        return await asyncio.to_thread(self._call, "engine", "run", request)

    async def state(self):
        async with self.http() as http:
            return (await http.get("/health")).json()["engine"]

    async def is_ready(self):
        async with self.http() as http:
            return (await http.get("/ready")).status_code == 200


async def deploy(name, values):
    """Deploy one more application, or deploy it anew with other settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        from ray import serve

        from cobali_ray.actors.app import build

        target = serve.RunTarget(build(values), name=name, route_prefix=f"/{name}")
        await asyncio.to_thread(serve.run_many, [target], wait_for_applications_running=True)


@asynccontextmanager
async def deployed(cluster, name, values):
    """Have one more application for a while."""
    from ray import serve

    await deploy(name, values)
    server = Server(name, httpx2.URL(cluster["main"].url).port)
    try:
        await until(server.is_ready)
        yield server
    finally:
        await asyncio.to_thread(serve.delete, name, _blocking=False)  # who waits looks every second


@pytest.fixture(scope="session")
def installed():
    """Return the folder of the programs of an environment that has the package's wheel."""
    with wheel_installed() as programs:
        yield programs


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Start everything once; stop everything of ours, and only ours, in the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, when imported, started and stopped
        import ray
        from ray import serve

        from cobali_ray.actors.app import build

        forks = ForkServer(os.environ, FOLDER)
        port = free_port()
        cache_dir = tmp_path_factory.mktemp("models")
        with altered(meanwhile=threading.Thread(target=list)):
            ray.init(
                address="local",
                num_cpus=8,  # places to put actors; the tests wait more than they compute
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                _node_ip_address="127.0.0.1",
                _metrics_export_port=free_port(),  # the raylet ends if no agent says one in time
            )
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            targets = [
                serve.RunTarget(build({**values, "cache_dir": cache_dir}), name=name, route_prefix=f"/{name}")
                for name, values in APPS.items()
            ]
            serve.run_many(targets, wait_for_applications_running=True)
            yield {name: Server(name, port) for name in APPS}
        finally:
            serve.shutdown()
            ray.shutdown()
            forks.close()


@pytest.fixture
async def server(cluster, request):
    """Return the application a test asks for by `indirect`, ready; "main" if it does not ask."""
    server = cluster[getattr(request, "param", "main")]
    await until(server.is_ready)
    return server


@pytest.fixture
async def http(server):
    async with server.http() as http:
        yield http


@pytest.fixture
async def openai(server):
    async with server.openai() as openai:
        yield openai
