"""The bytes of a body -> a wire model, read once and never beyond the limits."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

import numpy as np
import orjson
from fastapi import Request as HttpRequest
from numpy.typing import NDArray
from pydantic import ValidationError

from cobali_ray.api.body.schema import BodyModel
from cobali_ray.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    Field,
    InvalidParameterError,
    MalformedBodyError,
    Path,
    UnsupportedEncodingError,
    dotted,
)

ShapeT = TypeVar("ShapeT", bound=BodyModel)

MISSING: Final = ": missing required parameter"
"""The problem with a field that is not there."""

PIECE_TIMEOUT_S: Final = 30.0
"""How long a sender may pause in the middle of a body."""
MAX_FIELDS: Final = 256
"""Fields of one JSON object that is read by name."""
MAX_VALUES: Final = 400_000
"""Of one body, by WEIGHTS. Nothing interrupts the reading of JSON; so many values take at most 15 ms."""
WEIGHTS: Final = {b",": 1, b"[": 3, b"{": 3, b'"': 4}
"""How much of the reading time each mark stands for: a number counts 1, a string 8, a name and a number 9."""
ENCODINGS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class MustWait(Exception):  # noqa: N818 it asks for something, and nothing is wrong
    """A body cannot be read before something is there: `fetch` gets it, on the event loop."""

    def __init__(self, fetch: Callable[[], Coroutine[Any, Any, None]]) -> None:
        super().__init__(fetch)
        self.fetch = fetch


async def next_piece(stream: AsyncIterator[bytes]) -> bytes | None:
    """Return what comes next of a body; None at its end. Raises BodyTimeoutError."""
    try:
        async with asyncio.timeout(PIECE_TIMEOUT_S):
            return await anext(stream, None)
    except TimeoutError:
        raise BodyTimeoutError(PIECE_TIMEOUT_S) from None


async def read_body(http: HttpRequest, limit_bytes: int, hold: Callable[[int], None]) -> bytes:
    """Return the whole body, as it was before any content encoding.

    `hold` is called with the size of each piece before it is kept, and may raise. Raises BodyTooLargeError as
    soon as the body is over the limit, announced or not, BodyTimeoutError, and UnsupportedEncodingError.
    """
    encoding = http.headers.get("content-encoding", "identity").strip().lower()
    unpack = None
    if encoding in ENCODINGS:
        unpack = _Unpacker(encoding)
    elif encoding != "identity":
        raise UnsupportedEncodingError(encoding[:64], " or ".join(ENCODINGS))
    announced = http.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and len(announced) < 20 and int(announced) > limit_bytes:
        raise BodyTooLargeError(limit_bytes)
    pieces, n_bytes = [], 0
    stream = aiter(http.stream())
    while (piece := await next_piece(stream)) is not None:
        if unpack is not None:
            piece = unpack.take(piece, limit_bytes + 1 - n_bytes)
        n_bytes += len(piece)
        if n_bytes > limit_bytes:
            raise BodyTooLargeError(limit_bytes)
        hold(len(piece))
        pieces.append(piece)
    if unpack is not None and not unpack.whole:
        raise MalformedBodyError(f"its {encoding} data is incomplete")
    return b"".join(pieces)


class _Unpacker:
    """Undoes a content encoding piece by piece. A gzip body may have several members (RFC 1952, 2.2)."""

    def __init__(self, encoding: str) -> None:
        self._wbits = ENCODINGS[encoding]
        self._members = "gzip" in encoding
        self._unpack = zlib.decompressobj(self._wbits)

    @property
    def whole(self) -> bool:
        return self._unpack.eof

    def take(self, piece: bytes, max_bytes: int) -> bytes:
        """Return what a piece unpacks to, at most `max_bytes` of it. Raises MalformedBodyError."""
        parts = list[bytes]()
        try:
            while piece and max_bytes > 0:
                if self._unpack.eof:
                    if not self._members:
                        raise MalformedBodyError("there are bytes after the end of its compressed data")
                    self._unpack = zlib.decompressobj(self._wbits)
                parts.append(self._unpack.decompress(piece, max_bytes))
                max_bytes -= len(parts[-1])
                piece = self._unpack.unused_data
        except zlib.error as error:
            raise MalformedBodyError(f"its compressed data is damaged: {error}") from None
        return b"".join(parts)


def mended(raw: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Return a body with U+FFFD for every half of a surrogate pair, and the places where those stood.

    Programs that cut texts by UTF-16 send them, and keep them in the history of a chat. They are no text.
    """
    escapes = _half_escapes(raw) if rb"\ud" in raw or rb"\uD" in raw else _NONE
    encoded = _half_codes(raw) if b"\xed" in raw else _NONE
    if not (len(escapes) or len(encoded)) or is_heavy(raw):
        return raw, ()
    with suppress(orjson.JSONDecodeError):
        value = orjson.loads(_written(raw, ((escapes, rb"\ufdd0"), (encoded, _MARK.encode()))))
        places = tuple(dotted(place).replace(_MARK, "\ufffd") for place in _places(value))
        return _written(raw, ((escapes, rb"\ufffd"), (encoded, "\ufffd".encode()))), places
    return raw, ()


