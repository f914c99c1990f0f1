"""Agents that share a cache, and batches, as `cobali bench agents` and `cobali bench batch` play them."""

import json
from statistics import fmean

import pytest
from typer.testing import CliRunner

from cobali_workloads.commands import app
from cobali_workloads.inside import agents
from cobali_workloads.inside.batch import N_BEGINNING, answer_file, shared_lines
from cobali_workloads.inside.devices import DEVICES


@pytest.mark.thorough
def test_agents_are_done_sooner_where_their_requests_say_whose_they_are():
    before, after = (agents.run(agents.LOADS["long texts"], 1, hints=hints) for hints in (False, True))
    assert fmean(after.finished_s) < 0.8 * fmean(before.finished_s)
    assert after.hit_rate > before.hit_rate


def test_a_file_is_computed_once_for_each_beginning():
    device, lines = DEVICES["rtx4090"], shared_lines(120, 0)
    by_clients, ours = (answer_file(device, lines, 0, ordered=one) for one in (False, True))
    n_beginnings, n_all = (
        len({prompt[:N_BEGINNING] for prompt, _ in lines}),
        sum(len(one) for one, _ in lines),
    )
    least = n_all - N_BEGINNING * (len(lines) - n_beginnings)
    assert ours.computed == pytest.approx(least / n_all, abs=0.001)
    assert ours.computed < 0.5 * by_clients.computed
    assert ours.rps > by_clients.rps


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "n_rows"), [("agents", 2), ("batch", 6)])
def test_the_commands(tmp_path, name, n_rows):
    result = CliRunner().invoke(app, [name, "--quick", "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / f"{name}.json").read_text())
    assert len(report["tables"][0]["rows"]) == n_rows
