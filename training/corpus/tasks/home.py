"""Things at home: lights and heating."""

from __future__ import annotations

from random import Random
from typing import Any

from training.corpus.source import lines
from training.corpus.tasks.family import Family
from training.corpus.tool import Task, Tool, doing_name, done, number, one_of, pool, string

_ROOMS = (
    "kitchen", "bedroom", "living room", "bathroom", "hall", "office", "garage", "garden", "cellar", "attic", "nursery",
    "dining room", "guest room", "hallway", "study", "workshop",
)  # fmt: skip
_ROOM = pool("room place where area location room_name zone", "chamber spot", 0.1)


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


FAMILIES = (
    Family(name="light", wordings=_LIGHT, draw=_light, acts=True),
    Family(name="dim", wordings=_DIM, draw=_dim, acts=True, weight=0.6),
    Family(name="heat", wordings=_HEAT, draw=_heat, acts=True, weight=0.8),
)
