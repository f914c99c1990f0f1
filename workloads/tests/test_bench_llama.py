"""The in-process benchmarks on real llama.cpp, with tiny parameters."""

import json

import pytest
from typer.testing import CliRunner

from cobali_ray.backend import library
from cobali_workloads.commands import app
from cobali_workloads.inside.handles import llama_handles
from cobali_workloads.inside.micro_llama import floor_step

pytestmark = pytest.mark.model


def test_micro_times_llama_cpp(tiny, tmp_path):
    result = CliRunner().invoke(
        app, ["micro", "--quick", "--model", str(tiny), "--out", str(tmp_path)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "micro.json").read_text())
    rounds = report["samples"]["rounds"]
    for step in ("ctypes call, trivial", "token_to_piece", "llama_decode floor (empty batch)"):
        assert 0 < rounds[step][0]["p50_us"] < 1000
    assert "logits view, first after a pass" in rounds
    ticks = report["tables"][1]["rows"]
    assert [row[:2] for row in ticks] == [[n, kind] for n in ("1", "4") for kind in ("greedy", "top_k 40")]
    assert all(float(figure) > 0 for row in ticks for figure in row[2:4])


def test_the_floor_is_a_refusal_and_the_log_comes_back(open_tiny, log_heard):
    backend = open_tiny()
    with floor_step(backend) as step:
        assert step.call() == -1
    library.forget_errors()
    lc = library.load()
    lc.llama_decode(llama_handles(backend).context, lc.llama_batch_init(1, 0, 1))
    assert "n_tokens == 0" in library.errors()
