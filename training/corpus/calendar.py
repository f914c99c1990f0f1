"""Days, months and seasons."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from training.corpus.checks import exact, has, items, number
from training.corpus.source import Drawn, IntentMaker, Source, fixed, lines

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth",
    "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth",
)  # fmt: skip
SEASONS = (
    "winter",
    "winter",
    "spring",
    "spring",
    "spring",
    "summer",
    "summer",
    "summer",
    "autumn",
    "autumn",
    "autumn",
    "winter",
)

_AFTER = lines("""
    (what|which) (<unit>|one) (comes|is|follows) (after|directly after|right after) <it>?
    what comes (after|directly after|right after) <it>?
    (tell|give) me the <unit> after <it>
    the <unit> after <it>[ is][?]
    (what|which) <unit> follows <it>?
    <it> is followed by (which|what) <unit>?
    (name|say) the <unit> (that comes |that follows |)after <it>
    what is the next <unit> after <it>?
    after <it> comes (what|which <unit>)?
    if it is <it> now, what <unit> is next?
    which <unit> do we have (after|once we are past) <it>?
    when <it> is over, which <unit> (begins|starts|comes)?
""")
_BEFORE = lines("""
    (what|which) (<unit>|one) (comes|is) (before|directly before|right before) <it>?
    what comes (before|directly before|right before) <it>?
    (tell|give) me the <unit> before <it>
    the <unit> before <it>[ is][?]
    (what|which) <unit> precedes <it>?
    <it> is preceded by (which|what) <unit>?
    (name|say) the <unit> (that comes |)before <it>
    what is the <unit> just before <it>?
    before <it> comes (what|which <unit>)?
    if it is <it> now, what <unit> was (it before|the last one|the previous one)?
    which <unit> (ends|is over) when <it> (begins|starts)?
    what was the <unit> before <it>?
""")
_TWO_AFTER = lines("""
    (what|which) <unit> is (two <unit>s|2 <unit>s) after <it>?
    what is two <unit>s after <it>?
    (tell|give) me the <unit> two <unit>s after <it>
    two <unit>s after <it>[ is][ what][?]
    if it is <it>, (what|which) <unit> is it in two <unit>s?
    which <unit> comes two <unit>s after <it>?
    <it> plus two <unit>s[ is][?]
    go two <unit>s on from <it>
""")
_NUMBER = lines("""
    (what|which) number is [the month of ]<it>?
    (what|which) (number|position) does <it> have (in the year|among the months)?
    <it> is (which|what) number of month?
    (tell|give) me the number of [the month of ]<it>
    what month number is <it>?
    is <it> the first, second or which month?
    how do I write <it> as a number?
    month number of <it>[?]
    which place does <it> have in the year?
""")
_NTH = lines("""
    what is the <nth> <unit> of the <whole>?
    (which|what) <unit> is the <nth>[ one| of the <whole>]?
    (tell|give) me the <nth> <unit>[ of the <whole>]
    the <nth> <unit> of the <whole>[ is][?]
    name the <nth> <unit>[ of the <whole>]
    which <unit> comes <nth> in the <whole>?
    <unit> number <n>[ is][ which][?]
    what is <unit> number <n>?
    what do we call the <nth> <unit>?
    (which is|what is) <unit> <n> of the <whole>?
""")
_LENGTH = lines("""
    how many days (does <it> have|are (in|there in) <it>|has <it>)?
    how long is <it>[, in days]?
    (tell|give) me the number of days in <it>
    <it> has how many days?
    days in <it>[?]
    what is the (length|number of days) of <it>?
    how many days long is <it>?
    does <it> have 30 or 31 days?
    on which day of the month does <it> end?
    what is the last day number of <it>?
""")
_SEASON = lines("""
    (which|what) season is <it> in?
    (in|to) (which|what) season (is|does) <it>[ belong]?
    is <it> in spring, summer, autumn or winter?
    <it> (belongs to|is in|falls into) which season?
    what season do we have in <it>?
    (tell|give) me the season of <it>
    season of <it>[?]
    what time of the year is <it>: spring, summer, autumn or winter?
    which season (has|contains) <it>?
""")
_DAYS = lines("""
    list the days[ of the week]
    name the days[ of the week]
    name all (days|seven days)[ of the week]
    what are the days of the week?
    (tell|give) me the days[ of the week]
    (which|what) days (are there|does a week have)?
    days of the week[?]
    recite the days of the week
    (can|could) you (list|name) the days[ of the week]?
    (write|say) all weekdays from Monday to Sunday
    how are the days of the week called?
    all seven days, in order
""")
_MONTHS = lines("""
    list the months[ of the year]
    name the months[ of the year]
    name all (months|twelve months)[ of the year]
    what are the months of the year?
    (tell|give) me the months[ of the year]
    (which|what) months (are there|does a year have)?
    months of the year[?]
    recite the months of the year
    (can|could) you (list|name) the months[ of the year]?
    (write|say) all months from January to December
    how are the months of the year called?
    all twelve months, in order
""")
_SEASONS = lines("""
    list the seasons[ of the year]
    name the seasons[ of the year]
    name (all|the four) seasons
    what are the (four |)seasons[ of the year]?
    (tell|give) me the seasons[ of the year]
    (which|what) seasons (are there|does a year have)?
    seasons of the year[?]
    recite the seasons
    (can|could) you (list|name) the seasons?
    how are the seasons called?
    all four seasons, in order
