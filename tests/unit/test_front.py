"""What is read of HAProxy's own words, and how long it may take to start."""

import contextlib
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from cobali_ray.actors import front, serving
from cobali_ray.errors import StartError
from cobali_ray.ports import free_port

ENDED = """[NOTICE]   (31695) : haproxy version is 3.0
[WARNING]  (31695) : config : missing timeouts
[ALERT]    (31695) : Binding [/tmp/x/haproxy.cfg:50] for frontend prometheus: cannot bind socket
[ALERT]    (31695) : [haproxy.main()] Some protocols failed to start their listeners! Exiting.
"""
RUNS = "[ALERT]    (31701) : backend 'http-cobali' has no server available!\n"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ((), None),
        ((RUNS,), None),
        ((RUNS, ENDED), "Binding [/tmp/x/haproxy.cfg:50] for frontend prometheus: cannot bind socket"),
        ((ENDED, RUNS), None),
    ],
    ids=["none", "runs", "ended", "the-next-runs"],
)
def test_of_a_haproxy_that_ended_at_its_start_the_cause_is_found(tmp_path, said, words):
    (tmp_path / "node").mkdir()
    for number, text in enumerate(said):
        path = tmp_path / "node" / f"admin.sock.77.{number + 1}.stderr.log"
        path.write_text(text)
        os.utime(path, (number, number))
    assert front.last_words(tmp_path) == words


def say(folder, text):
    (folder / "admin.sock.77.1.stderr.log").write_text(text)


class Clock:
    """Time that passes while somebody pauses; `then` is done once it is this late."""

    def __init__(self, at_s=float("inf"), then=None):
        self.now_s, self._at_s, self._then = 100.0, 100.0 + at_s, then

    def pause(self, delay_s):
        self.now_s += delay_s
        if self.now_s >= self._at_s:
            self._at_s = float("inf")
            self._then()


def wait_ready(folder, clock, port=None):
    url = f"http://127.0.0.1:{port or free_port()}"
    serving._wait_ready(url, folder, lambda: clock.now_s, clock.pause)


def test_a_haproxy_that_cannot_start_ends_the_start_in_its_own_words_and_not_at_once(tmp_path):
    say(tmp_path, ENDED)
    with pytest.raises(StartError) as raised:
        wait_ready(tmp_path, clock := Clock())
    assert raised.value.args == (
        "HAProxy",
        "Binding [/tmp/x/haproxy.cfg:50] for frontend prometheus: cannot bind socket",
    )
    assert serving.FRONT_S < clock.now_s - 100 < serving.FRONT_S + 1, "Serve may start it again until then"


def test_one_that_serve_started_again_is_waited_for_and_so_is_one_that_says_nothing(tmp_path):
    port = free_port()
    say(tmp_path, ENDED)
    with answering(port) as start:
        wait_ready(tmp_path, Clock(serving.FRONT_S / 2, start), port)
    say(tmp_path, RUNS)
    with answering(port) as start:
        wait_ready(tmp_path, clock := Clock(10 * serving.FRONT_S, start), port)
    assert clock.now_s - 100 >= 10 * serving.FRONT_S


def test_a_launcher_that_gave_up_ends_the_start_at_once(tmp_path):
    front.failure_path(tmp_path).write_text("an unknown version of Ray")
    with pytest.raises(StartError, match="an unknown version of Ray"):
        wait_ready(tmp_path, clock := Clock())
    assert clock.now_s == 100


class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()
        self.wfile.write(b'{"engines": [{"status": "ready"}, {"status": "unloaded"}]}')

    def log_message(self, *_):
        """Say nothing."""


@contextlib.contextmanager
def answering(port):
    """Yield a function that starts a server on this port, which is ready."""
    servers = []

    def start():
        servers.append(HTTPServer(("127.0.0.1", port), Ready))
        threading.Thread(target=servers[0].serve_forever, args=(0.01,), daemon=True).start()

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
