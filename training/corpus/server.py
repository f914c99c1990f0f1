"""Questions about the server and its field: what words mean, how things work, what to set."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from random import Random

from training.corpus.blocks import Block, read_blocks
from training.corpus.checks import has
from training.corpus.source import Drawn, Intent, Source, fixed, lines

FILES = (
    "server_words.txt",
    "server_how.txt",
    "server_settings.txt",
    "server_http.txt",
    "server_metrics.txt",
    "server_see.txt",
    "server_apis.txt",
)

_DEFINE = lines("""
    what is <it>?
    what's <it>?
    what (does|do) <it> mean?
    what is meant by <it>?
    (explain|define|describe) <it>[ to me| briefly| simply]
    (can|could) you (explain|define|describe) <it>[ to me]?
    (tell|teach) me (about|what you know about|something about) <it>
    (tell|explain to) me what <it> (means|is)
    <it>?
    <it>, what is (that|it|this)?
    I (do not|don't) (understand|know) <it>
    what do you (call|mean by|know about) <it>?
    (define|meaning of|definition of)[:] <it>
    <it> (means|is)[ what][?]
    (give|write) me (an explanation|a definition) of <it>
    what should I know about <it>?
    I (read|heard|see|came) (about|of|across) <it>. what is it?
    how would you (explain|define|describe) <it>?
    who can explain <it>?
    help me understand <it>
    (in short|briefly|in simple words), what is <it>?
    what is <it> in (this server|cobali|cobali_ray|your server)?
    what does cobali_ray mean by <it>?
    what is the (idea|point) (of|behind) <it>?
""")


def sources() -> tuple[Source, ...]:
    """Return for each block its own wordings, and the common ones where it defines a word."""
    return tuple(source for block in blocks() for source in _of(block))


@functools.cache
def blocks() -> tuple[Block, ...]:
    """Return every entry about the server."""
    return tuple(block for name in FILES for block in read_blocks(name))


@functools.cache
def defined() -> tuple[Block, ...]:
    """Return the entries that explain a word."""
    return tuple(block for block in blocks() if block.aliases)


@functools.cache
def pointed() -> tuple[Block, ...]:
    """Return the entries that can also be said in three points."""
    return tuple(block for block in defined() if block.bullets)


def unexplained(settings: Iterable[str]) -> list[str]:
    """Name the settings that no entry explains."""
    explained = " ".join(text for b in blocks() for text in (*b.wordings, *b.aliases, b.answer, b.name))
    return [name for name in sorted(settings) if not re.search(rf"\b{name}\b", explained)]


def _of(block: Block) -> list[Source]:
    check = has(*block.terms)
    intents: list[Source] = []
    if block.wordings or block.further:
        draw = fixed(block.answer, check)
        intents.append(
            Intent(
                name=f"server.{block.name}", kind="server", wordings=block.wordings, further=block.further, draw=draw,
            )
        )  # fmt: skip
    if block.aliases:
        draw, name = _defining(block), f"server.{block.name}.word"
        intents.append(
            Intent(name=name, kind="server", wordings=_DEFINE, draw=draw, loose=True, split="server.word")
        )
    return intents


def _defining(block: Block) -> Callable[[Random, bool], Drawn]:
    check = has(*block.terms)

    def draw(rng: Random, _held: bool) -> Drawn:
        return Drawn(answer=block.answer, check=check, values={"it": rng.choice(block.aliases)})

    return draw
