"""Errands: reminders, timers, messages, dates and music."""

from __future__ import annotations

from random import Random

from training.corpus.calendar import DAYS, MONTHS
from training.corpus.source import lines
from training.corpus.tables.words import NAMES, WORDS
from training.corpus.tasks.family import Family, draw_words
from training.corpus.tool import Task, Tool, doing_name, done, pool, string

_REMIND = lines("""
    remind me to <task> at <time>
    remind me at <time> to <task>
    (set|make) a reminder (to|for) <task> at <time>
    (set|make) a reminder at <time>: <task>
    I (must|have to|need to) <task> at <time>, remind me
    don't let me forget to <task> at <time>
    (can|could) you remind me to <task> at <time>?
    at <time>, remind me to <task>
""")
_TASKS = (
    "buy milk", "call mum", "feed the cat", "water the plants", "take out the bins", "pay the rent", "send the letter",
    "walk the dog", "clean the kitchen", "book a table", "pick up the parcel", "bake bread", "charge the phone",
)  # fmt: skip


def _clock(rng: Random) -> str:
    return rng.choice((
        f"{rng.randint(1, 12)} pm", f"{rng.randint(1, 12)} am", f"{rng.randint(0, 23)}:{rng.choice((0, 15, 30, 45)):02d}",
        f"{rng.randint(1, 12)}pm", "noon",
    ))  # fmt: skip


def _remind(rng: Random, held: bool, _n: int) -> Task:
    task, time = rng.choice(_TASKS), _clock(rng)
    if rng.random() < 0.4:
        task = f"{rng.choice(('find', 'buy', 'sell', 'paint', 'call', 'fix'))} the {rng.choice(WORDS)}"
    text = pool("text task message what title", "note").draw(rng, held=held)
    when = pool("time at when", "due").draw(rng, held=held)
    tool = Tool(
        name=doing_name(rng.choice(("reminder", "reminders", "todo")), rng, held=held),
        description=rng.choice(("Set a reminder.", "Remind the user of something.", "Create a reminder.")),
        parameters={text: string(), when: string()},
    )
    return Task(
        tool=tool,
        values={"task": task, "time": time},
        calls=({text: task, when: time},),
        results=(done(rng),),
        answers=(f"I will remind you to {task} at {time}.",),
        terms=((task, time),),
    )


_TIMER = lines("""
    (set|start) a timer (for|of) <n> <unit>
    (set|start) a <n> <unit> timer
    timer[,] <n> <unit>[, please]
    <n> <unit>[,] (on the timer|timer)[, please]
    wake me in <n> <unit>
    (can|could) you (set|start) a timer for <n> <unit>?
    tell me when <n> <unit> are over
""")


def _timer(rng: Random, held: bool, _n: int) -> Task:
    n, unit = rng.randint(2, 90), rng.choice(("minutes", "seconds"))
    tool = Tool(
        name=doing_name(rng.choice(("timer", "countdown")), rng, held=held),
        description=rng.choice(("Start a timer.", "Set a timer.", "A kitchen timer")),
        parameters={unit: {"type": "integer"}},
    )
    return Task(
        tool=tool,
        values={"n": str(n), "unit": unit},
        calls=({unit: n},),
        results=(done(rng),),
        answers=(f"The timer runs for {n} {unit}.",),
        terms=((str(n), unit),),
    )


_SEND = lines("""
    send <name> a (message|text|mail): <text>
    (send|write) (a message|an email|a mail|a text) to <name>: <text>
    (tell|text|message) <name>: <text>
    (send|write) (a message|an email|a mail) to <name> (saying|that says) <text>
    message (for|to) <name>: <text>
    let <name> know: <text>
    (can|could) you (write|send) <name> a message: <text>
""")


def _send(rng: Random, held: bool, _n: int) -> Task:
    name, text = rng.choice(NAMES), draw_words(rng, 2, 5)
    to = pool("to recipient name person contact", "receiver").draw(rng, held=held)
    body = pool("text message body content", "note").draw(rng, held=held)
    tool = Tool(
        name=doing_name(rng.choice(("message", "email", "mail")), rng, held=held)
        if held or rng.random() < 0.5
        else rng.choice(("send_message", "send_email", "send_text", "send")),
        description=rng.choice(("Send a message.", "Send a message to somebody.", "Write an email.")),
        parameters={to: string(), body: string()},
    )
    return Task(
        tool=tool,
        values={"name": name, "text": text},
        calls=({to: name, body: text},),
        results=(done(rng),),
        answers=(f"I sent {name} the message: {text}",),
        terms=((name, text),),
    )


_EVENT = lines("""
    add <event> on <day>[ to my calendar]
    (put|write) <event> (in|into) my calendar (for|on) <day>
    (plan|schedule) <event> (on|for) <day>
    (make|create) an appointment on <day>: <event>
    on <day> I have <event>, (put|write) it in my calendar
    (enter|note) <event> (for|on) <day>
    calendar, <day>: <event>
""")


def _event(rng: Random, held: bool, _n: int) -> Task:
    event = f"{rng.choice(('lunch', 'dinner', 'a meeting', 'chess', 'tennis', 'a walk'))} with {rng.choice(NAMES)}"
    day = rng.choice((rng.choice(DAYS), f"{rng.choice(MONTHS)} {rng.randint(1, 28)}"))
    title = pool("title event what name", "subject").draw(rng, held=held)
    when = pool("day date when", "occasion").draw(rng, held=held)
    tool = Tool(
        name=doing_name(rng.choice(("event", "appointment", "calendar")), rng, held=held),
        description=rng.choice(
            ("Add an event to the calendar.", "Plan something.", "Create an appointment.")
        ),
        parameters={title: string(), when: string()},
    )
    return Task(
        tool=tool,
        values={"event": event, "day": day},
        calls=({title: event, when: day},),
        results=(done(rng),),
        answers=(f"I added {event} on {day}.",),
        terms=((event, day),),
    )


_PLAY = lines("""
    play <song>
    (can|could) you play <song>?
    I (want|would like) to hear <song>
    (put|turn) on <song>
    (start|listen to) <song>
    (some|a little) music: <song>
    let me hear <song>
""")


def _play(rng: Random, held: bool, _n: int) -> Task:
    song = " ".join(rng.choice(WORDS).capitalize() for _ in range(rng.randint(2, 3)))
    key = pool("song title track name music", "tune", 0.06).draw(rng, held=held)
    tool = Tool(
        name=doing_name(rng.choice(("music", "song", "player")), rng, held=held)
        if held or rng.random() < 0.5
        else rng.choice(("play", "play_song", "play_music")),
        description=rng.choice(("Play a song.", "Play music.", "The music player")),
        parameters={key: string()},
    )
    return Task(
        tool=tool,
        values={"song": song},
        calls=({key: song},),
        results=(done(rng),),
        answers=(f"Now playing {song}.",),
        terms=((song,),),
    )


FAMILIES = (
    Family(name="remind", wordings=_REMIND, draw=_remind, acts=True, weight=0.8),
    Family(name="timer", wordings=_TIMER, draw=_timer, acts=True, weight=0.5),
    Family(name="send", wordings=_SEND, draw=_send, acts=True, weight=0.7),
    Family(name="event", wordings=_EVENT, draw=_event, acts=True, weight=0.6),
    Family(name="play", wordings=_PLAY, draw=_play, acts=True, weight=0.5),
)
