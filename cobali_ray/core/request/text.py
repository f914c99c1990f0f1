"""Bytes of tokens to text, never splitting a character."""

from __future__ import annotations

import codecs

_decoder_of = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """An incremental UTF-8 decoder: incomplete characters wait, broken ones become U+FFFD."""

    __slots__ = ("_decoder", "waiting")

    def __init__(self) -> None:
        self._decoder = _decoder_of("replace")
        self.waiting = False
        """Whether part of a character was fed."""

    def feed(self, piece: bytes) -> str:
        """Add one token's bytes and return the text that is now complete."""
        if not self.waiting and piece.isascii():
            return piece.decode("ascii")
        text = self._decoder.decode(piece)
        self.waiting = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """Return what is left, an incomplete character as U+FFFD."""
        self.waiting = False
        return self._decoder.decode(b"", final=True)
