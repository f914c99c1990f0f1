"""Which rows of a plan say how likely the tokens of prompts are."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from cobali_ray.backend.logprobs import PromptRows
from cobali_ray.core.plan import Plan
from cobali_ray.core.sequence import Sequence


def prompts_in(plan: Plan, by_slot: Seq[Sequence | None]) -> list[tuple[Sequence, PromptRows]]:
    """Return the prompts of a computed plan whose logprobs are wanted, and which of its rows are for them."""
    if not plan.chunks or plan.spans is None:
        return []
    found, at = [], 0
    for slot_id, start, length, n_rows in plan.spans:
        sequence = by_slot[slot_id]
        if n_rows and sequence is not None and sequence.n_unscored is not None:
            # Behind the last row of a prompt comes what is drawn from it.
            known = sequence.tokens[start + length - n_rows + 1 : start + length + 1]
            found.append((sequence, PromptRows(at, known, sequence.request.n_prompt_logprobs or 0)))
        at += n_rows
    return found
