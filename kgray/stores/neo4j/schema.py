"""Constraints and indexes: generated from `mapping.STORED`, and those that Graphiti's readers use by name.

Nodes and relationships that hold no rows of `kgray.kinds`:

    KgrayMeta    id: 'kgray', schema, embedder, dimensions
    KgrayShard   id: "0"..., epoch, holder, token, host, pid, beat: fence and lease of a shard's writer
    KgrayGroup   id: SHA-256 of the name, last, last_recorded; name: only while the group can be read;
                 adopting: token of a copy on its way into it; clearing, cleared_name: the sequence of the
                 removal whose rows are deleted in pieces, and the name that they have
    KgrayCall    id: of a committed append, until a later one of the same process deletes it (appending.py)
    Episodic     second label of a KgrayEpisode that is live and committed; then it has Graphiti's name,
                 source, valid_at, created_at, entity_edges too
    Entity       summary: '', created_at, name_embedding besides the columns of its kind
    Value        uuid: of its fact, name: as a person reads it; the end node of a fact about a value
    RELATES_TO   from Entity to Entity or Value; created_at, valid_at, invalid_at, expired_at: datetimes;
                 fact_embedding
    MENTIONS     from Episodic to Entity: uuid, created_at

Words carry their group's mark, so the full-text index itself filters by group; its analyzer only splits at
spaces. The full-text indexes that Graphiti's readers use by name, and vector indexes on the embeddings that
they read, are created too; kgray does not use them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kgray.errors import NoStore, StoreError
from kgray.kinds import SearchScope
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import Connection, Fetched
from kgray.stores.neo4j.mapping import STORED, StoredKind

VERSION = 3  # of the stored data; a database of another version is refused
MAX_DIMENSIONS = 4096  # of a vector index


@dataclass(frozen=True, slots=True)
class Rule:
    """One constraint or index: its name, and the statement that creates it, with $dimensions for vectors."""

    name: str
    statement: str


def _unique(name: str, pattern: str, *properties: str) -> Rule:
    named = ", ".join(f"n.{p}" for p in properties)
    return Rule(name, f"CREATE CONSTRAINT {name} IF NOT EXISTS FOR {pattern} REQUIRE ({named}) IS UNIQUE")


def _range(name: str, pattern: str, *properties: str) -> Rule:
    named = ", ".join(f"n.{p}" for p in properties)
    return Rule(name, f"CREATE RANGE INDEX {name} IF NOT EXISTS FOR {pattern} ON ({named})")


def _declared(stored: StoredKind) -> list[Rule]:
    """Return the rules that follow from a kind's key, indexes and words."""
    name, pattern = stored.kind.name, f"()-[n:{stored.label}]-()" if stored.edge else f"(n:{stored.label})"
    rules = [_unique(f"kgray_{name}", pattern, "group_id", *stored.key)]
    for index, properties in stored.range_indexes().items():
        rules.append(_range(index, pattern, "group_id", *properties))
    if stored.kind.words is not None:
        index = stored.words_index
        rules.append(
            Rule(
                index,
                f"CREATE FULLTEXT INDEX {index} IF NOT EXISTS FOR {pattern} ON EACH [n.words] "
                "OPTIONS {indexConfig: {`fulltext.analyzer`: 'whitespace'}}",
            )
        )
    return rules


def _for_graphiti(name: str, pattern: str, *properties: str) -> Rule:
    """Return a full-text index as Graphiti makes it, but eventually consistent, to keep commits short."""
    named = ", ".join(f"x.{p}" for p in (*properties, "group_id"))
    return Rule(
        name,
        f"CREATE FULLTEXT INDEX {name} IF NOT EXISTS FOR {pattern} ON EACH [{named}] "
        "OPTIONS {indexConfig: {`fulltext.eventually_consistent`: true}}",
    )


# M and ef_construction of the HNSW graphs that search asks; those for Graphiti's readers have the server's
# defaults, 16 and 100. With low values some of many nearly equal vectors cannot be reached by any edge, and
# more candidates do not help. Recall of a query's 20 nearest statements, with 200 candidates, on 5.26,
# written 96 a transaction:
#
#     M, ef_construction     100,000 statements     40,000
#     16, 400                0.971
#     16, 800                0.979
#     32, 800                0.990                  0.995
#     32, 1200               0.993
#     32, 1600                                      1.000, for 40 % more time in the second half
#
# Names and episodes were not measured apart.
_SOUGHT_M = 32
_EF: dict[SearchScope, int] = {"fact": 1_200, "entity": 800, "episode": 800}


def _vectors(name: str, owner: str, scope: SearchScope | None, *, filters: bool) -> Rule:
    """Return a vector index; owner: (pattern, property); scope: None = for Graphiti's readers.

    filters: with the group inside it, where the server can.
    """
    pattern, _, prop = owner.partition(" ")
    on = f"ON {prop} WITH [{prop[0]}.group_id]" if filters else f"ON ({prop})"
    config = "`vector.dimensions`: $dimensions, `vector.similarity_function`: 'cosine'"
    if scope is not None:
        config += f", `vector.hnsw.m`: {_SOUGHT_M}, `vector.hnsw.ef_construction`: {_EF[scope]}"
    return Rule(
        name,
        f"{'CYPHER 25 ' if filters else ''}CREATE VECTOR INDEX {name} IF NOT EXISTS FOR {pattern} {on} "
        f"OPTIONS {{indexConfig: {{{config}}}}}",
    )


