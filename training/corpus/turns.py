"""Conversations of two and three turns: something told earlier, "and the one after that?", more of the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.corpus import checks
from training.corpus.calendar import DAYS, MONTHS, moved
from training.corpus.example import Check, Example, Turn
from training.corpus.facts import capital
from training.corpus.greeting import sources as greetings
from training.corpus.letters import spelled
from training.corpus.phrase import fill
from training.corpus.server import defined
from training.corpus.source import Source, held_out, lines, pick, trained
from training.corpus.sums import pair
from training.corpus.surface import voiced
from training.corpus.tables.words import COLOURS, FRUITS, NAMES, WORDS
from training.corpus.tables.world import CAPITALS, OPPOSITES, PLANETS
from training.corpus.unknown import invented

_MY_NAME = lines("""
    my name is <name>
    I am <name>
    I'm <name>
    (hi|hello|hey), (I am|I'm|my name is|this is) <name>
    (call me|you can call me|people call me) <name>
    <name> is my name
    <name> here
    this is <name>[ speaking]
    (hi|hello), <name> here
    please (remember|note|learn) that my name is <name>
    let me introduce myself: <name>
    they call me <name>
""")
_WHAT_NAME = lines("""
    what is my name?
    what's my name?
    (do you|can you|could you) (remember|tell me|say|recall) my name?
    who am I?
    (tell me|say|repeat) my name
    do you (still |)know (who I am|my name|what I am called)?
    what am I called?
    how did I (introduce myself|say I am called)?
    (which|what) name did I (tell|give) you?
    I forgot my name. what is it?
    and what was my name[ again]?
    my name (is|was)[ what][?]
""")
_LIKES = lines("""
    my favourite <thing> is <it>
    I (like|love|prefer) <it>, it is my favourite <thing>
    (remember|note) this: my favourite <thing> is <it>
    of all <thing>s I (like|love) <it> (most|best)
    <it> is my favourite <thing>
    my best <thing> is <it>
    the <thing> I (like|love) (most|best) is <it>
    (just so you know|by the way), my favourite <thing> is <it>
""")
_WHAT_LIKES = lines("""
    what is my favourite <thing>?
    what's my favourite <thing>?
    (which|what) <thing> do I (like|love) (most|best)?
    (do|can) you (remember|recall|know|tell me) my favourite <thing>?
    (tell me|say|repeat) my favourite <thing>
    which <thing> is my favourite?
    what did I say my favourite <thing> is?
    my favourite <thing> (is|was)[ what][?]
""")
_AFTER = lines("""
    and the one after that?
    and after that?
    and the next[ one]?
    what comes (next|after that)?
    (which|what) one comes after that?
    the next one[, please][?]
    and then?
    go on
    (one|one step) further[, please][?]
    the one after[ that]?
    next[?]
    and what follows[ that]?
    which is next?
""")
_BEFORE = lines("""
    and the one before that?
    and before that?
    and the previous one?
    what comes before that?
    (which|what) one comes before that?
    the one before[ that]?
    (one|one step) back[, please][?]
    and what was before that?
    the previous one[, please][?]
""")
_ASK_DAY = lines("""
    what day comes after <it>?
    which day follows <it>?
    (tell|give) me the day after <it>
    the day after <it>?
""")
_ASK_MONTH = lines("""
    what month comes after <it>?
    which month follows <it>?
    (tell|give) me the month after <it>
    the month after <it>?
""")
_ASK_PLANET = lines("""
    what planet comes after <it>?
    which planet follows <it>?
    (tell|give) me the planet after <it>
    the planet after <it>?
""")
_ASK_NUMBER = lines("""
    what number comes after <it>?
    which number follows <it>?
    (tell|give) me the number after <it>
    the number after <it>?
""")
_ASK_CAPITAL = lines("""
    what is the capital of <it>?
    (tell|give) me the capital of <it>
    which city is the capital of <it>?
    capital of <it>?
""")
_AND_OF = lines("""
    and of <it>?
    and <it>?
    what about <it>?
    and (the one|that) of <it>?
    how about <it>?
    the same for <it>[, please]
    now <it>
    and for <it>?
    and what is it for <it>?
    <it>?
    also <it>[, please]
""")
_ASK_SUM = lines("""
    what is <a> plus <b>?
    <a> + <b>
    add <a> and <b>
    how much is <a> and <b>?
""")
_AND_PLUS = lines("""
    and plus <c>?
    (now |and |)add <c>[ to that| to it]
    plus <c>[?]
    and <c> more?
    and if I add <c>[ to it]?
    (what is that|that|and that) plus <c>?
    add another <c>
    what if you add <c>?
    and with <c> more?
""")
_AND_MINUS = lines("""
    and minus <c>?
    (now |and |)(subtract|take away) <c>[ from that| from it]
    minus <c>[?]
    and <c> less?
    and if I (subtract|take away) <c>?
    (what is that|that|and that) minus <c>?
    take <c> away[ again]
    and without <c>?
""")
_ASK_SPELL = lines("""
    spell <it>
    how do you spell <it>?
    spell the word <it>
    can you spell <it>?
""")
_NOW_BACK = lines("""
    and backwards?
    now backwards
    (and |now |)in reverse[, please][?]
    the same backwards[, please]
    (can you|could you) do (it|that) backwards?
    and from back to front?
    reverse it
    now (turn it around|the other way round)
    and in reverse order?
""")
_NOW_UPPER = lines("""
    and in upper case?
    now in upper case
    (and |now |)in capitals[, please][?]
    (and |now |)(write|put) it in (capital letters|upper case|capitals)
    the same word in (capitals|upper case|capital letters)[, please]
    make it upper case
    and (all in|with) capital letters?
    uppercase[, please]
""")
_ASK_OPPOSITE = lines("""
    what is the opposite of <it>?
    opposite of <it>?
    (tell|give) me the opposite of <it>
    the opposite of <it>?
""")
_ASK_WHAT = lines("""
    what is <it>?
    explain <it>
    what does <it> mean?
    tell me about <it>
""")
_AGAIN = lines("""
    (say|repeat) that again
    (again|once more)[, please]
    (can|could) you (say|repeat) that[ again]?
    repeat your (last |)answer
    I did not (hear|get|catch|read) that
    what did you (just |)say?
    pardon?
    come again?
    say it (one more time|once more)
    sorry, what was that?
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """A conversation of several turns; the wordings are those of its last question."""

    name: str
    wordings: tuple[str, ...]
    tell: Callable[[Random, bool, Callable[[tuple[str, ...]], str]], tuple[list[str], Check]]
    """Draw the texts of all turns but the last question, in order, the answer at the end."""
    weight: float = 1.0
    kind: str = "turns"

    def make(self, rng: Random, *, held: bool) -> Example:
        """Hold one conversation. Only the last question of a held-out one is worded as training never is."""

        def ask(wordings: tuple[str, ...]) -> str:
            mine = wordings == self.wordings
            wording = pick(self.name, wordings, rng, held=held and mine)
            slips = not held and rng.random() < 0.5
            return voiced(wording, rng, slips=slips, polite=wordings not in {_MY_NAME, _LIKES})

        texts, check = self.tell(rng, held, ask)
        roles = ("user", "assistant") * (len(texts) // 2)
        turns = tuple(Turn(role, text) for role, text in zip(roles, texts, strict=True))
        return Example(kind=self.kind, source=self.name, turns=turns, check=check)


Ask = Callable[[tuple[str, ...]], str]
Told = tuple[list[str], Check]


def sources() -> tuple[Source, ...]:
    """Return the kinds of conversation."""
    return (
        Dialogue(name="turns.name", wordings=_WHAT_NAME, tell=_name, weight=3),
        Dialogue(name="turns.favourite", wordings=_WHAT_LIKES, tell=_favourite, weight=1.5),
        Dialogue(name="turns.after", wordings=_AFTER, tell=_after, weight=2.5),
        Dialogue(name="turns.before", wordings=_BEFORE, tell=_before, weight=1),
        Dialogue(name="turns.and_of", wordings=_AND_OF, tell=_and_of, weight=2.5),
        Dialogue(name="turns.plus", wordings=_AND_PLUS, tell=_plus, weight=1.5),
        Dialogue(name="turns.minus", wordings=_AND_MINUS, tell=_minus, weight=1),
        Dialogue(name="turns.backwards", wordings=_NOW_BACK, tell=_backwards, weight=1),
        Dialogue(name="turns.upper", wordings=_NOW_UPPER, tell=_upper, weight=1),
        Dialogue(name="turns.again", wordings=_AGAIN, tell=_again, weight=1),
    )


def a_name(rng: Random, *, held: bool) -> str:
    """Draw a name; some are held out, and some are invented so that any name can be learnt."""
    if not held and rng.random() < 0.25:
        return invented(rng)
    return rng.choice(held_out("names", NAMES) if held else trained("names", NAMES))


def _between(rng: Random) -> list[str]:
    """Return a turn about something else, or nothing."""
    if rng.random() < 0.5:
        return []
    example = rng.choice(_small_talk()).make(rng, held=False)
    return [turn.text for turn in example.turns]


def _small_talk() -> tuple[Source, ...]:
    skipped = ("greeting.name", "greeting.who_are_you", "greeting.memory")
    return tuple(source for source in greetings() if source.name not in skipped)


def _name(rng: Random, held: bool, ask: Ask) -> Told:
    name = a_name(rng, held=held)
    texts = [fill(ask(_MY_NAME), {"name": name}), f"Nice to meet you, {name}!", *_between(rng)]
    return [*texts, ask(_WHAT_NAME), f"Your name is {name}."], checks.has(name)


def _favourite(rng: Random, _held: bool, ask: Ask) -> Told:
    thing, pool = rng.choice((("colour", COLOURS), ("fruit", FRUITS), ("word", WORDS)))
    values = {"thing": thing, "it": rng.choice(pool)}
    texts = [fill(ask(_LIKES), values), f"I will remember: {values['it']}.", *_between(rng)]
    answer = f"Your favourite {thing} is {values['it']}."
    return [*texts, fill(ask(_WHAT_LIKES), values), answer], checks.has(values["it"])


def _ring(rng: Random) -> tuple[tuple[str, ...], Callable[[int], str]]:
    way = rng.randrange(4)
    if way == 0:
        start = rng.choice(DAYS)
        return _ASK_DAY, lambda by: moved(start, by)
    if way == 1:
        first = rng.choice(MONTHS)
        return _ASK_MONTH, lambda by: moved(first, by)
    if way == 2:
        i = rng.randrange(1, len(PLANETS) - 3)
        return _ASK_PLANET, lambda by: PLANETS[i + by]
    n = rng.randint(2, 60)
    return _ASK_NUMBER, lambda by: str(n + by)


def _closed(text: str) -> str:
    return text if text.isdigit() else f"{text}."


def _after(rng: Random, _held: bool, ask: Ask) -> Told:
    question, at = _ring(rng)
    texts = [fill(ask(question), {"it": at(0)}), _closed(at(1))]
    steps = rng.choice((1, 1, 2))
    for step in range(2, 2 + steps):
        texts += [ask(_AFTER), _closed(at(step))]
    return texts, checks.exact(at(1 + steps))


def _before(rng: Random, _held: bool, ask: Ask) -> Told:
    question, at = _ring(rng)
    texts = [fill(ask(question), {"it": at(0)}), _closed(at(1))]
    return [*texts, ask(_BEFORE), _closed(at(0))], checks.exact(at(0))


def _and_of(rng: Random, _held: bool, ask: Ask) -> Told:
    way = rng.randrange(4)
    if way == 0:
        a, b = rng.sample(tuple(CAPITALS), 2)
        texts = [fill(ask(_ASK_CAPITAL), {"it": a}), capital(a), fill(ask(_AND_OF), {"it": b}), capital(b)]
        return texts, checks.has(CAPITALS[b])
    if way == 1:
        a, b = rng.sample(tuple(OPPOSITES), 2)
        first, second = (f"The opposite of {word} is {OPPOSITES[word]}." for word in (a, b))
        texts = [fill(ask(_ASK_OPPOSITE), {"it": a}), first, fill(ask(_AND_OF), {"it": b}), second]
        return texts, checks.has(OPPOSITES[b])
    if way == 2:
        a, b = rng.sample(WORDS, 2)
        texts = [fill(ask(_ASK_SPELL), {"it": a}), spelled(a), fill(ask(_AND_OF), {"it": b}), spelled(b)]
        return texts, checks.exact(spelled(b))
    one, two = rng.sample(defined(), 2)
    question, then = (
        fill(ask(_ASK_WHAT), {"it": rng.choice(one.aliases)}),
        fill(ask(_AND_OF), {"it": rng.choice(two.aliases)}),
    )
    return [question, one.answer, then, two.answer], checks.has(*two.terms)


def _sum(rng: Random, held: bool, ask: Ask) -> tuple[list[str], int]:
    a, b = pair("+", rng, held=False)
    del held
    return [fill(ask(_ASK_SUM), {"a": str(a), "b": str(b)}), f"{a} + {b} = {a + b}"], a + b


def _plus(rng: Random, held: bool, ask: Ask) -> Told:
    texts, total = _sum(rng, held, ask)
    c = rng.randint(1, 20)
    return [*texts, fill(ask(_AND_PLUS), {"c": str(c)}), f"{total} + {c} = {total + c}"], checks.number(
        total + c
    )


def _minus(rng: Random, held: bool, ask: Ask) -> Told:
    texts, total = _sum(rng, held, ask)
    c = rng.randint(0, min(total, 20))
    return [*texts, fill(ask(_AND_MINUS), {"c": str(c)}), f"{total} - {c} = {total - c}"], checks.number(
        total - c
    )


def _backwards(rng: Random, _held: bool, ask: Ask) -> Told:
    word = rng.choice(WORDS)
    back = spelled(word[::-1])
    return [fill(ask(_ASK_SPELL), {"it": word}), spelled(word), ask(_NOW_BACK), back], checks.exact(back)


def _upper(rng: Random, _held: bool, ask: Ask) -> Told:
    word = rng.choice(WORDS)
    return [
        fill(ask(_ASK_SPELL), {"it": word}),
        spelled(word),
        ask(_NOW_UPPER),
        word.upper(),
    ], checks.verbatim(word.upper())


def _again(rng: Random, _held: bool, ask: Ask) -> Told:
    way = rng.randrange(3)
    if way == 0:
        country = rng.choice(tuple(CAPITALS))
        first = [fill(ask(_ASK_CAPITAL), {"it": country}), capital(country)]
    elif way == 1:
        block = rng.choice(defined())
        first = [fill(ask(_ASK_WHAT), {"it": rng.choice(block.aliases)}), block.answer]
    else:
        word = rng.choice(WORDS)
        first = [fill(ask(_ASK_SPELL), {"it": word}), spelled(word)]
    return [*first, ask(_AGAIN), first[1]], checks.exact(first[1])
