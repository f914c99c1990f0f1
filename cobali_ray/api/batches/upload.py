"""An upload: multipart/form-data as it arrives becomes lines in the store, each checked when it is there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Final

from fastapi import Request as HttpRequest
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartState, parse_options_header

from cobali_ray.api.body.params import whole_number
from cobali_ray.api.body.reading import MISSING, is_heavy, next_piece
from cobali_ray.api.door.keeping import Keeping
from cobali_ray.errors import (
    BadLineError,
    InvalidParameterError,
    MalformedFormError,
    StoreFailedError,
    UnsupportedEncodingError,
)
from cobali_ray.store import files
from cobali_ray.store.connection import StoreConnection
from cobali_ray.store.files import FileRecord, Piece
from cobali_ray.store.lines import LineSplitter, SeenIds, parse_line

MAX_FIELD_BYTES: Final = 4096
MAX_PARTS: Final = 16
STEP_BYTES: Final = 4 << 20
"""How much is taken in one transaction; each of them waits for the disk."""
MIN_KEPT_S, MAX_KEPT_S = 3600, 30 * 24 * 3600
"""Of `expires_after`, as OpenAI has it."""
_NAME: Final = re.compile(r"[^\x20-\x7e\xa0-\uffff]")


class FormReader:
    """Reads a form piece by piece: its fields whole, its file as it comes."""

    def __init__(self, content_type: str, take: Callable[[bytes], None]) -> None:
        """`take` gets the bytes of the part `file`. Raises MalformedFormError."""
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not (boundary := options.get(b"boundary")):
            raise MalformedFormError("its content-type is not multipart/form-data with a boundary")
        self._take = take
        self.fields: dict[str, str] = {}
        self.file_name: str | None = None
        self._part, self._header, self._value = "", b"", b""
        self._content = bytearray()
        self._n_parts = 0
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value,
                    "on_header_end": self._end_header,
                    "on_part_data": self._part_data,
                    "on_part_end": self._end_part,
                },
            )
        except FormParserError:
            raise MalformedFormError("its boundary is too long") from None

    def feed(self, piece: bytes) -> None:
        """Read on. Raises MalformedFormError, and what `take` raises."""
        try:
            self._parser.write(piece)
        except FormParserError:
            raise MalformedFormError("it does not keep to its boundary") from None

    def end(self) -> None:
        """Raise MalformedFormError where it is not whole."""
        if self._parser.state is not MultipartState.END:
            raise MalformedFormError("it ends before its last boundary")

    def _begin_part(self) -> None:
        self._n_parts += 1
        if self._n_parts > MAX_PARTS:
            raise MalformedFormError(f"it has more than {MAX_PARTS} parts")
        self._part = ""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value.decode("latin-1"))
            self._part = options.get(b"name", b"").decode("utf-8", "replace")
            if self._part == "file":
                if self.file_name is not None:
                    raise MalformedFormError("it has two files")
                name = options.get(b"filename", b"").decode("utf-8", "replace")
                self.file_name = _NAME.sub("", name)[:255] or "input.jsonl"
        self._header, self._value = b"", b""

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._part == "file":
            self._take(data[start:end])
            return
        self._content += data[start:end]
        if len(self._content) > MAX_FIELD_BYTES:
            raise MalformedFormError(f"a field is longer than {MAX_FIELD_BYTES:,} bytes")

    def _end_part(self) -> None:
        if self._part != "file":
            self.fields[self._part] = bytes(self._content).decode("utf-8", "replace")
        self._content.clear()


class _Upload:
    """One file on its way; used by the store's thread."""

    def __init__(self, content_type: str, file_id: str, keeping: Keeping, max_line_bytes: int) -> None:
        self._file_id, self._keeping = file_id, keeping
        self._lines, self._seen = LineSplitter(max_line_bytes), SeenIds()
        self._pieces: list[Piece] = []
        self.form = FormReader(content_type, self._take)

    def feed(self, db: StoreConnection, data: bytes, now_s: int) -> None:
        self.form.feed(data)
        self._append(db, now_s)

    def end(self, db: StoreConnection, now_s: int) -> FileRecord:
        """Take what is left, and make the file visible. Raises what is wrong with it."""
        self.form.end()
        for number, line in self._lines.end():
            self._check(number, line)
        self._append(db, now_s)
        kept_s = _kept_s(self.form)
        return files.complete(db, self._file_id, self.form.file_name or "", self._keeping.until_s(kept_s))

    def _take(self, data: bytes) -> None:
        for number, line in self._lines.feed(data):
            self._check(number, line)

    def _check(self, number: int, line: bytes) -> None:
        if is_heavy(line):
            raise BadLineError(number, "has more values than a request may have")
        request = parse_line(number, line)
        self._seen.add(number, request.custom_id)
        self._pieces.append(Piece(number, line + b"\n", request))

    def _append(self, db: StoreConnection, now_s: int) -> None:
        pieces, self._pieces = self._pieces, []
        files.append(db, self._file_id, pieces, now_s, self._keeping.quota())


def _kept_s(form: FormReader) -> int | None:
    """Return how long a file is to be kept, if the form says it. Raises what is wrong with the form."""
    fields = form.fields
    if form.file_name is None:
        raise InvalidParameterError("file", MISSING)
    if (purpose := fields.get("purpose")) is None:
        raise InvalidParameterError("purpose", MISSING)
    if purpose != files.INPUT:
        message = f"must be {files.INPUT!r}, got {purpose[:32]!r}: files are kept here for batches alone"
        raise InvalidParameterError("purpose", message)
    anchor, seconds = (fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
    if anchor not in {None, "created_at"}:
        raise InvalidParameterError(("expires_after", "anchor"), "must be 'created_at'")
    if seconds is None:
        return None
    return whole_number(seconds, "expires_after", low=MIN_KEPT_S, high=MAX_KEPT_S)


async def take_upload(http: HttpRequest, owner: str, keeping: Keeping, max_line_bytes: int) -> FileRecord:
    """Read a form with a file into the store; what came of one that is wrong or not whole is deleted."""
    encoding = http.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedEncodingError(encoding[:64], "no encoding")
    store = keeping.require()
    file_id = await store(files.begin, owner, files.INPUT, "", keeping.now_s(), keeping.quota())
    try:
        upload = _Upload(http.headers.get("content-type", ""), file_id, keeping, max_line_bytes)
        stream, held = aiter(http.stream()), bytearray()
        while True:
            piece = await next_piece(stream)
            held += piece or b""
            if piece is None or len(held) >= STEP_BYTES:
                await store(upload.feed, bytes(held), keeping.now_s())
                held.clear()
            if piece is None:
                return await store(upload.end, keeping.now_s())
    except BaseException as error:
        if not isinstance(error, StoreFailedError):  # else the sweep finds it
            await asyncio.shield(store(files.drop, [file_id]))
        raise
