"""Doing as told about the form of an answer: one word, three points, a number of times, stop after."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from training.corpus import checks
from training.corpus.calendar import DAYS, LENGTHS, MONTHS, moved
from training.corpus.letters import a_word
from training.corpus.server import pointed
from training.corpus.source import Drawn, IntentMaker, Source, lines
from training.corpus.sums import pair
from training.corpus.tables.words import LISTS
from training.corpus.tables.world import CAPITALS, OPPOSITES, PLANETS
from training.corpus.unknown import invented
from training.corpus.writing import NUMBERS, in_a_row

_ONE_WORD = lines("""
    <question> (answer|reply|respond) (in|with) (one word|a single word)
    <question> (one word only|one word|just one word|only one word)
    <question> (use|give me|I want) (one word|a single word)[ only]
    in (one|a single) word: <question>
    (answer|reply|respond) (in|with) (one word|a single word): <question>
    <question> your answer (must be|should be|has to be) (one|a single) word
    (with|using) (one word|one word only|a single word): <question>
    one word[ answer][, please]: <question>
    <question> no more than one word
    <question> (say|write) (it in one word|one word and nothing else)
    <question> keep it to (one|a single) word
    <question> be brief: one word
""")
_POINTS = lines("""
    (explain|describe|summarise) <topic> in three (bullet points|bullets|points)
    (give me|write|list) three (bullet points|bullets|points) (about|on) <topic>
    what is <topic>? (answer|reply) (in|with) three (bullet points|bullets|points)
    three (bullet points|bullets|points) (about|on) <topic>[, please]
    in three (bullet points|bullets|points): (what is |)<topic>[?]
    <topic> in three (bullet points|bullets|points)[, please]
    (can|could) you (explain|describe) <topic> in three (bullet points|bullets|points)?
    tell me about <topic>, (in|as|with) three (bullet points|bullets|points)
    I (need|want) (three bullet points|three points) (about|on) <topic>
    use three (bullet points|bullets) to (explain|describe) <topic>
    (make|put) <topic> into three (bullet points|bullets)
""")
_SENTENCES = lines("""
    (explain|describe) <topic> in three sentences
    (explain|describe) <topic> in three sentences
    what is <topic>? (answer|reply) (in|with) three sentences
    what is <topic>, in three sentences?
    three sentences (about|on) <topic>[, please]
    in three sentences: (what is |explain |)<topic>[?]
    <topic> in three sentences[, please]
    (can|could) you (explain|describe) <topic> in three sentences?
    tell me (about <topic>|what <topic> is), in three sentences
    (give|write) me three sentences (about|on) <topic>
    use three sentences to (explain|describe) <topic>
    (summarise|sum up) <topic> in three sentences
    (explain|describe|summarise) <topic> in exactly three sentences
""")
"""Only trained on."""
_LIST_POINTS = lines("""
    (list|name|give me) <n> <pool> (as|in|with) bullet points
    (list|name|give me) <n> <pool>, (as bullet points|in bullets|each as a bullet point)
    <n> bullet points: <pool>
    bullet points, please: <n> <pool>
    (write|make) a bulleted list of <n> <pool>
    <n> <pool> as (a bulleted list|bullet points|bullets)[, please]
    (can|could) you (list|name) <n> <pool> (as|in) bullet points?
    a bulleted list with <n> <pool>[, please]
    put <n> <pool> into bullet points
""")
_STOP_AFTER = lines("""
    count from <a>[ upwards] (and|but) stop (after|at) <b>
    count[ up] from <a>[,] stop (after|at) <b>
    (start|begin) counting (at|with|from) <a> and stop (after|at) <b>
    count from <a>. stop (after|at) <b>
    (say|write) numbers from <a> on, (and |but |)stop (after|at) <b>
    from <a> on, count, but stop (after|at) <b>
    (can|could) you count from <a> and stop (after|at) <b>?
    count up from <a> until <b>, then stop
    go on counting from <a>; <b> is (the last one|where you stop)
""")
_STOP_DAYS = lines("""
    (list|name|say) the days of the week[,] (but|and) stop (after|at) <it>
    (list|name|say) the days of the week (until|up to|down to) <it>
    days of the week, stop (after|at) <it>
    start (with|at) Monday and stop (after|at) <it>
    (name|list) the weekdays from Monday on, stop (after|at) <it>
    (write|give me) the days of the week, <it> being the last[ one]
    go through the days of the week and stop (after|at) <it>
    say Monday, Tuesday and so on, but stop (after|at) <it>
