"""Compile llama.cpp's part for NVIDIA GPUs and lay it beside the installed llama.cpp: `make cuda-build`.

Compiler, headers and libraries of CUDA are packages of PyPI, so neither a GPU nor a driver nor CUDA has to be
installed. What comes of it is a library of its own, which cobali_ray loads when it is there: the rest of
llama.cpp stays as it was compiled, and goes on with the CPU where the driver is missing.

Interrupted, it goes on where it was.

Usage: VENV=.venv-cuda .venv-cuda/bin/python tools/cuda_build.py [--arch 89] [--jobs N]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from cobali_ray.backend.library import cuda_part
from tools import install

TOOLKIT = "cuda-toolkit[nvcc,cudart,cublas,cccl]==13.0.3"
"""The first CUDA whose packages are complete; it runs with drivers from 580 on."""
TOOLS = ("cmake==4.4.5", "ninja==1.13.2")
PACKAGES = Path(sysconfig.get_path("purelib"))
CUDA = PACKAGES / "nvidia" / "cu13"
ADDED = cuda_part(PACKAGES / "llama_cpp")
LINKED = ("cudart", "cublas", "cublasLt")
LINKER_FLAGS = "-Wl,--no-as-needed"
"""The driver that is linked to here has no symbols, and many linkers drop what nobody uses."""
RPATH = "$ORIGIN/../../../nvidia/cu13/lib:$ORIGIN/.."
OPTIONS = (
    *("-DGGML_CUDA=ON", "-DGGML_BACKEND_DL=ON", "-DBUILD_SHARED_LIBS=ON", "-DGGML_CPU=OFF"),
    *("-DGGML_NATIVE=OFF", "-DGGML_CUDA_NCCL=OFF", "-DCMAKE_BUILD_TYPE=Release"),
    *(f"-DLLAMA_BUILD_{part}=OFF" for part in ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER", "APP")),
    *(f"-DCMAKE_INSTALL_RPATH={RPATH}", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON"),
    f"-DCMAKE_MODULE_LINKER_FLAGS={LINKER_FLAGS}",
)
TRIAL = """
from cobali_ray.backend.devices import has_gpu
print("llama.cpp finds a GPU here." if has_gpu() else "llama.cpp finds no GPU here: it computes on the CPU.")
"""


def main() -> int:
    """Build it, and say what llama.cpp finds with it; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arch", default="89", help="compute capability of the GPU, without the dot")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="compilers at a time")
    options = parser.parse_args()
    print("Installing the CUDA compiler, about 1 GB ...", flush=True)
    uv = [str(install.VENV / "bin" / "uv"), "pip", "install", "--quiet", "--python", sys.executable]
    install.run([*uv, TOOLKIT, *TOOLS])
    complete(CUDA)
    module = compiled(options.arch, options.jobs)
    ADDED.parent.mkdir(exist_ok=True)
    part = ADDED.with_suffix(".part")
    shutil.copy2(module, part)
    part.replace(ADDED)
    print(f"Laid beside llama.cpp: {ADDED.relative_to(install.ROOT)}", flush=True)
    return subprocess.run([sys.executable, "-c", TRIAL], check=False, cwd=install.ROOT).returncode


def complete(cuda: Path) -> None:
    """Add what the packages leave out and linking needs: names without versions, and a driver to link to."""
    library = cuda / "lib"
    if not (cuda / "lib64").exists():
        (cuda / "lib64").symlink_to("lib")
    for name in LINKED:
        if not (link := library / f"lib{name}.so").exists():
            link.symlink_to(next(library.glob(f"lib{name}.so.*")).name)
    stubs = library / "stubs"
    stubs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        nothing = Path(scratch) / "nothing.c"
        nothing.touch()
        compiler = os.environ.get("CC", "cc")
        # Only its name counts: whoever loads what is linked to it needs the driver's library of this name.
        stub = [compiler, "-shared", "-o", str(stubs / "libcuda.so"), "-Wl,-soname,libcuda.so.1"]
        install.run([*stub, str(nothing)])


def compiled(arch: str, n_jobs: int) -> Path:
    """Return the library, compiled as far as it was not yet."""
    work = install.BUILDS / f"{install.LLAMA}-cuda-{arch}"
    source, objects = install.source_in(work), work / "objects"
    tools = {"PATH": f"{install.VENV / 'bin'}:{os.environ['PATH']}"}
    # Fresh: what was interrupted in a checkout or environment that has moved since named their tools.
    configure = ["cmake", "--fresh", "-S", str(source / "vendor/llama.cpp"), "-B", str(objects)]
    configure += ["-G", "Ninja", *OPTIONS]
    configure += [f"-DCMAKE_CUDA_COMPILER={CUDA / 'bin/nvcc'}", f"-DCMAKE_CUDA_ARCHITECTURES={arch}-real"]
    environ = {name: value for name, value in os.environ.items() if name != "CMAKE_ARGS"} | tools
    print(
        f"Compiling for {arch}: an hour of a core or more. Ctrl-C stops it, the next run resumes.",
        flush=True,
    )
    install.build([*install.LOW, *configure], environ)
    make = ["cmake", "--build", str(objects), "--target", "ggml-cuda", "--parallel", str(n_jobs)]
    install.build([*install.LOW, *make], environ)
    return objects / "bin" / ADDED.name


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. The next make goes on from here.")