""")
_COUNTS = {
    "days_week": ("days", "week", 7),
    "months_year": ("months", "year", 12),
    "days_year": ("days", "year", 365),
    "weeks_year": ("weeks", "year", 52),
    "hours_day": ("hours", "day", 24),
    "minutes_hour": ("minutes", "hour", 60),
    "seconds_minute": ("seconds", "minute", 60),
    "seasons_year": ("seasons", "year", 4),
    "years_decade": ("years", "decade", 10),
    "years_century": ("years", "century", 100),
}
_HOW_MANY = lines("""
    how many <parts> (are|are there) in (<a_whole>|one <whole>)?
    how many <parts> (does|has) (<a_whole>|one <whole>)[ have]?
    (tell|give) me the number of <parts> in <a_whole>
    <a_whole> has how many <parts>?
    <parts> in <a_whole>[?]
    what is the number of <parts> in (<a_whole>|one <whole>)?
    of how many <parts> is <a_whole> made?
    (<a_whole>|one <whole>) is how many <parts>?
    how many <parts> make (<a_whole>|one <whole>)?
    count the <parts> (of|in) <a_whole>
""")
_WEEKEND = lines("""
    is <it> (a|on the) weekend[ day]?
    is <it> a (weekday|working day|work day) or (the|a) weekend[ day]?
    does <it> belong to the weekend?
    <it>: weekday or weekend?
    (tell|say) me (if|whether) <it> is a weekday or (on the|a) weekend
    weekday or weekend: <it>[?]
    do people call <it> a weekday or weekend?
    would you count <it> as a weekday or as weekend?
""")


def sources() -> tuple[Source, ...]:
    """Return all that can be asked of the calendar."""
    intent = IntentMaker("calendar", loose=True)
    seasons = ("spring", "summer", "autumn", "winter")
    listed = (
        intent(f"list_{name}", wordings, fixed(", ".join(members), items(members)), 0.5)
        for name, wordings, members in (
            ("days", _DAYS, DAYS),
            ("months", _MONTHS, MONTHS),
            ("seasons", _SEASONS, seasons),
        )
    )
    return (
        intent("after", _AFTER, _moved(1), 2),
        intent("before", _BEFORE, _moved(-1), 2),
        intent("two_after", _TWO_AFTER, _moved(2), 1),
        intent("number", _NUMBER, _number, 1),
        intent("nth", _NTH, _nth, 1),
        intent("length", _LENGTH, _length, 1.2),
        intent("season", _SEASON, _season, 1),
        intent("how_many", _HOW_MANY, _how_many, 1),
        intent("weekend", _WEEKEND, _weekend, 0.8),
        *listed,
    )


def moved(it: str, by: int) -> str:
    """Return the day or month so many further on."""
    ring = DAYS if it in DAYS else MONTHS
    return ring[(ring.index(it) + by) % len(ring)]


def _moved(by: int) -> Callable[[Random, bool], Drawn]:
    def draw(rng: Random, _held: bool) -> Drawn:
        unit = rng.choice(("day", "month"))
        it = rng.choice(DAYS if unit == "day" else MONTHS)
        target = moved(it, by)
        return Drawn(answer=f"{target}.", check=exact(target), values={"unit": unit, "it": it})

    return draw


def _number(rng: Random, _held: bool) -> Drawn:
    i = rng.randrange(12)
    answer = f"{MONTHS[i]} is the {ORDINALS[i]} month, number {i + 1}."
    return Drawn(answer=answer, check=number(i + 1), values={"it": MONTHS[i]})


def _nth(rng: Random, _held: bool) -> Drawn:
    unit, whole, ring = rng.choice((("day", "week", DAYS), ("month", "year", MONTHS)))
    i = rng.randrange(len(ring))
    values = {"nth": ORDINALS[i], "n": str(i + 1), "unit": unit, "whole": whole}
    return Drawn(answer=f"{ring[i]}.", check=exact(ring[i]), values=values)


def _length(rng: Random, _held: bool) -> Drawn:
    i = rng.randrange(12)
    if MONTHS[i] == "February":
        answer, check = "February has 28 days, and 29 in a leap year.", has("28", "29")
    else:
        answer, check = f"{MONTHS[i]} has {LENGTHS[i]} days.", has(str(LENGTHS[i]))
    return Drawn(answer=answer, check=check, values={"it": MONTHS[i]})


def _season(rng: Random, _held: bool) -> Drawn:
    i = rng.randrange(12)
    answer = f"In the north, {MONTHS[i]} is in {SEASONS[i]}."
    return Drawn(answer=answer, check=has(SEASONS[i]), values={"it": MONTHS[i]})


def _how_many(rng: Random, _held: bool) -> Drawn:
    parts, whole, n = rng.choice(tuple(_COUNTS.values()))
    a_whole = f"an {whole}" if whole == "hour" else f"a {whole}"
    answer = f"{a_whole.capitalize()} has {n} {parts}."
    return Drawn(
        answer=answer, check=has(str(n)), values={"parts": parts, "whole": whole, "a_whole": a_whole}
    )


def _weekend(rng: Random, _held: bool) -> Drawn:
    day = rng.choice(DAYS)
    word = "weekend" if day in DAYS[5:] else "weekday"
    answer = f"{day} is part of the weekend." if word == "weekend" else f"{day} is a weekday."
    return Drawn(answer=answer, check=has(word), values={"it": day})
