"""The app in process: no port, no engine."""

import functools

import httpx2
import pytest
import starlette.routing
from fake_client import FakeApiClock, FakeClient, Said, Wire
from openai import AsyncOpenAI

from cobali_ray.api.app import build_api
from cobali_ray.api.call.judges import Judges
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.settings import ApiSettings

# Each test has an app of its own, with the same hundred paths.
starlette.routing.compile_path = functools.cache(starlette.routing.compile_path)


@pytest.fixture
async def server(request, tmp_path, judges):
    """A server with a store in a folder, and a test's settings; the test starts its runner of batches."""
    from store_server import Server  # with the clients of two APIs, which most tests here need not load

    server = Server(tmp_path / "data", judges)
    server.settings = getattr(request, "param", {})
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def client():
    return FakeClient()


@pytest.fixture
def said(client):
    """What the engine says, as the test lets it."""
    client.script = Said()
    return client.script


@pytest.fixture
def clock():
    return FakeApiClock()


@pytest.fixture(scope="session")
def judges():
    """The processes that judge grammars, which take half a second to start."""
    return Judges()


@pytest.fixture
def make_app(client, clock, judges):
    def make(*, names=(), listens=None, **settings):
        fleet = Fleet([ServedModel({"0": client}, names)])
        return build_api(fleet, ApiSettings(**settings), clock=clock, judges=judges, listens=listens)

    return make


@pytest.fixture
def app_with_keys(make_app, tmp_path):
    """Make an app whose file of keys has these, as YAML: `{alice: {key: a}}`."""

    def make(keys, **settings):
        (file := tmp_path / "keys.yaml").write_text(f"keys: {keys}")
        return make_app(api_keys_file=file, **settings)

    return make


@pytest.fixture
def app(make_app):
    return make_app()


@pytest.fixture
def post(app):
    """POST raw and return the finished Wire."""

    async def go(path, body, **kwargs):
        return await Wire(kwargs.pop("app", app), path, body, **kwargs).run()

    return go


@pytest.fixture
def get(app):
    async def go(path, **kwargs):
        return await Wire(kwargs.pop("app", app), path, method="GET", **kwargs).run()

    return go


@pytest.fixture
async def openai(app):
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport) as http:
        yield AsyncOpenAI(api_key="x", base_url="http://app/v1", http_client=http, max_retries=0)
