"""Batches: what a plan computes, as the backend takes it."""

from __future__ import annotations

from array import array

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.logprobs import PromptRows
from cobali_ray.core.plan.plan import Plan
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.engine.images import RowsOf


class Batches:
    """Fills the one batch of an engine, with the rows of images in the places that stand for them."""

    def __init__(self, scheduler: Scheduler, n_batch: int) -> None:
        self._scheduler, self._batch = scheduler, TickBatch(n_batch)
        self.rows: dict[str, RowsOf] = {}
        """Of the images of open requests."""

    def filled(self, plan: Plan) -> TickBatch:
        """Return the batch with all that a plan computes; the next call overwrites it."""
        slots = self._scheduler.slots
        tokens = [slots.tokens(span.slot_id) for span in plan.spans]
        if plan.drafts:
            drafts = [array("i", plan.draft(span.slot_id)) for span in plan.spans]
            tokens = [own + draft for own, draft in zip(tokens, drafts, strict=True)]
        self._batch.fill(plan.spans, tokens)
        if plan.chunks and self.rows:
            self._fill_images(plan)
        return self._batch

    def _fill_images(self, plan: Plan) -> None:
        """Replace the tokens of image spans by the rows of their images."""
        for number, span in enumerate(plan.spans):
            if (sequence := self._scheduler.slots.by_slot[span.slot_id]) is None:
                continue
            for image in sequence.request.rows:
                if image.start <= span.start < image.end:
                    rows = self.rows[sequence.request_id][image.digest, image.part]
                    start = span.start - image.start
                    self._batch.embed(number, rows.part(start, start + span.length))

    def prompts(self, plan: Plan) -> list[tuple[Sequence, PromptRows]]:
        """Return the prompts of a computed plan whose logprobs are wanted, and the rows that are for them."""
        if not plan.chunks:
            return []
        prompts, at = [], 0
        for slot_id, start, length, n_rows in plan.spans:
            sequence = self._scheduler.slots.by_slot[slot_id]
            if n_rows and sequence is not None and sequence.n_unscored is not None:
                # Behind the last row of a prompt comes what is drawn from it.
                tokens = sequence.tokens[start + length - n_rows + 1 : start + length + 1]
                prompts.append((sequence, PromptRows(at, tokens, sequence.request.n_prompt_logprobs or 0)))
            at += n_rows
        return prompts
