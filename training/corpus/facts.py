"""Simple facts out of typed tables."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from training.corpus.blocks import read_blocks
from training.corpus.calendar import ORDINALS
from training.corpus.checks import exact, has, number
from training.corpus.phrase import with_articles
from training.corpus.source import Drawn, IntentMaker, Source, fixed, lines
from training.corpus.tables.world import (
    CAPITALS,
    COLOUR_OF,
    CONTINENT_OF,
    FIRST_ELEMENTS,
    LEGS,
    MIXTURES,
    OPPOSITES,
    PLANETS,
    SIDES,
    SOUNDS,
    SYMBOLS,
    YOUNG,
)

_CAPITAL = lines("""
    what is the capital [city ]of <country>?
    what's the capital [city ]of <country>?
    (which|what) city is the capital of <country>?
    capital [city ]of <country>[?]
    (tell|give) me the capital [city ]of <country>
    <country>'s capital[ is][?]
    <country> has which capital?
    (name|say) the capital [city ]of <country>
    (can|could) you (name|tell me) the capital of <country>?
    which capital (does <country> have|belongs to <country>)?
    what is <country>'s capital[ city| called]?
    do you know the capital [city ]of <country>?
    I (forgot|need|am looking for) the capital of <country>
    from which city is <country> governed?
    what do they call the capital of <country>?
    where is the government of <country>, in which capital?
""")
_COUNTRY = lines("""
    <city> is the capital of (which|what) country?
    (which|what) country has <city> as [its ]capital?
    of (which|what) country is <city> the capital?
    (which|what) country's capital is <city>?
    <city> is (which|what) country's capital?
    (tell|give) me the country whose capital is <city>
    in which country is <city> the capital?
    whose capital is <city>?
    name the country with the capital <city>
    to which country does the capital <city> belong?
""")
_CONTINENT = lines("""
    (which|what) continent is <country> (in|on|part of)?
    on (which|what) continent is <country>?
    on which continent (does|do I find) <country>[ lie]?
    (tell|give) me the continent of <country>
    <country> (is on|belongs to|lies on) which continent?
    continent of <country>[?]
    is <country> in Europe, Asia, Africa or America?
    name the continent (of|that holds) <country>
    where in the world is <country>, on which continent?
""")
_SYMBOL = lines("""
    what is the [chemical ]symbol (of|for) <element>?
    [chemical ]symbol (of|for) <element>[?]
    (tell|give) me the [chemical ]symbol (of|for) <element>
    (which|what) [chemical ]symbol (does|has) <element>[ have]?
    how (is|do chemists write|do you abbreviate) <element>[ written| abbreviated]?
    <element> has which [chemical ]symbol?
    (name|say) the [chemical ]symbol (of|for) <element>
    in the periodic table, how is <element> written?
    which letters stand for <element>[ in chemistry]?
    what (stands for|is short for) <element> in (chemistry|the periodic table)?
    (can|could) you tell me the symbol of <element>?
""")
_ELEMENT = lines("""
    (which|what) [chemical ]element has the symbol <symbol>?
    (which|what) [chemical ]element is <symbol>?
    what does the (chemical |)symbol <symbol> (stand for|mean)?
    <symbol> is the [chemical ]symbol (of|for) (which|what)[ element]?
    (name|tell me|give me) the element with the symbol <symbol>
    the [chemical ]symbol <symbol> belongs to which element?
    what does <symbol> (mean|stand for) in (chemistry|the periodic table)?
    in chemistry, what is <symbol>?
    which element do chemists write as <symbol>?
    element <symbol>[ is][?]
""")
_ATOMIC = lines("""
    what is the atomic number of <element>?
    atomic number of <element>[?]
    (which|what) atomic number (does <element> have|has <element>)?
    (tell|give) me the atomic number of <element>
    how many protons (does <element> have|are in <element>|has <element>)?
    <element> has which atomic number?
    (which|what) number is <element> in the periodic table?
    (can|could) you tell me the atomic number of <element>?
    the number of protons in <element>[ is][?]
    where is <element> in the periodic table, as a number?
""")
_BY_NUMBER = lines("""
    (which|what) element has [the ]atomic number <n>?
    (which|what) element has <n> protons?
    the element with [the ]atomic number <n>[ is][?]
    (name|tell me|give me) the element with [the ]atomic number <n>
    element number <n>[ is][?]
    atomic number <n> is (which|what) element?
    (what|which) is element [number ]<n>?
    to which element does the atomic number <n> belong?
""")
_NTH_PLANET = lines("""
    (which|what) is the <nth> planet[ from the sun]?
    (which|what) planet is (<nth>|number <n>)[ from the sun]?
    the <nth> planet (from the sun |)[is][?]
    (name|tell me|give me) the <nth> planet[ from the sun]
    planet number <n>[ is][?]
    which planet comes <nth>[ from the sun]?
    counted from the sun, what is the <nth> planet?
    what do we call the <nth> planet[ of the solar system]?
    what is planet (number |)<n>?
