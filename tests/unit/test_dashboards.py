"""The boards ask only for what a Collector exports, and rebuild byte for byte."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from telemetry_records import exposition

HERE = Path(__file__).parents[2] / "dashboards"
BOARDS = ("overview.json", "tick_anatomy.json", "requests.json")
BARE_UNITS = {"", "none", "short"}  # a number of what?
TARGET_LABELS = {"instance", "job"}  # Prometheus adds them when it scrapes
SELECTOR = re.compile(r"\b((?:cobali|vllm)[_:]\w+)(?:\{([^}]*)\})?")
RAY = re.compile(r"\bray_(node_\w+)")
"""Ray's own metrics: of GPUs, which no engine tells."""
"""Numbers that are neither good nor bad."""
GROUPING = re.compile(r"\b(?:by|without) \(([^)]*)\)")


@pytest.fixture(scope="module")
def exported():
    """Return sample name -> label -> values, as one scrape shows them."""
    labels = {}
    for family in text_string_to_metric_families(exposition()):
        for sample in family.samples:
            known = labels.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                known.setdefault(label, set()).add(value)
    return labels


def board(name):
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def panels(name):
    return [panel for panel in board(name)["panels"] if panel["type"] != "row"]


def queries():
    return [
        pytest.param(panel, target, id=f"{name.removesuffix('.json')}-{panel['title']}-{target['refId']}")
        for name in BOARDS
        for panel in panels(name)
        for target in panel.get("targets", ())
    ]


def of_type(name, kind):
    return [panel for panel in panels(name) if panel["type"] == kind]


