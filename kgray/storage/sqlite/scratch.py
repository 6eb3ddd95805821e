"""A temporary database on the disk, for rows that are read in several orders and do not fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import apsw

from kgray.errors import NoSpace, Stopped
from kgray.schema.kinds import Row

_CACHE_KB = 16 << 10  # also the memory of a sort; more lies in temporary files
_PORTION = 2_000  # rows that wait in memory


class Scratch:
    """A database without a name, which vanishes with the process. Rows of one statement come one by one."""

    def __init__(self, schema: str, stop: Callable[[], bool] = lambda: False) -> None:
        """Make the tables; schema: statements. stop: if it returns True, reads and writes raise Stopped."""
        self._stop = stop
        self._connection = apsw.Connection("")
        for name, value in (("journal_mode", "OFF"), ("synchronous", "OFF"), ("cache_size", -_CACHE_KB)):
            self._connection.pragma(name, value)
        self._connection.execute(f"BEGIN; {schema}")  # without an end: a commit of each row costs 30 us

    def pour(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement with each row of values. The rows may come from this database."""
        source = iter(rows)
        with _explained():
            while portion := list(islice(source, _PORTION)):
                self.check()
                self._connection.executemany(statement, portion)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Execute a statement; return the number of rows that it changed."""
        with _explained():
            self._connection.execute(statement, values)
            return int(self._connection.changes())

    def rows(self, statement: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """Yield the rows of a query."""
        with _explained():
            for row in self._connection.execute(statement, values):
                self.check()
                yield row

    def first(self, statement: str, values: Sequence[Any] = ()) -> Any:  # noqa: ANN401 - a row or None
        """Return the first row of a query; None: it has none."""
        with _explained():
            return self._connection.execute(statement, values).fetchone()

    def check(self) -> None:
        """Raise Stopped if `stop` returns True."""
        if self._stop():
            raise Stopped("the work with a temporary file was stopped")

    def close(self) -> None:
        """Delete the database."""
        self._connection.close(True)  # a query may not have been read to its end


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (apsw.FullError, apsw.IOError, apsw.CantOpenError) as error:
        raise NoSpace(
            f"there is no room for temporary files ({error}): set TMPDIR to a folder with more room"
        ) from None
