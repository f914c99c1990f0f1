"""Conversations with tools: which one to call and with what, and what to say of its result."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable
from importlib import resources
from random import Random
from typing import Any

from training.corpus.checks import calls, has
from training.corpus.example import Example, Turn
from training.corpus.phrase import fill
from training.corpus.source import Source, pick
from training.corpus.surface import voiced
from training.corpus.tasks import FAMILIES
from training.corpus.tasks.family import Family
from training.corpus.template import as_turns
from training.corpus.tool import Task, Tool, any_name

SYSTEM = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Use the tools.",
    "You are an assistant with tools.",
    "Be brief.",
    "Help the user.",
    "You are the assistant of a smart home.",
    "Use a tool where one helps.",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToolQuestion:
    """Questions that a tool is there for: the conversation ends with the calls, or with the answer in words."""

    name: str
    family: Family
    wordings: tuple[str, ...]
    split: str
    n_calls: int = 1
    answered: bool = False
    """Whether the results are there already and the answer in words is wanted."""
    after: bool = False
    """Whether the same was asked of something else before."""
    weight: float = 1.0
    kind: str = "tools"

    def make(self, rng: Random, *, held: bool) -> Example:
        """Ask once. A held-out question is about functions and parameters that training never names."""
        task = self.family.draw(rng, held, 2 if self.after else self.n_calls)
        if not held and rng.random() < _SHARE_RENAMED:
            task = _renamed(task, rng)
        if rng.random() < (0.3 if self.family.name == "weather" else 0.1):
            task = dataclasses.replace(task, tool=task.tool.with_more(rng))
        tools = _among(task, self.family, rng, held=held)
        messages: list[dict[str, Any]] = []
        if rng.random() < 0.2:
            messages.append({"role": "system", "content": rng.choice(SYSTEM)})
        if self.after:
            messages += self._exchange(task.part(0), rng)
            task = task.part(1)
        wording = pick(self.split, self.wordings, rng, held=held)
        question = fill(voiced(wording, rng, slips=not held), task.values)
        messages += [{"role": "user", "content": question}, *task.messages()]
        if self.answered:
            messages.append({"role": "assistant", "content": task.answer})
        else:
            messages = messages[: len(messages) - len(task.results)]
        name = task.tool.name
        offered = [tool.as_offered() for tool in tools]
        check = (
            has(*(term for some in task.terms for term in some))
            if self.answered
            else calls([(name, call) for call in task.calls], offered)
        )
        return Example(
            kind=self.kind, source=self.name, turns=as_turns(messages, offered), check=check, has_tools=True
        )

    def _exchange(self, task: Task, rng: Random) -> list[dict[str, Any]]:
        wording = pick(self.family.name, self.family.wordings, rng, held=False)
        question = fill(voiced(wording, rng, slips=False), task.values)
        return [
            {"role": "user", "content": question},
            *task.messages(),
            {"role": "assistant", "content": task.answer},
        ]


def sources() -> tuple[Source, ...]:
    """Return for each family the questions that want a call, and those that want an answer."""
    questions = []
    for family in FAMILIES:
        question = functools.partial(ToolQuestion, family=family)
        ways: list[tuple[str, tuple[str, ...], str, dict[str, Any], float]] = [
            (f"tools.{family.name}", family.wordings, family.name, {}, 1.0)
        ]
        if family.both:
            ways.append(
                (f"tools.{family.name}_both", family.both, f"{family.name} both", {"n_calls": 2}, 0.7)
            )
        if family.again:
            ways.append((f"tools.{family.name}_again", family.again, "again", {"after": True}, 0.25))
        for name, wordings, split, more, share in ways:
            weight = family.weight * share
            questions += [
                question(name=name, wordings=wordings, split=split, weight=weight * 0.6, **more),
                question(
                    name=f"{name}.told",
                    wordings=wordings,
                    split=split,
                    answered=True,
                    weight=weight * 0.4,
                    **more,
                ),
            ]
    return tuple(questions)


@functools.cache
def stranger_set() -> tuple[Example, ...]:
    """Return what a stranger asks of tools as the documents of clients have them; none of it is trained."""
    table = resources.files("training.corpus") / "tables" / "stranger_tools.jsonl"
    examples = []
    for line in table.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        called = [{"function": {"name": name, "arguments": arguments}} for name, arguments in entry["calls"]]
        chat = [
            {"role": "user", "content": entry["question"]},
            {"role": "assistant", "content": "", "tool_calls": called},
        ]
        examples.append(
            Example(
                kind="tools",
                source="tools.stranger",
                turns=as_turns(chat, entry["tools"]),
                check=calls([(name, arguments) for name, arguments in entry["calls"]], entry["tools"]),
                has_tools=True,
            )
        )
    return tuple(examples)


def offered(example: Example, rng: Random) -> Example:
    """Offer tools with a question that none of them is for; what the user says and gets stays as it is."""
    families = FAMILIES if example.kind in _ASKS_NOTHING else _ACTING
    tools = _unique(
        family.draw(rng, False, 1).tool for family in rng.sample(families, rng.choice((1, 1, 2, 3)))
    )
    messages: list[dict[str, Any]] = [turn.as_message() for turn in example.turns]
    return dataclasses.replace(
        example, turns=as_turns(messages, [tool.as_offered() for tool in tools]), has_tools=True
    )


def after(earlier: tuple[Turn, ...], example: Example) -> Example:
    """Put an earlier exchange behind the system turn of a conversation with tools."""
    system, *rest = example.turns
    return dataclasses.replace(example, turns=(system, *earlier, *rest))


_SHARE_RENAMED = 0.1
"""Of tools, those whose parameters have names that say nothing."""
_ACTING = tuple(family for family in FAMILIES if family.acts)
_ASKS_NOTHING = frozenset({"greeting", "letters", "sorting", "writing"})
"""Kinds of which no question could be answered by any tool."""


def _among(task: Task, family: Family, rng: Random, *, held: bool) -> list[Tool]:
    """Put the tool among others, in any order."""
    others = [
        other
        for other in FAMILIES
        if other.wordings is not family.wordings and other.name[:6] != family.name[:6]
    ]
    n = rng.choice((0, 0, 0, 1, 1, 2, 3)) if not task.beside else rng.choice((0, 0, 1))
    drawn = (other.draw(rng, held, 1).tool for other in rng.sample(others, n))
    tools = _unique((task.tool, *task.beside, *drawn))
    return rng.sample(tools, len(tools))


def _renamed(task: Task, rng: Random) -> Task:
    """Give the parameters any names, so that only their place and the question tell what they are for."""
    names: dict[str, str] = {}
    for name in task.tool.parameters:
        names[name] = any_name(rng)
        while list(names.values()).count(names[name]) > 1:
            names[name] = any_name(rng)
    return task.renamed(names)


def _unique(tools: Iterable[Tool]) -> list[Tool]:
    return list({tool.name: tool for tool in reversed(list(tools))}.values())