_VECTORS: tuple[tuple[str, str, SearchScope | None], ...] = (
    *(
        (stored.vector_index, f"(n:{stored.label}) n.embedding", stored.kind.vector)
        for stored in STORED.values()
        if stored.kind.vector is not None
    ),
    ("kgray_fact_vectors", "()-[r:RELATES_TO]-() r.fact_embedding", None),
    ("kgray_entity_vectors", "(n:Entity) n.name_embedding", None),
)
DROP_VECTOR_INDEX = {name: f"DROP INDEX {name} IF EXISTS" for name, _, _ in _VECTORS}
_PLAIN: tuple[Rule, ...] = (
    *(
        _unique(f"kgray_{label.lower()}", f"(n:Kgray{label})", "id")
        for label in ("Meta", "Shard", "Group", "Call")
    ),
    *(rule for stored in STORED.values() for rule in _declared(stored)),
    _unique("kgray_values", "(n:Value)", "group_id", "uuid"),
    # No constraint: several rows may have one id, and the engine ensures that at most one is live.
    _range("kgray_episodic", "(n:Episodic)", "group_id", "uuid"),
    _unique("kgray_mentions_edges", "()-[n:MENTIONS]-()", "group_id", "uuid"),
    _for_graphiti("edge_name_and_fact", "()-[x:RELATES_TO]-()", "name", "fact"),
    _for_graphiti("node_name_and_content", "(x:Entity)", "name", "summary"),
    _for_graphiti("episode_content", "(x:Episodic)", "content", "source", "source_description"),
    _for_graphiti("community_name", "(x:Community)", "name"),
)


def vector_rules(*, filters: bool) -> tuple[Rule, ...]:
    """Return the vector indexes; filters: the server filters inside them (2026.01 and newer)."""
    return tuple(_vectors(name, owner, scope, filters=filters) for name, owner, scope in _VECTORS)


def rules(*, filters: bool) -> Sequence[Rule]:
    """Return all constraints and indexes."""
    return (*_PLAIN, *vector_rules(filters=filters))


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
    if dimensions > MAX_DIMENSIONS:
        raise StoreError(
            f"the embedder {embedder!r} gives {dimensions} numbers a text, and Neo4j's vector indexes take "
            f"at most {MAX_DIMENSIONS}: set embedder.dimensions to fewer"
        )
    found = _meta(db)
    if found is None:
        if not create:
            raise NoStore(f"there is no kgray store in {db.where}: run `kgray init`")
        _make_rules(db, server, dimensions)
        values = {"schema": VERSION, "embedder": embedder, "dimensions": dimensions}
        db.write(lambda transaction: db.run(transaction, cypher.NEW_META, **values))
        found = _meta(db)
    _check(db, found or [None, None, None], embedder, dimensions)


def missing(db: Connection, server: ServerVersion) -> list[str]:
    """Return the names of constraints and indexes that are missing or not online."""
    wanted = [rule.name for rule in rules(filters=server.filters)]
    working = {name for name, state, _ in db.alone(cypher.INDEXES, names=wanted) if state == "ONLINE"}
    return sorted(name for name in wanted if name not in working)


def _meta(db: Connection) -> Fetched | None:
    found = db.alone(cypher.META)
    return found[0] if found else None


def _check(db: Connection, stored: Fetched, embedder: str, dimensions: int) -> None:
    version, other, numbers = stored
    if version != VERSION:
        newer = version > VERSION
        todo = "upgrade kgray" if newer else "start with an empty database, and add the episodes again"
        raise StoreError(
            f"the store in {db.where} was written by {'a newer' if newer else 'an earlier'} kgray (schema "
            f"{version}; this one knows {VERSION}): {todo}"
        )
    if (other, numbers) != (embedder, dimensions):
        raise StoreError(
            f"the embedder {embedder!r} gives {dimensions} numbers a text, but the graph in {db.where} "
            f"was built with {other!r} ({numbers} numbers): set embedder.backend to that one, or start an "
            f"empty database and add the episodes again"
        )


def _make_rules(db: Connection, server: ServerVersion, dimensions: int) -> None:
    """Create what is missing, each rule in a transaction of its own, and wait until all are online."""
    wanted = rules(filters=server.filters)
    found = db.alone(cypher.INDEXES, names=[rule.name for rule in wanted])
    there = {name: width for name, _, width in found}
    for name, drop in DROP_VECTOR_INDEX.items():
        # The database was emptied by hand, and its indexes were made for another embedder.
        if there.get(name) not in {None, dimensions}:
            db.alone(drop)
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
