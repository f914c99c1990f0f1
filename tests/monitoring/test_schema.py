"""The boards are what Grafana's own types say a board is."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
SCHEMA = Path(__file__).parent / "schema"
NODE = shutil.which("node")
HERE = NODE is not None and (SCHEMA / "node_modules" / "typescript").is_dir()


@pytest.mark.skipif(not HERE, reason="Grafana's schema is not here: `make monitoring-tools` fetches it")
def test_every_board_passes_the_type_check_and_a_wrong_one_does_not(tmp_path):
    boards = sorted(DASHBOARDS.glob("*.json"))
    wrong = json.loads(boards[0].read_text())
    panel = next(panel for panel in wrong["panels"] if panel["type"] == "timeseries")
    panel["fieldConfig"]["defaults"]["custom"]["drawStyle"] = "lines"  # it is "line"
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(wrong, indent=2))
    command = [NODE, SCHEMA / "check.mjs", *boards, broken]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    *problems, summary = done.stdout.splitlines()
    assert summary == f"{len(boards) + 1} boards, 1 problems", done.stdout + done.stderr
    assert [line.partition(":")[0] for line in problems if ".json:" in line] == ["broken.json"]
    assert "lines" in done.stdout
    assert done.returncode == 1


def test_the_lock_file_names_no_registry():
    packages = json.loads((SCHEMA / "package-lock.json").read_text())["packages"]
    assert len(packages) >= 3
    assert not any("resolved" in package for package in packages.values())
