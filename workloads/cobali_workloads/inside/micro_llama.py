"""Single calls into llama.cpp, timed through the bindings that the backend uses."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from cobali_ray.backend import library
from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.port import Backend
from cobali_ray.core.plan.plan import Span
from cobali_workloads.inside.handles import LlamaHandles, llama_handles
from cobali_workloads.inside.micro import Step
from cobali_workloads.inside.runs import empty

N_MOVED, BLOCK = 1000, 64
"""Tokens of a sequence that is moved, and of the blocks in which it is kept."""
DECODE_MS = {1: 6.8, 8: 9.1, 16: 9.1, 32: 12, 64: 18, 128: 30, 256: 55}
"""T152, one prompt of so many tokens, milliseconds, on the reference machine."""
TEXT = (
    "The harbour had been quiet since the storm, and the two boats that were left lay side by side as if "
    "they had nothing more to say. On Tuesday the old woman came down with a basket, counted the ropes, and "
    "wrote seven numbers on the wall with a piece of chalk. "
) * 4


def call_steps(backend: Backend) -> Iterator[Step]:
    """Yield calls that compute nothing; nothing where the backend is not llama.cpp's."""
    handles = llama_handles(backend)
    if handles is None:
        return
    lc, memory = handles.lc, handles.memory
    yield Step("ctypes call, trivial", lc.llama_supports_mmap, 1, "0.26")
    yield Step("seq_rm on an empty memory", lambda: lc.llama_memory_seq_rm(memory, 0, -1, -1), 1, "1.2")
    buffer = ctypes.create_string_buffer(256)
    token = min(100, backend.n_vocab - 1)
    yield Step(
        "token_to_piece",
        lambda: lc.llama_token_to_piece(handles.vocab, token, buffer, 256, 0, False),
        1,
        "1.44",
    )
    yield Step("piece from the table", lambda: backend.piece(token), 1, "0.03, a dict")
    view = partial(_view, handles, backend)
    n_tokens = len(backend.words.tokenize(TEXT))
    yield Step(
        f"tokenise {n_tokens} tokens", lambda: backend.words.tokenize(TEXT), 1, "640 (T4), 7500 (T152)"
    )
    yield Step("logits view, first after a pass", view, 1, "4 to 6", partial(_decode_one, backend))
    yield Step("logits view, once more", view)


def _decode_one(backend: Backend) -> None:
    empty(backend)
    batch = TickBatch(backend.n_batch)
    batch.fill((Span(0, 0, 2, sample=True),), [array("i", [1, 2])])
    backend.forward(batch)


def _view(handles: LlamaHandles, backend: Backend) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.ctypeslib.as_array(handles.lc.llama_get_logits(handles.context), (1, backend.n_vocab))


def move_steps(backend: Backend) -> Iterator[Step]:
    """Yield what preempting and resuming a sequence moves, and what a busy slot's prefix costs to copy."""
    if not backend.measure_cell():
        return
    n = min(N_MOVED, backend.n_ctx_slot)
    spans = [(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK)]
    batch, tokens = TickBatch(backend.n_batch), array("i", [1 + i % 50 for i in range(n)])
    empty(backend)
    for start in range(0, n, backend.n_batch):
        length = min(backend.n_batch, n - start)
        batch.fill((Span(0, start, length, sample=False),), [tokens])
        backend.forward(batch)
    backend.wait()
    cells = backend.save(0, spans)

    def hold() -> None:
        empty(backend)
        backend.restore(0, cells, n)

    yield Step(f"save {n} tokens to host memory", lambda: backend.save(0, spans), 1, "-", hold)
    yield Step(
        f"restore {n} tokens from it", lambda: backend.restore(0, cells, n), 1, "-", partial(empty, backend)
    )
    yield Step(f"copy {n} tokens to another slot", lambda: backend.copy(0, 1, n), 1, "-", hold)


def decode_steps(backend: Backend, sizes: tuple[int, ...]) -> Iterator[Step]:
    """Yield forward passes: one prompt of so many tokens, and so many slots of one token each."""
    batch = TickBatch(backend.n_batch)
    for n in sizes:
        tokens = [array("i", [1 + i % 50 for i in range(n)])]
        reference = f"{1000 * DECODE_MS[n]:.0f} (T152)" if n in DECODE_MS else "-"
        yield _pass(
            backend,
            batch,
            f"decode {n} tokens of one prompt",
            (Span(0, 0, n, sample=True),),
            tokens,
            reference,
        )
    for n in (n for n in sizes if n <= backend.n_slots):
        spans = tuple(Span(slot, 0, 1, sample=True) for slot in range(n))
        yield _pass(backend, batch, f"decode 1 token of {n} slots", spans, [array("i", [1])] * n, "-")


def _pass(
    backend: Backend,
    batch: TickBatch,
    name: str,
    spans: tuple[Span, ...],
    tokens: list[array[int]],
    reference: str,
) -> Step:
    def call() -> None:
        backend.forward(batch)
        backend.wait()

    def reset() -> None:
        empty(backend)
        batch.fill(spans, tokens)

    return Step(name, call, 1, reference, reset)


@contextmanager
def floor_step(backend: Backend) -> Iterator[Step | None]:
    """Give llama_decode on an empty batch, which it refuses (-1) with one log line to an empty callback."""
    handles = llama_handles(backend)
    if handles is None:
        yield None
        return
    lc = handles.lc
    empty = lc.llama_batch_init(1, 0, 1)
    silence = lc.llama_log_callback(lambda _level, _text, _data: None)
    lc.llama_log_set(silence, ctypes.c_void_p(0))
    try:
        yield Step(
            "llama_decode floor (empty batch)", lambda: lc.llama_decode(handles.context, empty), 1, "1.8"
        )
    finally:
        route = library._callback()  # noqa: SLF001 - what load() had set, put back
        lc.llama_log_set(route, ctypes.c_void_p(0))
        lc.llama_batch_free(empty)
