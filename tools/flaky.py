"""Run each file of tests/ray and tests/page many times beside busy processes, and say what failed how often.

A test that passes alone may lose a race where others compute. With the defaults this takes hours.

Usage: python -m tools.flaky [FILE ...] [--times 20] [--busy 2] [--nice]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
BUSY = "while True: pass"
LAST_LINES = 60
"""Of what pytest wrote when a run failed."""


def main(words: Sequence[str] | None = None) -> int:
    """Run what was asked for; return 1 if anything failed."""
    options = arguments().parse_args(words)
    files = options.files or sorted([*ROOT.glob("tests/ray/test_*.py"), *ROOT.glob("tests/page/test_*.py")])
    failed: Counter[str] = Counter()
    with busy(options.busy, nice=options.nice):
        for file in files:
            failed += run_often(file, options.times)
    for name, n in failed.most_common():
        print(f"{n:3} of {options.times} {name}")
    print(f"{len(failed)} tests failed at least once; {len(files)} files, {options.times} times each")
    return min(1, len(failed))


def arguments() -> argparse.ArgumentParser:
    """Return what the command line may say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="*", type=Path, help="all of tests/ray and tests/page unless given")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--busy", type=int, default=2, help="processes that compute meanwhile")
    parser.add_argument(
        "--nice", action="store_true", help="let them give way, as on a machine that is shared"
    )
    return parser


@contextmanager
def busy(n: int, *, nice: bool) -> Iterator[None]:
    """Keep this many processes computing."""
    command = [*(("nice", "-n", "19") if nice else ()), sys.executable, "-c", BUSY]
    processes = [subprocess.Popen(command) for _ in range(n)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_often(file: Path, times: int) -> Counter[str]:
    """Run a file again and again; return how often each of its tests failed."""
    failed: Counter[str] = Counter()
    started, n_skipped = time.monotonic(), 0
    for _ in range(times):
        names, n_skipped = run_once(file)
        failed.update(names)
    each_s = (time.monotonic() - started) / max(times, 1)
    print(f"{file}: {failed.total()} failures, {n_skipped} skipped, {each_s:.0f} s each", flush=True)
    return failed


def run_once(file: Path) -> tuple[list[str], int]:
    """Return which tests of a file failed, and how many were skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--show-capture=no"]
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", f"--junitxml={report}", str(file)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        names, n_skipped = outcomes(report.read_text(encoding="utf-8")) if report.exists() else ([], 0)
    if done.returncode and not names:
        names = [f"{file}: pytest ended with {done.returncode}"]
    if names:
        print("\n".join(done.stdout.splitlines()[-LAST_LINES:]), flush=True)
    return names, n_skipped


def outcomes(report: str) -> tuple[list[str], int]:
    """Read which tests failed out of a report in JUnit's format, and how many were skipped."""
    cases = list(ET.fromstring(report).iter("testcase"))  # noqa: S314 - pytest wrote it just now
    bad = {f"{c.get('classname')}::{c.get('name')}": None for c in cases if {"failure", "error"} & tags(c)}
    return list(bad), sum("skipped" in tags(case) for case in cases)


def tags(case: ET.Element) -> set[str]:
    """Return what is said of a test."""
    return {child.tag for child in case}


if __name__ == "__main__":
    sys.exit(main())
