"""What tools are asked for: the weather, sums, times, units, a search, a home, messages, and anything by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from training.corpus.calendar import DAYS, MONTHS
from training.corpus.source import lines
from training.corpus.tables.words import ANIMALS, CLOTHES, COLOURS, FRUITS, FURNITURE, JOBS, NAMES, WORDS
from training.corpus.tables.world import CAPITALS
from training.corpus.tool import (
    Task,
    Tool,
    asking_name,
    doing_name,
    done,
    number,
    one_of,
    pool,
    report,
    string,
    typed,
)
from training.corpus.unknown import invented

Draw = Callable[[Random, bool, int], Task]
"""Draw a task of so many calls."""


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


_CITIES = (
    *CAPITALS.values(), "New York", "Chicago", "Sydney", "Mumbai", "Hamburg", "Naples", "Venice", "Kyoto", "Shanghai",
    "London", "San Francisco", "Los Angeles", "Boston", "Milan", "Barcelona", "Munich", "Prague", "Zurich", "Lyon",
    "Toronto", "Singapore", "Porto", "Bergen", "Krakow", "Seville", "Dallas", "Leeds", "Ghent", "Basel", "Turin",
)  # fmt: skip
_CITY = pool("city location place town where city_name in_city q name", "municipality destination", 0.06)
_ROOMS = (
    "kitchen", "bedroom", "living room", "bathroom", "hall", "office", "garage", "garden", "cellar", "attic", "nursery",
    "dining room", "guest room", "hallway", "study", "workshop",
)  # fmt: skip
_ROOM = pool("room place where area location room_name zone", "chamber spot", 0.1)


def _city(rng: Random, *, held: bool) -> str:
    if not held and rng.random() < 0.15:
        return invented(rng)
    return typed(rng.choice(_CITIES), rng, held=held)


def _things(n: int, draw: Callable[[], str]) -> list[str]:
    """Draw `n` different things."""
    found: list[str] = []
    while len(found) < n:
        thing = draw()
        if thing not in found:
            found.append(thing)
    return found


def _slots(things: list[str]) -> dict[str, str]:
    """Name the slots of one thing and of two: the last one is also `it`."""
    return {"it": things[-1], "a": things[0], "b": things[-1]}


# The weather

_WEATHER = lines("""
    what is the weather [like ]in <it>[ today| now| right now]?
    what's the weather (in|for) <it>[ today]?
    how is the weather in <it>[ today| now]?
    (tell|give|show) me the weather (in|for|of) <it>
    (the |)weather in <it>[, please]
    (check|look up|get) the weather (in|for) <it>
    is it (warm|cold|sunny|raining|windy|nice) in <it>[ today| now]?
    do I need (an umbrella|a coat|a jacket) in <it>[ today]?
    how (warm|cold|hot) is it in <it>[ today| right now]?
    what's the temperature in <it>[ today]?
    I (am going|travel) to <it>. (what|how) is the weather there?
    (will|does) it rain in <it>[ today]?
    I (need|want) (to know |)the weather in <it>
""")
_WEATHER_BOTH = lines("""
    what is the weather [like ]in <a> and [in ]<b>[ today]?
    how is the weather in <a> and <b>?
    (tell|give|show) me the weather in <a> and [in ]<b>
    weather in <a> and <b>[, please]
    (check|compare) the weather (in|of) <a> and <b>
    is it warmer in <a> or in <b>?
    how (warm|cold) is it in <a> and in <b>?
""")
_IN_AGAIN = lines("""
    and in <it>?
    what about <it>?
    and <it>?
    how about <it>?
    (and |)in <it>[, please]?
    the same for <it>[, please]
    now <it>[, please]
