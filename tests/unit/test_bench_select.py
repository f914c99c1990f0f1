"""`bench select` and `bench threads`: what they measure is the same work, and nothing stays behind."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from cobali_ray.backend.select_cuda import open_kernels
from cobali_ray.bench import cmd_select, cmd_threads
from cobali_ray.bench.neighbour import Child, Neighbours, busy_s
from cobali_ray.errors import ConfigError


@pytest.mark.parametrize("n", [1, 16])
def test_all_contenders_of_select_choose_the_same(n):
    loop, plan = cmd_select._loop(n)(), cmd_select._plan(n)()
    for chosen in (cmd_select._twin(n)(), cmd_select._fill(n)()):
        assert chosen.slot_id.tolist() == [slot_id for slot_id, _, _ in loop]
        assert chosen.slot_id.tolist() == [span.slot_id for span in plan]
    filled = cmd_select._fill(n)()
    rows = zip(filled.slot_id.tolist(), filled.position.tolist(), filled.token.tolist(), strict=True)
    assert list(rows) == loop


def test_select_reports_what_it_could_not_measure(tmp_path):
    report = cmd_select.measure(1, (4, 8), Console(file=io.StringIO()))
    written = {path.name for path in report.write(tmp_path)}
    assert written == {"select.json", "select.md", "select-cost.png"}
    rows = json.loads((tmp_path / "select.json").read_text())["tables"][0]["rows"]
    assert [row[0] for row in rows] == ["4", "8"]
    try:
        open_kernels()
    except ConfigError:
        assert {row[-1] for row in rows} == {"not measured"}
        assert any("no device" in note for note in report.notes)
    else:
        assert "not measured" not in {cell for row in rows for cell in row}


def test_one_thread_has_one_policy():
    assert list(cmd_threads.policies((5,), 1)) == ["1 thread"]
    assert [policy.n_threads for policy in cmd_threads.policies((5, 6), 4).values()] == [1, 4, 4, 4, 4]


def test_a_child_ticks_on_every_slot_and_ends():
    child = Child({"model": "builtin:scripted", "scripted_tick_s": 0, "n_slots": 3}, {"GOMP_SPINCOUNT": "5"})
    try:
        assert child.answer() == {"ready": True}
        before = busy_s()
        for n_ticks in (4, 7):
            answer = child.order(n_ticks=n_ticks, seconds=60)
            assert len(answer["ticks_s"]) == n_ticks
            assert min(answer["ticks_s"]) > 0
        assert len(child.order(n_ticks=1000, seconds=0)["ticks_s"]) == 2, "a slow run ends at its limit"
        assert busy_s() >= before
        environ = Path(f"/proc/{child._process.pid}/environ").read_bytes().split(b"\0")
        assert b"GOMP_SPINCOUNT=5" in environ
    finally:
        child.close()
    assert child._process.returncode is not None


def test_a_child_that_dies_says_so():
    child = Child({"model": "builtin:scripted", "n_slots": 0}, {})
    try:
        with pytest.raises(ChildProcessError, match="exit code 1"):
            child.answer()
    finally:
        child.close()


def test_neighbours_end_with_the_with():
    with Neighbours(2) as neighbours:
        running = list(neighbours._running)
        assert [process.poll() for process in running] == [None, None]
        assert neighbours.cpu_s() >= 0
    assert all(process.returncode is not None for process in running)
