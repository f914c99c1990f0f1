"""tools/install.py: what makes it install again, and which llama.cpp it then takes."""

import sys
from pathlib import Path

import pytest

from tools import install

CUDA, VULKAN = "-DGGML_CUDA=on", "-DGGML_VULKAN=on"


@pytest.fixture
def shell(monkeypatch, tmp_path):
    """Return `make` in a fresh checkout: options and variables in, what it compiled and installed out."""
    commands = []

    def build(command, environ):
        del environ
        commands.append("compile")
        folder = Path(command[command.index("--wheel-dir") + 1])
        (folder / f"llama_cpp_python-{install.LLAMA.rsplit('=', 1)[1]}-py3-none-any.whl").touch()

    def run(command):
        commands.extend(word for word in command if word.endswith(".whl"))

    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    for name, value in {
        "VENV": venv,
        "PYTHON": venv / "bin/python",
        "WHEELS": tmp_path / "wheels",
        "TEMPLATES": tmp_path,
        "LOG": install.ROOT / "log",
        "build": build,
        "run": run,
    }.items():
        monkeypatch.setattr(install, name, value)

    def make(*options, **variables):
        commands.clear()
        for name in install.BUILD_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["install.py", *options])
        assert install.main() == 0
        return list(commands)

    return make


def wheel_of(commands):
    """Return the wheel that was installed."""
    return next(word for word in commands if word.endswith(".whl"))


def test_other_options_of_ours_are_another_build(shell, monkeypatch):
    """What lies in users' caches was built without images."""
    first = wheel_of(shell())
    monkeypatch.setattr(install, "OPTIONS", "-DLLAVA_BUILD=OFF")
    assert wheel_of(shell()) != first


def test_a_second_run_does_nothing(shell):
    assert "compile" in shell()
    assert shell() == []


@pytest.mark.parametrize("name", install.BUILD_VARIABLES)
def test_another_build_is_made_and_installed_in_an_environment_that_is_there(shell, name):
    plain, other = shell(), shell(**{name: CUDA})
    assert "compile" in other
    assert wheel_of(other) != wheel_of(plain)
    assert shell(**{name: CUDA}) == []
    back = shell()
    assert "compile" not in back, "it lies in the cache"
    assert wheel_of(back) == wheel_of(plain)


def test_two_values_are_two_builds(shell):
    assert wheel_of(shell(CMAKE_ARGS=CUDA)) != wheel_of(shell(CMAKE_ARGS=VULKAN))
    assert wheel_of(shell(CC=CUDA)) != wheel_of(shell(CXX=CUDA)), "the same word, said to another"


def test_what_does_not_change_the_build_installs_nothing(shell):
    shell()
    assert shell(CUDA_VISIBLE_DEVICES="1", CMAKE_BUILD_PARALLEL_LEVEL="4") == []


def test_the_server_s_environment_is_in_that_of_the_tests(shell):
    shell("--dev")
    assert shell() == []


def test_what_was_installed_before_another_build_is_no_longer_believed(shell):
    shell("--dev")
    shell(CMAKE_ARGS=CUDA)
    assert wheel_of(shell("--dev")), "the tests' stamp is of a build that is not there any more"
    assert shell() == []


def test_pip_compiles_instead_of_taking_what_it_once_compiled(shell, monkeypatch):
    seen = []
    made = install.build
    monkeypatch.setattr(
        install, "build", lambda command, environ: (seen.extend(command), made(command, environ))
    )
    shell()
    assert "--no-cache-dir" in seen
