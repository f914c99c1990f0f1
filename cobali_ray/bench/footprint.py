"""Memory and idle CPU of a running `cobali serve`: `python -m cobali_ray.bench.footprint PID`.

Reads /proc only. RSS counts shared pages in every process, PSS divides them; the engine's share is shown
apart, because the model is in it.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def descendants(root: int) -> list[int]:
    """Return a process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += parents.get(pid, [])
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; empty if the process is gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def name_of(pid: int) -> str:
    """Return a short name of a process."""
    words = (
        (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").split()
    )
    if not words:
        return "?"
    if words[0].startswith("ray::"):
        return words[0]
    scripts = [w for w in words[:3] if not w.startswith("-") and "python" not in Path(w).name]
    return Path(scripts[0] if scripts else words[0]).name


def memory_mb(pid: int) -> tuple[float, float]:
    """Return RSS and PSS in megabytes."""
    text = (_PROC / str(pid) / "smaps_rollup").read_text()
    found = dict(re.findall(r"^(Rss|Pss):\s+(\d+) kB", text, re.MULTILINE))
    return int(found["Rss"]) / 1000, int(found["Pss"]) / 1000


def cpu_s(pid: int) -> float:
    """Return CPU seconds used so far."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if fields else 0.0


def main() -> None:
    """Print a row per process and the sums."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pid", type=int, help="process id of cobali serve")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to watch the CPU")
    args = parser.parse_args()
    pids = descendants(args.pid)
    before = {pid: cpu_s(pid) for pid in pids}
    time.sleep(args.seconds)
    table = Table(title=f"Everything below process {args.pid}, CPU over {args.seconds:.0f} s")
    for column in ("process", "RSS MB", "PSS MB", "CPU %"):
        table.add_column(column, justify="left" if column == "process" else "right")
    sums = [0.0, 0.0, 0.0]
    for pid in pids:
        try:
            row = (*memory_mb(pid), 100 * (cpu_s(pid) - before[pid]) / args.seconds)
        except (OSError, KeyError):
            continue
        sums = [total + value for total, value in zip(sums, row, strict=True)]
        table.add_row(name_of(pid), *(f"{value:.1f}" for value in row))
    table.add_section()
    table.add_row("all", *(f"{value:.1f}" for value in sums))
    Console().print(table)


if __name__ == "__main__":
    main()
