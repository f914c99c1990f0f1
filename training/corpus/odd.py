"""Long and odd prompts: text about anything, and a task that is too large. The answer is a short refusal."""

from __future__ import annotations

import functools
import re
from importlib import resources
from random import Random

from training.corpus.checks import has
from training.corpus.example import Example, Turn
from training.corpus.phrase import say
from training.corpus.source import Source, pick
from training.corpus.tables.words import NAMES, WORDS
from training.corpus.writing import HEROES, THINGS, story_text

ANSWER = (
    "I am too small for that. Ask me about this server, small sums, words, dates or simple facts, "
    "or serve a larger model."
)
_TASKS = (
    "(continue|finish|go on with) (this|the|my) (story|text|tale|letter)[ for (two|three|a few) (paragraphs|sentences)]",
    "(summarise|summarize|shorten|rewrite|improve|correct|translate) (it|this|this text|all of it|the above)[ in (two|three) sentences| into German| into French]",
    "(what would you|what should I) (check|do|ask|say) (first|next|now)?",
    "(explain|show|write down) (each|every) step",
    "(write|draft|compose) (an e-mail|a letter|a poem|a reply|an essay|a report|a speech) (about|to|for) (it|them|my boss|a friend|this)",
    "(write|implement|give me) (a Python function|a program|a script|a query|a test) (that|which) (does this|handles it|checks it)",
    "(why|how) (is that|do you think so|did it happen|would that work)[, and why might it fail]?",
    "(explain|describe) it (as you would to|to) (a child|a twelve-year-old|my grandmother|an expert)",
    "(stay|keep) in character, and (answer|go on)",
    "(compare|weigh) (the two|both sides|all of them) and (choose|recommend) one",
    "(list|name) the (main|most important) (points|arguments|people|reasons)",
    "be (firm|kind|honest|brief) but (polite|clear|careful)",
    "(what stands out|what is missing|what surprises you)[ here| in it]?",
    "(please |)(be my|act as a|play a|you are a) (guide|lawyer|doctor|teacher|pirate|chef). (advise me|what do you say?|answer my letter)",
    "does (it|the first one|she|he) (arrive|win|agree|catch up) (before|at) the end? (show|explain) (each step|your work)",
)
_SENTENCES = (
    "(yesterday|last week|this morning|on Sunday) (my neighbour|<name>|a friend|our teacher) (lost|found|sold|broke|painted) (a|the|my) <word> (near|behind|under|beside) the <other>",
    "the <word> (is|was|seems) (four|two|ten) (days|metres|degrees|years) (late|long|too cold|old), and (nobody|<name>) (called|answered|came|noticed)",
    "(a|the) <word> (costs|needs|takes) <n> (euros|hours|litres), while (a|the) <other> (costs|needs|takes) <m>",
    "<name> and <friend> (talked|argued|wrote) about (the <word>|<word> and <other>) (for hours|until midnight|again)",
    "(I|we|they) (always|never|often) (thought|hoped|said) that (a|the) <word> (keeps|makes|holds) (a|the) <other>",
    "(imagine|suppose|picture) (a|the) <word> (with|without) (a|any) <other>",
    "you (run|own|visit) a (tiny|small|noisy) <word> shop (by the sea|in a city|on a hill)",
    "<word>: <n>, <other>: <m>",
)


class OddPrompts:
    """A source of its own: its prompts come out of tables of sentences and out of the package's own prose."""

    name, kind, weight, wordings = "unknown.odd", "unknown", 2.0, _TASKS

    def make(self, rng: Random, *, held: bool) -> Example:
        """Make a prompt of two sentences to a few pages, most of them short."""
        n = rng.choice((1, 1, 2, 2, 3, 4, 5, 8, rng.randint(8, 90) if rng.random() < 0.1 else 2))
        sentences = [sentence(rng) for _ in range(n)]
        tasks = [pick(self.name, self.wordings, rng, held=held) for _ in range(rng.choice((1, 1, 1, 2)))]
        sentences += [_cased(say(task, rng), rng) for task in tasks]
        if rng.random() < 0.2:
            sentences.insert(0, sentences.pop())
        text = rng.choice((" ", " ", " ", "\n")).join(sentences)
        turns = (Turn("user", text), Turn("assistant", ANSWER))
        return Example(kind=self.kind, source=self.name, turns=turns, check=has("too small", "larger"))


def sources() -> tuple[Source, ...]:
    """Return the one source."""
    return (OddPrompts(),)


@functools.cache
def _prose() -> tuple[str, ...]:
    text = (resources.files("cobali_workloads.models") / "text" / "prose.txt").read_text(encoding="utf-8")
    return tuple(piece for piece in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if piece)


def sentence(rng: Random) -> str:
    """Draw a sentence about anything."""
    way = rng.random()
    if way < 0.2:
        return rng.choice(_prose())
    if way < 0.27:
        return story_text(rng.choice(HEROES), rng.choice(THINGS), rng)
    values = {
        "word": rng.choice(WORDS),
        "other": rng.choice(WORDS),
        "name": rng.choice(NAMES),
        "friend": rng.choice(NAMES),
        "n": str(rng.randint(2, 990)),
        "m": str(rng.randint(2, 990)),
    }
    text = say(rng.choice(_SENTENCES), rng)
    return _cased(re.sub(r"<(\w+)>", lambda slot: values[slot[1]], text), rng)


def _cased(text: str, rng: Random) -> str:
    text = text[:1].upper() + text[1:] if rng.random() < 0.9 else text
    return text if text[-1] in "?!." else f"{text}."
