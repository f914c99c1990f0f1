"""Settings that are read again while the server runs, and an unwilling Ray."""

import contextlib
import io
import os

import orjson
import pytest

from cobali_ray.actors import deployed
from cobali_ray.actors.deployed import code_version
from cobali_ray.actors.output import JsonLines
from cobali_ray.errors import ConfigError
from cobali_ray.settings import EngineSettings

OLD, NEW = EngineSettings(model="builtin:scripted"), EngineSettings(model="builtin:scripted", n_slots=5)


class Serve:
    """Fails when it is told to."""

    def __init__(self, *failures):
        self.failures, self.deployed, self.codes = list(failures), [], []

    def deploy(self, settings, *, code):
        self.deployed.append(settings)
        self.codes.append(code)
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure


@pytest.fixture
def renew(monkeypatch):
    def go(serve, reread=lambda: NEW, wait=lambda goes_on: None, code=("one", "one")):
        monkeypatch.setattr(deployed, "deploy", serve.deploy)
        monkeypatch.setattr(deployed, "_wait_running", wait)
        said = io.StringIO()
        settings = deployed.renewed(
            OLD,
            reread,
            JsonLines(said),
            code=code,
            in_time=lambda _: contextlib.nullcontext(),
            goes_on=lambda: True,
        )
        return settings, [orjson.loads(line) for line in said.getvalue().splitlines()]

    return go


def test_new_settings_are_deployed(renew):
    serve = Serve()
    settings, said = renew(serve)
    assert (settings, serve.deployed) == (NEW, [NEW])
    assert [(line["event"], line["changed"]) for line in said] == [("settings_read", ["engine"])]


def test_new_code_is_deployed_with_the_same_settings(renew):
    serve = Serve()
    _, said = renew(serve, lambda: OLD, code=("one", "two"))
    assert serve.codes == ["two"]
    assert said[0]["changed"] == ["engine", "ingress"]


def test_the_code_is_another_once_a_file_of_it_changes(tmp_path):
    (tmp_path / "ui").mkdir()
    file = tmp_path / "ui" / "page.js"
    file.write_text("one")
    before = code_version(tmp_path)
    (tmp_path / "ui" / "__pycache__").mkdir()
    (tmp_path / "ui" / "__pycache__" / "x.pyc").touch()
    os.utime(tmp_path / "ui", (9, 9))
    assert code_version(tmp_path) == before, "a cache was made"
    os.utime(file, (1, 1))
    old = code_version(tmp_path)
    assert old != before
    os.utime(file, (1, 1))
    assert code_version(tmp_path) == old
    file.write_text("three")
    os.utime(file, (1, 1))
    assert code_version(tmp_path) != old, "by its size"


def fail(_=None):
    raise ConfigError("model", "did not start")


@pytest.mark.parametrize(
    ("failures", "wait", "why"),
    [
        ([RuntimeError("the controller is gone\nand a traceback")], print, "the controller is gone"),
        ([], fail, "model: did not start"),
    ],
    ids=["raised-by-ray", "not-started"],
)
def test_what_does_not_start_is_undone_settings_and_code(renew, failures, wait, why):
    serve = Serve(*failures)
    settings, said = renew(serve, wait=wait, code=("one", "two"))
    assert (settings, serve.deployed, serve.codes) == (OLD, [NEW, OLD], ["two", "one"])
    assert [(line["event"], line["error"]) for line in said] == [("settings_kept", why)]


def test_a_ray_that_takes_nothing_any_longer_ends_no_server(renew):
    settings, said = renew(Serve(RuntimeError("gone"), RuntimeError("still gone")))
    assert settings == OLD
    assert said[-1]["detail"] == "They could not be put back: still gone"


def test_a_file_that_cannot_be_used_deploys_nothing(renew):
    serve = Serve()
    settings, said = renew(serve, fail)
    assert (settings, serve.deployed) == (OLD, [])
    assert "model: did not start" in said[0]["error"]
