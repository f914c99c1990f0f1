"""`cobali bench threads`: how compute threads should wait, on an idle machine and beside a busy neighbour."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Annotated

import typer

from cobali_ray.backend.threads import apply_wait, default_n_threads
from cobali_workloads.commands.options import OUT, Model, NRounds, Out, Quick, check_model, spell
from cobali_workloads.inside.child import Child
from cobali_workloads.inside.neighbour import Neighbours, be_nice, busy_s
from cobali_workloads.report.plots import blank
from cobali_workloads.report.report import Report, Table, deliver
from cobali_workloads.report.rounds import Rounds, run_rounds

if TYPE_CHECKING:  # an extra, which --help does without
    from matplotlib.figure import Figure

IDLE, BUSY = "idle", "neighbour"
SPIN, SLEEP = "spin", "sleep"
QUIET_SHARE = 0.1
"""Share of the cores that other processes may use before a run counts as disturbed."""
NOTE = (
    "Mean and p99 of a decode tick, ms, and how often as long as its best alternative on the same machine; "
    "median of the rounds. 'others' is what processes outside the benchmark took of all cores."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPolicy:
    """One way to wait: the environment that libgomp reads, and the number of threads."""

    n_threads: int
    environ: dict[str, str] = field(default_factory=dict)


def policies(spin_counts: tuple[int, ...], n_threads: int) -> dict[str, WaitPolicy]:
    """Return the contenders by name; with one thread nobody waits, so it stands once."""
    counted = {f"spin count {n}": {"GOMP_SPINCOUNT": str(n)} for n in spin_counts}
    ways = {SPIN: {}, SLEEP: {"OMP_WAIT_POLICY": "passive"}, **counted}
    many = {
        f"{name}, {n_threads} threads": WaitPolicy(n_threads=n_threads, environ=env)
        for name, env in ways.items()
    }
    return {"1 thread": WaitPolicy(n_threads=1)} | (many if n_threads > 1 else {})


def threads(
    model: Model = "builtin:synthetic-tiny",
    slots: Annotated[int, typer.Option(min=1, help="Requests that decode together.")] = 16,
    n_threads: Annotated[
        int | None,
        typer.Option(min=1, help="Number of compute threads to compare with one.  [default: one per core]"),
    ] = None,
    spin_count: Annotated[
        list[int] | None, typer.Option(help="GOMP_SPINCOUNT to try; repeatable.  [default: a ladder]")
    ] = None,
    neighbours: Annotated[int, typer.Option(min=1, help="Busy processes beside the measured one.")] = 1,
    ticks: Annotated[int, typer.Option(min=2, help="Ticks of one run.")] = 60,
    limit_s: Annotated[float, typer.Option(min=0.1, help="Seconds after which a slow run ends.")] = 1.5,
    nice: Annotated[
        int, typer.Option(min=-20, max=19, help="Niceness of all processes measured; below 0 needs root.")
    ] = 0,
    rounds: NRounds = 7,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Measure how OpenMP's threads should wait: every policy on an idle machine and beside a busy process."""
    check_model(model)
    if quick:
        rounds, ticks, limit_s = 2, 30, 0.5
    n_most = n_threads or default_n_threads()
    contenders = policies(tuple(spin_count or (200, 500, 1_000, 3_000, 20_000)), n_most)
    chosen: dict[str, str] = {}
    wait = apply_wait("auto", n_threads=n_most, environ=chosen)
    contenders["auto"] = WaitPolicy(n_threads=n_most, environ=chosen)
    with _children(contenders, model=model, slots=slots, n_ctx=max(256, 2 * ticks)) as children:
        measured = run_rounds(
            {
                f"{name} | {machine}": _run(child, n_busy, ticks, limit_s, nice)
                for machine, n_busy in ((IDLE, 0), (BUSY, neighbours))
                for name, child in children.items()
            },
            n_rounds=rounds,
            in_process=False,
        )
    report = Report(
        name="threads",
        title="How compute threads wait",
        command=spell(
            "threads", model=model, slots=slots, ticks=ticks, neighbours=neighbours, nice=nice, rounds=rounds
        ),
        config={
            "model": model,
            "slots": slots,
            "neighbours": neighbours,
            "limit_s": limit_s,
            "nice": nice,
            "auto": chosen,
        },
        tables=[_table(measured, list(contenders), machine) for machine in (IDLE, BUSY)],
        samples=measured.as_json(),
        figures={"ticks": _figure(measured, list(contenders))},
        notes=[
            f"auto chose {wait}: {chosen or 'the library default'}.",
            *measured.notes(),
            *_disturbed(measured),
        ],
    )
    deliver(report, out)


