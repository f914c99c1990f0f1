"""`cobali batch`: answer a file of requests, by a server that runs or by one of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any, Final

import httpx2
import orjson
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from cobali_ray.command_line import Key
from cobali_ray.core.request.request import MAX_PRIORITY
from cobali_ray.errors import ConfigError, NoAnswerError, why_of
from cobali_ray.store.lines import RESPONSES, Answer, LineRequest, answer_line
from cobali_ray.terminal.asking import ServerClient
from cobali_ray.terminal.batch_files import AnswerFile, QuestionFile
from cobali_ray.terminal.servers import ModelOption, Url, server_for

AT_ONCE: Final = 20
"""Requests under way: as many as a server has slots by default, and some that wait for one."""
MAX_TRIES: Final = 5
"""For a line that the server fails on."""
MAX_SILENCE_S: Final = 600.0
"""How long a server may give no answer at all before it is given up."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
REFUSED: Final = frozenset({429, 503, 529})
"""The server has no room, or is not ready: not the line's fault, and no try of it."""

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Answer a file of requests.")


@app.callback()
def _group() -> None:
    """Answer a file of requests."""


@app.command()
def run(
    questions: Annotated[
        Path, typer.Argument(metavar="INPUT", help="JSON Lines with custom_id, method, url and body.")
    ],
    *,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="File for the answers. If it exists, missing answers are added."),
    ],
    model: ModelOption = None,
    url: Url = None,
    key: Key = None,
    at_once: Annotated[
        int, typer.Option(min=1, max=256, help="How many requests to send at the same time.")
    ] = AT_ONCE,
) -> None:
    """Answer every line of a file, in an order that computes common beginnings once.

    If you stop it, run the same command again to continue. Lines and answers have the format of OpenAI's
    Batch API; lines that name no model use that of --model.

    Examples:
      cobali batch run questions.jsonl -o answers.jsonl
      cobali batch run questions.jsonl -o answers.jsonl --model builtin:tiny
      cobali batch run questions.jsonl -o answers.jsonl --url http://127.0.0.1:8000 --at-once 32
    """
    console = Console(stderr=True)
    question_file = QuestionFile(questions)
    if output.exists() and output.samefile(questions):
        raise ConfigError("--output", f"{output} is the file of the questions")
    with AnswerFile(output) as answers:
        lines = answers.without_answer(question_file)
        n_before, n_bad, took_s = len(question_file) - len(lines), 0, 0.0
        if lines:
            with (
                server_for(model, url=url, key=key, console=console) as (server, name),
                _bar(console, len(question_file), n_before) as bar,
            ):
                began = time.monotonic()
                requests = (question_file.read(place) for place in lines)
                for custom_id, answer in answered(server, name, requests, at_once):
                    answers.add(answer_line(custom_id, answer))
                    n_bad += not answer.good
                    bar.advance(bar.task_ids[0])
                took_s = time.monotonic() - began
    before = f"; {n_before:,} were there already" if n_before else ""
    bad = f", of which {n_bad:,} are errors" if n_bad else ""
    console.print(f"{len(lines):,} lines answered{bad} in {took_s:.1f} s{before}.", highlight=False)


def _bar(console: Console, n: int, n_before: int) -> Progress:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, transient=True)
    bar.add_task("", total=n, completed=n_before)
    return bar


def answered(
    server: ServerClient,
    model: str,
    lines: Iterator[LineRequest],
    at_once: int,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[str, Answer]]:
    """Yield the answers as they come, with their ids. Raises NoAnswerError where none come any more."""
    results: SimpleQueue[tuple[str, Answer] | Exception | None] = SimpleQueue()
    crew = _Crew(server, model, lines, results, pause)
    # Daemons: an interrupted command waits for no answers.
    threads = [threading.Thread(target=crew.work, daemon=True) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    n_working = at_once
    while n_working:
        result = results.get()
        if result is None:
            n_working -= 1
        elif isinstance(result, Exception):
            raise result
        else:
            yield result


class _Crew:
    """Threads that ask one line after another."""

    def __init__(
        self,
        server: ServerClient,
        model: str,
        lines: Iterator[LineRequest],
        results: SimpleQueue[tuple[str, Answer] | Exception | None],
        pause: Callable[[float], None],
    ) -> None:
        self._server, self._model, self._lines = server, model, lines
        self._results, self._pause = results, pause
        self._lock = threading.Lock()
        self._answered_s = time.monotonic()
        """When the server last answered anything."""

    def work(self) -> None:
        try:
            while (line := self._next()) is not None:
                self._results.put((line.custom_id, self._ask(line)))
        except Exception as error:  # the command ends with it
            self._results.put(error)
        self._results.put(None)

    def _next(self) -> LineRequest | None:
        with self._lock:
            return next(self._lines, None)

    def _ask(self, line: LineRequest) -> Answer:
        body: dict[str, Any] = {"model": self._model} | dict(line.body)
        body.setdefault("priority", MAX_PRIORITY)
        if line.endpoint == RESPONSES and not (body.get("conversation") or body.get("background")):
            body.setdefault("store", False)  # thousands would take the place of others
        content, n_tries, pause_s = orjson.dumps(body), 0, FIRST_PAUSE_S
        while True:
            wait_s = pause_s
            try:
                reply = self._server.ask(line.endpoint, content)
            except NoAnswerError as error:
                if time.monotonic() - self._answered_s > MAX_SILENCE_S:
                    raise NoAnswerError(f"{error}; run the same command again to go on") from None
            else:
                self._answered_s = time.monotonic()
                refused = reply.status_code in REFUSED
                n_tries += not refused
                failed = reply.status_code >= httpx2.codes.INTERNAL_SERVER_ERROR
                if not refused and (not failed or n_tries >= MAX_TRIES):
                    return _answer_of(reply)
                if (retry_after := reply.headers.get("retry-after", "")).isdigit():
                    wait_s = max(wait_s, float(retry_after))
            self._pause(min(wait_s, MAX_PAUSE_S))
            pause_s = min(2 * pause_s, MAX_PAUSE_S)


def _answer_of(reply: httpx2.Response) -> Answer:
    """Return an answer; what is no JSON, such as a proxy's page, as an error that says so."""
    body = reply.content
    try:
        orjson.loads(body)
    except ValueError as error:
        why = f"the answer is no JSON: {why_of(error)}"
        body = orjson.dumps({"error": {"message": why, "type": "server_error", "param": None, "code": None}})
    return Answer(reply.status_code, body, reply.headers.get("x-request-id", ""))
