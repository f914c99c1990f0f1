"""Tasks that one kind of tool is there for, and what several of them draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.corpus.tables.words import WORDS
from training.corpus.tables.world import CAPITALS
from training.corpus.tool import Task, typed
from training.corpus.unknown import invented

Draw = Callable[[Random, bool, int], Task]
"""Draw a task of so many calls."""

CITIES = (
    *CAPITALS.values(), "New York", "Chicago", "Sydney", "Mumbai", "Hamburg", "Naples", "Venice", "Kyoto", "Shanghai",
    "London", "San Francisco", "Los Angeles", "Boston", "Milan", "Barcelona", "Munich", "Prague", "Zurich", "Lyon",
    "Toronto", "Singapore", "Porto", "Bergen", "Krakow", "Seville", "Dallas", "Leeds", "Ghent", "Basel", "Turin",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Tasks that one kind of tool is there for; `both` asks for two things at once, `again` for another one."""

    name: str
    wordings: tuple[str, ...]
    draw: Draw
    both: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    weight: float = 1.0
    acts: bool = False
    """Whether it does something in the world, so that no question could be answered by it."""


def distinct(n: int, draw: Callable[[], str]) -> list[str]:
    """Draw `n` different things."""
    things: list[str] = []
    while len(things) < n:
        thing = draw()
        if thing not in things:
            things.append(thing)
    return things


def slots_of(things: list[str]) -> dict[str, str]:
    """Name the slots of one thing and of two: the last one is also `it`."""
    return {"it": things[-1], "a": things[0], "b": things[-1]}


def draw_city(rng: Random, *, held: bool) -> str:
    """Draw the name of a city, now and then an invented one."""
    if not held and rng.random() < 0.15:
        return invented(rng)
    return typed(rng.choice(CITIES), rng, held=held)


def draw_number(rng: Random) -> float:
    """Draw a number as people write them."""
    if rng.random() < 0.12:
        return rng.randint(0, 199) + rng.randint(1, 9) / 10
    return rng.randint(2, rng.choice((12, 99, 99, 999, 9999)))


def draw_words(rng: Random, least: int, most: int) -> str:
    """Draw a few words that say nothing together."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))
