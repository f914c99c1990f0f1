"""An EngineServer behind its ServeEngineClient in one process: the whole stack but Ray and HTTP."""

import asyncio
import warnings
from contextlib import asynccontextmanager

from ray.exceptions import ActorDiedError

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    # Ray Serve's own models use pydantic's old ways when they are imported; nothing of Ray is started here.
    import ray.serve  # noqa: F401

from cobali_ray.actors import engine_server
from cobali_ray.actors.client import ServeEngineClient
from cobali_ray.actors.engine_server import EngineServer
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.core.request.events import Delta
from cobali_ray.core.request.request import Request
from cobali_ray.errors import CobaliError
from cobali_ray.settings import EngineSettings
from cobali_ray.telemetry.names import ONLY_ENGINE
from cobali_ray.testing import LocalHandle, LocalResponse
from tests.waiting import until

WAIT_S = 60


class Handle(LocalHandle):
    """A Serve handle of an engine in this process; `kill` is what kill -9 looks like from the ingress."""

    def __init__(self, settings):
        self.server = EngineServer(settings)
        self.responses, self.before_run, self.attends = [], None, []

    def call(self, name, args):
        if name == "run" and self.before_run is not None:
            self.before_run(*args)
        response = LocalResponse(getattr(self.server, name)(*args))
        if name == "run":
            self.responses.append(response)
        if name == "attend":
            self.attends = [response]
        return response

    def kill(self):
        for response in self.responses + self.attends:
            response.die(ActorDiedError())


class Setup:
    def __init__(self, **settings):
        values = {"n_slots": 2, "n_ctx": 4096, "model": "builtin:scripted:0.0005"} | settings
        self.settings = EngineSettings(**values)
        self.handle = Handle(self.settings)
        self.client = ServeEngineClient(self.handle)
        self.fleet = Fleet([ServedModel({ONLY_ENGINE: self.client})])
        (self.model,) = self.fleet.models
        self.known = self.model.dispatch.state.engines[ONLY_ENGINE]

    async def connect(self):
        self.client.start()
        await asyncio.wait_for(asyncio.shield(self.client._connecting), WAIT_S)
        await until(lambda: self.known.attendance is not None)

    def generate(self, request_id="a", *, max_tokens=5, n_prompt=3):
        return self.model.ask(Request(request_id=request_id, prompt=(1,) * n_prompt, max_tokens=max_tokens))

    async def collect(self, *args, **kwargs):
        async with asyncio.timeout(WAIT_S):
            return [event async for events in self.generate(*args, **kwargs) for event in events]

    async def error(self, *args, **kwargs):
        """Return what a request ends with, raised or told."""
        try:
            return (await self.collect(*args, **kwargs))[-1].error
        except CobaliError as error:
            return error

    async def counted(self, **outcomes):
        """Wait until the engine has counted these ends, and no others."""

        async def are_counted():
            requests = (await self.handle.server.snapshot()).counters["requests"]
            return {outcome: n for outcome, n in requests.items() if n} == outcomes

        await until(are_counted)

    async def idle(self):
        """Wait until nothing runs and no control call is open."""

        async def is_idle():
            return not ((await self.client.state()).n_running or self.client._calls)

        await until(is_idle)

    async def reaches(self, holds):
        """Wait until this holds for the engine's state."""

        async def is_so():
            return holds(await self.client.state())

        await until(is_so)

    def close(self):
        self.client.close()
        self.handle.server.__del__()


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, Delta))


@asynccontextmanager
async def setups(monkeypatch):
    """Give a function that makes setups, which are closed at the end."""
    monkeypatch.setattr(engine_server, "ATTEND_S", 0.01)
    made = []

    async def make(*, connected=True, **kwargs):
        made.append(Setup(**kwargs))
        if connected:
            await made[-1].connect()
        return made[-1]

    yield make
    for setup in made:
        setup.close()
