"""Runs a load against targets, interleaved: every case meets each target in turn, round by round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import httpx2

from cobali_ray.errors import ConfigError
from cobali_workloads.load.jobs import JobMaker, LoadCase, cases_of
from cobali_workloads.load.options import Workload
from cobali_workloads.load.prompts import WORDS, PromptMaker, WordCosts, measure_costs, uniform_costs
from cobali_workloads.load.reply import Exchange, timeline_of
from cobali_workloads.load.sender import LoopTimer, Sender, closed_loop, open_loop, with_intruder
from cobali_workloads.load.shape import LoadShape, Slo
from cobali_workloads.load.target import Target, token_counter, tokens_per_word
from cobali_workloads.load.timeline import RequestTimeline, summarise
from cobali_workloads.report.rounds import Figures, Rounds, run_rounds

ROLES = ("stream", "intruder")
N_ALONE = 2
"""Intruders sent one after another once the undisturbed streams have ended: what each takes alone."""


@dataclass(slots=True)
class ServeResult:
    """All that was seen: per target and case, the timelines of each round."""

    workload: Workload
    targets: Sequence[Target]
    cases: Sequence[LoadCase]
    rounds: Rounds
    timelines: dict[tuple[str, str], list[list[RequestTimeline]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def figure(self, target: str, case: LoadCase, name: str) -> float:
        """Return the median over the rounds of one figure of the streams."""
        return self.rounds.median(contender(target, case), name)

    def ratios(self, target: str, other: str, case: LoadCase, name: str) -> list[float]:
        """Return target / other, round by round."""
        return self.rounds.ratios(contender(target, case), contender(other, case), name)

    def pooled(self, target: str, case: LoadCase, role: str = "stream") -> list[RequestTimeline]:
        """Return the answered requests of all rounds."""
        runs = self.timelines[target, case.label]
        return [t for run in runs for t in run if t.role == role and t.status == "ok"]


def contender(target: str, case: LoadCase) -> str:
    """Return the name under which the rounds keep a target's runs of one case."""
    return f"{target} @ {case.label}"


def run_serve(
    workload: Workload,
    targets: Sequence[Target],
    *,
    n_rounds: int,
    timeout_s: float,
) -> ServeResult:
    """Run every case against every target in each round, after warm-up requests that do not count.

    All targets get the same prompts in one round and new ones in the next, so that no prefix cache helps.
    """
    costs, notes = word_costs(targets[0])
    maker = PromptMaker(costs, workload.shape.seed)
    load = JobMaker(workload.shape, maker, workload.texts, workload.trace)
    cases = cases_of(workload.shape)
    result = ServeResult(workload, targets, cases, Rounds(), notes=notes)
    contenders: dict[str, Callable[[], Figures]] = {}
    for case in cases:
        for target in targets:
            result.timelines[target.name, case.label] = []
            contenders[contender(target.name, case)] = _Run(load, workload, target, case, result, timeout_s)
    result.rounds = run_rounds(contenders, n_rounds=n_rounds, n_warmup=0, in_process=False)
    result.notes += notes_of(result)
    return result


def word_costs(target: Target) -> tuple[WordCosts, list[str]]:
    """Learn from a target how long words are; say so where it can only be estimated."""
    with httpx2.Client(timeout=60.0) as http:
        count = token_counter(target, http)
        if count is not None:
            return measure_costs(count), []
        ratio = tokens_per_word(target, http, WORDS)
    note = (
        f"{target.name} does not tokenise: prompt lengths follow its average of {ratio:.2f} tokens per word."
    )
    return uniform_costs(ratio), [note]


