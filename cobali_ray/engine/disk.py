"""Disk: reads and writes the blocks of the disk tier, beside the tick thread.

Two threads, so that no read waits for files that are written. Their events are fetched by the tick thread
(`events`), which they wake. Before `start`, or without it, everything is done at once: offline runs and tests
need no threads.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import structlog

from cobali_ray.backend.port import Cells
from cobali_ray.backend.threads import give_way
from cobali_ray.core import messages
from cobali_ray.core.clock import Clock
from cobali_ray.engine.block_files import BlockFiles, DamagedError

_log = structlog.get_logger(__name__)

MAX_BEHIND = 256 << 20
"""Bytes that may wait to be written; what comes then is not kept."""
PART_S = 4.0
"""How long the engine's end may wait until all is written."""
_TELL_S = 0.05
"""How often blocks that were read are reported."""
_PAUSE_S = 60.0
"""How long nothing is opened or written after a failure."""
Job: TypeAlias = Callable[[], None]


class DiskEvent(NamedTuple):
    """An event for the scheduler, and the cells that belong to it."""

    event: messages.Event
    cells: Mapping[bytes, Cells] = {}


class Disk:
    """One engine's files, by blocks of `block` tokens. `find` opens them: slow, as it may hash the model."""

    def __init__(self, find: Callable[[], BlockFiles], clock: Clock, *, block: int = 64) -> None:
        self._find, self._clock, self._block = find, clock, block
        self._files: BlockFiles | None = None
        self._events: queue.SimpleQueue[DiskEvent] = queue.SimpleQueue()
        self._wake: Job = lambda: None
        self._read: Callable[[Job], None] = lambda job: job()
        self._write: Callable[[Job], None] = self._read
        self._writer: threading.Thread | None = None
        self._opened = False
        self._n_put = self._n_done = 0
        """Bytes given to the writer, by the tick thread, and those it is done with."""
        self._done = threading.Event()
        self._part_by_s: float | None = None
        """Until when an ending engine waits; None while it does not end."""
        self._paused_until_s = 0.0
        self.trouble = ""
        """Why the last file could not be written, or the folder opened; empty where the last one could."""
        self._warned: set[str] = set()

    # -- called by the tick thread ----------------------------------------------------------------------

    def start(self, wake: Job) -> None:
        """Work in threads from now on; `wake` is called when there are events."""
        self._wake = wake
        self._read, _ = _line("disk-read")
        self._write, self._writer = _line("disk-write", begin=give_way)
        self.open()

    def open(self) -> None:
        """List the files, once, or again some time after that failed."""
        if not self._opened and not self.paused_s:
            self._opened = True
            self._write(self._open)

    @property
    def paused_s(self) -> float:
        """For how long nothing is written, after a failure."""
        return max(self._paused_until_s - self._clock.now(), 0.0) if self.trouble else 0.0

    def events(self) -> Iterator[DiskEvent]:
        """Yield the events since the last call."""
        with suppress(queue.Empty):
            while True:
                yield self._events.get_nowait()

    def load(self, load: messages.LoadBlocks) -> None:
        self._read(lambda: self._load(load))

    def store(self, blocks: Sequence[tuple[bytes, Cells | None]], depth: int = 0) -> None:
        """Write blocks of a sequence that follow each other, where they are not there yet.

        Those without cells should be there. `depth` is how many lie before the first.
        """
        n_bytes = sum([memoryview(cells).nbytes for _, cells in blocks if cells is not None])
        while self._part_by_s is not None and self._behind(n_bytes) and self._clock.now() < self._part_by_s:
            self._done.wait(_TELL_S)
            self._done.clear()
        if not self._behind(n_bytes):
            self._n_put += n_bytes
            self._write(lambda: self._store(blocks, depth, n_bytes))
        else:
            self._tell_written(0, blocks, 0)

    def flush(self) -> None:
        """Begin to end: from now on `store` waits for the writer before it drops blocks."""
        self._part_by_s = self._clock.now() + PART_S

    def close(self) -> None:
        """After `flush`, write what is queued as far as there is time; nothing is read or written later."""
        if self._writer is not None and self._part_by_s is not None:
            done = threading.Event()
            self._write(done.set)
            done.wait(max(self._part_by_s - self._clock.now(), 0.0))
        self._files = None

    def _behind(self, n_bytes: int) -> bool:
        """Return whether too many bytes wait for the writer; a single sequence always fits."""
        waiting = self._n_put - self._n_done
        return waiting > 0 and waiting + n_bytes > MAX_BEHIND

    # -- done in threads --------------------------------------------------------------------------------

    def _tell(self, event: messages.Event, cells: Mapping[bytes, Cells] | None = None) -> None:
        self._events.put(DiskEvent(event, cells or {}))
        self._wake()

    def _open(self) -> None:
        try:
            files = self._find()
            names = files.open()
        except OSError as error:
            self._pause("disk_cache_not_opened", error)
            self._opened = False
            return
        self._files = files
        self._go_on()
        _log.info("disk_cache", n_blocks=len(names), mib=files.n_bytes >> 20)
        self._tell(messages.BlocksListed(names, files.n_bytes))

    def _load(self, load: messages.LoadBlocks) -> None:
        names: list[bytes] = []
        cells: dict[bytes, Cells] = {}
        missing: list[bytes] = []
        start, reported_s, n_bytes = load.start, self._clock.now(), 0
        for i, name in enumerate(load.names):
            if (block := self._read_block(load.names[i:], load.start // self._block + i)) is None:
                missing = [*load.names[i:]]
                break
            names.append(name)
            cells[name] = block
            n_bytes += len(block)
            if (took_s := self._clock.now() - reported_s) > _TELL_S:
                part = messages.BlocksLoaded(
                    load.load_id, start, names, done=False, n_bytes=n_bytes, seconds=took_s
                )
                self._tell(part, cells)
                start, reported_s, n_bytes = start + len(names) * self._block, self._clock.now(), 0
                names, cells = [], {}
        took_s = self._clock.now() - reported_s
        self._tell(
            messages.BlocksLoaded(load.load_id, start, names, missing, n_bytes=n_bytes, seconds=took_s), cells
        )

    def _read_block(self, names: Sequence[bytes], depth: int) -> Cells | None:
        """Return the first of these blocks; None if it cannot be read, which makes the others useless."""
        files = self._files
        if files is None:
            return None
        try:
            return files.read(names[0], depth)
        except FileNotFoundError:  # another engine made room
            return None
        except DamagedError as error:
            self._warn("disk_cache_damaged", error)
            with suppress(OSError):
                files.forget(names)  # or they would never be written again
        except (OSError, MemoryError) as error:
            self._warn("disk_cache_not_read", error)
        return None

    def _store(self, blocks: Sequence[tuple[bytes, Cells | None]], depth: int, n_bytes: int) -> None:
        n_there = n_whole = 0
        removed: list[bytes] = []
        try:
            for at, (name, cells) in enumerate(blocks, depth):
                is_new = self._write_block(name, cells, at)
                if is_new is None:
                    removed = [] if cells is not None or self.paused_s else [name]
                    break
                n_there += 1
                if is_new:
                    self._go_on()
                    if cells is not None and self._files is not None:
                        n_whole += self._files.is_whole(name, len(cells))
        except (OSError, DamagedError) as error:
            self._pause("disk_cache_not_written", error)
        finally:  # whatever happened, nobody waits for these blocks any longer
            self._n_done += n_bytes
            self._done.set()
            self._tell_written(n_there, blocks, n_whole, removed)

    def _tell_written(
        self,
        n_there: int,
        blocks: Sequence[tuple[bytes, Cells | None]],
        n_whole: int,
        removed: Sequence[bytes] = (),
    ) -> None:
        names = [name for name, _ in blocks]
        if self._files is not None and names:
            n_bytes = self._files.n_bytes
            self._tell(messages.BlocksWritten(names[:n_there], n_whole, n_bytes, names[n_there:], removed))

    def _write_block(self, name: bytes, cells: Cells | None, depth: int) -> bool | None:
        """Write a block unless it is there; return whether it was written; None if it cannot be now."""
        files = self._files
        if files is None or self.paused_s:
            return None
        try:
            return self._write_into(files, name, cells, depth)
        except FileNotFoundError:  # somebody has removed the folder
            self._tell(messages.BlocksListed(files.open(), files.n_bytes))
            why = "its folder was removed; what was in it is computed again"
            _log.warning("disk_cache_made_again", setting="disk_cache_dir", detail=why)
            return self._write_into(files, name, cells, depth)

    def _write_into(self, files: BlockFiles, name: bytes, cells: Cells | None, depth: int) -> bool | None:
        if files.use(name, depth):
            return False
        if cells is None:
            return None
        if files.full(len(cells)):
            names = files.tidy(len(cells))
            self._tell(messages.BlocksListed(names, files.n_bytes))
        return files.write(name, cells, depth) or None

    def _pause(self, event: str, error: OSError | DamagedError) -> None:
        """Write nothing for a while; logged once for each cause, until it works again."""
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        repeated, self.trouble = why == self.trouble, why
        self._paused_until_s = self._clock.now() + _PAUSE_S
        if not repeated:
            until = f"nothing is written there for {_PAUSE_S:.0f} s, then it is tried again"
            detail = f"{until}; the trouble in /v1/cache says why"
            _log.warning(event, setting="disk_cache_dir", error=str(error), detail=detail)

    def _go_on(self) -> None:
        if self.trouble:
            self.trouble = ""
            _log.info("disk_cache_goes_on", setting="disk_cache_dir")

    def _warn(self, event: str, error: Exception) -> None:
        """Log each kind of trouble once: requests continue without the disk."""
        if event not in self._warned:
            self._warned.add(event)
            why = "this and more of the kind is left out; said once"
            _log.warning(event, setting="disk_cache_dir", error=str(error), detail=why)


def _line(name: str, begin: Job | None = None) -> tuple[Callable[[Job], None], threading.Thread]:
    """Return a queue for jobs and the thread that does them one after the other.

    It ends with the process: a disk that hangs must not hold that up.
    """
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()

    def run() -> None:
        if begin is not None:
            begin()
        while True:
            try:
                jobs.get()()
            except Exception:  # the thread has other jobs to do
                _log.exception("disk_cache_failed")

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return jobs.put, thread
