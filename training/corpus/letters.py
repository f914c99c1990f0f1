"""Spelling, letters and case, for the words of one list."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from training.corpus.checks import exact, verbatim
from training.corpus.source import Drawn, IntentMaker, Source, lines
from training.corpus.tables.words import NAMES, WORDS

_QUOTES = ("", "", "", '"', "'")

_SPELL = lines("""
    (spell|spell out) [the word ]<word>
    how (do you|do I|does one|would you) spell [the word ]<word>?
    how is [the word ]<word> (spelled|spelt|written)?
    (can|could|would) you spell [the word ]<word>[ for me]?
    (give|tell|show) me the (spelling|letters) of [the word ]<word>
    what (is|are) the (spelling|letters) of [the word ]<word>?
    (which|what) letters (are in|make up|does one need for) [the word ]<word>?
    <word>: (spell it|spell that|spelling|how is it spelled)[?]
    (write|say|list) [the word ]<word> letter by letter
    I (can't|cannot|do not know how to) spell [the word ]<word>. (help me|how is it spelled|how does it go)?
    split [the word ]<word> into [its ]letters
    spelling of <word>[, please]
    what does <word> look like, letter (by|for) letter?
    teach me to spell <word>
""")
_UPPER = lines("""
    (write|put|say|give me|type|print) [the word ]<word> in (upper case|uppercase|capitals|capital letters|all caps)
    <word> in (upper case|uppercase|capitals|capital letters|all caps)[, please]
    (convert|change|turn|transform|set) [the word ]<word> (to|into) (upper case|uppercase|capitals|capital letters)
    make [the word ]<word> (upper case|uppercase|all caps)
    what is [the word ]<word> in (upper case|uppercase|capitals|capital letters)?
    (uppercase|capitals for) [the word ]<word>
    (can|could) you (write|put) [the word ]<word> in (upper case|capitals|capital letters)?
    how does [the word ]<word> look in (upper case|capitals|capital letters|all caps)?
    I (need|want) [the word ]<word> in (upper case|uppercase|capitals|capital letters)
    shout [the word ]<word> in (capitals|capital letters|upper case)
    (upper case|uppercase|capitals|all caps): <word>
    use (only capital letters|only capitals|upper case) for [the word ]<word>
""")
_LOWER = lines("""
    (write|put|say|give me|type|print) [the word ]<upper> in (lower case|lowercase|small letters)
    <upper> in (lower case|lowercase|small letters)[, please]
    (convert|change|turn|transform|set) [the word ]<upper> (to|into) (lower case|lowercase|small letters)
    make [the word ]<upper> (lower case|lowercase)
    what is [the word ]<upper> in (lower case|lowercase|small letters)?
    (lowercase|small letters for) [the word ]<upper>
    (can|could) you (write|put) [the word ]<upper> in (lower case|small letters)?
    how does [the word ]<upper> look in (lower case|small letters)?
    I (need|want) [the word ]<upper> in (lower case|lowercase|small letters)
    (lower case|small letters): <upper>
    use (only small letters|lower case) for [the word ]<upper>
    do not shout: (write|put) <upper> in (small letters|lower case)
""")
_CAPITALISE = lines("""
    (capitalise|capitalize) [the word ]<word>
    (write|put|give me) [the word ]<word> with a capital [first ]letter
    make (the first letter of|only the first letter of) [the word ]<word> (upper case|a capital|big)
    how does [the word ]<word> look at the start of a sentence?
    <word> with a capital [first ]letter[, please]
    (can|could) you (capitalise|capitalize) [the word ]<word>?
    what is [the word ]<word> with a capital [first ]letter?
    begin [the word ]<word> with a capital[ letter]
    I (need|want) [the word ]<word> with a capital first letter
""")
_FIRST = lines("""
    what is the first letter of [the word ]<word>?
    (which|what) letter (does [the word ]<word> start with|comes first in [the word ]<word>)?
    (give|tell) me the first letter of [the word ]<word>
    [the word ]<word> (starts|begins) with (which|what) letter?
    first letter of [the word ]<word>[?]
    with (which|what) letter does [the word ]<word> (start|begin)?
    how does [the word ]<word> (start|begin), with which letter?
    (can you|could you) name the first letter of [the word ]<word>?
    the (initial|initial letter) of [the word ]<word>[ is][?]
    <word>: first letter[?]
""")
_LAST = lines("""
    what is the last letter of [the word ]<word>?
    (which|what) letter (does [the word ]<word> end with|comes last in [the word ]<word>)?
    (give|tell) me the last letter of [the word ]<word>
    [the word ]<word> ends (with|in) (which|what) letter?
    last letter of [the word ]<word>[?]
    with (which|what) letter does [the word ]<word> (end|stop|finish)?
    how does [the word ]<word> end, with which letter?
    (can you|could you) name the last letter of [the word ]<word>?
    the (final|final letter) of [the word ]<word>[ is][?]
    <word>: last letter[?]
""")
_LENGTH = lines("""
    how many letters (does [the word ]<word> have|are (in|there in) [the word ]<word>|has [the word ]<word>)?
    (count|number) the letters (of|in) [the word ]<word>
    how long is the word <word>[, in letters]?
    what is the (length|number of letters) of [the word ]<word>?
    (give|tell) me the (number|count) of letters in [the word ]<word>
    [the word ]<word> has how many letters?
    (can|could) you count the letters (in|of) [the word ]<word>?
    number of letters in [the word ]<word>[?]
    I count the letters of <word>. how many are there?
    <word>: how many letters[?]
    of how many letters is [the word ]<word> made?
""")
_BACKWARDS = lines("""
    (spell|write|say) [the word ]<word> (backwards|backward|in reverse|in reverse order)
    how (do you|do I) (spell|write) [the word ]<word> (backwards|in reverse)?
    (reverse|turn around) (the word|the letters of) <word>
    what is [the word ]<word> (backwards|spelled backwards|in reverse|reversed)?
    <word> (backwards|in reverse|reversed)[, please]
    (can|could) you (spell|write|say) [the word ]<word> (backwards|in reverse)?
    (give|show|tell) me [the word ]<word> (backwards|in reverse|from back to front)
    read [the word ]<word> from (back to front|the end|right to left)
    (list|say) the letters of [the word ]<word> (backwards|in reverse|from the last to the first)
    spell <word>, but (backwards|in reverse|start with the last letter)
""")


def sources() -> tuple[Source, ...]:
    """Return one intent for each thing that can be asked of a word."""
    intent = IntentMaker("letters")
    return (
        intent("spell", _SPELL, _of_word(lambda word: word, spelled), 3),
        intent("upper", _UPPER, _of_word(lambda word: word, str.upper), 2),
        intent("lower", _LOWER, _lower, 1.5),
        intent("capitalise", _CAPITALISE, _of_word(lambda word: word, str.capitalize), 1),
        intent("first", _FIRST, _of_word(lambda word: word, lambda word: word[0].upper()), 1),
        intent("last", _LAST, _of_word(lambda word: word, lambda word: word[-1].upper()), 1),
        intent("length", _LENGTH, _of_word(lambda word: word, lambda word: str(len(word))), 1.5),
        intent("backwards", _BACKWARDS, _of_word(lambda word: word, lambda word: spelled(word[::-1])), 2),
    )


def spelled(word: str) -> str:
    """Write a word letter by letter."""
    return "-".join(word.upper())


def a_word(rng: Random) -> str:
    """Draw a word, now and then a name."""
    return rng.choice(NAMES) if rng.random() < 0.1 else rng.choice(WORDS)


def _quoted(text: str, rng: Random) -> str:
    quote = rng.choice(_QUOTES)
    return f"{quote}{text}{quote}"


def _of_word(
    question_of: Callable[[str], str], answer_of: Callable[[str], str]
) -> Callable[[Random, bool], Drawn]:
    def draw(rng: Random, _held: bool) -> Drawn:
        word = a_word(rng)
        answer = answer_of(word)
        check = verbatim(answer) if answer.isalpha() and len(answer) > 1 else exact(answer)
        return Drawn(answer=answer, check=check, values={"word": _quoted(question_of(word), rng)})

    return draw


def _lower(rng: Random, _held: bool) -> Drawn:
    word = rng.choice(WORDS)
    return Drawn(answer=word, check=verbatim(word), values={"upper": _quoted(word.upper(), rng)})
