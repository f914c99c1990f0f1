"""The small model and the log of tests/model, for benchmarks on real llama.cpp."""

from tests.model.conftest import log_heard, open_tiny, tiny

__all__ = ["log_heard", "open_tiny", "tiny"]
