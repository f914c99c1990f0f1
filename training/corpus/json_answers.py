"""Answers in JSON: a record, a list, a fact."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from training.corpus.calendar import DAYS, MONTHS
from training.corpus.checks import json_record, json_value
from training.corpus.letters import a_word
from training.corpus.phrase import fill, with_articles
from training.corpus.source import Drawn, IntentMaker, Source, lines
from training.corpus.sums import pair
from training.corpus.tables.words import CLOTHES, COLOURS, FRUITS, FURNITURE, JOBS, NAMES, VEGETABLES
from training.corpus.tables.world import CAPITALS, SYMBOLS

CITIES = tuple(CAPITALS.values())
_ITEMS = tuple(
    f"{word}s"
    for word in (*FRUITS, *VEGETABLES, *CLOTHES, *FURNITURE)
    if not word.endswith(("s", "y", "h", "f", "o"))
)
_ANY_AGE = 30

_AGE = lines("""
    (write|give me|make|create|return|show) (JSON|a JSON object|an object in JSON) with (the |)name <name> and (the |)age <age>
    (name|the name is) <name>, age <age>(, as JSON|, in JSON|. as JSON, please)
    put (this|the following) (into|in) JSON: <name> is <age> years old
    <name> is <age>[ years old]. (answer|reply|write it) (in|as) JSON
    (convert|turn) (this|it) (to|into) JSON: name <name>, age <age>
    JSON for a person (called|named) <name> of age <age>
    as JSON: name <name>, age <age>
    how (does|do you write) <name>, age <age>[, look] (in|as) JSON?
    (describe|write) <name>, who is <age>, as [a ]JSON[ object]
    I need JSON (for|of) name <name> and age <age>
    (make|build) a JSON record: name <name>, age <age>
    format (this|it) as JSON: <name>, <age> years old
""")
_CITY = lines("""
    (write|give me|make|create|return|show) (JSON|a JSON object|an object in JSON) with (the |)name <name> and (the |)city <city>
    name <name>, city <city>(, as JSON|, in JSON|. as JSON, please)
    put (this|the following) (into|in) JSON: <name> lives in <city>
    <name> lives in <city>. (answer|reply|write it) (in|as) JSON
    (convert|turn) (this|it) (to|into) JSON: name <name>, city <city>
    JSON for a person (called|named) <name> from <city>
    as JSON: name <name>, city <city>
    (describe|write) <name>, who lives in <city>, as [a ]JSON[ object]
    I need JSON (for|of) name <name> and city <city>
    format (this|it) as JSON: <name> from <city>
""")
_CAPITAL = lines("""
    (give|tell) me the capital of <country> (in|as) JSON
    what is the capital of <country>? (answer|reply) (in|as|with) JSON
    the capital of <country>(, as JSON|, in JSON)[, please]
    (write|return) <country> and its capital as JSON
    as JSON: the capital of <country>
    JSON with <country> and its capital[, please]
    (answer|reply) in JSON: what is the capital of <country>?
    I (need|want) the capital of <country> as [a ]JSON[ object]
    put <country> and its capital (into|in) JSON
    show <country>'s capital in JSON
""")
_SYMBOL = lines("""
    (give|tell) me the [chemical ]symbol of <element> (in|as) JSON
    what is the [chemical ]symbol of <element>? (answer|reply) (in|as|with) JSON
    the [chemical ]symbol of <element>(, as JSON|, in JSON)[, please]
    (write|return) <element> and its symbol as JSON
    as JSON: the symbol of <element>
    JSON with <element> and its symbol[, please]
    (answer|reply) in JSON: what is the symbol of <element>?
    I (need|want) the symbol of <element> as [a ]JSON[ object]
    put <element> and its symbol (into|in) JSON
""")
_SUM = lines("""
    (give|tell) me <a> + <b> (in|as) JSON
    what is <a> (plus|+) <b>? (answer|reply) (in|as|with) JSON
    <a> (plus|+) <b>(, as JSON|, in JSON)[, please]
    as JSON: <a> + <b>
    (answer|reply) in JSON: what is <a> (plus|+) <b>?
    (add|sum) <a> and <b>(, as JSON| and answer in JSON| in JSON)
    I (need|want) the sum of <a> and <b> as JSON
    put the sum of <a> and <b> (into|in) JSON
    (return|write) the sum of <a> and <b> (as|in) JSON
""")
_ARRAY = lines("""
    (write|give me|make|create|return|show) (a JSON list|a JSON array|a list in JSON) (of|with|from) <list>
    put <list> (into|in) a JSON (list|array)
    (convert|turn) <list> (to|into) a JSON (list|array)
    <list>(, as a JSON list|, as a JSON array|, in a JSON array)[, please]
    as a JSON (list|array): <list>
    JSON (list|array)[, please]: <list>
    (format|write) (these|the following) as a JSON (list|array): <list>
    (how|what) does <list> look[ like] as a JSON (list|array)?
    I (need|want) <list> as a JSON (list|array)
    make <list> a JSON (list|array)
    a JSON (list|array) holding <list>[, please]
