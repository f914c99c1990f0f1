"""Anything by its name: a reading, or a thing with what is known of it."""

from __future__ import annotations

from random import Random
from typing import Any

from training.corpus.calendar import MONTHS
from training.corpus.source import lines
from training.corpus.tables.words import CLOTHES, COLOURS, FRUITS, JOBS, NAMES, WORDS
from training.corpus.tables.world import CAPITALS
from training.corpus.tasks.family import Family, distinct, draw_city, slots_of
from training.corpus.tool import Task, Tool, asking_name, report, string
from training.corpus.unknown import invented

_LOOKUP = lines("""
    what is the <noun> of <it>?
    what's the <noun> of <it>?
    (tell|give|show) me the <noun> of <it>
    (look up|find|get|check) the <noun> of <it>
    (the |)<noun> of <it>[, please]
    <it>'s <noun>[, please]
    what <noun> does <it> have?
    do you know the <noun> of <it>?
    I (need|want) (to know |)the <noun> of <it>
    (which|what) is <it>'s <noun>?
    (can|could) you (check|find) the <noun> of <it>?
""")
_LOOKUP_BOTH = lines("""
    what is the <noun> of <a> and [of ]<b>?
    (tell|give|show) me the <noun> of <a> and [of ]<b>
    (look up|find|get|check|compare) the <noun> of <a> and <b>
    (the |)<noun> of <a> and <b>[, please]
    I need the <noun> of <a> and <b>
    <a> and <b>: what is their <noun>?
""")
_OF_AGAIN = lines("""
    and of <it>?
    what about <it>?
    and <it>?
    how about <it>?
    the same for <it>[, please]
    now <it>[, please]
    and that of <it>?
""")
_NOUNS = {
    "city": ("population", "postcode", "altitude", "air quality", "mayor", "district"),
    "country": ("population", "area", "president", "anthem", "currency", "flag"),
    "product": ("price", "weight", "stock", "colour", "size", "rating", "shelf"),
    "person": ("age", "phone number", "email", "job", "office", "birthday", "salary"),
    "company": ("stock price", "revenue", "address", "founder", "turnover"),
    "order": ("status", "total", "delivery date", "address", "courier"),
    "book": ("author", "price", "number of pages", "publisher"),
    "flight": ("status", "delay", "gate", "terminal"),
    "train": ("platform", "delay", "destination", "track"),
    "server": ("load", "address", "uptime", "owner", "version"),
}
"""What can be asked of what; the last of each row is held out."""
_KEYS = {
    "person": ("person", "name", "who"),
    "order": ("order_id", "id", "order", "number"),
    "flight": ("flight", "code", "flight_number"),
    "train": ("train", "number", "line"),
}


def _member(category: str, rng: Random, *, held: bool) -> str:
    if category == "city":
        return draw_city(rng, held=held)
    if category == "country":
        return rng.choice(tuple(CAPITALS))
    if category == "person":
        return rng.choice(NAMES)
    if category == "product":
        return rng.choice((rng.choice(FRUITS), f"{rng.choice(COLOURS)} {rng.choice(CLOTHES)}", invented(rng)))
    if category == "book":
        return " ".join(rng.choice(WORDS).capitalize() for _ in range(2))
    if category in {"order", "flight", "train"}:
        letters = "".join(rng.choice("ABCDEFGHKLMNPRSTUVWXYZ") for _ in range(rng.choice((1, 2, 2, 3))))
        return f"{letters}{rng.choice(('', '-', ''))}{rng.randint(10, 99999)}"
    return invented(rng).lower() if category == "server" else invented(rng)


def _value(rng: Random) -> Any:
    way = rng.random()
    if way < 0.5:
        return rng.choice((rng.randint(1, 100), rng.randint(100, 99999), round(rng.uniform(1, 500), 2)))
    if way < 0.75:
        return rng.choice(
            (*COLOURS, *JOBS, "open", "closed", "shipped", "late", "on time", "high", "low", "unknown")
        )
    return rng.choice((invented(rng), rng.choice(NAMES), f"{rng.choice(MONTHS)} {rng.randint(1, 28)}"))