""")
_SKIES = (
    "sunny",
    "cloudy",
    "rainy",
    "windy",
    "foggy",
    "clear",
    "stormy",
    "snowy",
    "dry",
    "wet",
    "mild",
    "overcast",
)


def _weather(rng: Random, held: bool, n: int) -> Task:
    cities = _things(n, lambda: _city(rng, held=held))
    city = _CITY.draw(rng, held=held)
    tool = Tool(
        name=asking_name(rng.choice(("weather", "weather", "current_weather", "forecast")), rng, held=held),
        description=rng.choice((
            "Get the weather in a city.", "Return the current weather of a place.", "The weather for a location",
            "Get the current temperature and weather.", "Look up today's weather.",
        )),
        parameters={city: string()},
    )  # fmt: skip
    degrees, sky = (
        rng.choice(("temperature", "temp", "temp_c", "degrees")),
        rng.choice(("condition", "sky", "weather", "conditions", "description", "summary")),
    )
    results, said, terms = [], [], []
    for name in cities:
        warm, how = rng.randint(-12, 38), rng.choice(_SKIES)
        results.append(report({degrees: warm, sky: how}, f"{warm} degrees, {how}", rng))
        said.append(f"in {name} it is {warm} degrees and {how}.")
        terms.append((str(abs(warm)), how))
    return Task(
        tool=tool,
        values=_slots(cities),
        calls=tuple({city: name} for name in cities),
        results=tuple(results),
        answers=tuple(said),
        terms=tuple(terms),
    )


_WEATHER_UNIT = lines("""
    what is the weather in <it>, in <unit>?
    how (warm|cold|hot) is it in <it> in <unit>?
    (tell|give) me the temperature in <it> in <unit>
    the weather in <it>, in degrees <unit>[, please]
    (weather|temperature) in <it> in <unit>[, please]
    how many degrees <unit> (are there|is it) in <it>?
    (use <unit> and |)(tell|show) me the weather (in|for) <it> in <unit>
""")


def _weather_unit(rng: Random, held: bool, _n: int) -> Task:
    task = _weather(rng, held, 1)
    units = rng.choice(
        (("celsius", "fahrenheit"), ("fahrenheit", "celsius"), ("celsius", "fahrenheit", "kelvin"))
    )
    unit, name = rng.choice(units[:2]), pool("unit units scale", "measure")
    key = name.draw(rng, held=held)
    tool = Tool(
        name=task.tool.name,
        description=task.tool.description,
        parameters={**task.tool.parameters, key: one_of(*units)},
    )
    calls = ({**task.calls[0], key: unit},)
    return Task(
        tool=tool, values={**task.values, "unit": unit.capitalize() if rng.random() < 0.3 else unit},
        calls=calls, results=task.results, answers=task.answers, terms=task.terms,
    )  # fmt: skip


# The time

_TIME = lines("""
    what time is it in <it>[ now| right now]?
    what's the time in <it>[ now]?
    (tell|give|show) me the time in <it>
    (the |)time in <it>[, please]
    how late is it in <it>[ now]?
    (check|look up|get) the (time|local time) in <it>
    what does the clock say in <it>?
    I (need|want) (to know |)the [local ]time in <it>
    which hour is it in <it>?
    is it (night|morning|late) in <it>[ now]?
""")
_TIME_BOTH = lines("""
    what time is it in <a> and [in ]<b>?
    (tell|give|show) me the time in <a> and [in ]<b>
    (the |)time in <a> and <b>[, please]
    what's the time in <a> and in <b>?
    (check|compare) the time in <a> and <b>
    how late is it in <a> and in <b>?
""")


def _time(rng: Random, held: bool, n: int) -> Task:
    cities = _things(n, lambda: _city(rng, held=held))
    city = _CITY.draw(rng, held=held)
    tool = Tool(
        name=asking_name(rng.choice(("time", "time", "local_time", "current_time", "clock")), rng, held=held),
        description=rng.choice(
            ("Get the time in a city.", "Return the local time of a place.", "The current time somewhere")
        ),
        parameters={city: string()},
    )
    times = [f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}" for _ in cities]
    key = rng.choice(("time", "local_time", "now", "clock"))
    return Task(
        tool=tool,
        values=_slots(cities),
        calls=tuple({city: name} for name in cities),
        results=tuple(report({key: time}, time, rng) for time in times),
        answers=tuple(f"it is {time} in {name}." for time, name in zip(times, cities, strict=True)),
        terms=tuple((time,) for time in times),
    )


# Sums

_EXPRESSION = lines("""
    what is <sum>?
    what's <sum>?
    (calculate|compute|work out|evaluate) <sum>
    how much is <sum>?
    <sum>[ =][?]
    (can|could) you (calculate|work out) <sum>[ for me]?
    (tell|give) me the (result|value) of <sum>
    I (need|want) the (result|value) of <sum>
    what (does|would) <sum> (make|equal|give)?
    solve <sum>
