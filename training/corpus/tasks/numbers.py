"""Sums, with an expression, an operation by its name, or two numbers."""

from __future__ import annotations

from random import Random
from typing import Any

from training.corpus.source import lines
from training.corpus.tasks.family import Family, draw_number
from training.corpus.tool import Task, Tool, asking_name, number, one_of, pool, report, string

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


def _worked_out(sign: str, a: float, b: float) -> float:
    result = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign]
    rounded = round(result, 2)
    return int(rounded) if float(rounded).is_integer() else rounded


def _signed(sign: str, rng: Random) -> str:
    """Say a sign as it is or by its word."""
    way = rng.random()
    if way < 0.5:
        return sign
    return "x" if sign == "*" and way < 0.6 else _SIGNS[sign][0]


def _expression(rng: Random, held: bool, _n: int) -> Task:
    sign, a, b = rng.choice(tuple(_SIGNS)), draw_number(rng), draw_number(rng)
    written, total = f"{a} {sign} {b}", _worked_out(sign, a, b)
    worded = f"{a} {_signed(sign, rng)} {b}"
    if rng.random() < 0.25:
        other, c = rng.choice("+-*"), rng.randint(2, 50)
        worded, written = (f"({written}) {other} {c}",) * 2
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
        values={"sum": worded},
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
    sign, a, b = rng.choice(tuple(_SIGNS)), draw_number(rng), draw_number(rng)
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
    sign, a, b = rng.choice(tuple(_SIGNS)), draw_number(rng), draw_number(rng)
    first, second = rng.choice(_HELD_PAIRS if held else _PAIRS)
    tail = rng.choice(("_two", "_pair") if held else ("", "", "_numbers", "_them", "_values"))

    def tool_for(operator: str) -> Tool:
        word = _SIGNS[operator][1]
        return Tool(
            name=word + tail,
            description=f"{word.capitalize()} two numbers.",
            parameters={first: number(rng, a), second: number(rng, b)},
        )

    others = rng.sample([operator for operator in _SIGNS if operator != sign], rng.randint(0, 2))
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


FAMILIES = (
    Family(name="expression", wordings=_EXPRESSION, draw=_expression, weight=1.8),
    Family(name="operation", wordings=_EXPRESSION, draw=_operation, weight=1.2),
    Family(name="two_numbers", wordings=_EXPRESSION, draw=_two_numbers, weight=1),
)
