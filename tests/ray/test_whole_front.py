"""The front end of the whole cluster: what listens, and what Serve adds."""

import asyncio
import contextlib
import json
import os
import re

import grpc
import httpx2
import psutil
import pytest

from cobali_ray.actors.listening import OWNERS, listeners
from cobali_ray.actors.processes import descendants
from conftest import FOLDER
from tests.waiting import until

pytestmark = pytest.mark.ray


def config_in_use():
    (path,) = FOLDER.glob("*/haproxy.cfg")
    return path


async def test_haproxy_runs_on_a_mended_configuration_after_reloads(server):
    path = config_in_use()
    await until(lambda: len(list(path.parent.glob("admin.sock.*.stderr.log"))) > 1)  # it was started again

    def mended():
        text = path.read_text()
        return text.startswith("# mended") and text.count("    server SERVE_REPLICA_") >= 5 and text

    text = await until(mended)
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
    assert len(replicas) == 6, "two engines, four ingresses"
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
