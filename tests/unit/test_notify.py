"""systemd's protocol, over a real datagram socket."""

import io
import socket

import pytest

from cobali_ray.actors.notify import notifying
from cobali_ray.actors.output import JsonLines

READY = {"url": "http://127.0.0.1:8000", "models": [{"model": "tiny"}, {"model": "other"}]}


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    """A service manager's socket, and how $NOTIFY_SOCKET names it."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name.replace("@", "\0", 1))
        listener.settimeout(60)
        yield listener, name


def test_a_manager_hears_of_the_start_of_readiness_and_of_the_end(manager):
    listener, name = manager
    environ, stream = {"NOTIFY_SOCKET": name, "PATH": "/bin"}, io.StringIO()
    output = notifying(JsonLines(stream), environ)
    assert environ == {"PATH": "/bin"}, "no child speaks for the server"
    with output.working("starting Ray"):
        output.say("start_step", step="starting Ray", seconds=1.0)
    output.say("ready", **READY)
    output.take('{"event": "http_request"}', "a worker")
    output.say("settings_kept", level="warning", error="n_slots: no\nsecond line")
    output.say("draining", n_requests=3, limit_s=30)
    output.say("broken_off")
    output.close()
    heard = [listener.recv(4096).decode() for _ in range(4)]
    assert listener.recv(4096).startswith(b"STOPPING=1\n"), "as a start that is broken off"
    assert heard == [
        "STATUS=Starting: starting Ray",
        "READY=1\nSTATUS=Serving tiny, other at http://127.0.0.1:8000",
        "STATUS=The settings stay as they were: n_slots: no second line",
        "STOPPING=1\nSTATUS=Waiting up to 30 s for 3 requests to finish ... (Ctrl-C again to skip)",
    ]
    assert [line.count('"event"') for line in stream.getvalue().splitlines()] == [1] * 6, "nothing is lost"


def test_a_manager_that_is_gone_or_none_changes_nothing(tmp_path):
    own = JsonLines(stream := io.StringIO())
    notifying(own, {"NOTIFY_SOCKET": str(tmp_path / "none")}).say("ready", **READY)
    assert '"event":"ready"' in stream.getvalue()
    assert notifying(own, {}) is own
    assert notifying(own, {"NOTIFY_SOCKET": "vsock:2:1"}) is own, "a kind of address that is not supported"
