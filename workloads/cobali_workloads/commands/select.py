"""`cobali bench select`: what it costs to choose who decodes next, on the host and on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from cobali_ray.backend.select import ArraySelect, busy_requests, cuda_select, numpy_select, over_arrays
from cobali_ray.backend.select_cuda import open_kernels
from cobali_ray.core.planner import select_decoding
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.errors import ConfigError
from cobali_workloads.commands.options import OUT, NRounds, Out, Quick, spell
from cobali_workloads.report.plots import blank
from cobali_workloads.report.report import Report, Table, deliver
from cobali_workloads.report.rounds import Rounds, run_rounds

if TYPE_CHECKING:  # an extra, which --help does without
    from matplotlib.figure import Figure

SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
N_PROMPT = 32
LOOP, TWIN, FILL, CUDA = (
    "walk over the slots",
    "numpy",
    "numpy, table filled first",
    "CUDA, copies included",
)
REPEAT_S = 0.02
MIN_REPEATS = 11
NOTE = (
    "Microseconds for one selection of all requests, every one of them decoding; median of the rounds' "
    "medians. The walk is what the scheduler does unless the setting selector says otherwise. The numpy and "
    "CUDA columns answer with dense arrays of token, position and slot."
)


def select(
    rounds: NRounds = 5,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Measure the selection kernels, their numpy twin and the plan's Python at 16 to 4,096 requests."""
    n_rounds, sizes = (2, (16, 128, 1024, 4096)) if quick else (rounds, SIZES)
    report = measure(n_rounds, sizes)
    report.command = spell("select", quick=True) if quick else spell("select", rounds=rounds)
    deliver(report, out)


def measure(n_rounds: int, sizes: tuple[int, ...]) -> Report:
    """Run all contenders; those that need a device are named in the notes where there is none."""
    contenders = {
        name: _timing(prepare, sizes) for name, prepare in {LOOP: _loop, TWIN: _twin, FILL: _fill}.items()
    }
    device, notes = "none", []
    try:
        kernels = open_kernels()
    except ConfigError as error:
        notes = [f"{CUDA}: not measured: no device ({error.message})."]
    else:
        device, on_device = kernels.device_name, cuda_select(kernels)
        contenders[CUDA] = _timing(lambda n: _of_arrays(on_device, n), sizes)
    rounds = run_rounds(contenders, n_rounds=n_rounds)
    return Report(
        name="select",
        title="Who decodes next: cost of one selection",
        command="",
        config={"sizes": sizes, "rounds": n_rounds, "device": device},
        tables=[_table(rounds, sizes)],
        samples=rounds.as_json(),
        figures={"cost": _figure(rounds, sizes)},
        notes=[*notes, *rounds.notes()],
    )


def _timing(
    prepare: Callable[[int], Callable[[], object]], sizes: tuple[int, ...]
) -> Callable[[], dict[str, float]]:
    """Return one run of a contender: seconds by size."""
    calls = {n: prepare(n) for n in sizes}
    return lambda: {str(n): _median_s(call) for n, call in calls.items()}


def _median_s(call: Callable[[], object]) -> float:
    spent: list[float] = []
    total = 0.0
    while total < REPEAT_S or len(spent) < MIN_REPEATS:
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
        total += spent[-1]
    return median(spent)


def _sequences(n: int) -> list[Sequence]:
    """Return running sequences that have one output token each, still to be computed."""
    sequences = []
    for i in range(n):
        sequence = Sequence(Request(request_id=str(i), prompt=(1,) * N_PROMPT, max_tokens=8), arrived_s=0.0)
        sequence.tokens.append(i)
        sequence.decoding, sequence.slot_id = True, i
        sequences.append(sequence)
    return sequences


def _loop(n: int) -> Callable[[], object]:
    sequences = _sequences(n)
    return lambda: select_decoding(sequences, n)


def _twin(n: int) -> Callable[[], object]:
    return _of_arrays(numpy_select, n)


def _fill(n: int) -> Callable[[], object]:
    choose, sequences = over_arrays(numpy_select), _sequences(n)
    return lambda: choose(sequences, n)


def _of_arrays(choose: ArraySelect, n: int) -> Callable[[], object]:
    requests = busy_requests(n)
    return lambda: choose(requests, n)


def _table(rounds: Rounds, sizes: tuple[int, ...]) -> Table:
    names = (LOOP, TWIN, FILL, CUDA)
    table = Table("Cost of one selection, µs", ("requests", *names), note=NOTE)
    for n in sizes:
        cells = [
            f"{1e6 * rounds.median(name, str(n)):,.1f}" if name in rounds.figures else "not measured"
            for name in names
        ]
        table.rows.append((f"{n:,}", *cells))
    return table


def _figure(rounds: Rounds, sizes: tuple[int, ...]) -> Figure:
    figure = blank((7, 4.2))
    axes = figure.subplots()
    for name in rounds.figures:
        values = np.array([rounds.values(name, str(n)) for n in sizes]) * 1e6
        (line,) = axes.plot(sizes, np.median(values, axis=1), marker="o", label=name)
        axes.fill_between(sizes, values.min(axis=1), values.max(axis=1), color=line.get_color(), alpha=0.15)
    axes.set(xscale="log", yscale="log", xlabel="requests", ylabel="µs per selection")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    return figure
