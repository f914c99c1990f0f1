"""`cobali bench agents`: how soon agents are done that share a cache too small for all of them."""

from __future__ import annotations

from statistics import fmean
from typing import Annotated

import typer

from cobali_workloads.commands.options import OUT, Out, Quick, spell
from cobali_workloads.inside.agents import LOADS, N_AGENTS, N_FIT, WORTHS, AgentRun, alone_s, run
from cobali_workloads.report.report import Report, Table, deliver

NOTE = (
    "A simulated engine, scheduler and router the product's: a tick takes 15 ms, 0.3 ms for every stream and "
    f"0.25 ms for every prompt token. {N_AGENTS} agents begin within 30 s; each asks 8 to 16 times, and runs "
    "a tool of 0.5 to 60 s between, mostly one of a few seconds. The cache has room for "
    f"{N_FIT} of them. Without: requests do not say which belong together. Ratios are to that. Foreseen: the "
    "engine knows how long each tool will take, and keeps what comes back within 1, 3 or 10 times what "
    "computing it again takes, whichever is best for the load. Room for all: the cache "
    f"has room for all {N_AGENTS}. Alone: each agent has the engine to itself. "
    "Nothing here depends on the machine."
)


def agents(
    seeds: Annotated[int, typer.Option(min=1, help="How many loads of each kind, with other seeds.")] = 4,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Let agents share a cache that is too small for them; a virtual clock, no model."""
    table = Table(
        "Mean time to finish",
        [
            "load",
            "seed",
            "without s",
            "with s",
            "ratio",
            "foreseen",
            "room for all",
            "alone",
            "cached without",
            "with",
            "longest wait without s",
            "with s",
        ],
    )
    samples: dict[str, dict[str, AgentRun]] = {}
    for name, load in LOADS.items():
        for seed in range(1 if quick else seeds):
            without, hinted = run(load, seed, hints=False), run(load, seed, hints=True)
            foreseen = [run(load, seed, hints=True, worth=worth) for worth in WORTHS]
            best = min(foreseen, key=lambda agent_run: fmean(agent_run.finished_s))
            roomy = run(load, seed, hints=True, n_fit=N_AGENTS)
            samples[f"{name}, {seed}"] = {
                "without": without, "with": hinted, "foreseen": best, "room for all": roomy
            }  # fmt: skip
            before_s, after_s = fmean(without.finished_s), fmean(hinted.finished_s)
            finish_times = (hinted.finished_s, best.finished_s, roomy.finished_s, alone_s(load, seed))
            table.rows.append((
                name, f"{seed}", f"{before_s:.0f}", f"{after_s:.0f}",
                *(f"{fmean(times_s) / before_s:.2f}" for times_s in finish_times), f"{without.hit_rate:.0%}",
                f"{hinted.hit_rate:.0%}", f"{without.worst_wait_s:.0f}", f"{hinted.worst_wait_s:.0f}",
            ))  # fmt: skip
    report = Report(
        name="agents",
        title="Agents that share a cache",
        command=spell("agents", seeds=None if quick else seeds, quick=quick),
        config={"seeds": seeds},
        tables=[table],
        samples={
            load: {name: agent_run._asdict() for name, agent_run in runs.items()}
            for load, runs in samples.items()
        },
        notes=[NOTE],
    )
    deliver(report, out)
