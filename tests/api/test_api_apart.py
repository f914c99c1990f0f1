"""What a request begins for others is none of its own calls, which Serve cancels when its client leaves."""

import asyncio
from contextvars import ContextVar

import pytest
from fake_client import ASK, CHAT, FakeClient, Wire, says

from cobali_ray.api.app import build_api
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.errors import UnloadedError
from cobali_ray.settings import ApiSettings
from tests.waiting import until

WHOSE = ContextVar("WHOSE", default="nobody's")
"""What Serve's own context is here."""


class Client(FakeClient):
    """Notes in whose context it is called."""

    def __init__(self):
        super().__init__(says("Hello"))
        self.calls = set()

    def send(self, request):
        self.calls.add(("send", WHOSE.get()))
        super().send(request)

    async def load(self):
        self.calls.add(("load", WHOSE.get()))
        await super().load()

    async def ticks(self, **kwargs):
        self.calls.add(("ticks", WHOSE.get()))
        return await super().ticks(**kwargs)


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def ask(client, clock):
    app = build_api(Fleet([ServedModel({"0": client}, ("fake",))]), ApiSettings(), clock=clock)

    def go(path, body=b"", **kwargs):
        WHOSE.set("a request's")
        return Wire(app, path, body, **kwargs)

    return go


async def test_a_plain_request_is_its_own(ask, client):
    await ask(CHAT, ASK).run()
    assert client.calls == {("send", "a request's")}


async def test_a_resumable_stream_is_nobody_s(ask, client):
    await ask(CHAT, ASK | {"stream": True, "resumable": True}).run()
    assert client.calls == {("send", "nobody's")}


async def test_loading_a_model_is_nobody_s(ask, client):
    client.the_card, client.present = UnloadedError(), False
    await ask(CHAT, ASK).run()
    assert ("load", "nobody's") in client.calls


async def test_what_all_viewers_watch_is_nobody_s(ask, client):
    wire = ask("/debug/stream", method="GET")
    task = wire.start()
    await until(lambda: client.calls)
    wire.hang_up()
    await asyncio.wait({task})
    assert client.calls == {("ticks", "nobody's")}
