"""Greetings, and what the model says of itself."""

from __future__ import annotations

from training.corpus.blocks import read_blocks
from training.corpus.checks import has
from training.corpus.source import Intent, IntentMaker, fixed


def sources() -> tuple[Intent, ...]:
    """Return one intent for every block of the table."""
    intent = IntentMaker("greeting")
    return tuple(
        intent(
            block.name, block.wordings, fixed(block.answer, has(*block.terms)), 1, block.further, polite=False
        )
        for block in read_blocks("greeting.txt")
    )
