"""Bucket bounds: vLLM's, so that its series are exact sub-samplings, and finer ones where our values are.

vLLM's bounds are those of its `v1/metrics/loggers.py` (0.33). Seconds unless named otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable

VLLM_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
VLLM_ITL = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
VLLM_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
VLLM_TICK_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)


def merged(*groups: Iterable[float]) -> tuple[float, ...]:
    """Return all bounds, rising, each once."""
    return tuple(sorted({bound for group in groups for bound in group}))


TTFT = merged(
    VLLM_TTFT,
    (0.0005, 0.002, 0.003, 0.0075, 0.015, 0.03, 0.05, 0.15, 0.2, 0.3, 0.4, 1.5, 2.0, 3.0, 15.0, 30.0, 60.0),
)
ITL = merged(
    VLLM_ITL,
    (0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008),
    (0.0125, 0.015, 0.0175, 0.02, 0.03, 0.04, 0.06),
)
REQUEST = merged(
    VLLM_REQUEST,
    (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 3.0, 4.0, 7.5),
)
TICK = (
    *(0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008),
    *(0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0),
)
RATIO = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
REQUEST_TOKENS = (*(float(step * 10**power) for power in range(6) for step in (1, 2, 5)), 1e6)
"""Prompt or output tokens of a request: the same for every engine, so that sums over engines add up."""
SEQUENCES = (1.0, *(float(2**power * half / 2) for power in range(1, 8) for half in (2, 3)), 256.0)
"""Two per octave up to the most slots an engine may have; the same for every engine as well."""
TICK_TOKENS = merged(VLLM_TICK_TOKENS, (0.0, 2.0, 4.0, 24.0, 48.0, 96.0, 192.0, 384.0, 768.0))


def from_below(finer: tuple[float, ...], theirs: tuple[float, ...]) -> tuple[float, ...]:
    """Return `theirs` and those of `finer` that lie below: their floor hides a small server."""
    return merged(theirs, (bound for bound in finer if bound < theirs[0]))
