"""`make flaky`: what failed, how often, and what never ran."""

import pytest

from tools import flaky

TESTS = """
from pathlib import Path
import pytest

RUNS = Path(__file__).with_name("runs")

def test_every_second_time():
    RUNS.write_text(RUNS.read_text() + "x" if RUNS.exists() else "x")
    assert len(RUNS.read_text()) % 2

def test_always():
    pass

@pytest.mark.skip
def test_never():
    pass
"""


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    """What these tests of tests need of pytest is without its plugins, which take seconds to import."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_failures_are_counted_by_test(tmp_path, capsys):
    (file := tmp_path / "test_file.py").write_text(TESTS)
    assert flaky.main([str(file), "--times", "2", "--busy", "1", "--nice"]) == 1
    out = capsys.readouterr().out
    assert f"{file}: 1 failures, 1 skipped" in out
    (line,) = [line for line in out.splitlines() if line.startswith("  1 of 2 ")]
    assert line.endswith("test_file.py::test_every_second_time")


def test_a_file_that_cannot_be_run_has_failed(tmp_path, capsys):
    (file := tmp_path / "test_file.py").write_text("import no_such_module")
    assert flaky.main([str(file), "--times", "1", "--busy", "0"]) == 1
    assert "1 tests failed at least once" in capsys.readouterr().out
