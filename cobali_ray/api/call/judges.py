"""Judges: grammars are judged in processes that can be given up, one at a time for each tenant.

All verdicts that reading a body needs, and that are not there yet, are asked for at once (`MustWait`);
the intake waits for them, holds no thread meanwhile, and has the body read again.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from cobali_ray.api.body.reading import MustWait
from cobali_ray.backend.grammar import ConstraintText, Verdict, schema_grammar
from cobali_ray.backend.judge import CPU_S, HEAP_BYTES, READY
from cobali_ray.errors import InternalError, InvalidParameterError

N_PROCESSES = 4
"""Of one ingress, started as they are needed; tenants take turns."""
WALL_S = 60.0
"""After which a process is given up that has used up neither its time nor its memory."""
MAX_CHARS = 16_000_000
"""Of the texts whose verdicts are remembered, and of the verdicts."""
MAX_OPEN_CHARS = MAX_CHARS // 8
"""Of the texts of one body that wait for a verdict."""
ENDS_S = 5.0
"""How long a process may take to end; one without work needs far less."""
_SMALLER = "use smaller counts, bounds and multiples, or fewer alternatives"
_NOT_YET: Verdict = (json.dumps({"grammars": [{"lark_grammar": 'start: "x"'}]}), ())


class Verdicts:
    """The verdicts that one reading of a tenant's body needs."""

    def __init__(self, judges: Judges, tenant: str) -> None:
        self._judges, self._tenant = judges, tenant
        self._open: list[ConstraintText] = []

    def judge(self, case: ConstraintText) -> Verdict:
        """Return the verdict, or a stand-in until `close`: of a schema, a grammar to judge as well."""
        if (verdict := self._judges.recall(self._tenant, case)) is not None:
            return verdict
        self._open.append(case)
        grammar = schema_grammar(case) if case.kind == "json_schema" else ""
        return (grammar, ()) if grammar else _NOT_YET

    def close(self) -> None:
        """Raise MustWait while cases are open; InvalidParameterError where they are too long.

        Else their verdicts would push each other out, and the body would be read again for ever.
        """
        cases = tuple(dict.fromkeys(self._open))
        if sum(len(case.text) for case in cases) > MAX_OPEN_CHARS:
            problem = f"have schemas of more than {MAX_OPEN_CHARS:,} characters, all told"
            raise InvalidParameterError("tools", problem)
        if cases:
            raise MustWait(partial(self._judges.judge, self._tenant, cases))


class Judges:
    """The verdicts, and the processes that reach them. Closes with its owner."""

    def __init__(self) -> None:
        self._verdicts: dict[tuple[str, ConstraintText], Verdict] = {}
        """By tenant, so that how fast an answer comes tells nobody what others have asked."""
        self._n_chars, self._lock = 0, threading.Lock()
        self._turns = weakref.WeakValueDictionary[str, asyncio.Lock]()
        self._threads = ThreadPoolExecutor(N_PROCESSES, thread_name_prefix="judge")
        self._idle: list[_Process] = []
        weakref.finalize(self, _end_all, self._idle)

    def warm(self) -> None:
        """Start a process, so that the first schema does not wait for it."""
        self._threads.submit(lambda: self._idle.append(_Process()))

    def recall(self, tenant: str, case: ConstraintText) -> Verdict | None:
        """Return the verdict, if it was reached for this tenant before. Any thread may call it."""
        key = (tenant, case)
        with self._lock:
            if (verdict := self._verdicts.pop(key, None)) is not None:
                self._verdicts[key] = verdict  # the first ones are the longest unused
            return verdict

    async def judge(self, tenant: str, cases: Sequence[ConstraintText]) -> None:
        """Have these cases judged. Others of the same tenant wait meanwhile, also if the client leaves."""
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        await turn.acquire()
        cases = [case for case in cases if self.recall(tenant, case) is None]
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._judge, tenant, cases)
        work.add_done_callback(lambda _: turn.release())
        await asyncio.shield(work)

    def _judge(self, tenant: str, cases: Sequence[ConstraintText]) -> None:
        """Judge them one after the other, in a thread; one that is given up makes the others needless."""
        if not cases:
            return
        process = self._process()
        for case in cases:
            if (verdict := process.judge(case)) is None:
                self._remember(tenant, case, _why(process.end()))
                return
            self._remember(tenant, case, verdict)
        self._idle.append(process)

    def _process(self) -> _Process:
        """Return a process without work. That one ended while it had none says nothing of the next case."""
        with suppress(IndexError):
            while True:
                process = self._idle.pop()
                if process.runs:
                    return process
                process.end()
        return _Process()

    def _remember(self, tenant: str, case: ConstraintText, verdict: Verdict) -> None:
        with self._lock:
            self._verdicts[tenant, case] = verdict
            self._n_chars += _n_chars(case, verdict)
            while self._n_chars > MAX_CHARS:
                oldest = next(iter(self._verdicts))
                self._n_chars -= _n_chars(oldest[1], self._verdicts.pop(oldest))


def _n_chars(case: ConstraintText, verdict: Verdict) -> int:
    return len(case.text) + len(verdict if isinstance(verdict, str) else verdict[0])


class _Process:
    """One process that judges. Used by one thread at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cobali_ray.backend.judge"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )
        if self._read() != READY:
            self.end()
            raise InternalError("the process that checks grammars does not start")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def judge(self, case: ConstraintText) -> Verdict | None:
        """Return a verdict; None if the process ended over it. Then `end` says why."""
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(case).encode() + b"\n")  # type: ignore[union-attr]
        if not (line := self._read()):
            return None
        verdict = json.loads(line)
        return verdict if isinstance(verdict, str) else (verdict[0], tuple(verdict[1]))

    def end(self) -> int:
        """End it if it has not ended, and return its exit code."""
        with self._process as process:  # closes the pipes, and so the process ends
            if process.stdin is not None:
                process.stdin.close()
            try:
                return process.wait(ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()

    def _read(self) -> bytes:
        """Return a line, or nothing if the process has ended or says nothing for too long."""
        pipe, line, poll = self._process.stdout, b"", select.poll()  # `select` takes no file above 1,023
        while pipe is not None and not line.endswith(b"\n"):
            poll.register(pipe, select.POLLIN)
            part = os.read(pipe.fileno(), 1 << 20) if poll.poll(WALL_S * 1000) else b""
            if not part:
                return b""
            line += part
        return line


def _why(exit_code: int) -> Verdict:
    """Say why a process ended over a case."""
    if exit_code in (-signal.SIGPROF, -signal.SIGKILL, 0):  # by itself, and by `end`: after WALL_S
        return f"it takes more than {CPU_S:g} s to compile: {_SMALLER}"
    if exit_code in (-signal.SIGABRT, -signal.SIGSEGV):
        return f"it takes more than {HEAP_BYTES >> 20} MiB to compile: {_SMALLER}"
    raise InternalError(f"the process that checks grammars ended with {exit_code}")


def _end_all(processes: list[_Process]) -> None:
    while processes:
        processes.pop().end()
