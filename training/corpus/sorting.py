"""Putting a few words or numbers in order. The items of held-out questions are drawn afresh."""

from __future__ import annotations

from random import Random

from training.corpus.checks import exact, items
from training.corpus.source import Drawn, IntentMaker, Source, lines
from training.corpus.tables.words import ANIMALS, COLOURS, FRUITS

SORTED_WORDS = tuple(dict.fromkeys(ANIMALS[:36] + FRUITS + COLOURS[:12]))

_WORDS = lines("""
    sort (these words|the words|the following words|alphabetically): <list>
    sort <list>[ alphabetically| by alphabet| from a to z]
    (put|bring|arrange) [these words|the following|the words] (in|into) (alphabetical|dictionary) order: <list>
    (put|bring|arrange) <list> (in|into) (alphabetical|dictionary) order
    (order|arrange|rank) [these words|the words] (alphabetically|by the alphabet|from a to z): <list>
    what is the alphabetical order of <list>?
    (can|could) you (sort|order) [these words|the words|this list][ for me]: <list>?
    alphabetical order[, please]: <list>
    (give|show) me [these words|this list] (sorted|in alphabetical order): <list>
    <list>: (sort them|sort these|sort this list|in alphabetical order)[, please]
    I have [the words ]<list>. (sort them|put them in order|which order is alphabetical?)
    how would a dictionary order <list>?
    (please sort|sort) (this list|my list|a list of words): <list>
    make a sorted list (of|from|out of) <list>
    alphabetise <list>
""")
_BACKWARDS = lines("""
    sort [these words|the words] (backwards|in reverse|from z to a|in reverse order): <list>
    sort <list> (backwards|in reverse|from z to a|in reverse alphabetical order)
    (put|bring|arrange) <list> (in|into) reverse alphabetical order
    reverse alphabetical order[, please]: <list>
    (order|arrange) [these words|the words] from z to a: <list>
    (can|could) you sort [these words ](from z to a|in reverse): <list>?
    <list>: (sort them backwards|sort from z to a|in reverse alphabetical order)
    (give|show) me <list>, sorted (from z to a|backwards|in reverse)
    what is the reverse alphabetical order of <list>?
    (order|list) from z to a: <list>
""")
_NUMBERS = lines("""
    sort (these numbers|the numbers|the following numbers): <list>
    sort <list>[ by size| from small to large| in ascending order]
    (put|bring|arrange) [these numbers|the numbers] (in|into) [ascending |rising |]order: <list>
    (put|bring|arrange) <list> (in|into) [ascending |rising |]order
    (order|arrange) [these numbers|the numbers] (from small to large|from smallest to largest|by size): <list>
    what is the ascending order of <list>?
    (can|could) you (sort|order) [these numbers|the numbers][ for me]: <list>?
    ascending order[, please]: <list>
    (give|show) me [these numbers ](sorted|in ascending order): <list>
    <list>: (sort them|sort these|from small to large)[, please]
    I have the numbers <list>. (sort them|put them in order|smallest first, please)
    (smallest|lowest) first: <list>
""")
_DESCENDING = lines("""
    sort [these numbers|the numbers] (from large to small|in descending order|from largest to smallest): <list>
    sort <list> (from large to small|in descending order|downwards)
    (put|bring|arrange) <list> (in|into) (descending|falling) order
    descending order[, please]: <list>
    (largest|biggest|highest) first: <list>
    (order|arrange) [these numbers|the numbers] from (large to small|largest to smallest): <list>
    (can|could) you sort [these numbers ]in descending order: <list>?
    <list>: (from large to small|sort them downwards|in descending order)
    (give|show) me <list>, (largest|biggest) first
    what is the descending order of <list>?
""")
_LARGEST = lines("""
    (what|which) is the (largest|biggest|highest) (number|one)[ of| in| among]: <list>?
    (what|which) [number ]is the (largest|biggest|highest) (of|in|among) <list>?
    find the (largest|biggest|highest|maximum) [number ](of|in|among) <list>
    (tell|give) me the (largest|biggest|highest) of <list>
    the (maximum|largest|biggest) of <list>[ is][?]
    of <list>, which (number|one) is the (largest|biggest|highest)?
    <list>: (largest|biggest|highest|maximum)[ number|?]
    which of <list> is the (largest|biggest|highest)?
    what is the maximum of <list>?
""")
_SMALLEST = lines("""
    (what|which) is the (smallest|lowest|least) (number|one)[ of| in| among]: <list>?
    (what|which) [number ]is the (smallest|lowest) (of|in|among) <list>?
    find the (smallest|lowest|minimum) [number ](of|in|among) <list>
    (tell|give) me the (smallest|lowest) of <list>
    the (minimum|smallest|lowest) of <list>[ is][?]
    of <list>, which (number|one) is the (smallest|lowest)?
    <list>: (smallest|lowest|minimum)[ number|?]
    which of <list> is the (smallest|lowest)?
    what is the minimum of <list>?
""")
_FIRST = lines("""
    which word comes first in the alphabet: <list>?
    (which|what) (of these words|word) is first in (alphabetical order|a dictionary): <list>?
    of <list>, which comes first (alphabetically|in the alphabet|in a dictionary)?
    (tell|give) me the (alphabetically first word|first word in alphabetical order) of <list>
    which of <list> comes first (alphabetically|in the alphabet)?
    alphabetically first: <list>[?]
    <list>: which (one|word) is first in the alphabet?
    find the word that comes first (alphabetically|in a dictionary): <list>
""")


