"""Requests as nobody sends them on purpose: every route, sizes up to the body limit, from a seed. Pure.

Bodies of every shape that the API describes are in tests/api/test_api_schemathesis.py.
"""

from __future__ import annotations

import gzip
import json
import random
import string
from dataclasses import dataclass, field

LIMIT_BYTES = 8 << 20
HANG_UPS = (None, None, None, "in the body", "after the body", "after the first bytes")
KEYS = (
    "temperature", "top_p", "n", "stop", "seed", "logprobs", "tools", "bad_words", "tool_choice",
    "chat_template_kwargs", "response_format", "input", "instructions", "text", "reasoning", "thinking",
)  # fmt: skip
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
GETS = (
    "/health",
    "/ready",
    "/metrics",
    "/v1/models",
    "/v1/models/tiny",
    "/v1/models/{junk}",
    "/v1/cache",
    "/slots",
    "/debug/ticks?last={n}",
    "/debug/ticks?since={n}&last=4096",
    "/debug/ticks?last={junk}",
    "/",
    "/ui",
    "/ui/app.js",
    "/ui/{junk}",
    "/docs",
    "/openapi.json",
    "/{junk}",
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["x", "y"]}}}
USER = {"role": "user", "content": "Tell me a story."}
POSTS: dict[str, tuple[dict[str, object], ...]] = {
    "/v1/chat/completions": (
        {"messages": [USER]},
        {"messages": [USER], "tools": [TOOL], "tool_choice": "required", "n": 4},
        {"messages": [USER], "response_format": SCHEMA, "logprobs": True, "top_logprobs": 20},
    ),
    "/v1/completions": ({"prompt": "once"}, {"prompt": [[1, 2], [3]], "n": 2, "logprobs": 5}),
    "/v1/responses": ({"input": "hi"}, {"input": [USER], "tools": [{"type": "custom", "name": "c"}]}),
    "/tokenize": ({"content": "a b", "with_pieces": True},),
    "/detokenize": ({"tokens": [1, 2, 3]},),
}
"""Bodies that are answered, by their paths."""


@dataclass(frozen=True)
class Case:
    """One request, as bytes to send."""

    name: str
    method: str
    path: str
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    hang_up: str | None = None
    segments: tuple[int, ...] = field(default=())
    """Where the body is cut into pieces that are sent apart."""


