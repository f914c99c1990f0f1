"""A process that judges grammars within bounds: `python -m cobali_ray.backend.judge`, cases in, verdicts out.

A few characters can keep llguidance busy for minutes and fill gigabytes, and nothing in Python stops it. Here
it ends itself: the timer counts processor time, so that a busy machine refuses nothing, and memory that
is not there ends a program in Rust. A line of JSON is a case, and so is its verdict.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from io import RawIOBase
from pathlib import Path

from cobali_ray.backend.grammar import STACK_BYTES, ConstraintText, deeply, judge

CPU_S = 2.0
"""Processor time for one case. Of 303 schemas of real projects and made ones, the slowest takes 10 ms."""
HEAP_BYTES = 1 << 30
"""Memory beyond what the process begins with."""
READY = b"ready\n"
NICENESS = 5


def main() -> None:
    """Judge until there is nothing more to read."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's, which is for the server
    os.nice(NICENESS)
    says = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    _bound_memory()
    try:
        deeply(lambda: _judge_all(says))
    except MemoryError:
        os.abort()  # as Rust does


def _judge_all(says: RawIOBase) -> None:
    judge(ConstraintText("json_schema", "{}"))
    says.write(READY)
    for line in sys.stdin.buffer:
        case = ConstraintText(*json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, CPU_S)  # whose signal ends the process
        verdict = judge(case)
        signal.setitimer(signal.ITIMER_PROF, 0)
        says.write(json.dumps(verdict).encode() + b"\n")


def _bound_memory() -> None:
    pages = Path("/proc/self/statm")
    if pages.exists():
        begun = int(pages.read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most = begun + STACK_BYTES + HEAP_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
