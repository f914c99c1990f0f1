"""Every in-process benchmark once, with tiny parameters on the scripted model."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cobali_workloads.commands import app
from cobali_workloads.inside.micro import Step, time_step

SCRIPTED = ("--model", "builtin:scripted:0")
WORKLOADS = Path(__file__).parents[2] / "workloads"


@pytest.fixture
def bench(tmp_path):
    """Run one command; return its JSON report, after a look at the files beside it."""

    def run(name, *options):
        result = CliRunner().invoke(app, [name, *options, "--out", str(tmp_path)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        report = json.loads((tmp_path / f"{name}.json").read_text())
        assert report["command"].startswith(f"cobali bench {name}")
        assert (tmp_path / f"{name}.md").stat().st_size
        assert report["tables"][0]["rows"]
        report["plots"] = sorted(path.name for path in tmp_path.glob("*.png"))
        return report

    return run


def test_modes(bench):
    files = (
        "--prompts",
        str(WORKLOADS / "prompts_16.txt"),
        "--long-prompts",
        str(WORKLOADS / "prompts_16.txt"),
    )
    report = bench("modes", "--quick", *SCRIPTED, *files)
    modes, latencies, chunks = report["tables"]
    names = ["SEQ", "CONT-SPLIT512", "CONT-SPLIT128", "CONT-SPLIT256"]
    assert [row[0] for row in modes["rows"]] == [row[0] for row in latencies["rows"]] == names
    assert [row[0] for row in chunks["rows"]] == ["64", "256"]
    rounds = report["samples"]["modes"]["rounds"]
    assert {run["output_tokens"] for runs in rounds.values() for run in runs} == {64.0}, (
        "all do the same work"
    )
    assert rounds["SEQ"][0]["ticks"] > rounds["CONT-SPLIT512"][0]["ticks"]
    assert len(report["plots"]) == 5


def test_overlap(bench):
    report = bench("overlap", "--quick", "--tick-ms", "2", "--slots", "4", *SCRIPTED)
    assert [row[:2] for row in report["tables"][0]["rows"]] == [
        ["simulated, 2 ms", "inline"],
        ["simulated, 2 ms", "overlapped"],
    ]
    assert any("was not measured" in note for note in report["notes"]), "a CPU has nothing to overlap"
    assert report["plots"] == ["overlap-timeline-simulated--2-ms.png"]


def test_overlap_on_a_worker(bench):
    words = ("--quick", "--tick-ms", "2", "--slots", "4", "--model", "builtin:synthetic-tiny")
    report = bench("overlap", *words, "--device", "worker")
    rows = [row for row in report["tables"][0]["rows"] if row[0].endswith("on worker")]
    assert [row[1] for row in rows] == ["inline", "overlapped"]
    (runs,) = [found for device, found in report["samples"].items() if device.endswith("on worker")]
    for (run,) in runs["rounds"].values():
        assert 0 < run["device_share"] < 1, "as it says itself"
        assert 0 < run["idle_p50_s"] < run["wall_s"] / 24
    assert any("noted itself" in note for note in report["notes"])


def test_micro(bench):
    report = bench("micro", "--quick", *SCRIPTED)
    steps = [row[0] for row in report["tables"][0]["rows"]]
    assert {
        "fill 128 decode rows",
        "emit 16 tokens",
        "greedy, per row of 16",
        "decode 4 tokens of one prompt",
    } < set(steps)
    assert report["plots"] == ["micro-decode.png"]


def test_a_step_is_reset_before_every_call_and_shared_out():
    log = []
    step = Step("s", lambda: log.append("call"), 4, "-", lambda: log.append("reset"))
    cost = time_step(step, seconds=0.0, n_least=3)
    assert log == ["reset", "call"] * 5, "two calls to warm up"
    assert cost.n == 3
    assert 0 < cost.p50_us <= cost.p90_us
