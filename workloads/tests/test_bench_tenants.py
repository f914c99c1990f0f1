"""Tenants and classes beside floods, as `cobali bench tenants` plays them."""

import json
from itertools import islice

import pytest
from typer.testing import CliRunner

from cobali_ray.core.queue.waiting import MAX_PARKED
from cobali_ray.errors import QueueFullError
from cobali_workloads.commands import app, tenants
from cobali_workloads.commands.tenants import LOADS, figures
from cobali_workloads.inside.tenants import TIMES, TenantLoad, run


def played(name, seconds):
    loads = LOADS[name]
    return figures(run(loads, seconds, 0), loads[0].name)


def test_a_tenant_hardly_notices_anothers_flood():
    alone, beside = (
        played(name, 30) for name in ("a quarter of its share, alone", "beside a flood of another tenant")
    )
    assert beside["ttft_p99_s"] <= 1.5 * alone["ttft_p99_s"]
    assert beside["finished"] == alone["finished"] == alone["asked"]


def test_a_class_hardly_notices_a_worse_ones_flood():
    seconds, name = 60, "beside a worse class, together twice the server"
    alone = played("a better class, alone", seconds)
    both = run(LOADS[name], seconds, 0)
    better, worse = figures(both, "calm"), figures(both, "flood")
    assert better["ttft_p99_s"] <= 1.3 * alone["ttft_p99_s"]
    assert better["finished"] == better["asked"]
    assert worse["finished"] > 0.3 * worse["asked"]
    assert TIMES.limits.n_slots == 16


def test_weights_share_what_is_served():
    served = run(LOADS["two floods, weights 3 and 1"], 60, 1).served()
    assert served["calm"] / served["flood"] == pytest.approx(3.0, rel=0.1)


def test_nobody_starves():
    """Three classes of three tenants, each alone too much for the server."""
    loads = [
        TenantLoad(f"{t}{p}", 4.0, t, priority=p, weight=w)
        for t, w in (("a", 1), ("b", 5))
        for p in (0, 1, 9)
    ]
    played = run(loads, 25, 0)
    for load in loads:
        ends = [story.end for story in played.of(load.name) if story.end]
        assert all(isinstance(x.error, QueueFullError) or x.stats.n_output for x in ends), "let in is served"
        assert max(x.stats.n_preempted for x in ends) <= MAX_PARKED
        assert any(x.stats.n_output for x in ends), load.name


def test_the_command(tmp_path, monkeypatch):
    few = dict(islice(LOADS.items(), 2))
    monkeypatch.setattr(tenants, "LOADS", few)
    command = ["tenants", "--seconds", "10", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "tenants.json").read_text())
    assert {row[0] for row in report["tables"][0]["rows"]} == set(few)
    alone = next(iter(few))
    assert played(alone, 10) == report["samples"][alone]["calm"], "the same everywhere"
