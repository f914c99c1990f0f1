"""Greedy answers of the PyTorch model, for checks; slow, and many prompts at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from training.model import Decoder


@torch.inference_mode()
def greedy(model: Decoder, prompts: Sequence[Sequence[int]], *, end: int, n_most: int) -> list[list[int]]:
    """Continue every prompt by its likeliest tokens, `n_most` at most, up to `end`, which is not returned."""
    device = model.embedding.weight.device
    answers: list[list[int]] = [[] for _ in prompts]
    going = list(range(len(prompts)))
    while going and max(len(answer) for answer in answers) < n_most:
        texts = [[*prompts[i], *answers[i]] for i in going]
        n = max(map(len, texts))
        rows = torch.tensor([text + [0] * (n - len(text)) for text in texts], device=device)
        last = torch.tensor([len(text) - 1 for text in texts], device=device)
        states = model(rows)[torch.arange(len(texts), device=device), last]
        chosen = model.logits(states).argmax(-1).tolist()
        for i, token in zip(going, chosen, strict=True):
            if token != end:
                answers[i].append(token)
        going = [i for i, token in zip(going, chosen, strict=True) if token != end]
    return answers
