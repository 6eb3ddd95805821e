"""Every kind of store behind one fixture: the promises of `ports.Store` are tested on each kind.

A place is where a store's data lies: a folder, or a server's database. Opening it twice gives the same as
two processes. All tests on a server share its database, so a test on a server writes only to groups
whose names are unique (`group`, `other_group`, `Stores.fresh`), and filters answers about all groups
with `mine`.
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kgray.ports import Store
from kgray.schema.kinds import OWN
from kgray.storage.sqlite import open_sqlite
from kgray.system.locks import INGEST_LOCK
from tests.graph.by_hand import EMBEDDER, WIDTH
from tests.neo4j_server import Neo4jServer

_REPORTED: set[str] = set()  # foreign group names that were reported already
KINDS = ("sqlite", pytest.param("neo4j", marks=pytest.mark.neo4j))
# Tests whose result is computed above the stores: a server would give the same result.
EMBEDDED = pytest.mark.parametrize("stores", ["sqlite"], indirect=True)
# Tests that take long on a server, where other tests read and write the same kinds of rows by default.
SELDOM_ON_NEO4J = pytest.mark.parametrize(
    "stores", ["sqlite", pytest.param("neo4j", marks=[pytest.mark.neo4j, pytest.mark.slow])], indirect=True
)


class Stores(ABC):
    """Opens the store of one place; closes all stores that it opened.

    examples    how often a property is tried
    prefix      the first part of this test's group names
    """

    examples: int

    def __init__(self) -> None:
        self.prefix = prefix()
        self._opened: list[Store] = []

    def open(self) -> Store:
        """Open the place like another process."""
        store = self._open()
        self._opened.append(store)
        return store

    def close(self) -> None:
        """Close every store that was opened here."""
        while self._opened:
            self._opened.pop().close()

    def fresh(self) -> str:
        """Return a new prefix: for a property that is tried many times in one test."""
        self.prefix = prefix()
        return self.prefix

    def mine(self, answer: Iterable[str] | dict[str, Any]) -> Any:
        """Return the part of an answer about all groups that concerns the groups of this test."""
        if isinstance(answer, dict):
            return {group: value for group, value in answer.items() if group.startswith(self.prefix)}
        return [group for group in answer if group.startswith(self.prefix)]

    @abstractmethod
    def lose_hold(self) -> None:
        """Take the hold from an unnoticed writer: a file system without locks, or an expired lease."""

    @abstractmethod
    def _open(self) -> Store: ...


def prefix() -> str:
    """Return a unique prefix of group names."""
    return f"t{uuid.uuid4().hex[:12]}-"


def opened(server: Neo4jServer, **options: Any) -> Store:
    """Open the database of a server, maybe with other options."""
    from kgray.storage.neo4j import open_neo4j

    login = {"uri": server.uri, "user": server.user, "password": server.password}
    return open_neo4j(**{**login, "embedder": EMBEDDER, "dimensions": WIDTH, **options})


class SqliteStores(Stores):
    """The embedded store in a data folder."""

    examples = 25

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def lose_hold(self) -> None:
        (self.folder / INGEST_LOCK).unlink()

    def _open(self) -> Store:
        return open_sqlite(self.folder, embedder=EMBEDDER, dimensions=WIDTH)


class Neo4jStores(Stores):
    """The store on a server, in a database with rows of earlier tests."""

    examples = 3

    def __init__(self, server: Neo4jServer, driver: Any) -> None:
        super().__init__()
        self._server, self._driver = server, driver

    def lose_hold(self) -> None:
        self._driver.execute_query("MATCH (o:KgrayShard) REMOVE o.holder, o.beat")

    def _open(self) -> Store:
        return opened(self._server)

    def close(self) -> None:
        super().close()
        named = self._driver.execute_query("MATCH (g:KgrayGroup) RETURN g.name").records
        strange = {name for (name,) in named if name and not re.match("t[0-9a-f]{12}-", name)}
        strange -= {*_REPORTED, OWN}
        _REPORTED.update(strange)
        assert strange == set(), "these names may be another test's: use `group`, `other_group`"


class WholeNeo4jStores(Neo4jStores):
    """The store on a server with nothing in its database at first."""

    def close(self) -> None:
        Stores.close(self)


@pytest.fixture(params=KINDS)
def stores(request, tmp_path) -> Iterator[Stores]:
    """Yield the maker of stores of each kind in turn."""
    maker = stores_of(request.param, request, tmp_path)
    yield maker
    maker.close()


def stores_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Stores:
    """Return the maker of stores of one kind."""
    if kind == "sqlite":
        return SqliteStores(folder / "store")
    return Neo4jStores(request.getfixturevalue("neo4j_server"), request.getfixturevalue("neo4j_driver"))


@pytest.fixture
def store(stores) -> Store:
    """Open one store."""
    return stores.open()


@pytest.fixture
def mine(stores) -> Callable[[Any], Any]:
    """Return the function that reduces an answer about all groups to the groups of this test."""
    return stores.mine


@pytest.fixture
def group(stores) -> str:
    """Return the name of a group that nothing else uses."""
    return f"{stores.prefix}g"


@pytest.fixture
def other_group(stores) -> str:
    """Return the name of a second group."""
    return f"{stores.prefix}h"


@pytest.fixture
def ask(neo4j_driver: Any) -> Callable[..., list[Any]]:
    """Return a function that queries a server's database directly and returns the rows."""

    def execute(query: str, **values: Any) -> list[Any]:
        return [record.values() for record in neo4j_driver.execute_query(query, values).records]

    return execute
