"""Files of the disk tier, and an engine with a disk, for the tests of them."""

from array import array

import numpy as np
from answers import OnEngine

from cobali_ray.backend.scripted import CELL_BYTES, ScriptedBackend
from cobali_ray.core.cache.host_tier import name_behind
from cobali_ray.core.request.request import Request
from cobali_ray.engine.block_files import BlockFiles
from cobali_ray.engine.disk import Disk
from cobali_ray.testing import FakeClock

BLOCK = 8
BLOCK_BYTES = BLOCK * CELL_BYTES
KIND = "0" * 32


def files_in(folder, most_bytes=1 << 20, kind=KIND, **changes):
    return BlockFiles(folder, kind, cell_bytes=CELL_BYTES, block=BLOCK, most_bytes=most_bytes, **changes)


def name(i):
    return bytes([i]) * 20


def cells(i):
    return np.full(BLOCK_BYTES, i, np.uint8)


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Setup(OnEngine):
    """An engine with a disk; `held` keeps jobs until `work`."""

    def __init__(self, folder, *, n_slots=2, held=False, n_host_cells=4000):
        clock, self.jobs = FakeClock(step_s=0.001), []
        self.disk = Disk(lambda: files_in(folder, 1 << 22), clock, block=BLOCK)
        if held:
            self.disk.open()
            self.disk._read = self.jobs.append
        super().__init__(
            ScriptedBackend(n_slots=n_slots, n_ctx_slot=256, n_batch=16), clock=clock,
            how={"disk": self.disk}, token_budget=16, prefill_chunk=8, min_prefix=8,
            n_host_cells=n_host_cells, host_block=BLOCK, cell_bytes=CELL_BYTES,
        )  # fmt: skip

    def submit(self, request_id, prompt, max_tokens=5, salt=""):
        return self.engine.submit(
            Request(
                request_id=request_id, prompt=tuple(prompt.encode()), max_tokens=max_tokens, cache_salt=salt
            )
        )

    def ask(self, *prompts):
        for i, prompt in enumerate(prompts):
            self.submit(str(i), prompt)
        self.ticks = self.run()
        return [self.events.text(str(i)) for i in range(len(prompts))]


TEXT = "The quick brown fox jumps over the lazy dog, and then it jumps back again."
OTHERS = [f"{i} " * 40 for i in range(3)]


def kept(folder):
    """Have an engine answer and leave what it computed on the disk; return what it said."""
    engine = Setup(folder)
    (said,) = engine.ask(TEXT)
    engine.engine.flush()
    return said


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "a-bit-of-the-cells": lambda path: flip(path, 1000),
    "the-last-bit": lambda path: flip(path, -1),
    "the-magic": lambda path: flip(path, 0),
    "the-name": lambda path: flip(path, 10),
    "the-checksum": lambda path: flip(path, 38),
    "cut-short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "foreign": lambda path: path.write_bytes(b"something else" * 1000),
}


def names_of(tokens, n, block=BLOCK):
    found, before = [], b""
    for start in range(0, n, block):
        before = name_behind(before, array("i", tokens[start : start + block]).tobytes())
        found.append(before)
    return found
