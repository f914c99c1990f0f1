"""Kill, stop and leave: `python -m tests.chaos` starts servers of its own, on the scripted model and on tiny.

It fails if an answer fails or differs from one that nothing befell, if a call of a tool is not whole and
valid, if a pause is longer than a restart and a second, if an engine that stands still is not replaced, if
anything is held for clients that have left, or if another part dies and a stream is neither whole nor cut.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from cobali_ray.signals import ended_in_order
from cobali_workloads.servers.process import ServerProcess, cobali_server
from cobali_workloads.servers.processes import ENGINE, REPLICA, pids_of
from tests.chaos.callers import endure_calls
from tests.chaos.crowd import Pid, Report, endure, ghosts, kill, leave, n_files, stop
from tests.chaos.deaths import PARTS, kill_one, witness
from tests.chaos.devices import endure_losses

STALL_TIMEOUT_S = 5.0
SCRIPTED = {
    "model": "builtin:scripted:0.02", "n_ctx": 4096, "stall_timeout_s": STALL_TIMEOUT_S,
    "log_level": "warning",
}  # fmt: skip
WORKER = "cobali_ray.backend.worker"
"""The name of a process that lends an engine a device."""
EVERY_S = 6.0
"""From one kill to the next, under calls."""
N_LOSERS, LOSS_S = 16, 20.0
"""Streams under which devices are lost, and how often."""
ANEW_S = 5.0
"""How long they may take to be computed anew, all of them at once, on devices of a thread or two."""
SPARE_S = 1.0
SPARE_FILES = 8


def verdict(name: str, report: Report, most_s: float) -> list[str]:
    """Print a report; return what is wrong, in words."""
    print(f"{name}: " + "\n  ".join(report.lines()), flush=True)
    wrong = [f"{name}: {text}" for text in report.wrong]
    longest_s = max(report.pauses_s, default=0.0)
    return wrong + ([f"{name}: a pause of {longest_s:.2f} s"] if longest_s > most_s + SPARE_S else [])


def _pid_of(server: ServerProcess, name: str) -> Pid:
    async def pid() -> int:
        while not (found := await asyncio.to_thread(pids_of, server.pid, name)):
            pass
        return found[-1]

    return pid


async def run(server: ServerProcess, options: argparse.Namespace) -> list[str]:
    """Do all of it; return what is wrong, in words."""

    url, n, pid = server.url, options.streams, _pid_of(server, ENGINE)
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
    ours = pids_of(server.pid, REPLICA)
    await leave(url, n_clients=100, at_once=32, seed=0)
    before = n_files(ours)
    await leave(url, n_clients=options.leavers, at_once=32, seed=1)
    held, after = await ghosts(url), n_files(ours)
    print(f"{options.leavers} clients left; held for nobody: {held}; open files {before}, then {after}")
    grown = [b - a for a, b in zip(before, after, strict=True) if b > a + SPARE_FILES]
    return wrong + held + [f"{n} more open files" for n in grown]


async def run_calls(name: str, server: ServerProcess, pid: Pid, options: argparse.Namespace) -> list[str]:
    """Have tools called while a process is killed; return what is wrong, in words."""
    report = await endure_calls(
        server.url, pid, n_callers=options.streams, every_s=EVERY_S, n_faults=options.call_kills
    )
    return verdict(name, report, max(report.restarts_s))


async def run_losses(server: ServerProcess, options: argparse.Namespace) -> list[str]:
    """Have a device lost under streams again and again; return what is wrong, in words."""
    report = await endure_losses(
        server.url, _pid_of(server, WORKER), n_streams=N_LOSERS, every_s=LOSS_S, n_faults=options.losses
    )
    return verdict("a device lost under streams", report, max(report.restarts_s) + ANEW_S)


def die(folder: Path, options: argparse.Namespace) -> list[str]:
    """Have each part of a server that is no engine die; return what is wrong, in words."""
    values = SCRIPTED | {"n_slots": 2 * options.streams, "n_ingress": 2}
    wrong = []
    with cobali_server(values, folder, os.environ) as server:
        for part in PARTS:
            kill_part = partial(kill_one, server.pid, part)
            fate = asyncio.run(witness(server.url, kill_part, n_streams=options.streams, n_tokens=200))
            print(f"died: {part}: {fate}", flush=True)
            wrong += [f"{part}: {text}" for text in fate.wrong]
            longest_s = max(fate.cut_s, fate.pause_s)
            wrong += [f"{part}: {longest_s:.2f} s of silence"] if longest_s > STALL_TIMEOUT_S else []
    return wrong


def main() -> None:
    """Run and exit with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="of killing")
    parser.add_argument("--every", type=float, default=15.0, help="seconds from one kill to the next")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--leavers", type=int, default=3000)
    parser.add_argument(
        "--call-kills", type=int, default=5, help="of an engine, and of a device, under calls"
    )
    parser.add_argument("--losses", type=int, default=4, help="of a device, under streams")
    options = parser.parse_args()
    tiny = {"model": "builtin:tiny", "n_slots": options.streams, "n_ctx": 1024, "log_level": "warning"}
    with tempfile.TemporaryDirectory() as folder, ended_in_order():
        with cobali_server(SCRIPTED | {"n_slots": options.streams}, Path(folder), os.environ) as server:
            wrong = asyncio.run(run(server, options))
        with cobali_server(tiny, Path(folder), os.environ) as server:
            wrong += asyncio.run(run_calls("killed under calls", server, _pid_of(server, ENGINE), options))
        with cobali_server(tiny | {"devices": ["worker"] * 2}, Path(folder), os.environ) as server:
            wrong += asyncio.run(
                run_calls("a device lost under calls", server, _pid_of(server, WORKER), options)
            )
            wrong += asyncio.run(run_losses(server, options))
        wrong += die(Path(folder), options)
    print("\n".join(wrong) or "Nothing wrong.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
