"""A Backend observed from outside: when the device computes and when the host waits for it."""

from __future__ import annotations

import time
from typing import NamedTuple

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.port import Backend


class TimeSpan(NamedTuple):
    """Seconds on the machine's clock."""

    start_s: float
    end_s: float


class WatchedBackend:
    """Passes everything on and notes the spans of the device and of the host's waiting.

    `overlaps` False waits inside `forward`, so that the engine does its host work after the pass, as on a
    backend that computes in the call. The end of a pass is when the host has seen it: with overlap, on a
    real device, that is an upper bound.
    """

    def __init__(self, inner: Backend, *, overlaps: bool) -> None:
        self._inner = inner
        self.overlaps = overlaps
        self.n_slots, self.n_vocab = inner.n_slots, inner.n_vocab
        self.n_ctx_slot, self.n_cells, self.n_batch = inner.n_ctx_slot, inner.n_cells, inner.n_batch
        self.end_tokens, self.words, self.sampling = inner.end_tokens, inner.words, inner.sampling
        self.adapters, self.use = inner.adapters, inner.use
        self.expect, self.sample = inner.expect, inner.sample
        self.truncate, self.clear = inner.truncate, inner.clear
        self.copy, self.swap = inner.copy, inner.swap
        self.measure_cell, self.cell_kind = inner.measure_cell, inner.cell_kind
        self.save, self.restore = inner.save, inner.restore
        self.measure_state, self.save_state = inner.measure_state, inner.save_state
        self.restore_state = inner.restore_state
        self.keeps_states, self.states_alone = inner.keeps_states, inner.states_alone
        self.grain, self.cuts_tails = inner.grain, inner.cuts_tails
        self.copies, self.shares, self.dense = inner.copies, inner.shares, inner.dense
        self.max_draft, self.n_scored_rows = inner.max_draft, inner.n_scored_rows
        self.has_head, self.guess = inner.has_head, inner.guess
        self.generates, self.embedder = inner.generates, inner.embedder
        self.projector, self.devices = inner.projector, inner.devices
        self.piece, self.n_reused, self.close = inner.piece, inner.n_reused, inner.close
        self.device: list[TimeSpan] = []
        self.waits: list[TimeSpan] = []
        self._handed_s: float | None = None

    def forward(self, batch: TickBatch) -> None:
        """Hand the batch over; wait for the end of its pass unless work `overlaps`."""
        began_s = time.perf_counter()
        self._inner.forward(batch)
        self._handed_s = began_s
        if not self.overlaps:
            self.wait()

    def wait(self) -> None:
        """Wait for the device and note how long."""
        if self._handed_s is None:
            return
        began_s = time.perf_counter()
        self._inner.wait()
        ended_s = time.perf_counter()
        if not self._inner.overlaps:
            began_s = self._handed_s  # the device was the call itself
        self.waits.append(TimeSpan(began_s, ended_s))
        self.device.append(TimeSpan(self._handed_s, ended_s))
        self._handed_s = None


class SimulatedBackend(WatchedBackend):
    """A device that needs `tick_s` for every pass, beside the host; `inner` only keeps the books.

    The device begins when it is handed a batch and works by the clock, whatever the host does meanwhile.
    """

    def __init__(self, inner: Backend, *, overlaps: bool, tick_s: float) -> None:
        super().__init__(inner, overlaps=overlaps)
        self._tick_s = tick_s

    def forward(self, batch: TickBatch) -> None:
        """Start the device; let the inner backend check and remember the batch."""
        # The books are no part of a server's work: the device starts before they are kept.
        self._handed_s = time.perf_counter()
        self._inner.forward(batch)
        if not self.overlaps:
            self.wait()

    def wait(self) -> None:
        """Spin until the device is done, as CUDA's own wait does where there are cores to spare.

        A sleep would wake late and with cold caches, and the host work after it would seem dearer.
        """
        if self._handed_s is None:
            return
        began_s, ends_s = time.perf_counter(), self._handed_s + self._tick_s
        while time.perf_counter() < ends_s:
            pass
        self.waits.append(TimeSpan(began_s, time.perf_counter()))
        self.device.append(TimeSpan(self._handed_s, ends_s))
        self._handed_s = None
