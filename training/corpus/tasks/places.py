"""What it is like at places: the weather and the time."""

from __future__ import annotations

from random import Random

from training.corpus.source import lines
from training.corpus.tasks.family import Family, distinct, draw_city, slots_of
from training.corpus.tool import Task, Tool, asking_name, one_of, pool, report, string

_CITY = pool("city location place town where city_name in_city q name", "municipality destination", 0.06)


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
    cities = distinct(n, lambda: draw_city(rng, held=held))
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
    results, answers, terms = [], [], []
    for name in cities:
        warm, how = rng.randint(-12, 38), rng.choice(_SKIES)
        results.append(report({degrees: warm, sky: how}, f"{warm} degrees, {how}", rng))
        answers.append(f"in {name} it is {warm} degrees and {how}.")
        terms.append((str(abs(warm)), how))
    return Task(
        tool=tool,
        values=slots_of(cities),
        calls=tuple({city: name} for name in cities),
        results=tuple(results),
        answers=tuple(answers),
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
    cities = distinct(n, lambda: draw_city(rng, held=held))
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
        values=slots_of(cities),
        calls=tuple({city: name} for name in cities),
        results=tuple(report({key: time}, time, rng) for time in times),
        answers=tuple(f"it is {time} in {name}." for time, name in zip(times, cities, strict=True)),
        terms=tuple((time,) for time in times),
    )


FAMILIES = (
    Family(name="weather", wordings=_WEATHER, draw=_weather, both=_WEATHER_BOTH, again=_IN_AGAIN, weight=2.5),
    Family(name="weather_unit", wordings=_WEATHER_UNIT, draw=_weather_unit, weight=0.8),
    Family(name="time", wordings=_TIME, draw=_time, both=_TIME_BOTH, again=_IN_AGAIN, weight=1.2),
)
