"""Every in-process benchmark once, with tiny parameters on the scripted model."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.request.limits import EngineLimits
from cobali_workloads.commands import app
from cobali_workloads.inside.micro import Step, time_step
from cobali_workloads.inside.pace import PaceExperiment

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


def test_prefill(bench):
    report = bench("prefill", "--quick", *SCRIPTED)
    lengths, times, _, memory = report["tables"]
    assert lengths["rows"][0][:2] == ["mmlu", "8"]
    assert times["rows"][0][0] == memory["rows"][0][0] == "mmlu, 4"
    rounds = report["samples"]["mmlu 4"]["rounds"]
    tokens = {name: runs[0]["n_tokens"] for name, runs in rounds.items()}
    real = sum(map(sum, report["samples"]["mmlu 4"]["lengths"]))
    assert tokens["one by one"] == tokens["fcfs"] == tokens["packed"] == real
    assert tokens["padded"] >= tokens["length-ordered"] > real
    assert len(report["plots"]) == 3


def test_constrained(bench):
    report = bench("constrained", "--quick", "--slots", "4", *SCRIPTED)
    draws, gaps = report["tables"]
    refused = {row[0]: row[1] for row in draws["rows"]}
    assert refused["fits by itself"] == "0.0%"
    assert refused["all refused"] == "100.0%"
    assert [row[0] for row in gaps["rows"]] == ["none", "compiling"]
    assert report["samples"]["gaps"]["rounds"]["compiling"][0]["compiled"] >= 1
    assert len(report["plots"]) == 2


def test_speculation(bench):
    numbers = ("--clients", "1,5", "--editors", "1", "--askers", "2")
    report = bench("speculation", "--quick", *numbers, *SCRIPTED)
    kinds = [["edit", "1"], ["again", "2"], ["free", "1"], ["free", "5"]]
    assert [row[:2] for row in report["tables"][0]["rows"]] == kinds
    runs = report["samples"]["rounds"]
    assert runs["free 5 on"][0]["drafted"] == runs["edit 1 off"][0]["drafted"] == 0
    assert report["plots"] == ["speculation-ratios.png"]


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


def test_gaps_live_and_from_its_own_log(bench, tmp_path):
    report = bench("gaps", "--quick", *SCRIPTED, "--prompts", str(WORKLOADS / "prompts_16.txt"))
    assert [row[0] for row in report["tables"][0]["rows"]] == ["SEQ", "CONT"]
    seq, cont = (report["samples"]["gaps_s"][name] for name in ("SEQ", "CONT"))
    assert len(seq) > len(cont) > 3
    log = tmp_path / "ticks.jsonl"
    line = {"plan_s": 0.0, "forward_s": 1.0, "n_prefilling": 0, "n_generating": 1, "n_queued": 0}
    log.write_text("".join(json.dumps(line | {"tick_id": i, "started_s": 3.0 * i}) + "\n" for i in range(4)))
    report = bench("gaps", "--ticks", str(log))
    assert report["samples"]["gaps_s"] == {"ticks.jsonl": [2.0, 2.0, 2.0]}
    assert report["tables"][0]["rows"][0][-1] == "40.00%", "four passes of 1 s, three gaps of 2 s"


def test_a_step_is_reset_before_every_call_and_shared_out():
    log = []
    step = Step("s", lambda: log.append("call"), 4, "-", lambda: log.append("reset"))
    cost = time_step(step, seconds=0.0, n_least=3)
    assert log == ["reset", "call"] * 5, "two calls to warm up"
    assert cost.n == 3
    assert 0 < cost.p50_us <= cost.p90_us


def test_pace(bench):
    report = bench("pace", "--quick", *SCRIPTED, "--targets", "2,4")
    targets, chunks = report["tables"]
    assert [row[0] for row in targets["rows"]] == ["2x", "4x"]
    assert [row[0] for row in chunks["rows"]] == ["512"]
    assert set(report["samples"]["rounds"]) == {"target 2x", "target 4x", "chunk 512"}
    assert report["plots"] == ["pace-tradeoff.png"]


def test_a_static_chunk_bounds_what_a_stream_waits_for():
    backend = ScriptedBackend(n_slots=4, n_ctx_slot=1024, n_batch=512, tick_s=0.0, strict=False)
    limits = EngineLimits(
        n_slots=4, n_ctx_slot=1024, n_cells=backend.n_cells, token_budget=260, prefill_chunk=256
    )
    scene = PaceExperiment(backend, limits, n_streams=3, n_prompt=400, n_prompts=2)
    for chunk, n_ticks in ((100, 4), (400, 1)):
        beside = scene.run(Pacer(None), chunk)
        assert beside.n_prefill == 800
        assert len(beside.gaps_s) == 2 * 3 * n_ticks


def test_depth(bench):
    report = bench("depth", "--quick", "--rows", "2", "--chunks", "16", *SCRIPTED)
    (table,) = report["tables"]
    assert [row[:2] for row in table["rows"]] == [["64", "2 x 1"], ["64", "1 x 16"]]
    assert report["plots"] == ["depth-passes.png"]
