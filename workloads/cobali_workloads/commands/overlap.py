"""`cobali bench overlap`: asynchronous batching; host work inline against host work beside the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Annotated, Any

import numpy as np
import typer

from cobali_ray.backend.endpoint import WORKER
from cobali_ray.backend.port import Backend
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.engine.opening import limits_of, worker_cache
from cobali_ray.errors import ConfigError
from cobali_ray.settings import EngineSettings
from cobali_workloads.commands.options import OUT, NRounds, Out, Quick, reals, spell
from cobali_workloads.inside.device import TimeSpan, WatchedBackend
from cobali_workloads.inside.overlap import OverlapRun, limits_for, middle, simulated, trace
from cobali_workloads.inside.runs import greedy_requests, opened
from cobali_workloads.inside.timed_worker import TimedWorker
from cobali_workloads.report import plots
from cobali_workloads.report.report import Report, Table, deliver, ms, with_range
from cobali_workloads.report.rounds import Rounds, run_rounds

MODES = {"inline": False, "overlapped": True}
N_PROMPT, N_WINDOW = 64, 10
QUICK_NEW = 24
PUBLISHED = (
    "Published for asynchronous batching in transformers (8B model, batch 32, 8K tokens): the GPU is active "
    "76.0 % of the time without it and 99.4 % with it, 300.6 s and 234.5 s in all (-22 %)."
)
SIMULATED = (
    "The device of the simulated rows is a clock: every pass takes the given time beside the host, which "
    "does all of a server's real work (plan, sample, detokenise, encode, count)."
)

BY_OURS = (
    "On a real device a pass counts as computing until the host sees its end: the shares are upper bounds."
)
BY_ITS_CLOCK = (
    "The worker is a process with one thread on the same machine; when it computes is what it noted itself, "
    "around each graph."
)
DeviceSpans = Callable[[float], list[TimeSpan]]


def overlap(
    tick_ms: Annotated[
        str, typer.Option(help="Times of a pass on the simulated device, milliseconds.")
    ] = "2,5,20",
    slots: Annotated[int, typer.Option(min=1, help="Slots, all of them generating.")] = 32,
    max_new: Annotated[int, typer.Option(min=1, help="Output tokens of each slot.")] = 256,
    model: Annotated[
        str | None, typer.Option(help="Also run this model, on a device to overlap with.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Where the model lies, as in the setting devices; worker: a process on this machine that "
            "notes itself when it computes.  [default: the GPU, if there is one]"
        ),
    ] = None,
    rounds: NRounds = 3,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Run the same work with host work inline and overlapped; show device share, time and a timeline."""
    command = spell(
        "overlap", tick_ms=tick_ms, slots=slots, max_new=max_new, model=model, device=device, rounds=rounds,
        quick=quick,
    )  # fmt: skip
    if device is not None and model is None:
        raise ConfigError("--device", "needs a --model that lies there")
    ticks_ms = reals("--tick-ms", tick_ms)
    if quick:
        rounds, max_new = 1, min(max_new, QUICK_NEW)
    n_warmup = 0 if quick else 1
    n_ctx = N_PROMPT + max_new + 8
    notes = [PUBLISHED, SIMULATED]
    by_device: dict[str, tuple[Rounds, dict[str, OverlapRun]]] = {}
    for part in ticks_ms:
        backends: dict[str, WatchedBackend] = {
            name: simulated(slots, n_ctx, overlaps=overlaps, tick_s=part / 1000)
            for name, overlaps in MODES.items()
        }
        limits = limits_for(backends["inline"])
        by_device[f"simulated, {part:g} ms"] = _compare(backends, limits, max_new, rounds, n_warmup)
    if model is not None:
        with _placed(model, device, slots, n_ctx) as (inner, settings, spans):
            if inner.overlaps:
                pair = {name: WatchedBackend(inner, overlaps=overlaps) for name, overlaps in MODES.items()}
                limits = limits_of(inner, settings)
                name = model if device is None else f"{model} on {device}"
                by_device[name] = _compare(pair, limits, max_new, rounds, n_warmup, spans)
                notes.append(BY_ITS_CLOCK if spans is not None else BY_OURS)
            else:
                notes.append(
                    f"{model} was not measured: llama.cpp computes on the CPU here, inside the call."
                )
    notes += [note for rounds_, _ in by_device.values() for note in rounds_.notes()]
    config = {
        "slots": slots, "max_new": max_new, "tick_ms": tick_ms, "model": model, "device": device,
        "n_prompt": N_PROMPT,
    }  # fmt: skip
    deliver(_report(command, config, by_device, notes), out)


