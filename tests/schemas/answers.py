"""What a schema comes to: how it is taken, answers of random models under it, a second opinion on them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import validator_for

from cobali_ray.backend.grammar import CheckedGrammar, check
from cobali_ray.backend.sampling import RowSampler, sample_rows
from cobali_ray.backend.scripted import END_TOKEN, N_VOCAB
from cobali_ray.core.request.request import Grammar, SamplingParams
from cobali_ray.engine.opening import open_engine
from cobali_ray.errors import BadRequestError
from cobali_ray.settings import read_settings

PARAM = "schema"
MOST_TOKENS = 400
N_FREE = 30
"""Tokens after which an answer is steered to its end, more strongly with each token."""
ENDS = np.frombuffer(b'"}]', np.uint8)
GOES_ON = np.frombuffer(b",{[0123456789\\", np.uint8)
SAMPLINGS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, top_k=8),
    SamplingParams(temperature=1.0, top_p=0.9),
)


@dataclass
class Verdict:
    """What became of one schema. The errors are what must not be."""

    refused: str | None = None
    """Why it is refused without `strict`."""
    refused_strictly: str | None = None
    ignored: tuple[str, ...] = ()
    """What is not held without `strict`."""
    broken: str | None = None
    """Why no answer could be begun or gone on with, though the schema was taken."""
    n_answers: int = 0
    n_finished: int = 0
    n_invalid: int = 0
    errors: list[str] = field(default_factory=list)


class Judge:
    """Has random models answer under schemas, and validates. One token is one byte."""

    def __init__(self) -> None:
        settings = read_settings({"model": "builtin:scripted:0"})
        self.matcher = open_engine(settings, lambda _: None).samplers.grammars.matcher

    def judge(self, schema: Any, *, seed: int, n_answers: int) -> Verdict:
        """Take a schema as the API would, answer, validate."""
        text = json.dumps(schema)
        lenient, strict = _checked(text, strict=False), _checked(text, strict=True)
        verdict = Verdict()
        verdict.refused_strictly = strict if isinstance(strict, str) else None
        verdict.errors += [
            f"no part of the schema is named: {refusal}"
            for refusal in (lenient, strict)
            if isinstance(refusal, str) and not names_a_part(refusal, schema)
        ]
        if isinstance(lenient, str):
            verdict.refused = lenient
            if verdict.refused_strictly is None:
                verdict.errors.append(f"strict takes what is refused without it: {lenient}")
            return verdict
        verdict.ignored = tuple(key for _, key in lenient.ignored)
        verdict.errors += _names_keys(verdict)
        try:
            answers = list(self.answers(lenient.grammar, seed=seed, n_answers=n_answers))
        except BadRequestError as error:
            verdict.broken = str(error)
            return verdict
        verdict.n_answers = len(answers)
        for answer in filter(None, answers):
            verdict.n_finished += 1
            if (problem := problem_of(schema, answer, verdict.ignored)) is not None:
                verdict.n_invalid += 1
                verdict.errors.append(f"{problem} in {answer.decode('utf-8', 'replace')[:300]}")
        return verdict

    def answers(self, grammar: Grammar, *, seed: int, n_answers: int) -> Iterator[bytes | None]:
        """Yield answers of random logits that come to want an end; None for one that found none."""
        rng = np.random.default_rng(seed)
        rows = [self._row(grammar, seed, i) for i in range(n_answers)]
        taken: list[list[int]] = [[] for _ in rows]
        finished: list[bytes | None] = [None] * n_answers
        open_ = list(range(n_answers))
        for n in range(MOST_TOKENS):
            sampled = sample_rows(_logits(rng, len(open_), n), [rows[i] for i in open_])
            left = []
            for at, i in enumerate(open_):
                token = sampled.tokens[at]
                if at in sampled.failed:  # too costly to go on with: an error to the client, no answer
                    continue
                if token != END_TOKEN:
                    taken[i].append(token)
                if token == END_TOKEN or at in sampled.complete:
                    finished[i] = bytes(taken[i])
                else:
                    left.append(i)
            if not (open_ := left):
                break
        yield from finished

    def _row(self, grammar: Grammar, seed: int, i: int) -> RowSampler:
        row = RowSampler(
            SAMPLINGS[(seed + i) % len(SAMPLINGS)], (), end_tokens=frozenset({END_TOKEN}), n_vocab=N_VOCAB,
            entropy=lambda: 1000 * seed + i,
        )  # fmt: skip
        row.matcher = self.matcher(grammar)
        return row


def _logits(rng: np.random.Generator, n_rows: int, n_taken: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    logits = rng.normal(0.0, 2.0, (n_rows, N_VOCAB)).astype(np.float32)
    logits[:, 128:] -= 3.0  # characters of several bytes, now and then
    wish = 0.2 * max(n_taken - N_FREE, 0)
    logits[:, [*ENDS, END_TOKEN]] += wish
    logits[:, GOES_ON] -= wish
    return logits


def _checked(text: str, *, strict: bool) -> CheckedGrammar | str:
    try:
        return check(PARAM, "json_schema", text, strict=strict)
    except BadRequestError as error:
        return str(error)


def _names_keys(verdict: Verdict) -> Iterator[str]:
    """Yield what is wrong with how keys that cannot be held are told."""
    refused, ignored = verdict.refused_strictly, verdict.ignored
    if bool(ignored) != (refused is not None):
        yield f"strict says {refused}, without it is ignored {ignored}"
    elif refused is not None and not any(key in refused for key in ignored):
        yield f"strict says {refused}, which names none of {ignored}"


def names_a_part(refusal: str, schema: Any) -> bool:
    """Tell whether a refusal begins with a JSON pointer to something in the schema, or calls it too long."""
    if refusal.startswith(f"{PARAM} is too long"):
        return True
    _, found, rest = refusal.partition(f"{PARAM} cannot be used: #")
    if not found:
        return False
    # A key may hold what ends a pointer, so it is followed as far as it leads.
    node = schema
    while rest.startswith("/"):
        parts = {str(i): one for i, one in enumerate(node)} if isinstance(node, list) else node
        steps = (
            [key.replace("~", "~0").replace("/", "~1") for key in parts] if isinstance(parts, dict) else []
        )
        step = max(
            (one for one in steps if re.match(re.escape(f"/{one}") + r"(/|: | \()", rest)),
            key=len,
            default=None,
        )
        if step is None:
            return False
        rest, node = rest[1 + len(step) :], parts[step.replace("~1", "/").replace("~0", "~")]
    return rest.startswith((": ", " ("))


def problem_of(schema: Any, answer: bytes, ignored: Sequence[str]) -> str | None:
    """Return what is wrong with an answer, but for keys that were said to be ignored."""
    try:
        value = json.loads(answer)
    except ValueError as error:
        return f"no JSON: {error}"
    validator = validator_for(schema, default=Draft202012Validator)
    for error in validator(schema, format_checker=validator.FORMAT_CHECKER).iter_errors(value):
        if not _excused(error, ignored):
            return f"{error.validator} at {error.json_path}: {error.message[:200]}"
    return None


def _excused(error: ValidationError, ignored: Sequence[str]) -> bool:
    if error.validator == "format" and "-02-29" in error.instance:
        return True  # the form of a date is held, no calendar: so the documentation says
    keys = {part for key in ignored for part in _SPELT.get(key, (key,))}
    return not keys.isdisjoint(error.absolute_schema_path) or any(
        _excused(one, ignored) for one in error.context or ()
    )


_SPELT = {"min/maxProperties": ("minProperties", "maxProperties")}
