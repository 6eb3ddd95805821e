"""Constraints and indexes: generated from `mapping.STORED`, or named by Graphiti's readers.

Nodes and relationships that hold no rows of `kgray.schema.kinds`:

    KgrayMeta    id: 'kgray', schema, embedder, dimensions; shards: how many the groups are divided among;
                 epoch: the last that was given
    KgrayShard   id: 0..., epoch, holder, token, host, pid, beat: the newest run of a shard, and the lease of
                 its writer; every: whether it is a process that took all shards
    KgraySlot    slot, shard, epoch; target: the shard of its current move (`kgray.storage.transactions`)
    KgrayGroup   id: SHA-256 of the name, slot, last, last_recorded, removals; name: only while it can be
                 read; waiting: when something was last appended (microseconds by the server's clock), while
                 anything is pending; adopting: token of a copy on its way into it; clearing, cleared_name:
                 the sequence of the removal whose rows are deleted in pieces, and the name that they have
    KgrayCall    id: of a thread that appends, call: its last committed append (Neo4jStore.append)
    Value        uuid: of its fact, name: as a person reads it; the end node of a fact about a value

Properties of rows that are no columns, for Graphiti's readers:

    Episodic     second label of a KgrayEpisode that is live and committed; then it has name, source,
                 valid_at, created_at, entity_edges (the facts that named it when it was committed)
    Entity       created_at
    RELATES_TO   from Entity to Entity or Value; created_at, valid_at, invalid_at, expired_at: datetimes
    MENTIONS     from KgrayEpisode to Entity; uuid, created_at

The full-text indexes that Graphiti's readers use by name are created too; kgray does not use them.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple
from uuid import uuid4

from neo4j import Query

from kgray.errors import KgrayError, NoStore, StoreError, Unwritable
from kgray.storage.neo4j import statements_by_hand as cypher
from kgray.storage.neo4j.connection import Connection
from kgray.storage.neo4j.mapping import STORED
from kgray.storage.transactions import check_version
from kgray.system.outages import OUTAGES

VERSION = 10  # of the stored data; a database of another version is refused
_OLDEST = (5, 23)  # relationship uniqueness, `CALL (x) {}`
LIMIT_S = 600.0  # for all constraints and indexes together; an empty database takes 12 s on two cores
STALL_S = 30.0  # after this time without progress of any index, an index is dropped and created again
_TRIES = 3  # to make one constraint or index
_LOOK_S = 0.2
_REMEDY = "put that right (its log and SHOW TRANSACTIONS say more), then run `kgray init`"
_log = logging.getLogger("kgray")
_UNIQUE = "CREATE CONSTRAINT {name} FOR {of} REQUIRE ({columns}) IS UNIQUE"
_RANGE = "CREATE RANGE INDEX {name} FOR {of} ON ({columns})"
# As Graphiti makes it, but eventually consistent, to keep commits short.
_TEXT = (
    "CREATE FULLTEXT INDEX {name} FOR {of} ON EACH [{columns}] "
    "OPTIONS {{indexConfig: {{`fulltext.eventually_consistent`: true}}}}"
)


class Rule(NamedTuple):
    """A constraint or an index that the store needs."""

    name: str
    unique: bool  # whether it is a constraint
    statement: str  # makes it
    # Entity type, labels and properties of its index, as SHOW INDEXES returns them. None: any, because
    # Graphiti may have made it.
    definition: list[object] | None


def _rule(statement: str, name: str, pattern: str, *properties: str) -> Rule:
    columns = ", ".join(f"n.{p}" for p in properties)
    command = statement.format(name=name, of=pattern.replace(">", ""), columns=columns)
    entity = "RELATIONSHIP" if "[" in pattern else "NODE"
    definition: list[object] = [entity, re.findall(r":(\w+)", pattern), [*properties]]
    return Rule(name, statement is _UNIQUE, command, None if statement is _TEXT else definition)


RULES: Mapping[str, Rule] = {rule.name: rule for rule in (
    *(_rule(_UNIQUE, f"kgray_{n.lower()}", f"(n:Kgray{n})", "id") for n in "Meta Shard Group Call".split()),
    *(_rule(_UNIQUE, f"kgray_{s.kind.name}", s.pattern, "group_id", *s.key) for s in STORED.values()),
    *(
        _rule(_RANGE, name, stored.pattern, "group_id", *properties)
        for stored in STORED.values()
        for name, properties in stored.range_indexes().items()
    ),
    _rule(_UNIQUE, "kgray_slot", "(n:KgraySlot)", "slot"),
    _rule(_RANGE, "kgray_slots_of", "(n:KgraySlot)", "shard"),
    _rule(_RANGE, "kgray_groups_waiting", "(n:KgrayGroup)", "waiting"),
    _rule(_RANGE, "kgray_groups_in_slot", "(n:KgrayGroup)", "slot", "waiting"),
    _rule(_RANGE, "kgray_operations_asked", "(n:KgrayOperation)", "state"),
    _rule(_UNIQUE, "kgray_values", "(n:Value)", "group_id", "uuid"),
    # No constraint: several rows may have one id, and the engine ensures that at most one is live.
    _rule(_RANGE, "kgray_episodic", "(n:Episodic)", "group_id", "uuid"),
    _rule(_TEXT, "edge_name_and_fact", "()-[n:RELATES_TO]-()", "name", "fact", "group_id"),
    _rule(_TEXT, "node_name_and_content", "(n:Entity)", "name", "summary", "group_id"),
    _rule(_TEXT, "episode_content", "(n:Episodic)", "content", "source", "source_description", "group_id"),
    _rule(_TEXT, "community_name", "(n:Community)", "name", "group_id"),
)}  # fmt: skip


def probe(db: Connection) -> str:
    """Return the server's version and edition. Raises StoreError where it is too old."""
    version, edition = db.alone(cypher.SERVER)[0]
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if numbers < _OLDEST:
        raise StoreError(f"{db.location} is version {version}: kgray needs Neo4j 5.26 or newer")
    return f"{version} {edition}"


