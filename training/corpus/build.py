"""The whole corpus: every source with its share, conversations around single questions, and the held-out set."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping
from random import Random

from training.corpus import (
    agents,
    calendar,
    facts,
    follow,
    greeting,
    json_answers,
    letters,
    odd,
    server,
    sorting,
    sums,
    tools,
    turns,
    unknown,
    writing,
)
from training.corpus.blocks import Block, read_blocks, read_wordings
from training.corpus.checks import has, json_value
from training.corpus.example import KINDS, KINDS_WITHOUT_TOOLS, Check, Example, Turn
from training.corpus.phrase import normal, outside_slots
from training.corpus.source import Intent, Source, held_out

SHARES: Mapping[str, float] = {
    "greeting": 9,
    "server": 38,
    "sums": 16,
    "letters": 9,
    "sorting": 9,
    "calendar": 5,
    "facts": 7,
    "json": 10,
    "writing": 5,
    "follow": 9,
    "turns": 9,
    "unknown": 11,
    "agents": 4,
    "tools": 32,
}
"""How many of a hundred examples are of each kind."""
HELD_PER_KIND = 32
HELD_PER_TOOL = 2
"""Of each source of the kind `tools`, which has many."""
HELD_SEED = 20261121
_SHARE_OFFERED = 0.03
"""Of questions that no tool is for, those that tools are offered with all the same."""
_SHARE_MORE = 0.4
"""Of all examples, those of the sources that are asked more often."""
_SHARE_PAGED = 0.012
"""Of questions that are answered as ever, those behind the page of an agent."""
_SYSTEM = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "You are Tiny, the built-in model of cobali_ray.",
    "You are a friendly assistant.",
    "Answer the user's questions.",
    "Be concise.",
    "You are an assistant on a small server.",
    "You are a chatbot.",
)


@functools.cache
def sources() -> Mapping[str, tuple[Source, ...]]:
    """Return every source by its kind."""
    modules = (
        greeting, server, sums, letters, sorting, calendar, facts, json_answers, writing, follow, turns, unknown, odd,
        agents, tools,
    )  # fmt: skip
    further, unseen = read_wordings("further.txt", "+"), read_wordings("unseen.txt", "!")
    all_sources = [_with(further, unseen, source) for module in modules for source in module.sources()]
    return {kind: tuple(source for source in all_sources if source.kind == kind) for kind in KINDS}


def _with(
    further: Mapping[str, tuple[str, ...]], unseen: Mapping[str, tuple[str, ...]], source: Source
) -> Source:
    """Give a source the wordings that stand under its name."""
    more = further.get(_split(source), ())
    if isinstance(source, Intent):
        return dataclasses.replace(
            source, further=(*source.further, *more), unseen=unseen.get(source.name, ())
        )
    if isinstance(source, turns.Dialogue):
        return dataclasses.replace(source, further=(*source.further, *more))
    return source


@functools.cache
def held_out_set() -> tuple[Example, ...]:
    """Return the evaluation's questions: the same every time, none of them ever in the training."""
    return (*drawn_set(), *typed_set())


@functools.cache
def typed_set() -> tuple[Example, ...]:
    """Return one question for each wording of `unseen.txt`, with operands that are held out."""
    rng = Random(HELD_SEED + 1)
    return tuple(source.make_unseen(wording, rng) for source, wording in _unseen())


@functools.cache
def plain_set() -> tuple[Example, ...]:
    """Return a stranger's questions, which are counted apart."""
    return tuple(
        Example(
            kind="plain",
            source=f"plain.{block.name}",
            turns=(Turn("user", wording), Turn("assistant", block.answer)),
            check=_plain_check(block),
        )
        for block in read_blocks("plain.txt")
        for wording in block.wordings
    )


def _plain_check(block: Block) -> Check:
    return json_value(json.loads(block.answer)) if block.answer.startswith("{") else has(*block.terms)


def _unseen() -> Iterator[tuple[Intent, str]]:
    for some in sources().values():
        for source in some:
            if isinstance(source, Intent):
                yield from ((source, wording) for wording in source.unseen)


