"""What a training run is: every number that decides the result, in one value."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from training.model import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Same recipe, same corpus, same order of batches."""

    shape: Shape = field(default_factory=Shape)
    n_examples: int = 560_000
    seed: int = 20261121
    more: tuple[str, ...] = ()
    """Sources that are asked more often, as after a change of a few entries."""
    share_long: float = 0.002
    tokens_per_pass: int = 4096
    passes_per_step: int = 3
    n_steps: int | None = None
    """Fewer steps than the corpus has; None goes through it once."""
    rate: float = 4e-3
    embedding_rate: float = 4e-3
    weight_decay: float = 0.05
    n_warmup: int = 60
    weights: str = ""
    """Digest of the checkpoint whose weights the run begins with; empty: random ones."""
    share_cooldown: float = 0.6
    """The learning rate falls to zero over this last part of the run."""

    def digest(self) -> str:
        """Return what tells one recipe from another, as hex."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)

    def scale(self, step: int, n_steps: int) -> float:
        """Return what the learning rate is multiplied by: up, level, then down in a straight line."""
        warm = min(1.0, (step + 1) / self.n_warmup)
        left = (n_steps - step) / (n_steps * self.share_cooldown)
        return min(warm, left, 1.0)


@dataclass(frozen=True, slots=True)
class Workshop:
    """The folder of one run and the names of what lies in it."""

    folder: Path

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer.json"

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus.npz"

    @property
    def sample(self) -> Path:
        return self.folder / "corpus-sample.txt"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    @property
    def curve(self) -> Path:
        return self.folder / "loss.png"

    @property
    def losses(self) -> Path:
        return self.folder / "losses.json"

    @property
    def report(self) -> Path:
        return self.folder / "report.json"

    @property
    def table(self) -> Path:
        return self.folder / "evaluation.md"

    def gguf(self, quant: str) -> Path:
        """Return where the model lies in this quant."""
        return self.folder / f"tiny-{quant.lower().replace('_', '-')}.gguf"
