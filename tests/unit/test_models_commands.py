import json

import pytest
from typer.testing import CliRunner

from cobali_ray.models.commands import app


@pytest.fixture
def cobali_models(tmp_path):
    def run(*words):
        return CliRunner().invoke(app, [*words], env={"COBALI_CACHE": str(tmp_path), "COLUMNS": "120"})

    return run


def test_list_shows_what_is_made(cobali_models):
    before = json.loads(cobali_models("list", "--json").stdout)
    assert [row["reference"] for row in before if row["made"]] == ["builtin:tiny"]  # comes with the package
    assert cobali_models("make", "synthetic-tiny").exit_code == 0
    after = {row["reference"]: row for row in json.loads(cobali_models("list", "--json").stdout)}
    assert after["builtin:synthetic-tiny"]["made"]
    assert "4.6 MB" in cobali_models("list").stdout


def test_make_prints_the_path_and_nothing_else_on_stdout(cobali_models, tmp_path):
    made = cobali_models("make", "synthetic-tiny:F16", "--seed", "5")
    (file,) = (tmp_path / "models").iterdir()
    assert made.stdout == f"{file}\n"
    assert "-F16-s5-" in file.name


def test_show_says_what_is_in_a_file(cobali_models):
    facts = json.loads(cobali_models("show", "builtin:synthetic-tiny", "--json").stdout)
    assert facts["n_layers"] == 4
    table = cobali_models("show", "builtin:synthetic-tiny").stdout
    assert "4,198,656" in table
    assert "Q8_0 x 29, F32 x 21" in table


@pytest.mark.parametrize(
    "words",
    [("show", "builtin:nobody"), ("make", "nobody"), ("make", "hf://owner/repo/m.gguf"), ("fetch", "hf://x")],
)
def test_a_mistake_is_one_line_on_stderr(cobali_models, words):
    result = cobali_models(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.strip().startswith("error: model: ")
    assert len(result.stderr.strip().splitlines()) == 1


def test_help_keeps_its_brackets(cobali_models):
    shown = " ".join(cobali_models("--help").stdout.split())
    assert "[@revision]" in shown
    assert "[:QUANT]" in shown
