"""What is wrong with a benchmark's options is said in one line, before anything is measured."""

import asyncio
import json
import re
import threading

import pytest
from typer.testing import CliRunner

from cobali_ray.cli import app
from cobali_ray.errors import CobaliError

WITH_MODEL = ("modes", "peers")
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def unwilling():
    """A server that lists a model, counts tokens, and knows no model that anybody asks for."""

    async def answer(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", head.lower())
        asked = await reader.readexactly(int(length[1]) if length else 0)
        path = head.split()[1]
        ok = {"/v1/models": {"data": [{"id": "tiny"}]}, "/tokenize": {"count": len(asked.split())}}
        body = json.dumps(ok.get(path, {"error": {"message": "there is no model nope"}})).encode()
        status = "200 OK" if path in ok else "404 Not Found"
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
        )
        writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def bench(*words, out):
    with pytest.raises(CobaliError) as caught:
        CliRunner().invoke(app, ["bench", *words, "--out", str(out)], catch_exceptions=False)
    assert not list(out.iterdir()), "nothing was measured"
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            pytest.param(
                [name, "--model", "builtin:nope"], "there is no built-in model 'nope'", id=f"{name}-model"
            )
            for name in WITH_MODEL
        ),
        pytest.param(["overhead", "--url", NOBODY], "no OpenAI-compatible server", id="overhead-nobody"),
        pytest.param(["serve", "--target", f"x={NOBODY}"], "no OpenAI-compatible server", id="serve-nobody"),
        pytest.param(["serve", "--shape", "no-such-file"], "there is no file no-such-file", id="serve-shape"),
        pytest.param(["serve", "--shape", __file__], "is not YAML", id="serve-no-yaml"),
        pytest.param(["peers", "--shape", "no-such-file"], "there is no file no-such-file", id="peers-shape"),
        pytest.param(["peers", "--threads-wait", "x"], "must be one of", id="peers-wait"),
        pytest.param(["peers", "--only", "-fa auto"], "must be one of -fa on", id="peers-only"),
        pytest.param(
            ["modes", "--prompts", "no-such-file"], "there is no file no-such-file", id="modes-prompts"
        ),
        pytest.param(["overlap", "--tick-ms", "x"], "expected numbers above 0", id="overlap-numbers"),
        pytest.param(["overlap", "--device", "worker"], "needs a --model", id="overlap-device"),
        pytest.param(["overlap", "--tick-ms", "nan"], "expected numbers above 0", id="overlap-nan"),
        pytest.param(["tick", "--slots", "1,x"], "expected numbers from 1", id="tick-numbers"),
        pytest.param(["chats", "--cells", "64"], "64", id="chats-cells"),
        pytest.param(["footprint", "999999999"], "there is no process", id="footprint"),
    ],
)
def test_bad_input_is_one_line(words, said, tmp_path):
    assert said in bench(*words, out=tmp_path)


def test_a_server_that_answers_no_request_is_named(unwilling, tmp_path):
    words = ["serve", "--target", f"x={unwilling}", "--model", "nope", "--quick", "--concurrency", "1"]
    assert bench(*words, out=tmp_path) == "x: answers no request: status 404: there is no model nope"


def test_without_the_packages_to_plot_what_brings_them_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("cobali_ray.extras.find_spec", lambda _: None)
    assert "workloads'" in bench("tick", out=tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    words = ["bench", "tick", "--slots", "1", "--ticks", "2", "--out", str(tmp_path / "file" / "below")]
    with pytest.raises(CobaliError, match=r"--out: cannot write into .*: Not a directory"):
        CliRunner().invoke(app, words, catch_exceptions=False)
