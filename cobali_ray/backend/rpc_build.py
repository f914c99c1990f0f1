"""Build libggml-rpc.so, the part of llama.cpp by which one process computes on the devices of another.

The package of llama.cpp comes without it. It is two files of the source of the same version, compiled against
the installed libggml-base, which this process has loaded when it loads this one. It is built when it is first
needed, once per user: what nobody uses is neither fetched nor compiled.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import structlog

from cobali_ray.errors import ConfigError

_log = structlog.get_logger(__name__)

NAME = "libggml-rpc.so"
_PACKAGE = "llama-cpp-python"
_FOLDERS = ("/vendor/llama.cpp/ggml/include/", "/vendor/llama.cpp/ggml/src/ggml-rpc/")
_HEADERS = "/vendor/llama.cpp/ggml/src"
_FILES = ("ggml-rpc.cpp", "transport.cpp")
_DEFINED = ("GGML_SHARED", "GGML_BUILD", "GGML_BACKEND_SHARED", "GGML_BACKEND_BUILD", "NDEBUG")
_TIMEOUT_S = 900.0
"""For each of the two: fetching the source, and compiling it."""


def built(cache: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the library for the installed llama.cpp, built now unless it lies in the folder `cache`.

    Another process that builds it is waited for. Raises ConfigError that says what is missing.
    """
    folder = cache / f"{version(_PACKAGE)}-{platform.machine()}"
    library = folder / NAME
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder), tempfile.TemporaryDirectory(dir=folder) as scratch:
            if not library.exists():
                _log.info("building_rpc", folder=str(folder), detail="once; it takes about half a minute")
                _compile(_source(Path(scratch)), part := Path(scratch) / NAME, environ)
                part.rename(library)
    except OSError as error:
        raise ConfigError("devices", f"{NAME} cannot be built in {folder}: {error}") from error
    return library


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _source(scratch: Path) -> Path:
    """Fetch the source package that llama.cpp was installed from; return the folder of ggml in it."""
    requirement = f"{_PACKAGE}=={version(_PACKAGE)}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    _run([*command, "--no-deps", "--no-binary", _PACKAGE, "--dest", str(scratch), requirement], "fetched")
    with tarfile.open(next(scratch.glob("*.tar.gz"))) as package:
        package.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and newer
        for member in package:
            path = Path(member.name)
            header = path.suffix == ".h" and str(path.parent).endswith(_HEADERS)
            if member.isfile() and (header or any(part in member.name for part in _FOLDERS)):
                package.extract(member, scratch / "source")
    return next((scratch / "source").glob("*/vendor/llama.cpp/ggml"))


def _compile(ggml: Path, library: Path, environ: Mapping[str, str]) -> None:
    compiler = environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        raise ConfigError("devices", f"{NAME} needs a C++ compiler: install g++, or set CXX")
    base = _installed() / "lib"
    sources = [str(ggml / "src" / "ggml-rpc" / name) for name in _FILES]
    command = [compiler, "-O2", "-std=c++17", "-shared", "-fPIC", *(f"-D{name}" for name in _DEFINED)]
    command += [f"-I{ggml / 'include'}", f"-I{ggml / 'src'}", *sources, "-o", str(library)]
    _run([*command, f"-L{base}", "-lggml-base"], "compiled")


def _installed() -> Path:
    """Return the folder of the package, without importing it."""
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise ConfigError("devices", f"{NAME} needs llama-cpp-python, which is not installed")
    return Path(spec.origin).parent


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - words of ours
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError("devices", f"{NAME} was not {what} within {_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        why = next((line for line in lines if "error" in line.lower()), lines[-1]).strip()
        raise ConfigError("devices", f"the source of {NAME} could not be {what}: {why}")
