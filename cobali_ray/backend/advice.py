"""What a model's file advises about drawing its tokens (`general.sampling.*`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import structlog

from cobali_ray.core.request.request import NEUTRAL, SamplingParams, tuned
from cobali_ray.errors import InvalidParameterError

_log = structlog.get_logger(__name__)

FOLLOWED: Mapping[str, str] = MappingProxyType({
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
})  # fmt: skip
"""A key's last word, and the parameter that it is a default of."""
NOT_FOLLOWED: Mapping[str, float] = MappingProxyType({"xtc_probability": 0, "mirostat": 0})
"""Keys that are not followed, and would change answers unless they have this value. Beside FOLLOWED there are
also an order of samplers and a window of the penalty: where ours differ, parameters say so."""


def advised(metadata: Callable[[str], str]) -> SamplingParams:
    """Return the defaults that a file advises; `metadata` gives the text of a key, or none.

    Values out of range are left out, one by one, with a warning in the log.
    """
    params = NEUTRAL
    for word, name in FOLLOWED.items():
        if (value := _number(metadata, word)) is not None:
            try:
                params = tuned(params, {name: value})
            except InvalidParameterError as error:
                _log.warning("model_advice_ignored", key=f"general.sampling.{word}", detail=str(error))
    for word, neutral in NOT_FOLLOWED.items():
        if _number(metadata, word) not in {None, neutral}:
            _log.warning("model_advice_ignored", key=f"general.sampling.{word}", detail="not done here")
    return params


def _number(metadata: Callable[[str], str], word: str) -> float | None:
    try:
        return float(metadata(f"general.sampling.{word}") or "")
    except ValueError:
        return None
