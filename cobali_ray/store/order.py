"""The order of a batch: requests with a common beginning stand next to each other. Pure.

Sorting the texts would do, but they may be gigabytes. So a text counts as a row of hashes, four bytes for
each 128 bytes of it, and such rows are sorted: that is the depth-first order of a prefix tree over all texts
whose edges are blocks of 128 bytes. Below a common beginning the order is that of hashes, by chance, so long
and short requests are mixed, and the slots stay full.

Models come one after another, as one may have to be unloaded for the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from zlib import crc32

import orjson

BLOCK_BYTES: Final = 128
_TEXT_FIELDS: Final = ("tools", "system", "instructions", "messages", "prompt", "input")
"""Fields with text that a model reads, in the order in which it mostly does."""


def order_key(model: str, body: Mapping[str, Any]) -> bytes:
    """Return what the requests of a batch are sorted by: equal beginnings mean equal texts."""
    text = b"\n".join(_texts(body))
    blocks = (text[at : at + BLOCK_BYTES] for at in range(0, len(text), BLOCK_BYTES))
    return b"".join((model.encode(errors="replace"), b"\0", *(crc32(block).to_bytes(4) for block in blocks)))


def _texts(body: Mapping[str, Any]) -> Iterator[bytes]:
    for name in _TEXT_FIELDS:
        value = body.get(name)
        if isinstance(value, str):
            yield value.encode(errors="replace")
        elif isinstance(value, list):
            for part in value:
                yield _text(part)
        elif value is not None:
            yield _text(value)


def _text(value: Any) -> bytes:
    """Return the text of a message, of a part or of whatever else; what is not text as JSON."""
    if isinstance(value, dict) and isinstance(content := value.get("content"), str):
        return f"{value.get('role')}\n{content}".encode(errors="replace")
    return value.encode(errors="replace") if isinstance(value, str) else orjson.dumps(value)
