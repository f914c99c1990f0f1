"""Words that may stand for each other in a question, and words that a question can do without."""

from __future__ import annotations

_GROUPS = """
    what is|what's
    tell me|let me know|say
    give me|get me|I want
    show|display|print
    show me|let me see|give me
    explain|describe|clarify
    can you|could you|would you|will you|can you please
    how do I|how can I|how to|how could I|how would I|what do I do to
    how can I|how do I|how to|is there a way to
    change|alter|modify|adjust|set
    set|change|choose|configure
    limit|bound|cap|restrict
    bounds|limits|caps|restricts
    raise|increase|make larger
    lower|reduce|decrease
    choose|pick|select
    chooses|picks|selects|decides
    switch off|turn off|disable|deactivate
    turn on|switch on|enable|activate
    use|employ|work with
    used|employed
    make|create|build|produce
    large|big
    larger|bigger|greater
    largest|biggest|greatest
    small|little|tiny
    fast|quick|speedy
    faster|quicker
    slow|sluggish
    stop|halt|end
    start|begin|launch
    starts|begins|launches
    happens|occurs|takes place|is done
    when|if|in case
    which|what
    get|receive|obtain
    need|require
    needed|required|necessary
    needs|requires
    see|view|look at|check
    find|look for|search
    want|would like|need
    calculate|compute|work out
    measure|gauge|find out
    write|put down|type
    comes|follows
    previous|preceding
    next|following
    left|remaining
    refused|rejected|declined|denied
    dies|crashes|fails
    wait|queue
    kept|stored|saved|held
    store|save|keep|hold
    long|lengthy
    answer|reply|response
    answers|replies|responses
    question|query
    requests|calls|queries
    request|call|query
    clients|users|callers
    client|user|caller
    settings|options|configuration
    endpoint|route|URL
    prompt|input
    prompts|inputs
    mean|stand for|signify
    is meant by|is
    difference|distinction
    differ|vary|compare
    default|standard
    by default|normally|usually
    several|many|multiple
    together|at once|at the same time
    at once|at the same time|together|in parallel
    allowed|permitted
    supported|possible|available
    error|failure|fault
    why|for what reason|how come
    where|in what place
    folder|directory
    machine|computer
    quickly|fast
    people|persons
    ends|finishes|stops|is over
    begin|start
    takes|needs|lasts
    gone|lost
    total|sum
    kind|sort|type
    kinds|sorts|types
    brief|short
    short|brief|little
    tale|story
    remember|recall|know
    call|name
    called|named
    decides|determines
    protect|secure|guard
    connect|link
    send|submit|post
    shown|displayed|visible
    counts|numbers
    contains|holds|has
    known for|famous for
"""


_CHAT_GROUPS = """
    what is|whats|what's|wats
    what's|whats
    what are|what're|whatre
    where is|wheres|where's
    who is|whos|who's
    how is|hows|how's
    that is|thats|that's
    it is|its|it's
    i am|im|i'm
    i have|ive|i've|i got
    i would|id|i'd
    do not|dont|don't
    does not|doesnt|doesn't
    cannot|cant|can't
    is not|isnt|isn't
    you are|youre|ur
    you|u|ya
    your|ur
    are you|r u
    please|pls|plz
    thank you|thx|ty|thank u
    thanks|thx
    give me|gimme
    let me|lemme
    want to|wanna
    going to|gonna
    have to|gotta|hafta
    because|cuz|cos
    something|smth|sth
    about|abt
    and|n|&
    with|w/
    without|w/o
    okay|ok
    number|num|no.
    difference|diff
    configuration|config
    requests|reqs
    request|req
    tokens|toks
    maximum|max
    minimum|min
    seconds|secs
    through|thru
    kind of|kinda
    do you know|d'you know|dyou know
"""


def _table(groups: str) -> dict[str, tuple[str, ...]]:
    rows = [line.strip().split("|") for line in groups.strip().splitlines()]
    return {row[0].casefold(): tuple(row[1:]) for row in rows}


SYNONYMS = _table(_GROUPS)
"""By phrase, in lower case, what may be said instead."""
CHAT_WORDS = _table(_CHAT_GROUPS)
"""By phrase, in lower case, how it is typed in a chat."""
FILLERS = (
    "just",
    "actually",
    "exactly",
    "really",
    "simply",
    "maybe",
    "quickly",
    "kindly",
    "then",
    "again",
    "now",
    "um",
)
SMALL_WORDS = frozenset(
    [
        "the",
        "a",
        "an",
        "of",
        "is",
        "are",
        "do",
        "does",
        "did",
        "me",
        "to",
        "for",
        "it",
        "please",
        "there",
        "that",
        "this",
        "i",
        "you",
        "your",
        "with",
        "by",
    ]
)
