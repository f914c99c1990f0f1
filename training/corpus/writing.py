"""Short stories, lists and haiku out of small grammars."""

from __future__ import annotations

from random import Random

from training.corpus import checks
from training.corpus.phrase import fill, with_articles
from training.corpus.source import Drawn, IntentMaker, Source, lines, trained
from training.corpus.tables.verse import ENDINGS, LINES, MIDDLES, OPENINGS
from training.corpus.tables.words import LISTS

HEROES = (
    "bear",
    "cat",
    "crow",
    "dog",
    "dragon",
    "duck",
    "farmer",
    "fox",
    "frog",
    "girl",
    "boy",
    "king",
    "mouse",
    "owl",
    "pilot",
    "queen",
    "rabbit",
    "robot",
    "sailor",
    "teacher",
    "turtle",
    "wolf",
)
THINGS = (
    "bell",
    "book",
    "boat",
    "bridge",
    "cake",
    "clock",
    "coin",
    "drum",
    "garden",
    "hat",
    "key",
    "kite",
    "lamp",
    "letter",
    "map",
    "mirror",
    "ring",
    "river",
    "rope",
    "star",
    "stone",
    "tree",
)
_PLACES = (
    "by the sea",
    "in a quiet town",
    "at the edge of a forest",
    "on a high hill",
    "near an old mill",
    "behind the mountains",
)
_TRAITS = ("small", "curious", "patient", "brave", "shy", "lonely")
_WANTS = (
    "wanted to know what it was for",
    "had never seen anything like it",
    "could not stop looking at it",
    "decided to keep it safe",
    "wished to show it to a friend",
)
_TURNS = (
    "But one night a storm came.",
    "Then, one morning, it was gone.",
    "But nobody believed the story.",
    "Then a stranger asked for it.",
    "But winter was near.",
)
_ACTS = (
    "The <hero> walked all day and did not give up.",
    "The <hero> asked everybody for help.",
    "The <hero> thought for a long time and had an idea.",
    "The <hero> took a deep breath and went out into the dark.",
)
_ENDS = (
    "In the end the <thing> was safe, and the <hero> was no longer alone.",
    "In the end the <hero> laughed, and the <thing> found a new home.",
    "In the end all was well, and the <hero> slept beside the <thing>.",
)

_STORY = lines("""
    (write|tell|give) me a [short |little |small ]story about a <hero> and a <thing>
    (write|tell) a [short |little |small |very short ]story about a <hero> and a <thing>
    a [short |little ]story about a <hero> and a <thing>[, please]
    (can|could) you (write|tell) [me ]a [short ]story about a <hero> and a <thing>?
    I (want|would like) (to hear |)a [short ]story (about|with) a <hero> and a <thing>
    (make up|invent) a [short ]story (about|with) a <hero> and a <thing>
    (tell|write) [me ]a tale (of|about) a <hero> and a <thing>
    story time: a <hero> and a <thing>
    once upon a time there was a <hero> with a <thing>. (go on|continue|tell me more)
    let a <hero> and a <thing> (be in|play the main parts in) a [short ]story
    a few sentences (of fiction |)about a <hero> and a <thing>[, please]
    (please entertain|entertain) me with a story (of|about) a <hero> and a <thing>
    write a bedtime story (with|about) a <hero> and a <thing>
""")
_STORY_ONE = lines("""
    (write|tell|give) me a [short |little |small ]story about a <hero>
    (write|tell) a [short |little |small |very short ]story about a <hero>
    a [short |little ]story about a <hero>[, please]
    (can|could) you (write|tell) [me ]a [short ]story about a <hero>?
    I (want|would like) (to hear |)a [short ]story (about|with) a <hero>
    (make up|invent) a [short ]story (about|with) a <hero>
    (tell|write) [me ]a tale (of|about) a <hero>
    story time: a <hero>
    let a <hero> be the hero of a [short ]story
    a few sentences (of fiction |)about a <hero>[, please]
    write a bedtime story (with|about) a <hero>
""")
_STORY_THING = tuple(
    wording.replace("<hero>", "<thing>") for wording in trained("writing.story_one", _STORY_ONE)
)
_FURTHER_THINGS = ("lighthouse", "castle", "candle", "window", "bottle", "ship", "picture", "feather")
"""These are only trained on, so that adding some never changes the questions of the evaluation."""
_LIST = lines("""
    (list|name|give me|write|tell me) <n> <pool>
    (list|name|give me|write) <n> [different |]<pool>, (one per line|as a list|as a numbered list)
    (make|write|give me) a list of <n> <pool>
    (can|could) you (list|name) <n> <pool>?
    a list of <n> <pool>[, please]
    <n> <pool>[, please]
    I need (a list of |the names of |)<n> <pool>
    (think of|come up with) <n> <pool>
    what are <n> <pool>[ you know]?
    which <n> <pool> (do you know|can you name|come to mind)?
    show me <n> (examples of |kinds of |)<pool>
    number <n> <pool> for me
""")
_HAIKU = lines("""
    (write|give me|compose|make|tell me) a haiku (about|on) <topic>
    (write|compose) [me ]a (short |little |)haiku about [the |]<topic>
    a haiku (about|on) <topic>[, please]
    (can|could) you (write|make|compose) [me ]a haiku about <topic>?
    haiku[, please]: <topic>
    I (want|would like) a haiku (about|on) <topic>
    (write|make) a [short ](poem in three lines|three-line poem|japanese poem) about <topic>
    <topic>, (as|in) a haiku
    put <topic> into a haiku
    (write|make) a poem (of|with) five, seven and five syllables about <topic>
    do you know a haiku (about|on) <topic>?
    let me read a haiku about <topic>
""")
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}


