"""From the raw bytes of one HTTP answer, and when they came, to deltas, usage and errors. Pure.

Reading happens after a run, so that while it lasts the client costs no more than one stamp per piece.
Tolerant of llama-server, vLLM and this package; chat and completions, streamed or whole.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import orjson

from cobali_workloads.load.timeline import RequestTimeline

_DATA = re.compile(rb"^data:[ ]?(.*?)\r?$", re.MULTILINE)
REFUSALS = frozenset({429, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What one request sent and got back, unread."""

    due_s: float
    sent_s: float
    closed_s: float
    pieces: Sequence[tuple[float, bytes]] = ()
    """Bytes as they came from the socket, each with its arrival."""
    error: str = ""
    """Why the connection failed, if it did."""
    role: str = "stream"


@dataclass(slots=True)
class ClientReply:
    """One answer, read."""

    status: int = 0
    deltas: list[tuple[float, str]] = field(default_factory=list)
    """Arrival and text of each delta that has text."""
    n_prompt: int | None = None
    n_cached: int | None = None
    """Tokens of the prompt that the server did not compute, if it says so."""
    n_output: int | None = None
    finished: bool = False
    """The answer came to its end: a finish reason or [DONE]."""
    error: str = ""

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(text for _, text in self.deltas)


def read_reply(pieces: Sequence[tuple[float, bytes]]) -> ClientReply:
    """Read an answer. What is no HTTP answer, or breaks off, is said in `error`."""
    raw = b"".join(data for _, data in pieces)
    head, separator, _ = raw.partition(b"\r\n\r\n")
    reply = ClientReply()
    try:
        reply.status = int(head.split(b" ", 2)[1])
    except (IndexError, ValueError):
        reply.error = "no HTTP answer"
        return reply
    if not separator:
        reply.error = "the answer broke off in its head"
        return reply
    lower = head.lower()
    chunked = re.search(rb"\r\ntransfer-encoding:[^\r]*chunked", lower) is not None
    body, runs = _unchunk(raw, len(head) + 4) if chunked else (raw[len(head) + 4 :], [(0, len(head) + 4)])
    if re.search(rb"\r\ncontent-type:[^\r]*text/event-stream", lower):
        _read_events(reply, body, _Stamps(pieces, runs))
    else:
        _read_whole(reply, body)
    if reply.status == 200 and not reply.finished and not reply.error:
        reply.error = "the answer broke off"
    return reply


def timeline_of(exchange: Exchange) -> RequestTimeline:
    """Judge an exchange: answered, refused (429, 503), or failed."""
    reply = read_reply(exchange.pieces)
    error = exchange.error or reply.error
    if reply.status in REFUSALS:
        status = "refused"
    else:
        status = "ok" if reply.status == 200 and not error else "failed"
    return RequestTimeline(
        due_s=exchange.due_s,
        sent_s=exchange.sent_s,
        deltas_s=tuple(at for at, _ in reply.deltas),
        ended_s=exchange.pieces[-1][0] if exchange.pieces else exchange.closed_s,
        n_prompt=reply.n_prompt,
        n_cached=reply.n_cached,
        n_output=len(reply.deltas) if reply.n_output is None else reply.n_output,
        counted=reply.n_output is None,
        status=status,  # type: ignore[arg-type]
        error=error if status != "ok" else "",
        role=exchange.role,
    )


class _Stamps:
    """Finds when a byte of the decoded body arrived."""

    def __init__(self, pieces: Sequence[tuple[float, bytes]], runs: list[tuple[int, int]]) -> None:
        self._times = [at for at, _ in pieces]
        self._ends = list(accumulate(len(data) for _, data in pieces))
        self._decoded = [run[0] for run in runs]
        self._raw = [run[1] for run in runs]

    def at(self, end: int) -> float:
        """Return when the byte before decoded offset `end` arrived."""
        run = bisect_right(self._decoded, end - 1) - 1
        raw_end = self._raw[run] + end - self._decoded[run]
        return self._times[bisect_left(self._ends, raw_end)]


def _unchunk(raw: bytes, start: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the body, and for each chunk where it begins in the body and in `raw`."""
    parts, runs, n_decoded = [], [], 0
    while (line_end := raw.find(b"\r\n", start)) >= 0:
        try:
            size = int(raw[start:line_end].split(b";", 1)[0], 16)
        except ValueError:
            break
        if not size:
            break
        part = raw[line_end + 2 : line_end + 2 + size]
        runs.append((n_decoded, line_end + 2))
        parts.append(part)
        n_decoded += len(part)
        start = line_end + 2 + size + 2
    return b"".join(parts), runs or [(0, start)]


def _read_events(reply: ClientReply, body: bytes, stamps: _Stamps) -> None:
    for event in _DATA.finditer(body):
        if event[1] == b"[DONE]":
            reply.finished = True
            continue
        try:
            content = orjson.loads(event[1])
        except orjson.JSONDecodeError:
            reply.error = "an event is no JSON"
            continue
        text = _take(reply, content)
        if text:
            reply.deltas.append((stamps.at(event.end()), text))


def _read_whole(reply: ClientReply, body: bytes) -> None:
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        reply.error = "the answer is no JSON" if reply.status == 200 else f"status {reply.status}"
        return
    if reply.status != 200:
        reply.error = f"status {reply.status}: {_message(content)}"
        return
    _take(reply, content)


def _take(reply: ClientReply, content: Any) -> str:
    """Take usage, end and error out of one event or answer; return its text."""
    if not isinstance(content, dict):
        return ""
    if content.get("error"):
        reply.error = _message(content)
    usage = content.get("usage")
    if usage:
        reply.n_prompt = usage.get("prompt_tokens", reply.n_prompt)
        reply.n_output = usage.get("completion_tokens", reply.n_output)
        details = usage.get("prompt_tokens_details") or {}
        reply.n_cached = details.get("cached_tokens", reply.n_cached)
    text = ""
    for choice in content.get("choices") or ():
        if choice.get("finish_reason"):
            reply.finished = True
        message = choice.get("delta") or choice.get("message") or {}
        for part in (choice.get("text"), message.get("reasoning_content"), message.get("content")):
            text += part or ""
    return text


def _message(content: Any) -> str:
    error = content.get("error", content) if isinstance(content, dict) else content
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:300]
