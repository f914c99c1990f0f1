"""The files of `cobali batch run`: questions in the order in which they are asked, answers as they come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import orjson

from cobali_ray.errors import BadLineError, ConfigError
from cobali_ray.store.lines import LineRequest, SeenIds, parse_line
from cobali_ray.store.order import order_key

_BOM: Final = b"\xef\xbb\xbf"


class QuestionPlace(NamedTuple):
    """Where a line is."""

    order_key: bytes
    number: int
    start: int
    custom_id: str


class QuestionFile:
    """A file of requests; of each line only its place is kept."""

    def __init__(self, path: Path) -> None:
        """Read it through. Raises ConfigError that names the first wrong line."""
        self._path, self.places, seen, start = path, list[QuestionPlace](), SeenIds(), 0
        try:
            with path.open("rb") as file:
                for number, raw in enumerate(file, 1):
                    if line := _stripped(raw):
                        request = parse_line(number, line)
                        seen.add(number, request.custom_id)
                        key = order_key(request.model, request.body)
                        self.places.append(QuestionPlace(key, number, start, request.custom_id))
                    start += len(raw)
        except OSError as error:
            raise ConfigError("INPUT", f"{path} cannot be read: {error.strerror}") from None
        except BadLineError as error:
            raise ConfigError("INPUT", f"{path}: {error}") from None
        if not self.places:
            raise ConfigError("INPUT", f"{path} has no lines")

    def __len__(self) -> int:
        return len(self.places)

    def read(self, place: QuestionPlace) -> LineRequest:
        """Return what a line asks."""
        with self._path.open("rb") as file:
            file.seek(place.start)
            return parse_line(place.number, _stripped(file.readline()))


def _stripped(raw: bytes) -> bytes:
    return raw.removeprefix(_BOM).strip()


class AnswerFile:
    """A file of answers that is continued: an incomplete last line is removed."""

    def __init__(self, path: Path) -> None:
        """Open it, or make it. Raises ConfigError."""
        self._path = path
        with self._writing():
            self._file = path.open("a+b")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError("--output", f"{self._path} cannot be written: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._writing():
            os.fsync(self._file.fileno())
            self._file.close()

    def without_answer(self, questions: QuestionFile) -> list[QuestionPlace]:
        """Return the questions without an answer, those with a common beginning next to each other.

        Raises ConfigError where the file is not one of answers to them.
        """
        custom_ids, answered, end = {place.custom_id for place in questions.places}, set[str](), 0
        self._file.seek(0)
        for number, raw in enumerate(self._file, 1):
            if not raw.endswith(b"\n"):
                break
            end += len(raw)
            try:
                custom_id = orjson.loads(raw)["custom_id"]
                is_asked = custom_id in custom_ids
            except (ValueError, LookupError, TypeError):
                raise ConfigError("--output", f"{self._path}: line {number} is not an answer") from None
            if not is_asked:
                why = f"line {number} answers {str(custom_id)[:64]!r}, which is not in the input"
                raise ConfigError("--output", f"{self._path}: {why}")
            answered.add(custom_id)
        self._file.truncate(end)
        return sorted(place for place in questions.places if place.custom_id not in answered)

    def add(self, line: bytes) -> None:
        """Write an answer; it is in the file when this returns, whatever happens to this process.

        Raises ConfigError.
        """
        with self._writing():
            self._file.write(line)
            self._file.flush()
