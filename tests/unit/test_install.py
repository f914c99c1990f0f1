"""tools/install.py: what makes it install again, and which llama.cpp it then takes."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import tarfile
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from tools import install

CUDA, VULKAN = "-DGGML_CUDA=on", "-DGGML_VULKAN=on"


@pytest.fixture
def shell(monkeypatch, tmp_path):
    """Return `make` in a fresh checkout: options and variables in, what it compiled and installed out."""
    commands = []

    def build(command, environ):
        commands.append("compile")
        make.environ = environ
        folder = Path(command[command.index("--wheel-dir") + 1])
        (folder / f"llama_cpp_python-{install.LLAMA.rsplit('=', 1)[1]}-py3-none-any.whl").touch()

    def run(command):
        commands.extend(word for word in command if word.endswith(".whl"))

    @contextlib.contextmanager
    def source_package(_):
        commands.append("download")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as package:
            package.addfile(tarfile.TarInfo("llama_cpp_python-1/CMakeLists.txt"))
        packed.seek(0)
        with tarfile.open(fileobj=packed) as package:
            yield package

    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    for name, value in {
        "VENV": venv,
        "PYTHON": venv / "bin/python",
        "WHEELS": tmp_path / "wheels",
        "BUILDS": tmp_path / "builds",
        "source_package": source_package,
        "download_prebuilt": lambda _: None,
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


@pytest.mark.parametrize("flags", ["flags : avx512f", "flags : avx512f amx_tile amx_int8"])
def test_where_the_processor_has_amx_it_is_left_out_unless_who_builds_wants_it(
    shell, monkeypatch, tmp_path, flags
):
    (tmp_path / "cpuinfo").write_text(flags)
    monkeypatch.setattr(install, "CPU_INFO", tmp_path / "cpuinfo")
    shell(CXXFLAGS="-D__AMX_INT8__=1")
    first = [install.NO_AMX] if "amx_int8" in flags else []
    assert shell.environ["CXXFLAGS"].split() == [*first, "-D__AMX_INT8__=1"]
    assert shell.environ.get("CFLAGS", "").split() == first


def test_what_does_not_change_the_build_installs_nothing(shell):
    shell()
    assert shell(CUDA_VISIBLE_DEVICES="1", CMAKE_BUILD_PARALLEL_LEVEL="4") == []


def test_what_was_installed_before_another_build_is_no_longer_believed(shell):
    shell("--dev")
    shell(CMAKE_ARGS=CUDA)
    assert wheel_of(shell("--dev")), "the tests' stamp is of a build that is not there any more"
    assert shell() == []


def prebuilt(folder):
    (folder / f"llama_cpp_python-{install.LLAMA.rsplit('=', 1)[1]}-py3-none-linux_x86_64.whl").touch()


def test_a_prebuilt_wheel_that_works_is_installed_and_kept(shell, monkeypatch):
    monkeypatch.setattr(install, "download_prebuilt", prebuilt)
    monkeypatch.setattr(install, "works", lambda: True)
    assert "compile" not in shell()
    monkeypatch.setattr(install, "download_prebuilt", lambda _: pytest.fail("it is in the cache"))
    monkeypatch.setattr(install, "works", lambda: pytest.fail("it was tried before"))
    assert wheel_of(shell("--dev")).endswith("linux_x86_64.whl")


def test_a_prebuilt_wheel_that_does_not_work_is_compiled_instead_and_not_asked_for_again(shell, monkeypatch):
    monkeypatch.setattr(install, "download_prebuilt", prebuilt)
    monkeypatch.setattr(install, "works", lambda: False)
    commands = shell()
    assert commands[0].endswith("linux_x86_64.whl")
    assert "compile" in commands
    assert commands[-1].endswith("none-any.whl")
    monkeypatch.setattr(install, "works", lambda: pytest.fail("what is compiled here is not tried"))
    assert wheel_of(shell("--dev")) == commands[-1]


def test_a_download_that_was_never_tried_is_tried_by_the_next_make(shell, monkeypatch):
    monkeypatch.setattr(install, "download_prebuilt", prebuilt)
    monkeypatch.setattr(install, "works", interrupt)
    with pytest.raises(KeyboardInterrupt):
        shell()
    monkeypatch.setattr(install, "works", lambda: False)
    assert "compile" in shell()


@pytest.mark.parametrize("name", ["CMAKE_ARGS", "COBALI_COMPILE"])
def test_who_asks_for_a_build_gets_it_compiled(shell, monkeypatch, name):
    monkeypatch.setattr(install, "download_prebuilt", prebuilt)
    assert "compile" in shell(**{name: "1"})


def test_whatever_is_installed_is_bytecode_already(shell, monkeypatch, tmp_path):
    (tmp_path / "cobali_ray").mkdir()
    (module := tmp_path / "cobali_ray" / "module.py").touch()
    installed = []

    def run(command):
        if Path(command[0]).name == "uv":
            installed.append(command)
        elif "compileall" in command:
            subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True)

    monkeypatch.setattr(install, "download_prebuilt", prebuilt)
    monkeypatch.setattr(install, "works", lambda: False)
    monkeypatch.setattr(install, "run", run)
    shell()
    assert len(installed) == 2, "all packages, and llama.cpp in place of the wheel that does not work"
    assert all("--compile-bytecode" in command for command in installed)
    assert Path(cache_from_source(module)).exists()


def interrupt(*_):
    raise KeyboardInterrupt


def test_an_interrupted_build_goes_on_with_what_it_has(shell, monkeypatch, tmp_path):
    made = install.build
    monkeypatch.setattr(install, "build", interrupt)
    with pytest.raises(KeyboardInterrupt):
        shell()
    (objects := next(tmp_path.glob("builds/*/")) / "objects").mkdir()
    seen = []
    monkeypatch.setattr(
        install, "build", lambda command, environ: (seen.extend(command), made(command, environ))
    )
    commands = shell()
    assert "download" not in commands, "the sources are there"
    assert f"build-dir={objects}" in seen
    assert "--no-cache-dir" in seen, "pip takes nothing that it once compiled with other options"
    assert list(tmp_path.glob("builds/*/")) == [], "nothing is left behind a finished build"


def test_ctrl_c_ends_a_build_without_a_traceback(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(install, "LOG", tmp_path / "log")
    monkeypatch.setattr(install, "progress", lambda *_: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(SystemExit) as end:
            install.build(["echo", "[1/2] one"], dict(os.environ))
    finally:
        signal.signal(signal.SIGINT, before)
    assert end.value.code == 130
    assert "goes on from here" in capfd.readouterr().out


OTHER = """
import sys
from pathlib import Path
from tools import install
with install.alone(Path(sys.argv[1])):
    print("alone")
"""


def test_two_makes_do_not_compile_side_by_side(tmp_path):
    with install.alone(tmp_path):
        other = subprocess.Popen(
            [sys.executable, "-c", OTHER, tmp_path], cwd=install.ROOT, stdout=subprocess.PIPE, text=True
        )
        assert other.stdout.readline().startswith("Another make")
    assert other.communicate()[0] == "alone\n"
