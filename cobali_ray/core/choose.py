"""Which of the engines that serve a model gets a request. Pure: what is known of them is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from cobali_ray.core.request import Request


class EngineView(NamedTuple):
    """What an ingress knows of an engine when it chooses: what it sent there itself, up to this moment."""

    engine_id: str
    n_open_tokens: int
    """Of its open requests: prompts, and answers as long as they may get."""
    turn: int
    """Grows with every request sent there; the engine with the lowest was chosen longest ago."""


Choose: TypeAlias = Callable[[Request, Sequence[EngineView]], EngineView]
"""Takes one of the engines, of which there is at least one."""


def least_open(request: Request, engines: Sequence[EngineView]) -> EngineView:
    """Take the engine with the fewest tokens open; of those alike, the one chosen longest ago."""
    del request  # it is as long wherever it goes
    return min(engines, key=lambda engine: (engine.n_open_tokens, engine.turn))
