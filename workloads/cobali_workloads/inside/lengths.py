"""Prompt lengths with the spread of Prepacking's data sets, and what their spread is worth. Pure, seeded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist, fmean

_GRID = [NormalDist().inv_cdf((i + 0.5) / 2000) for i in range(2000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSpread:
    """Log-normal prompt lengths, in tokens, between `least` and `most`."""

    name: str
    mean: float
    """Of the lengths drawn, the bounds taken into account."""
    deviation: float
    """Standard deviation before the bounds cut it."""
    least: int
    most: int
    about: str

    def __post_init__(self) -> None:
        if not 1 <= self.least < self.mean < self.most or self.deviation <= 0:
            raise ValueError(f"{self.name}: need 1 <= least < mean < most and a deviation above 0")

    def draw(self, n: int, seed: int) -> list[int]:
        """Draw `n` lengths; asking for more never changes the earlier ones."""
        rng = Random(f"{seed} {self.name}")
        location, scale = self._parameters()
        return [self._bounded(rng.gauss(location, scale)) for _ in range(n)]

    def _bounded(self, log_length: float) -> int:
        return min(max(round(math.exp(log_length)), self.least), self.most)

    def _parameters(self) -> tuple[float, float]:
        """Return location and scale of the logarithm such that the bounded lengths have the mean."""
        scale = math.sqrt(math.log1p((self.deviation / self.mean) ** 2))
        low, high = math.log(self.least) - 3, math.log(self.most) + 3
        for _ in range(50):
            location = (low + high) / 2
            if fmean(self._bounded(location + scale * z) for z in _GRID) < self.mean:
                low = location
            else:
                high = location
        return location, scale


SPREADS = (
    LengthSpread(name="mmlu", mean=72, deviation=80, least=4, most=1024,
                 about="questions of the MMLU test split: mostly one sentence, some with a page of text"),
    LengthSpread(name="samsum", mean=150, deviation=105, least=8, most=1024, about="chats to be summarised"),
    LengthSpread(name="wikitext", mean=115, deviation=120, least=3, most=512,
                 about="lines of Wikitext-2, headings and paragraphs, cut at 512 tokens"),
    LengthSpread(name="alpaca", mean=135, deviation=75, least=40, most=1024,
                 about="instruction, input and answer in one template"),
    LengthSpread(name="rlhf", mean=210, deviation=170, least=15, most=1536,
                 about="dialogues of HH-RLHF"),
)  # fmt: skip
"""The five sources that Prepacking profiles (arXiv 2404.09529; dataset_utils.py of its repository takes 1,000
texts of each and cuts Wikitext at 256 or 512 tokens). Their lengths are published as plots only, so these
numbers are round approximations. MMLU's deviation makes a padded batch of 64 on average 5.9 times the real
tokens; the README of the repository reports 5.2 times the prefill time. Every report prints what was
drawn."""


def packed_rows(lengths: Sequence[int]) -> int:
    """Return how many rows as long as the longest prompt hold them all, packed first-fit decreasing.

    This is the batch that Prepacking computes instead of `len(lengths)` padded rows.
    """
    room: list[int] = []
    longest = max(lengths)
    for length in sorted(lengths, reverse=True):
        for row, left in enumerate(room):
            if length <= left:
                room[row] -= length
                break
        else:
            room.append(longest - length)
    return len(room)


def batch_reduction(lengths: Sequence[int]) -> float:
    """Return how many times fewer rows the packed batch has."""
    return len(lengths) / packed_rows(lengths)


def deviation(lengths: Sequence[int]) -> float:
    """Return how far the longest prompt is above the mean, in tokens: what padding wastes per prompt."""
    return max(lengths) - fmean(lengths)
