"""How people type: openers, politeness, casing, end marks, slips. Slots are never touched."""

from __future__ import annotations

import re
from random import Random

from training.corpus.phrase import outside_slots, say, tidy
from training.corpus.tables.synonyms import CHAT_WORDS, FILLERS, SMALL_WORDS, SYNONYMS

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
_CHAT_OPENERS = (
    "(hey|yo|hi|oi|um|uh|hmm|ok|okay|so|and|but|well|alright)[,]",
    "(quick|silly|random|stupid|simple) question[,]",
    "(can|could) (you|u) (tell me|help me out)[,]",
    "(pls|please|plz)[,]",
    "hey (tiny|there|buddy|bot)[,]",
    "(just wondering|wondering|no rush but|sorry but|real quick)[,]",
    "i (wonder|need to know|wanna know)[,]",
)
_CHAT_CLOSERS = (
    "pls", "please", "plz", "thx", "thanks", "ty", "mate", "real quick", "if you can", "for me", "anyone know", "lol",
    "asap", "then", "again", "exactly", "would you", "if possible", "when you can", "btw", "thank u", "i forgot",
)  # fmt: skip
_SHORT_ENOUGH = 160
_SHARE_CHAT = 0.2


_PHRASE = re.compile(
    rf"\b(?:{'|'.join(sorted(map(re.escape, SYNONYMS), key=len, reverse=True))})\b", re.IGNORECASE
)


def voiced(wording: str, rng: Random, *, slips: bool, polite: bool = True, chat: bool = True) -> str:
    """Say a wording the way somebody might type it.

    `slips` also allows other words for the same, lost small words, typing errors, shouting, and with `chat` the lower
    case and short forms of a chat; `polite` lets
    statements have openers and closers too, which questions always may have.
    """
    text = say(wording, rng)
    if slips:
        text = _varied(text, rng)
    mark = text[-1] if text[-1:] in {"?", "!", ".", ":"} else ""
    text = text[: len(text) - len(mark)]
    if slips and rng.random() < 0.06:
        text = outside_slots(text, lambda piece: _slip(piece, rng))
    dressed = len(text) < _SHORT_ENOUGH and (polite or mark == "?")
    if slips and chat and rng.random() < _SHARE_CHAT:
        return _chatted(text, mark, rng, dressed=dressed)
    if dressed and rng.random() < 0.13:
        text = f"{say(rng.choice(_OPENERS), rng)} {text}"
    if dressed and mark != ":" and rng.random() < 0.07:
        text = f"{text}, {rng.choice(_CLOSERS)}"
    text += _end(mark, rng)
    case = rng.random()
    if slips and case < 0.015:
        return outside_slots(text, str.upper)
    if case < 0.75:
        return text[:1].upper() + text[1:]
    return text


_CHAT_PHRASE = re.compile(rf"\b(?:{'|'.join(sorted(map(re.escape, CHAT_WORDS), key=len, reverse=True))})\b")


def _chatted(text: str, mark: str, rng: Random, *, dressed: bool) -> str:
    """Type it as in a chat: no capitals, few marks, short forms."""
    lax = rng.choice((0.0, 0.4, 0.8))

    def typed(piece: str) -> str:
        piece = piece.lower()
        piece = _CHAT_PHRASE.sub(
            lambda match: rng.choice(CHAT_WORDS[match[0]]) if rng.random() < lax else match[0], piece
        )
        return piece.replace("'", "") if rng.random() < lax else piece

    text = outside_slots(text, typed)
    if dressed and rng.random() < 0.15:
        text = f"{say(rng.choice(_CHAT_OPENERS), rng)} {text}"
    closed = dressed and mark != ":" and rng.random() < 0.15
    if closed:
        text = f"{text}{rng.choice((',', ''))} {rng.choice(_CHAT_CLOSERS)}"
    keep = mark == ":" or rng.random() < 0.4
    return f"{text}{mark}" if keep else text


def _varied(text: str, rng: Random) -> str:
    """Say it with other words: synonyms, a filler more, a small word less."""
    if rng.random() < 0.35:
        text = outside_slots(text, lambda piece: _PHRASE.sub(lambda match: _other(match[0], rng), piece))
    if rng.random() < 0.12:
        text = outside_slots(text, lambda piece: _without_small_words(piece, rng))
    if rng.random() < 0.06:
        words = text.split(" ")
        words.insert(rng.randrange(len(words)), rng.choice(FILLERS))
        text = " ".join(words)
    return tidy(text)


def _other(phrase: str, rng: Random) -> str:
    if rng.random() < 0.5:
        return phrase
    return rng.choice(SYNONYMS[phrase.casefold()])


def _without_small_words(piece: str, rng: Random) -> str:
    words = piece.split(" ")
    return " ".join(word for word in words if word.casefold() not in SMALL_WORDS or rng.random() < 0.6)


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
