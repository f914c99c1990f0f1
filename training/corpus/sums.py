"""Small sums and counting. Some pairs of operands are held out too: their sums are never trained on."""

from __future__ import annotations

import hashlib
from random import Random

from training.corpus.checks import exact, has, items, number
from training.corpus.source import SPLIT_SEED, Drawn, IntentMaker, Source, lines
from training.corpus.tables.words import COLOURS, FRUITS

_HELD_PAIRS = 10
"""One pair in ten is held out, by its hash."""
_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "a hundred")
_THINGS = (
    "apples",
    "books",
    "cats",
    "coins",
    "eggs",
    "cups",
    "stones",
    "stars",
    "pens",
    "cards",
    "keys",
    "birds",
)

_ADD = lines("""
    what is <a> (plus|+|and) <b>?
    what's <a> (plus|+) <b>?
    <a> (+|plus) <b>[ =][?]
    (calculate|compute|work out|solve) <a> (+|plus) <b>
    how much (is|are) <a> (plus|+|and) <b>?
    add <a> and <b>
    add <b> to <a>, starting with <a>
    (give|tell) me the (sum|total) of <a> and <b>
    what (is|do you get for) the sum of <a> and <b>?
    can you add <a> (and|plus) <b>[ for me]?
    (the sum of|the total of) <a> and <b>[ is][?]
    <a> (plus|+) <b> (makes|equals|is|gives) (what|how much)?
    what do I get (if|when) I add <a> and <b>?
    I (need|want) <a> (plus|+) <b>
    if you add <a> and <b>, what (comes out|is the result)?
    please (sum|add up) <a> and <b>
    what (does|would) <a> (+|plus) <b> (make|equal|give|come to)?
    how much do <a> and <b> make[ together]?
""")
_SUBTRACT = lines("""
    what is <a> (minus|-|less) <b>?
    what's <a> (minus|-) <b>?
    <a> (-|minus) <b>[ =][?]
    (calculate|compute|work out|solve) <a> (-|minus) <b>
    how much is <a> (minus|-|less) <b>?
    (subtract|take) <b> from <a>
    (give|tell) me the difference of <a> and <b>
    what (is|do you get for) <a> take away <b>?
    can you (subtract|take) <b> from <a>[ for me]?
    <a> (minus|-|take away) <b> (makes|equals|is|gives) (what|how much)?
    what (is left|remains) (if|when) I take <b> from <a>?
    I (need|want) <a> (minus|-) <b>
    what (does|would) <a> (-|minus) <b> (make|equal|give|come to)?
    if you take <b> away from <a>, what (is left|remains)?
    start (with|at) <a> and (subtract|take away) <b>
""")
_TIMES = lines("""
    what is <a> (times|multiplied by|x|*) <b>?
    what's <a> (times|x|*) <b>?
    <a> (*|x|times) <b>[ =][?]
    (calculate|compute|work out|solve) <a> (*|x|times) <b>
    how much is <a> (times|multiplied by|x) <b>?
    multiply <a> (by|and|with) <b>
    (give|tell) me the product of <a> and <b>
    what (is|do you get for) the product of <a> and <b>?
    can you multiply <a> (by|with) <b>[ for me]?
    <a> (times|multiplied by|x) <b> (makes|equals|is|gives) (what|how much)?
    I (need|want) <a> (times|x|*) <b>
    what (does|would) <a> times <b> (make|equal|give|come to)?
    how much are <a> times <b>?
""")
_GAIN = lines("""
    I have <a> <things> and (get|buy|find|receive) <b> more. how many <things> do I have[ now]?
    (Anna|Tom|she|he|my friend) has <a> <things> and gets <b> more. how many (is that|are there|are that)?
    there are <a> <things> in one box and <b> in another. how many (are there|<things> are there) (together|in all)?
    if I had <a> <things> and somebody gave me <b> more, how many would I have?
    <a> <things> and <b> more <things>, how many[ <things>] (is that|in all|altogether)?
    I (own|count|see) <a> <things>, then <b> more (come|appear). how many <things> in all?
    how many <things> are <a> <things> and <b> <things>?
    put <b> <things> beside <a> <things>. how many <things> (lie there|are there|do you see)?
""")
_LOSE = lines("""
    I have <a> <things> and (lose|sell|give away|drop) <b>. how many <things> (are left|do I have[ left| now])?
    (Anna|Tom|she|he|my friend) has <a> <things> and gives away <b>. how many (are left|remain)?
    there are <a> <things> on the table. I take <b>. how many (are left|remain)?
    if I had <a> <things> and lost <b>, how many would I have?
    of <a> <things>, <b> (are gone|are lost|disappear). how many (are left|remain)?
    <a> <things> less <b> <things>, how many <things> (is that|are left)?
    somebody takes <b> of my <a> <things>. how many <things> (remain|are left)?
    how many <things> (remain|are left) of <a> if <b> (break|are lost|go)?
""")
_DOUBLE = lines("""
    what is (twice|double|two times) <a>?
    double <a>
    what is the double of <a>?
    (give|tell) me (twice|double) <a>
    how much is (twice|double) <a>?
    can you double <a>?
    (twice|double) <a>[ is][ what][?]
    what do I get if I double <a>?
""")
_HALF = lines("""
    what is half of <a>?
    (halve|divide by two:) <a>
    what is <a> (divided by|/) 2?
    (give|tell) me half of <a>
    how much is half of <a>?
    can you halve <a>?
    half of <a>[ is][ what][?]
    what do I get if I (halve <a>|divide <a> by two)?
""")
_PARITY = lines("""
    is <a> (even or odd|odd or even)?
    is <a> an (even|odd) number?
    is <a> (even|odd)?
    (tell|show) me (if|whether) <a> is (even or odd|odd or even)
    <a>: even or odd?
    even or odd: <a>[?]
    what is <a>, (even or odd|odd or even)?
    can <a> be divided by two?
    does <a> count as (even or odd|odd or even)?
    is the number <a> (odd or even|even or odd)?
""")
_LARGER = lines("""
    (which|what) is (larger|bigger|greater|more), <a> or <b>?
    which (number|one) is (larger|bigger|greater|higher): <a> or <b>?
    (tell|give) me the (larger|bigger|greater|higher) (number|one) of <a> and <b>
    is <a> or <b> (larger|bigger|greater|more|higher)?
    (larger|bigger|greater): <a> or <b>?
    of <a> and <b>, which is (larger|bigger|greater|more|higher)?
    what is the maximum of <a> and <b>?
    compare <a> and <b>: which is (larger|bigger|greater)?
    which of <a> and <b> is the (larger|bigger|greater|higher) (one|number)?
    <a> or <b>, which (one|number) is (larger|bigger|greater)?
""")
_COUNT_UP = lines("""
    count from <a> to <b>
    (can|could) you count from <a> to <b>?
    count (up|upwards) from <a> to <b>
    (write|list|say|give me|show) the numbers from <a> to <b>
    (write|list|say|give me|show) all numbers between <a> and <b>, both included
    start (at|with) <a> and count to <b>
    numbers from <a> to <b>[, please]
    I want to see you count from <a> to <b>
    begin (at|with) <a>, count, and end (at|with) <b>
    please count: <a> to <b>
""")
_COUNT_DOWN = lines("""
    count (down|backwards) from <a> to <b>
    (can|could) you count (down|backwards) from <a> to <b>?
    (write|list|say|give me) the numbers (down|backwards) from <a> to <b>
    start (at|with) <a> and count (down|backwards) to <b>
    countdown from <a> to <b>[, please]
    do a countdown from <a> to <b>
    from <a> down to <b>, (count|list the numbers|say the numbers)
    please count (down|backwards): <a> to <b>
""")
_HOW_MANY = lines("""
    how many words are (in|here)[ this list]: <list>?
    count (the|these) words: <list>
    how many (things|items|words) (are|do you see) in <list>?
    (tell|give) me the number of (words|items) in: <list>
    how (long|many words) is this list: <list>?
    <list>: how many (words|things|items) (are that|is that|are there)?
    can you count (the|these) (words|items|things): <list>?
    here is a list: <list>. how many (words|items|things) (are in it|does it have)?
    what is the number of (items|words) in <list>?
    I wrote <list>. count the (words|items)
""")
_NEXT = lines("""
    (what|which) number (comes|follows|is) (after|next after) <a>?
    what comes (after|directly after) <a>?
    (tell|give) me the number after <a>
    the number after <a>[ is][?]
    what is one more than <a>?
    which number follows <a>?
    (name|say) the next number after <a>
    count on by one from <a>
""")
_ABOUT = lines("""
    (tell|teach) me (something|a fact|anything) about [the number ]<a>
    what do you know about [the number ]<a>?
    describe the number <a>
    what can you (say|tell me) about [the number ]<a>?
    (give|tell) me a fact about [the number ]<a>
    what is special about [the number ]<a>?
    say something about [the number ]<a>
    a fact about [the number ]<a>[, please]
    (do you know|is there) (something|anything) about [the number ]<a>?
    what kind of number is <a>?
""")


