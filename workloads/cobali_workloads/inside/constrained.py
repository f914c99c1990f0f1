"""What answers held to a schema cost: a tick's rows drawn free and bound, and streams beside compilers.

The rows of a tick are greedy, and what the model says is scripted over random logits: it writes an answer
that fits its schema, and in a share of the ticks something else that does not. How often a real model does so
is its own affair; the share says which case a number is. Processor time of the drawing thread counts, so that
others on the machine do not.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cobali_ray.backend.grammar import Grammars, Matcher, check
from cobali_ray.backend.port import Backend
from cobali_ray.backend.sampling import RowSampler, SampleResult, sample_rows
from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.core.request.events import End, EngineEvent
from cobali_ray.core.request.request import GREEDY, Grammar, Request, SamplingParams
from cobali_ray.core.request.sequence import Sequence as EngineSequence
from cobali_ray.core.views.stats import TickStats
from cobali_ray.engine.engine import Engine, Sink
from cobali_ray.engine.loop import EngineLoop
from cobali_ray.engine.opening import MonotonicClock, open_engine
from cobali_ray.settings import EngineSettings
from cobali_workloads.report.rounds import Figures

MAX_TOKENS = 120
"""An answer that goes nowhere, as of random logits, is begun anew after so many."""
N_STREAM_PROMPT = 16
_SAID, _STRAY = 40.0, 50.0  # above any of the random logits, which are normal with a deviation of 3
_WAIT_S = 120.0
_NUMBER = "<number>"


class StrayCase(NamedTuple):
    """What the model wants to say."""

    name: str
    stray: float | None
    """In which share of the ticks it says what its schema refuses; None: its logits are random."""


CASES = (
    StrayCase("fits by itself", 0.0),
    StrayCase("2 % refused", 0.02),
    StrayCase("5 % refused", 0.05),
    StrayCase("20 % refused", 0.2),
    StrayCase("all refused", 1.0),
    StrayCase("random logits", None),
)


class SchemaCase(NamedTuple):
    """A schema and an answer that fits."""

    schema: dict[str, Any]
    answer: str


_TEXT, _COUNT = {"type": "string"}, {"type": "integer", "minimum": 1}
SHAPES = {
    "person": SchemaCase(
        {
            "type": "object",
            "properties": {"name": _TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
            "required": ["name", "age"],
            "additionalProperties": False,
        },
        '{"name": "Ada Lovelace", "age": 36}',
    ),
    "order": SchemaCase(
        {
            "type": "object",
            "properties": {
                "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
                "customer": {
                    "type": "object",
                    "properties": {"name": _TEXT, "email": {"type": "string", "format": "email"}},
                    "required": ["name"],
                },
                "items": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {
                            "product": {"type": "string", "maxLength": 40},
                            "quantity": _COUNT,
                            "price": {"type": "number", "minimum": 0},
                        },
                        "required": ["product", "quantity", "price"],
                    },
                },
                "status": {"enum": ["new", "paid", "sent"]},
            },
            "required": ["id", "customer", "items", "status"],
        },
        '{"id": "AB-1234", "customer": {"name": "Grace Hopper", "email": "grace@example.com"}, "items": '
        '[{"product": "Blue lamp", "quantity": 2, "price": 19.95}, {"product": "Desk", "quantity": 1, '
        '"price": 240.0}], "status": "paid"}',
    ),
    "arguments": SchemaCase(
        {
            "type": "object",
            "properties": {
                "location": _TEXT,
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
            },
            "required": ["location"],
            "additionalProperties": False,
        },
        '{"location": "Paris, France", "unit": "celsius", "days": 3}',
    ),
    "any object": SchemaCase(
        {"type": "object"},
        '{"title": "A walk by the sea", "tags": ["sea", "walk"], "stars": 4.5, "open": true, "note": '
        '"The water was cold, but nobody minded."}',
    ),
}


@dataclass(slots=True)
class Draws:
    """Processor seconds that a tick's rows took to be drawn, free and bound, on the same logits."""

    free_s: list[float] = field(default_factory=list)
    bound_s: list[float] = field(default_factory=list)
    n_rows: int = 0
    n_refused: int = 0

    def figures(self) -> Figures:
        """Return what the rounds compare."""
        added = np.subtract(self.bound_s, self.free_s)
        shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
        return {
            "free_p50_s": float(np.median(self.free_s)),
            **{f"added_{name}_s": float(np.quantile(added, share)) for name, share in shares.items()},
            "refused": self.n_refused / self.n_rows,
        }


