"""Run each file of tests/ray and tests/page many times beside busy processes, and say what failed how often.

A test that passes alone may lose a race where others compute. With the defaults this takes hours.

Usage: python -m tools.flaky [FILE ...] [--times 20] [--busy 2] [--nice]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUSY = "while True: pass"
LAST_LINES = 60
"""Of what pytest wrote when a run failed."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
SKIPPED = re.compile(r"^(?:\d+ \w+, )*(\d+) skipped", re.MULTILINE)
"""What pytest's summary says of a test, and of all."""


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
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--show-capture=no", "-p", "no:cacheprovider"]
    command.append("--color=no")
    done = subprocess.run([*command, str(file)], cwd=ROOT, capture_output=True, text=True, check=False)
    names = list(dict.fromkeys(FAILED.findall(done.stdout)))
    if done.returncode and not names:
        names = [f"{file}: pytest ended with {done.returncode}"]
    if names:
        print("\n".join(done.stdout.splitlines()[-LAST_LINES:]), flush=True)
    return names, sum(map(int, SKIPPED.findall(done.stdout)))


if __name__ == "__main__":
    sys.exit(main())
