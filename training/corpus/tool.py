"""A tool and what is asked of it: names, parameters and results in the many shapes that programmers give them."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from random import Random
from typing import Any

from training.corpus.tables.words import WORDS
from training.corpus.unknown import invented

_STRING: Mapping[str, Any] = {"type": "string"}


_MORE: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("unit", {"type": "string", "enum": ["celsius", "fahrenheit"]}),
    ("units", {"type": "string", "enum": ["metric", "imperial"]}),
    ("format", {"type": "string", "enum": ["short", "long"]}),
    ("format", {"type": "string"}),
    ("country", {"type": "string"}),
    ("lang", {"type": "string"}),
    ("verbose", {"type": "boolean"}),
    ("precision", {"type": "integer"}),
    ("timeout", {"type": "number"}),
    ("tags", {"type": "array"}),
    ("options", {"type": "object"}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call; parameters by their JSON Schema, in order."""

    name: str
    description: str = ""
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def with_more(self, rng: Random) -> Tool:
        """Add a parameter that no question says anything about, so that no call has it."""
        name, schema = rng.choice(_MORE)
        return (
            self if name in self.parameters else replace(self, parameters={**self.parameters, name: schema})
        )

    def as_offered(self) -> dict[str, Any]:
        """Return it as the chat API wants it."""
        schema = {"type": "object", "properties": dict(self.parameters), "required": list(self.parameters)}
        function: dict[str, Any] = {"name": self.name, "parameters": schema}
        if self.description:
            function["description"] = self.description
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to ask: the tool for it, what fills the slots, the calls, their results, and what to say of them."""

    tool: Tool
    values: Mapping[str, str]
    calls: tuple[Mapping[str, Any], ...]
    results: tuple[str, ...]
    answers: tuple[str, ...]
    """What to say of each result, as a sentence or as it stands."""
    terms: tuple[tuple[str, ...], ...]
    """What each of these must hold."""
    beside: tuple[Tool, ...] = ()
    """Tools so like it that only the question tells which one is meant."""

    @property
    def answer(self) -> str:
        """What to say of all results."""
        if len(self.answers) == 1:
            (answer,) = self.answers
        else:
            answer = ", and ".join(part.rstrip(".") for part in self.answers) + "."
        return answer[:1].upper() + answer[1:]

    def part(self, i: int) -> Task:
        """Return the part of it that is one of its calls."""
        return replace(
            self,
            values={**self.values, "it": self.values["ab"[i]]},
            calls=self.calls[i : i + 1],
            results=self.results[i : i + 1],
            answers=self.answers[i : i + 1],
            terms=self.terms[i : i + 1],
        )

    def renamed(self, names: Mapping[str, str]) -> Task:
        """Call the parameters otherwise, in the tool and in the calls."""
        parameters = {names.get(name, name): schema for name, schema in self.tool.parameters.items()}
        calls = tuple({names[name]: value for name, value in call.items()} for call in self.calls)
        return replace(self, tool=replace(self.tool, parameters=parameters), calls=calls)

    def messages(self) -> list[dict[str, Any]]:
        """Return the assistant's message that calls, and the messages with the results."""
        calls = [
            {"type": "function", "function": {"name": self.tool.name, "arguments": dict(arguments)}}
            for arguments in self.calls
        ]
        return [
            {"role": "assistant", "content": "", "tool_calls": calls},
            *({"role": "tool", "content": result} for result in self.results),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Names for one thing: those that are trained, and those that only the evaluation uses."""

    trained: tuple[str, ...]
    held: tuple[str, ...]
    share_invented: float = 0.0

    def draw(self, rng: Random, *, held: bool) -> str:
        """Draw one; some of the trained ones are invented, so that any name can be copied."""
        if held:
            return rng.choice(self.held)
        if rng.random() < self.share_invented:
            return invented(rng).lower()
        return rng.choice(self.trained)


def pool(trained: str, held: str, share_invented: float = 0.0) -> Pool:
    """Make a pool of words between spaces."""
    return Pool(trained=tuple(trained.split()), held=tuple(held.split()), share_invented=share_invented)


HELD_WORDS = frozenset(
    [
        "query",
        "retrieve",
        "obtain",
        "perform",
        "execute",
        "trigger",
        "municipality",
        "destination",
        "chamber",
        "spot",
        "measure",
        "lit",
        "setting",
        "intensity",
        "warmth",
        "sentence",
        "tongue",
        "phrase",
        "question",
        "how",
        "many",
        "note",
        "due",
        "receiver",
        "subject",
        "occasion",
        "tune",
        "magnitude",
        "unit",
        "quantity",
        "start",
        "end",
        "function",
        "term",
        "equation",
        "one",
        "two",
        "item",
        "the",
        "pair",
    ]
)
"""What the evaluation names functions and parameters by: nothing is named so by chance."""
_VERBS = pool("get fetch find lookup read show check give load call", "query retrieve obtain")
_DOING = pool("set do make run start create add new call", "perform execute trigger")
_TAILS = ("", "", "", "", "_tool", "_v2", "_api", "_now", "_for_me")


def asking_name(noun: str, rng: Random, *, held: bool) -> str:
    """Name a function that returns something."""
    return _name(_VERBS, noun, rng, held=held)


def doing_name(noun: str, rng: Random, *, held: bool) -> str:
    """Name a function that does something."""
    return _name(_DOING, noun, rng, held=held)


def _name(verbs: Pool, noun: str, rng: Random, *, held: bool) -> str:
    """Join a verb and a noun as programmers do, or invent a name; a held-out one has a verb that is held out."""
    noun = re.sub(r"\W+", "_", noun.lower())
    verb, way = verbs.draw(rng, held=held), rng.random()
    if held:
        return f"{verb}_{noun}" if way < 0.7 else f"{noun}_{verb}"
    if way < 0.07:
        return any_name(rng)
    if way < 0.2:
        return f"{any_name(rng)}_{noun}" if way < 0.15 else f"{noun}_{any_name(rng)}"
    if way < 0.35:
        return noun + rng.choice(_TAILS)
    if way < 0.42:
        return _camel(f"{verb}_{noun}")
    return f"{verb}_{noun}{rng.choice(_TAILS)}" if way < 0.85 else f"{noun}_{verb}"


@functools.cache
def _any_words() -> tuple[str, ...]:
    """Return words of every sort, but for those that the evaluation names things by."""
    text = (resources.files("cobali_workloads.models") / "text" / "words.txt").read_text(encoding="utf-8")
    return tuple(sorted({*WORDS, *re.findall(r"\b[a-z]{3,12}\b", text)} - HELD_WORDS))


def any_name(rng: Random) -> str:
    """Name something by any word or two, or by one that nobody has heard of."""
    way = rng.random()
    if way < 0.25:
        return invented(rng).lower()
    return "_".join(rng.choice(_any_words()) for _ in range(1 if way < 0.75 else 2))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def string() -> Mapping[str, Any]:
    return _STRING


def one_of(*values: str) -> Mapping[str, Any]:
    return {"type": "string", "enum": list(values)}


def number(rng: Random, value: float) -> Mapping[str, Any]:
    """Return a type that such a number has."""
    return {"type": "number" if not float(value).is_integer() or rng.random() < 0.5 else "integer"}


def typed(text: str, rng: Random, *, held: bool) -> str:
    """Return a name as somebody may type it: now and then in lower case, and then it is copied so."""
    return text if held or rng.random() < 0.92 else text.lower()


def report(fields: Mapping[str, Any], plain: str, rng: Random) -> str:
    """Write a result: mostly JSON, now and then with more in it than is needed, else in words."""
    way = rng.random()
    if way < 0.25:
        return plain
    if way < 0.35:
        return json.dumps({"ok": True, **fields})
    if way < 0.45:
        return json.dumps({"result": dict(fields)})
    if way < 0.55:
        return json.dumps({**fields, "source": invented(rng).lower()})
    return json.dumps(dict(fields))


def done(rng: Random) -> str:
    """Write the result of something that was done."""
    return rng.choice(
        ("ok", "OK", "done", "success", '{"ok": true}', '{"status": "ok"}', '{"success": true}', "true", "{}",
         '{"status": "done"}', '{"result": "ok"}', "null")
    )  # fmt: skip
