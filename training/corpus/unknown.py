"""What the model cannot know or do, and says so: invented names, the present, private things, big tasks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from training.corpus.blocks import read_blocks
from training.corpus.checks import has
from training.corpus.source import Drawn, IntentMaker, Source, fixed, held_out, lines, trained

_ONSETS = (
    "b",
    "br",
    "ch",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "kr",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "qu",
    "r",
    "s",
    "sk",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "x",
    "y",
    "z",
    "zh",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ou", "oo", "y", "ea")
_CODAS = ("", "n", "r", "l", "s", "nd", "rk", "m", "th", "x", "nia", "land", "via", "dor", "stan", "ria")

_STRANGERS = (
    "photosynthesis", "Napoleon", "Shakespeare", "jazz", "philosophy", "inflation", "Cleopatra", "the French Revolution",
    "gravity", "a black hole", "quantum physics", "Mozart", "Picasso", "the Roman Empire", "Leonardo da Vinci", "opera",
    "evolution", "DNA", "a volcano", "the stock market", "Einstein", "Newton", "Beethoven", "chess", "yoga", "sushi",
    "the Great Wall", "the Eiffel Tower", "bitcoin", "algebra", "geometry", "Buddhism", "karate", "ballet", "Dracula",
    "Hamlet", "Sherlock Holmes", "the Bible", "the Vikings", "Julius Caesar", "Marie Curie", "Aristotle", "Plato",
    "a tsunami", "an earthquake", "cancer", "influenza", "vitamin C", "insulin", "the Renaissance", "baroque music",
    "democracy", "capitalism", "a computer mouse", "a blockchain", "Linux", "Windows", "JavaScript", "Kubernetes",
)  # fmt: skip
_FAR_COUNTRIES = (
    "Nepal", "Mongolia", "Bhutan", "Ghana", "Nigeria", "Zambia", "Bolivia", "Ecuador", "Panama", "Jamaica", "Malta",
    "Cyprus", "Laos", "Cambodia", "Pakistan", "Tunisia", "Libya", "Senegal", "Uganda", "Angola", "Fiji", "Samoa",
)  # fmt: skip
"""Real ones that no table holds."""
_TRAINED_COUNTRIES = (
    "Algeria", "Afghanistan", "Albania", "Armenia", "Azerbaijan", "Bahrain", "Bangladesh", "Barbados", "Belarus", "Belize",
    "Benin", "Botswana", "Brunei", "Burundi", "Cameroon", "Chad", "Congo", "Costa Rica", "Djibouti", "El Salvador",
    "Eritrea", "Gabon", "Gambia", "Georgia", "Guatemala", "Guinea", "Haiti", "Honduras", "Indonesia", "Israel", "Jordan",
    "Kazakhstan", "Kosovo", "Kuwait", "Lebanon", "Lesotho", "Liberia", "Liechtenstein", "Luxembourg", "Madagascar",
    "Malawi", "Malaysia", "Mali", "Mauritius", "Moldova", "Monaco", "Montenegro", "Mozambique", "Namibia", "New Zealand",
    "Nicaragua", "Niger", "North Korea", "Oman", "Paraguay", "Qatar", "Rwanda", "Saudi Arabia", "Scotland", "Sierra Leone",
    "Singapore", "Slovakia", "Slovenia", "Somalia", "South Africa", "Sri Lanka", "Sudan", "Syria", "Taiwan", "Tanzania",
    "Texas", "Togo", "Tonga", "Uruguay", "Uzbekistan", "Venezuela", "Wales", "Yemen", "Zimbabwe", "Bavaria", "California",
)  # fmt: skip
_TRAINED_STRANGERS = (
    "magnetism", "electricity", "a nebula", "radioactivity", "the periodic system", "Darwin", "Galileo", "Freud", "Kafka",
    "Goethe", "Bach", "Chopin", "the Beatles", "rock and roll", "impressionism", "surrealism", "the Cold War", "NATO",
    "the United Nations", "the Middle Ages", "the pyramids", "Stonehenge", "the Colosseum", "Atlantis", "Zeus", "Odin",
    "a unicorn", "judo", "cricket", "baseball", "golf", "poker", "sudoku", "origami", "pottery", "sourdough", "curry",
    "a kidney", "the liver", "asthma", "malaria", "a virus", "bacteria", "cholesterol", "caffeine", "aspirin", "penicillin",
    "a glacier", "a monsoon", "the tide", "a comet", "a galaxy", "string theory", "a logarithm", "trigonometry", "calculus",
    "statistics", "marketing", "a mortgage", "tax law", "a pension", "a startup", "Excel", "Photoshop", "Docker", "Git",
    "Postgres", "React", "a firewall", "Hinduism", "Islam", "stoicism", "Kant", "Nietzsche", "Gandhi", "Lincoln", "Caesar",
)  # fmt: skip
_TRAINED_PLACES = (
    "Tokyo", "New York", "Chicago", "Sydney", "Mumbai", "Hamburg", "Naples", "Venice", "Kyoto", "Shanghai", "the Nile",
    "the Amazon", "the Rhine", "Mount Everest", "Kilimanjaro", "the Sahara", "the Pacific", "the Atlantic", "Africa",
    "a whale", "an elephant", "a giraffe", "a bus", "a tree", "a house", "a car", "the Pope", "the White House", "a mammoth",
    "the Statue of Liberty", "Big Ben", "the Titanic", "a dinosaur", "an aeroplane", "a mountain", "my town", "this building",
)  # fmt: skip
"""Ones of these are only trained on: more of them never change what is held out."""

_NO_CAPITAL = lines("""
    what is the capital [city ]of <it>?
    (which|what) city is the capital of <it>?
    capital [city ]of <it>[?]
    (tell|give) me the capital [city ]of <it>
    <it>'s capital[ is][?]
    <it> has which capital?
    (can|could) you (name|tell me) the capital of <it>?
    do you know the capital of <it>?
    I (forgot|need) the capital of <it>
    (name|say) the capital [city ]of <it>