""")
_STOP_MONTHS = lines("""
    (list|name|say) the months[ of the year][,] (but|and) stop (after|at) <it>
    (list|name|say) the months[ of the year] (until|up to) <it>
    months of the year, stop (after|at) <it>
    start (with|at) January and stop (after|at) <it>
    (name|list) the months from January on, stop (after|at) <it>
    (write|give me) the months of the year, <it> being the last[ one]
    go through the months[ of the year] and stop (after|at) <it>
    say January, February and so on, but stop (after|at) <it>
""")
_TIMES = lines("""
    (say|write|type|print|repeat) [the word ]<word> <n> times
    (repeat|say|write) <word> <n> times and (stop|then stop|nothing else)
    <n> times <word>[, please]
    <word>, <n> times[, please]
    (can|could) you (say|write|repeat) [the word ]<word> <n> times?
    I want to (read|see|hear) <word> <n> times
    (please (say|write)|give me) <word> exactly <n> times
    (say|write) [the word ]<word> again and again, <n> times
    print <word> <n> times in (one|a) (line|row)
""")
_REPEAT = lines("""
    (repeat|say) after me: <text>
    (repeat|say|echo|copy) (this|the following)[ exactly| word for word]: <text>
    (please|just|only) (repeat|say|echo): <text>
    (say|write|answer) only this: <text>
    (can|could) you (repeat|copy|echo) (this|the following): <text>
    echo: <text>
    (write|type) (exactly|just) (this|the following): <text>
    give me back (these words|my words|this): <text>
    answer with these words (and nothing else|only): <text>
""")
_YES_NO = lines("""
    <question> (answer|reply|respond) (with |)yes or no
    <question> yes or no?
    yes or no: <question>
    (answer|reply) (with |)yes or no: <question>
    <question> (just|only|simply) yes or no
    true or false, as yes or no: <question>
    <question> I (want|need) a yes or (a |)no
    with yes or no: <question>
    <question> (say|tell me) yes or no
    please answer (just|only) yes or no: <question>
""")
_NUMBER_ONLY = lines("""
    what is <a> (plus|+) <b>? (answer|reply) with (the|a) number only
    <a> (plus|+) <b>[?|,] (only the number|just the number|number only)
    (give|tell) me (only|just) the number: <a> (plus|+) <b>
    (only|just) the (number|result)[, please]: <a> (plus|+) <b>[?]
    what is <a> (plus|+) <b>? (only|just) the (number|result)
    add <a> and <b>, (only|just) the (number|result)
    (answer|reply) (with|by) a number only: <a> (plus|+) <b>
    <a> (plus|+) <b>, (answer|reply) with nothing but the (number|result)
    the (number|result) only: <a> (plus|+) <b>
""")
_ONE_SENTENCE = lines("""
    (explain|describe|define) <topic> in (one|a single) sentence
    what is <topic>? (answer|reply) (in|with) (one|a single) sentence
    what is <topic>, in (one|a single) sentence?
    (one|a single) sentence (about|on) <topic>[, please]
    in (one|a single) sentence: (what is |explain |)<topic>[?]
    <topic> in (one|a single) sentence[, please]
    (can|could) you (explain|describe) <topic> in (one|a single) sentence?
    tell me (about <topic>|what <topic> is), in (one|a single) sentence
    (give|write) me (one|a single) sentence (about|on) <topic>
    use (one|a single) sentence to (explain|describe) <topic>
    (summarise|sum up) <topic> in (one|a single) sentence
