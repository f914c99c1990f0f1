"""One OpenAI-compatible server under test: its address, its model, and the bytes of a request to it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import httpx2
import orjson

from cobali_ray.errors import ConfigError, why_of

Endpoint: TypeAlias = Literal["completions", "chat"]
_PROBE, _PROBE_WORDS = "one two three", 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request to send: a prompt and how long the answer is."""

    prompt: str
    n_output: int
    at_s: float = 0.0
    """Open loop: seconds after the start."""
    begins: bool = True
    """Multi-turn: a new conversation begins here."""
    history: tuple[tuple[str, str], ...] = ()
    """Prompt and answer of each earlier turn."""
    role: str = "stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go. `host` is resolved once, so that no request waits for a name server."""

    name: str
    url: str
    """Without `/v1`."""
    host: str
    port: int
    address: str
    tls: bool
    model: str
    endpoint: Endpoint = "completions"
    api_key: str | None = None

    def request(self, job: Job, *, ignore_eos: bool, stream: bool = True) -> bytes:
        """Return the bytes of one HTTP/1.1 request, greedy, with usage asked for."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": job.n_output, "temperature": 0}
        if ignore_eos:  # a server that does not know it may refuse it
            body["ignore_eos"] = True
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= _prompt_fields(job, self.endpoint)
        content = orjson.dumps(body)
        path = "/v1/chat/completions" if self.endpoint == "chat" else "/v1/completions"
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        url = urlsplit(self.url)
        head = (
            f"POST {url.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {url.netloc.rpartition('@')[2]}\r\n"
            f"{key}Connection: close\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content


def _prompt_fields(job: Job, endpoint: Endpoint) -> dict[str, Any]:
    if endpoint == "completions":
        return {"prompt": "".join(f"{prompt}{answer}\n" for prompt, answer in job.history) + job.prompt}
    messages = []
    for prompt, answer in job.history:
        messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return {"messages": [*messages, {"role": "user", "content": job.prompt}]}


def parse_target(text: str) -> tuple[str, str]:
    """Split `name=url`; a bare URL is its own name. Anything else: ConfigError."""
    name, equals, url = text.partition("=")
    if not equals or "://" in name:
        name, url = text.split("://", 1)[-1].rstrip("/"), text
    url = url.rstrip("/").removesuffix("/v1")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not name:
        raise ConfigError("--target", f"expected NAME=URL, got {text!r}")
    return name, url


def connect(
    name: str,
    url: str,
    *,
    endpoint: Endpoint = "completions",
    model: str | None = None,
    api_key: str | None = None,
    timeout_s: float = 10.0,
) -> Target:
    """Resolve the address and ask for the model's name. A server that does not answer: ConfigError."""
    try:
        parts = urlsplit(url)
        host, tls = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        if model is None:
            listed = httpx2.get(f"{url}/v1/models", headers=_headers(api_key), timeout=timeout_s)
            model = str(listed.raise_for_status().json()["data"][0]["id"])
    except (LookupError, TypeError):
        raise ConfigError(name, f"no OpenAI-compatible server answers at {url}: it names no model") from None
    except (OSError, httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise ConfigError(name, f"no OpenAI-compatible server answers at {url}: {why_of(error)}") from error
    return Target(
        name=name, url=url, host=host, port=port, address=address, tls=tls,
        model=model, endpoint=endpoint, api_key=api_key,
    )  # fmt: skip


def token_counter(target: Target, http: httpx2.Client) -> Callable[[str], int] | None:
    """Return what counts a text's tokens by the server's /tokenize; None where it has none."""
    # llama-server reads content, vLLM prompt; ours takes either, not both.
    for field in ("content", "prompt"):
        count = partial(_n_tokens, target, http, field)
        try:
            count(_PROBE)
        except (httpx2.HTTPError, ValueError, KeyError, TypeError):
            continue
        return count
    return None


def _n_tokens(target: Target, http: httpx2.Client, field: str, text: str) -> int:
    body = (
        {field: text}
        if field == "content"
        else {field: text, "model": target.model, "add_special_tokens": False}
    )
    answer = http.post(f"{target.url}/tokenize", json=body, headers=_headers(target.api_key))
    reply = answer.raise_for_status().json()
    n_tokens = int(reply["count"]) if "count" in reply else len(reply["tokens"])
    if not n_tokens:
        raise ValueError("a text without tokens")  # it did not know the field
    return n_tokens


def tokens_per_word(target: Target, http: httpx2.Client, words: Sequence[str]) -> float:
    """Measure tokens per word by two one-token requests: what both have in common cancels out."""

    def n_prompt(n_words: int) -> int:
        job = Job(prompt=" ".join(words[i % len(words)] for i in range(n_words)), n_output=1)
        body = {
            "model": target.model,
            "max_tokens": 1,
            "temperature": 0,
            **_prompt_fields(job, target.endpoint),
        }
        path = "chat/completions" if target.endpoint == "chat" else "completions"
        answer = http.post(f"{target.url}/v1/{path}", json=body, headers=_headers(target.api_key))
        return int(answer.raise_for_status().json()["usage"]["prompt_tokens"])

    try:
        return max((n_prompt(2 * _PROBE_WORDS) - n_prompt(_PROBE_WORDS)) / _PROBE_WORDS, 0.1)
    except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            target.name, f"says neither by /tokenize nor by usage how long a prompt is: {error!r}"
        ) from error


def _headers(api_key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
