"""The front end of the whole cluster: who leaves is noticed, what listens, what Serve adds."""

import asyncio
import contextlib
import json
import os
import re
import secrets

import grpc
import httpx2
import psutil
import pytest

from cobali_ray.actors.listening import OWNERS, listeners
from cobali_ray.actors.processes import descendants
from conftest import FOLDER
from tests.waiting import all_read, until

pytestmark = pytest.mark.ray

FREED_S = 5
"""How soon a place is free: each answer would take more than twice as long."""


class Segments:
    """A client whose headers and body are segments of their own; it leaves without reading."""

    def __init__(self, server, **fields):
        self.url = httpx2.URL(server.url)
        known = {"model": "scripted", "max_tokens": 3000, "ignore_eos": True}
        say = [{"role": "user", "content": "tell me something"}]
        self.body = json.dumps(known | {"messages": say} | fields).encode()

    async def __aenter__(self):
        _, self.writer = await asyncio.open_connection(self.url.host, self.url.port)
        head = f"POST {self.url.path}/v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
        self.writer.write(f"{head}content-length: {len(self.body)}\r\n\r\n".encode())
        await self.writer.drain()
        await until(lambda: all_read(self.writer.get_extra_info("socket")))
        self.writer.write(self.body)
        return self

    async def __aexit__(self, *error):
        self.writer.close()


def there(server, n_running, n_queued):
    async def holds():
        state = await server.state()
        return (state["n_running"], state["n_queued"]) == (n_running, n_queued)

    return holds


@pytest.mark.parametrize("server", ["narrow"], indirect=True)
@pytest.mark.parametrize(
    ("phase", "stream"), [("queued", False), ("prefilling", True), ("generating", False)]
)
async def test_a_client_that_leaves_frees_its_place(server, http, phase, stream):
    # Nobody asked it before, so that prefill takes a second; who looks later finds it generating.
    long = [{"role": "user", "content": secrets.token_hex(750)}]
    states = "prefilling|generating" if phase == "prefilling" else phase

    async def in_phase():
        return re.search(rf'cobali_slots{{.*state="({states})".*}} 1', (await http.get("/metrics")).text)

    async with contextlib.AsyncExitStack() as stack:
        n_before = 0
        if phase == "queued":
            await stack.enter_async_context(Segments(server))
            await until(there(server, 1, 0))
            n_before = 1
        about = {"messages": long, "max_tokens": 2400} if phase == "prefilling" else {}
        async with Segments(server, stream=stream, **about):
            await (until(there(server, 1, 1)) if phase == "queued" else until(in_phase))
        await until(there(server, n_before, 0), timeout_s=FREED_S)
    await until(there(server, 0, 0), timeout_s=FREED_S)


def config_in_use():
    (path,) = FOLDER.glob("*/haproxy.cfg")
    return path


async def test_haproxy_runs_on_a_mended_configuration_after_reloads(server):
    path = config_in_use()
    assert len(list(path.parent.glob("admin.sock.*.stderr.log"))) > 1, "it was started again for its replicas"
    text = path.read_text()
    assert text.count("    server SERVE_REPLICA_") >= 4
    assert "option http-buffer-request" in text
    assert "splice-request" not in text


WAYS = ["haproxy", "replica", "serve"]
"""`serve` is the proxy of `serve run`: here it steps in where no replica is up."""


def port_of(server, way):
    if way == "haproxy":
        return httpx2.URL(server.url).port
    if way == "serve":
        return int(os.environ["RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"])
    return int(re.search(r"SERVE_REPLICA_main\S+ 127.0.0.1:(\d+)", config_in_use().read_text())[1])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kept", [b"", b"connection: keep-alive\r\n"], ids=["close", "keep-alive"])
async def test_a_stream_for_http_1_0_has_no_chunks_and_ends_with_its_connection(server, way, kept):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True}
    raw = json.dumps(body).encode()
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server, way))
        head = b"POST /main/v1/chat/completions HTTP/1.0\r\n%bcontent-length: %d\r\n\r\n" % (kept, len(raw))
        writer.write(head + raw)
        said = await reader.read()
        writer.close()
    head, _, events = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding" not in head.lower()
    assert [event[:6] for event in events.split(b"\n\n")[:-1]] == [b"data: "] * events.count(b"data: ")
    assert events.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sent", ["mine", None])
async def test_an_answer_has_one_request_id_whichever_way_it_comes(server, way, sent):
    url = f"http://127.0.0.1:{port_of(server, way)}/main"
    async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
        for path in ("/health", "/v1/nothing"):
            response = await http.get(path, headers={"x-request-id": sent} if sent else {})
            (answered,) = response.headers.get_list("x-request-id")
            assert answered == sent if sent else answered


@pytest.mark.parametrize(
    "sent", [b"\xff\xfe", b"a b", b"x" * 300, b""], ids=["bytes", "space", "long", "empty"]
)
async def test_an_id_that_no_header_should_have_is_replaced(server, sent):
    url = httpx2.URL(server.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        b"GET /main/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: %b\r\n\r\n" % sent
    )
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer
    (answered,) = re.findall(rb"(?im)^x-request-id: (.*)\r$", answer)
    assert re.fullmatch(rb"req_[0-9a-f]{32}", answered)


async def test_where_no_application_is_the_server_is_loading(server):
    async with httpx2.AsyncClient(timeout=60) as http:
        response = await http.get(str(httpx2.URL(server.url).join("/nowhere")))
    assert (response.status_code, response.json()["error"]["code"]) == (503, "loading")


async def test_nothing_listens_for_other_machines(server):
    ours = [psutil.Process()]
    for pid in descendants(os.getpid()):
        with contextlib.suppress(psutil.NoSuchProcess):  # workers come and go
            ours.append(psutil.Process(pid))
    found = list(listeners(ours))
    assert [one for one in found if one.reach != "this machine"] == []
    (front,) = [one for one in found if one.what == "HTTP"]
    assert (front.process, front.port) == ("HAProxy", httpx2.URL(server.url).port)
    replicas = {one.pid: set() for one in found if one.process.startswith(("main:", "narrow:"))}
    for one in found:
        if one.pid in replicas and one.who == OWNERS:
            replicas[one.pid].add(await asyncio.to_thread(answer_to_a_stranger, one.port))
    assert len(replicas) == 5, "two engines, three ingresses"
    refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED}
    for answers in replicas.values():
        assert grpc.StatusCode.UNAUTHENTICATED in answers, "Serve's own way to it"
        assert answers <= refused


def answer_to_a_stranger(port):
    """Return what a port says to somebody with another token, and to somebody without one."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
        (answer,) = {refusal(call, ()), refusal(call, (("authorization", "Bearer " + 64 * "0"),))}
        return answer


def refusal(call, metadata):
    with pytest.raises(grpc.RpcError) as refused:
        call(b"", timeout=60, metadata=metadata)
    return refused.value.code()
