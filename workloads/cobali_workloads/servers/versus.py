"""Servers compared: each is started for every load and round, loaded, and loaded again.

Then only one runs at a time, so that none takes memory or processor time from another. Or all of them run,
and take turns load by load, so that a machine's drift hits all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import nan

from cobali_workloads.load.jobs import JobMaker, LoadCase, cases_of
from cobali_workloads.load.options import Workload
from cobali_workloads.load.prompts import PromptMaker, WordCosts
from cobali_workloads.load.run import ServeResult, contender, figures_of, notes_of, run_case
from cobali_workloads.load.shape import Fixed, LoadShape
from cobali_workloads.load.target import Target
from cobali_workloads.load.timeline import RequestTimeline
from cobali_workloads.report.rounds import Figures, Rounds, run_rounds

Start = Callable[[], AbstractContextManager[Target]]
"""Starts a server; it ends with the block."""
STATES = ("fresh", "warmed")
"""Right after the start, and when the same load, with other prompts, has gone through once."""
RUNNING = ("running",)
"""Of servers that all run, each started once and for all loads."""


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """One load, of one case: a level of a closed loop, or arrivals at one rate."""

    label: str
    shape: LoadShape

    @property
    def case(self) -> LoadCase:
        """The case: beside the intruder where there is one."""
        return cases_of(self.shape)[-1]

    def in_state(self, state: str) -> LoadCase:
        """Return what a report calls this load at a server in this state."""
        return LoadCase(label=f"{self.label}, {state}")

    @property
    def alone(self) -> LoadShape | None:
        """The intruder's prompt with nothing beside it."""
        it = self.shape.intruder
        if it is None:
            return None
        return replace(
            self.shape, intruder=None, concurrency=(1,), requests_per_client=1,
            prompt=Fixed(tokens=it.prompt_tokens), output=Fixed(tokens=it.output_tokens),
        )  # fmt: skip


def loads_of(shape: LoadShape, shares: Sequence[float], capacity_rps: float) -> list[PeerLoad]:
    """List a shape's loads: a rate for each share of the capacity, or a load for each level."""
    if shares:
        return [
            PeerLoad(f"{share:g} of capacity", replace(shape, rate_rps=share * capacity_rps))
            for share in shares
        ]
    levels = shape.concurrency if shape.kind == "closed" else ()
    each = [replace(shape, concurrency=(level,)) for level in levels] or [shape]
    return [PeerLoad(cases_of(load_shape)[-1].label, load_shape) for load_shape in each]


def capacity_of(
    target: Target, workload: Workload, costs: WordCosts, n_slots: int, timeout_s: float
) -> float:
    """Return the requests per second that a server finishes for a client per slot, two requests each."""
    shape = replace(workload.shape, kind="closed", concurrency=(n_slots,), requests_per_client=2)
    load = JobMaker(shape, PromptMaker(costs, shape.seed), workload.texts)
    figures = figures_of(run_case(load, shape, target, cases_of(shape)[-1], "capacity", timeout_s), shape.slo)
    return figures["n_ok"] / figures["duration_s"]


def run_versus(
    workload: Workload,
    loads: Sequence[PeerLoad],
    servers: Mapping[str, Start],
    costs: WordCosts,
    *,
    n_rounds: int,
    timeout_s: float,
    states: Sequence[str] = STATES,
) -> ServeResult:
    """Let the servers take turns, load by load and round by round; all get the same prompts in a round.

    The result has a case for each load and state, in which the load is sent once. Targets are as they were at
    their last start.
    """
    result = ServeResult(workload, [], [], Rounds())
    turns = [
        _Turn(name, start, load, costs, result, timeout_s, states)
        for load in loads
        for name, start in servers.items()
    ]
    measured = run_rounds(
        {f"{turn.name} @ {turn.load.label}": turn for turn in turns},
        n_rounds=n_rounds, n_warmup=0, in_process=False,
    )  # fmt: skip
    result.rounds.usage = measured.usage
    result.targets = [turn.target for turn in turns[: len(servers)] if turn.target is not None]
    result.cases = [load.in_state(state) for load in loads for state in states]
    result.notes += notes_of(result)
    return result


@dataclass(slots=True)
class _Turn:
    """One load at one server; each call is its next round."""

    name: str
    start: Start
    load: PeerLoad
    costs: WordCosts
    result: ServeResult
    timeout_s: float
    states: Sequence[str]
    target: Target | None = None

    def __call__(self) -> Figures:
        all_figures: list[dict[str, float]] = []
        shape, alone = self.load.shape, self.load.alone
        with self.start() as self.target:
            for state in self.states:
                label = self.load.in_state(state)
                runs = self.result.timelines.setdefault((self.name, label.label), [])
                runs.append(self._run(shape, self.load.case, f"{len(runs)}.{label.label}"))
                all_figures.append(dict(figures_of(runs[-1], shape.slo)))
                self.result.rounds.figures.setdefault(contender(self.name, label), []).append(all_figures[-1])
            if alone is not None:
                timelines = self._run(alone, cases_of(alone)[-1], f"{len(runs)}.{self.load.label}, alone")
                alone_s = figures_of(timelines, alone.slo)["ttft_p50_s"]
                for figures in all_figures:
                    figures.setdefault("intruder_ttft_p50_s", nan)  # the streams ended before it came
                    figures["intruder_by_alone"] = figures["intruder_ttft_p50_s"] / alone_s
        return {}

    def _run(self, shape: LoadShape, case: LoadCase, key: str) -> list[RequestTimeline]:
        workload = self.result.workload
        load = JobMaker(shape, PromptMaker(self.costs, shape.seed), workload.texts, workload.trace)
        assert self.target is not None
        return run_case(load, shape, self.target, case, key, self.timeout_s)
