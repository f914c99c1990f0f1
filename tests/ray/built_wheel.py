"""The package's wheel in an environment of its own."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.install import llama_wheel

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
SOURCES = ("pyproject.toml", "README.md", "LICENSE")


def uv(*words):
    """Run uv on what it has in its cache, or else with the index; `make install-dev` has filled the cache."""
    if subprocess.run([UV, *words, "--quiet", "--offline"], capture_output=True, check=False).returncode:
        subprocess.run([UV, *words, "--quiet"], check=True)


@contextlib.contextmanager
def wheel_installed():
    """Return the folder of the programs of an environment that has it, by way of the source package."""
    with tempfile.TemporaryDirectory(prefix="cobali-test-") as name:
        folder = Path(name)
        source = folder / "source"  # a copy: a build leaves files behind, and finds those of earlier ones
        shutil.copytree(ROOT / "cobali_ray", source / "cobali_ray", ignore=shutil.ignore_patterns("*.pyc"))
        for file in SOURCES:
            shutil.copy(ROOT / file, source)
        uv("build", "--out-dir", folder / "dist", source)
        (wheel,) = (folder / "dist").glob("*.whl")
        shutil.rmtree(source)
        uv("venv", "--python", sys.executable, folder / "venv")
        programs = folder / "venv" / "bin"
        pins = ("--constraint", ROOT / "constraints.txt")
        uv("pip", "install", "--python", programs / "python", *pins, wheel, llama_wheel())
        yield programs
