"""What the in-process benchmarks share: opening a model, requests, one run, handing over the report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from cobali_ray.backend.port import Backend
from cobali_ray.bench.report import Report
from cobali_ray.bench.rounds import Figures
from cobali_ray.bench.workload import read_prompts
from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.request import Request, SamplingParams
from cobali_ray.core.stats import TickStats
from cobali_ray.engine.offline import RunReport, run_offline
from cobali_ray.engine.opening import MonotonicClock, model_path, open_backend
from cobali_ray.errors import ConfigError
from cobali_ray.models.commands import progress_bars
from cobali_ray.settings import EngineSettings, read_settings

OUT = Path("bench-results")
LOG_WIDTH = 160
DEFAULT_MODEL: str = EngineSettings.model_fields["model"].default


@contextmanager
def opened(model: str, **settings: Any) -> Iterator[tuple[Backend, EngineLimits]]:
    """Open a model for as long as the `with` lasts; prefixes are never reused, so that every run computes."""
    read = read_settings({"model": model, "min_prefix": 0, **settings})
    with progress_bars() as progress:
        path = model_path(read, progress)
    backend, limits = open_backend(read, path)
    try:
        yield backend, limits
    finally:
        backend.close()


def texts_of(path: Path, limit: int | None = None) -> list[str]:
    """Read a prompts file. Raises ConfigError if it is not there."""
    if not path.is_file():
        raise ConfigError("--prompts", f"there is no file {path}")
    return read_prompts(path.read_text(encoding="utf-8"))[:limit]


def greedy_requests(
    prompts: Sequence[Sequence[int]], *, max_tokens: int, ignore_eos: bool = False
) -> list[Request]:
    """Return one greedy request per prompt, named by its number."""
    sampling = SamplingParams(temperature=0.0, ignore_eos=ignore_eos)
    return [
        Request(request_id=str(i), prompt=tuple(prompt), max_tokens=max_tokens, sampling=sampling)
        for i, prompt in enumerate(prompts)
    ]


@dataclass(slots=True)
class Run:
    """One run and its ticks."""

    report: RunReport
    ticks: list[TickStats] = field(default_factory=list)

    @property
    def gaps_s(self) -> list[float]:
        """ITL samples of all streams, by the engine's clock."""
        return [gap for tick in self.ticks for gap in tick.gaps_s]

    def figures(self) -> Figures:
        """Return the run in numbers; durations in seconds, nan where there were no samples."""
        gaps = self.gaps_s or [float("nan")]
        figures = {
            "wall_s": self.report.wall_s,
            "user_s": self.report.user_s,
            "output_tokens": float(self.report.n_output),
            "output_tokens_per_s": self.report.output_tokens_per_s,
            "ticks": float(self.report.n_ticks),
            "itl_p50_s": float(np.quantile(gaps, 0.5)),
            "itl_p99_s": float(np.quantile(gaps, 0.99)),
            "itl_max_s": max(gaps),
        }
        for name in ("queue_s", "ttft_s", "tpot_s", "e2e_s"):
            values = self.report.percentiles(name) or (float("nan"),) * 3
            figures |= {
                f"{name[:-2]}_{share}_s": v for share, v in zip(("p50", "p90", "p99"), values, strict=True)
            }
        return figures


def empty(backend: Backend) -> None:
    """Free every slot. Not `clear`, which overwrites the whole cache and with it the processor's own."""
    for slot_id in range(backend.n_slots):
        backend.keep(slot_id, 0)


def run_once(backend: Backend, limits: EngineLimits, requests: Sequence[Request]) -> Run:
    """Run the requests on an empty cache. Raises ConfigError if one could not be served."""
    empty(backend)
    ticks: list[TickStats] = []
    report = run_offline(backend, limits, MonotonicClock(), requests, on_tick=ticks.append)
    if report.failed:
        name, reason = next(iter(report.failed.items()))
        raise ConfigError("--prompts", f"{len(report.failed)} requests failed, the first is {name}: {reason}")
    return Run(report, ticks)


def spell(name: str, **options: Any) -> str:
    """Write the command line that asks for a benchmark with these options; None and False are left out."""
    words = ["cobali", "bench", name]
    for option, value in options.items():
        if value is None or value is False:
            continue
        words.append(f"--{option.replace('_', '-')}")
        if value is not True:
            words.append(str(value))
    return shlex.join(words)


def numbers(option: str, text: str, *, least: int = 1) -> list[int]:
    """Read `1,2,4`. Raises ConfigError for anything but whole numbers of at least `least`."""
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found or min(found) < least:
        raise ConfigError(option, f"expected numbers from {least} with commas between, got {text!r}")
    return found


def deliver(report: Report, out: Path) -> None:
    """Print a report and write its files."""
    plain = None if sys.stdout.isatty() else LOG_WIDTH  # a job's log folds nothing by itself
    console = Console(width=plain)
    report.print(console)
    for path in report.write(out):
        console.print(f"[dim]{path}[/dim]", highlight=False)


def ms(seconds: float) -> str:
    """Write milliseconds."""
    return f"{1000 * seconds:.2f}" if seconds < 0.1 else f"{1000 * seconds:.0f}"


def with_range(values: Sequence[float], unit: str = "x") -> str:
    """Write the median and, of several, the least and the largest."""
    middle = f"{float(np.median(values)):.2f}{unit}"
    return middle if len(values) < 2 else f"{middle} ({min(values):.2f}..{max(values):.2f})"