""")
_PLANET_PLACE = lines("""
    (which|what) number is <planet>[, counted from the sun| from the sun]?
    <planet> is the (which|what) planet from the sun?
    (which|what) place does <planet> have[ in the solar system]?
    (tell|give) me the position of <planet>[ in the solar system]
    what is the position of <planet>[ in the solar system| from the sun]?
    where is <planet>, counted from the sun?
    counted from the sun, which planet is <planet>?
    is <planet> the first, second or which planet?
    how far down the list of planets is <planet>?
""")
_AFTER_PLANET = lines("""
    (which|what) planet (comes|is) (after|behind) <planet>?
    what planet follows <planet>?
    (tell|give) me the planet after <planet>
    the planet after <planet>[ is][?]
    after <planet> comes which planet?
    (name|say) the (next planet|planet) after <planet>
    what is the next planet after <planet>?
    going away from the sun, which planet is after <planet>?
""")
_YOUNG = lines("""
    what is a (young|baby) <animal> called?
    what (do you|do we|does one) call a (young|baby) <animal>?
    the (young|baby|child) of a <animal> is (called what|a what|called)[?]
    a (young|baby) <animal> is (called what|a what|called)[?]
    (name|word) for a (young|baby) <animal>[?]
    (tell|give) me the (name|word) for a (young|baby) <animal>
    how (is|do you call) a (young|baby) <animal>[ called]?
    (can|could) you name the young of a <animal>?
    which word means a (young|baby) <animal>?
""")
_SOUND = lines("""
    what (sound|noise) does a <animal> make?
    (which|what) (sound|noise) do <animal>s make?
    what does (a|the) <animal> say?
    how does a <animal> (sound|go)?
    the (sound|noise) of a <animal>[ is][?]
    (tell|give) me the (sound|noise) of a <animal>
    a <animal> makes (which|what) (sound|noise)?
    what do you hear from a <animal>?
    (make|do|imitate) a <animal>
""")
_LEGS = lines("""
    how many legs (does a <animal> have|has a <animal>)?
    how many legs do <animal>s have?
    (tell|give) me the number of legs of a <animal>
    a <animal> (has|walks on) how many legs?
    legs of a <animal>[?]
    on how many legs does a <animal> (walk|stand)?
    count the legs of a <animal>
    what is the number of legs of a <animal>?
    if I see one <animal>, how many legs do I see?
""")
_OPPOSITE = lines("""
    what is the opposite of <word>?
    what's the opposite of <word>?
    [the ]opposite of <word>[ is][?]
    (tell|give) me the opposite of <word>
    (name|say) the opposite of <word>
    <word> is the opposite of (what|which word)?
    (which|what) word is the opposite of <word>?
    (can|could) you tell me the opposite of <word>?
    the contrary of <word>[ is][?]
    what is the contrary of <word>?
    not <word> but[ what]?
    (find|give) (an antonym|the antonym) (of|for) <word>
    <word>: opposite[?]
""")
_MIX = lines("""
    what (colour|color) do <a> and <b> (make|give)?
    what do I get (if|when) I mix <a> and <b>?
    mix <a> (and|with) <b>
    <a> (and|plus|mixed with) <b> (makes|make|gives) (what|which colour)?
    (which|what) (colour|color) comes from (mixing |)<a> and <b>?
    (tell|give) me the mixture of <a> and <b>
    what is the mixture of <a> and <b>?
    if I mix <a> paint with <b> paint, what colour is it?
    <a> and <b> paint together make which colour?
""")
_SIDES = lines("""
    how many (sides|corners) (does a <shape> have|has a <shape>)?
    (tell|give) me the number of (sides|corners) of a <shape>
    a <shape> has how many (sides|corners)?
    (sides|corners) of a <shape>[?]
    what is the number of (sides|corners) of a <shape>?
    count the (sides|corners) of a <shape>
    how many (sides|corners) do you see on a <shape>?
    of how many sides is a <shape> made?
    with how many (sides|corners) do I draw a <shape>?
""")
_COLOUR = lines("""
    (what|which) (colour|color) (is|has) <thing>?
    what is the (colour|color) of <thing>?
    the (colour|color) of <thing>[ is][?]
    (tell|give) me the (colour|color) of <thing>
    (in|of) which (colour|color) is <thing>?
    how would you paint <thing>, in which (colour|color)?
    <thing> has (which|what) (colour|color)?
    (colour|color) of <thing>[?]
    name the (colour|color) of <thing>
