"""Requests as nobody sends them on purpose: every route, sizes up to the body limit, from a seed. Pure."""

from __future__ import annotations

import gzip
import json
import random
import string
from dataclasses import dataclass, field

LIMIT_BYTES = 8 << 20
HANG_UPS = (None, None, None, "in the body", "after the body", "after the first bytes")
KEYS = (
    "temperature", "top_p", "n", "stop", "seed", "logprobs", "tools", "min_tokens", "repetition_penalty",
    "bad_words", "allowed_token_ids", "stop_token_ids", "top_n_sigma", "tool_choice", "parallel_tool_calls",
    "reasoning_effort", "reasoning_format", "reasoning_budget", "chat_template_kwargs", "response_format",
    "input", "instructions", "text", "reasoning", "include", "metadata", "thinking", "enable_thinking",
    "return_token_ids", "truncation", "verbosity", "prediction",
)  # fmt: skip
SCHEMAS: tuple[object, ...] = (
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"enum": ["x", "y"]}}, "required": ["b"]},
    {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object"},
    {"$ref": "#/x"},
    {"type": "array", "uniqueItems": True},
    None,
)
CHOICES = ("auto", "none", "required", {"type": "function", "function": {"name": "f0"}})
UNITS = ("word ", "a", " ", "\n", "é漢😀", "9", '"\\')
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
RESPONSES = "/v1/responses"
POSTS = ("/v1/chat/completions", "/v1/completions", RESPONSES, "/tokenize", "/detokenize")


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
        path = pick(POSTS)
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
        elif path == RESPONSES:
            body["input"] = self._random.choice((text, [{"role": "user", "content": text}]))
        else:
            body["messages"].append({"role": "user", "content": text})
        return self._encoded(body)

    def _many(self, path: str) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
        body = self._good(path)
        n = int(2 ** self._random.uniform(5, 19))
        match self._random.randrange(8):
            case 7:
                body["input"] = [self._item()] * n
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
        if path == "/tokenize":
            return {"content": self._text(40), "with_pieces": self._random.random() < 0.5}
        if path == "/detokenize":
            return {"tokens": [self._random.randrange(256) for _ in range(9)]}
        few: dict[str, object] = {
            "model": "tiny",
            "max_tokens": self._random.randrange(1, 40),
            "temperature": self._random.choice((0, 0.7, 1)),
            "stream": self._random.random() < 0.5,
            "n": self._random.choice((1, 1, 1, 2, 4)),
            "seed": self._random.randrange(2**31),
            "ignore_eos": self._random.random() < 0.5,
        }
        if path == "/v1/completions":
            few["logprobs"] = self._random.choice((None, None, 0, 5))
            return few | {
                "prompt": self._random.choice((self._text(40), [self._text(9), self._text(9)], [1, 2, 3]))
            }
        few |= self._random.choice(
            ({}, {}, {"logprobs": True, "top_logprobs": 20}, {"stop": [self._text(3) or "x"]})
        )
        few |= self._random.choice(({}, {}, self._tools(), self._schema()))
        if path == RESPONSES:
            return self._response(few)
        messages: list[dict[str, object]] = [{"role": "user", "content": self._text(40)}]
        if self._random.random() < 0.1:
            call = {"id": "c", "type": "function", "function": {"name": "f0", "arguments": self._text(9)}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": "c", "content": self._text(9)})
        return few | {"messages": messages}

    def _response(self, few: dict[str, object]) -> dict[str, object]:
        """Return a body with the fields of a chat, in the words of responses."""
        pick = self._random.choice
        same = {name: few[name] for name in ("model", "temperature", "stream", "seed", "ignore_eos")}
        tools = [{"type": "function", "name": f"f{i}", "parameters": pick(SCHEMAS)} for i in range(2)]
        spaces = [{"type": "custom", "name": "c"}, {"type": "namespace", "name": "n", "tools": tools}]
        choices = (*CHOICES[:3], {"type": "function", "name": "f0"}, {"type": "custom", "name": "c"})
        more = pick(({}, {"tools": [*tools, *spaces, {"type": "web_search"}], "tool_choice": pick(choices)}))
        items = [self._item() for _ in range(self._random.randrange(1, 6))]
        return same | more | {"max_output_tokens": few["max_tokens"], "input": pick((self._text(40), items))}

    def _item(self) -> dict[str, object]:
        pick, text = self._random.choice, self._text(9)
        part = {"type": pick(("input_text", "output_text", "input_image")), "text": text}
        return pick(
            (
                {"role": pick(("user", "system", "developer", "assistant")), "content": pick((text, [part]))},
                {"type": "reasoning", "summary": [], "content": pick((None, [part]))},
                {"type": "function_call", "call_id": "c", "name": "f0", "arguments": text},
                {"type": "function_call_output", "call_id": "c", "output": pick((text, [part]))},
                {"type": "custom_tool_call", "call_id": "c", "name": "c", "input": text},
                {"type": pick(("item_reference", self._junk())), "id": "x"},
            )
        )

    def _tools(self) -> dict[str, object]:
        pick = self._random.choice
        names = [f"f{i}" for i in range(pick((1, 2, 30)))]
        tools = [
            {"type": "function", "function": {"name": name, "parameters": pick(SCHEMAS)}} for name in names
        ]
        return {
            "tools": tools,
            "tool_choice": pick(CHOICES),
            "parallel_tool_calls": pick((True, False, None)),
            "reasoning_budget": pick((None, 0, 5, -1)),
            "reasoning_effort": pick((None, "none", "high")),
        }

    def _schema(self) -> dict[str, object]:
        schema, strict = self._random.choice(SCHEMAS), self._random.random() < 0.5
        named = {"name": "x", "schema": schema, "strict": strict}
        return {"response_format": {"type": "json_schema", "json_schema": named}}

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
