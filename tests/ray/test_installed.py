"""The package as a stranger has it: its wheel, far from the checkout. That it serves is in test_deaths.py."""

import json
import os
import subprocess

import pytest

pytestmark = pytest.mark.ray

MINE = ("RAY_", "PYTHON", "VIRTUAL_ENV", "COBALI_")
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith(MINE)}
EVERY_HELP = """
import json, typer
from typer.testing import CliRunner
from cobali_ray.cli import app
from cobali_ray.errors import MissingExtraError

def walk(command, *path):
    yield path
    late = getattr(command, "places", ())  # those that are imported when they are asked for
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        try:
            child = command.load(name) if name in late else command.get_command(None, name)
        except MissingExtraError:  # of the laboratory, which is not there
            continue
        yield from walk(child, *path, name)

said = {}
for path in walk(typer.main.get_command(app)):
    result = CliRunner().invoke(app, [*path, "--help"])
    said[" ".join(path)] = result.output if result.exit_code == 0 else repr(result.exception)
print(json.dumps(said))
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(program, *words):
    return subprocess.run([program, *words], env=ENVIRON, capture_output=True, text=True, check=False)


def test_every_command_explains_itself(installed, elsewhere):
    said = json.loads(run(installed / "python", "-I", "-c", EVERY_HELP).stdout)
    assert {"", "serve", "chat", "models pull"} <= set(said)
    assert not {"run", "bench", "simulate", "trace"} & set(said)
    assert {path: text for path, text in said.items() if "Usage:" not in text} == {}


def test_it_says_its_version_and_has_its_models(installed, elsewhere):
    assert run(installed / "cobali", "--version").stdout.startswith("cobali_ray ")
    models = json.loads(run(installed / "cobali", "models", "list", "--json").stdout)
    assert "builtin:tiny" in {model["reference"] for model in models if model["made"]}


def test_what_needs_an_extra_names_it(installed, elsewhere):
    result = run(installed / "cobali", "serve", "--set", "otlp_endpoint=http://127.0.0.1:1")
    assert result.returncode == 2
    assert f"pip install '{installed.parent.parent}/dist/" in result.stderr
    assert ".whl[otel]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1
