"""The output of `cobali serve` and all its processes: lines for a terminal, else JSON objects.

Engines and ingresses write JSON lines into Ray's files, and Ray hands them on to this process
(`read_workers` in `ray_private.py`). Whatever else Ray, Serve and C++ libraries print is kept away from both
(`RedirectedOutput`).

On a terminal, `Screen` shows them by `telemetry/lines.py` and `banner.py`, which are pure; elsewhere
`JsonLines` passes them on unchanged.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from cobali_ray.actors.banner import banner
from cobali_ray.errors import CobaliError, StartError
from cobali_ray.models.builtin import Progress as OnProgress
from cobali_ray.telemetry.lines import more_line, readable

MAX_LINES: Final = 20
"""Lines that a terminal shows in a second; of the others it says how many they were."""
_AT_CTRL_C: Final = frozenset({"draining", "drain_skipped", "broken_off"})
_CRY: Final = re.compile(
    r"ASSERT|terminate called|what\(\):|[Oo]ut of memory|CUDA error|SIG(?:ILL|SEGV|BUS|FPE) received"
)
REPEAT_S: Final = 2.0
"""How long the same line is not shown again: several ingresses notice the same thing."""


class EventOutput(Protocol):
    """Where events go."""

    def say(self, event: str, *, level: str = "info", **facts: Any) -> None:
        """Write an event of this process."""

    def take(self, line: str, source: str) -> None:
        """Write a line of another process, `source`."""

    def working(self, what: str) -> contextlib.AbstractContextManager[OnProgress]:
        """Show that `what` goes on while inside; call what is yielded with each part's progress, 0 to 1."""

    def close(self) -> None:
        """Write what is still held back, and nothing afterwards."""


def open_output(stream: TextIO, *, verbose: Callable[[], bool]) -> EventOutput:
    """Return the output for a stream; with `verbose` it also has lines that are no events."""
    return Screen(stream, verbose=verbose) if stream.isatty() else JsonLines(stream, verbose=verbose)


def event_of(name: str, level: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return an event of this process in the shape that those of others have."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {"timestamp": now, "level": level, "event": name} | facts


def parsed(line: str) -> dict[str, Any] | None:
    """Return the event that a line is; None if it is none."""
    if not line.startswith("{"):
        return None
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


class JsonLines:
    """One JSON object a line, for files, pipes and journals."""

    def __init__(self, stream: TextIO, *, verbose: Callable[[], bool] = bool) -> None:
        self._stream, self._verbose = stream, verbose
        self._lock = threading.Lock()

    def say(self, event: str, *, level: str = "info", **facts: Any) -> None:
        self._write(orjson.dumps(event_of(event, level, facts), default=str).decode())

    def take(self, line: str, source: str) -> None:
        if parsed(line) is not None:
            self._write(line)
        elif self._verbose() and line.strip():
            self.say("output", level="debug", source=source, line=line)

    @contextlib.contextmanager
    def working(self, what: str) -> Iterator[OnProgress]:
        begun = set[str]()

        def on_progress(part: str, _done: float) -> None:
            if part not in begun:
                begun.add(part)
                self.say("start_part", step=what, part=part)

        yield on_progress

    def close(self) -> None:
        """Nothing is held back."""

    def _write(self, line: str) -> None:
        # A reader that is gone, or a full disk, does not end the server.
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()


class Screen:
    """Lines for a person: at most some a second, never the same twice at once."""

    def __init__(
        self,
        stream: TextIO,
        *,
        verbose: Callable[[], bool] = bool,
        now: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], None] | None = None,
    ) -> None:
        """`later` calls a function after some seconds; by default a thread's timer."""
        self._console = _Terminal(file=stream, highlight=False, markup=False, emoji=False)
        self._verbose, self._now, self._later = verbose, now, later or _later
        self._lock = threading.RLock()
        self._ready = self._stopping = self._closed = False
        self._second_s, self._n_lines = now(), 0
        self._more, self._n_more = Counter[Any](), 0
        self._recent: dict[str, float] = {}
        self._turning: Progress | None = None

    def say(self, event: str, *, level: str = "info", **facts: Any) -> None:
        with self._lock:
            if event in _AT_CTRL_C:
                self._stopping = True
                with contextlib.suppress(OSError, ValueError):
                    self._console.file.write("\r")  # over the ^C of the terminal
            if event == "ready":
                self._ready = True
                self._print(banner(facts, self._console.width, command=own_command()))
            else:
                self._print(readable(event_of(event, level, facts), self._console.width))

    def take(self, line: str, source: str) -> None:
        """Show an event of another process.

        Of a start only problems, for its steps are shown anyway; of the end only requests, for the server's
        parts are meant to go away.
        """
        event = parsed(line)
        with self._lock:
            if self._stopping and (event is None or event["event"] != "http_request"):
                return
            if event is None:
                if self._verbose() and line.strip():
                    self._print(f"{source}: {line}")
            elif self._ready or event.get("level") != "info" or event.get("n_prompt") is not None:
                self._show(event)

    @contextlib.contextmanager
    def working(self, what: str) -> Iterator[OnProgress]:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        bars = Progress(
            *columns,
            console=self._console,
            transient=True,
            redirect_stdout=False,  # what libraries print goes where `RedirectedOutput` has it go
            redirect_stderr=False,
        )
        bars.add_task(what, total=None)
        self._turning = bars
        tasks: dict[str, TaskID] = {}

        def on_progress(part: str, done: float) -> None:
            if not tasks:
                bars.columns = (*columns, BarColumn())
            if part not in tasks:
                tasks[part] = bars.add_task(part, total=1.0)
            bars.update(tasks[part], completed=done)

        with bars:
            yield on_progress

    def close(self) -> None:
        """Say what was left out, and end the wheel, which a start that is broken off leaves turning."""
        with self._lock:
            self._tell_more()
            self._closed = True
            with contextlib.suppress(OSError, ValueError):
                if self._turning is not None:
                    self._turning.live.stop()
                self._console.show_cursor()

    def _show(self, event: dict[str, Any]) -> None:
        """Show an event unless there are too many in this second."""
        line = readable(event, self._console.width)
        now_s = self._now()
        if line is None or (event["event"] != "http_request" and self._is_repeated(line.plain[8:], now_s)):
            return
        if now_s - self._second_s >= 1.0:
            self._tell_more()
            self._second_s, self._n_lines = now_s, 0
        if self._n_lines < MAX_LINES:
            self._n_lines += 1
            self._print(line)
            return
        if not self._n_more:
            self._later(1.0 - (now_s - self._second_s), self._tell_more)
        self._n_more += 1
        if "status" in event:
            self._more[event["status"]] += 1

    def _is_repeated(self, words: str, now_s: float) -> bool:
        self._recent = {text: at_s for text, at_s in self._recent.items() if now_s - at_s < REPEAT_S}
        repeated = words in self._recent
        self._recent[words] = now_s
        return repeated

    def _tell_more(self) -> None:
        with self._lock:
            if self._n_more:
                line = more_line(self._n_more, self._more)
                self._n_more = 0
                self._more.clear()
                self._print(line)

    def _print(self, what: Any) -> None:
        # A terminal that is gone does not end the server.
        with contextlib.suppress(OSError, ValueError):
            if what is not None and not self._closed:
                self._console.print(what)


