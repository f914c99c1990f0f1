"""Images in a prompt: what stands for their rows among the tokens, and where a prompt may be cut. Pure.

An image comes with a request as a file and an id that holds its place. The engine, which has the projector,
puts as many ids there as the image has rows. All of them are negative, where no vocabulary has tokens, and a
hash of the file: prompts with the same image are the same in them, and whatever compares tokens, in slots, in
host memory and on disk, finds what they share.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256, shake_128
from typing import NamedTuple

from cobali_ray.errors import Field

_ID_BYTES = 4
_BELOW = -(2**31)


class Image(NamedTuple):
    """A file that came with a request."""

    data: bytes
    field: Field
    """Where in the body."""

    @property
    def digest(self) -> bytes:
        """A hash that identifies the file."""
        return sha256(self.data).digest()


class Rows(NamedTuple):
    """A part of a prompt that is computed from an image and not from tokens."""

    start: int
    length: int
    digest: bytes
    """Of the image."""
    part: int
    """Its number among the image's parts."""
    whole: bool
    """Whether one pass must compute all of it; else any chunk of it will do."""

    @property
    def end(self) -> int:
        """Where the tokens behind it begin."""
        return self.start + self.length


def ids_of(digest: bytes, part: int, n: int) -> list[int]:
    """Return what stands for the rows of a part of an image: negative numbers."""
    raw = array("i", shake_128(digest + part.to_bytes(4, "little")).digest(n * _ID_BYTES))
    return [number if number < 0 else number + _BELOW for number in raw]


def place_of(image: Image) -> int:
    """Return what holds the place of an image until its rows are known."""
    return ids_of(image.digest, 0, 1)[0]


def whole_prefix(n: int, rows: Sequence[Rows]) -> int:
    """Return the longest prefix of at most `n` tokens that ends inside no image.

    No prompt could continue inside an image whose rows see each other, or share a position.
    """
    return next((part.start for part in rows if part.start < n < part.end), n)