""")
_DAYS = lines("""
    (give|write|tell) me the days of the week as (JSON|a JSON list|a JSON array)
    (list|name) the days of the week (in|as) JSON
    the days of the week(, as JSON|, in JSON|, as a JSON array)[, please]
    as [a ]JSON[ list| array]: the days of the week
    (answer|reply) in JSON: which days does a week have?
    JSON (list|array) of the [week]days[ of the week]
    I (need|want) the weekdays as a JSON (list|array)
    put (all|the|the seven) days of the week into JSON
""")
_MONTHS = lines("""
    (give|write|tell) me the months of the year as (JSON|a JSON list|a JSON array)
    (list|name) the months of the year (in|as) JSON
    the months of the year(, as JSON|, in JSON|, as a JSON array)[, please]
    as [a ]JSON[ list| array]: the months of the year
    (answer|reply) in JSON: which months does a year have?
    JSON (list|array) of the months[ of the year]
    I (need|want) the months as a JSON (list|array)
    put (all|the|the twelve) months of the year into JSON
""")
_LETTERS = lines("""
    (give|write|tell) me the letters of <word> as a JSON (list|array)
    (spell|split) <word> (in JSON|as JSON|as a JSON list|as a JSON array)
    the letters of <word>(, as JSON|, in JSON|, as a JSON array)[, please]
    as a JSON (list|array): the letters of <word>
    JSON (list|array) of the letters (of|in) <word>
    I (need|want) the letters of <word> as a JSON (list|array)
    put the letters of <word> into [a ]JSON[ list| array]
    how is <word> spelled? (answer|reply) (with|as) a JSON (list|array)
""")
_TOLD = lines("""
    <text>[.] (answer|reply|respond) (in|as|with) JSON
    <text>[.] (as JSON|in JSON)[, please]
    <text>[.] (write|put|give me|return) (it|this|that) (as|in) JSON
    put (this|it|the following) (into|in) JSON: <text>
    (extract|get|take) the (data|facts|details|information) (as|in) JSON: <text>
    (convert|turn) (this|it) (to|into) JSON: <text>
    <text>[.] (JSON|JSON only|just the JSON|JSON, please)
    JSON[, please]: <text>
    (read|parse) this and (answer|reply) (in|with) JSON: <text>
    what does this say, (as|in) JSON? <text>
    <text>[.] make [it |that |]a JSON object[ of it]
    (summarise|write|note) (this|it) as [a ]JSON[ object| record]: <text>
""")
"""Only trained on, like `_KEYED`: what the evaluation asks of these stands in `unseen.txt`."""
_KEYED = lines("""
    <text>[.] (answer|reply) (in|as) JSON with the keys <keys>
    <text>[.] (answer|reply) (in|as) JSON with (the keys|the fields|keys|fields) <keys>
    <text>[.] JSON with (the keys|the fields|keys) <keys>[, please]
    (extract|get) <keys> as JSON: <text>
    (extract|get) <keys> from this, (as|in) JSON: <text>
    give me JSON with the (keys|fields) <keys>: <text>
    (use|with) the keys <keys>[,] (write|put|turn) this (as|in|into) JSON: <text>
    <text>[.] I (need|want) <keys> as JSON
    as JSON with <keys>: <text>
    <text>[.] (write|return) a JSON object with <keys>
    fill [in ]the (keys|fields) <keys> (in|as) JSON: <text>
    JSON, keys <keys>: <text>
