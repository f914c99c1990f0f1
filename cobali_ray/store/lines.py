"""JSON Lines of a batch: bytes as they arrive become lines, and lines become requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from cobali_ray.errors import BadLineError

CHATS: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
RESPONSES: Final = "/v1/responses"
ENDPOINTS: Final = (CHATS, COMPLETIONS, EMBEDDINGS, RESPONSES)
"""The routes that a line of OpenAI's format may call."""
MESSAGES: Final = "/v1/messages"
"""The route that each request of an Anthropic batch calls."""
LINE_ID: Final = "batch_req_"
"""How the id of a line's request begins."""
MAX_LINES: Final = 1_000_000
MAX_ID_CHARS: Final = 512
_BOM: Final = b"\xef\xbb\xbf"
_SHORT_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class LineSplitter:
    """Splits bytes into lines, of which it keeps one at most.

    lines = LineSplitter(8 << 20)
    for number, line in lines.feed(piece): ...  # numbered from 1, blank ones are left out
    for number, line in lines.end(): ...        # the last one may have no line break
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._begun: list[bytes] = []
        self._n_begun_bytes = 0
        self._number = 0

    def feed(self, piece: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that end in this piece. Raises BadLineError for one that is too long."""
        *ends, rest = piece.split(b"\n")
        for end in ends:
            self._keep(end)
            yield from self._line()
        self._keep(rest)

    def end(self) -> Iterator[tuple[int, bytes]]:
        """Yield what came behind the last line break."""
        yield from self._line()

    def _keep(self, piece: bytes) -> None:
        self._begun.append(piece)
        self._n_begun_bytes += len(piece)
        if self._n_begun_bytes > self._max_line_bytes:
            raise BadLineError(
                self._number + 1, f"is longer than {self._max_line_bytes:,} bytes (setting max_body_bytes)"
            )

    def _line(self) -> Iterator[tuple[int, bytes]]:
        line = b"".join(self._begun).strip()
        self._begun, self._n_begun_bytes = [], 0
        self._number += 1
        if self._number == 1:
            line = line.removeprefix(_BOM)
        if line:
            yield self._number, line


@dataclass(frozen=True, slots=True)
class LineRequest:
    """The request of one line."""

    custom_id: str
    """By which its owner knows the answer."""
    endpoint: str
    body: Mapping[str, Any]

    @property
    def model(self) -> str:
        """The model that it names; "" where it names none."""
        model = self.body.get("model")
        return model if isinstance(model, str) else ""


class SeenIds:
    """The ids of a file's lines so far: by a hash of each, so that a million take 100 MB at most."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def add(self, number: int, custom_id: str) -> None:
        """Raise BadLineError where another line has this id, or where there are too many lines."""
        if len(self._seen) >= MAX_LINES:
            raise BadLineError(number, f"is one more than a batch may have: {MAX_LINES:,}")
        before = len(self._seen)
        self._seen.add(hash(custom_id))
        if len(self._seen) == before:
            raise BadLineError(number, f"has the custom_id {custom_id[:64]!r} of a line before it")


def parse_line(number: int, raw: bytes) -> LineRequest:
    """Read a line of OpenAI's format. Raises BadLineError."""
    line = _loaded(number, raw)
    custom_id, method, endpoint = (line.get(name) for name in ("custom_id", "method", "url"))
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID_CHARS or "\0" in custom_id:
        raise BadLineError(number, f"needs a custom_id of 1 to {MAX_ID_CHARS} characters, none of them null")
    if method != "POST":
        raise BadLineError(number, "needs the method POST")
    if endpoint not in ENDPOINTS:
        raise BadLineError(number, f"needs one of these as its url: {', '.join(ENDPOINTS)}")
    return LineRequest(custom_id, endpoint, _body(number, line, "body"))


def parse_message_request(number: int, line: Any) -> LineRequest:
    """Read a request of an Anthropic batch. Raises BadLineError."""
    custom_id = line.get("custom_id") if isinstance(line, dict) else None
    if not isinstance(custom_id, str) or not _SHORT_ID.fullmatch(custom_id):
        raise BadLineError(number, "needs a custom_id of 1 to 64 letters, digits, dashes and underscores")
    return LineRequest(custom_id, MESSAGES, _body(number, line, "params"))


def _body(number: int, line: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    body = line.get(name)
    if not isinstance(body, dict):
        raise BadLineError(number, f"needs an object as its {name}")
    if body.get("stream"):
        raise BadLineError(number, f"has {name}.stream: answers of a batch are not streamed")
    return body


def _loaded(number: int, raw: bytes) -> dict[str, Any]:
    try:
        line = orjson.loads(raw)
        orjson.dumps(line)  # which allows less depth, and is done whenever the line is sent
    except orjson.JSONDecodeError as error:
        raise BadLineError(number, f"is not valid JSON at column {error.colno}") from None
    except orjson.JSONEncodeError:
        raise BadLineError(number, "is nested too deeply") from None
    if not isinstance(line, dict):
        raise BadLineError(number, "is not a JSON object")
    return line


class Answer(NamedTuple):
    """What an endpoint answered to a line."""

    status: int
    body: bytes
    """JSON."""
    request_id: str

    @property
    def good(self) -> bool:
        return self.status == 200


LEFT: Final = {
    "batch_expired": "The batch expired before this line was answered.",
    "batch_cancelled": "The batch was cancelled before this line was answered.",
}
"""Messages for lines that were not answered, by OpenAI's codes."""


def answer_line(custom_id: str, answer: Answer) -> bytes:
    """Write a line of an output or error file as OpenAI does."""
    return _written(
        answer.request_id,
        custom_id,
        {
            "status_code": answer.status,
            "request_id": answer.request_id,
            "body": orjson.Fragment(answer.body),
        },
        None,
    )


def left_line(line_id: str, custom_id: str, code: str) -> bytes:
    """Write the line of a request that was not answered, for one of the reasons in LEFT."""
    return _written(line_id, custom_id, None, {"code": code, "message": LEFT[code]})


def _written(line_id: str, custom_id: str, response: Any, error: Any) -> bytes:
    line = {"id": line_id, "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def message_result_line(custom_id: str, answer: Answer) -> bytes:
    """Write a line of the results of an Anthropic batch; errors have Anthropic's shape."""
    body = orjson.Fragment(answer.body)
    if answer.good:
        return _message_line(custom_id, {"type": "succeeded", "message": body})
    return _message_line(custom_id, {"type": "errored", "error": body})


def message_left_line(_line_id: str, custom_id: str, code: str) -> bytes:
    """Write that a request of an Anthropic batch was not answered."""
    return _message_line(custom_id, {"type": "expired" if code == "batch_expired" else "canceled"})


def _message_line(custom_id: str, result: Any) -> bytes:
    return orjson.dumps({"custom_id": custom_id, "result": result}, option=orjson.OPT_APPEND_NEWLINE)


class LineFormat(NamedTuple):
    """How the answers of a batch are written."""

    answered: Callable[[str, Answer], bytes]
    """Of a custom_id and what the endpoint answered."""
    left: Callable[[str, str, str], bytes]
    """Of an id for the line, a custom_id and the reason, one of LEFT."""


OPENAI, ANTHROPIC = "openai", "anthropic"
FORMATS: Final = {
    OPENAI: LineFormat(answer_line, left_line),
    ANTHROPIC: LineFormat(message_result_line, message_left_line),
}
