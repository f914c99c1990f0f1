"""ImageReader: how many rows images have in a prompt, and the rows, computed beside the tick thread.

The way of an image: `api/body/images.py` takes the file out of a message and leaves a negative id; `expand`
finds out, before the door and in a thread, how many ids there must be, since only the engine has the
projector; `encode` makes the rows in another thread while the request is NOT_READY; chunks are cut around
them (`cut_chunks` in `core/plan/plan.py`), and `backend/image_pass.py` computes each in a call of its own.
No prefix ends inside an image.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TypeAlias

import structlog

from cobali_ray.backend.batch import ImagePart, ImageRows
from cobali_ray.backend.projector import Projector
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.media import Image, Rows, ids_of
from cobali_ray.core.request.request import Request
from cobali_ray.errors import InternalError, InvalidImageError, UnsupportedParameterError

_log = structlog.get_logger(__name__)

KEPT_BYTES = 256 << 20
"""Of rows that are kept for the next request with the same image: the next turn of its chat has it again."""
_MAX_KNOWN = 1024
"""Images whose number of rows is remembered."""

_Key: TypeAlias = tuple[str | None, bytes]
"""A request's salt and an image's digest: how fast an answer comes tells nobody what others have sent.
Without a salt nothing is kept."""
RowsOf: TypeAlias = Mapping[tuple[bytes, int], ImageRows]
"""The rows of a request's images, by digest and part."""


class ImageReader:
    """The images of requests. `expand` is for any thread, `encode` for one."""

    def __init__(self, projector: Projector | None, limits: EngineLimits) -> None:
        self._projector, self._max_rows = projector, limits.token_budget - limits.n_slots
        self._parts: dict[_Key, list[ImagePart]] = {}
        self._rows: OrderedDict[_Key, list[ImageRows]] = OrderedDict()
        self._n_bytes = 0

    def expand(self, request: Request) -> Request:
        """Return a request whose prompt has as many ids for each image as that has rows.

        Raises UnsupportedParameterError where the model does not accept images, InvalidImageError.
        """
        if self._projector is None:
            raise UnsupportedParameterError(request.images[0].field, ": the model does not accept images")
        images = iter(request.images)
        prompt: list[int] = []
        rows: list[Rows] = []
        turns: list[int] = []
        n_plain = 0
        for place, token in enumerate(request.prompt):
            if place == request.n_plain:
                n_plain = len(prompt)
            if place in request.turns:
                turns.append(len(prompt))
            if token >= 0 or (image := next(images, None)) is None:
                prompt.append(token)
                continue
            digest = image.digest
            for number, part in enumerate(self._read(self._projector, image, (request.cache_salt, digest))):
                if part.n_rows:
                    rows.append(Rows(len(prompt), part.n_rows, digest, number, self._projector.whole))
                    prompt += ids_of(digest, number, part.n_rows)
                prompt += part.tokens
        return replace(request, prompt=tuple(prompt), rows=tuple(rows), turns=tuple(turns), n_plain=n_plain)

    def _read(self, projector: Projector, image: Image, key: _Key) -> list[ImagePart]:
        parts = self._parts.get(key)
        if parts is None:
            parts = projector.read(image.data)
            if parts is None:
                raise InvalidImageError(image.field, "cannot be read as an image")
            if key[0] is not None:
                if len(self._parts) >= _MAX_KNOWN:
                    self._parts.clear()
                self._parts[key] = parts
        most = max([part.n_rows for part in parts])
        if projector.whole and most > self._max_rows:
            why = f"comes to {most} rows, which one pass must compute, and one has room for {self._max_rows}"
            raise InvalidImageError(image.field, f"{why}; operators can raise the setting token_budget")
        return parts

    def encode(self, request: Request, images: Sequence[Image]) -> RowsOf:
        """Return the rows that a request wants of its images. Raises InternalError where that fails."""
        encoded: dict[tuple[bytes, int], ImageRows] = {}
        data = {image.digest: image.data for image in images}
        numbers: dict[bytes, list[int]] = {}
        for image_part in request.rows:
            numbers.setdefault(image_part.digest, []).append(image_part.part)
        for digest, parts in numbers.items():
            rows = self._encoded((request.cache_salt, digest), data[digest])
            encoded |= {
                (digest, part): values for part, values in zip(dict.fromkeys(parts), rows, strict=True)
            }
        return encoded

    def _encoded(self, key: _Key, data: bytes) -> list[ImageRows]:
        if (rows := self._rows.get(key)) is not None:
            self._rows.move_to_end(key)
            return rows
        if self._projector is None:
            raise InternalError("there is no projector")
        began_s = perf_counter()
        rows = self._projector.encode(data)
        n_rows, seconds = sum([len(part.values) for part in rows]), round(perf_counter() - began_s, 3)
        _log.info("image_encoded", n_rows=n_rows, seconds=seconds)
        if key[0] is None:
            return rows
        self._rows[key] = rows
        self._n_bytes += _bytes_of(rows)
        while self._n_bytes > KEPT_BYTES and len(self._rows) > 1:
            _, oldest = self._rows.popitem(last=False)
            self._n_bytes -= _bytes_of(oldest)
        return rows


def _bytes_of(rows: list[ImageRows]) -> int:
    return sum([part.values.nbytes for part in rows])