class Bound:
    """Rows that answer by schemas, over and over; every row stands somewhere else."""

    def __init__(self, backend: Backend, grammars: Grammars, n_rows: int, *, seed: int = 0) -> None:
        self._backend, self._grammars, self._n_rows = backend, grammars, n_rows
        shapes = list(SHAPES.values())
        self._asked = [check("schema", "json_schema", json.dumps(shape.schema)).grammar for shape in shapes]
        self._answers = [backend.words.tokenize(shape.answer, add_special=False) for shape in shapes]
        self._end = min(backend.end_tokens)
        self._rng = np.random.default_rng(seed)
        shape = (4, n_rows, backend.n_vocab)
        self._noise = self._rng.normal(0.0, 3.0, shape).astype(np.float32)
        self._logits = np.empty(shape[1:], np.float32)

    def measure(self, case: StrayCase, n_ticks: int) -> Draws:
        """Draw `n_ticks` ticks, free and bound in turns."""
        free = [self._row() for _ in range(self._n_rows)]
        bound = [self._bound(i) for i in range(self._n_rows)]
        at = [0] * self._n_rows
        draws = Draws()
        for tick in range(n_ticks):
            says = self._says(case, at)
            if tick % 2:
                free_s, _ = self._draw(tick, says, free)
            bound_s, drawn = self._draw(tick, says, bound)
            if not tick % 2:
                free_s, _ = self._draw(tick, says, free)
            draws.free_s.append(free_s)
            draws.bound_s.append(bound_s)
            draws.n_rows += self._n_rows
            likeliest = self._fill(tick, says).argmax(axis=1).tolist()
            draws.n_refused += sum(a != b for a, b in zip(likeliest, drawn.tokens, strict=True))
            for i, token in enumerate(drawn.tokens):
                at[i] += 1
                if i in drawn.complete or token in self._backend.end_tokens or at[i] >= MAX_TOKENS:
                    bound[i], at[i] = self._bound(i), 0
        return draws

    def _row(self) -> RowSampler:
        backend = self._backend
        return RowSampler(GREEDY, (), end_tokens=backend.end_tokens, n_vocab=backend.n_vocab)

    def _bound(self, i: int) -> RowSampler:
        row = self._row()
        row.matcher = self._grammars.matcher(self._asked[i % len(self._asked)])
        return row

    def _says(self, case: StrayCase, at: Sequence[int]) -> list[dict[int, float]]:
        """Return which logits of each row are not noise."""
        if case.stray is None:
            return [{} for _ in at]
        strays = self._rng.random(len(at)) < case.stray
        said: list[dict[int, float]] = []
        for i, place in enumerate(at):
            answer = self._answers[i % len(self._answers)]
            inside = place < len(answer)
            said.append({answer[place] if inside else self._end: _SAID})
            if strays[i] and inside:
                said[i][self._end] = _STRAY  # to end in the middle fits no schema
        return said

    def _fill(self, tick: int, says: Sequence[dict[int, float]]) -> np.ndarray[Any, np.dtype[np.float32]]:
        np.copyto(self._logits, self._noise[tick % len(self._noise)])
        for row, said in zip(self._logits, says, strict=True):
            row[list(said)] = list(said.values())
        return self._logits

    def _draw(
        self, tick: int, says: Sequence[dict[int, float]], rows: Sequence[RowSampler]
    ) -> tuple[float, SampleResult]:
        logits = self._fill(tick, says)
        began = time.thread_time()
        sampled = sample_rows(logits, rows)
        return time.thread_time() - began, sampled


# -- streams beside compilers ---------------------------------------------------------------------------


def large_grammar() -> Grammar:
    """Return the grammar of a schema of 50 kB; `another` makes new ones of it."""
    inner = {
        f"field {_NUMBER} {j}": {"type": "string", "maxLength": 9 + j, "pattern": "^[a-z ]*$"}
        for j in range(20)
    }
    part = {"type": "object", "properties": inner, "required": list(inner)[::2]}
    schema = {"type": "object", "properties": {f"part {i}": part for i in range(30)}}
    return check("schema", "json_schema", json.dumps(schema)).grammar


def another(grammar: Grammar, number: int) -> Grammar:
    """Return one that is no other number's, without a check, which is the ingress's work."""
    return Grammar(grammar.text.replace(_NUMBER, str(number)), grammar.field)


