"""What is done with words: units and languages converted, a search."""

from __future__ import annotations

from random import Random

from training.corpus.source import lines
from training.corpus.tables.words import ANIMALS, CLOTHES, FURNITURE, WORDS
from training.corpus.tasks.family import CITIES, Family, draw_number, draw_words
from training.corpus.tool import Task, Tool, asking_name, doing_name, number, pool, report, string
from training.corpus.unknown import invented

_CONVERT = lines("""
    convert <n> <from> (to|into) <to>
    how many <to> (are|is) <n> <from>?
    what (is|are) <n> <from> in <to>?
    <n> <from> in <to>[?]
    (turn|change) <n> <from> into <to>
    (tell|give) me <n> <from> in <to>
    how much (is|are) <n> <from> in <to>?
    I (have|need) <n> <from>. how many <to> is that?
""")
_MEASURES = (
    ("miles", "kilometers", "meters", "feet", "yards", "inches", "centimeters"),
    ("pounds", "kilograms", "grams", "ounces", "stones", "tons"),
    ("liters", "gallons", "cups", "pints", "milliliters"),
    ("hours", "minutes", "seconds", "days", "weeks"),
    ("dollars", "euros", "pounds", "yen", "francs", "kroner"),
)


def _convert(rng: Random, held: bool, _n: int) -> Task:
    here, there = rng.sample(rng.choice(_MEASURES), 2)
    n = draw_number(rng)
    got = round(n * rng.uniform(0.1, 9), 2)
    value, source, target = rng.choice(
        (("magnitude", "unit_from", "unit_to"), ("quantity", "start", "end"))
        if held
        else (
            ("value", "from", "to"), ("value", "from_unit", "to_unit"), ("amount", "from", "to"), ("n", "unit", "into"),
            ("number", "source", "target"), ("amount", "from_unit", "to_unit"), ("x", "input", "output"),
        )
    )  # fmt: skip
    tool = Tool(
        name=doing_name(rng.choice(("conversion", "units", "convert")), rng, held=held)
        if held or rng.random() < 0.5
        else rng.choice(("convert", "convert_units", "unit_converter", "converter")),
        description=rng.choice(
            ("Convert units.", "Convert a number to another unit.", "Change one unit into another.")
        ),
        parameters={value: number(rng, n), source: string(), target: string()},
    )
    return Task(
        tool=tool,
        values={"n": str(n), "from": here, "to": there},
        calls=({value: n, source: here, target: there},),
        results=(report({rng.choice(("result", "value", "converted")): got}, f"{got} {there}", rng),),
        answers=(f"{n} {here} are {got} {there}.",),
        terms=((str(got), there),),
    )


_TRANSLATE = lines("""
    translate <text> (to|into) <language>
    (say|write) <text> in <language>
    how do (you|I) say <text> in <language>?
    what is <text> in <language>?
    what's the <language> (word for|for) <text>?
    <text> in <language>[, please]
    (put|turn) <text> into <language>
    (can|could) you translate <text> (to|into) <language>?
""")
_LANGUAGES = (
    "French", "German", "Spanish", "Italian", "Polish", "Dutch", "Danish", "Swedish", "Japanese", "Chinese", "Turkish",
    "Latin", "Greek", "Russian", "Korean", "Arabic",
)  # fmt: skip


def _translate(rng: Random, held: bool, _n: int) -> Task:
    text, language = draw_words(rng, 1, 3), rng.choice(_LANGUAGES)
    source = pool("text words source input", "sentence").draw(rng, held=held)
    target = pool("language to target into lang", "tongue").draw(rng, held=held)
    translation = " ".join(invented(rng).lower() for _ in text.split())
    tool = Tool(
        name=doing_name("translation", rng, held=held)
        if held or rng.random() < 0.5
        else rng.choice(("translate", "translate_text", "translator")),
        description=rng.choice(("Translate a text.", "Translate words into a language.", "A translator")),
        parameters={source: string(), target: string()},
    )
    return Task(
        tool=tool,
        values={"text": text, "language": language},
        calls=({source: text, target: language},),
        results=(report({rng.choice(("translation", "text", "result")): translation}, translation, rng),),
        answers=(f"In {language} it is: {translation}",),
        terms=((translation,),),
    )


