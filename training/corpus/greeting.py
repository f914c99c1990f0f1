"""Greetings, and what the model says of itself."""

from __future__ import annotations

from training.corpus.blocks import read_blocks
from training.corpus.checks import has
from training.corpus.source import Intent, fixed


def sources() -> tuple[Intent, ...]:
    """Return one intent for every block of the table."""
    return tuple(
        Intent(
            name=f"greeting.{block.name}",
            kind="greeting",
            wordings=block.wordings,
            further=block.further,
            polite=False,
            draw=fixed(block.answer, has(*block.terms)),
        )
        for block in read_blocks("greeting.txt")
    )