@dataclass(slots=True)
class CompileGaps:
    """The gaps of streams, and what was compiled meanwhile; seconds."""

    gaps_s: list[float]
    compiled_s: list[float]

    def figures(self) -> Figures:
        """Return what the rounds compare."""
        p50, p99 = (float(np.quantile(self.gaps_s, share)) for share in (0.5, 0.99))
        compiled_s = float(np.median(self.compiled_s)) if self.compiled_s else float("nan")
        return {
            "itl_p50_s": p50, "itl_p99_s": p99, "compiled": float(len(self.compiled_s)),
            "compile_s": compiled_s,
        }  # fmt: skip


class FreeStreams:
    """Free streams on an engine's own thread, in every slot: whatever else comes in is compiled and waits."""

    def __init__(self, settings: EngineSettings, *, n_streams: int) -> None:
        self._settings, self._n_streams = settings, n_streams
        self._loop = EngineLoop(self._build, MonotonicClock(), self._take)
        self._ticks: list[TickStats] = []
        self._n_wanted = 0
        self._enough = threading.Event()
        self._compiled_s: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._grammar = large_grammar()
        self._n_grammars = self._n_runs = 0

    @contextmanager
    def open(self) -> Iterator[None]:
        """Load the model, and free it at the end of the `with`."""
        self._loop.start()
        self._loop.wait_open()
        try:
            yield
        finally:
            self._loop.stop()

    def run(self, n_ticks: int, *, compiling: bool) -> CompileGaps:
        """Let all streams generate for `n_ticks`; `compiling`, with one new grammar after another."""
        self._n_runs += 1
        self._ticks, self._n_wanted = [], n_ticks
        self._enough.clear()
        names = [f"stream-{self._n_runs}-{i}" for i in range(self._n_streams)]
        for i, name in enumerate(names):
            self._loop.submit(self._request(name, i, n_ticks + self._n_streams))
        compiled_s: list[float] = []
        if compiling:
            while not self._enough.is_set():
                compiled_s.append(self._compile_one())
        if not self._enough.wait(_WAIT_S):
            raise TimeoutError(f"{len(self._ticks)} of {n_ticks} ticks in {_WAIT_S:g} s")
        for name in names:
            self._loop.cancel(name)
        for _ in names:
            self._ended.get(timeout=_WAIT_S)
        return CompileGaps([gap for tick in self._ticks for gap in tick.gaps_s], compiled_s)

    def _compile_one(self) -> float:
        self._n_grammars += 1
        name = f"bound-{self._n_grammars}"
        self._loop.submit(self._request(name, 0, 1, another(self._grammar, self._n_grammars)))
        took_s = self._compiled_s.get(timeout=_WAIT_S)
        self._loop.cancel(name)
        return took_s

    def _request(self, name: str, i: int, max_tokens: int, grammar: Grammar | None = None) -> Request:
        prompt = tuple(65 + (i + k) % 26 for k in range(N_STREAM_PROMPT))
        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        return Request(
            request_id=name, prompt=prompt, max_tokens=max_tokens, sampling=sampling, grammar=grammar
        )

    # -- in the engine's thread

    def _build(self, sink: Sink) -> tuple[Engine, FreeStreams]:
        engine = open_engine(self._settings, sink)
        compile_grammar = engine.samplers.matcher

        def timed(request: Request) -> Matcher | None:  # in the thread that compiles
            began = time.perf_counter()
            try:
                return compile_grammar(request)
            finally:
                self._compiled_s.put(time.perf_counter() - began)

        engine.samplers.matcher = timed  # type: ignore[method-assign]  # to look on, nothing else
        return engine, self

    def _take(self, batch: list[tuple[str, EngineEvent]]) -> None:
        for _, event in batch:
            if isinstance(event, End) and event.request_id.startswith("stream"):
                self._ended.put(event.request_id)

    def on_tick(self, stats: TickStats) -> None:
        """Note a tick in which every stream generates."""
        if stats.n_decode == self._n_streams and len(self._ticks) < self._n_wanted:
            self._ticks.append(stats)
            if len(self._ticks) == self._n_wanted:
                self._enough.set()

    def on_submit(self, sequence: EngineSequence) -> None:
        """Do nothing."""

    def on_embed(self, request: EmbeddingRequest) -> None:
        """Do nothing."""

    def on_end(self, end: End) -> None:
        """Do nothing."""

    def on_refusal(self, reason: str) -> None:
        """Do nothing."""

    def on_idle(self, n_cells: int) -> None:
        """Do nothing."""