def sources() -> tuple[Source, ...]:
    """Return sums, comparisons and counting."""
    intent = IntentMaker("sums")
    return (
        intent("add", _ADD, _add, 5),
        intent("subtract", _SUBTRACT, _subtract, 3),
        intent("times", _TIMES, _times, 2),
        intent("gain", _GAIN, _gain, 1.5),
        intent("lose", _LOSE, _lose, 1.2),
        intent("double", _DOUBLE, _double, 0.6),
        intent("half", _HALF, _half, 0.6),
        intent("parity", _PARITY, _parity, 0.8),
        intent("larger", _LARGER, _larger, 1.2),
        intent("count_up", _COUNT_UP, _count_up, 1),
        intent("count_down", _COUNT_DOWN, _count_down, 0.8),
        intent("how_many", _HOW_MANY, _how_many, 1.2),
        intent("next", _NEXT, _next, 0.5),
        intent("about", _ABOUT, _about, 0.6),
    )


def is_held_pair(sign: str, a: int, b: int) -> bool:
    """Say whether this sum is kept out of the training, in this order of its operands."""
    digest = hashlib.sha256(f"{SPLIT_SEED} {a} {sign} {b}".encode()).digest()
    return digest[0] % _HELD_PAIRS == 0


def pair(sign: str, rng: Random, *, held: bool) -> tuple[int, int]:
    """Draw operands of one half of the split: up to 20 mostly, sums to 100 sometimes."""
    while True:
        if sign == "*":
            a, b = rng.randint(0, 10), rng.randint(1, 10)
        else:
            most = 20 if rng.random() < 0.8 else 50
            a, b = rng.randint(0, most), rng.randint(0, most)
        if sign == "-" and a < b:
            a, b = b, a
        if sign == "*" or is_held_pair(sign, a, b) == held:
            return a, b