""")
_SIGNS = {
    "+": ("plus", "add"),
    "-": ("minus", "subtract"),
    "*": ("times", "multiply"),
    "/": ("divided by", "divide"),
}


def _plain_number(rng: Random) -> float:
    if rng.random() < 0.12:
        return rng.randint(0, 199) + rng.randint(1, 9) / 10
    return rng.randint(2, rng.choice((12, 99, 99, 999, 9999)))


def _worked_out(sign: str, a: float, b: float) -> float:
    found = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign]
    rounded = round(found, 2)
    return int(rounded) if float(rounded).is_integer() else rounded


def _signed(sign: str, rng: Random) -> str:
    """Say a sign as it is or by its word."""
    way = rng.random()
    if way < 0.5:
        return sign
    return "x" if sign == "*" and way < 0.6 else _SIGNS[sign][0]


def _expression(rng: Random, held: bool, _n: int) -> Task:
    sign, a, b = rng.choice(tuple(_SIGNS)), _plain_number(rng), _plain_number(rng)
    written, total = f"{a} {sign} {b}", _worked_out(sign, a, b)
    asked = f"{a} {_signed(sign, rng)} {b}"
    if rng.random() < 0.25:
        other, c = rng.choice("+-*"), rng.randint(2, 50)
        asked, written = (f"({written}) {other} {c}",) * 2
        total = _worked_out(other, total, c)
    key = pool("expression formula sum math calculation input", "equation term", 0.06).draw(rng, held=held)
    tool = Tool(
        name=asking_name(rng.choice(("calculator", "sum", "math", "result", "expression")), rng, held=held)
        if held or rng.random() < 0.6
        else rng.choice(("calculate", "calculator", "evaluate", "compute", "calc")),
        description=rng.choice((
            "Calculate an expression.", "Evaluate a mathematical expression.", "A calculator", "Do arithmetic.",
            "Compute the value of a formula.",
        )),
        parameters={key: string()},
    )  # fmt: skip
    return Task(
        tool=tool,
        values={"sum": asked},
        calls=({key: written},),
        results=(report({rng.choice(("result", "value", "answer")): total}, str(total), rng),),
        answers=(f"{written} = {total}",),
        terms=((str(total),),),
    )


_OPERATION_NAMES = {
    "+": ("add", "plus", "sum"), "-": ("subtract", "minus", "subtract"), "*": ("multiply", "times", "multiply"),
    "/": ("divide", "divided_by", "divide"),
}  # fmt: skip
_PAIRS = (("a", "b"), ("x", "y"), ("first", "second"), ("left", "right"), ("n1", "n2"), ("num1", "num2"))
_HELD_PAIRS = (("p1", "p2"), ("one", "two"))


def _operation(rng: Random, held: bool, _n: int) -> Task:
    """Draw one tool for all operations: a parameter tells which."""
    sign, a, b = rng.choice(tuple(_SIGNS)), _plain_number(rng), _plain_number(rng)
    column = rng.choice((0, 0, 1))
    names = [words[column] for words in _OPERATION_NAMES.values()]
    if not held and rng.random() < 0.2:
        names = list(_OPERATION_NAMES)
    chosen = names[tuple(_OPERATION_NAMES).index(sign)]
    first, second = rng.choice(_HELD_PAIRS if held else _PAIRS)
    key = pool("operation op operator action", "function").draw(rng, held=held)
    total = _worked_out(sign, a, b)
    parameters = [(first, number(rng, a)), (second, number(rng, b))]
    arguments: list[tuple[str, Any]] = [(first, a), (second, b)]
    at = rng.choice((0, 2, 2))
    parameters.insert(at, (key, one_of(*names)))
    arguments.insert(at, (key, chosen))
    tool = Tool(
        name=asking_name(rng.choice(("calculator", "math", "arithmetic")), rng, held=held)
        if held or rng.random() < 0.6
        else rng.choice(("calculate", "calculator", "compute")),
        description=rng.choice(
            ("Calculate with two numbers.", "A calculator", "Do arithmetic.", "Basic math")
        ),
        parameters=dict(parameters),
    )
    return Task(
        tool=tool,
        values={"sum": f"{a} {_signed(sign, rng)} {b}"},
        calls=(dict(arguments),),
        results=(report({rng.choice(("result", "value", "answer")): total}, str(total), rng),),
        answers=(f"{a} {sign} {b} = {total}",),
        terms=((str(total),),),
    )


def _two_numbers(rng: Random, held: bool, _n: int) -> Task:
    """Draw a tool for each operation: only the question tells which one is meant."""
    sign, a, b = rng.choice(tuple(_SIGNS)), _plain_number(rng), _plain_number(rng)
    first, second = rng.choice(_HELD_PAIRS if held else _PAIRS)
    tail = rng.choice(("_two", "_pair") if held else ("", "", "_numbers", "_them", "_values"))

    def tool_for(one: str) -> Tool:
        word = _SIGNS[one][1]
        return Tool(
            name=word + tail,
            description=f"{word.capitalize()} two numbers.",
            parameters={first: number(rng, a), second: number(rng, b)},
        )

    others = rng.sample([one for one in _SIGNS if one != sign], rng.randint(0, 2))
    total = _worked_out(sign, a, b)
    return Task(
        tool=tool_for(sign),
        values={"sum": f"{a} {_signed(sign, rng)} {b}"},
        calls=({first: a, second: b},),
        results=(report({rng.choice(("result", "value", "answer")): total}, str(total), rng),),
        answers=(f"{a} {sign} {b} = {total}",),
        terms=((str(total),),),
        beside=tuple(map(tool_for, others)),
    )


# Units and languages

_CONVERT = lines("""
    convert <n> <from> (to|into) <to>
    how many <to> (are|is) <n> <from>?
    what (is|are) <n> <from> in <to>?
    <n> <from> in <to>[?]
    (turn|change) <n> <from> into <to>
    (tell|give) me <n> <from> in <to>
    how much (is|are) <n> <from> in <to>?
    I (have|need) <n> <from>. how many <to> is that?
