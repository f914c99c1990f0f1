"""Benchmarks against a running server: here the whole one, without Ray, in this process."""

import json

import pytest
from stack import Site
from typer.testing import CliRunner

from cobali_ray.bench.commands.peers import whole_answers
from cobali_ray.bench.load.target import connect
from cobali_ray.cli import app


@pytest.fixture
def bench(tmp_path):
    def run(name, *options):
        words = ["bench", name, *map(str, options), "--out", str(tmp_path)]
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads((tmp_path / f"{name}.json").read_text())

    return run


def test_viewers(bench):
    options = ("--viewers", 2, "--streams", 2, "--tokens", 100, "--rounds", 1)
    with Site() as site:
        report = bench("viewers", "--url", site.url, *options)
    alone, watched = report["tables"][0]["rows"]
    assert alone[-1] == "0"
    assert float(watched[-1]) > 0, "viewers are sent what happens"
    (rounds,) = report["samples"]["rounds"]["viewers"]
    assert rounds["n_output"] == 200


def test_overhead(bench, tmp_path):
    config = tmp_path / "serve_config.yaml"
    config.write_text("applications: [{args: {model: 'builtin:scripted', scripted_tick_s: 0}}]")
    with Site() as site:
        report = bench("overhead", "--url", site.url, "--config", config, "--tokens", 8, "--rounds", 2)
    assert [row[0] for row in report["tables"][0]["rows"]] == ["in process", "HTTP", "added"]
    inside, http = (list(map(len, report["samples"]["rounds"][path])) for path in ("in process", "HTTP"))
    assert inside == [8, 8]
    assert all(2 <= n <= 8 for n in http), "tokens that waited for the event loop come as one"


def test_delivery(bench, tmp_path):
    ticks = tmp_path / "ticks.jsonl"
    with Site(log_ticks=ticks) as site:
        options = ("--streams", "1,3", "--seconds", 0.5, "--tick-s", 0.01)
        report = bench("delivery", "--url", site.url, "--ticks", ticks, *options)
    assert [row[0] for row in report["tables"][0]["rows"]] == ["1", "3"]
    lags_ms = report["samples"]["lags_ms"]
    assert len(lags_ms["3 streams"]) > len(lags_ms["1 streams"]) > 20
    assert min(lags_ms["3 streams"]) > 0, "no token comes before it was sampled"


def test_whole_answers():
    with Site() as site:
        found = whole_answers(connect("x", site.url), ["one", "two"], 5)
    assert found["wall_s"] > 0
    assert (found["n_prompt"], found["n_output"]) == (6, 10)
