"""Make the environment: .venv, llama.cpp compiled once, everything else from constraints.txt.

Without --dev what serving needs and no more; with it also every extra and what tests need, the chat templates
among it that lie in the source package of llama.cpp.

Standard library only, because it runs before anything is installed. A second run takes under a second:
a stamp in .venv records what was installed, and how llama.cpp was to be built.

Usage: python3 tools/install.py [--dev]
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CACHE = Path(
    os.environ.get("COBALI_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cobali_ray"
)
WHEELS = CACHE / "wheels"
LLAMA = "llama-cpp-python==0.3.36"
TEMPLATES = CACHE / "templates" / LLAMA.rsplit("=", 1)[1]
UV = "uv==0.13.8"
BUILD_VARIABLES = (
    *("CMAKE_ARGS", "CMAKE_GENERATOR", "CMAKE_BUILD_TYPE", "CMAKE_PREFIX_PATH", "CMAKE_TOOLCHAIN_FILE"),
    *("SKBUILD_CMAKE_ARGS", "SKBUILD_CMAKE_DEFINE", "SKBUILD_CMAKE_BUILD_TYPE"),
    *("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS"),
    *("CUDACXX", "CUDAHOSTCXX", "CUDAFLAGS", "CUDAARCHS", "HIPCXX", "HIPFLAGS"),
)
"""What CMake and scikit-build-core read from the environment. Another value is another build."""
OPTIONS = "-DLLAVA_BUILD=ON"
"""Of every build, which has mtmd for images; CMAKE_ARGS comes behind."""
LOG = VENV / "llama-build.log"
STEP = re.compile(rb"\[(\d+)/(\d+)\]")


def main() -> int:
    """Install what is missing; return the exit code."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs on whatever python3 is
        print(f"cobali_ray needs Python 3.11 or newer; this is {platform.python_version()}.")
        return 1
    dev = "--dev" in sys.argv[1:]
    wanted = fingerprint()
    stamps = [VENV / name for name in (["installed", "installed-dev"] if dev else ["installed"])]
    if not all(stamp.exists() and stamp.read_text() == wanted for stamp in stamps):
        for stamp in VENV.glob("installed*"):
            if stamp.read_text() != wanted:
                stamp.unlink()  # there is one environment, and it will be another
        install(["--group", "dev", "--editable", f".[{extras()}]"] if dev else ["--editable", "."])
        for stamp in stamps:
            stamp.write_text(wanted)
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


def extras() -> str:
    """Return the names of all extras of this package, as pip wants them."""
    import tomllib  # older Pythons lack it, and are to be told so by main

    with (ROOT / "pyproject.toml").open("rb") as file:
        return ",".join(tomllib.load(file)["project"]["optional-dependencies"])


def fingerprint() -> str:
    """Return what the environment was made from, to tell whether it is still right."""
    content = b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
    made = f"{LLAMA} {platform.python_version()} {build_id()}"
    return hashlib.sha256(content + made.encode()).hexdigest()


def build_id() -> str:
    """Return a short name of what a build depends on: this processor's abilities, and what was exported."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = ""
    values = {name: value for name in BUILD_VARIABLES[1:] if (value := os.environ.get(name))}
    options = f"{OPTIONS} {os.environ.get('CMAKE_ARGS', '')}"
    options += "".join(f" {name}={values[name]}" for name in values)
    return hashlib.sha256(f"{platform.machine()} {flags} {options}".encode()).hexdigest()[:12]


def llama_wheel() -> Path:
    """Return the compiled llama-cpp-python, from the cache or built now with a progress line."""
    folder = WHEELS / build_id()
    found = sorted(folder.glob(f"llama_cpp_python-{LLAMA.rsplit('=', 1)[1]}-*.whl"))
    if found:
        return found[-1]
    print(
        f"Compiling llama.cpp once: about nine minutes on two cores (log: {LOG.relative_to(ROOT)}).",
        flush=True,
    )
    folder.mkdir(parents=True, exist_ok=True)
    environ = dict(os.environ)
    environ["CMAKE_ARGS"] = f"{OPTIONS} {environ.get('CMAKE_ARGS', '')}".strip()
    command = [str(PYTHON), "-m", "pip", "wheel", "--verbose", "--no-deps", "--disable-pip-version-check"]
    # pip keeps what it compiled too, whatever CMAKE_ARGS were then.
    build([*command, "--no-cache-dir", "--wheel-dir", str(folder), LLAMA], environ)
    return next(iter(sorted(folder.glob("llama_cpp_python-*.whl"))))


def fetch_templates() -> None:
    """Take the chat templates out of the source package that the wheel is compiled from."""
    print("Fetching chat templates for the tests ...", flush=True)
    TEMPLATES.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TEMPLATES.parent) as scratch:
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
        found = Path(scratch) / "templates"
        found.mkdir()
        with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as package:
            for member in package:
                path = Path(member.name)
                content = package.extractfile(member) if path.match("models/templates/*.jinja") else None
                if content is not None:
                    (found / path.name).write_bytes(content.read())
        found.rename(TEMPLATES)  # whole or not at all


def build(command: list[str], environ: dict[str, str]) -> None:
    """Run a build, showing one line of progress out of its output; exit with the log's end if it fails."""
    started = time.monotonic()
    with (
        LOG.open("wb") as log,
        subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process,
    ):
        shown = ""
        for line in process.stdout or ():
            log.write(line)
            steps = STEP.findall(line)
            if steps:
                done, total = map(int, steps[-1])
                shown = progress(done, total, time.monotonic() - started, shown)
    print(flush=True)
    if process.returncode:
        print(LOG.read_text(encoding="utf-8", errors="replace")[-4000:])
        where = LOG.relative_to(ROOT)
        print(f"\nllama.cpp did not compile. It needs a C++ compiler and CMake; the whole log is in {where}.")
        raise SystemExit(1)


def progress(done: int, total: int, elapsed_s: float, shown: str) -> str:
    """Draw the bar: in place on a terminal, every tenth part as a line elsewhere."""
    text = f"  [{'#' * (30 * done // total):<30}] {done}/{total} files, {elapsed_s / 60:.1f} min"
    if sys.stdout.isatty():
        print(f"\r{text}", end="", flush=True)
    elif 10 * done // total != shown.count("|"):
        print(text, flush=True)
        return "|" * (10 * done // total)
    return shown


def run(command: list[str]) -> None:
    """Run a command, exiting with its code if it fails."""
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    sys.exit(main())
