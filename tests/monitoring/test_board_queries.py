"""Queries of the boards over made series, as Prometheus's own engine answers them."""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.telemetry_records import exposition
from tools.monitoring import find

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
PROMTOOL = find("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="no promtool: `make monitoring-tools` fetches it")
AT_S = 200
STEP_S = 20  # the least step of the boards' heatmaps
EVERYONE = dict.fromkeys(("$model_name", "$node", "$instance", "$engine"), ".+")
INLINE = {"plan": 1.0, "forward": 6.0, "sample": 1.0, "publish": 2.0}  # of a tick of 11 ms
OVERLAP = {"plan": 1.0, "forward": 8.0, "sample": 1.0, "publish": 5.0}  # publish inside forward: 10.5 ms


def targets(board, title):
    panels = json.loads((DASHBOARDS / board).read_text())["panels"]
    (panel,) = (panel for panel in panels if panel["title"] == title)
    return panel["targets"]


def ask(folder, series, exprs, chosen, at_s=AT_S):
    """Return what each query says about these choices, by promtool's complaint that it should say nothing."""
    variables = {"$__rate_interval": "60s", "$__interval": f"{STEP_S}s", "$__range": "60s", "$slo_ttft": "2"}
    variables |= {"$slo_itl": "0.1"} | chosen
    tests = []
    for number, expr in enumerate(exprs):
        text = expr
        for variable, value in variables.items():
            text = text.replace(variable, value)
        # Never empty, and with a number that finds its answer.
        text = f'label_replace({text}, "query", "{number}", "", "")'
        wrong = [{"labels": "none", "value": 0}]
        tests.append({"expr": text, "eval_time": f"{at_s}s", "exp_samples": wrong})
    group = {"interval": "5s", "input_series": series, "promql_expr_test": tests}
    file = folder / "queries.yml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "5s", "tests": [group]}))
    done = subprocess.run([PROMTOOL, "test", "rules", file], capture_output=True, text=True, check=False)
    answers = re.findall(r"^ *got: ?(.*)$", done.stdout + done.stderr, re.MULTILINE)
    assert len(answers) == len(exprs), done.stdout + done.stderr
    return answers


def query(folder, series, expr, at_s=AT_S):
    """Return the values of one query about everything."""
    (answer,) = ask(folder, series, [expr], EVERYONE, at_s)
    return list(numbers(answer).values())


def numbers(answer):
    """Return labels -> value of one answer."""
    found = dict(re.findall(r"(\{[^}]*\}) ([^\s,]+)", answer))
    return {labels: float(value) for labels, value in found.items()}


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
        target, *_ = targets("overview.json", title)  # an SLO line may follow
        assert sorted(query(tmp_path, series, target["expr"])) == pytest.approx(expected), title


# Every value of the selectors is shared by engines that are not chosen.
FLEET = {
    ("a", "0"): ("m1", "n1"),
    ("a", "1"): ("m2", "n2"),
    ("b", "0"): ("m2", "n1"),
    ("b", "1"): ("m1", "n2"),
}
CHOICES = {
    "model": ({"$model_name": "m1"}, {("a", "0"), ("b", "1")}),
    "node": ({"$node": "n1"}, {("a", "0"), ("b", "0")}),
    "instance": ({"$instance": "a"}, {("a", "0"), ("a", "1")}),
    "engine": ({"$engine": "1"}, {("a", "1"), ("b", "1")}),
    "model-and-node": ({"$model_name": "m1", "$node": "n2"}, {("b", "1")}),
}


def everything_of(who, number, names):
    """Return what the boards ask for of an engine, its counts spread in a way of its own."""
    instance, engine_id = who
    model, node = FLEET[who]
    own = {"instance": instance, "engine": engine_id}
    for family in text_string_to_metric_families(exposition()):
        for index, sample in enumerate(one for one in family.samples if one.name in names):
            if "engine" in sample.labels and sample.name != "cobali_info":
                yield rising(sample.name, sample.labels | own, (index + 1) ** (number + 1))
    info = ", ".join(f'{k}="{v}"' for k, v in {**own, "model": model, "node": node, "version": "1"}.items())
    yield {"series": f"cobali_info{{{info}}}", "values": "1x200"}


def asked():
    exprs = [
        target["expr"]
        for path in sorted(DASHBOARDS.glob("*.json"))
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    ]
    unlike = ("vector(", "ray_node_", 'part=~"ingress|front_end"')  # about no engine
    return sorted({expr for expr in exprs if not any(one in expr for one in unlike)})


@pytest.fixture(scope="module")
def scraped():
    """Return the series of each engine, and those of all."""
    names = set(re.findall(r"cobali_\w+", " ".join(asked())))
    series = {who: list(everything_of(who, number, names)) for number, who in enumerate(FLEET)}
    return series, [one for who in FLEET for one in series[who]]


@pytest.fixture(scope="module")
def unchosen(scraped, tmp_path_factory):
    """Return what the queries say with nothing chosen."""
    return ask(tmp_path_factory.mktemp("unchosen"), scraped[1], asked(), EVERYONE)


@pytest.mark.parametrize("choice", CHOICES)
def test_the_selectors_narrow_every_panel(tmp_path, scraped, unchosen, choice):
    chosen, members = CHOICES[choice]
    series, fleet = scraped
    narrowed = ask(tmp_path, fleet, asked(), EVERYONE | chosen)
    alone = ask(tmp_path, [one for who in members for one in series[who]], asked(), EVERYONE)
    n_told = 0
    for expr, found, expected, whole in zip(asked(), narrowed, alone, unchosen, strict=True):
        assert numbers(found) == pytest.approx(numbers(expected), nan_ok=True), expr
        n_told += numbers(found) != pytest.approx(numbers(whole), nan_ok=True)
    assert n_told > len(asked()) / 2, "most queries can tell the difference"


def test_an_engine_that_is_away_is_shown_whatever_is_chosen(tmp_path):
    target, *_ = targets("overview.json", "Engines down")
    up = {"series": 'cobali_engine_up{instance="a", engine="0"}', "values": "0x200"}
    choice = {"$model_name": "m2", "$node": "n2", "$instance": ".+", "$engine": ".+"}
    (answer,) = ask(tmp_path, [up], [target["expr"]], choice)
    assert list(numbers(answer).values()) == [1.0], answer