""")
_MEASURES = (
    ("miles", "kilometers", "meters", "feet", "yards", "inches", "centimeters"),
    ("pounds", "kilograms", "grams", "ounces", "stones", "tons"),
    ("liters", "gallons", "cups", "pints", "milliliters"),
    ("hours", "minutes", "seconds", "days", "weeks"),
    ("dollars", "euros", "pounds", "yen", "francs", "kroner"),
)


def _convert(rng: Random, held: bool, _n: int) -> Task:
    here, there = rng.sample(rng.choice(_MEASURES), 2)
    n = _plain_number(rng)
    got = round(n * rng.uniform(0.1, 9), 2)
    value, source, target = rng.choice(
        (("magnitude", "unit_from", "unit_to"), ("quantity", "start", "end"))
        if held
        else (
            ("value", "from", "to"), ("value", "from_unit", "to_unit"), ("amount", "from", "to"), ("n", "unit", "into"),
            ("number", "source", "target"), ("amount", "from_unit", "to_unit"), ("x", "input", "output"),
        )
    )  # fmt: skip
    tool = Tool(
        name=doing_name(rng.choice(("conversion", "units", "convert")), rng, held=held)
        if held or rng.random() < 0.5
        else rng.choice(("convert", "convert_units", "unit_converter", "converter")),
        description=rng.choice(
            ("Convert units.", "Convert a number to another unit.", "Change one unit into another.")
        ),
        parameters={value: number(rng, n), source: string(), target: string()},
    )
    return Task(
        tool=tool,
        values={"n": str(n), "from": here, "to": there},
        calls=({value: n, source: here, target: there},),
        results=(report({rng.choice(("result", "value", "converted")): got}, f"{got} {there}", rng),),
        answers=(f"{n} {here} are {got} {there}.",),
        terms=((str(got), there),),
    )


_TRANSLATE = lines("""
    translate <text> (to|into) <language>
    (say|write) <text> in <language>
    how do (you|I) say <text> in <language>?
    what is <text> in <language>?
    what's the <language> (word for|for) <text>?
    <text> in <language>[, please]
    (put|turn) <text> into <language>
    (can|could) you translate <text> (to|into) <language>?
""")
_LANGUAGES = (
    "French", "German", "Spanish", "Italian", "Polish", "Dutch", "Danish", "Swedish", "Japanese", "Chinese", "Turkish",
    "Latin", "Greek", "Russian", "Korean", "Arabic",
)  # fmt: skip


def _words(rng: Random, least: int, most: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))


def _translate(rng: Random, held: bool, _n: int) -> Task:
    text, language = _words(rng, 1, 3), rng.choice(_LANGUAGES)
    source = pool("text words source input", "sentence").draw(rng, held=held)
    target = pool("language to target into lang", "tongue").draw(rng, held=held)
    found = " ".join(invented(rng).lower() for _ in text.split())
    tool = Tool(
        name=doing_name("translation", rng, held=held)
        if held or rng.random() < 0.5
        else rng.choice(("translate", "translate_text", "translator")),
        description=rng.choice(("Translate a text.", "Translate words into a language.", "A translator")),
        parameters={source: string(), target: string()},
    )
    return Task(
        tool=tool,
        values={"text": text, "language": language},
        calls=({source: text, target: language},),
        results=(report({rng.choice(("translation", "text", "result")): found}, found, rng),),
        answers=(f"In {language} it is: {found}",),
        terms=((found,),),
    )


# A search

_SEARCH = lines("""
    search (the web|the internet|online) for <topic>
    search for <topic>
    (look up|find|google) <topic> (online|on the web|on the internet)
    (find|get) [me ](information|something|news) (about|on) <topic>
    what does the (web|internet) say about <topic>?
    (google|look up) <topic>
    (can|could) you search for <topic>?
    web search: <topic>