def number_word(n: int) -> str:
    """Write a number up to a hundred in words.

    Raises:
        ValueError: it is larger, or negative.
    """
    if not 0 <= n <= 100:
        raise ValueError(f"{n} has no word here")
    if n < len(_UNITS):
        return _UNITS[n]
    tens, unit = divmod(n, 10)
    return f"{_TENS[tens - 2]}-{_UNITS[unit]}" if unit else _TENS[tens - 2]


def _typed(rng: Random, held: bool, **numbers: int) -> dict[str, str]:
    """Return what fills the slots: digits, in training often words. `<a_word>` is a word in any case."""
    words = {name: number_word(n) for name, n in numbers.items()}
    digits = {name: str(n) for name, n in numbers.items()}
    values = {f"{name}_word": word for name, word in words.items()}
    if held or rng.random() < 0.6:
        return {**digits, **values}
    gap = rng.choice(("-", "-", " "))
    mixed = rng.random() < 0.25
    for name, word in words.items():
        as_digits = mixed and rng.random() < 0.5
        values[name] = digits[name] if as_digits else word.replace("-", gap)
    return values


def _equation(sign: str, a: int, b: int, rng: Random, held: bool) -> Drawn:
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    values = _typed(rng, held, a=a, b=b)
    return Drawn(answer=f"{a} {sign} {b} = {result}", check=number(result), values=values)