_NONE: Final = np.empty(0, np.int64)
_MARK: Final = "\ufdd0"
"""Stands for a half while its place is looked for; it is no character and never will be."""


def _half_escapes(raw: bytes) -> NDArray[np.int64]:
    """Return where the escape of a half begins that has no other half beside it."""
    # By numpy, as below. Of two backslashes the second begins no escape.
    chars = np.frombuffer(raw.replace(rb"\\", b"__"), np.uint8)
    at = np.flatnonzero(
        (chars[:-5] == ord("\\")) & (chars[1:-4] == ord("u")) & (chars[2:-3] | 32 == ord("d"))
    )
    at = at[np.isin(chars[at[:, None] + np.arange(3, 6)], _HEX_DIGITS).all(axis=1)]
    first = np.isin(chars[at + 3], np.frombuffer(b"89abAB", np.uint8))
    second = np.isin(chars[at + 3], np.frombuffer(b"cdefCDEF", np.uint8))
    firsts, seconds = at[first], at[second]
    lone = (firsts[~np.isin(firsts + 6, seconds)], seconds[~np.isin(seconds - 6, firsts)])
    return np.concatenate(lone)


_HEX_DIGITS: Final = np.frombuffer(b"0123456789abcdefABCDEF", np.uint8)


def _half_codes(raw: bytes) -> NDArray[np.int64]:
    """Return where a half stands as it would be in UTF-8."""
    chars = np.frombuffer(raw, np.uint8)
    return np.flatnonzero((chars[:-2] == 0xED) & (chars[1:-1] >= 0xA0) & (chars[2:] >= 0x80))


def _written(raw: bytes, changes: Iterable[tuple[NDArray[np.int64], bytes]]) -> bytes:
    """Return a body with other bytes, as many as there were, at some places."""
    chars = np.frombuffer(raw, np.uint8).copy()
    for at, text in changes:
        chars[at[:, None] + np.arange(len(text))] = np.frombuffer(text, np.uint8)
    return chars.tobytes()


def _places(value: Any) -> Iterator[Path]:
    left: list[tuple[Path, Any]] = [((), value)]
    while left:
        where, node = left.pop()
        if isinstance(node, str):
            if _MARK in node:
                yield where
        elif isinstance(node, list):
            left += [((*where, index), inside) for index, inside in enumerate(node)][::-1]
        elif isinstance(node, dict):
            yield from ((*where, key) for key in node if _MARK in key)
            left += [((*where, key), inside) for key, inside in node.items()][::-1]


def parse(shape: type[ShapeT], raw: bytes) -> ShapeT:
    """Return the body as its model. Raises MalformedBodyError or InvalidParameterError."""
    if is_heavy(raw):
        raise MalformedBodyError("it has too many values: at most 400,000 numbers, or 40,000 named ones")
    try:
        value = orjson.loads(raw)
        # orjson reads deeper than it writes, and a part may be written further inside than it came.
        orjson.dumps([[[[value]]]])
    except orjson.JSONDecodeError as error:
        # The parser's own message may quote the body, so only the place is given.
        raise MalformedBodyError(f"invalid JSON at line {error.lineno} column {error.colno}") from None
    except orjson.JSONEncodeError:
        raise MalformedBodyError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise MalformedBodyError("the top-level value is not an object")
    return model_of(shape, value)


def check_choice(where: Field, value: str, choices: tuple[str, ...]) -> None:
    """Raise InvalidParameterError unless a field has one of these values."""
    if value not in choices:
        raise InvalidParameterError(where, f"must be one of {', '.join(choices)}, got {value[:32]!r}")


def is_heavy(raw: bytes) -> bool:
    heaviest = sum(weight * raw.count(mark) for mark, weight in WEIGHTS.items())
    return heaviest > MAX_VALUES and _weight_outside_texts(raw) > MAX_VALUES


def _weight_outside_texts(raw: bytes) -> int:
    # By numpy, which lets other threads run meanwhile.
    plain = raw.replace(rb"\\", b"__").replace(rb"\"", b"__")
    chars = np.frombuffer(plain, np.uint8)
    quotes = chars == ord('"')
    counts = ~np.bitwise_xor.accumulate(quotes) | quotes
    return sum(
        weight * int(np.count_nonzero((chars == ord(mark)) & counts)) for mark, weight in WEIGHTS.items()
    )


def model_of(shape: type[ShapeT], value: dict[str, Any], where: Path = ()) -> ShapeT:
    """Return a JSON object, of this place in the body, as its model. Raises BadRequestError."""
    if len(value) > MAX_FIELDS:
        raise MalformedBodyError(f"{dotted(where) or 'it'} has more than {MAX_FIELDS} fields")
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise _first(error, where) from None


def _first(error: ValidationError, where: Path) -> InvalidParameterError:
    detail = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # Steps may be keys of the client's making, hence the cut.
    path = (*where, *(step if isinstance(step, int) else step[:64] for step in detail["loc"]))
    if detail["type"] == "missing":
        return InvalidParameterError(path, MISSING)
    message = detail["msg"]
    return InvalidParameterError(path, f": {message[:1].lower()}{message[1:]}")