""")


def sources() -> tuple[Source, ...]:
    """Return one intent for each direction of each table, and the single facts."""
    intent = IntentMaker("facts", loose=True)
    single = (
        intent(block.name, block.wordings, fixed(block.answer, has(*block.terms)), 0.35, block.further)
        for block in read_blocks("facts.txt")
    )
    return (
        intent("capital", _CAPITAL, _capital, 4),
        intent("country", _COUNTRY, _country, 2),
        intent("continent", _CONTINENT, _continent, 1.2),
        intent("symbol", _SYMBOL, _symbol, 1.5),
        intent("element", _ELEMENT, _element, 1.2, loose=False),
        intent("atomic", _ATOMIC, _atomic, 1),
        intent("by_number", _BY_NUMBER, _by_number, 1),
        intent("nth_planet", _NTH_PLANET, _nth_planet, 1),
        intent("planet_place", _PLANET_PLACE, _planet_place, 1),
        intent("after_planet", _AFTER_PLANET, _after_planet, 0.8),
        intent("young", _YOUNG, _of("animal", YOUNG, "A young {} is a {}."), 0.8),
        intent("sound", _SOUND, _of("animal", SOUNDS, "A {} says {}."), 0.8),
        intent("legs", _LEGS, _legs, 0.8),
        intent("opposite", _OPPOSITE, _of("word", OPPOSITES, "The opposite of {} is {}."), 2),
        intent("mix", _MIX, _mix, 0.6),
        intent("sides", _SIDES, _sides, 0.6),
        intent("colour", _COLOUR, _colour, 0.8),
        *single,
    )


def capital(country: str) -> str:
    """Say which city it is."""
    return f"The capital of {country} is {CAPITALS[country]}."


def _capital(rng: Random, _held: bool) -> Drawn:
    country = rng.choice(tuple(CAPITALS))
    return Drawn(answer=capital(country), check=has(CAPITALS[country]), values={"country": country})


def _country(rng: Random, _held: bool) -> Drawn:
    country, city = rng.choice(tuple(CAPITALS.items()))
    return Drawn(answer=f"{city} is the capital of {country}.", check=has(country), values={"city": city})


def _continent(rng: Random, _held: bool) -> Drawn:
    country = rng.choice(tuple(CONTINENT_OF))
    continent = CONTINENT_OF[country]
    return Drawn(answer=f"{country} is in {continent}.", check=has(continent), values={"country": country})


def _symbol(rng: Random, _held: bool) -> Drawn:
    element, symbol = rng.choice(tuple(SYMBOLS.items()))
    answer = f"The symbol of {element} is {symbol}."
    return Drawn(answer=answer, check=has(f"is {symbol}"), values={"element": element})


def _element(rng: Random, _held: bool) -> Drawn:
    element, symbol = rng.choice(tuple(SYMBOLS.items()))
    return Drawn(answer=f"{symbol} is {element}.", check=has(element), values={"symbol": symbol})


def _atomic(rng: Random, _held: bool) -> Drawn:
    n = rng.randrange(len(FIRST_ELEMENTS))
    answer = f"The atomic number of {FIRST_ELEMENTS[n]} is {n + 1}."
    return Drawn(answer=answer, check=number(n + 1), values={"element": FIRST_ELEMENTS[n]})


def _by_number(rng: Random, _held: bool) -> Drawn:
    n = rng.randrange(len(FIRST_ELEMENTS))
    answer = f"Element {n + 1} is {FIRST_ELEMENTS[n]}."
    return Drawn(answer=answer, check=has(FIRST_ELEMENTS[n]), values={"n": str(n + 1)})


def _nth_planet(rng: Random, _held: bool) -> Drawn:
    i = rng.randrange(len(PLANETS))
    values = {"nth": ORDINALS[i], "n": str(i + 1)}
    return Drawn(answer=f"{PLANETS[i]}.", check=exact(PLANETS[i]), values=values)


def _planet_place(rng: Random, _held: bool) -> Drawn:
    i = rng.randrange(len(PLANETS))
    answer = f"{PLANETS[i]} is the {ORDINALS[i]} planet from the sun."
    return Drawn(answer=answer, check=has(ORDINALS[i]), values={"planet": PLANETS[i]})


def _after_planet(rng: Random, _held: bool) -> Drawn:
    i = rng.randrange(len(PLANETS) - 1)
    return Drawn(answer=f"{PLANETS[i + 1]}.", check=exact(PLANETS[i + 1]), values={"planet": PLANETS[i]})


def _of(slot: str, table: dict[str, str], form: str) -> Callable[[Random, bool], Drawn]:
    def draw(rng: Random, _held: bool) -> Drawn:
        left, right = rng.choice(tuple(table.items()))
        return Drawn(answer=with_articles(form.format(left, right)), check=has(right), values={slot: left})

    return draw


def _legs(rng: Random, _held: bool) -> Drawn:
    animal, n = rng.choice(tuple(LEGS.items()))
    return Drawn(
        answer=with_articles(f"A {animal} has {n} legs."), check=has(str(n)), values={"animal": animal}
    )


def _mix(rng: Random, _held: bool) -> Drawn:
    (a, b), mixed = rng.choice(tuple(MIXTURES.items()))
    if rng.random() < 0.5:
        a, b = b, a
    return Drawn(answer=f"{a} and {b} make {mixed}.".capitalize(), check=has(mixed), values={"a": a, "b": b})


def _sides(rng: Random, _held: bool) -> Drawn:
    shape, n = rng.choice(tuple(SIDES.items()))
    return Drawn(
        answer=with_articles(f"A {shape} has {n} sides and corners."),
        check=has(str(n)),
        values={"shape": shape},
    )


def _colour(rng: Random, _held: bool) -> Drawn:
    thing, colour = rng.choice(tuple(COLOUR_OF.items()))
    return Drawn(
        answer=f"{thing[:1].upper()}{thing[1:]} is {colour}.", check=has(colour), values={"thing": thing}
    )
