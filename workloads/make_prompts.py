"""Write the prompt files of this folder from the templates in `text/`: `python workloads/make_prompts.py`.

Only `random.Random.random` is drawn from: of the whole module it alone promises the same numbers in
every Python version, and the files are compared byte for byte.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import yaml

HERE = Path(__file__).parent
SEED = 20310704
N_LONG = 32
LONG_PIECES = (740, 1600)
"""Shortest and longest aim of a long prompt, in pieces (see `n_pieces`)."""

_SLOT = re.compile(r"<([a-z]+)>")
_PIECE = re.compile(r"\d|[^\W\d_]+|[^\w\s]")
_SENTENCE_START = re.compile(r"(^|[.?!] )([a-z])")
_T = TypeVar("_T")


class Deck:
    """Deal items in a random order; shuffle again once all were dealt."""

    def __init__(self, items: list[str], rng: Random) -> None:
        self._items, self._rng = items, rng
        self._left: list[str] = []

    def deal(self) -> str:
        """Take the next item; none comes twice before every other came once."""
        if not self._left:
            self._left = shuffled(self._items, self._rng)
        return self._left.pop()


def shuffled(items: list[_T], rng: Random) -> list[_T]:
    """Return the items in a random order."""
    keys = [rng.random() for _ in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


def n_pieces(text: str) -> int:
    """Count words, digits and punctuation marks: near the number of tokens, without a vocabulary."""
    return len(_PIECE.findall(text))


def fill(template: str, values: dict[str, str]) -> str:
    """Replace every `<slot>`; values may hold slots too. An unknown slot is a KeyError."""
    while _SLOT.search(template):
        template = _SLOT.sub(lambda slot: values[slot[1]], template)
    return template


def short_prompts(templates: list[dict[str, Any]], tables: dict[str, list[str]], rng: Random) -> list[str]:
    """Make one prompt from each row of each template, in a random order."""
    decks = {name: Deck(items, rng) for name, items in tables.items()}
    prompts = []
    for template in templates:
        for row in template["rows"]:
            text = template["text"]
            columns = dict(zip("abcd", map(str, row), strict=False))
            asked = set(_SLOT.findall(" ".join([text, *columns.values()])))
            drawn = {name: deck.deal() for name, deck in decks.items() if name in asked}
            prompts.append(fill(text, columns | drawn))
    return shuffled(prompts, rng)


class LongText:
    """One long prompt in the making: an opening, units about one topic each, and what is asked at the end."""

    def __init__(self, kind: dict[str, list[str]], slots: dict[str, Deck], rng: Random) -> None:
        self._slots, self._rng = slots, rng
        self._decks = {part: Deck(items, rng) for part, items in kind.items()}
        self._held = {"owner": slots["owner"].deal(), "place": slots["place"].deal()}
        self._minute, self._day = self._below(600), self._below(9)
        self._sentences: list[str] = []

    def compose(self, opening: str, n_aim: int) -> str:
        """Fill units until about `n_aim` pieces are there, the closing question included."""
        self._next_unit()
        self._add_filled(opening)
        ask = self._fill(self._decks["asks"].deal())
        while (left := n_aim - n_pieces(" ".join([*self._sentences, ask]))) > 0:
            self._next_unit()
            self._add("heads")
            for _ in range(min(5 + self._below(4), left // 18)):
                self._add("bodies")
            self._add("closes")
        return " ".join([*self._sentences, ask])

    def _next_unit(self) -> None:
        self._held |= {"topic": self._decks["topics"].deal(), "person": self._slots["person"].deal()}
        self._day += 1

    def _add(self, part: str) -> None:
        # A sentence without slots would come back word for word; the next template stands in for it.
        while not self._add_filled(self._decks[part].deal()):
            pass

    def _add_filled(self, template: str) -> bool:
        sentence = self._fill(template)
        fresh = sentence not in self._sentences
        if fresh:
            self._sentences.append(sentence)
        return fresh

    def _fill(self, template: str) -> str:
        text = _SLOT.sub(lambda slot: self._value(slot[1]), template)
        return _SENTENCE_START.sub(lambda start: start[1] + start[2].upper(), text)

    def _value(self, slot: str) -> str:
        if slot in self._held:
            return self._held[slot]
        if slot == "hour":  # a clock that only moves forward, for logs
            self._minute += 1 + self._below(14)
            return f"{self._minute // 60 % 24:02}:{self._minute % 60:02}"
        if slot == "day":
            return str(self._day)
        if slot == "number":
            return str(3 + self._below(94))
        return self._slots[slot].deal()

    def _below(self, n: int) -> int:
        return int(self._rng.random() * n)


def long_prompts(kinds: dict[str, Any], slots: dict[str, list[str]], rng: Random) -> list[str]:
    """Make `N_LONG` prompts, the kinds in turn, their lengths spread evenly over `LONG_PIECES`."""
    low, high = LONG_PIECES
    aims = shuffled([low + (high - low) * i // (N_LONG - 1) for i in range(N_LONG)], rng)
    decks = {name: Deck(items, rng) for name, items in slots.items()}
    openings = {name: Deck(kind["openings"], rng) for name, kind in kinds.items()}
    names = list(kinds)
    prompts = []
    for i, aim in enumerate(aims):
        name = names[i % len(names)]
        prompts.append(LongText(kinds[name], decks, rng).compose(openings[name].deal(), aim))
    return prompts


def build(folder: Path) -> dict[str, str]:
    """Return file name -> content of every prompt file, from the templates in `folder`."""
    hand, everyday, craft, prose, records = (
        yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
        for name in ("hand", "everyday", "craft", "long_prose", "long_records")
    )
    kinds = prose | records
    slots = kinds.pop("slots")
    files = {
        "prompts_16.txt": hand["hand"],
        "prompts_186.txt": short_prompts(everyday + craft, hand["tables"], Random(SEED)),
        "prompts_long_32.txt": long_prompts(kinds, slots, Random(SEED)),
    }
    return {name: "\n\n".join(prompts) + "\n" for name, prompts in files.items()}


def main() -> None:
    """Write the files beside this script."""
    for name, content in build(HERE / "text").items():
        (HERE / name).write_text(content, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
