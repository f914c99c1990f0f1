"""Streams with drafts and without, in process: on text that is free and on text that edits what was asked.

What the model says is scripted over real passes, because a synthetic model says nothing of its own: its
logits are drawn as always, but the token of the text is the likeliest. Free text goes on where the prompt
ends; an edit is the prompt once more, with small changes; what is asked again is free text that was asked and
answered just before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from random import Random
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend.port import Backend
from cobali_ray.core.plan.goodput import Speculation
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.core.views.stats import TickStats
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.opening import MonotonicClock
from cobali_workloads.inside.runs import empty
from cobali_workloads.report.rounds import Figures

Kind: TypeAlias = Literal["free", "edit", "again"]
N_CHANGED = 40
"""One token in so many is another one in an edit, missing, or has two others before it."""
_SAID = 1000.0
_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
_TEXTS = ("prose.txt", "words.txt", "code.txt", "languages.txt")


@dataclass(slots=True)
class SpeculationVariant:
    """Whether streams draft, and what was learned of that: it goes on from run to run, as in a server."""

    pacer: Pacer
    speculation: Speculation | None


class SpeculationExperiment:
    """Texts that a model is made to say to some clients at once."""

    def __init__(self, backend: Backend, limits: EngineLimits, *, n_prompt: int, n_answer: int) -> None:
        self._backend, self._limits = backend, limits
        self._n_prompt, self._n_answer = n_prompt, n_answer
        folder = files("cobali_workloads.models") / "text"
        text = "\n".join((folder / name).read_text(encoding="utf-8") for name in _TEXTS)
        tokens = backend.words.tokenize(text, add_special=False, parse_special=False)
        self._tokens = tokens * (1 + 2 * (n_prompt + n_answer) // len(tokens))

    def run(self, side: SpeculationVariant, kind: Kind, n_clients: int, seed: int) -> Figures:
        """Answer one request of each client, all sent at once, on an empty cache or once more."""
        empty(self._backend)
        engine = Engine(
            self._backend,
            self._limits,
            MonotonicClock(),
            lambda _: None,
            pacer=side.pacer,
            speculation=side.speculation,
        )
        if kind == "again":
            self._answer(engine, kind, n_clients, seed)
        return self._answer(engine, kind, n_clients, seed)

    def _answer(self, engine: Engine, kind: Kind, n_clients: int, seed: int) -> Figures:
        clock = MonotonicClock()
        ticks: list[TickStats] = []
        n_output = 0
        began_s = clock.now()
        for i in range(n_clients):
            prompt, answer = self._texts(kind, Random(f"{seed} {i}"))
            request = Request(
                request_id=str(i), prompt=tuple(prompt), max_tokens=len(answer), sampling=_GREEDY
            )
            engine.submit(request)
            _say(engine.samplers.of(request.request_id), answer)
            n_output += len(answer)
        while engine.has_work:
            if (tick := engine.tick()) is not None:
                ticks.append(tick)
        seconds = clock.now() - began_s
        return {
            "output_tokens_per_s": n_output / seconds,
            "ticks_per_token": n_clients * len(ticks) / n_output,
            "drafted": sum(tick.n_drafted for tick in ticks) / n_output,
            "accepted": sum(tick.n_accepted for tick in ticks) / n_output,
        }

    def _texts(self, kind: Kind, rng: Random) -> tuple[list[int], list[int]]:
        """Return a prompt and its answer."""
        start = rng.randrange(len(self._tokens) - self._n_prompt - self._n_answer)
        end = start + self._n_prompt
        prompt = self._tokens[start:end]
        if kind == "edit":
            return prompt, self._edited(prompt, rng)
        return prompt, self._tokens[end : end + self._n_answer]

    def _edited(self, tokens: Sequence[int], rng: Random) -> list[int]:
        edited: list[int] = []
        for token in tokens:
            changed = rng.randrange(N_CHANGED) == 0
            others = [[rng.choice(self._tokens)], [], [*rng.choices(self._tokens, k=2), token]]
            edited += rng.choice(others) if changed else [token]
        return edited[: self._n_answer]


def _say(row: Any, answer: Sequence[int]) -> None:
    """Make each token of the answer the likeliest where it comes."""

    def patch(logits: NDArray[np.float32]) -> list[Any]:
        logits[answer[row.n_sampled]] = _SAID
        return []

    row.patch, row.untouched = patch, False
