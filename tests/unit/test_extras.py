"""A missing extra is named, with what to install."""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import cobali_workloads
from cobali_ray import __version__, extras
from cobali_ray.errors import MissingExtraError
from cobali_ray.extras import require_extra

ROOT = Path(__file__).parents[2]


def test_a_missing_package_names_its_extra():
    require_extra("otel", "json")
    with pytest.raises(MissingExtraError, match=r"no_such_package, .*install.*\[otel\]'"):
        require_extra("otel", "json", "no_such_package")
    with pytest.raises(MissingExtraError, match=r"no_such_package\.inside, .*install.*\[otel\]'"):
        require_extra("otel", "no_such_package.inside")


class Installed:
    def __init__(self, **origin):
        self.origin = origin

    def __call__(self, name):
        if name != "cobali-ray":
            raise PackageNotFoundError(name)
        return self

    def read_text(self, name):
        return json.dumps(self.origin) if name == "direct_url.json" else None


@pytest.mark.parametrize(
    ("origin", "words", "laboratory"),
    [
        pytest.param(
            Installed(url="file:///home/me/my%20ray", dir_info={"editable": True}),
            "install --editable '/home/me/my ray[otel]'",
            "install --editable '/home/me/my ray/workloads'",
            id="checkout",
        ),
        pytest.param(
            Installed(url="file:///tmp/cobali_ray-0.1.0-py3-none-any.whl", archive_info={}),
            "install '/tmp/cobali_ray-0.1.0-py3-none-any.whl[otel]'",
            "install 'CHECKOUT/workloads'",
            id="wheel",
        ),
        pytest.param(Installed(), "install 'CHECKOUT[otel]'", "install 'CHECKOUT/workloads'", id="unknown"),
    ],
)  # fmt: skip
def test_the_hint_names_this_environment_and_where_the_package_came_from(
    origin, words, laboratory, monkeypatch
):
    """The package is on no index, so that its name alone installs nothing, or somebody else's."""
    monkeypatch.setattr(extras, "distribution", origin)
    monkeypatch.setattr("sys.prefix", "/home/me/my ray/.venv")
    assert extras.remedy("otel") == f"'/home/me/my ray/.venv/bin/pip' {words}"
    assert extras.remedy(extras.WORKLOADS) == f"'/home/me/my ray/.venv/bin/pip' {laboratory}"


EVERY_HELP = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"matplotlib", "perfetto", "opentelemetry", "cupy"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Without())
from typer.testing import CliRunner
from cobali_ray.cli import app

for words in (("bench",), ("bench", "tick"), ("bench", "peers"), ("simulate",), ("trace",)):
    result = CliRunner().invoke(app, [*words, "--help"])
    assert "Usage:" in result.output, (words, result.exception)
result = CliRunner().invoke(app, ["bench", "tick", "--slots", "1"])
print(result.exception)
"""


def test_help_needs_no_extra_and_the_command_names_it():
    """In a process of its own, which has imported none of them."""
    words = [sys.executable, "-c", EVERY_HELP]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "this needs matplotlib" in result.stdout, result.stderr


SERVER_ALONE = (
    EVERY_HELP.partition("from typer")[0].replace('{"matplotlib",', '{"cobali_workloads",')
    + """
from typer.testing import CliRunner
from cobali_ray.cli import app

result = CliRunner().invoke(app, ["--help"])
print(" ".join(result.output.split()))
print(CliRunner().invoke(app, ["bench", "--help"]).exception)
"""
)


def test_the_server_alone_says_where_the_laboratory_is():
    words = [sys.executable, "-c", SERVER_ALONE]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "in a package that is not installed" in result.stdout, result.stderr
    assert "this needs cobali_workloads" in result.stdout
    assert "workloads'" in result.stdout


def test_both_packages_have_one_version():
    assert cobali_workloads.__version__ == __version__
