"""What is read of HAProxy's own words."""

import os

import pytest

from cobali_ray.actors import front

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