class Flaw(NamedTuple):
    """A constraint or an index of RULES that cannot be used."""

    words: str
    drop: str = ""  # the statement that removes what there is of it
    waits: bool = False  # the server, or another process, is making it


def flaws_of(db: Connection) -> dict[str, Flaw]:
    """Return the constraints and indexes, by name, that are missing, broken, or not yet online."""
    names = list(RULES)
    constraints = {name for (name,) in db.alone(cypher.CONSTRAINTS, names=names)}
    indexes = {name: row for name, *row in db.alone(cypher.INDEXES, names=names)}
    flaws, orphans = dict[str, Flaw](), list[str]()
    for name, rule in RULES.items():
        constrained, index = name in constraints, indexes.get(name)
        drop = f"DROP {'CONSTRAINT' if constrained else 'INDEX'} {name} IF EXISTS"
        if index is None:
            flaws[name] = Flaw("is missing", drop if constrained else "")
            continue
        *definition, state, percent, message = index
        if rule.definition not in (None, definition) or (constrained and not rule.unique):
            flaws[name] = Flaw("is one of another schema", drop)
        elif state == "FAILED":
            flaws[name] = Flaw(f"has failed ({' '.join(message.split())[:300]})", drop)
        elif rule.unique and not constrained:
            # A server that was killed leaves it, POPULATING for ever.
            flaws[name] = Flaw(f"has an index and no constraint ({percent:.1f} %)", drop)
            orphans.append(name)
        elif state != "ONLINE":
            flaws[name] = Flaw(f"is {state} ({percent:.1f} %)", drop, waits=True)
    # Or another process is creating the constraint now. Look for its transaction after reading the indexes: a
    # transaction that has ended in between has created its constraint, so that DROP INDEX is refused, or has
    # failed for good.
    for (statement,) in db.alone(cypher.MAKING) if orphans else ():
        name = statement.split()[2]
        if name in orphans:
            flaws[name] = flaws[name]._replace(waits=True)
    return flaws