class _Run:
    """One case at one target; each call is its next round."""

    def __init__(
        self,
        load: JobMaker,
        workload: Workload,
        target: Target,
        case: LoadCase,
        result: ServeResult,
        timeout_s: float,
    ) -> None:
        self._load, self._workload, self._target, self._case = load, workload, target, case
        self._result, self._timeout_s = result, timeout_s

    def __call__(self) -> Figures:
        runs = self._result.timelines[self._target.name, self._case.label]
        key = f"{len(runs)}.{self._case.label}"
        run = run_case(self._load, self._workload.shape, self._target, self._case, key, self._timeout_s)
        runs.append(run)
        return figures_of(run, self._workload.shape.slo)


def run_case(
    load: JobMaker, shape: LoadShape, target: Target, case: LoadCase, key: str, timeout_s: float
) -> list[RequestTimeline]:
    """Run one case once and return what came back; the same key sends the same prompts.

    A target that answers no request: ConfigError.
    """
    exchanges = asyncio.run(_exchanges(load, shape, target, case, key, timeout_s))
    timelines = [timeline_of(exchange) for exchange in exchanges]
    if all(t.status == "failed" for t in timelines):
        raise ConfigError(target.name, f"answers no request: {timelines[0].error}")
    return timelines


async def _exchanges(
    load: JobMaker, shape: LoadShape, target: Target, case: LoadCase, key: str, timeout_s: float
) -> list[Exchange]:
    timer = LoopTimer()
    send = Sender(target, timer, ignore_eos=shape.ignore_eos, timeout_s=timeout_s)
    # Not all at once: a warm-up must not be refused by a bounded queue.
    warmup = load.warmup(key)
    step = max(case.clients, 4)
    for first in range(0, len(warmup), step):
        await closed_loop(send, warmup[first : first + step], timer)
    if shape.kind == "open":
        streams = open_loop(send, load.opened(key), timer)
    else:
        streams = closed_loop(send, load.closed(case, key), timer)
    if case.intruded:
        return await with_intruder(streams, send, load.intruders(key), timer)
    exchanges = await streams
    alone = islice(load.intruders(f"{key} alone"), N_ALONE)
    return [*exchanges, *[await send(job, timer.now()) for job in alone]]


def figures_of(timelines: Sequence[RequestTimeline], slo: Slo) -> Figures:
    """Return the streams' figures, and the intruders' under `intruder_...` where there were any."""
    figures: dict[str, float] = {}
    for role in ROLES:
        mine = [t for t in timelines if t.role == role]
        if mine:
            flat = summarise(mine, slo).figures()
            figures |= flat if role == "stream" else {f"intruder_{name}": v for name, v in flat.items()}
    return figures


def notes_of(result: ServeResult) -> list[str]:
    """Say what a reader must know before believing the numbers."""
    notes = result.rounds.notes()
    for name, timelines in _by_target(result).items():
        bad = [t for t in timelines if t.status == "failed"]
        if bad:
            notes.append(f"{name}: {len(bad)} of {len(timelines)} requests failed, first: {bad[0].error}")
        if any(t.counted and t.status == "ok" for t in timelines):
            notes.append(f"{name} gives no usage: its output tokens are counted deltas.")
    late = max(result.figure(t.name, c, "late_p99_s") for t in result.targets for c in result.cases)
    if late > 0.005:
        notes.append(
            f"The sender itself was up to {1000 * late:.0f} ms late (p99): it had too little processor."
        )
    it = result.workload.shape.intruder
    for (name, label), runs in result.timelines.items():
        intruders = [t for run in runs for t in run if t.role == "intruder"]
        if it and (n_late := sum(t.e2e_s > it.every_s for t in intruders)):
            notes.append(
                f"{name} @ {label}: {n_late} of {len(intruders)} intruders took over {it.every_s:g} s, "
                "when the next one came: its TTFT has that wait in it."
            )
    return notes


def _by_target(result: ServeResult) -> dict[str, list[RequestTimeline]]:
    merged: dict[str, list[RequestTimeline]] = {}
    for (name, _), runs in result.timelines.items():
        merged.setdefault(name, []).extend(t for run in runs for t in run)
    return merged
