"""Questions to a server over HTTP, and its answers as they come."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import orjson

from cobali_ray.command_line import address_of, bearer
from cobali_ray.errors import ConfigError, NoAnswerError, NoServerError, why_of

TIMEOUT: Final = httpx2.Timeout(10.0, read=None)
"""An answer may take as long as it takes; a connection is made soon, or not at all."""
STREAMED: Final = {"stream": True, "stream_options": {"include_usage": True}}
PROGRESS_HEADER: Final = {"x-cobali-progress": "true"}
"""A header, as servers that do not know it ignore it."""
IGNORED: Final = "x-cobali-ignored-fields"
WRITES: Final = "completion"
"""The capability of models that write text; one that is not loaded yet has no list of them."""


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A piece of an answer: what it says, or what was thought before."""

    text: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class AnswerWait:
    """How far a request is whose answer has not begun."""

    share: float | None = None
    """How much of its prompt is computed; None while it waits for a slot."""
    n_ahead: int = 0
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """How an answer ended, and the server's own numbers of it."""

    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    ignored: str = ""
    """Fields of the request that the server does not know."""


class ServerClient:
    """A server at an address, and the key it is asked with."""

    def __init__(self, url: str, key: str | None, transport: httpx2.BaseTransport | None = None) -> None:
        """`transport` is in place of the network."""
        self.url, headers = address_of(url), bearer(key)
        limits = httpx2.Limits(max_connections=None)  # callers know how many they need
        self._http = httpx2.Client(
            base_url=self.url, headers=headers, timeout=TIMEOUT, transport=transport, limits=limits
        )

    def close(self) -> None:
        self._http.close()

    def models(self) -> list[str]:
        """Return the names of the models that write text. Raises ConfigError, NoAnswerError."""
        with self._explained():
            answer = self._http.get("/v1/models", timeout=10.0)
            self._require_good(answer)
            try:
                listed = orjson.loads(answer.content)["data"]
                writers = [model["id"] for model in listed if WRITES in model.get("capabilities", [WRITES])]
            except (ValueError, LookupError, TypeError, AttributeError):
                raise ConfigError("--url", f"{self.url} answers, but does not serve models") from None
        if not writers:
            raise ConfigError("--url", f"the server at {self.url} has no model that writes text")
        return writers

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._explained():
            answer = self._http.post(path, json=body)
            self._require_good(answer)
            result: dict[str, Any] = orjson.loads(answer.content)
        return result

    def ask(self, path: str, body: bytes) -> httpx2.Response:
        """Send a body as it is, and return whatever the answer is. Raises NoAnswerError where none comes."""
        try:
            return self._http.post(path, content=body, headers={"content-type": "application/json"})
        except httpx2.TransportError as error:
            raise NoAnswerError(f"the server at {self.url} does not answer: {why_of(error)}") from error

    def check(self, path: str, body: dict[str, Any]) -> str:
        """Return the fields that the server does not know. Raises what it would refuse the request for."""
        with self._explained():
            answer = self._http.post(f"{path}/input_tokens", json=body | STREAMED)
            self._require_good(answer)
        return answer.headers.get(IGNORED, "")

    def stream(self, path: str, body: dict[str, Any]) -> Generator[AnswerWait | AnswerPiece | AnswerEnd]:
        """Ask for a chat or a completion, and yield its pieces as they come and an AnswerEnd after them.

        An AnswerWait comes before them as often as the server reports progress.

        Closing this iterator tells the server to stop.

        Raises:
            NoServerError, ConfigError, NoAnswerError: with messages for the user.
        """
        reason, usage, timings = None, dict[str, Any](), dict[str, Any]()
        with (
            self._explained(),
            self._http.stream("POST", path, json=body | STREAMED, headers=PROGRESS_HEADER) as answer,
        ):
            if answer.status_code != httpx2.codes.OK:
                answer.read()
            self._require_good(answer)
            for chunk in _events(answer.iter_lines()):
                if "error" in chunk:
                    raise NoAnswerError(_message(chunk) or "the server broke off")
                if (wait := _wait_of(chunk)) is not None:
                    yield wait
                usage, timings = chunk.get("usage") or usage, chunk.get("timings") or timings
                for choice in chunk.get("choices", []):
                    reason = choice.get("finish_reason") or reason
                    delta = choice.get("delta") or {}
                    thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
                    text = delta.get("content") or choice.get("text") or ""
                    if text or thought:
                        yield AnswerPiece(text, thought)
            yield AnswerEnd(reason, usage, timings, answer.headers.get(IGNORED, ""))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn failures of the network into messages for the user."""
        try:
            yield
        except httpx2.ConnectError as error:
            raise NoServerError(
                "--url", f"no server answers at {self.url}; start one with `cobali serve`"
            ) from error
        except (httpx2.TransportError, httpx2.InvalidURL, ValueError) as error:
            raise NoAnswerError(f"the server at {self.url} stopped answering: {why_of(error)}") from error

    def _require_good(self, answer: httpx2.Response) -> None:
        if answer.status_code == httpx2.codes.OK:
            return
        if answer.status_code == httpx2.codes.UNAUTHORIZED:
            raise ConfigError("--key", f"{self.url} needs a valid API key: give --key, or set COBALI_API_KEY")
        try:
            message = _message(orjson.loads(answer.content))
        except ValueError:
            message = ""
        raise NoAnswerError(message or f"{answer.url} answers {answer.status_code}: is that a cobali server?")


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data:") and (data := line.removeprefix("data:").strip()) != "[DONE]":
            chunk = orjson.loads(data)
            if isinstance(chunk, dict):
                yield chunk


def _wait_of(chunk: dict[str, Any]) -> AnswerWait | None:
    if queue := chunk.get("queue_progress"):
        return AnswerWait(None, queue["n_ahead"], queue["wait_s"])
    prompt = chunk.get("prompt_progress")
    return AnswerWait(prompt["processed"] / max(prompt["total"], 1)) if prompt else None


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(message.split()) if isinstance(message, str) else ""
