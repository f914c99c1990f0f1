"""One engine in a process of its own that ticks when told: `python -m cobali_ray.bench.threads_child`.

How OpenMP's threads wait is fixed when the library loads, so every policy needs its own process. It
reads JSON lines on standard input, `{"n_ticks": n, "seconds": x}`, and answers each with one line of
tick times. Logs go to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from itertools import count

import structlog

from cobali_ray.core.events import Event
from cobali_ray.core.request import Request, SamplingParams
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.opening import MonotonicClock, model_path, open_backend
from cobali_ray.settings import EngineSettings, read_settings

N_PROMPT = 8
MIN_TICKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """Decode ticks of one run, all slots generating. Times in seconds."""

    ticks_s: list[float]
    cpu_s: float
    """Processor time of this process in the same span."""


def _discard(_: list[tuple[str, Event]]) -> None:
    """Take events nobody wants."""


class Treadmill:
    """An engine that generates on every slot for as long as it is told."""

    def __init__(self, settings: EngineSettings) -> None:
        self._clock = MonotonicClock()
        self._backend, self._limits = open_backend(settings, model_path(settings))
        self._engine = Engine(self._backend, self._limits, self._clock, _discard)
        self._names = (str(i) for i in count())

    def run(self, n_ticks: int, seconds: float) -> Ticks:
        """Generate for `n_ticks` or until `seconds` are over, at least two ticks; prefill is not counted."""
        prompt = tuple(range(5, 5 + N_PROMPT))
        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        names = [next(self._names) for _ in range(self._limits.n_slots)]
        for name in names:
            self._engine.submit(
                Request(request_id=name, prompt=prompt, max_tokens=n_ticks + MIN_TICKS + 2, sampling=sampling)
            )
        while self._engine.n_queued or not self._engine.n_running:
            self._engine.tick()
        self._engine.tick()
        ticks: list[float] = []
        used = os.times()
        began = last = self._clock.now()
        while len(ticks) < n_ticks and (last - began < seconds or len(ticks) < MIN_TICKS):
            self._engine.tick()
            now = self._clock.now()
            ticks.append(now - last)
            last = now
        after = os.times()
        for name in names:
            self._engine.cancel(name)
        self._engine.tick()
        return Ticks(ticks_s=ticks, cpu_s=after.user + after.system - used.user - used.system)


def main() -> None:
    """Open the engine that the first argument's settings name and obey standard input."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    treadmill = Treadmill(read_settings(json.loads(sys.argv[1])))
    sys.stdout.write('{"ready": true}\n')
    sys.stdout.flush()
    for line in sys.stdin:
        order = json.loads(line)
        ticks = treadmill.run(int(order["n_ticks"]), float(order["seconds"]))
        sys.stdout.write(json.dumps({"ticks_s": ticks.ticks_s, "cpu_s": ticks.cpu_s}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
