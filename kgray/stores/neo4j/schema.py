"""Constraints and indexes: generated from `mapping.STORED`, and those that Graphiti's readers use by name.

Nodes and relationships that hold no rows of `kgray.kinds`:

    KgrayMeta    id: 'kgray', schema, embedder, dimensions; shards: how many the groups are divided among
    KgrayShard   id: "0"..., epoch, holder, token, host, pid, beat: fence and lease of a shard's writer;
                 every: whether it is a process that took all shards
    KgrayGroup   id: SHA-256 of the name, last, last_recorded, removals; name: only while it can be read;
                 waiting: when something was last appended (microseconds by the server's clock), while
                 anything is pending; adopting: token of a copy on its way into it; clearing, cleared_name:
                 the sequence of the removal whose rows are deleted in pieces, and the name that they have
    KgrayCall    id: of a thread that appends, call: its last committed append (Neo4jStore.append)
    Episodic     second label of a KgrayEpisode that is live and committed; then it has Graphiti's name,
                 source, valid_at, created_at, entity_edges too
    Entity       created_at besides the columns of its kind
    Value        uuid: of its fact, name: as a person reads it; the end node of a fact about a value
    RELATES_TO   from Entity to Entity or Value; created_at, valid_at, invalid_at, expired_at: datetimes
    MENTIONS     from Episodic to Entity: uuid, created_at

The full-text indexes that Graphiti's readers use by name are created too; kgray does not use them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kgray.errors import NoStore, StoreError
from kgray.stores.alike import check_embedder, check_version
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import Connection
from kgray.stores.neo4j.mapping import STORED

VERSION = 9  # of the stored data; a database of another version is refused
_OLDEST = (5, 23)  # relationship uniqueness, `CALL (x) {}`
_AWAIT_S = 600
_UNIQUE = "CREATE CONSTRAINT {name} IF NOT EXISTS FOR {of} REQUIRE ({named}) IS UNIQUE"
_RANGE = "CREATE RANGE INDEX {name} IF NOT EXISTS FOR {of} ON ({named})"
# As Graphiti makes it, but eventually consistent, to keep commits short.
_TEXT = (
    "CREATE FULLTEXT INDEX {name} IF NOT EXISTS FOR {of} ON EACH [{named}] "
    "OPTIONS {{indexConfig: {{`fulltext.eventually_consistent`: true}}}}"
)


def _rule(made: str, name: str, pattern: str, *properties: str) -> tuple[str, str]:
    named = ", ".join(f"n.{p}" for p in properties)
    return name, made.format(name=name, of=pattern.replace(">", ""), named=named)


# The name of a constraint or index -> the statement that makes it.
RULES: Mapping[str, str] = dict((
    *(_rule(_UNIQUE, f"kgray_{n.lower()}", f"(n:Kgray{n})", "id") for n in "Meta Shard Group Call".split()),
    *(_rule(_UNIQUE, f"kgray_{of.kind.name}", of.pattern, "group_id", *of.key) for of in STORED.values()),
    *(
        _rule(_RANGE, name, stored.pattern, "group_id", *properties)
        for stored in STORED.values()
        for name, properties in stored.range_indexes().items()
    ),
    _rule(_RANGE, "kgray_groups_waiting", "(n:KgrayGroup)", "waiting"),
    _rule(_RANGE, "kgray_operations_asked", "(n:KgrayOperation)", "state"),
    _rule(_UNIQUE, "kgray_values", "(n:Value)", "group_id", "uuid"),
    # No constraint: several rows may have one id, and the engine ensures that at most one is live.
    _rule(_RANGE, "kgray_episodic", "(n:Episodic)", "group_id", "uuid"),
    _rule(_UNIQUE, "kgray_mentions_edges", "()-[n:MENTIONS]-()", "group_id", "uuid"),
    _rule(_TEXT, "edge_name_and_fact", "()-[n:RELATES_TO]-()", "name", "fact", "group_id"),
    _rule(_TEXT, "node_name_and_content", "(n:Entity)", "name", "summary", "group_id"),
    _rule(_TEXT, "episode_content", "(n:Episodic)", "content", "source", "source_description", "group_id"),
    _rule(_TEXT, "community_name", "(n:Community)", "name", "group_id"),
))  # fmt: skip


def probe(db: Connection) -> str:
    """Return the server's version and edition. Raises StoreError where it is too old."""
    version, edition = db.alone(cypher.SERVER)[0]
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if numbers < _OLDEST:
        raise StoreError(f"{db.where} is version {version}: kgray needs Neo4j 5.26 or newer")
    return f"{version} {edition}"


def make_rules(db: Connection) -> None:
    """Create the constraints and indexes that are missing."""
    there = {name for name, _ in db.alone(cypher.INDEXES, names=list(RULES))}
    for name in RULES.keys() - there:  # each in a transaction of its own
        try:
            db.alone(RULES[name])
        except StoreError as error:
            if "AlreadyExists" not in str(error):  # Neo.ClientError.Schema.IndexAlreadyExists
                raise
    db.alone(cypher.AWAIT_INDEXES, seconds=_AWAIT_S)


def prepare(db: Connection, *, embedder: str, dimensions: int, create: bool) -> int:
    """Create constraints, indexes and the meta node in a database without a store; check them otherwise.

    Returns how many numbers a vector has; dimensions: 0 = as many as the store's have. Raises NoStore where
    there is none that it may create, StoreError for another schema or embedder. Several processes may do so.
    """
    found = db.alone(cypher.META)
    if not found:
        if not create:
            raise NoStore(f"there is no kgray store in {db.where}: run `kgray init`")
        make_rules(db)
        values = {"schema": VERSION, "embedder": embedder, "dimensions": dimensions}
        db.write(lambda transaction: db.run(transaction, cypher.NEW_META, **values))
        found = db.alone(cypher.META)
    version, other, numbers = found[0]
    check_version(f"the store in {db.where}", version, VERSION)
    stored = {"embedder": other, "dimensions": numbers}
    return check_embedder(db.where, stored, embedder, dimensions, empty="database")