@contextmanager
def _placed(
    model: str, device: str | None, n_slots: int, n_ctx: int
) -> Iterator[tuple[Backend, EngineSettings, DeviceSpans | None]]:
    """Open a model on a device; also return what the device itself says of when it computed."""
    with ExitStack() as stack:
        settings: dict[str, Any] = {"n_slots": n_slots, "n_ctx": n_ctx}
        spans = None
        if device == WORKER:
            worker = stack.enter_context(TimedWorker(worker_cache()))
            settings["devices"], spans = worker.endpoint, worker.spans
        elif device is not None:
            settings["devices"] = device
        yield (*stack.enter_context(opened(model, **settings)), spans)


def _compare(
    backends: dict[str, WatchedBackend],
    limits: EngineLimits,
    max_new: int,
    n_rounds: int,
    n_warmup: int,
    spans: DeviceSpans | None = None,
) -> tuple[Rounds, dict[str, OverlapRun]]:
    last: dict[str, OverlapRun] = {}
    n_vocab = next(iter(backends.values())).n_vocab
    prompts = [[65 + (i + k) % min(26, n_vocab - 65) for k in range(N_PROMPT)] for i in range(limits.n_slots)]
    requests = greedy_requests(prompts, max_tokens=max_new, ignore_eos=True)

    def run(name: str) -> dict[str, float]:
        last[name] = result = trace(backends[name], limits, requests, spans)
        host, idle = (values or [float("nan")] for values in (result.host_s, result.idle_s))
        return {
            "wall_s": result.wall_s,
            "device_share": result.device_share,
            "host_p50_s": float(np.median(host)),
            "idle_p50_s": float(np.median(idle)),
            "idle_p90_s": float(np.quantile(idle, 0.9)),
            "output_tokens_per_s": result.n_output / result.wall_s,
        }

    contenders = {name: partial(run, name) for name in backends}
    return run_rounds(contenders, n_rounds=n_rounds, n_warmup=n_warmup), last


def _report(
    command: str,
    config: dict[str, object],
    by_device: dict[str, tuple[Rounds, dict[str, OverlapRun]]],
    notes: list[str],
) -> Report:
    columns = ("device", "host work", "wall s", "device computes % (min..max)",
               "idle between passes, p50 / p90 ms", "host p50 ms per tick", "output tok/s",
               "speed-up (min..max)")  # fmt: skip
    table = Table("Host work inline and overlapped", columns)
    figures = {}
    for device, (rounds, last) in by_device.items():
        for name in rounds.figures:
            share = [100 * value for value in rounds.values(name, "device_share")]
            table.rows.append(
                (
                    device,
                    name,
                    f"{rounds.median(name, 'wall_s'):.3f}",
                    with_range(share, ""),
                    " / ".join(ms(rounds.median(name, f"idle_{share}_s")) for share in ("p50", "p90")),
                    ms(rounds.median(name, "host_p50_s")),
                    f"{rounds.median(name, 'output_tokens_per_s'):.0f}",
                    with_range(rounds.ratios("inline", name, "wall_s")),
                )
            )
        rows: dict[str, dict[str, plots.Bars]] = {}
        for name, run in last.items():
            spans = middle(run, N_WINDOW)
            rows |= {f"{name}: {actor}": {actor: spans[actor]} for actor in ("device", "host")}
        key = "timeline-" + "".join(c if c.isalnum() else "-" for c in device)
        figures[key] = plots.timeline(f"{N_WINDOW} ticks, {device}", rows)
    return Report(
        name="overlap",
        title="Host work inline and beside the device",
        command=command,
        config=config,
        tables=[table],
        samples={device: rounds.as_json() for device, (rounds, _) in by_device.items()},
        figures=figures,
        notes=notes,
    )