@contextmanager
def _children(
    contenders: dict[str, WaitPolicy], *, model: str, slots: int, n_ctx: int
) -> Iterator[dict[str, Child]]:
    """Start one process for each policy, all loaded before the first is measured."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cobali-threads-"))
        children: dict[str, Child] = {}
        for name, policy in contenders.items():
            # Left on auto, the child would see what we exported and keep it; with nothing exported it
            # would choose for itself.
            wait = "auto" if policy.environ else "active"
            settings = {
                "model": model,
                "n_slots": slots,
                "n_ctx": n_ctx,
                "n_threads": policy.n_threads,
                "threads_wait": wait,
            }
            log = Path(folder) / f"{len(children)}.log"
            child = Child(settings, environ=inherited | policy.environ, log=log)
            children[name] = stack.enter_context(child)
        for child in children.values():
            child.answer()
        yield children


def _run(
    child: Child, n_busy: int, n_ticks: int, limit_s: float, nice: int
) -> Callable[[], dict[str, float]]:
    def run() -> dict[str, float]:
        with Neighbours(n_busy) as neighbours:
            if nice:
                neighbours.be_nice(nice)
                be_nice(child.pid, nice)
            used, began = busy_s(), time.perf_counter()
            answer = child.order(n_ticks=n_ticks, seconds=limit_s)
            wall, ours = time.perf_counter() - began, answer["cpu_s"] + neighbours.cpu_s()
            others = (busy_s() - used - ours) / wall / (os.cpu_count() or 1)
        ticks = sorted(answer["ticks_s"])
        return {
            "mean_s": fmean(ticks),
            "p50_s": median(ticks),
            "p99_s": ticks[min(int(0.99 * len(ticks)), len(ticks) - 1)],
            "n_ticks": float(len(ticks)),
            "others_share": max(others, 0.0),
        }

    return run


def _table(rounds: Rounds, names: list[str], machine: str) -> Table:
    title = "Idle machine" if machine == IDLE else "Beside a busy neighbour"
    columns = ("threads wait by", "mean ms", "least - most", "p99 ms", "/ best", "others")
    table = Table(title, columns, note=NOTE)
    best = min(rounds.median(f"{name} | {machine}", "mean_s") for name in names)
    for name in names:
        key = f"{name} | {machine}"
        low, high = rounds.spread(key, "mean_s")
        mean = rounds.median(key, "mean_s")
        table.rows.append((
            name,
            f"{1e3 * mean:.2f}",
            f"{1e3 * low:.2f} - {1e3 * high:.2f}",
            f"{1e3 * rounds.median(key, 'p99_s'):.2f}",
            f"{mean / best:.2f}",
            f"{rounds.median(key, 'others_share'):.0%}",
        ))  # fmt: skip
    return table


def _disturbed(rounds: Rounds) -> list[str]:
    shares = [run["others_share"] for runs in rounds.figures.values() for run in runs]
    n_disturbed = sum(share > QUIET_SHARE for share in shares)
    if not n_disturbed:
        return []
    note = (
        f"{n_disturbed} of {len(shares)} runs had others on more than {QUIET_SHARE:.0%} of the cores (median "
        f"{median(shares):.0%}): the machine was not ours. As root, --nice -20 puts our processes first."
    )
    return [note]


def _figure(rounds: Rounds, names: list[str]) -> Figure:
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = blank((7.5, 0.5 * len(names) + 1.4))
    axes = figure.subplots()
    for offset, machine in ((-0.19, IDLE), (0.19, BUSY)):
        values = [1e3 * rounds.median(f"{name} | {machine}", "mean_s") for name in names]
        axes.barh([i + offset for i in range(len(names))], values, height=0.36, label=machine)
    axes.set(xscale="log", xlabel="mean decode tick, ms")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=True, axis="x", which="both", alpha=0.3)
    axes.legend()
    return figure