class Cases:
    """An endless row of cases; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __iter__(self) -> Cases:
        return self

    def __next__(self) -> Case:
        pick = self._random.choice
        if self._random.random() < 0.25:
            path = pick(GETS).format(junk=self._junk(), n=self._number())
            method = pick(("GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"))
            return Case(f"{method} {path}", method, path, headers=self._headers())
        path = pick(list(POSTS))
        make = pick(
            (
                self._plain,
                self._plain,
                self._long,
                self._many,
                self._wrong,
                self._wrong,
                self._broken,
                self._packed,
            )
        )
        body, headers = make(path)
        body = body[:LIMIT_BYTES]
        return Case(
            f"{make.__name__.strip('_')} {path}",
            "POST",
            path,
            body,
            headers + self._headers(),
            pick(HANG_UPS),
            tuple(sorted(self._random.randrange(len(body) + 1) for _ in range(pick((0, 0, 1, 3))))),
        )

    # -- bodies

    def _plain(self, path: str) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
        return self._encoded(self._good(path))

    def _long(self, path: str) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
        body = self._good(path)
        n_bytes = int(2 ** self._random.uniform(10, 23))
        text = self._text(n_bytes)
        if path == "/detokenize":
            body["tokens"] = [self._random.randrange(256) for _ in range(min(n_bytes, 1 << 21) // 3)]
        elif path == "/tokenize":
            body["content"] = text
        elif path == "/v1/completions":
            body["prompt"] = self._random.choice((text, [text], [1] * (n_bytes // 2), [[1] * (n_bytes // 2)]))
        elif path == "/v1/responses":
            body["input"] = self._random.choice((text, [{"role": "user", "content": text}]))
        else:
            body["messages"] = [USER, {"role": "user", "content": text}]
        return self._encoded(body)

    def _many(self, path: str) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
        body = self._good(path)
        n = int(2 ** self._random.uniform(5, 19))
        match self._random.randrange(8):
            case 7:
                body["input"] = [USER] * n
            case 0:
                body |= {f"field{i}": i for i in range(n)}
            case 1:
                body["messages"] = [{"role": "user", "content": self._random.choice(("", "hello"))}] * n
            case 2:
                body["logit_bias"] = {str(i): 1 for i in range(n)}
            case 3:
                body["stop"] = ["x"] * n
            case 4:
                body["prompt"] = ["x"] * n
            case 5:
                body["metadata"] = self._random.choice(([[]] * n, {str(i): {} for i in range(n)}, [1.5] * n))
            case _:
                body["messages"] = [{"role": "user", "content": [{"type": "text", "text": "a"}] * n}]
        return self._encoded(body)

    def _wrong(self, path: str) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
        body = self._good(path)
        for _ in range(self._random.randrange(1, 4)):
            key = self._random.choice((*body, *KEYS, self._junk()))
            body[key] = self._value(2)
        body.pop("timeout_s", None)  # a deadline is a 504
        return self._encoded(body)

    def _broken(self, path: str) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
        whole, _ = self._encoded(self._good(path))
        at = self._random.randrange(len(whole))
        n = int(2 ** self._random.uniform(0, 20))
        return self._random.choice(
            (
                whole[:at],
                whole[:at] + self._random.randbytes(3) + whole[at:],
                self._random.randbytes(min(n, 1 << 16)),
                b"[" * n,
                b'{"a":' * n,
                b"",
                b"null",
                b'"\xff"',
                b'{"messages":"\\ud800"}',
                whole + b"\x00" * n,
            )
        ), ()

    def _packed(self, path: str) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
        whole, _ = self._encoded(self._good(path))
        packed = self._random.choice(
            (gzip.compress(whole), gzip.compress(bytes(1 << 26)), whole, gzip.compress(whole)[:-4])
        )
        encoding = self._random.choice((b"gzip", b"deflate", b"br", b"identity", b"GZIP"))
        return packed, ((b"content-encoding", encoding),)

    def _good(self, path: str) -> dict[str, object]:
        pick = self._random.choice
        body = dict(pick(POSTS[path]))
        if path.startswith("/v1/"):
            most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
            body |= {"model": "tiny", most: self._random.randrange(1, 40), "stream": pick((True, False))}
            body |= {"temperature": pick((0, 0.7, 1)), "seed": self._random.randrange(2**31)}
        return body

    def _encoded(self, body: dict[str, object]) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
        ascii_only = self._random.random() < 0.5
        text = json.dumps(body, ensure_ascii=ascii_only)
        return text.encode("utf-8", "surrogatepass" if self._random.random() < 0.1 else "replace"), ()

    # -- pieces

    def _text(self, n: int) -> str:
        unit = self._random.choice(
            (
                "word ",
                "a",
                " ",
                "\n",
                "é漢😀",
                "9",
                '"\\',
                *SPECIALS,
                "".join(self._random.choices(string.printable, k=50)),
            )
        )
        return (unit * (n // len(unit) + 1))[:n]

    def _junk(self) -> str:
        return "".join(self._random.choices(string.ascii_letters + "%._~-", k=self._random.randrange(1, 12)))

    def _number(self) -> object:
        return self._random.choice((0, 1, -1, 5, 4096, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308))

    def _value(self, depth: int) -> object:
        if depth and self._random.random() < 0.3:
            inner = [self._value(depth - 1) for _ in range(self._random.randrange(4))]
            return inner if self._random.random() < 0.5 else dict(zip("abcd", inner, strict=False))
        return self._random.choice((None, True, False, "", self._text(5), self._number(), [], {}))

    def _headers(self) -> tuple[tuple[bytes, bytes], ...]:
        choices: tuple[tuple[tuple[bytes, bytes], ...], ...] = (
            (),
            (),
            ((b"x-request-id", self._random.choice((b"abc", b"\xff\xfe", b"a b", b"x" * 300, b""))),),
            (
                (
                    b"traceparent",
                    self._random.choice((b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", b"junk")),
                ),
            ),
            ((b"authorization", b"Bearer \xe9\xff"),),
            ((b"x-junk", b"y" * self._random.choice((10, 4000))),),
            ((b"content-type", self._random.choice((b"text/plain", b"multipart/form-data", b"junk"))),),
            ((b"expect", b"100-continue"),),
        )
        return self._random.choice(choices)
