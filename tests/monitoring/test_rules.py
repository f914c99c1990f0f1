"""The rules pass Prometheus's own checks, name real metrics and settings, and have a row in the document."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.settings import PLACES
from cobali_ray.telemetry.collector import Collector
from cobali_ray.telemetry.exposition import EngineMetrics, Presence, render_all
from cobali_ray.telemetry.names import HttpAnswer
from tools.monitoring import find

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "dashboards"
PROMTOOL = find("promtool")
AMTOOL = find("amtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool: `make monitoring-tools` fetches it"
)


def rules(kind):
    groups = yaml.safe_load((DASHBOARDS / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


ALERTS = {rule["alert"]: rule for rule in rules("alert")}
LOGGED = {"tick_failed", "ttft_slo_seconds", "engine_died", "key_refused"}
"""What actions name beside settings: events and codes of the log, and the SLO."""
each_alert = pytest.mark.parametrize("name", ALERTS)


def run(*command):
    done = subprocess.run([*map(str, command)], cwd=DASHBOARDS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_takes_the_rules():
    run(PROMTOOL, "check", "rules", "rules.yml")


@needs_promtool
def test_prometheus_takes_the_configuration():
    run(PROMTOOL, "check", "config", "prometheus.yml")


@needs_promtool
def test_every_alert_fires_and_keeps_quiet_as_it_should():
    run(PROMTOOL, "test", "rules", "rules_test.yml")


@pytest.mark.skipif(AMTOOL is None, reason="no amtool: `make monitoring-tools` fetches it")
def test_alertmanager_takes_its_configuration():
    run(AMTOOL, "check-config", "alertmanager.yml")


def test_the_test_file_has_series_for_every_alert():
    tried = (DASHBOARDS / "rules_test.yml").read_text()
    assert {name for name in ALERTS if name not in tried} == set()


def test_the_rules_ask_for_what_is_exported_or_recorded():
    collector = Collector(
        EngineLimits(n_slots=1, n_cells=9, token_budget=9, n_ctx_slot=9), model_name="m", now=float
    )
    there = Presence(engine_id="0", up=True, down_s=0.0, n_restarts=0)
    known = EngineMetrics(collector.snapshot(), there, {HttpAnswer("/ready", "GET", 200): 1})
    text = render_all([known]).decode()
    families = text_string_to_metric_families(text)
    exported = {sample.name for family in families for sample in family.samples}
    recorded = {rule["record"] for rule in rules("record")}
    named = {
        name
        for rule in (*rules("record"), *ALERTS.values())
        for name in re.findall(r"cobali[_:][\w:]+", rule["expr"])
    }
    assert named <= exported | recorded


@each_alert
def test_an_alert_says_what_to_do(name):
    notes = ALERTS[name]["annotations"]
    assert set(notes) == {"summary", "description", "action"}
    assert "$labels.instance" in notes["summary"], "which server?"
    assert ALERTS[name]["labels"]["severity"] in {"warning", "critical"}
    words = set(re.findall(r"\w+", notes["action"]))
    assert words & set(PLACES), "no setting is named"
    settings = {word for word in words if "_" in word} - LOGGED
    assert {word for word in settings if not word.startswith("cobali")} <= set(PLACES)


@each_alert
def test_an_alert_has_its_row_in_the_document(name):
    rows = [
        row for row in (ROOT / "docs/alerts.md").read_text().splitlines() if row.startswith(f"| `{name}` |")
    ]
    assert len(rows) == 1
    severity = ALERTS[name]["labels"]["severity"]
    assert f"| {severity} | {ALERTS[name].get('for', 'at once')} |" in rows[0]
