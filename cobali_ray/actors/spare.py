"""A spare process: Python with everything imported, which a dead engine's successor takes over.

Ray gives an actor a worker process that never did anything, if there is one. With the flags of `cobali serve`
it starts one ahead for every task that waits for a worker, so an empty task, whose own worker ends with it,
leaves one behind.
"""

from __future__ import annotations

import os
import threading
from typing import Final

import ray

DELAY_S: Final = 5.0
"""How long an engine serves what waited for it before a spare is started, which costs seconds of a core."""


def start_spare() -> threading.Timer | None:
    """Have a spare started in a moment; None where Ray does not start workers ahead, and nothing is done."""
    flag = "RAY_enable_worker_prestart"
    if os.environ.get(flag) != "1" or not ray.is_initialized():
        return None
    timer = threading.Timer(DELAY_S, ray.remote(num_cpus=0, max_calls=1)(_nothing).remote)
    timer.daemon = True
    timer.start()
    return timer


def _nothing() -> None:
    """Be a task."""
