"""Every kind of store behind one fixture: what `ports.Store` promises is tested on each of them.

A place is where a store's data lies: a folder, or a server's database. Opening it twice gives what two
processes would have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kgray.ports import Store
from kgray.stores.lock import LOCK_FILE
from kgray.stores.sqlite import open_sqlite

WIDTH = 16  # numbers a vector, where a test makes them by hand
KINDS = (
    "sqlite",
    # All share one database, which each test empties: one worker runs them.
    pytest.param("neo4j", marks=pytest.mark.neo4j),
)


class Stores(ABC):
    """Opens the store of one place, empty at first; closes what it opened.

    examples    how often a property is tried
    thorough    whether the place is quick enough for every variation of a case
    """

    examples: int
    thorough: bool

    def __init__(self) -> None:
        self._opened: list[Store] = []

    def open(self, *, embedder: str = "by-hand", dimensions: int = WIDTH) -> Store:
        """Open the place as one more process would."""
        store = self._open(embedder, dimensions)
        self._opened.append(store)
        return store

    def close(self) -> None:
        """Close every store that was opened here."""
        while self._opened:
            self._opened.pop().close()

    def fresh(self) -> None:
        """Close all, and go on at an empty place: for a property that is tried many times in one test."""
        self.close()
        self._empty()

    @abstractmethod
    def lose_hold(self) -> None:
        """Take the hold from who writes unseen: a file system without locks, a lease that ran out."""

    @abstractmethod
    def _open(self, embedder: str, dimensions: int) -> Store: ...

    @abstractmethod
    def _empty(self) -> None: ...


class SqliteStores(Stores):
    """The embedded store in a data folder."""

    examples = 25
    thorough = True

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._root = folder
        self._place = 0

    def lose_hold(self) -> None:
        (self._folder / LOCK_FILE).unlink()

    @property
    def _folder(self) -> Path:
        return self._root / f"place-{self._place}"

    def _open(self, embedder: str, dimensions: int) -> Store:
        return open_sqlite(self._folder, embedder=embedder, dimensions=dimensions)

    def _empty(self) -> None:
        self._place += 1


class Neo4jStores(Stores):
    """The store on a server, whose database is emptied before each test.

    What was made for the embedder of the test before (constraints, indexes) stays where the next one wants
    the same: making them takes longer than a test.
    """

    examples = 3
    thorough = False

    def __init__(self, server: Any, driver: Any) -> None:
        super().__init__()
        self._server, self._driver = server, driver
        self._empty_now = False
        self._empty()

    def lose_hold(self) -> None:
        self._driver.execute_query("MATCH (s:KgrayShard) REMOVE s.holder, s.beat")

    def _open(self, embedder: str, dimensions: int) -> Store:
        from kgray.stores.neo4j import open_neo4j

        if self._empty_now:
            self._prepare(embedder, dimensions)
            self._empty_now = False
        return open_neo4j(
            uri=self._server.uri, user=self._server.user, password=self._server.password, embedder=embedder,
            dimensions=dimensions,
        )  # fmt: skip

    def _prepare(self, embedder: str, dimensions: int) -> None:
        """Take away what was made for another embedder; opening makes it anew."""
        self._driver.execute_query(
            "MATCH (m:KgrayMeta) WHERE m.embedder <> $embedder OR m.dimensions <> $dimensions DELETE m",
            embedder=embedder,
            dimensions=dimensions,
        )

    def _empty(self) -> None:
        with self._driver.session() as session:
            session.run(
                "MATCH (n) WHERE NOT n:KgrayMeta CALL (n) { DETACH DELETE n } IN TRANSACTIONS OF 5000 ROWS"
            ).consume()
        self._empty_now = True


@pytest.fixture(params=KINDS)
def stores(request, tmp_path) -> Iterator[Stores]:
    """Yield the maker of stores at an empty place, of each kind in turn."""
    if request.param == "sqlite":
        made: Stores = SqliteStores(tmp_path)
    else:
        made = Neo4jStores(request.getfixturevalue("neo4j_server"), request.getfixturevalue("neo4j_driver"))
    yield made
    made.close()


@pytest.fixture
def store(stores) -> Store:
    """Open one store of 16 numbers a vector."""
    return stores.open()
