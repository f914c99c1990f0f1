"""Waits that are told and that come true, as `cobali bench waits` compares them."""

import json
from math import isnan

import pytest
from typer.testing import CliRunner

from cobali_workloads.commands import app
from cobali_workloads.commands.waits import figures
from cobali_workloads.inside.tenants import TIMES
from cobali_workloads.inside.waits import Wait, asks, play


def test_a_wait_that_is_told_is_about_what_comes_true():
    """Answers of one length: what is left to guess is how long prompts take beside them."""
    waits, _ = play(asks("all 120", 6.0, 80, 3), 3, TIMES)
    late = [one for one in waits if one.forecast_s is not None]
    assert len(late) > 20, "the engine has more than it can do"
    assert figures(waits)["error_p50"] < 0.15
    assert play(asks("all 120", 6.0, 80, 3), 3, TIMES)[0] == waits, "the same everywhere"


def test_figures_are_shares_of_the_real_wait():
    found = figures([Wait(2.0, 1.0, 4.0, 1), Wait(None, None, 9.0, 2)])
    assert found["waited"] == 2
    assert found["error_p50"] == pytest.approx(0.5)
    assert found["by_rate_p50"] == pytest.approx(0.75)
    assert found["off_p50_s"] == pytest.approx(2.0)
    assert isnan(figures([])["error_p50"])


@pytest.mark.thorough
def test_the_command(tmp_path):
    result = CliRunner().invoke(app, ["waits", "--quick", "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "waits.json").read_text())
    assert len(report["tables"][0]["rows"]) == 12
