"""TurnThreads: threads that do one job of each tenant at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cobali_ray.backend.threads import give_way


class TurnThreads:
    """Does work in low-priority threads. What a tenant has submitted is done in its order, one after another.

    So however much that is, others wait for one piece of it at most, and only if all threads are busy.
    """

    def __init__(self, n_threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(n_threads, thread_name_prefix=name, initializer=give_way)
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        """By tenant; a tenant for whom something is done has an entry, be it empty."""

    def submit(self, tenant: str, work: Callable[[], None]) -> None:
        """Queue a job, which must not raise. Raises RuntimeError after `shutdown`."""
        with self._lock:
            if tenant in self._waiting:
                self._waiting[tenant].append(work)
                return
            self._waiting[tenant] = deque()
        self._pool.submit(self._do, tenant, work)

    def _do(self, tenant: str, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._lock:
                following = self._waiting[tenant].popleft() if self._waiting[tenant] else None
                if following is None:
                    del self._waiting[tenant]
        if following is not None:
            self._pool.submit(self._do, tenant, following)  # behind the other tenants

    def shutdown(self) -> None:
        """Wait for running jobs; those that have not begun are dropped."""
        with self._lock:
            for waiting in self._waiting.values():
                waiting.clear()
        self._pool.shutdown(cancel_futures=True)