def sources() -> tuple[Source, ...]:
    """Return sorting of words and of numbers, and the ends of an order."""
    intent = IntentMaker("sorting")
    return (
        intent("words", _WORDS, _words, 4),
        intent("words_backwards", _BACKWARDS, _words_backwards, 1.2),
        intent("numbers", _NUMBERS, _numbers, 3),
        intent("numbers_descending", _DESCENDING, _numbers_descending, 1.2),
        intent("largest", _LARGEST, _largest, 1),
        intent("smallest", _SMALLEST, _smallest, 1),
        intent("first_word", _FIRST, _first_word, 0.8),
    )


def some_words(rng: Random) -> list[str]:
    """Draw three to five words."""
    return rng.sample(SORTED_WORDS, rng.choice((3, 3, 3, 4, 4, 5)))


def some_numbers(rng: Random) -> list[int]:
    """Draw three to five numbers up to 20, or up to 99."""
    return rng.sample(range(1, rng.choice((20, 20, 99))), rng.choice((3, 3, 3, 4, 4, 5)))


def typed(things: list[str], rng: Random) -> str:
    """Write a list as people do."""
    way = rng.random()
    if way < 0.65:
        return ", ".join(things)
    if way < 0.8:
        return " ".join(things)
    return f"{', '.join(things[:-1])} and {things[-1]}"


def ordered(things: list[str], result: list[str], rng: Random) -> Drawn:
    """Ask for an order."""
    return Drawn(answer=", ".join(result), check=items(tuple(result)), values={"list": typed(things, rng)})


def _words(rng: Random, _held: bool) -> Drawn:
    words = some_words(rng)
    return ordered(words, sorted(words), rng)


def _words_backwards(rng: Random, _held: bool) -> Drawn:
    words = some_words(rng)
    return ordered(words, sorted(words, reverse=True), rng)


def _numbers(rng: Random, _held: bool) -> Drawn:
    numbers = some_numbers(rng)
    return ordered([str(n) for n in numbers], [str(n) for n in sorted(numbers)], rng)


def _numbers_descending(rng: Random, _held: bool) -> Drawn:
    numbers = some_numbers(rng)
    return ordered([str(n) for n in numbers], [str(n) for n in sorted(numbers, reverse=True)], rng)


def _single(things: list[str], answer: str, rng: Random) -> Drawn:
    return Drawn(answer=answer, check=exact(answer), values={"list": typed(things, rng)})


def _largest(rng: Random, _held: bool) -> Drawn:
    numbers = some_numbers(rng)
    return _single([str(n) for n in numbers], str(max(numbers)), rng)


def _smallest(rng: Random, _held: bool) -> Drawn:
    numbers = some_numbers(rng)
    return _single([str(n) for n in numbers], str(min(numbers)), rng)


def _first_word(rng: Random, _held: bool) -> Drawn:
    words = some_words(rng)
    return _single(words, min(words), rng)
