"""Conversations of two and three turns: something told earlier, "and the one after that?", more of the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.corpus import checks
from training.corpus import turn_wordings as say
from training.corpus.calendar import DAYS, MONTHS, moved
from training.corpus.example import Check, Example, Turn
from training.corpus.facts import capital
from training.corpus.greeting import sources as greetings
from training.corpus.letters import spelled
from training.corpus.phrase import fill
from training.corpus.server import defined
from training.corpus.source import Intent, Source, held_out, pick, trained
from training.corpus.sums import pair
from training.corpus.surface import voiced
from training.corpus.tables.words import COLOURS, FRUITS, NAMES, WORDS
from training.corpus.tables.world import CAPITALS, OPPOSITES, PLANETS
from training.corpus.unknown import invented


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """A conversation of several turns; the wordings are those of its last question."""

    name: str
    wordings: tuple[str, ...]
    draw: Callable[[Random, bool, Callable[[tuple[str, ...]], str]], tuple[list[str], Check]]
    """Draw the texts of all turns, in order, the answer at the end."""
    further: tuple[str, ...] = ()
    """Wordings of the last question that are only trained on."""
    weight: float = 1.0
    kind: str = "turns"

    def make(self, rng: Random, *, held: bool) -> Example:
        """Hold one conversation. Only the last question of a held-out one is worded as training never is."""

        def ask(wordings: tuple[str, ...]) -> str:
            mine = wordings == self.wordings
            further = self.further if mine else ()
            wording = pick(self.name, wordings, rng, held=held and mine, further=further)
            slips = not held and rng.random() < 0.5
            return voiced(wording, rng, slips=slips, polite=wordings not in {say.MY_NAME, say.LIKES})

        texts, check = self.draw(rng, held, ask)
        roles = ("user", "assistant") * (len(texts) // 2)
        turns = tuple(Turn(role, text) for role, text in zip(roles, texts, strict=True))
        return Example(kind=self.kind, source=self.name, turns=turns, check=check)


Ask = Callable[[tuple[str, ...]], str]
DialogueTexts = tuple[list[str], Check]


def sources() -> tuple[Source, ...]:
    """Return the kinds of conversation."""
    return (
        Dialogue(name="turns.name", wordings=say.WHAT_NAME, draw=_name, weight=3),
        Dialogue(name="turns.favourite", wordings=say.WHAT_LIKES, draw=_favourite, weight=1.5),
        Dialogue(name="turns.after", wordings=say.AFTER, draw=_after, weight=2.5),
        Dialogue(name="turns.before", wordings=say.BEFORE, draw=_before, weight=1),
        Dialogue(name="turns.and_of", wordings=say.AND_OF, draw=_and_of, weight=2.5),
        Dialogue(name="turns.plus", wordings=say.AND_PLUS, draw=_plus, weight=1.5),
        Dialogue(name="turns.minus", wordings=say.AND_MINUS, draw=_minus, weight=1),
        Dialogue(name="turns.backwards", wordings=say.NOW_BACK, draw=_backwards, weight=1),
        Dialogue(name="turns.upper", wordings=say.NOW_UPPER, draw=_upper, weight=1),
        Dialogue(name="turns.again", wordings=say.AGAIN, draw=_again, weight=1),
    )


def a_name(rng: Random, *, held: bool) -> str:
    """Draw a name; some are held out, and some are invented so that any name can be learnt."""
    if not held and rng.random() < 0.25:
        return invented(rng)
    return rng.choice(held_out("names", NAMES) if held else trained("names", NAMES))


def _between(rng: Random, *, held: bool) -> list[str]:
    """Return a turn about something else, or nothing. Held-out conversations are as they were before there was `chat`."""
    if rng.random() < 0.5:
        return []
    example = rng.choice(_small_talk()).make(rng, held=False, chat=not held)
    return [turn.text for turn in example.turns]


def _small_talk() -> tuple[Intent, ...]:
    skipped = ("greeting.name", "greeting.who_are_you", "greeting.memory")
    return tuple(source for source in greetings() if source.name not in skipped)


def _name(rng: Random, held: bool, ask: Ask) -> DialogueTexts:
    name = a_name(rng, held=held)
    texts = [fill(ask(say.MY_NAME), {"name": name}), f"Nice to meet you, {name}!", *_between(rng, held=held)]
    return [*texts, ask(say.WHAT_NAME), f"Your name is {name}."], checks.has(name)


def _favourite(rng: Random, held: bool, ask: Ask) -> DialogueTexts:
    thing, pool = rng.choice((("colour", COLOURS), ("fruit", FRUITS), ("word", WORDS)))
    values = {"thing": thing, "it": rng.choice(pool)}
    texts = [fill(ask(say.LIKES), values), f"I will remember: {values['it']}.", *_between(rng, held=held)]
    answer = f"Your favourite {thing} is {values['it']}."
    return [*texts, fill(ask(say.WHAT_LIKES), values), answer], checks.has(values["it"])


def _ring(rng: Random) -> tuple[tuple[str, ...], Callable[[int], str]]:
    way = rng.randrange(4)
    if way == 0:
        start = rng.choice(DAYS)
        return say.ASK_DAY, lambda by: moved(start, by)
    if way == 1:
        first = rng.choice(MONTHS)
        return say.ASK_MONTH, lambda by: moved(first, by)
    if way == 2:
        i = rng.randrange(1, len(PLANETS) - 3)
        return say.ASK_PLANET, lambda by: PLANETS[i + by]
    n = rng.randint(2, 60)
    return say.ASK_NUMBER, lambda by: str(n + by)


def _closed(text: str) -> str:
    return text if text.isdigit() else f"{text}."


def _after(rng: Random, _held: bool, ask: Ask) -> DialogueTexts:
    question, at = _ring(rng)
    texts = [fill(ask(question), {"it": at(0)}), _closed(at(1))]
    steps = rng.choice((1, 1, 2))
    for step in range(2, 2 + steps):
        texts += [ask(say.AFTER), _closed(at(step))]
    return texts, checks.exact(at(1 + steps))


def _before(rng: Random, _held: bool, ask: Ask) -> DialogueTexts:
    question, at = _ring(rng)
    texts = [fill(ask(question), {"it": at(0)}), _closed(at(1))]
    return [*texts, ask(say.BEFORE), _closed(at(0))], checks.exact(at(0))


def _and_of(rng: Random, _held: bool, ask: Ask) -> DialogueTexts:
    way = rng.randrange(4)
    if way == 0:
        a, b = rng.sample(tuple(CAPITALS), 2)
        texts = [
            fill(ask(say.ASK_CAPITAL), {"it": a}),
            capital(a),
            fill(ask(say.AND_OF), {"it": b}),
            capital(b),
        ]
        return texts, checks.has(CAPITALS[b])
    if way == 1:
        a, b = rng.sample(tuple(OPPOSITES), 2)
        first, second = (f"The opposite of {word} is {OPPOSITES[word]}." for word in (a, b))
        texts = [fill(ask(say.ASK_OPPOSITE), {"it": a}), first, fill(ask(say.AND_OF), {"it": b}), second]
        return texts, checks.has(OPPOSITES[b])
    if way == 2:
        a, b = rng.sample(WORDS, 2)
        texts = [
            fill(ask(say.ASK_SPELL), {"it": a}),
            spelled(a),
            fill(ask(say.AND_OF), {"it": b}),
            spelled(b),
        ]
        return texts, checks.exact(spelled(b))
    earlier, later = rng.sample(defined(), 2)
    question, then = (
        fill(ask(say.ASK_WHAT), {"it": rng.choice(earlier.aliases)}),
        fill(ask(say.AND_OF), {"it": rng.choice(later.aliases)}),
    )
    return [question, earlier.answer, then, later.answer], checks.has(*later.terms)


def _sum(rng: Random, held: bool, ask: Ask) -> tuple[list[str], int]:
    a, b = pair("+", rng, held=False)
    del held
    return [fill(ask(say.ASK_SUM), {"a": str(a), "b": str(b)}), f"{a} + {b} = {a + b}"], a + b


def _plus(rng: Random, held: bool, ask: Ask) -> DialogueTexts:
    texts, total = _sum(rng, held, ask)
    c = rng.randint(1, 20)
    return [*texts, fill(ask(say.AND_PLUS), {"c": str(c)}), f"{total} + {c} = {total + c}"], checks.number(
        total + c
    )


def _minus(rng: Random, held: bool, ask: Ask) -> DialogueTexts:
    texts, total = _sum(rng, held, ask)
    c = rng.randint(0, min(total, 20))
    return [*texts, fill(ask(say.AND_MINUS), {"c": str(c)}), f"{total} - {c} = {total - c}"], checks.number(
        total - c
    )


def _backwards(rng: Random, _held: bool, ask: Ask) -> DialogueTexts:
    word = rng.choice(WORDS)
    back = spelled(word[::-1])
    return [fill(ask(say.ASK_SPELL), {"it": word}), spelled(word), ask(say.NOW_BACK), back], checks.exact(
        back
    )


def _upper(rng: Random, _held: bool, ask: Ask) -> DialogueTexts:
    word = rng.choice(WORDS)
    return [
        fill(ask(say.ASK_SPELL), {"it": word}),
        spelled(word),
        ask(say.NOW_UPPER),
        word.upper(),
    ], checks.verbatim(word.upper())


def _again(rng: Random, _held: bool, ask: Ask) -> DialogueTexts:
    way = rng.randrange(3)
    if way == 0:
        country = rng.choice(tuple(CAPITALS))
        first = [fill(ask(say.ASK_CAPITAL), {"it": country}), capital(country)]
    elif way == 1:
        block = rng.choice(defined())
        first = [fill(ask(say.ASK_WHAT), {"it": rng.choice(block.aliases)}), block.answer]
    else:
        word = rng.choice(WORDS)
        first = [fill(ask(say.ASK_SPELL), {"it": word}), spelled(word)]
    return [*first, ask(say.AGAIN), first[1]], checks.exact(first[1])
