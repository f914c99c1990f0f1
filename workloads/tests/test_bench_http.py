"""Benchmarks against a running server: here the whole one, without Ray, in this process."""

import json
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import pytest
from typer.testing import CliRunner

from cobali_ray.cli import app
from cobali_workloads.commands.peers import whole_answers
from cobali_workloads.commands.peers_report import best_tables, ratio_plot
from cobali_workloads.load.options import Workload
from cobali_workloads.load.prompts import uniform_costs
from cobali_workloads.load.shape import Fixed, Intruder
from cobali_workloads.load.target import connect
from cobali_workloads.servers.presets import PRESETS
from cobali_workloads.servers.versus import RUNNING, capacity_of, loads_of, run_versus
from tests.page.stack import Site


@pytest.fixture
def bench(tmp_path):
    def run(name, *options):
        words = ["bench", name, *map(str, options), "--out", str(tmp_path)]
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads((tmp_path / f"{name}.json").read_text())

    return run


def test_overhead(bench, tmp_path):
    config = tmp_path / "serve_config.yaml"
    config.write_text("applications: [{args: {model: 'builtin:scripted:0'}}]")
    with Site() as site:
        report = bench("overhead", "--url", site.url, "--config", config, "--tokens", 8, "--rounds", 2)
    assert [row[0] for row in report["tables"][0]["rows"]] == ["in process", "HTTP", "added"]
    inside, http = (list(map(len, report["samples"]["rounds"][path])) for path in ("in process", "HTTP"))
    assert inside == [8, 8]
    assert all(2 <= n <= 8 for n in http), "tokens that waited for the event loop come as one"


def test_servers_are_started_for_each_load_and_round_and_loaded_twice(tmp_path):
    running, starts = [], []
    shape = replace(
        PRESETS["intruder-1024-0.5b"].shape, concurrency=(2,), output=Fixed(tokens=8),
        intruder=Intruder(every_s=0.02, prompt_tokens=99, output_tokens=2, at_most=1),
    )  # fmt: skip

    @contextmanager
    def started(name, url):
        assert not running, "one at a time"
        running.append(name)
        starts.append(name)
        yield connect(name, url)
        running.clear()

    with Site() as site:
        servers = {name: partial(started, name, site.url) for name in ("ours", "a", "b")}
        loads = loads_of(shape, (), 0.0)
        result = run_versus(Workload(shape), loads, servers, uniform_costs(1.0), n_rounds=2, timeout_s=60)
    assert starts == ["ours", "a", "b", "b", "a", "ours"]
    states = ["2+intruder, fresh", "2+intruder, warmed"]
    assert [case.label for case in result.cases] == states
    for state in states:
        for name in servers:
            runs = result.timelines[name, state]
            assert [sum(t.role == "intruder" for t in run) for run in runs] == [1, 1]
            assert [sum(t.n_output for t in run) for run in runs] == [2 * 8 + 2] * 2
    ratios, beside = best_tables(result)
    assert [row[0] for row in ratios.rows] == [row[0] for row in beside.rows] == states
    assert {cell.split()[-1] for row in ratios.rows for cell in row[1:]} <= {"a", "b"}
    assert ratios.columns[-2:] == ["longest gap", "long prompt's TTFT"]
    assert all(float(cell.split()[0]) > 0 for row in beside.rows for cell in row[1:])
    ratio_plot(result).savefig(tmp_path / "ratios.png")


def test_servers_that_all_run_get_each_load_once_a_round():
    shape = replace(PRESETS["burst-0.5b"].shape, concurrency=(1, 2), output=Fixed(tokens=2))
    with Site() as site:
        servers = {name: partial(nullcontext, connect(name, site.url)) for name in ("ours", "a")}
        loads = loads_of(shape, (), 0.0)
        result = run_versus(
            Workload(shape), loads, servers, uniform_costs(1.0), n_rounds=2, timeout_s=60, states=RUNNING
        )
    assert [case.label for case in result.cases] == ["1, running", "2, running"]
    n_streams = {key: [len(run) for run in runs] for key, runs in result.timelines.items()}
    assert n_streams == {(name, f"{n}, running"): [n, n] for name in servers for n in (1, 2)}
    assert [row[0] for row in best_tables(result)[0].rows] == ["1, running", "2, running"]


def test_a_long_prompt_that_never_came_is_no_figure():
    intruder = Intruder(every_s=3600.0, prompt_tokens=99, output_tokens=2, at_most=1)
    shape = replace(
        PRESETS["intruder-1024-0.5b"].shape, concurrency=(1,), output=Fixed(tokens=2), intruder=intruder
    )
    with Site() as site:
        servers = {name: partial(nullcontext, connect(name, site.url)) for name in ("ours", "a")}
        loads = loads_of(shape, (), 0.0)
        result = run_versus(Workload(shape), loads, servers, uniform_costs(1.0), n_rounds=1, timeout_s=60)
    ratios, beside = best_tables(result)
    assert [row[-1] for row in ratios.rows] == ["-", "-"]
    assert beside.rows[0][1:] == ["nan", "nan"]
    ratio_plot(result)


def test_the_capacity_is_what_a_client_per_slot_gets_answered():
    steady = Workload(PRESETS["steady-0.5b"].shape)
    with Site() as site:
        quick = replace(steady.shape, output=Fixed(tokens=10))
        capacity_rps = capacity_of(connect("x", site.url), Workload(quick), uniform_costs(1.0), 2, 60)
    assert 0 < capacity_rps < 2 / (10 * 0.01), "two at a time, each of ten ticks of 10 ms"


def test_whole_answers():
    with Site() as site:
        found = whole_answers(connect("x", site.url), ["one", "two"], 5)
    assert found["wall_s"] > 0
    assert (found["n_prompt"], found["n_output"]) == (6, 10)