""")
_SEARCH_N = lines("""
    (find|get|show) me <n> (results|pages|articles) (about|for|on) <topic>
    search for <topic>, <n> (results|pages|hits)[, please]
    <n> (results|pages|articles) (about|on) <topic>[, please]
    (look up|google) <topic> and (show|give) me <n> (results|hits)
    (list|give me) <n> (articles|results|hits) (about|on) <topic>
    I (need|want) <n> (articles|results) (about|on) <topic>
""")
_ADJECTIVES = (
    "old",
    "new",
    "small",
    "large",
    "cheap",
    "rare",
    "best",
    "famous",
    "modern",
    "wild",
    "electric",
)


def _topic(rng: Random) -> str:
    way = rng.random()
    if way < 0.3:
        return f"{rng.choice(_ADJECTIVES)} {rng.choice(ANIMALS + FURNITURE + CLOTHES)}s"
    if way < 0.5:
        return f"{rng.choice(WORDS)} {rng.choice(WORDS)}"
    if way < 0.7:
        return f"{rng.choice(WORDS)}s in {rng.choice(_CITIES)}"
    return invented(rng) if way < 0.85 else f"{rng.choice(_ADJECTIVES)} {rng.choice(WORDS)}"


def _search(rng: Random, held: bool, _n: int) -> Task:
    topic = _topic(rng)
    query = pool("query q text search terms topic keywords", "phrase question", 0.06).draw(rng, held=held)
    tool = Tool(
        name=asking_name(rng.choice(("web", "search", "pages", "information")), rng, held=held)
        if held or rng.random() < 0.5
        else rng.choice(("search", "web_search", "search_web", "google", "internet_search")),
        description=rng.choice(
            ("Search the web.", "Search the internet.", "Find pages on the web.", "A web search")
        ),
        parameters={query: string()},
    )
    text = f"{_words(rng, 1, 2)} is a {rng.choice(_ADJECTIVES)} {rng.choice(WORDS)}"
    return Task(
        tool=tool,
        values={"topic": topic},
        calls=({query: topic},),
        results=(report({rng.choice(("result", "text", "snippet", "title")): text}, text, rng),),
        answers=(f"I found this: {text}.",),
        terms=((text,),),
    )


def _search_n(rng: Random, held: bool, n_calls: int) -> Task:
    task, n = _search(rng, held, n_calls), rng.randint(2, 20)
    key = pool("limit n count max_results top", "how_many").draw(rng, held=held)
    tool = Tool(
        name=task.tool.name,
        description=task.tool.description,
        parameters={**task.tool.parameters, key: {"type": "integer"}},
    )
    return Task(
        tool=tool, values={**task.values, "n": str(n)}, calls=({**task.calls[0], key: n},),
        results=task.results, answers=task.answers, terms=task.terms,
    )  # fmt: skip


# At home

_LIGHT = lines("""
    (turn|switch) <state> the light[s] in the <room>
    (turn|switch|put) the <room> light[s] <state>
    (turn|switch) <state> the <room> light[s]
    (turn|switch|put) the light[s] <state> in the <room>
    <room> light[s] <state>[, please]
    light[s] <state> in the <room>[, please]
    the light in the <room> should be <state>
    (can|could) you (turn|switch) <state> the light in the <room>?
    I want the <room> light <state>
