"""Images of a chat: parts of messages -> files that the engine may decode. Pure.

Only data URLs are taken, of kinds whose size stands in their first bytes: it is checked before they are
decoded. In the text that a chat template writes, a marker that no client can guess stands for each.
"""

from __future__ import annotations

import binascii
import re
import secrets
from base64 import b64decode
from collections.abc import Callable, Sequence
from struct import unpack_from
from typing import Any, Final

from cobali_ray.core.request.media import Image, place_of
from cobali_ray.errors import InvalidImageError, InvalidParameterError, Path, UnsupportedParameterError

MAX_IMAGES: Final = 32
"""Of one request."""
MAX_PIXELS: Final = 1 << 26
"""Of all images of one request together; decoded, each takes three bytes."""
MAX_RATIO: Final = 200
"""Of the longer side to the shorter: as far as models were trained to go."""
KINDS: Final = "PNG, JPEG and GIF"

_NONCE: Final = secrets.token_hex(16)
_MARKER: Final = re.compile(rf"<image {_NONCE} (\d+)>")
_DATA_URL: Final = re.compile(r"data:([\w.+/-]*)((?:;[\w=.+-]+)*),", re.ASCII)
_MIMES: Final = frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif"})
_JPEG_FRAMES: Final = (0xC0, 0xC1, 0xC2)
_FILLERS: Final = re.compile(rb"\xff+")


class ChatImages:
    """The images of one chat, in the order of their markers."""

    def __init__(self) -> None:
        self.files: list[Image] = []
        self._n_pixels = 0

    def take(self, part: dict[str, Any], where: Path) -> str:
        """Take an `image_url` part; return the marker that holds its place. Raises InvalidParameterError."""
        if len(self.files) == MAX_IMAGES:
            raise InvalidImageError(where, f": at most {MAX_IMAGES} images in one request")
        inner = part.get("image_url")
        path = (*where, "image_url")
        url = inner
        if isinstance(inner, dict):
            path, url = (*path, "url"), inner.get("url")
        if not isinstance(url, str):
            raise InvalidParameterError(path, "must be a string")
        data = _data_of(url, path)
        width, height = _checked_size(data, path)
        self._n_pixels += width * height
        if self._n_pixels > MAX_PIXELS:
            raise InvalidImageError(
                path, f": the images of a request have at most {MAX_PIXELS:,} pixels in all"
            )
        self.files.append(Image(data, path))
        return f"<image {_NONCE} {len(self.files) - 1}>"


def tokens_of(text: str, images: Sequence[Image], tokenize: Callable[[str], list[int]]) -> list[int]:
    """Return a chat's tokens, an id for each image. Raises InvalidParameterError unless each occurs once."""
    if not images:
        return tokenize(text)
    first, *rest = _MARKER.split(text)
    numbers = [int(number) for number in rest[::2]]
    if sorted(numbers) != list(range(len(images))):
        raise InvalidParameterError("messages", ": the model's chat template has no place for images")
    tokens = tokenize(first) if first else []
    for number, piece in zip(numbers, rest[1::2], strict=True):
        tokens.append(place_of(images[number]))
        tokens += tokenize(piece) if piece else []
    return tokens


def in_order(text: str, images: Sequence[Image]) -> tuple[Image, ...]:
    """Return the images in the order in which a rendered chat has them."""
    return tuple(images[int(number)] for number in _MARKER.findall(text))


def with_media_marks(text: str) -> str:
    """Return a rendered chat as clients may see it, with llama.cpp's own marker in place of each image."""
    return _MARKER.sub("<__media__>", text)


def _data_of(url: str, path: Path) -> bytes:
    if url.startswith(("http://", "https://")):
        raise UnsupportedParameterError(path, ": images are not fetched from other servers; send a data URL")
    head = _DATA_URL.match(url[:256])
    if head is None or ";base64" not in head[2]:
        raise InvalidImageError(path, "must be a data URL: data:image/png;base64,...")
    if (mime := head[1].lower()) not in _MIMES:
        raise InvalidImageError(path, f": {mime[:64]!r} is not supported, only {KINDS}")
    try:
        return b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise InvalidImageError(path, "is not valid base64") from None


def _checked_size(data: bytes, path: Path) -> tuple[int, int]:
    size = size_of(data)
    if size is None:
        raise InvalidImageError(path, f"cannot be read as an image; {KINDS} are supported")
    width, height = size
    if not min(size) or max(size) > MAX_RATIO * min(size):
        raise InvalidImageError(
            path, f": no side may be more than {MAX_RATIO} times the other, got {width} x {height}"
        )
    return size


def size_of(data: bytes) -> tuple[int, int] | None:
    """Return width and height from the first bytes of a file; None if it is none of the `KINDS`."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR" and len(data) >= 24:
        width, height = unpack_from(">II", data, 16)
        return width, height
    if data.startswith((b"GIF87a", b"GIF89a")) and len(data) >= 10:
        width, height = unpack_from("<HH", data, 6)
        return width, height
    return _jpeg_size(data) if data.startswith(b"\xff\xd8\xff") else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Go from segment to segment until the one that begins the picture."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF:
            at = _FILLERS.match(data, at).end() - 1  # type: ignore[union-attr] # there are two at least
        elif kind in _JPEG_FRAMES:
            height, width = unpack_from(">HH", data, at + 5)
            return width, height
        else:
            at += 2 + int(unpack_from(">H", data, at + 2)[0])
    return None
