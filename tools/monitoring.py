"""Fetch what only the tests of dashboards/ need: Prometheus, promtool, Alertmanager, Grafana's schema.

Nothing is installed on the system and no service starts: Debian's packages are downloaded and unpacked
into .monitoring, and npm installs into tests/monitoring/schema/node_modules. What is on PATH already is left
alone. Needs apt-get with fresh lists (`apt-get update`), and Node.js with npm for the schema.

Usage: python3 tools/monitoring.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".monitoring"
SCHEMA = ROOT / "tests" / "monitoring" / "schema"
PACKAGES = {
    "prometheus": ("prometheus", "promtool"),
    "prometheus-alertmanager": ("prometheus-alertmanager", "amtool"),
}
"""Debian's package -> the programs wanted of it."""
UPSTREAM = {"prometheus-alertmanager": "alertmanager"}
"""What Debian calls otherwise than everybody else."""
WRAPPED = "prometheus-alertmanager"
WRAPPER = """#!/bin/sh
# Debian's program reads its templates from /usr/share: here that is the unpacked one, for it alone.
exec unshare --map-root-user --mount sh -c 'mount --bind "$0/usr/share" /usr/share && exec "$@"' \\
  '{folder}' '{folder}/usr/bin/{program}' "$@"
"""


def find(program: str) -> str | None:
    """Return the path of a program on PATH or unpacked here."""
    for name in (program, UPSTREAM.get(program, program)):
        for path in (None, str(FOLDER), str(FOLDER / "usr" / "bin")):
            if executable := shutil.which(name, path=path):
                return executable
    return None


def main() -> int:
    """Fetch what is missing; return the exit code."""
    missing = [package for package, programs in PACKAGES.items() if not all(map(find, programs))]
    troubles = [trouble for trouble in (fetch(missing), schema()) if trouble]
    for programs in PACKAGES.values():
        for program in programs:
            print(f"{program}: {find(program) or 'missing'}")
    for trouble in troubles:
        print(trouble)
    return 1 if troubles else 0


def fetch(packages: list[str]) -> str:
    """Download and unpack Debian packages. Returns what went wrong, or an empty text."""
    if not packages:
        return ""
    names = " ".join(packages)
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return f"No apt-get here: put the programs of {names} on PATH by hand."
    FOLDER.mkdir(exist_ok=True)
    if subprocess.run(["apt-get", "download", *packages], cwd=FOLDER, check=False).returncode:
        return f"apt-get could not download {names}; run `apt-get update` as root, then this again."
    for archive in FOLDER.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", archive, FOLDER], check=True)
        archive.unlink()
    if WRAPPED in packages:
        wrapper = FOLDER / WRAPPED
        wrapper.write_text(WRAPPER.format(folder=FOLDER, program=WRAPPED), encoding="utf-8")
        wrapper.chmod(0o755)
    return ""


def schema() -> str:
    """Install Grafana's schema and TypeScript. Returns what went wrong, or an empty text."""
    if (SCHEMA / "node_modules" / "typescript").is_dir():
        return ""
    npm = shutil.which("npm")
    if npm is None:
        return "No npm here: install Node.js 18 or newer to check the boards against Grafana's schema."
    command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    if subprocess.run(command, cwd=SCHEMA, check=False).returncode:
        return f"npm could not install what {SCHEMA.relative_to(ROOT)}/package-lock.json lists."
    return ""


if __name__ == "__main__":
    sys.exit(main())
