"""The package as a stranger has it: its wheel in an environment of its own, far from the checkout."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import httpx2
import pytest

from cobali_ray.ports import free_port
from tools.install import llama_wheel

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
SOURCES = ("pyproject.toml", "README.md", "LICENSE")
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


def uv(*words):
    """Run uv on what it has in its cache, or else with the index; `make install-dev` has filled the cache."""
    if subprocess.run([UV, *words, "--quiet", "--offline"], capture_output=True, check=False).returncode:
        subprocess.run([UV, *words, "--quiet"], check=True)


@pytest.fixture(scope="module")
def installed():
    """The folder of the programs of an environment that has the wheel, by way of the source package."""
    with tempfile.TemporaryDirectory(prefix="cobali-test-") as name:
        folder = Path(name)
        source = folder / "source"  # a copy: a build leaves files behind, and finds those of earlier ones
        shutil.copytree(ROOT / "cobali_ray", source / "cobali_ray", ignore=shutil.ignore_patterns("*.pyc"))
        for file in SOURCES:
            shutil.copy(ROOT / file, source)
        uv("build", "--out-dir", folder / "dist", source)
        (wheel,) = (folder / "dist").glob("*.whl")
        shutil.rmtree(source)
        uv("venv", "--python", sys.executable, folder / "venv")
        programs = folder / "venv" / "bin"
        pins = ("--constraint", ROOT / "constraints.txt")
        uv("pip", "install", "--python", programs / "python", *pins, wheel, llama_wheel())
        give_bytecode(Path(sysconfig.get_path("purelib")), next(folder.glob("venv/lib/*/site-packages")))
        yield programs


def give_bytecode(site, new):
    """Have an environment the bytecode of this one, which compiling again takes longer than all else here.

    Its files are these very files, links to those in uv's cache; what is another one Python compiles.
    """
    for cache in site.rglob("__pycache__"):
        there = new / cache.relative_to(site)
        if there.parent.is_dir() and not there.exists():
            shutil.copytree(cache, there, copy_function=link)


def link(file, to):
    try:
        os.link(file, to)
    except OSError:  # on another disk
        shutil.copy2(file, to)


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


def test_the_laboratory_is_a_package_of_its_own(installed, elsewhere):
    result = run(installed / "cobali", "bench", "--help")
    assert result.returncode == 2
    assert result.stderr.strip().endswith("pip install 'CHECKOUT/workloads'")
    assert len(result.stderr.splitlines()) == 1


def test_it_serves_without_any_file(installed, elsewhere, tmp_path):
    """Also where temporary files have long paths, which sockets cannot have."""
    port = free_port()
    with subprocess.Popen(
        [installed / "cobali", "serve", "--port", str(port)],
        env=ENVIRON | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        said = []
        for line in process.stdout:
            said.append(line)
            if '"event":"ready"' in line:
                break
        try:
            assert said[-1].count("tiny")
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                chat = {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0}
                answer = http.post("/v1/chat/completions", json=chat).json()
                assert "42" in answer["choices"][0]["message"]["content"]
                page = http.get("/").text
                scripts = re.findall(r'(?:src|href)="([^"]+)"', page)
                assert scripts
                assert {http.get(script).status_code for script in scripts} == {200}
        finally:
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert '"event":"stopped"' in rest
