"""The engine in a process of its own: it does what it is told, and says why it ended."""

import os
from pathlib import Path

import orjson
import pytest

from cobali_ray.errors import InternalError
from cobali_workloads.inside.child import Child, obey
from cobali_workloads.inside.neighbour import busy_s

SCRIPTED = {"model": "builtin:scripted:0"}


def test_it_answers_texts_order_by_order():
    asked = {"texts": ["one", "two", "three"], "n_output": 5}
    lines = [SCRIPTED | {"n_slots": 2, "n_ctx": 64}, asked, asked]
    answers = []
    obey(map(orjson.dumps, lines), answers.append)
    ready, *found = map(orjson.loads, answers)
    assert ready == {"ready": True}
    assert [(a["n_prompt"], a["n_output"]) for a in found] == [(11, 15), (11, 15)]
    assert min(a["wall_s"] for a in found) > 0


def test_it_ticks_on_every_slot_and_ends_with_the_with(tmp_path):
    environ = os.environ | {"GOMP_SPINCOUNT": "5"}
    with Child(SCRIPTED | {"n_slots": 3}, environ=environ, log=tmp_path / "log") as child:
        assert child.answer() == {"ready": True}
        before = busy_s()
        for n_ticks in (4, 7):
            answer = child.order(n_ticks=n_ticks, seconds=60)
            assert len(answer["ticks_s"]) == n_ticks
            assert min(answer["ticks_s"]) > 0
        assert len(child.order(n_ticks=1000, seconds=0)["ticks_s"]) == 2, "a slow run ends at its limit"
        assert busy_s() >= before
        assert b"GOMP_SPINCOUNT=5" in Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")
    assert not Path(f"/proc/{child.pid}").exists()


def test_one_that_ended_says_why(tmp_path):
    values = {"model": "builtin:no-such-model"}
    with (
        pytest.raises(InternalError, match="no-such-model"),
        Child(values, environ=os.environ, log=tmp_path / "log") as child,
    ):
        child.answer()