""")
_WHAT_IS = lines("""
    what is <it>?
    what's <it>?
    what (does|is meant by) <it>[ mean]?
    (explain|define|describe) <it>[ to me]
    who (is|was) <it>?
    (tell|teach) me (about|something about) <it>
    what do you know about <it>?
    where (is|can I find) <it>?
    how (does|do I use) <it>[ work]?
    have you (ever |)heard of <it>?
    (give|write) me (a summary|an explanation) of <it>
    when did <it> (happen|begin|die|start)?
    why is <it> (famous|so famous|important|blue)?
""")
_NUMBER = lines("""
    (what|how large|how big) is the population of <it>?
    how many people live in <it>?
    how (old|tall|far|long|heavy|deep) is <it>?
    how much (does <it> cost|is <it>)?
    what is the (area|height|age|weight|price|birthday) of <it>?
    when was <it> (born|built|founded|discovered)?
    in (what|which) year (was <it> founded|did <it> end|was <it> born)?
    how many (rivers|people|streets|moons|children) has <it>?
""")
_BIG_SUM = lines("""
    what is <a> (plus|times|minus|divided by) <b>?
    (calculate|compute|work out) <a> (+|*|-|/) <b>
    <a> (*|+|-|/) <b>[ =][?]
    how much is <a> (times|plus|minus) <b>?
    (multiply|add|divide) <a> (by|and|with) <b>
    I need <a> (times|plus|minus) <b>
    (give|tell) me <a> (*|+|times|plus) <b>
    can you (multiply|add) <a> and <b>?
""")


def sources() -> tuple[Source, ...]:
    """Return intents whose answer is that the model does not know, or cannot."""
    intent = IntentMaker("unknown")
    listed = (
        intent(block.name, block.wordings, fixed(block.answer, has(*block.terms)), 1, block.further)
        for block in read_blocks("unknown.txt")
    )
    return (
        intent(
            "capital",
            _NO_CAPITAL,
            _named("I do not know the capital of {}.", _FAR_COUNTRIES, _TRAINED_COUNTRIES),
            2.5,
        ),
        intent(
            "what_is",
            _WHAT_IS,
            _named(
                "I do not know {}. I am a very small model and know few things.",
                _STRANGERS,
                _TRAINED_STRANGERS,
            ),
            4,
        ),
        intent(
            "number",
            _NUMBER,
            _named(
                "I do not know that about {}. I am a very small model and know few things.",
                (),
                _TRAINED_PLACES,
            ),
            2,
        ),
        intent("big_sum", _BIG_SUM, _big_sum, 2),
        *listed,
    )


def invented(rng: Random) -> str:
    """Invent a name nobody has heard of."""
    syllables = (rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((1, 2, 2, 3))))
    return ("".join(syllables) + rng.choice(_CODAS)).capitalize()


def _named(form: str, real: tuple[str, ...], further: tuple[str, ...]) -> Callable[[Random, bool], Drawn]:
    """Ask for something invented, or for something real that no table holds; some of `real` are held out."""

    def draw(rng: Random, held: bool) -> Drawn:
        half = held_out(form, real) if held else (*trained(form, real), *further)
        if half and rng.random() < 0.5:
            it = rng.choice(half)
        else:
            it = " ".join(invented(rng) for _ in range(rng.choice((1, 1, 1, 1, 2))))
        return Drawn(answer=form.format(it), check=has("not know"), values={"it": it})

    return draw


def _big_sum(rng: Random, _held: bool) -> Drawn:
    a, b = (
        rng.choice((rng.randint(101, 999), rng.randint(1000, 9999), rng.randint(10_000, 99_999_999)))
        for _ in range(2)
    )
    if rng.random() < 0.3:
        b = rng.randint(2, 99)
    answer = "I cannot do that sum: I only know small numbers."
    return Drawn(answer=answer, check=has("cannot", "small"), values={"a": str(a), "b": str(b)})