def sources() -> tuple[Source, ...]:
    """Return what the model writes."""
    intent = IntentMaker("writing", loose=True)
    return (
        intent("story", _STORY, _story, 2),
        intent("story_one", _STORY_ONE, _story_one, 1),
        intent("story_thing", (), _story_thing, 1, _STORY_THING),
        intent("list", _LIST, _list, 2.5),
        intent("haiku", _HAIKU, _haiku, 1.5),
    )


def in_a_row(pool: tuple[str, ...], n: int, rng: Random) -> list[str]:
    """Return neighbours out of a list: what comes next is then known, and nothing comes twice."""
    start = rng.randrange(len(pool))
    return [pool[(start + i) % len(pool)] for i in range(n)]


def story_text(hero: str, thing: str, rng: Random) -> str:
    """Tell a story in six sentences."""
    sentences = (
        f"Once upon a time there was a {rng.choice(_TRAITS)} <hero> who lived {rng.choice(_PLACES)}.",
        "One day the <hero> found a <thing>.",
        f"The <hero> {rng.choice(_WANTS)}.",
        rng.choice(_TURNS),
        rng.choice(_ACTS),
        rng.choice(_ENDS),
    )
    return with_articles(fill(" ".join(sentences), {"hero": hero, "thing": thing}))


def _story(rng: Random, _held: bool) -> Drawn:
    hero, thing = rng.choice(HEROES), rng.choice(THINGS)
    values = {"hero": hero, "thing": thing}
    return Drawn(answer=story_text(hero, thing, rng), check=checks.story(hero, thing), values=values)


def _story_one(rng: Random, _held: bool) -> Drawn:
    hero = rng.choice(HEROES)
    return Drawn(
        answer=story_text(hero, rng.choice(THINGS), rng), check=checks.story(hero), values={"hero": hero}
    )


def _story_thing(rng: Random, _held: bool) -> Drawn:
    thing = "lighthouse" if rng.random() < 0.4 else rng.choice(THINGS + _FURTHER_THINGS)
    return Drawn(
        answer=story_text(rng.choice(HEROES), thing, rng), check=checks.story(thing), values={"thing": thing}
    )


def _list(rng: Random, _held: bool) -> Drawn:
    name = rng.choice(tuple(LISTS))
    n = rng.choice((2, 3, 3, 3, 4, 5, 5, 6, 7))
    chosen = in_a_row(LISTS[name], n, rng)
    answer = "\n".join(f"{i}. {item}" for i, item in enumerate(chosen, start=1))
    values = {"n": rng.choice((str(n), NUMBERS[n])), "pool": name}
    return Drawn(answer=answer, check=checks.some_of(LISTS[name], n, mark="1"), values=values)


def _haiku(rng: Random, _held: bool) -> Drawn:
    topic = rng.choice(tuple(OPENINGS))
    answer = "\n".join((rng.choice(OPENINGS[topic]), rng.choice(MIDDLES), rng.choice(ENDINGS)))
    return Drawn(answer=answer, check=checks.haiku(topic, LINES), values={"topic": topic})