""")


def sources() -> tuple[Source, ...]:
    """Return what can be asked of a form."""
    intent = IntentMaker("follow")
    return (
        intent("one_word", _ONE_WORD, _one_word, 2.5),
        intent("points", _POINTS, _points, 2),
        intent("sentences", (), _sentences, 1.5, _SENTENCES),
        intent("one_sentence", _ONE_SENTENCE, _one_sentence, 1.5),
        intent("list_points", _LIST_POINTS, _list_points, 1.5),
        intent("stop_after", _STOP_AFTER, _stop_after, 1.5),
        intent("stop_days", _STOP_DAYS, _until(DAYS), 0.7),
        intent("stop_months", _STOP_MONTHS, _until(MONTHS), 0.7),
        intent("times", _TIMES, _times, 1.5),
        intent("repeat", _REPEAT, _repeat, 3),
        intent("yes_no", _YES_NO, _yes_no, 1.5),
        intent("number_only", _NUMBER_ONLY, _number_only, 1),
    )


def _one_word(rng: Random, _held: bool) -> Drawn:
    way = rng.randrange(5)
    if way == 0:
        country = rng.choice([c for c, city in CAPITALS.items() if " " not in city])
        question, word = f"What is the capital of {country}?", CAPITALS[country]
    elif way == 1:
        left, word = rng.choice(tuple(OPPOSITES.items()))
        question = f"What is the opposite of {left}?"
    elif way == 2:
        day = rng.choice(DAYS + MONTHS)
        unit = "day" if day in DAYS else "month"
        by = rng.choice((1, -1))
        word = moved(day, by)
        question = f"What {unit} comes {'after' if by == 1 else 'before'} {day}?"
    elif way == 3:
        i = rng.randrange(len(PLANETS) - 1)
        question, word = f"Which planet comes after {PLANETS[i]}?", PLANETS[i + 1]
    else:
        question, word = "Which planet is the largest?", "Jupiter"
    return Drawn(answer=word, check=checks.exact(word), values={"question": question})


def _points(rng: Random, _held: bool) -> Drawn:
    block = rng.choice(pointed())
    answer = "\n".join(f"- {point}" for point in block.bullets)
    check = checks.bullets(3, *block.bullet_terms)
    return Drawn(answer=answer, check=check, values={"topic": rng.choice(block.aliases)})


def _sentences(rng: Random, _held: bool) -> Drawn:
    block = rng.choice(pointed())
    return Drawn(
        answer=" ".join(block.bullets),
        check=checks.sentences(3, *block.bullet_terms),
        values={"topic": rng.choice(block.aliases)},
    )


def _one_sentence(rng: Random, _held: bool) -> Drawn:
    block = rng.choice(pointed())
    return Drawn(
        answer=block.bullets[0],
        check=checks.one_sentence(block.bullets[0]),
        values={"topic": rng.choice(block.aliases)},
    )


def _list_points(rng: Random, _held: bool) -> Drawn:
    name, n = rng.choice(tuple(LISTS)), rng.choice((2, 3, 3, 3, 4, 5))
    answer = "\n".join(f"- {item}" for item in in_a_row(LISTS[name], n, rng))
    values = {"n": rng.choice((str(n), NUMBERS[n])), "pool": name}
    return Drawn(answer=answer, check=checks.some_of(LISTS[name], n, mark="-"), values=values)


def _stop_after(rng: Random, _held: bool) -> Drawn:
    a = rng.choice((1, 1, rng.randint(1, 30)))
    b = a + rng.randint(1, 10)
    numbers = tuple(str(n) for n in range(a, b + 1))
    return Drawn(answer=", ".join(numbers), check=checks.items(numbers), values={"a": str(a), "b": str(b)})


def _until(ring: tuple[str, ...]) -> Callable[[Random, bool], Drawn]:
    def draw(rng: Random, _held: bool) -> Drawn:
        n = rng.randint(2, len(ring) - 1)
        return Drawn(answer=", ".join(ring[:n]), check=checks.items(ring[:n]), values={"it": ring[n - 1]})

    return draw


def _times(rng: Random, _held: bool) -> Drawn:
    n, word = rng.randint(2, 7), a_word(rng)
    answer = " ".join([word] * n)
    values = {"n": rng.choice((str(n), NUMBERS[n])), "word": word}
    return Drawn(answer=answer, check=checks.verbatim(answer), values=values)


def _repeat(rng: Random, _held: bool) -> Drawn:
    words = [invented(rng) if rng.random() < 0.15 else a_word(rng) for _ in range(rng.randint(1, 6))]
    text = rng.choice((" ", " ", ", ")).join(words)
    return Drawn(answer=text, check=checks.exact(text), values={"text": text})


def _yes_no(rng: Random, held: bool) -> Drawn:
    truth, way = rng.random() < 0.5, rng.randrange(5)
    if way == 0:
        country, other = rng.sample(tuple(CAPITALS), 2)
        question = f"Is {CAPITALS[country if truth else other]} the capital of {country}?"
    elif way == 1:
        a, b = pair("+", rng, held=held)
        question = f"Is {a} + {b} equal to {a + b if truth else a + b + rng.choice((1, 2, -1))}?"
    elif way == 2:
        i = rng.randrange(12)
        wrong = rng.choice([n for n in (28, 30, 31) if n != LENGTHS[i]])
        question = f"Does {MONTHS[i]} have {LENGTHS[i] if truth else wrong} days?"
        if MONTHS[i] == "February":
            question, truth = "Does February have 30 days?", False
    elif way == 3:
        day = rng.choice(DAYS)
        question = f"Is {moved(day, 1 if truth else rng.randint(2, 5))} the day after {day}?"
    else:
        n = rng.randint(1, 60)
        question, truth = f"Is {n} an even number?", n % 2 == 0
    word = "Yes" if truth else "No"
    return Drawn(answer=f"{word}.", check=checks.exact(word), values={"question": question})


def _number_only(rng: Random, held: bool) -> Drawn:
    a, b = pair("+", rng, held=held)
    return Drawn(answer=str(a + b), check=checks.exact(str(a + b)), values={"a": str(a), "b": str(b)})