_SEARCH = lines("""
    search (the web|the internet|online) for <topic>
    search for <topic>
    (look up|find|google) <topic> (online|on the web|on the internet)
    (find|get) [me ](information|something|news) (about|on) <topic>
    what does the (web|internet) say about <topic>?
    (google|look up) <topic>
    (can|could) you search for <topic>?
    web search: <topic>
""")
_SEARCH_N = lines("""
    (find|get|show) me <n> (results|pages|articles) (about|for|on) <topic>
    search for <topic>, <n> (results|pages|hits)[, please]
    <n> (results|pages|articles) (about|on) <topic>[, please]
    (look up|google) <topic> and (show|give) me <n> (results|hits)
    (list|give me) <n> (articles|results|hits) (about|on) <topic>
    I (need|want) <n> (articles|results) (about|on) <topic>
""")
_ADJECTIVES = (
    "old",
    "new",
    "small",
    "large",
    "cheap",
    "rare",
    "best",
    "famous",
    "modern",
    "wild",
    "electric",
)


def _topic(rng: Random) -> str:
    way = rng.random()
    if way < 0.3:
        return f"{rng.choice(_ADJECTIVES)} {rng.choice(ANIMALS + FURNITURE + CLOTHES)}s"
    if way < 0.5:
        return f"{rng.choice(WORDS)} {rng.choice(WORDS)}"
    if way < 0.7:
        return f"{rng.choice(WORDS)}s in {rng.choice(CITIES)}"
    return invented(rng) if way < 0.85 else f"{rng.choice(_ADJECTIVES)} {rng.choice(WORDS)}"


def _search(rng: Random, held: bool, _n: int) -> Task:
    topic = _topic(rng)
    query = pool("query q text search terms topic keywords", "phrase question", 0.06).draw(rng, held=held)
    tool = Tool(
        name=asking_name(rng.choice(("web", "search", "pages", "information")), rng, held=held)
        if held or rng.random() < 0.5
        else rng.choice(("search", "web_search", "search_web", "google", "internet_search")),
        description=rng.choice(
            ("Search the web.", "Search the internet.", "Find pages on the web.", "A web search")
        ),
        parameters={query: string()},
    )
    text = f"{draw_words(rng, 1, 2)} is a {rng.choice(_ADJECTIVES)} {rng.choice(WORDS)}"
    return Task(
        tool=tool,
        values={"topic": topic},
        calls=({query: topic},),
        results=(report({rng.choice(("result", "text", "snippet", "title")): text}, text, rng),),
        answers=(f"I found this: {text}.",),
        terms=((text,),),
    )


def _search_n(rng: Random, held: bool, n_calls: int) -> Task:
    task, n = _search(rng, held, n_calls), rng.randint(2, 20)
    key = pool("limit n count max_results top", "how_many").draw(rng, held=held)
    tool = Tool(
        name=task.tool.name,
        description=task.tool.description,
        parameters={**task.tool.parameters, key: {"type": "integer"}},
    )
    return Task(
        tool=tool, values={**task.values, "n": str(n)}, calls=({**task.calls[0], key: n},),
        results=task.results, answers=task.answers, terms=task.terms,
    )  # fmt: skip


FAMILIES = (
    Family(name="convert", wordings=_CONVERT, draw=_convert),
    Family(name="translate", wordings=_TRANSLATE, draw=_translate, weight=0.8),
    Family(name="search", wordings=_SEARCH, draw=_search),
    Family(name="search_n", wordings=_SEARCH_N, draw=_search_n, weight=0.5),
)
