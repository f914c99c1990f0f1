"""Random tensors straight in the form ggml stores them in, fast and the same for the same seed.

Everything comes from raw random bytes: their stream is fixed for PCG64, which numpy does not promise of its
distributions, and quantised blocks need no quantising.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from cobali_workloads.models.shapes import TensorPlan

# Blocks hold signed codes around zero. The lowest code has no counterpart, and a mean below zero would, layer
# by layer, drown everything in one direction: it becomes code 0.
_NIBBLES = np.array([8, *range(1, 16)], np.uint8)
_BYTE_OF_NIBBLES = np.array([_NIBBLES[b >> 4] << 4 | _NIBBLES[b & 15] for b in range(256)], np.uint8)
_NIBBLE_STD = float(np.std(_NIBBLES.astype(np.float64) - 8))
_BYTE_STD = math.sqrt(sum(2 * code * code for code in range(1, 128)) / 256)
_UNIFORM16_STD = 65536 / math.sqrt(12)


def draw(plan: TensorPlan, seed: int) -> NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.float16]:
    """Draw one tensor; its name is part of the seed, so the order of drawing does not matter.

    Returns floats of the plan's shape for F32 and F16, for quantised kinds bytes of shape (rows, row bytes).
    """
    rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(plan.name.encode())]))
    return _DRAW[plan.kind](plan, rng)


def _uniform(plan: TensorPlan, rng: np.random.Generator) -> NDArray[np.float32]:
    codes = np.frombuffer(rng.bytes(2 * math.prod(plan.shape)), "<u2").astype(np.float32)
    codes -= 32767.5
    codes *= plan.std / _UNIFORM16_STD
    codes += plan.mean
    return codes.reshape(plan.shape)


def _half(plan: TensorPlan, rng: np.random.Generator) -> NDArray[np.float16]:
    return _uniform(plan, rng).astype(np.float16)


def _q8_0(plan: TensorPlan, rng: np.random.Generator) -> NDArray[np.uint8]:
    codes = np.frombuffer(rng.bytes(math.prod(plan.shape)), np.uint8).copy()
    codes[codes == 128] = 0
    return _blocks(codes.reshape(-1, 32), plan, plan.std / _BYTE_STD)


def _q4_0(plan: TensorPlan, rng: np.random.Generator) -> NDArray[np.uint8]:
    pairs = np.frombuffer(rng.bytes(math.prod(plan.shape) // 2), np.uint8)
    return _blocks(_BYTE_OF_NIBBLES[pairs].reshape(-1, 16), plan, plan.std / _NIBBLE_STD)


def _blocks(codes: NDArray[np.uint8], plan: TensorPlan, scale: float) -> NDArray[np.uint8]:
    """Put the block's scale, a little-endian half, before its codes."""
    out = np.empty((len(codes), 2 + codes.shape[1]), np.uint8)
    out[:, :2] = np.frombuffer(np.float16(scale).astype("<f2").tobytes(), np.uint8)
    out[:, 2:] = codes
    return out.reshape(-1, plan.row_bytes)


_DRAW: dict[
    str,
    Callable[
        [TensorPlan, np.random.Generator], NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.float16]
    ],
] = {
    "F32": _uniform,
    "F16": _half,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
}
