"""Create and check the store's schema in a database; refuse one of another version or another embedder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kgray.errors import StoreError
from kgray.stores.neo4j import schema
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import Connection, Record
from kgray.stores.neo4j.schema import Rule

_OLDEST = (5, 23)  # relationship uniqueness, vector indexes on both, `CALL (x) {}`
_FILTERS_FROM = (2026, 1)  # SEARCH ... WHERE: filters inside a vector index
_AWAIT_S = 600
_SAME_RULE = (
    "Neo.ClientError.Schema.EquivalentSchemaRuleAlreadyExists",
    "Neo.ClientError.Schema.ConstraintAlreadyExists",
    "Neo.ClientError.Schema.IndexAlreadyExists",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerVersion:
    """The server's version. filters: whether its vector indexes can filter by group inside the index."""

    version: str
    edition: str
    filters: bool


def probe(db: Connection) -> ServerVersion:
    """Ask the server for its version. Raises StoreError where it is too old."""
    version, edition = db.alone(cypher.SERVER)[0]
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if numbers < _OLDEST:
        raise StoreError(f"{db.where} is version {version}: kgray needs Neo4j 5.26 or newer")
    return ServerVersion(version=version, edition=edition, filters=numbers >= _FILTERS_FROM)


def prepare(db: Connection, server: ServerVersion, *, embedder: str, dimensions: int, create: bool) -> None:
    """Create constraints, indexes and the meta node in a database without a store; check them otherwise.

    create: False = raise StoreError where there is no store. Also raises StoreError for another schema
    version or another embedder. Safe for several processes at once: each rule and the node are made once.
    """
    if dimensions > schema.MAX_DIMENSIONS:
        raise StoreError(
            f"the embedder {embedder!r} gives {dimensions} numbers a text, and Neo4j's vector indexes take "
            f"at most {schema.MAX_DIMENSIONS}: set embedder.dimensions to fewer"
        )
    found = _meta(db)
    if found is None:
        if not create:
            raise StoreError(f"there is no kgray store in {db.where}: run `kgray init`")
        _make_rules(db, server, dimensions)
        values = {"schema": schema.VERSION, "embedder": embedder, "dimensions": dimensions}
        db.write(lambda transaction: db.run(transaction, cypher.NEW_META, **values))
        found = _meta(db)
    _check(db, found or [None, None, None], embedder, dimensions)


def missing(db: Connection, server: ServerVersion) -> list[str]:
    """Return the names of constraints and indexes that are missing or not online."""
    wanted = [rule.name for rule in schema.rules(filters=server.filters)]
    working = {name for name, state, _ in db.alone(cypher.INDEXES, names=wanted) if state == "ONLINE"}
    return sorted(name for name in wanted if name not in working)


def _meta(db: Connection) -> Record | None:
    found = db.alone(cypher.META)
    return found[0] if found else None


def _check(db: Connection, stored: Record, embedder: str, dimensions: int) -> None:
    version, other, numbers = stored
    if version != schema.VERSION:
        newer = version > schema.VERSION
        todo = "upgrade kgray" if newer else "start with an empty database, and add the episodes again"
        raise StoreError(
            f"the store in {db.where} was written by {'a newer' if newer else 'an earlier'} kgray (schema "
            f"{version}; this one knows {schema.VERSION}): {todo}"
        )
    if (other, numbers) != (embedder, dimensions):
        raise StoreError(
            f"the embedder {embedder!r} gives {dimensions} numbers a text, but the graph in {db.where} "
            f"was built with {other!r} ({numbers} numbers): set embedder.backend to that one, or start an "
            f"empty database and add the episodes again"
        )


def _make_rules(db: Connection, server: ServerVersion, dimensions: int) -> None:
    """Create what is missing, each rule in a transaction of its own, and wait until all are online."""
    wanted = schema.rules(filters=server.filters)
    found = db.alone(cypher.INDEXES, names=[rule.name for rule in wanted])
    there = {name: width for name, _, width in found}
    for name in schema.VECTOR_INDEXES:
        # The database was emptied by hand, and its indexes were made for another embedder.
        if there.get(name) not in {None, dimensions}:
            db.alone(cypher.DROP_VECTOR_INDEX[name])
            del there[name]
    _make(db, (rule for rule in wanted if rule.name not in there), dimensions)
    db.alone(cypher.AWAIT_INDEXES, seconds=_AWAIT_S)


def _make(db: Connection, rules: Iterable[Rule], dimensions: int) -> None:
    for rule in rules:
        try:
            db.alone(rule.statement, dimensions=dimensions)
        except StoreError as error:
            if not any(code in str(error) for code in _SAME_RULE):
                raise