""")


def _home(rng: Random, *, held: bool) -> tuple[str, str, Any]:
    """Draw a room, the parameter for it and its schema: any string, or one of some rooms."""
    room, key = rng.choice(_ROOMS), _ROOM.draw(rng, held=held)
    if rng.random() < 0.5:
        return room, key, string()
    rooms = rng.sample([other for other in _ROOMS if other != room], rng.randint(1, 3))
    rooms.insert(rng.randrange(len(rooms) + 1), room)
    return room, key, one_of(*rooms)


def _light(rng: Random, held: bool, _n: int) -> Task:
    (room, key, schema), state = _home(rng, held=held), rng.choice(("on", "off"))
    boolean = rng.random() < 0.5
    second = pool("on is_on power light", "lit") if boolean else pool("state status power mode", "setting")
    name = second.draw(rng, held=held)
    tool = Tool(
        name=doing_name(rng.choice(("light", "lights", "lamp")), rng, held=held)
        if held or rng.random() < 0.6
        else rng.choice(("switch_light", "turn_light", "light_switch", "toggle_light")),
        description=rng.choice(
            (
                "Turn a light on or off.",
                "Switch the light of a room.",
                "Control the lights.",
                "The lamps at home",
            )
        ),
        parameters={
            key: schema,
            name: {"type": "boolean"} if boolean else one_of(*_either(rng, "on", "off")),
        },
    )
    return Task(
        tool=tool,
        values={"room": room, "state": state},
        calls=({key: room, name: (state == "on") if boolean else state},),
        results=(done(rng),),
        answers=(f"The light in the {room} is {state} now.",),
        terms=((room, state),),
    )


def _either(rng: Random, *two: str) -> tuple[str, ...]:
    return two if rng.random() < 0.6 else two[::-1]


_DIM = lines("""
    (set|dim|bring) the <room> light[s] to <n>(%| percent)
    (dim|set) the light[s] in the <room> to <n>(%| percent|)
    <room> light[s] (at|to) <n>(%| percent)[, please]
    <n>(%| percent) light in the <room>[, please]
    make the <room> light <n>(%| percent) bright
    I want the <room> light[s] at <n>(%| percent)
    (change|set) the brightness in the <room> to <n>[%| percent]
""")


def _dim(rng: Random, held: bool, _n: int) -> Task:
    (room, key, schema), n = _home(rng, held=held), rng.randint(1, 100)
    level = pool("level brightness percent value", "intensity").draw(rng, held=held)
    tool = Tool(
        name=doing_name(rng.choice(("brightness", "dimmer", "light_level")), rng, held=held),
        description=rng.choice(("Set the brightness of a room.", "Dim the light.", "How bright a lamp is")),
        parameters={key: schema, level: {"type": "integer"}},
    )
    return Task(
        tool=tool,
        values={"room": room, "n": str(n)},
        calls=({key: room, level: n},),
        results=(done(rng),),
        answers=(f"The light in the {room} is at {n} percent now.",),
        terms=((room, str(n)),),
    )


_HEAT = lines("""
    (set|heat|warm|cool) the <room> to <n> degrees
    make it <n> degrees in the <room>
    <n> degrees in the <room>[, please]
    I (want|would like) <n> degrees in the <room>
    set the (temperature|thermostat|heating) in the <room> to <n>[ degrees]
    (set|put) the <room> (thermostat|heating) to <n>[ degrees]
    (can|could) you (heat|warm) the <room> to <n> degrees?
    <room> to <n> degrees[, please]
""")


def _heat(rng: Random, held: bool, _n: int) -> Task:
    room, key, schema = _home(rng, held=held)
    n = rng.randint(14, 26) + rng.choice((0, 0, 0, 0.5))
    n = int(n) if float(n).is_integer() else n
    degrees = pool("temperature degrees celsius target value", "warmth").draw(rng, held=held)
    tool = Tool(
        name=doing_name(rng.choice(("temperature", "thermostat", "heating")), rng, held=held),
        description=rng.choice(("Set the temperature of a room.", "Control the thermostat.", "Heat a room.")),
        parameters={key: schema, degrees: number(rng, n)},
    )
    return Task(
        tool=tool,
        values={"room": room, "n": str(n)},
        calls=({key: room, degrees: n},),
        results=(done(rng),),
        answers=(f"The {room} is set to {n} degrees.",),
        terms=((room, str(n)),),
    )


# Reminders, messages and the like

_REMIND = lines("""
    remind me to <task> at <time>
    remind me at <time> to <task>
    (set|make) a reminder (to|for) <task> at <time>
    (set|make) a reminder at <time>: <task>
    I (must|have to|need to) <task> at <time>, remind me
    don't let me forget to <task> at <time>
    (can|could) you remind me to <task> at <time>?
    at <time>, remind me to <task>
