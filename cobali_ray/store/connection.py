"""StoreConnection: what the functions of the store work on, whichever database it leads to.

SQL is written once, in the words that SQLite and PostgreSQL both have: `?` stands for a value, and what is
true is 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

from cobali_ray.errors import why_of
from cobali_ray.store.tables import VERSIONS


class StoreConnection(ABC):
    """Used by one thread. Transactions of all processes follow each other."""

    errors: type[Exception]
    """What the library raises."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Where it leads, without passwords."""

    @property
    @abstractmethod
    def holds_lock(self) -> bool:
        """Whether this process is the one that runs batches. Any thread may ask."""

    @abstractmethod
    def execute(self, query: str, values: Sequence[Any] = ()) -> Any:
        """Return a cursor over rows, whose fields are there by place and by name."""

    @abstractmethod
    def executemany(self, query: str, values: Iterable[Sequence[Any]]) -> None: ...

    @abstractmethod
    def take_lock(self) -> bool:
        """Try to become the one process that runs batches; the lock ends with the process."""

    @abstractmethod
    def give_back(self) -> None:
        """Give back to the disk what was deleted, where the database does not do so itself."""

    def why(self, error: Exception) -> str:
        """Return what clients may see of an error."""
        return why_of(error)

    @abstractmethod
    def close(self) -> None: ...

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Have what is inside done whole, or not at all if it raises."""
        try:
            self._begin()
            yield self
        except BaseException:
            with suppress(self.errors):  # a full disk or a lost connection has undone it already
                self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    @abstractmethod
    def _begin(self) -> None:
        """Begin a transaction, once no other is under way."""

    def _prepare(self) -> None:
        """Make the tables that are not there yet, in a transaction."""
        version = self._version()
        if version > len(VERSIONS):
            raise self.errors("it was written by a later version of cobali")
        for number, tables in enumerate(VERSIONS[version:], version + 1):
            for statement in tables.split(";\n"):
                self.execute(self._own_words(statement))
            self._set_version(number)

    @abstractmethod
    def _version(self) -> int:
        """Return how many versions the tables have seen; 0 where there are none."""

    @abstractmethod
    def _set_version(self, version: int) -> None: ...

    def _own_words(self, statement: str) -> str:
        """Translate a statement of `tables.py`, which are SQLite's."""
        return statement
