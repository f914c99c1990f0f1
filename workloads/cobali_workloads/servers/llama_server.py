"""llama-server, built once from the source package of the installed llama-cpp-python over its very libraries.

Both sides of a comparison then compute with the same binary kernels, and only the engine differs.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from cobali_ray.backend.devices import holds_layers, local_devices
from cobali_ray.backend.library import cuda_part
from cobali_ray.backend.threads import ENVIRONMENT, ThreadsWait, Wait
from cobali_ray.errors import ConfigError
from cobali_ray.models.store import default_cache_dir
from cobali_workloads.servers.llama_server_cmake import CMAKE_LISTS

PACKAGE = "llama-cpp-python"
VARIANTS = tuple(f"-fa {fa} {kv}" for fa in ("on", "off") for kv in ("--kv-unified", "--no-kv-unified"))
"""The settings of llama-server that a comparison tries; which is best depends on the load."""
HTTP_THREADS = 72
"""More than there are clients in any preset, so that none of them waits for a thread."""
_TREE = "vendor/llama.cpp/"
_STEP = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]")

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """What both servers get alike. Counts are tokens unless the name says otherwise."""

    model: Path
    n_slots: int
    n_ctx: int
    """Most tokens of one request."""
    n_threads: int
    threads_wait: Wait
    comes_back: bool = False
    """Whether conversations are asked: llama-server then keeps prompts in host memory."""

    @property
    def requested_wait(self) -> ThreadsWait:
        """The setting that makes our server wait this way."""
        return "auto" if self.threads_wait == "brief" else self.threads_wait

    def environ(self) -> dict[str, str]:
        """Return the environment of either server: one OpenMP policy, no settings that only one sees."""
        values = {
            name: value
            for name, value in os.environ.items()
            if name not in {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
            and (name == "COBALI_CACHE" or not name.startswith(("COBALI_", "LLAMA_ARG_")))
        }
        values["GGML_NO_BACKTRACE"] = "1"
        return values | ENVIRONMENT[self.threads_wait] | _added_gpus()


def _added_gpus() -> dict[str, str]:
    """Return what has llama-server use the GPUs of a part that was added to llama.cpp; ours finds it."""
    part = cuda_part(installed_libraries().parent)
    gpus = [device.name for device in local_devices() if holds_layers(device)] if part.exists() else []
    return {"GGML_BACKEND_PATH": str(part), "LLAMA_ARG_DEVICE": ",".join(gpus)} if gpus else {}


def server_command(binary: Path, settings: PeerSettings, port: int, *, further: str = "") -> list[str]:
    """Return llama-server's command line with settings that match ours, and `further` arguments.

    Its prompt cache in host memory is off where nothing comes back, as it would only cost time; its prefix
    reuse within slots stays on.
    """
    n = str(settings.n_threads)
    host = [] if settings.comes_back else ["--cache-ram", "0"]
    return [
        str(binary), "-m", str(settings.model), "-a", settings.model.stem,
        "--host", "127.0.0.1", "--port", str(port),
        "-np", str(settings.n_slots), "-cb", "-c", str(settings.n_slots * settings.n_ctx),
        "-t", n, "-tb", n, *host, "--threads-http", str(HTTP_THREADS),
        *shlex.split(further),
    ]  # fmt: skip


def installed_libraries() -> Path:
    """Return the folder of libllama and libggml that llama_cpp loads; LLAMA_CPP_LIB_PATH wins, as there."""
    own = os.environ.get("LLAMA_CPP_LIB_PATH")
    spec = find_spec("llama_cpp")
    if own:
        return Path(own)
    if spec is None or spec.origin is None:
        raise ConfigError("peers", "llama_cpp is not installed")
    return Path(spec.origin).parent / "lib"


def build_key(libraries: Path, package_version: str) -> str:
    """Name a build by the package's version and the content of the libraries."""
    digest = hashlib.sha256()
    for file in sorted({path.resolve() for path in libraries.glob("lib*") if path.is_file()}):
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return f"{package_version}-{digest.hexdigest()[:12]}"


def llama_server_binary(progress: Progress, *, cache_dir: Path | None = None) -> Path:
    """Return llama-server for the installed libraries, built first if need be: minutes, once.

    Raises:
        ConfigError: if the sources cannot be fetched or do not compile; the log stays beside the binaries.
    """
    libraries, package_version = installed_libraries(), version(PACKAGE)
    folder = (cache_dir or default_cache_dir().parent) / "llama-server"
    binary = folder / f"llama-server-{build_key(libraries, package_version)}"
    if binary.exists():
        return binary
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.which("cmake") is None:
        raise ConfigError("peers", "building llama-server needs cmake and a C++ compiler")
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as scratch:
        tree = fetch_tree(package_version, Path(scratch), progress)
        built = _compile(tree, libraries, package_version, Path(scratch), progress)
        part = binary.with_suffix(f".{os.getpid()}.part")
        shutil.copy2(built, part)
        part.replace(binary)
    return binary


def fetch_tree(package_version: str, folder: Path, progress: Progress) -> Path:
    """Download the source package with pip and unpack llama.cpp's tree; return where it lies."""
    progress("downloading sources", 0.0)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--no-binary", PACKAGE, "--dest", str(folder), f"{PACKAGE}=={package_version}"]  # fmt: skip
    _run(command, folder.parent / "download.log", lambda _: None, "the sources could not be downloaded")
    archive = next(folder.glob("llama_cpp_python-*.tar.gz"))
    with tarfile.open(archive) as package:
        members = [m for m in package.getmembers() if f"/{_TREE}" in m.name]
        package.extractall(folder, members=members, filter="data")
    archive.unlink()
    progress("downloading sources", 1.0)
    return next(folder.glob(f"*/{_TREE}"))


def _compile(tree: Path, libraries: Path, label: str, folder: Path, progress: Progress) -> Path:
    project, build = folder / "project", folder / "build"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(CMAKE_LISTS, encoding="utf-8")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    values = {"TREE": tree, "LIBRARIES": libraries, "LABEL": label}
    configure = [
        "cmake",
        "-S",
        str(project),
        "-B",
        str(build),
        *generator,
        *(f"-D{k}={v}" for k, v in values.items()),
    ]
    log = folder.parent / "build.log"
    _run(configure, log, lambda _: None, "llama-server could not be configured")
    n_jobs = str(len(os.sched_getaffinity(0)))
    what = "compiling llama-server (minutes, once)"
    compile_it = ["cmake", "--build", str(build), "--target", "llama-server", "--parallel", n_jobs]

    def on_line(line: str) -> None:
        if (share := build_share(line)) is not None:
            progress(what, share)

    _run(compile_it, log, on_line, "llama-server did not compile")
    progress(what, 1.0)
    return next(path for path in build.rglob("llama-server*") if path.is_file() and os.access(path, os.X_OK))


def build_share(line: str) -> float | None:
    """Read how much is done from a line of ninja (`[3/12]`) or make (`[ 25%]`)."""
    step = _STEP.match(line)
    if step is None:
        return None
    return int(step[1]) / int(step[2] or 100)


def _run(command: Sequence[str], log: Path, on_line: Callable[[str], None], failure: str) -> None:
    lines: list[str] = []
    with subprocess.Popen(  # noqa: S603 - our own command
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            for line in process.stdout or ():
                lines.append(line)
                on_line(line)
        except BaseException:  # Ctrl-C: the compiler must not go on
            process.terminate()
            raise
    log.write_text("".join(lines), encoding="utf-8")
    if process.returncode:
        raise ConfigError("peers", f"{failure}; {log} says why")
