"""The whole server without Ray, in one process: engine, wire, client, HTTP app, uvicorn on loopback.

The engine can be told to die and to come back, which is what a restart of its process looks like from here.
"""

import asyncio
import socket
import threading
import warnings
from contextlib import contextmanager, suppress

import uvicorn
from ray.exceptions import ActorDiedError

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    import ray.serve  # noqa: F401  its models use pydantic's old ways; nothing of Ray is started

from cobali_ray.actors.client import ServeEngineClient
from cobali_ray.actors.engine_server import EngineServer
from cobali_ray.api.app import build_api
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.settings import ApiSettings, EngineSettings
from cobali_ray.store.database import Store
from cobali_ray.testing import LocalHandle, LocalResponse

SCRIPTED = {
    "n_slots": 8,
    "n_ctx": 4096,
    "prefill_chunk": 64,
    "token_budget": 96,
    "model": "builtin:scripted:0.01",
    "log_level": "error",
}


PORTS = []
"""Of sites that have ended: at their addresses a browser has the page's files, and need not compile them."""


class Handle(LocalHandle):
    """A Serve handle of an engine in this process."""

    def __init__(self, settings, engine_id):
        self._settings, self._open, self._engine_id = settings, set(), engine_id
        self.server = EngineServer(settings, engine_id)

    def call(self, name, args):
        response = LocalResponse(getattr(self.server, name)(*args) if self.server else _dead())
        self._open.add(response)
        response.task.add_done_callback(lambda _: self._open.discard(response))
        return response

    def kill(self):
        """Die as kill -9 would have it: every open call fails."""
        server, self.server = self.server, None
        server._pusher.send = lambda _: set()  # the dead say nothing
        for response in list(self._open):
            response.die(ActorDiedError())
        server.__del__()

    def revive(self):
        self.server = EngineServer(self._settings, self._engine_id)


async def _dead():
    raise ActorDiedError


def _listening():
    while PORTS:
        with suppress(OSError):  # another process has it now
            return socket.create_server(("127.0.0.1", PORTS.pop()))
    return socket.create_server(("127.0.0.1", 0))


class Site:
    """A server on loopback in a thread of its own, for as long as the `with` lasts."""

    def __init__(self, *, api_keys=(), strict=False, engines=("0",), on_demand=(), data_dir=None, **settings):
        """`engines` are ids; each is a model of its own, if there are several, but b-0 and b-1 are replicas.

        Those `on_demand` are not loaded.
        """
        self._engines, self._on_demand = engines, on_demand
        self._settings = EngineSettings(**SCRIPTED | settings)
        self._api = ApiSettings(api_keys=tuple(api_keys), strict=strict, data_dir=data_dir)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self):
        self._socket = _listening()
        self._port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._thread.start()
        assert self._ready.wait(60), "the server did not start"
        return self

    def __exit__(self, *_):
        self._uvicorn.should_exit = self._uvicorn.force_exit = True
        self._thread.join(20)
        PORTS.append(self._port)

    @property
    def ends(self):
        """Whether it was told to end: what is still under way then gets 500."""
        return self._uvicorn.should_exit

    async def _serve(self):
        self._asyncio = asyncio.get_running_loop()
        handles = [Handle(self._settings_of(id_), id_) for id_ in self._engines]
        self.handle = handles[0]
        clients = {id_: ServeEngineClient(h, id_) for id_, h in zip(self._engines, handles, strict=True)}
        models = {}
        for id_, client in clients.items():
            models.setdefault(self._settings_of(id_).model_id, {})[id_] = client
        fleet = Fleet(
            ServedModel(engines, (name,) if name else (), n_stay=len(engines.keys() - set(self._on_demand)))
            for name, engines in models.items()
        )
        for id_, client in clients.items():
            client.start()
            if id_ not in self._on_demand:
                await client._connecting
        store = None if self._api.data_dir is None else Store(self._api.data_dir)
        self._app = build_api(fleet, self._api, store=store)
        config = uvicorn.Config(self._app, log_level="critical", lifespan="off")
        self._uvicorn = uvicorn.Server(config)
        self._ready.set()
        try:
            await self._uvicorn.serve(sockets=[self._socket])
        finally:
            for client in clients.values():
                client.close()
            for handle in handles:
                if handle.server:
                    handle.server.__del__()
            if store is not None:
                store.close()

    def _settings_of(self, id_):
        own = {} if id_ == "0" else {"model_id": f"model-{id_.split('-')[0]}"}
        load = {"load": "on_demand"} if id_ in self._on_demand else {}
        return self._settings.replaced(**own | load)

    def _inside(self, call):
        """Call something on the server's event loop and wait for what it returns."""

        async def go():
            return call()

        return asyncio.run_coroutine_threadsafe(go(), self._asyncio).result(30)

    def kill_engine(self):
        self._inside(self.handle.kill)

    def revive_engine(self):
        self._inside(self.handle.revive)

    @contextmanager
    def held(self, n_passes):
        """Let the engine make so many passes more and then wait, until the `with` ends."""
        backend = self.handle.server._host.model.loop._engine.backend
        forward, goes_on, left = backend.forward, threading.Event(), iter(range(n_passes))

        def wait_and_forward(batch):
            if next(left, None) is None:
                goes_on.wait(120)
            forward(batch)

        backend.forward = wait_and_forward
        try:
            yield
        finally:
            goes_on.set()
            del backend.forward

    def cut(self):
        """Break off every connection, as a network does that is gone."""
        self._inside(lambda: [one.transport.abort() for one in self._uvicorn.server_state.connections])

    def forget_streams(self):
        """Forget all streams, as if nobody had read for five minutes."""
        streams = self._app.state.streams
        self._inside(
            lambda: [streams._forget(one) for one in list(streams._kept.values()) if not one.goes_on]
        )

    def n_running(self):
        return self.handle.server._host.model.loop.state().n_running