@pytest.mark.parametrize(("panel", "target"), queries())
def test_a_query_asks_for_what_is_exported(exported, panel, target):
    found = SELECTOR.findall(target["expr"])
    if target["expr"].startswith("vector($slo_") or RAY.search(target["expr"]):
        return
    assert found, f"{panel['title']} asks for nothing"
    for name, selector in found:
        assert name in exported, f"{name} is not exported"
        for label, operator, value in re.findall(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"', selector):
            if label not in TARGET_LABELS:
                assert label in exported[name], f"{name} has no label {label}"
                if value.startswith("$"):  # a variable of the board
                    continue
                wanted = value.split("|") if "~" in operator else [value]
                assert set(wanted) <= exported[name][label], f"{name}{{{label}}} is never {value}"
    own = set(exported[found[0][0]])
    if "group_left" in target["expr"]:
        own |= set(exported["cobali_info"])
    groups = {label.strip() for group in GROUPING.findall(target["expr"]) for label in group.split(",")}
    assert groups <= own | TARGET_LABELS
    shown = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
    assert shown <= groups, "a legend shows only labels that the query keeps"
    assert target["legendFormat"]


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_explains_itself(name):
    seen = panels(name)
    assert len(seen) >= 12
    for panel in seen:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert "\n" not in panel["description"]
        if panel["type"] != "alertlist":
            defaults = panel["fieldConfig"]["defaults"]
            assert defaults["unit"] not in BARE_UNITS, panel["title"]
            assert defaults["noValue"], "an empty panel says what to do"
        assert panel["datasource"]["uid"] == "${datasource}"
    ids = [panel["id"] for panel in board(name)["panels"]]
    assert ids == list(range(1, len(ids) + 1))


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap(name):
    taken = set()
    for panel in board(name)["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_ray_has_the_metrics_of_gpus():
    names = {name for panel, target in (p.values for p in queries()) for name in RAY.findall(target["expr"])}
    (folder,) = importlib.util.find_spec("ray").submodule_search_locations
    text = (Path(folder) / "dashboard/modules/reporter/reporter_agent.py").read_text(encoding="utf-8")
    assert names
    assert all(f'"{name}"' in text for name in names)
    assert '"GpuIndex"' in text


def recorded(rule):
    groups = load("rules.yml")["groups"]
    (expr,) = (one["expr"] for group in groups for one in group["rules"] if one.get("record") == rule)
    return float(re.fullmatch(r"vector\((.*)\)", expr)[1])


@pytest.mark.parametrize("name", BOARDS)
def test_latencies_are_drawn_against_their_slo(name):
    metrics = {"slo_ttft": r"cobali_(engine_)?ttft_seconds", "slo_itl": r"cobali_(itl|tpot)_seconds"}
    variables = {v["name"]: v for v in board(name)["templating"]["list"]}
    for variable, metric in metrics.items():
        slo = recorded(f"cobali:{variable.removeprefix('slo_')}_slo_seconds")
        assert float(variables[variable]["query"]) == slo, "a board begins with the SLO of the rules"
        assert float(variables[variable]["current"]["value"]) == slo
        for panel in of_type(name, "timeseries"):
            asked = [target["expr"] for target in panel["targets"]]
            in_seconds = panel["fieldConfig"]["defaults"]["unit"] == "s"
            if in_seconds and any(re.search(metric, expr) for expr in asked):
                assert asked[-1] == f"vector(${variable})", panel["title"]
                (line,) = panel["fieldConfig"]["overrides"]
                assert line["matcher"]["options"] == panel["targets"][-1]["legendFormat"] == "SLO"
                properties = {one["id"]: one["value"] for one in line["properties"]}
                assert properties["custom.lineStyle"]["fill"] == "dash"
                assert properties["color"]["fixedColor"] == "red"
    n_lines = sum(
        target["legendFormat"] == "SLO" for p in of_type(name, "timeseries") for target in p["targets"]
    )
    assert n_lines == {"overview.json": 5, "tick_anatomy.json": 1, "requests.json": 0}[name]


def test_the_overview_lists_the_alerts_of_the_chosen_servers():
    (listed,) = of_type("overview.json", "alertlist")
    groups = load("rules.yml")["groups"]
    alerts = {one["alert"] for group in groups for one in group["rules"] if "alert" in one}
    options = listed["options"]
    assert all(options["alertName"] in alert for alert in alerts)
    (job,) = load("prometheus.yml")["scrape_configs"]
    assert f'job="{job["job_name"]}"' in options["alertInstanceLabelFilter"]
    assert "${instance:regex}" in options["alertInstanceLabelFilter"]
    assert options["stateFilter"]["firing"]
    assert options["stateFilter"]["pending"]
    assert not options["stateFilter"]["normal"]
    assert "datasource" not in options, "by whatever name it was added"


# The SDK prefers the newer schema; classic JSON is what file provisioning reads in Grafana 11 to 13.
@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")
def test_the_files_are_what_the_code_builds(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    before = set(sys.modules)
    build_boards = importlib.import_module("build_boards")
    try:
        assert set(build_boards.BOARDS) == set(BOARDS)
        for name, build in build_boards.BOARDS.items():
            assert build_boards.to_json(build()).encode() == (HERE / name).read_bytes(), name
    finally:
        for module in {
            "build_boards",
            "board_overview",
            "board_tick_anatomy",
            "board_requests",
            "panels",
        } - before:
            sys.modules.pop(module, None)


def load(name):
    return yaml.safe_load((HERE / name).read_text(encoding="utf-8"))


def test_prometheus_scrapes_the_default_address_and_knows_rules_and_alertmanager():
    scrape = load("prometheus.yml")
    (job,) = scrape["scrape_configs"]
    assert (job["static_configs"][0]["targets"], job["metrics_path"]) == (["127.0.0.1:8000"], "/metrics")
    assert job["job_name"] == "cobali", "the rules ask for it"
    assert all((HERE / name).is_file() for name in scrape["rule_files"])
    (manager,) = scrape["alerting"]["alertmanagers"]
    assert manager["static_configs"] == [{"targets": ["127.0.0.1:9093"]}]


def test_grafana_is_told_of_everything():
    prometheus, alertmanager = load("provisioning/datasources/prometheus.yaml")["datasources"]
    assert (prometheus["type"], alertmanager["type"]) == ("prometheus", "alertmanager")
    assert prometheus["jsonData"]["timeInterval"] == load("prometheus.yml")["global"]["scrape_interval"]
    assert prometheus["jsonData"]["alertmanagerUid"] == alertmanager["uid"]
    (provider,) = load("provisioning/dashboards/cobali.yaml")["providers"]
    assert provider["options"]["path"] == "$COBALI_DASHBOARDS"
    assert {path.name for path in HERE.rglob("*.json")} == set(BOARDS), "Grafana takes every file for a board"


def test_compose_starts_what_the_files_expect_on_loopback():
    services = load("compose.yml")["services"]
    assert set(services) == {"prometheus", "alertmanager", "grafana"}
    for name, service in services.items():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), "a version is named"
        assert service["network_mode"] == "host", "the server is on loopback"
        assert ".:/cobali:ro" in service["volumes"]
        said = [*service.get("command", ()), *service.get("environment", {}).values()]
        files = [word.rpartition("=")[2] for word in said if "/cobali" in word]
        assert files, name
        assert all((HERE / file.removeprefix("/cobali").lstrip("/")).exists() for file in files)
    listen = "--web.listen-address="
    sources = {
        source["type"]: source["url"]
        for source in load("provisioning/datasources/prometheus.yaml")["datasources"]
    }
    for name in ("prometheus", "alertmanager"):
        port = sources[name].rpartition(":")[2]
        assert f"{listen}127.0.0.1:{port}" in services[name]["command"]
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
