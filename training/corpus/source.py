"""Where examples come from: an intent has wordings, split once into trained and held-out ones, and a draw."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from training.corpus.example import Check, Example, Turn
from training.corpus.phrase import expansions, fill, normal, with_articles
from training.corpus.surface import voiced

SPLIT_SEED = "which wordings are held out, 1"
_HELD_SHARE = 6
"""One wording in six is never trained on."""
_FEWEST_TO_SPLIT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One thing to ask: what fills the slots, the answer, and the check of other answers."""

    answer: str
    check: Check
    values: Mapping[str, str] = field(default_factory=dict)


class Source(Protocol):
    """Anything that makes examples of one kind."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def weight(self) -> float:
        """How often it is asked, against others of its kind."""

    @property
    def wordings(self) -> tuple[str, ...]: ...

    def make(self, rng: Random, *, held: bool) -> Example:
        """Make an example of trained wordings, or one of held-out wordings (and operands, where it has some)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One thing that people ask in many wordings, answered in one turn."""

    name: str
    kind: str
    wordings: tuple[str, ...]
    draw: Callable[[Random, bool], Drawn]
    further: tuple[str, ...] = ()
    """Wordings that are only trained on: more of them never change which ones are held out."""
    unseen: tuple[str, ...] = ()
    """Wordings that only the evaluation asks, as they are typed."""
    weight: float = 1.0
    loose: bool = False
    """Slots may be typed in lower case."""
    polite: bool = True
    """Statements may have openers and closers, as in `hello, add 2 and 3, please`."""
    split: str = ""
    """Intents that share their wordings share this name, so that all hold out the same ones."""

    def make(self, rng: Random, *, held: bool, chat: bool = True) -> Example:
        """Ask once; `chat` lets it be typed as in a chat where it is not held out."""
        drawn = self.draw(rng, held)
        values = dict(drawn.values)
        if self.loose and rng.random() < 0.15:
            values = {name: value.lower() for name, value in values.items()}
        wording = pick(self.split or self.name, self.wordings, rng, held=held, further=self.further)
        question = with_articles(
            fill(voiced(wording, rng, slips=not held, polite=self.polite, chat=chat), values)
        )
        return self._example(question, drawn)

    def make_unseen(self, wording: str, rng: Random) -> Example:
        """Ask once in one of the `unseen` wordings, word for word."""
        drawn = self.draw(rng, True)
        return self._example(with_articles(fill(wording, drawn.values)), drawn)

    def _example(self, question: str, drawn: Drawn) -> Example:
        turns = (Turn("user", question), Turn("assistant", drawn.answer))
        return Example(kind=self.kind, source=self.name, turns=turns, check=drawn.check)


@dataclass(frozen=True, slots=True)
class IntentMaker:
    """Makes the intents of one kind, which begins their names."""

    kind: str
    loose: bool = False

    def __call__(
        self,
        name: str,
        wordings: tuple[str, ...],
        draw: Callable[[Random, bool], Drawn],
        weight: float = 1.0,
        further: tuple[str, ...] = (),
        *,
        loose: bool | None = None,
        polite: bool = True,
    ) -> Intent:
        return Intent(
            name=f"{self.kind}.{name}",
            kind=self.kind,
            wordings=wordings,
            draw=draw,
            further=further,
            weight=weight,
            loose=self.loose if loose is None else loose,
            polite=polite,
        )


def pick(
    name: str, wordings: tuple[str, ...], rng: Random, *, held: bool, further: tuple[str, ...] = ()
) -> str:
    """Choose a wording from one half of the split; long patterns stand for more, but not in proportion."""
    return rng.choice(held_out(name, wordings) if held else trained(name, wordings, further))


@functools.cache
def held_out(name: str, wordings: tuple[str, ...]) -> tuple[str, ...]:
    """Return the wordings that training never uses; none where there are too few to spare one."""
    if len(wordings) < _FEWEST_TO_SPLIT:
        return ()
    return _shuffled(name, wordings)[: max(1, len(wordings) // _HELD_SHARE)]


@functools.cache
def trained(name: str, wordings: tuple[str, ...], further: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the others, but for those that could be said just like a held-out one."""
    spared = held_out(name, wordings)
    held_texts = normal_texts(spared)
    others = (*_shuffled(name, wordings)[len(spared) :], *further)
    return tuple(wording for wording in others if held_texts.isdisjoint(normal_texts((wording,))))


def normal_texts(wordings: tuple[str, ...]) -> frozenset[str]:
    """Return the words of all that wordings can be expanded to."""
    return frozenset(normal(text) for wording in wordings for text in expansions(wording))


def _shuffled(name: str, wordings: tuple[str, ...]) -> tuple[str, ...]:
    def rank(wording: str) -> str:
        return hashlib.sha256(f"{SPLIT_SEED} {name} {wording}".encode()).hexdigest()

    return tuple(sorted(wordings, key=rank))


def lines(text: str) -> tuple[str, ...]:
    """Split typed wordings, one on each line."""
    return tuple(line.strip() for line in text.strip().splitlines() if line.strip())


def fixed(answer: str, check: Check) -> Callable[[Random, bool], Drawn]:
    """Draw the same thing every time."""
    drawn = Drawn(answer=answer, check=check)
    return lambda _rng, _held: drawn
