"""What uvicorn sends to clients that do not know chunks, over a real connection."""

import asyncio
import json
from importlib import import_module

import pytest
import uvicorn
from uvicorn.protocols.http import httptools_impl

from cobali_ray.actors.front import MEND_UVICORN

PARTS = [b"data: a\n\n", b"", b"data: b\n\n"]


@pytest.fixture
async def ask(monkeypatch):
    """Ask in a version of HTTP and return the reader; `go` is set for what comes behind the first part."""
    theirs = httptools_impl.HttpToolsProtocol.send_400_response
    monkeypatch.setattr(httptools_impl, "RequestResponseCycle", httptools_impl.RequestResponseCycle)
    monkeypatch.setattr(httptools_impl.HttpToolsProtocol, "send_400_response", theirs)
    module, _, name = MEND_UVICORN.partition(":")
    assert getattr(import_module(module), name)() == [], "Serve asks for middlewares"
    go = asyncio.Event()

    async def app(scope, receive, send):
        whole = scope["path"] == "/whole"
        headers = [(b"Content-Length", b"18")] if whole else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for i, part in enumerate(PARTS):
            if i and not whole:
                await go.wait()
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, access_log=False, port=0)
    config.load()
    server = await asyncio.get_running_loop().create_server(
        lambda: config.http_protocol_class(config, uvicorn.server.ServerState(), {}), "127.0.0.1", 0
    )

    async def ask(version, path="/", method="GET"):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(f"{method} {path} HTTP/{version}\r\nconnection: keep-alive\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        writers.append(writer)
        return head, reader

    writers = []
    ask.go = go
    async with asyncio.timeout(60):
        yield ask
    for writer in writers:
        writer.close()
    server.close()


async def test_http_1_0_gets_a_stream_as_it_is_until_the_connection_closes(ask):
    head, reader = await ask("1.0")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert await reader.readexactly(len(PARTS[0])) == PARTS[0], "before the rest is there"
    ask.go.set()
    assert await reader.read() == b"".join(PARTS[1:])


async def test_what_has_a_length_and_what_has_no_body_are_as_ever(ask):
    head, reader = await ask("1.0", "/whole")
    assert b"content-length: 18" in head
    assert await reader.read() == b"".join(PARTS)
    ask.go.set()
    head, reader = await ask("1.0", "/", "HEAD")
    assert b"transfer-encoding" not in head
    assert await reader.read() == b""


async def test_http_1_1_gets_chunks(ask):
    ask.go.set()
    head, reader = await ask("1.1")
    assert b"transfer-encoding: chunked" in head
    assert await reader.readexactly(5) == b"9\r\nda"


async def test_what_is_no_http_is_refused_in_json(ask):
    head, reader = await ask("1.1 and more")
    assert head.startswith(b"http/1.1 400")
    assert json.loads(await reader.read())["error"]["code"] == "invalid_http"