class _Terminal(Console):
    """A console whose reader may go."""

    def on_broken_pipe(self) -> None:
        """Go on; rich's own would end the process."""


def own_command() -> str:
    """Return what a person types to run this program: its path where a shell does not find its name."""
    path = Path(sys.argv[0])
    if path.name != "cobali" or shutil.which("cobali"):
        return "cobali"
    return min(str(path.absolute()), os.path.relpath(path), key=len)


def _later(delay_s: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(delay_s, act)
    timer.daemon = True
    timer.start()


class RedirectedOutput:
    """Where what is printed to this process's stdout and stderr goes meanwhile: a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        sys.stdout.flush()
        sys.stderr.flush()
        self._own = os.dup(1), os.dup(2)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number in (1, 2):
            os.dup2(file, number)
        os.close(file)
        self.terminal = os.fdopen(os.dup(self._own[0]), "w", encoding="utf-8", errors="replace")

    def move(self, path: Path) -> None:
        """Have the file lie elsewhere, if that is on the same disk."""
        with contextlib.suppress(OSError):
            self._path = self._path.rename(path)

    def undo(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for number, own in zip((1, 2), self._own, strict=True):
            os.dup2(own, number)

    def close(self) -> None:
        self.undo()
        with contextlib.suppress(OSError):  # whoever read it may be gone
            self.terminal.close()
        for own in self._own:
            os.close(own)


class Workers:
    """What the other processes write."""

    def __init__(self, output: EventOutput) -> None:
        self._output = output
        self._cries = deque[str](maxlen=1)

    def take(self, data: dict[str, Any]) -> None:
        """Take what Ray would print of one of them."""
        source = f"{data.get('actor_name') or data.get('task_name') or 'Ray'} {data.get('pid')}"
        for line in data["lines"]:
            self._output.take(line, source)
            if parsed(line) is None and _CRY.search(line):
                self._cries.append(f"{line.strip():.300}")

    @property
    def cry(self) -> str:
        """What one of them said last that sounds like the cause of a death; "" for nothing."""
        return self._cries[-1] if self._cries else ""


class Steps:
    """The steps of a start: each is shown while it goes on, then reported with its seconds."""

    def __init__(self, output: EventOutput, now: Callable[[], float] = time.monotonic) -> None:
        self._output, self._now = output, now
        self._began_s = now()

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[OnProgress]:
        """Show `what` while inside, and then how long it took, unless it failed."""
        began_s = self._now()
        with self._output.working(what) as progress:
            yield progress
        self._output.say("start_step", step=what, seconds=round(self._now() - began_s, 3))

    @property
    def seconds(self) -> float:
        return round(self._now() - self._began_s, 3)


@contextlib.contextmanager
def failing_as_event() -> Iterator[None]:
    """Where stdout is no terminal, tell there, too, why the server did not start.

    The line for people goes to stderr, unless that is the same file.
    """
    try:
        yield
    except CobaliError as error:
        if sys.stdout.isatty():
            raise
        JsonLines(sys.stdout).say("start_failed", level="error", error=str(error))
        if not os.path.sameopenfile(1, 2):
            raise
        sys.exit(1 if isinstance(error, StartError) else 2)