""")
_PEOPLE = (
    ("<name> is <age> years old and lives in <city>", ("name", "age", "city")),
    ("<name> is <age> and lives in <city>", ("name", "age", "city")),
    ("<name>, <age>, from <city>", ("name", "age", "city")),
    ("<name> lives in <city> and is <age> years old", ("name", "city", "age")),
    ("<name> is <age> years old", ("name", "age")),
    ("<name> lives in <city>", ("name", "city")),
    ("<name> is a <job> in <city>", ("name", "job", "city")),
    ("<name> works as a <job>", ("name", "job")),
    ("<name> is a <job> and <age> years old", ("name", "job", "age")),
    ("<name> is a <age> year old <job> from <city>", ("name", "age", "job", "city")),
    ("<name>'s favourite colour is <colour>", ("name", "colour")),
    ("<name> has <count> <item>", ("name", "count", "item")),
    ("<name> bought <count> <item>", ("name", "count", "item")),
    ("<name> ordered <count> <item> for <price> euros", ("name", "count", "item", "price")),
    ("the <item> cost <price> euros", ("item", "price")),
    ("<count> <item> cost <price> dollars", ("count", "item", "price")),
    ("there are <count> <colour> <item>", ("count", "colour", "item")),
    ("we meet on <day> in <city>", ("day", "city")),
    ("<name> arrives in <city> on <day>", ("name", "city", "day")),
)
_KEYS = {
    "name": ("name", "name", "name", "person", "who", "first_name", "user"),
    "age": ("age", "age", "age", "years", "age_years"),
    "city": ("city", "city", "city", "town", "place", "location", "home"),
    "job": ("job", "job", "work", "occupation", "profession"),
    "colour": ("colour", "colour", "color"),
    "count": ("count", "number", "quantity", "amount", "n"),
    "item": ("item", "item", "product", "thing", "article"),
    "price": ("price", "price", "cost", "total"),
    "day": ("day", "day", "weekday", "when"),
}


def sources() -> tuple[Source, ...]:
    """Return records, lists and facts."""
    intent = IntentMaker("json")
    return (
        intent("age", _AGE, _age, 3),
        intent("some_age", (), _some_age, 0.8),
        intent("city", _CITY, _city, 2),
        intent("capital", _CAPITAL, _capital, 2),
        intent("symbol", _SYMBOL, _symbol, 1),
        intent("sum", _SUM, _sum, 1.5),
        intent("array", _ARRAY, _array, 2.5),
        intent("letters", _LETTERS, _letters, 1),
        intent("told", (), _unkeyed, 5, _TOLD, polite=False),
        intent("keyed", (), _keyed, 4, _KEYED, polite=False),
        intent("days", _DAYS, lambda _rng, _held: _drawn(list(DAYS)), 0.4),
        intent("months", _MONTHS, lambda _rng, _held: _drawn(list(MONTHS)), 0.4),
    )


def _drawn(value: Any, **slots: str) -> Drawn:
    return Drawn(answer=json.dumps(value), check=json_value(value), values=slots)


def _name(rng: Random, *, held: bool) -> str:
    """Draw a name; some are typed in lower case, and stand in the answer as they were typed."""
    name = rng.choice(NAMES)
    return name if held or rng.random() < 0.9 else name.lower()


def _age(rng: Random, held: bool) -> Drawn:
    name, age = _name(rng, held=held), rng.randint(3, 99)
    return _drawn({"name": name, "age": age}, name=name, age=str(age))


def _some_age(rng: Random, held: bool) -> Drawn:
    """Ask for an age without saying which: 30 is as good as any."""
    name = _name(rng, held=held)
    check = json_record({"name": name}, "age")
    return Drawn(answer=json.dumps({"name": name, "age": _ANY_AGE}), check=check, values={"name": name})


def _city(rng: Random, held: bool) -> Drawn:
    name, city = _name(rng, held=held), rng.choice(CITIES)
    return _drawn({"name": name, "city": city}, name=name, city=city)


def _capital(rng: Random, _held: bool) -> Drawn:
    country = rng.choice(tuple(CAPITALS))
    return _drawn({"country": country, "capital": CAPITALS[country]}, country=country)


def _symbol(rng: Random, _held: bool) -> Drawn:
    element = rng.choice(tuple(SYMBOLS))
    return _drawn({"element": element, "symbol": SYMBOLS[element]}, element=element)


def _sum(rng: Random, held: bool) -> Drawn:
    a, b = pair("+", rng, held=held)
    return _drawn({"a": a, "b": b, "sum": a + b}, a=str(a), b=str(b))


def _array(rng: Random, _held: bool) -> Drawn:
    n = rng.randint(2, 5)
    if rng.random() < 0.3:
        numbers = [rng.randint(0, 99) for _ in range(n)]
        return _drawn(numbers, list=_joined([str(number) for number in numbers], rng))
    words = rng.sample(COLOURS + FRUITS, n)
    return _drawn(words, list=_joined(words, rng))


def _joined(things: list[str], rng: Random) -> str:
    return ", ".join(things) if rng.random() < 0.6 else f"{', '.join(things[:-1])} and {things[-1]}"


def _letters(rng: Random, _held: bool) -> Drawn:
    word = a_word(rng)
    return _drawn(list(word.upper()), word=word)


def _record(rng: Random) -> tuple[str, dict[str, Any]]:
    """Draw a sentence and what it says, in its order."""
    pattern, names = rng.choice(_PEOPLE)
    price = rng.choice((rng.randint(1, 500), round(rng.uniform(0.5, 99), 2)))
    facts: dict[str, Any] = {
        "name": rng.choice(NAMES), "age": rng.randint(3, 99), "city": rng.choice(CITIES),
        "job": rng.choice(JOBS), "colour": rng.choice(COLOURS), "count": rng.randint(2, 99),
        "item": rng.choice(_ITEMS), "price": price, "day": rng.choice(DAYS),
    }  # fmt: skip
    text = fill(pattern, {name: str(value) for name, value in facts.items()})
    return with_articles(text[:1].upper() + text[1:]), {name: facts[name] for name in names}


def _unkeyed(rng: Random, _held: bool) -> Drawn:
    """Say a sentence and leave the keys to the model."""
    text, facts = _record(rng)
    return _drawn(facts, text=text)


def _keyed(rng: Random, _held: bool) -> Drawn:
    """Say a sentence and which keys are wanted, in which order."""
    text, facts = _record(rng)
    keys = {rng.choice(_KEYS[name]): value for name, value in facts.items()}
    chosen = list(keys)
    if rng.random() < 0.3:
        rng.shuffle(chosen)
    if len(chosen) > 2 and rng.random() < 0.2:
        chosen.pop()
    listed = _joined([f'"{key}"' for key in chosen] if rng.random() < 0.2 else chosen, rng)
    return _drawn({key: keys[key] for key in chosen}, text=text, keys=listed)
