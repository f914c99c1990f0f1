"""What is read of HAProxy's own words, and how long it may take to start."""

import math
import os

import pytest

from cobali_ray.actors import front, serving
from cobali_ray.errors import StartError
from cobali_ray.testing import FakeClock

ENDED = """[NOTICE]   (31695) : haproxy version is 3.0
[WARNING]  (31695) : config : missing timeouts
[ALERT]    (31695) : Binding [/tmp/x/haproxy.cfg:50] for frontend prometheus: cannot bind socket
[ALERT]    (31695) : [haproxy.main()] Some protocols failed to start their listeners! Exiting.
"""
WHY = "Binding [/tmp/x/haproxy.cfg:50] for frontend prometheus: cannot bind socket"
RUNS = "[ALERT]    (31701) : backend 'http-cobali' has no server available!\n"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ((), None),
        ((RUNS,), None),
        ((RUNS, ENDED), WHY),
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


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def wait_ready(monkeypatch, tmp_path, clock):
    """Return what waits for a server that is ready at some time."""

    def wait(ready_s=math.inf):
        monkeypatch.setattr(serving, "is_ready", lambda _: clock.now() >= ready_s)
        serving._wait_ready("http://127.0.0.1:1", tmp_path, clock.now, clock.advance)

    return wait


def test_a_haproxy_that_cannot_start_ends_the_start_in_its_own_words_and_not_at_once(
    tmp_path, wait_ready, clock
):
    say(tmp_path, ENDED)
    with pytest.raises(StartError) as raised:
        wait_ready()
    assert raised.value.args == ("HAProxy", WHY)
    assert serving.FRONT_S < clock.now() < serving.FRONT_S + 1, "Serve may start it again until then"


def test_one_that_serve_started_again_is_waited_for_and_so_is_one_that_says_nothing(
    tmp_path, wait_ready, clock
):
    say(tmp_path, ENDED)
    wait_ready(serving.FRONT_S / 2)
    say(tmp_path, RUNS)
    wait_ready(10 * serving.FRONT_S)
    assert clock.now() >= 10 * serving.FRONT_S


def test_a_launcher_that_gave_up_ends_the_start_at_once(tmp_path, wait_ready, clock):
    front.failure_path(tmp_path).write_text("an unknown version of Ray")
    with pytest.raises(StartError, match="an unknown version of Ray"):
        wait_ready()
    assert clock.now() == 0
