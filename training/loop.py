"""The training loop: steps over the plan, a checkpoint now and then, and on from where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F  # noqa: N812 - everybody's name for it

from training.checkpoint import load_checkpoint, save_checkpoint
from training.dataset import Dataset, plan
from training.model import Decoder
from training.recipe import Recipe

CHECKPOINT_EVERY_S = 120.0
_SCORES = 256


@dataclass(slots=True)
class Run:
    """A model in training: everything that must survive an interruption."""

    model: Decoder
    optimizers: list[torch.optim.Optimizer]
    recipe: Recipe
    step: int = 0
    losses: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, recipe: Recipe, device: str) -> Run:
        """Begin anew."""
        torch.manual_seed(recipe.seed)
        model = Decoder(recipe.shape).to(device)
        return cls(model, _optimizers(model, recipe), recipe)

    @classmethod
    def resume(cls, recipe: Recipe, path: Path, device: str, weights: Mapping[str, Any] | None = None) -> Run:
        """Go on from the checkpoint at `path`, or begin anew where there is none, with `weights` if given.

        Raises:
            TrainingError: the checkpoint is of another recipe, or damaged.
        """
        run = cls.start(recipe, device)
        state = load_checkpoint(path, recipe, device)
        if state is not None:
            run.model.load_state_dict(state["model"])
            for optimizer, saved in zip(run.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            run.step, run.losses = state["step"], state["losses"]
        elif weights is not None:
            run.model.load_state_dict(weights)
        return run

    def save(self, path: Path) -> None:
        """Write a checkpoint, whole or not at all."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "losses": self.losses,
        }
        save_checkpoint(path, state, self.recipe)


OnStep = Callable[[int, int, float, int], None]
"""Called with the step, how many there are, the loss, and how many tokens the step had."""


def train(run: Run, data: Dataset, checkpoint: Path, on_step: OnStep) -> None:
    """Go through the plan from where the run stands; whatever interrupts it, a checkpoint is left behind."""
    recipe = run.recipe
    steps = plan(
        data.lengths,
        recipe.seed,
        tokens_per_pass=recipe.tokens_per_pass,
        passes_per_step=recipe.passes_per_step,
    )
    n_steps = min(len(steps), recipe.n_steps or len(steps))
    saved = time.monotonic()
    try:
        while run.step < n_steps:
            rows = steps[run.step]
            loss = _step(run, [data.rows(indices) for indices in rows], recipe.scale(run.step, n_steps))
            run.losses.append(loss)
            run.step += 1
            on_step(run.step, n_steps, loss, int(sum(data.lengths[indices].sum() for indices in rows)))
            if time.monotonic() - saved > CHECKPOINT_EVERY_S:
                run.save(checkpoint)
                saved = time.monotonic()
    finally:
        run.save(checkpoint)


Pass = tuple[NDArray[np.int64], NDArray[np.float32]]


def _step(run: Run, passes: list[Pass], scale: float) -> float:
    """Compute the passes, on a CPU side by side, and take one step by the sum of their gradients."""
    total = float(sum(weights.sum() for _, weights in passes))
    parameters = list(run.model.parameters())
    n_threads = torch.get_num_threads()
    at_once = min(n_threads, len(passes)) if parameters[0].device.type == "cpu" else 1

    def compute(batch: Pass) -> tuple[float, tuple[torch.Tensor, ...]]:
        torch.set_num_threads(max(1, n_threads // at_once))
        loss = _loss(run.model, batch, total)
        return float(loss.detach()), torch.autograd.grad(loss, parameters)

    with ThreadPoolExecutor(at_once) as pool:
        losses, gradients = zip(*pool.map(compute, passes), strict=True)
    torch.set_num_threads(n_threads)
    for parameter, some in zip(parameters, zip(*gradients, strict=True), strict=True):
        parameter.grad = torch.stack(some).sum(0)
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["full_lr"] * scale
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return sum(losses)


def _loss(model: Decoder, batch: Pass, total: float) -> torch.Tensor:
    tokens, weights = batch
    device = model.embedding.weight.device
    ids = torch.from_numpy(tokens).to(device)
    at, weight = (torch.from_numpy(array).to(device) for array in _scored(weights))
    with torch.autocast(device.type, torch.bfloat16, enabled=_has_bfloat16(device.type)):
        logits = model.logits(model(ids).flatten(0, 1)[at])
    each = F.cross_entropy(logits.float(), ids.flatten()[at + 1], reduction="none")
    return (each * weight).sum() / total


def _has_bfloat16(device: str) -> bool:
    """Say whether products in bfloat16 are fast: on a CPU only where it has tiles for them."""
    return device != "cpu" or bool(torch.cpu.get_capabilities().get("amx_bf16"))


def _scored(weights: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the places, counted over all rows, whose next token counts, and its weight.

    As many as a multiple of `_SCORES`: what fills up weighs nothing.
    """
    following = np.roll(weights.ravel(), -1)
    following[-1] = 0.0
    places = np.flatnonzero(following)
    filled = np.zeros(-(-len(places) // _SCORES) * _SCORES, np.int64)
    filled[: len(places)] = places
    place_weights = np.zeros(len(filled), np.float32)
    place_weights[: len(places)] = following[places]
    return filled, place_weights


def _optimizers(model: Decoder, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings, norms and biases."""
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "embedding" not in name]
    others = [p for name, p in model.named_parameters() if p.dim() != 2 or "embedding" in name]
    optimizers: list[Any] = [
        torch.optim.Muon(
            matrices, lr=recipe.rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=recipe.embedding_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
    return optimizers
