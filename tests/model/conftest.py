"""What the tests on real llama.cpp share: the model, a log that is heard, and how a backend is opened."""

import ctypes
import functools

import pytest
from archs import models  # noqa: F401 - a fixture

from cobali_ray.backend import library, threads, vocab
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.models.registry import resolve

# Before llama.cpp loads: spinning threads on a machine that others use make these tests ten times slower.
threads.apply_wait("passive", n_threads=2)

# Hundreds of backends are opened on a few templates, and each tries its own out for 25 ms.
vocab.ChatTemplate = functools.cache(vocab.ChatTemplate)


@pytest.fixture(scope="session")
def tiny():
    """The smallest built-in model, in the user's own cache."""
    return resolve("builtin:synthetic-tiny")


@pytest.fixture
def log_heard():
    """Route llama.cpp's log to us, whatever other tests did with it."""
    library.load().llama_log_set(library._callback(), ctypes.c_void_p(0))


@pytest.fixture
def open_tiny(tiny):
    """Open backends on the model; they are closed when the test ends."""
    opened = []

    def open_one(*, unified=False, **changes):
        config = {"n_slots": 4, "n_ctx": 512, "n_batch": 256, "n_threads": 1, "flash_attn": "off"}
        config["kv"] = "unified" if unified else "split"
        opened.append(LlamaBackend(LlamaConfig(**{"path": tiny} | config | changes)))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()
