"""Models with random weights in real shapes, for tests and benchmarks: `builtin:synthetic-*`.

The server finds them here by `MODELS` and `make_adapter`, if the laboratory is installed.
"""

from cobali_workloads.models.adapter import make_adapter
from cobali_workloads.models.encoder import SYNTHETIC_ENCODERS
from cobali_workloads.models.headed import SYNTHETIC_HEADS
from cobali_workloads.models.synthetic import SYNTHETIC_MODELS

MODELS = (*SYNTHETIC_MODELS, *SYNTHETIC_HEADS, *SYNTHETIC_ENCODERS)

__all__ = ["MODELS", "make_adapter"]
