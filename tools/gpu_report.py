"""Run on devices all that a GPU would take, and write docs/gpu-report.md: `make gpu-report`.

The suite in tests/gpu, then the laboratory's benchmarks of what only a GPU shows. With `--device worker` a
process of this machine is the device, so that all but the card is tried; the report says what it ran on.

Usage: python -m tools.gpu_report [--device CUDA0] [--model MODEL] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from cobali_ray import __version__
from cobali_ray.backend.devices import local_devices
from cobali_ray.backend.endpoint import WORKER

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gpu-report.md"
FULL_MODEL, QUICK_MODEL = "builtin:synthetic-qwen2.5-0.5b:Q5_K_M", "builtin:synthetic-tiny"
NO_CARD = (
    "**This is not a GPU.** The device is a process of the same machine that lends its CPU, so that nothing "
    "but the card and its kernels is missing from the run; none of the times means anything, and the ratios "
    "say only that everything was measured."
)


class Section(NamedTuple):
    """A benchmark of the laboratory, and which of its tables belong here."""

    title: str
    text: str
    words: tuple[str, ...]
    tables: tuple[str, ...]
    """How their titles begin."""
    placed_by_words: bool = False
    """Whether the words say on which device; elsewhere the environment does."""


def sections(device: str, model: str, *, quick: bool) -> list[Section]:
    """Return what is measured, in the order of the page."""
    short = ("--quick",) if quick else ()
    preset = "overhead-burst" if quick else "burst-0.5b"
    alike = ("-fa on --no-kv-unified",)
    return [
        Section(
            "Continuous batching: Table 2",
            "CoBaLI's figure is 6.24 for the best chunk, on an RTX 4070.",
            ("modes", "--model", model, *short),
            ("Table 2", "Per request"),
        ),
        Section(
            "The selection kernel",
            "Who decodes next, chosen on the host and by the kernels of `select.cu`.",
            ("select", *short),
            ("Cost of one selection",),
        ),
        Section(
            "Busy share and gaps between passes",
            "How long the device waits for the host between one pass and the next. Asynchronous batching in "
            "transformers has 76.0 % without and 99.4 % with the host's work beside the device.",
            ("overlap", "--tick-ms", "5", "--model", model, "--device", device, *short),
            ("Host work inline",),
            placed_by_words=True,
        ),
        Section(
            "Sampling on the device",
            "A decode tick, with all rows copied to the host, and with the 128 likeliest tokens of each.",
            ("micro", "--model", model, *short),
            ("A decode tick with its sampling",),
        ),
        Section(
            "Beside llama-server",
            "Both servers in turn, with the same slots, context and load."
            + (" llama-server computes on the CPU itself." if device == WORKER else ""),
            ("peers", "--preset", preset, "--only", *alike, "--set", f"devices={device}", *short),
            ("cobali /", "Throughput"),
            placed_by_words=True,
        ),
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Run everything and write the page; return 1 if a test or a benchmark failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="CUDA0", help="as `cobali devices` names it, or worker")
    parser.add_argument("--model", help="a GGUF file or a built-in model")
    parser.add_argument("--quick", action="store_true", help="just enough to show that it works")
    options = parser.parse_args(words)
    if options.device != WORKER and options.device not in (
        here := [device.name for device in local_devices()]
    ):
        print(f"There is no {options.device} here; llama.cpp finds {', '.join(here)}. See docs/devices.md.")
        return 2
    model = options.model or (QUICK_MODEL if options.quick else FULL_MODEL)
    thorough = () if options.quick else ("-m", "gpu")
    suite = [sys.executable, "-m", "pytest", "-q", "tests/gpu", "--device", options.device, *thorough]
    done = subprocess.run(suite, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    parts = [
        *head(options.device, options.quick),
        "## The suite",
        "",
        f"`{' '.join(['pytest', *suite[3:]])}`",
        "",
    ]
    parts += [done.stdout.strip().splitlines()[-1].strip("= "), ""]
    codes = [done.returncode]
    for section in sections(options.device, model, quick=options.quick):
        code, lines = measured(section, options.device)
        codes.append(code)
        parts += lines
    PAGE.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    print(PAGE.relative_to(ROOT), flush=True)
    return min(1, sum(map(abs, codes)))


def head(device: str, quick: bool) -> Iterator[str]:
    """Say what the report is about, and what it ran on."""
    yield from ("# On a device", "")
    arguments = (
        f' ARGS="--device {device}{" --quick" if quick else ""}"' if quick or device != "CUDA0" else ""
    )
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    yield f"Written by `make gpu-report{arguments}` on {today}, cobali-ray {__version__}, {card(device)}."
    if device == WORKER:
        yield from ("", NO_CARD)
    yield ""


def card(device: str) -> str:
    """Name the device, and its driver where there is one."""
    if device == WORKER:
        return "on workers of the same machine"
    if shutil.which("nvidia-smi") is None:
        return f"on {device}"
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    cards = subprocess.run(query, check=False, capture_output=True, text=True).stdout.strip()
    return f"on {device} of: {cards.replace(chr(10), '; ')}"


def measured(section: Section, device: str) -> tuple[int, list[str]]:
    """Run one benchmark; return its exit code and the lines of the page."""
    lines = [f"## {section.title}", "", section.text, ""]
    environ = os.environ | ({} if section.placed_by_words else {"COBALI_DEVICES": device})
    with tempfile.TemporaryDirectory(prefix="cobali-gpu-") as out:
        command = [sys.executable, "-m", "cobali_ray", "bench", *section.words, "--out", out]
        done = subprocess.run(command, cwd=ROOT, env=environ, check=False)
        reports = [json.loads(file.read_text()) for file in sorted(Path(out).glob("*.json"))]
    if not reports:
        return done.returncode or 1, [*lines, f"It failed with exit code {done.returncode}.", ""]
    for report in reports:
        where = "" if section.placed_by_words else f"COBALI_DEVICES={device} "
        lines += [f"`{where}{report['command'].partition(' --out ')[0]}`", ""]
        for table in report["tables"]:
            if table["title"].startswith(section.tables):
                lines += rows_of(table)
        lines += [f"- {note}" for note in report["notes"]] + [""]
    return done.returncode, lines


def rows_of(table: dict[str, Any]) -> list[str]:
    """Return a table of a report as Markdown."""
    lines = [f"**{table['title']}**", ""]
    lines += [f"| {' | '.join(table['columns'])} |", "|---" * len(table["columns"]) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in table["rows"]]
    return [*lines, "", *([table["note"], ""] if table["note"] else [])]


if __name__ == "__main__":
    sys.exit(main())
