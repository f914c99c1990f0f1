"""`cobali bench micro`: what the steps of a tick cost on this machine."""

from __future__ import annotations

from functools import partial

from cobali_workloads.commands.options import DEFAULT_MODEL, OUT, Model, NRounds, Out, Quick, spell
from cobali_workloads.inside import micro_device
from cobali_workloads.inside.micro import Cost, Step, sampling_steps, scheduling_steps, time_step
from cobali_workloads.inside.micro_llama import call_steps, decode_steps, floor_step, move_steps
from cobali_workloads.inside.runs import opened
from cobali_workloads.report import plots
from cobali_workloads.report.report import Report, Table, deliver, with_range
from cobali_workloads.report.rounds import Rounds, run_rounds

SIZES, QUICK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 4)
STEP_S, QUICK_STEP_S = 0.25, 0.005
N_SLOTS, N_CTX = 64, 1024
REFERENCE = (
    "The reference was measured on a 2-core x86 machine without GPU, with models of random weights: "
    "T4 has 4,096 tokens, T152 has 151,936; both have 4 layers of width 256."
)


def micro(
    model: Model = DEFAULT_MODEL,
    rounds: NRounds = 3,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Time each step of a tick: fill, call, decode, sample, detokenise, plan, emit, encode, count."""
    command = spell("micro", model=model, rounds=rounds, quick=quick)
    step_s, sizes, n_warmup = (QUICK_STEP_S, QUICK_SIZES, 0) if quick else (STEP_S, SIZES, 1)
    rounds = 1 if quick else rounds
    with opened(model, n_slots=N_SLOTS, n_ctx=N_CTX, token_budget=512, device_sampling="off") as (backend, _):
        with floor_step(backend) as floor:
            steps = [*scheduling_steps(), *call_steps(backend), *([floor] if floor else [])]
            steps += [*sampling_steps(backend.n_vocab), *decode_steps(backend, sizes), *move_steps(backend)]
            measured = _measure(steps, step_s, rounds, n_warmup)
        n_vocab = backend.n_vocab
    report = _report(command, model, n_vocab, steps, measured)
    tick_sizes = micro_device.QUICK_SIZES if quick else micro_device.SIZES
    with micro_device.tick_steps(model, tick_sizes) as ticks:
        if ticks:
            measured = _measure(ticks, step_s, rounds, n_warmup)
            report.tables.append(micro_device.tick_table(measured, tick_sizes))
            report.samples["ticks"] = measured.as_json()
    deliver(report, out)


def _measure(steps: list[Step], step_s: float, n_rounds: int, n_warmup: int) -> Rounds:
    def run(step: Step) -> dict[str, float]:
        cost: Cost = time_step(step, seconds=step_s)
        return {"p50_us": cost.p50_us, "p90_us": cost.p90_us, "n": float(cost.n)}

    contenders = {step.name: partial(run, step) for step in steps}
    return run_rounds(contenders, n_rounds=n_rounds, n_warmup=n_warmup)


def _report(command: str, model: str, n_vocab: int, steps: list[Step], measured: Rounds) -> Report:
    table = Table(
        "Cost of single steps, us",
        ("step", "median (min..max of rounds)", "p90", "reference"),
        note=f"{model}, {n_vocab:,} tokens.",
    )
    for step in steps:
        p50 = with_range(measured.values(step.name, "p50_us"), "")
        table.rows.append((step.name, p50, f"{measured.median(step.name, 'p90_us'):.2f}", step.reference_us))
    series: dict[str, list[tuple[float, float]]] = {}
    for step in steps:
        words = step.name.split()
        if words[0] == "decode":
            one_prompt = words[2] == "tokens"
            kind = "one prompt" if one_prompt else "one token per slot"
            rows = float(words[1] if one_prompt else words[4])
            series.setdefault(kind, []).append((rows, measured.median(step.name, "p50_us") / 1000))
    return Report(
        name="micro",
        title="What the steps of a tick cost",
        command=command,
        config={"model": model, "n_vocab": n_vocab},
        tables=[table],
        samples=measured.as_json(),
        figures={"decode": plots.lines("One forward pass by rows", "rows", "ms", series, log_x=True)},
        notes=[REFERENCE, *measured.notes()],
    )