""")
_TASKS = (
    "buy milk", "call mum", "feed the cat", "water the plants", "take out the bins", "pay the rent", "send the letter",
    "walk the dog", "clean the kitchen", "book a table", "pick up the parcel", "bake bread", "charge the phone",
)  # fmt: skip


def _clock(rng: Random) -> str:
    return rng.choice((
        f"{rng.randint(1, 12)} pm", f"{rng.randint(1, 12)} am", f"{rng.randint(0, 23)}:{rng.choice((0, 15, 30, 45)):02d}",
        f"{rng.randint(1, 12)}pm", "noon",
    ))  # fmt: skip


def _remind(rng: Random, held: bool, _n: int) -> Task:
    task, time = rng.choice(_TASKS), _clock(rng)
    if rng.random() < 0.4:
        task = f"{rng.choice(('find', 'buy', 'sell', 'paint', 'call', 'fix'))} the {rng.choice(WORDS)}"
    text = pool("text task message what title", "note").draw(rng, held=held)
    when = pool("time at when", "due").draw(rng, held=held)
    tool = Tool(
        name=doing_name(rng.choice(("reminder", "reminders", "todo")), rng, held=held),
        description=rng.choice(("Set a reminder.", "Remind the user of something.", "Create a reminder.")),
        parameters={text: string(), when: string()},
    )
    return Task(
        tool=tool,
        values={"task": task, "time": time},
        calls=({text: task, when: time},),
        results=(done(rng),),
        answers=(f"I will remind you to {task} at {time}.",),
        terms=((task, time),),
    )


_TIMER = lines("""
    (set|start) a timer (for|of) <n> <unit>
    (set|start) a <n> <unit> timer
    timer[,] <n> <unit>[, please]
    <n> <unit>[,] (on the timer|timer)[, please]
    wake me in <n> <unit>
    (can|could) you (set|start) a timer for <n> <unit>?
    tell me when <n> <unit> are over
""")


def _timer(rng: Random, held: bool, _n: int) -> Task:
    n, unit = rng.randint(2, 90), rng.choice(("minutes", "seconds"))
    tool = Tool(
        name=doing_name(rng.choice(("timer", "countdown")), rng, held=held),
        description=rng.choice(("Start a timer.", "Set a timer.", "A kitchen timer")),
        parameters={unit: {"type": "integer"}},
    )
    return Task(
        tool=tool,
        values={"n": str(n), "unit": unit},
        calls=({unit: n},),
        results=(done(rng),),
        answers=(f"The timer runs for {n} {unit}.",),
        terms=((str(n), unit),),
    )


_SEND = lines("""
    send <name> a (message|text|mail): <text>
    (send|write) (a message|an email|a mail|a text) to <name>: <text>
    (tell|text|message) <name>: <text>
    (send|write) (a message|an email|a mail) to <name> (saying|that says) <text>
    message (for|to) <name>: <text>
    let <name> know: <text>
    (can|could) you (write|send) <name> a message: <text>
""")


def _send(rng: Random, held: bool, _n: int) -> Task:
    name, text = rng.choice(NAMES), _words(rng, 2, 5)
    to = pool("to recipient name person contact", "receiver").draw(rng, held=held)
    body = pool("text message body content", "note").draw(rng, held=held)
    tool = Tool(
        name=doing_name(rng.choice(("message", "email", "mail")), rng, held=held)
        if held or rng.random() < 0.5
        else rng.choice(("send_message", "send_email", "send_text", "send")),
        description=rng.choice(("Send a message.", "Send a message to somebody.", "Write an email.")),
        parameters={to: string(), body: string()},
    )
    return Task(
        tool=tool,
        values={"name": name, "text": text},
        calls=({to: name, body: text},),
        results=(done(rng),),
        answers=(f"I sent {name} the message: {text}",),
        terms=((name, text),),
    )


_EVENT = lines("""
    add <event> on <day>[ to my calendar]
    (put|write) <event> (in|into) my calendar (for|on) <day>
    (plan|schedule) <event> (on|for) <day>
    (make|create) an appointment on <day>: <event>
    on <day> I have <event>, (put|write) it in my calendar
    (enter|note) <event> (for|on) <day>
    calendar, <day>: <event>
""")


def _event(rng: Random, held: bool, _n: int) -> Task:
    event = f"{rng.choice(('lunch', 'dinner', 'a meeting', 'chess', 'tennis', 'a walk'))} with {rng.choice(NAMES)}"
    day = rng.choice((rng.choice(DAYS), f"{rng.choice(MONTHS)} {rng.randint(1, 28)}"))
    title = pool("title event what name", "subject").draw(rng, held=held)
    when = pool("day date when", "occasion").draw(rng, held=held)
    tool = Tool(
        name=doing_name(rng.choice(("event", "appointment", "calendar")), rng, held=held),
        description=rng.choice(
            ("Add an event to the calendar.", "Plan something.", "Create an appointment.")
        ),
        parameters={title: string(), when: string()},
    )
    return Task(
        tool=tool,
        values={"event": event, "day": day},
        calls=({title: event, when: day},),
        results=(done(rng),),
        answers=(f"I added {event} on {day}.",),
        terms=((event, day),),
    )


_PLAY = lines("""
    play <song>
    (can|could) you play <song>?
    I (want|would like) to hear <song>
    (put|turn) on <song>
    (start|listen to) <song>
    (some|a little) music: <song>
    let me hear <song>