def repair(db: Connection) -> None:
    """Create missing and broken constraints and indexes, and wait until all are online.

    Several processes may do so at once; if all are online it only reads. Raises StoreError if a constraint or
    an index cannot be created, or is not online in time.
    """
    tries, refusals = Counter[str](), dict[str, str]()
    previous: dict[str, Flaw] = {}
    changed_at = time.monotonic()
    deadline = changed_at + LIMIT_S
    with OUTAGES.asking(db.location, LIMIT_S):
        OUTAGES.writes(db.location, "compares constraints and indexes", left_s=LIMIT_S)
        while flaws := flaws_of(db):
            if flaws != previous:
                previous, changed_at = flaws, time.monotonic()
            online, stalled = len(RULES) - len(flaws), time.monotonic() - changed_at >= STALL_S
            for name, flaw in flaws.items():
                left_s = deadline - time.monotonic()
                words = f"makes constraints and indexes ({online} of {len(RULES)} are online)"
                OUTAGES.writes(db.location, words, left_s=left_s)
                if left_s < 0 or (tries[name] == _TRIES and (stalled or not flaw.waits)):
                    why = f"{name} {flaw.words}{refusals.get(name, '')}"
                    raise StoreError(f"{db.location} cannot be prepared: {why}; {_REMEDY}")
                if stalled or not flaw.waits:
                    tries[name] += 1
                    refusals[name] = _make(db, RULES[name], flaw.drop, left_s)
                    online += 1
            time.sleep(_LOOK_S)
        OUTAGES.answered(db.location)


def _make(db: Connection, rule: Rule, drop: str, limit_s: float) -> str:
    """Create a constraint or an index again; return the server's refusal, or ""."""
    token, finished, late = str(uuid4()), threading.Event(), threading.Event()

    def end() -> None:
        wait_s = limit_s
        while not finished.wait(wait_s):
            late.set()
            wait_s = 1.0  # it may be between two statements
            with suppress(KgrayError):  # the server is away
                db.alone(cypher.END, token=token)

    # The server applies no timeout to a change of the schema, which waits for the lock of its label.
    threading.Thread(target=end, daemon=True).start()
    try:
        for statement in filter(None, (drop, rule.statement)):
            db.alone(Query(statement, metadata={"kgray": token}))
    except Unwritable as error:
        # Another process may have made it since the look; the next look tells.
        why = f"not done in {LIMIT_S:.0f} s: another transaction may hold a lock"
        return f" ({why if late.is_set() else str(error).removeprefix(f'{db.location} ')})"
    finally:
        finished.set()
    return ""


def prepare(db: Connection, *, embedder: str, dimensions: int, create: bool) -> tuple[str, int]:
    """Create constraints, indexes and the meta node in a database without a store; check them otherwise.

    embedder, dimensions    of the vectors of a new store; "" = a database without a store is an error
    create      repair constraints and indexes; False = only log a warning where some are broken

    Returns embedder and dimensions of the store. Raises NoStore; StoreError for another schema, and for a
    constraint that cannot be made. Several processes may do so.
    """
    meta = db.alone(cypher.META)
    if meta:
        check_version(f"the store in {db.location}", meta[0][0], VERSION)
    elif not (create and embedder):
        raise NoStore(f"there is no kgray store in {db.location}: run `kgray init`")
    if create:
        repair(db)
    elif flaws := flaws_of(db):
        broken = ", ".join(f"{name} {flaw.words}" for name, flaw in flaws.items())
        _log.warning("%s: %s; `kgray init` makes what is missing", db.location, broken)
    if not meta:
        values = {"schema": VERSION, "embedder": embedder, "dimensions": dimensions}
        db.write(lambda transaction: db.run(transaction, cypher.NEW_META, **values))
        return prepare(db, embedder=embedder, dimensions=dimensions, create=False)  # another may be first
    return meta[0][1], meta[0][2]
