"""`bench select` and `bench threads`: what they measure is the same work, and nothing stays behind."""

import json

import pytest

from cobali_ray.backend.select_cuda import open_kernels
from cobali_ray.errors import ConfigError
from cobali_workloads.commands import select, threads
from cobali_workloads.inside.neighbour import Neighbours


@pytest.mark.parametrize("n", [1, 16])
def test_all_contenders_of_select_choose_the_same(n):
    slots = [s.slot_id for s in select._loop(n)()]
    assert slots == list(range(n))
    assert [s.slot_id for s in select._fill(n)()] == slots
    assert select._twin(n)().slot_id.tolist() == slots


def test_select_reports_what_it_could_not_measure(tmp_path):
    report = select.measure(1, (4, 8))
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
    assert list(threads.policies((5,), 1)) == ["1 thread"]
    assert [policy.n_threads for policy in threads.policies((5, 6), 4).values()] == [1, 4, 4, 4, 4]


def test_neighbours_end_with_the_with():
    with Neighbours(2) as neighbours:
        running = list(neighbours._running)
        assert [process.poll() for process in running] == [None, None]
        assert neighbours.cpu_s() >= 0
    assert all(process.returncode is not None for process in running)
