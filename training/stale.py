"""What the corpus says of settings and is no longer so. Said before a training, never a reason to fail.

The tables are data of their own: they hold what was true when they were written, and a setting may change
without anybody training a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cobali_ray.settings import EngineSettings
from training.corpus import server

DEFAULTS = {name: field.default for name, field in EngineSettings.model_fields.items()}
NOT_ASKED = frozenset({"scripted_tick_s"})
"""Settings that no entry needs to explain."""


def stale(defaults: Mapping[str, Any] = DEFAULTS) -> list[str]:
    """Name the settings that no entry explains, and those that have another default by now."""
    blocks = server.blocks()
    answers = {block.name: block.answer for block in blocks}
    said = " ".join(text for b in blocks for text in (*b.wordings, *b.aliases, b.answer, *b.bullets))
    found = []
    for name in sorted(set(defaults) - NOT_ASKED):
        default = defaults[name]
        if not re.search(rf"\b{name}\b", said) and name not in answers:
            found.append(f"no entry explains {name}")
        elif isinstance(default, int | float) and not isinstance(default, bool):
            number = f"{default:g}" if default < 1e5 else str(default)
            if not re.search(rf"\b{re.escape(number)}\b", answers.get(name, said)):
                found.append(f"the entry on {name} does not say {number}")
    return found
