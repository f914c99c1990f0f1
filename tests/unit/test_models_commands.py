import json
import shutil

import pytest
from typer.testing import CliRunner

from cobali_ray.models.commands import app


@pytest.fixture
def cobali_models(tmp_path):
    def run(*words, columns=120):
        env = {"COBALI_CACHE": str(tmp_path), "COLUMNS": str(columns)}
        return CliRunner().invoke(app, [*words], env=env)

    return run


def test_list_shows_what_is_made(cobali_models):
    before = json.loads(cobali_models("list", "--all", "--json").stdout)
    assert [row["reference"] for row in before if row["made"]] == ["builtin:tiny"]  # comes with the package
    assert cobali_models("make", "synthetic-tiny").exit_code == 0
    after = {row["reference"]: row for row in json.loads(cobali_models("list", "--all", "--json").stdout)}
    assert after["builtin:synthetic-tiny"]["made"]
    assert "4.6 MB" in cobali_models("list", "--all").stdout


def test_models_with_random_weights_are_listed_only_if_asked_for(cobali_models):
    assert [row["reference"] for row in json.loads(cobali_models("list", "--json").stdout)] == [
        "builtin:tiny"
    ]
    assert "synthetic" not in cobali_models("list").stdout


def test_a_name_is_whole_on_a_narrow_terminal(cobali_models):
    assert "\nbuiltin:synthetic-qwen2.5-0.5b:Q5_K_M " in cobali_models("list", "--all", columns=80).stdout
    shown = cobali_models("list", "--all", columns=40).stdout
    assert "\nbuiltin:synthetic-qwen2.5-0.5b:Q5_K_M\n  Q5_K_M  -" in shown
    told = " ".join(shown.split())
    assert told.startswith("builtin:tiny Q8_0 4.9 MB a chat model of 4.5 million parameters, trained ")
    assert max(map(len, shown.splitlines())) <= 40


def test_in_a_pipe_nothing_is_cut(tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = CliRunner().invoke(app, ["list"], env={"COBALI_CACHE": str(tmp_path)}).stdout
    assert "trained for demonstrations and tests" in shown


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


def test_what_a_file_says_is_no_command(cobali_models, monkeypatch):
    said = {"name": "a [/INST] [bold]b\x1b[2J", "cell_bytes": 1}
    monkeypatch.setattr("cobali_ray.models.registry.describe", lambda _: said)
    shown = cobali_models("show", "builtin:synthetic-tiny").stdout
    assert "a [/INST] [bold]b\ufffd[2J" in shown


def test_help_keeps_its_brackets(cobali_models):
    shown = " ".join(cobali_models("show", "--help").stdout.split())
    assert "[@revision]" in shown
    assert "[:QUANT]" in shown


@pytest.fixture
def ollama(tmp_path):
    source = tmp_path / "source"
    made = CliRunner().invoke(app, ["make", "synthetic-tiny"], env={"COBALI_CACHE": str(source)})
    folder = tmp_path / "ollama"
    manifest = folder / "manifests/registry.ollama.ai/library/qwen2.5/0.5b"
    manifest.parent.mkdir(parents=True)
    (folder / "blobs").mkdir()
    shutil.copy(made.stdout.strip(), folder / "blobs/sha256-abc")
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:abc"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    return folder


def test_models_of_other_programs_are_listed_and_shown_by_name(tmp_path, ollama):
    env = {"OLLAMA_MODELS": str(ollama), "HOME": str(tmp_path), "COLUMNS": "120"}
    env |= dict.fromkeys(("LLAMA_CACHE", "HF_HUB_CACHE", "XDG_CACHE_HOME"), str(tmp_path / "none"))
    row, *_ = json.loads(CliRunner().invoke(app, ["list", "--json"], env=env).stdout)
    assert row["reference"] == "ollama://qwen2.5:0.5b"
    assert (row["quant"], row["architecture"], row["parameters"]) == ("Q8_0", "qwen2", 4_198_656)
    said = CliRunner().invoke(app, ["list"], env=env).stdout.splitlines()[1]
    what = "qwen2, 4.2 million parameters, from Ollama"
    assert " ".join(said.split()) == f"ollama://qwen2.5:0.5b Q8_0 4.6 MB {what}"
    for name in ("ollama://qwen2.5:0.5b", "Qwen2.5:0.5B"):
        shown = CliRunner().invoke(app, ["show", name, "--json"], env=env)
        assert json.loads(shown.stdout)["n_layers"] == 4, shown.stderr
    blob = ollama / "blobs/sha256-abc"
    studio = tmp_path / ".lmstudio/models/me/[mine]/m-Q8_0.gguf"
    studio.parent.mkdir(parents=True)
    studio.symlink_to(blob)
    said = CliRunner().invoke(app, ["list", "--all"], env=env | {"COLUMNS": "80"}).stdout
    for name in ("lmstudio://me/[mine]/m-Q8_0.gguf", "builtin:synthetic-qwen2.5-0.5b"):
        assert f"{name} " in said, "a name is whole, and what the model is gives way"
    studio.unlink()
    blob.write_bytes(blob.read_bytes()[:-64])
    cut = CliRunner().invoke(app, ["show", "qwen2.5:0.5b"], env=env)
    assert "is truncated" in str(cut.exception)
    blob.write_bytes(b"GGUF\x03\x00")
    row, *_ = json.loads(CliRunner().invoke(app, ["list", "--json"], env=env).stdout)
    assert "damaged" in row["error"]