""")


def _play(rng: Random, held: bool, _n: int) -> Task:
    song = " ".join(rng.choice(WORDS).capitalize() for _ in range(rng.randint(2, 3)))
    key = pool("song title track name music", "tune", 0.06).draw(rng, held=held)
    tool = Tool(
        name=doing_name(rng.choice(("music", "song", "player")), rng, held=held)
        if held or rng.random() < 0.5
        else rng.choice(("play", "play_song", "play_music")),
        description=rng.choice(("Play a song.", "Play music.", "The music player")),
        parameters={key: string()},
    )
    return Task(
        tool=tool,
        values={"song": song},
        calls=({key: song},),
        results=(done(rng),),
        answers=(f"Now playing {song}.",),
        terms=((song,),),
    )


# Anything by its name

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
        return _city(rng, held=held)
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


def _found(rng: Random) -> Any:
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
    things = _things(n, lambda: _member(category, rng, held=held))
    key = rng.choice(_KEYS.get(category, (category, "name", f"{category}_name")))
    if held:
        key = rng.choice((f"the_{category}", "subject", "item"))
    elif rng.random() < 0.25:
        key = rng.choice(("q", "id", "query", "value", "key", invented(rng).lower()))

    def tool_for(one: str) -> Tool:
        joined = one if rng.random() < 0.7 else f"{category}_{one}"
        return Tool(
            name=asking_name(joined, rng, held=held),
            description=rng.choice((
                f"Get the {one} of a {category}.", f"Look up the {one} of a {category}.", f"The {one} of a {category}",
                f"Return the {one}.", f"Find out the {one} of something.",
            )),
            parameters={key: string()},
        )  # fmt: skip

    others = [other for other in _NOUNS[category][:-1] if other != noun]
    values = [_found(rng) for _ in things]
    field = rng.choice((noun.replace(" ", "_"), "value", "result"))
    shown = [
        f"{category} {thing}" if category in {"order", "flight", "train"} and rng.random() < 0.6 else thing
        for thing in things
    ]
    said = [f"the {noun} of {thing} is {value}." for thing, value in zip(things, values, strict=True)]
    return Task(
        tool=tool_for(noun),
        values={**_slots(shown), "noun": noun},
        calls=tuple({key: thing} for thing in things),
        results=tuple(report({field: value}, str(value), rng) for value in values),
        answers=tuple(said),
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
    value = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}" if noun == "time" else _found(rng)
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
    Family(name="weather", wordings=_WEATHER, draw=_weather, both=_WEATHER_BOTH, again=_IN_AGAIN, weight=2.5),
    Family(name="weather_unit", wordings=_WEATHER_UNIT, draw=_weather_unit, weight=0.8),
    Family(name="time", wordings=_TIME, draw=_time, both=_TIME_BOTH, again=_IN_AGAIN, weight=1.2),
    Family(name="expression", wordings=_EXPRESSION, draw=_expression, weight=1.8),
    Family(name="operation", wordings=_EXPRESSION, draw=_operation, weight=1.2),
    Family(name="two_numbers", wordings=_EXPRESSION, draw=_two_numbers, weight=1),
    Family(name="convert", wordings=_CONVERT, draw=_convert),
    Family(name="translate", wordings=_TRANSLATE, draw=_translate, weight=0.8),
    Family(name="search", wordings=_SEARCH, draw=_search),
    Family(name="search_n", wordings=_SEARCH_N, draw=_search_n, weight=0.5),
    Family(name="light", wordings=_LIGHT, draw=_light, acts=True),
    Family(name="dim", wordings=_DIM, draw=_dim, acts=True, weight=0.6),
    Family(name="heat", wordings=_HEAT, draw=_heat, acts=True, weight=0.8),
    Family(name="remind", wordings=_REMIND, draw=_remind, acts=True, weight=0.8),
    Family(name="timer", wordings=_TIMER, draw=_timer, acts=True, weight=0.5),
    Family(name="send", wordings=_SEND, draw=_send, acts=True, weight=0.7),
    Family(name="event", wordings=_EVENT, draw=_event, acts=True, weight=0.6),
    Family(name="play", wordings=_PLAY, draw=_play, acts=True, weight=0.5),
    Family(name="reading", wordings=_NOW, draw=_reading, weight=0.8),
    Family(name="lookup", wordings=_LOOKUP, draw=_lookup, both=_LOOKUP_BOTH, again=_OF_AGAIN, weight=3),
)
