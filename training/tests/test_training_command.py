"""The training command: what it needs, and what it says when that is not there."""

from __future__ import annotations

import importlib.util

import pytest
import typer
from typer.testing import CliRunner

from training import preflight
from training.__main__ import main
from training.errors import TrainingError

app = typer.Typer()
app.command()(main)


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_without_torch_it_says_how_to_get_it(monkeypatch, tmp_path):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else real(name))
    with pytest.raises(TrainingError, match=r"training/requirements\.txt"):
        preflight.require_torch()
    assert run("train", "--folder", tmp_path / "x").exit_code == 2
    assert not (tmp_path / "x").exists()


def test_a_full_disk_is_noticed_before_anything_is_done(tmp_path):
    with pytest.raises(TrainingError, match="MB left"):
        preflight.require_room(tmp_path, needed=1 << 60)
    preflight.require_room(tmp_path / "new", needed=1)
    assert (tmp_path / "new").is_dir()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TrainingError, match="cannot be made"):
        preflight.require_room(tmp_path / "file" / "below")


def test_steps_out_of_order_say_what_is_missing(tmp_path, monkeypatch):
    pytest.importorskip(
        "torch", reason="PyTorch is not installed: see training/requirements.txt", exc_type=ImportError
    )
    monkeypatch.setattr(preflight, "NEEDED_BYTES", 1)
    said = []
    monkeypatch.setattr("training.__main__.CONSOLE.print", lambda text, **_: said.append(text))
    assert run("train", "--folder", tmp_path).exit_code == 2
    assert run("export", "--folder", tmp_path).exit_code == 2
    assert "no corpus" in said[0]
    assert "no checkpoint" in said[1]


def test_an_interrupt_is_not_an_error_of_ours(tmp_path, monkeypatch):
    def interrupted(*_args):
        raise KeyboardInterrupt

    said = []
    monkeypatch.setattr("training.__main__._work", interrupted)
    monkeypatch.setattr("training.__main__.require_torch", lambda: None)
    monkeypatch.setattr("training.__main__.CONSOLE.print", lambda text, **_: said.append(text))
    assert run("train", "--folder", tmp_path).exit_code == 130
    assert "checkpoint is kept" in said[0]