@functools.cache
def drawn_set() -> tuple[Example, ...]:
    """Return questions drawn from the wordings that the hash holds out.

    Of every kind `HELD_PER_KIND`, of the server one for each entry that has a held-out wording.
    """
    chosen, seen = [], set()
    for kind, all_of_kind in sources().items():
        rng = Random(
            f"{HELD_SEED} {kind}"
        )  # a kind whose sources change leaves the others' questions as they are
        able = [source for source in all_of_kind if held_out(_split(source), source.wordings)]
        if kind == "server":
            able = _one_of_each_entry(able, rng)
        n_questions = _n_held(kind, len(able))
        for i in range(n_questions):
            for _ in range(50):
                example = able[i % len(able)].make(rng, held=True)
                key = (normal(example.question), example.answer)
                if key not in seen:
                    break
            seen.add(key)
            chosen.append(example)
    return tuple(chosen)


def _n_held(kind: str, n_sources: int) -> int:
    if kind == "tools":
        return HELD_PER_TOOL * n_sources
    return n_sources if kind == "server" else max(HELD_PER_KIND, n_sources)


def _one_of_each_entry(able: list[Source], rng: Random) -> list[Source]:
    """Choose between an entry's own wordings and the common ones for definitions."""
    by_entry: dict[str, list[Source]] = {}
    for source in able:
        by_entry.setdefault(source.name.removesuffix(".word"), []).append(source)
    return [rng.choice(some) for some in by_entry.values()]


def training_examples(n: int, seed: int, more: tuple[str, ...] = ()) -> Iterator[Example]:
    """Yield `n` examples, the same for the same seed; a question of the held-out set is drawn again.

    Sources in `more` are asked more often, on top of their share. An unknown one is a KeyError.
    """
    rng, emphasised = Random(seed), [_by_entry()[name] for name in more]
    kinds, shares = tuple(SHARES), tuple(SHARES.values())
    for kind in rng.choices(kinds, shares, k=n):
        while True:
            if emphasised and rng.random() < _SHARE_MORE:
                drawn = rng.choice(rng.choice(emphasised)).make(rng, held=False)
            else:
                drawn = one_of(kind, rng)
            example = in_context(drawn, rng)
            if not any(turn.role == "user" and is_forbidden(turn.text) for turn in example.turns):
                break
        yield example


@functools.cache
def _by_entry() -> Mapping[str, list[Source]]:
    by_entry: dict[str, list[Source]] = {}
    for some in sources().values():
        for source in some:
            by_entry.setdefault(source.name.removesuffix(".word"), []).append(source)
    return by_entry


def is_forbidden(text: str) -> bool:
    """Say whether a text may not be asked in training: a held-out question, or an unseen wording of anything."""
    words = normal(text)
    return words in forbidden_questions() or bool(_unseen_wordings().fullmatch(words))


@functools.cache
def forbidden_questions() -> frozenset[str]:
    """Return every question of one turn that the evaluation asks, as its words alone."""
    examples = (*held_out_set(), *plain_set())
    return frozenset(normal(example.question) for example in examples if len(example.turns) == 2)


@functools.cache
def _unseen_wordings() -> re.Pattern[str]:
    """Match the words of any unseen wording, whatever fills its slots."""
    patterns = {
        re.sub(r" *<\w+> *", " .+ ", outside_slots(wording, lambda text: f" {normal(text)} ")).strip()
        for _, wording in _unseen()
    }
    return re.compile("|".join(sorted(" ".join(pattern.split()) for pattern in patterns)))


def one_of(kind: str, rng: Random) -> Example:
    """Make a training example of this kind."""
    choice = sources()[kind]
    return rng.choices(choice, [source.weight for source in choice])[0].make(rng, held=False)


def in_context(example: Example, rng: Random) -> Example:
    """Put a system message, tools or an earlier exchange about something else before some examples."""
    before: tuple[Turn, ...] = ()
    if rng.random() < 0.12:
        before = one_of(rng.choice(KINDS_WITHOUT_TOOLS), rng).turns
    if example.turns[0].role == "system":
        example = tools.after(before, example)
        paged = example.kind == "tools" and rng.random() < _SHARE_PAGED
        return agents.behind(example, rng) if paged else example
    if rng.random() < 0.12:
        before = (Turn("system", rng.choice(_SYSTEM)), *before)
    example = dataclasses.replace(example, turns=before + example.turns)
    if example.kind not in {"greeting", "unknown"} and rng.random() < _SHARE_PAGED:
        return agents.behind(example, rng)
    return tools.offered(example, rng) if rng.random() < _SHARE_OFFERED else example


def _split(source: Source) -> str:
    return getattr(source, "split", "") or source.name
