"""The rows of one pass: those of prompts are measured, the others drawn from.

A prompt whose logprobs are wanted needs each row whose next token has not been reported
(`Sequence.n_unscored`), so it begins with no computed prefix beyond those, and a pass has at most
`n_scored_rows` of such rows (`core/plan.py`). The results go out as small deltas (`engine/emit.py`), and the
logits are discarded. What such rows cost is a coefficient of its own in the tick-time model. Of several
answers to a prompt, one asks for its logprobs, and `api/shared.py` reports them with each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend.logprobs import PromptRows, score_rows
from cobali_ray.backend.sampling import RowSampler, Sampled, sample_rows
from cobali_ray.backend.verify import verify_rows


def use_rows(
    logits: NDArray[np.float32],
    rows: Sequence[RowSampler],
    drafts: Sequence[Sequence[int]] = (),
    prompts: Sequence[PromptRows] = (),
) -> Sampled:
    """Do what is wanted of a pass's rows; see `Backend.sample`. Drawing changes those that are drawn from."""
    scored = score_rows(logits, prompts) if prompts else []
    if prompts:
        drawn = np.ones(len(logits), np.bool_)
        for first, tokens, _ in prompts:
            drawn[first : first + len(tokens)] = False
        logits = logits[drawn]
    sampled = verify_rows(logits, rows, drafts) if drafts else sample_rows(logits, rows)
    sampled.scored = scored
    return sampled


def n_rows_of(
    rows: Sequence[RowSampler], drafts: Sequence[Sequence[int]], prompts: Sequence[PromptRows]
) -> int:
    """Return how many rows a pass must have had."""
    return len(rows) + sum(map(len, drafts)) + sum([len(tokens) for _, tokens, _ in prompts])
