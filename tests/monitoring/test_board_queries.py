"""Queries of the boards over made series, as Prometheus's own engine answers them."""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tools.monitoring import find

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
PROMTOOL = find("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="no promtool: `make monitoring-tools` fetches it")
AT_S = 600
STEP_S = 20  # the least step of the boards' heatmaps
INLINE = {"plan": 1.0, "forward": 6.0, "sample": 1.0, "publish": 2.0}  # of a tick of 11 ms
OVERLAP = {"plan": 1.0, "forward": 8.0, "sample": 1.0, "publish": 5.0}  # publish inside forward: 10.5 ms


def targets(board, title):
    panels = json.loads((DASHBOARDS / board).read_text())["panels"]
    (panel,) = (panel for panel in panels if panel["title"] == title)
    return panel["targets"]


def query(folder, series, expr, at_s=AT_S):
    """Return the values of a query, by promtool's complaint that there should have been none."""
    text = (
        expr.replace("$__rate_interval", "60s")
        .replace("$__interval", f"{STEP_S}s")
        .replace("$instance", ".+")
        .replace("$engine", ".+")
    )
    test = {"expr": text, "eval_time": f"{at_s}s", "exp_samples": []}
    tests = [{"interval": "5s", "input_series": series, "promql_expr_test": [test]}]
    file = folder / "query.yml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "5s", "tests": tests}))
    done = subprocess.run([PROMTOOL, "test", "rules", file], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    (got,) = re.findall(r"^ *got: ?(.*)$", said, re.MULTILINE)
    return [float(value) for value in re.findall(r"\} ([^\s,]+)", got)]


def rising(name, labels, per_scrape):
    pairs = ", ".join(f'{label}="{value}"' for label, value in labels.items())
    return {"series": f"{name}{{{pairs}}}", "values": f"0+{per_scrape}x200"}


def engine(instance, engine_id, phases_ms, tick_ms):
    """Return the series of an engine with ten ticks per scrape."""
    who = {"instance": instance, "engine": engine_id}
    return [
        rising("cobali_ticks_total", who, 10),
        rising("cobali_tick_seconds_sum", who, tick_ms / 100),
        *(
            rising("cobali_phase_seconds_total", {**who, "phase": phase}, ms / 100)
            for phase, ms in phases_ms.items()
        ),
    ]


@pytest.mark.parametrize(
    ("engines", "mean_ms", "other_ms"),
    [
        pytest.param([("a", "0", INLINE, 11.0)], 11.0, 1.0, id="inline"),
        pytest.param([("a", "0", OVERLAP, 10.5)], 10.5, 0.0, id="overlap"),
        pytest.param([("a", "0", INLINE, 11.0), ("b", "0", OVERLAP, 10.5)], 10.75, 0.5, id="two-servers"),
        pytest.param([("a", "0", INLINE, 11.0), ("a", "1", OVERLAP, 10.5)], 10.75, 0.5, id="two-engines"),
    ],
)
def test_the_stack_of_phases_is_as_tall_as_the_tick(tmp_path, engines, mean_ms, other_ms):
    series = [one for who in engines for one in engine(*who)]
    parts = {
        target["legendFormat"]: query(tmp_path, series, target["expr"])
        for target in targets("tick_anatomy.json", "Phases of a mean tick")
    }
    assert all(value >= 0 for values in parts.values() for value in values)
    assert math.fsum(value for values in parts.values() for value in values) * 1000 == pytest.approx(mean_ms)
    assert [value * 1000 for value in parts["other"]] == [pytest.approx(other_ms)]


@pytest.mark.parametrize("title", ["TTFT heatmap", "E2E heatmap"])
def test_a_request_is_in_one_cell_of_a_heatmap(tmp_path, title):
    (target,) = targets("requests.json", title)
    (name,) = re.findall(r"cobali_\w+_bucket", target["expr"])
    series = [rising(name, {"instance": "a", "engine": "0", "le": le}, 3) for le in ("1.0", "+Inf")]
    steps = [query(tmp_path, series, target["expr"], at_s=200 + STEP_S * n) for n in range(6)]
    counted = sum(values[0] for values in steps)
    assert counted == pytest.approx(3 * len(steps) * STEP_S / 5, rel=0.01)


def test_several_engines_of_a_model_are_added_up_by_its_name_and_kept_apart_by_theirs(tmp_path):
    series = []
    for name, model, per_scrape in (("big-0", "big", 10), ("big-1", "big", 20), ("small", "small", 40)):
        who = {"instance": "a", "engine": name}
        info = {**who, "model": model, "node": "10.0.0.1", "version": "1"}
        pairs = ", ".join(f'{label}="{value}"' for label, value in info.items())
        series.append({"series": f"cobali_info{{{pairs}}}", "values": "1x200"})
        series.append(rising("cobali_output_tokens_total", who, per_scrape))
        for le, share in (("0.5", 0.5), ("+Inf", 1)):
            bucket = {**who, "le": le}
            series.append(rising("cobali_ttft_seconds_bucket", bucket, per_scrape * share))
    for title, expected in (
        ("Output by model", [6.0, 8.0]),
        ("Output by engine", [2.0, 4.0, 8.0]),
        ("Engines by node", [3.0]),
        ("TTFT p90 by model", [0.5, 0.5]),
    ):
        (target,) = targets("overview.json", title)
        assert sorted(query(tmp_path, series, target["expr"])) == pytest.approx(expected), title
