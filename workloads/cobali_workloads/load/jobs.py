"""From a load shape to the jobs of one run. Pure; the same key gives the same jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

from cobali_workloads.load.prompts import PromptMaker
from cobali_workloads.load.shape import LoadShape, PromptsFile, Repeat
from cobali_workloads.load.target import Job
from cobali_workloads.load.workload import Arrival, Size, arrivals, prefix_groups, sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCase:
    """One point of a run: a level of a closed loop or the arrivals of an open one; intruded or not."""

    label: str
    clients: int = 0
    """0: open loop."""
    intruded: bool = False


def cases_of(shape: LoadShape) -> list[LoadCase]:
    """List the points. A shape with an intruder runs each twice: undisturbed first, then beside it."""
    plain = (
        [LoadCase(label=str(level), clients=level) for level in shape.concurrency]
        if shape.kind == "closed"
        else [LoadCase(label=f"{shape.rate_rps:g}/s" if shape.rate_rps else "trace")]
    )
    if shape.intruder is None:
        return plain
    beside = [LoadCase(label=f"{c.label}+intruder", clients=c.clients, intruded=True) for c in plain]
    return [case for pair in zip(plain, beside, strict=True) for case in pair]


class JobMaker:
    """Makes the jobs of a shape. `texts` are its prompts file's, `trace` its trace's arrivals."""

    def __init__(
        self, shape: LoadShape, maker: PromptMaker, texts: Sequence[str] = (), trace: Sequence[Arrival] = ()
    ) -> None:
        self._shape, self._maker, self._texts, self._trace = shape, maker, texts, trace
        most = max((*shape.concurrency, 0)) * shape.requests_per_client
        self._groups = prefix_groups(shape, max(most, shape.n_requests, shape.warmup_requests))

    def warmup(self, key: str) -> list[list[Job]]:
        """Return warm-up jobs, one client each."""
        n = self._shape.warmup_requests
        drawn: Sequence[Size | Arrival] = self._trace[:n] or sizes(self._shape, n)
        return [[self._job(key, f"warm {i}", i, size)] for i, size in enumerate(drawn)]

    def closed(self, case: LoadCase, key: str) -> list[list[Job]]:
        """Return what each client sends."""
        shape = self._shape
        n = case.clients * shape.requests_per_client
        drawn = sizes(shape, n)
        n_turns = shape.turns.n_turns if shape.turns else 1
        clients: list[list[Job]] = []
        for client in range(case.clients):
            jobs = []
            for k in range(shape.requests_per_client):
                number = k * case.clients + client
                jobs.append(self._job(key, f"{number}", number, drawn[number], begins=k % n_turns == 0))
            clients.append(jobs)
        return clients

    def opened(self, key: str) -> list[Job]:
        """Return the jobs of an open loop, in order of time."""
        timed = self._trace or arrivals(self._shape)
        return [
            self._job(key, f"{i}", i, Size(a.prompt_tokens, a.output_tokens), at_s=a.time_s)
            for i, a in enumerate(timed)
        ]

    def intruders(self, key: str) -> Iterator[Job]:
        """Yield intruders, the first after one period; without end, or as many as the shape allows."""
        it = self._shape.intruder
        if it is None:
            return
        for i in islice(count(1), it.at_most):
            prompt = self._maker.text(f"{key} intruder {i}", it.prompt_tokens)
            yield Job(prompt=prompt, n_output=it.output_tokens, at_s=i * it.every_s, role="intruder")

    def _job(
        self,
        run: str,
        name: str,
        number: int,
        size: Size | Arrival,
        *,
        begins: bool = True,
        at_s: float = 0.0,
    ) -> Job:
        return Job(
            prompt=self._prompt(run, name, number, size.prompt_tokens),
            n_output=size.output_tokens,
            at_s=at_s,
            begins=begins,
        )

    def _prompt(self, run: str, name: str, number: int, n_tokens: int | None) -> str:
        shape, key = self._shape, f"{run} {name}"
        if isinstance(shape.prompt, Repeat):
            return shape.prompt.text * shape.prompt.n_times
        if isinstance(shape.prompt, PromptsFile) or n_tokens is None:
            # The mark keeps a prompt that comes again from being found in a prefix cache.
            return f"[{key}] {self._texts[number % len(self._texts)]}"
        if shape.prefix is None:
            return self._maker.text(key, n_tokens)
        prefix = f"prefix {self._groups[number]}"
        if shape.prefix.fresh:
            prefix = f"{run} {prefix}"
        return self._maker.text(key, n_tokens, prefix=prefix, prefix_tokens=shape.prefix.tokens)