def _lookup(rng: Random, held: bool, n: int) -> Task:
    category = rng.choice(tuple(_NOUNS))
    noun = _noun(category, rng, held=held)
    chosen = distinct(n, lambda: _member(category, rng, held=held))
    key = rng.choice(_KEYS.get(category, (category, "name", f"{category}_name")))
    if held:
        key = rng.choice((f"the_{category}", "subject", "item"))
    elif rng.random() < 0.25:
        key = rng.choice(("q", "id", "query", "value", "key", invented(rng).lower()))

    def tool_for(attribute: str) -> Tool:
        joined = attribute if rng.random() < 0.7 else f"{category}_{attribute}"
        return Tool(
            name=asking_name(joined, rng, held=held),
            description=rng.choice((
                f"Get the {attribute} of a {category}.", f"Look up the {attribute} of a {category}.",
                f"The {attribute} of a {category}", f"Return the {attribute}.", f"Find out the {attribute} of something.",
            )),
            parameters={key: string()},
        )  # fmt: skip

    others = [other for other in _NOUNS[category][:-1] if other != noun]
    values = [_value(rng) for _ in chosen]
    field = rng.choice((noun.replace(" ", "_"), "value", "result"))
    labels = [
        f"{category} {thing}" if category in {"order", "flight", "train"} and rng.random() < 0.6 else thing
        for thing in chosen
    ]
    answers = [f"the {noun} of {thing} is {value}." for thing, value in zip(chosen, values, strict=True)]
    return Task(
        tool=tool_for(noun),
        values={**slots_of(labels), "noun": noun},
        calls=tuple({key: thing} for thing in chosen),
        results=tuple(report({field: value}, str(value), rng) for value in values),
        answers=tuple(answers),
        terms=tuple((str(value),) for value in values),
        beside=tuple(map(tool_for, rng.sample(others, rng.choice((0, 0, 1, 2))))),
    )


_NOW = lines("""
    what is the <noun>[ now| right now]?
    what's the <noun>[ now]?
    (tell|give|show) me the <noun>
    (check|get|look up) the <noun>
    (the |)<noun>[, please]
    I (need|want) (to know |)the <noun>
    do you know the <noun>[ now]?
    (can|could) you (check|tell me) the <noun>?
""")
_READINGS = (
    "time", "time", "time", "date", "battery level", "free memory", "room temperature", "queue length", "exchange rate",
    "disk usage", "speed", "score", "number of users", "next train", "wind speed", "water level",
)  # fmt: skip
_HELD_READINGS = ("air pressure", "cpu load", "weekday")


def _reading(rng: Random, held: bool, _n: int) -> Task:
    """Draw a tool that takes nothing."""
    noun = rng.choice(_HELD_READINGS if held else _READINGS)
    if not held and rng.random() < 0.15:
        noun = invented(rng).lower()
    value = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}" if noun == "time" else _value(rng)
    tool = Tool(
        name=asking_name(rng.choice((noun, f"current {noun}")), rng, held=held),
        description=rng.choice(
            (f"Get the {noun}.", f"Get the current {noun}.", f"Return the {noun}.", f"The {noun} right now")
        ),
    )
    return Task(
        tool=tool,
        values={"noun": noun},
        calls=({},),
        results=(report({rng.choice((noun.replace(" ", "_"), "value", "now")): value}, str(value), rng),),
        answers=(f"The {noun} is {value}.",),
        terms=((str(value),),),
    )


def _noun(category: str, rng: Random, *, held: bool) -> str:
    nouns = _NOUNS[category]
    if held:
        return nouns[-1]
    return invented(rng).lower() if rng.random() < 0.15 else rng.choice(nouns[:-1])


FAMILIES = (
    Family(name="reading", wordings=_NOW, draw=_reading, weight=0.8),
    Family(name="lookup", wordings=_LOOKUP, draw=_lookup, both=_LOOKUP_BOTH, again=_OF_AGAIN, weight=3),
)