def _add(rng: Random, held: bool) -> Drawn:
    return _equation("+", *pair("+", rng, held=held), rng, held)


def _subtract(rng: Random, held: bool) -> Drawn:
    return _equation("-", *pair("-", rng, held=held), rng, held)


def _times(rng: Random, held: bool) -> Drawn:
    return _equation("*", *pair("*", rng, held=held), rng, held)


def _gain(rng: Random, held: bool) -> Drawn:
    a, b = pair("+", rng, held=held)
    return _with_things(_equation("+", a, b, rng, held), rng)


def _lose(rng: Random, held: bool) -> Drawn:
    a, b = pair("-", rng, held=held)
    return _with_things(_equation("-", a, b, rng, held), rng)


def _with_things(drawn: Drawn, rng: Random) -> Drawn:
    return Drawn(
        answer=drawn.answer, check=drawn.check, values={**drawn.values, "things": rng.choice(_THINGS)}
    )


def _double(rng: Random, held: bool) -> Drawn:
    a = rng.randint(1, 50)
    return Drawn(answer=f"2 * {a} = {2 * a}", check=number(2 * a), values=_typed(rng, held, a=a))


def _half(rng: Random, held: bool) -> Drawn:
    a = 2 * rng.randint(1, 50)
    return Drawn(answer=f"{a} / 2 = {a // 2}", check=number(a // 2), values=_typed(rng, held, a=a))


def _parity(rng: Random, held: bool) -> Drawn:
    a = rng.randint(0, 100)
    word = "odd" if a % 2 else "even"
    return Drawn(answer=f"{a} is {word}.", check=has(word), values=_typed(rng, held, a=a))


def _about(rng: Random, held: bool) -> Drawn:
    a = rng.randint(0, 100)
    word = "odd" if a % 2 else "even"
    answer = f"{a} is {word}. The number after it is {a + 1}."
    return Drawn(answer=answer, check=has(word, str(a + 1)), values=_typed(rng, held, a=a))


def _larger(rng: Random, held: bool) -> Drawn:
    a, b = rng.sample(range(101), 2)
    return Drawn(answer=f"{max(a, b)}", check=exact(str(max(a, b))), values=_typed(rng, held, a=a, b=b))


def _count_up(rng: Random, held: bool) -> Drawn:
    a = rng.choice((1, 1, rng.randint(0, 30)))
    b = a + rng.randint(2, 12)
    return _counted(range(a, b + 1), rng, held)


def _count_down(rng: Random, held: bool) -> Drawn:
    b = rng.choice((1, 0, rng.randint(0, 20)))
    a = b + rng.randint(2, 10)
    return _counted(range(a, b - 1, -1), rng, held)


def _counted(numbers: range, rng: Random, held: bool) -> Drawn:
    counted = tuple(str(n) for n in numbers)
    values = _typed(rng, held, a=numbers[0], b=numbers[-1])
    return Drawn(answer=", ".join(counted), check=items(counted), values=values)


def _how_many(rng: Random, _held: bool) -> Drawn:
    words = rng.sample(COLOURS + FRUITS, rng.randint(2, 8))
    text = rng.choice((", ", " ")).join(words)
    return Drawn(answer=str(len(words)), check=exact(str(len(words))), values={"list": text})


def _next(rng: Random, held: bool) -> Drawn:
    a = rng.randint(0, 99)
    return Drawn(answer=str(a + 1), check=exact(str(a + 1)), values=_typed(rng, held, a=a))
