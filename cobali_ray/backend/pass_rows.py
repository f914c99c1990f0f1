"""The rows of one pass: those of prompts are measured, the others drawn from, drafts verified.

A prompt whose logprobs are wanted needs each row whose next token has not been reported
(`Sequence.n_unscored`), so it begins with no computed prefix beyond those, and a pass has at most
`n_scored_rows` of such rows (`core/plan/plan.py`). The results go out as small deltas (`engine/emit.py`), and
the logits are discarded. What such rows cost is a coefficient of its own in the tick-time model. Of several
answers to a prompt, one asks for its logprobs, and `api/reply/sources.py` reports them with each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend.logprobs import PromptRows, score_rows
from cobali_ray.backend.sampling import RowSampler, SampleResult, TokenLogprobs, sample_rows
from cobali_ray.errors import CobaliError


def verify_rows(
    logits: NDArray[np.float32], rows: Sequence[RowSampler], drafts: Sequence[Sequence[int]]
) -> SampleResult:
    """Draw the next tokens of each row, for as long as its draft had guessed them.

    `logits` has one row more for each row than its draft has tokens: those behind the token sampled last, and
    behind each token of the draft. Each is drawn from as if it were the only one, with the random number of
    its place in the answer. What differs from the draft is the next token itself; what follows was computed
    behind another, and nothing is drawn from it.
    """
    firsts = list(accumulate((1 + len(draft) for draft in drafts), initial=0))
    steps: list[tuple[list[int], SampleResult]] = []
    going = list(range(len(rows)))
    while going:
        at = [firsts[i] + len(steps) for i in going]
        part = logits[at[0] : at[0] + 1] if len(at) == 1 else logits[at]
        sampled = sample_rows(part, [rows[i] for i in going])
        n_before = len(steps)
        steps.append((going, sampled))
        over = {*sampled.failed, *sampled.complete}
        going = [
            i
            for place, (i, token) in enumerate(zip(going, sampled.tokens, strict=True))
            if place not in over and n_before < len(drafts[i]) and token == drafts[i][n_before]
        ]
    return _joined(len(rows), steps)


def _joined(n_rows: int, steps: Sequence[tuple[list[int], SampleResult]]) -> SampleResult:
    by_row: list[list[tuple[SampleResult, int]]] = [[] for _ in range(n_rows)]
    for going, sampled in steps:
        for place, i in enumerate(going):
            by_row[i].append((sampled, place))
    flat = [drawn for of_row in by_row for drawn in of_row]
    logprobs: dict[int, TokenLogprobs] = {}
    failed: dict[int, CobaliError] = {}
    complete: list[int] = []
    for number, (sampled, place) in enumerate(flat):
        if place in sampled.logprobs:
            logprobs[number] = sampled.logprobs[place]
        if place in sampled.failed:
            failed[number] = sampled.failed[place]
        if place in sampled.complete:
            complete.append(number)
    tokens = [sampled.tokens[place] for sampled, place in flat]
    return SampleResult(tokens, logprobs, failed, complete, [len(of_row) for of_row in by_row])


def use_rows(
    logits: NDArray[np.float32],
    rows: Sequence[RowSampler],
    drafts: Sequence[Sequence[int]] = (),
    prompts: Sequence[PromptRows] = (),
) -> SampleResult:
    """Score the rows of prompts and draw from the others, which changes them; see `Backend.sample`."""
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
