"""Kill, stop and leave: `python -m tests.chaos` starts a server of its own on the scripted model.

It fails if an answer fails or differs from one that nothing befell, if a pause is longer than a restart and a
second, if an engine that stands still is not replaced, or if anything is held for clients that have left.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from cobali_ray.bench.servers.process import ServerProcess, cobali_server, ended_in_order
from cobali_ray.bench.servers.processes import descendants, name_of
from cobali_ray.bench.servers.restart import engine_pid
from tests.chaos.crowd import Report, endure, ghosts, kill, leave, n_files, stop

STALL_TIMEOUT_S = 5.0
SPARE_S = 1.0
SPARE_FILES = 8


def verdict(name: str, report: Report, most_s: float) -> list[str]:
    """Print a report; return what is wrong, in words."""
    print(f"{name}: " + "\n  ".join(report.lines()), flush=True)
    wrong = [f"{name}: {text}" for text in report.wrong]
    longest_s = max(report.pauses_s, default=0.0)
    return wrong + ([f"{name}: a pause of {longest_s:.2f} s"] if longest_s > most_s + SPARE_S else [])


async def run(server: ServerProcess, options: argparse.Namespace) -> list[str]:
    """Do all of it; return what is wrong, in words."""

    async def pid() -> int:
        found = None
        while found is None:
            found = await asyncio.to_thread(engine_pid, server.pid)
        return found

    url, n = server.url, options.streams
    killed = await endure(
        url,
        pid,
        kill,
        n_streams=n,
        n_tokens=400,
        every_s=options.every,
        n_faults=int(options.seconds / options.every),
    )
    wrong = verdict("killed", killed, max(killed.restarts_s))
    stopped = await endure(url, pid, stop, n_streams=n, n_tokens=400, every_s=15.0, n_faults=2)
    wrong += verdict("stopped", stopped, max(stopped.restarts_s))
    ours = [p for p in descendants(server.pid) if name_of(p).startswith("ray::ServeReplica")]
    await leave(url, n_clients=100, at_once=32, seed=0)
    before = n_files(ours)
    await leave(url, n_clients=options.leavers, at_once=32, seed=1)
    held, after = await ghosts(url), n_files(ours)
    print(f"{options.leavers} clients left; held for nobody: {held}; open files {before}, then {after}")
    grown = [b - a for a, b in zip(before, after, strict=True) if b > a + SPARE_FILES]
    return wrong + held + [f"{n} more open files" for n in grown]


def main() -> None:
    """Run and exit with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="of killing")
    parser.add_argument("--every", type=float, default=15.0, help="seconds from one kill to the next")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--leavers", type=int, default=3000)
    options = parser.parse_args()
    values = {
        "model": "builtin:scripted", "scripted_tick_s": 0.02, "n_slots": options.streams, "n_ctx": 4096,
        "stall_timeout_s": STALL_TIMEOUT_S, "log_level": "warning",
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        ended_in_order(),
        cobali_server(values, Path(folder), os.environ) as server,
    ):
        wrong = asyncio.run(run(server, options))
    print("\n".join(wrong) or "Nothing wrong.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
