"""How people type: openers, politeness, casing, end marks, slips. Slots are never touched."""

from __future__ import annotations

from random import Random

from training.corpus.phrase import outside_slots, say

_OPENERS = (
    "(hi|hello|hey|hi there|hey there|good morning|ok|okay|so|right|well|now),",
    "(hi|hello|hey)!",
    "(quick|small|simple|short) question:",
    "I have a (quick |small |)question:",
    "(one more thing|next question|next one|another one|and now):",
    "please (tell|help) me:",
    "tell me,",
    "I (wonder|would like to know|want to know):",
    "(do you know|can you tell me|any idea):",
    "(excuse me|sorry|pardon),",
    "tiny,",
)
_CLOSERS = ("please", "thanks", "thank you", "please and thank you", "I am curious", "just curious", "cheers")
_SHORT_ENOUGH = 160


def voiced(wording: str, rng: Random, *, slips: bool) -> str:
    """Say a wording the way somebody might type it; `slips` allows typing errors and shouting."""
    text = say(wording, rng)
    mark = text[-1] if text[-1:] in {"?", "!", ".", ":"} else ""
    text = text[: len(text) - len(mark)]
    if slips and rng.random() < 0.06:
        text = outside_slots(text, lambda piece: _slip(piece, rng))
    if len(text) < _SHORT_ENOUGH and rng.random() < 0.13:
        text = f"{say(rng.choice(_OPENERS), rng)} {text}"
    if len(text) < _SHORT_ENOUGH and mark != ":" and rng.random() < 0.07:
        text = f"{text}, {rng.choice(_CLOSERS)}"
    text += _end(mark, rng)
    case = rng.random()
    if slips and case < 0.015:
        return outside_slots(text, str.upper)
    if case < 0.75:
        return text[:1].upper() + text[1:]
    return text


def _end(mark: str, rng: Random) -> str:
    chance = rng.random()
    if mark == "?":
        return "" if chance < 0.2 else "??" if chance < 0.22 else "?"
    if mark:
        return mark
    return "." if chance < 0.4 else "!" if chance < 0.44 else ""


def _slip(piece: str, rng: Random) -> str:
    words = piece.split(" ")
    long = [i for i, word in enumerate(words) if len(word) >= 5 and word.isalpha()]
    if not long:
        return piece
    i = rng.choice(long)
    word, at = words[i], rng.randrange(1, len(words[i]) - 1)
    way = rng.randrange(3)
    if way == 0:
        words[i] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    elif way == 1:
        words[i] = word[:at] + word[at + 1 :]
    else:
        words[i] = word[:at] + word[at] + word[at:]
    return " ".join(words)
