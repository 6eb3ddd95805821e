"""Upgrade a database: move the rows of the earlier version aside, and write the groups again from them.

`KgrayMeta.upgrading` is the phase. Every process sees the earlier schema until the last step.

    (none)     nothing has changed
    moving     old writers are stale, old groups cannot be read or appended to; nodes lose their labels for
               `KgrayOld` (property `old_kind`), facts become nodes, other derived rows are deleted
    building   all rows have moved; groups are written again, one by one
    dropping   all groups are complete; the old rows are deleted. Then one transaction sets the new schema
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from kgray.errors import KgrayError, Locked, NoStore, StoreError
from kgray.ports import GroupHead, Store
from kgray.schema.kinds import COMMITTED, PENDING
from kgray.storage.earlier import OLD_KINDS, EarlierStore, OldColumn, OldGroup, OldKind, OldRow
from kgray.storage.neo4j import schema
from kgray.storage.neo4j import statements_by_hand as cypher
from kgray.storage.neo4j.connection import Connection, Running
from kgray.storage.neo4j.mapping import group_key
from kgray.storage.neo4j.store import Neo4jStore
from kgray.storage.transactions import check_version

OLDEST = 8  # the schema of version 0.1
_LEASE_MS = 10_000  # of writers of all earlier versions
_ROWS_A_STEP = 4_000  # rows that move in one transaction
_LOG = ("episodes", "operations", "extractions")

_META = """
MATCH (m:KgrayMeta {id: 'kgray'})
RETURN m.schema, m.embedder, m.dimensions, m.upgrading, m.upgrade_report
"""
_PHASE = "MATCH (m:KgrayMeta {id: 'kgray'}) SET m.upgrading = $phase, m.upgrade_report = $report"
# The one step that readers see.
_SWAP = "MATCH (m:KgrayMeta {id: 'kgray'}) SET m.schema = $schema REMOVE m.upgrading, m.upgrade_report"
# One upgrade at a time holds the lock of this node.
_NEW_LOCK = "MERGE (u:KgrayUpgrade {id: 'kgray'})"
_DROP_LOCK = "MATCH (:KgrayMeta {id: 'kgray', schema: $schema}) MATCH (u:KgrayUpgrade) DELETE u"
_LOCK = "MATCH (u:KgrayUpgrade {id: 'kgray'}) SET u.locked = true"
_INDEX = "CREATE RANGE INDEX kgray_old IF NOT EXISTS FOR (n:KgrayOld) ON (n.group_id, n.old_kind)"
_LIVING = """
MATCH (s:KgrayShard) WHERE s.holder IS NOT NULL AND timestamp() - coalesce(s.beat, 0) < $lease
RETURN s.holder LIMIT 1
"""
_STALE = (
    "MATCH (s:KgrayShard) SET s.epoch = s.epoch + 1 REMOVE s.holder, s.token, s.host, s.pid, s.beat, s.every"
)
# Groups of earlier versions are neither read nor appended to while `adopting` is set.
_MARK_GROUPS = """
MATCH (g:KgrayGroup) WHERE g.name IS NOT NULL OR g.cleared_name IS NOT NULL
CREATE (o:KgrayOld {old_kind: 'groups', group_id: coalesce(g.name, g.cleared_name), last: g.last,
    last_recorded: g.last_recorded, clearing: g.clearing, copied: g.adopting IS NOT NULL})
SET g.adopting = 'upgrade'
"""
_GROUPS = """
MATCH (g:KgrayGroup) WHERE g.name IS NOT NULL OR g.cleared_name IS NOT NULL
RETURN coalesce(g.name, g.cleared_name), g.last, g.last_recorded, g.clearing, g.adopting IS NOT NULL
"""
_MARKED = """
MATCH (o:KgrayOld {old_kind: 'groups'}) WHERE o.group_id IS NOT NULL
RETURN o.group_id, o.last, o.last_recorded, o.clearing, o.copied
"""
# $ids: of the groups to write again, and of copies that were cut off.
_DROP_GROUPS = "MATCH (g:KgrayGroup {adopting: 'upgrade'}) WHERE g.id IN $ids DELETE g"
# The remaining groups were removed: their last sequence stays (R19).
_FREE_GROUPS = """
MATCH (g:KgrayGroup {adopting: 'upgrade'}) REMOVE g.adopting, g.clearing, g.cleared_name, g.name, g.waiting
"""
_DROP_OLD = "MATCH (n:KgrayOld) WITH n LIMIT $most DETACH DELETE n RETURN count(*)"
_RULES = (
    "SHOW INDEXES YIELD name, owningConstraint WHERE name STARTS WITH 'kgray_' RETURN name, owningConstraint"
)
_OURS = "WHERE n.group_id IN $groups"
# Derived rows that are compared with nothing, and facts. MENTIONS and values are deleted before their ends.
_DERIVED = (
    f"MATCH ()-[n:MENTIONS]->() {_OURS} WITH n LIMIT $most DELETE n RETURN count(*)",
    "MATCH (n:KgrayName) WITH n LIMIT $most DELETE n RETURN count(*)",
    "MATCH (n:KgrayShown) WITH n LIMIT $most DELETE n RETURN count(*)",
    f"""
    MATCH ()-[n:RELATES_TO]->() {_OURS} WITH n LIMIT $most
    CREATE (o:KgrayOld) SET o = properties(n), o.old_kind = 'facts' DELETE n RETURN count(*)
    """,
    f"MATCH (n:Value) {_OURS} WITH n LIMIT $most DETACH DELETE n RETURN count(*)",
)


def _moving(kind: OldKind) -> str:
    ours = "" if kind.label.startswith("Kgray") else f"{_OURS} "
    labels = f"n:{kind.label}" + (", n:Episodic" if kind.name == "episodes" else "")
    return (
        f"MATCH (n:{kind.label}) {ours}WITH n LIMIT $most "
        f"REMOVE {labels}, n.words, n.signs SET n:KgrayOld, n.old_kind = '{kind.name}' RETURN count(*)"
    )


# $group, $kind: all properties of each moved row. A single statement, because each statement costs a plan.
_MOVED = "MATCH (n:KgrayOld) WHERE n.group_id = $group AND n.old_kind = $kind RETURN properties(n)"


def _reading(kind: OldKind) -> str:
    pattern = f"()-[n:{kind.label}]->()" if kind.name == "facts" else f"(n:{kind.label})"
    # The planner uses an index over several properties only if the statement names all of them.
    named = "".join(f" AND n.{name} IS NOT NULL" for name in kind.key)
    return f"MATCH {pattern} WHERE n.group_id = $group{named} RETURN properties(n)"


@contextmanager
def earlier_neo4j(*, alone: bool, **login: Any) -> Iterator[EarlierNeo4j | None]:  # noqa: ANN401 - of Connection
    """Open a database of an earlier version; None if it is current; raises as `earlier_sqlite` does."""
    with ExitStack() as stack:
        db = stack.enter_context(closing(Connection(**login)))
        schema.probe(db)
        if not db.alone(_META):
            raise NoStore(f"there is no kgray store in {db.location}: run `kgray init`")
        if alone:
            db.write(lambda running: _make_lock(db, running))
            stack.callback(_drop_lock, db)
            if not stack.enter_context(db.locking(_LOCK)):
                raise Locked(f"another process upgrades the store in {db.location} now")
        version = db.alone(_META)[0][0]
        if version == schema.VERSION:
            yield None
            return
        if version < OLDEST:
            raise StoreError(
                f"the store in {db.location} has schema {version}; kgray can upgrade data from schema "
                f"{OLDEST} on: choose an empty database and add the episodes again"
            )
        if version > schema.VERSION:
            check_version(f"the store in {db.location}", version, schema.VERSION)
        yield EarlierNeo4j(db, login)


def _make_lock(db: Connection, running: Running) -> None:
    db.run(running, cypher.LOCK_MAP)  # so that two processes do not create two nodes
    db.run(running, _NEW_LOCK)


def _drop_lock(db: Connection) -> None:
    """Delete the lock's node after the upgrade; until then other processes may wait for it."""
    with suppress(KgrayError):
        db.alone(_DROP_LOCK, schema=schema.VERSION)


_CONVERTERS = {"texts": tuple, "bytes": bytes}


def _value(column: OldColumn, stored: Any) -> Any:  # noqa: ANN401 - of any type
    if stored is None:
        return column.default
    return _CONVERTERS[column.type](stored) if column.type in _CONVERTERS else stored


class EarlierNeo4j(EarlierStore):
    """A database of an earlier version."""

    is_in_place = True
    schema_after = schema.VERSION
    kept_path = ""

    def __init__(self, db: Connection, login: dict[str, Any]) -> None:
        self._db, self._login, self.location = db, login, db.location
        self.schema, self._embedder, self._dimensions, self._phase, self.report = db.alone(_META)[0]
        self.is_first = self.schema == OLDEST
        self._clearing: dict[str, int] = {}

    @property
    def is_changed(self) -> bool:
        return self._phase is not None

    def groups(self) -> list[OldGroup]:
        groups = []
        statement = _MARKED if self.is_changed else _GROUPS
        for name, last, at, clearing, copied in self._db.rows(statement):
            if copied:  # a copy into it was cut off: it never was a group
                continue
            if clearing is not None:  # a removal was cut off: only later entries remain
                self._clearing[name] = clearing
                episodes, operations = (
                    self.rows(name, OLD_KINDS[kind]) for kind in ("episodes", "operations")
                )
                waits = any(row.state < COMMITTED for row in episodes)
                if not (waits or any(row.state == PENDING for row in operations)):
                    continue
            groups.append(OldGroup(name, GroupHead(named=True, last=last, last_recorded=at)))
        return sorted(groups)

    def rows(self, group: str, kind: OldKind) -> list[OldRow]:
        statement = _MOVED if self._phase == "building" else _reading(kind)
        group_id = group_key(group) if kind.name == "operations" else group
        rows = [
            kind.make(*(_value(column, stored.get(column.stored_as)) for column in kind.columns))
            for (stored,) in self._db.rows(statement, group=group_id, kind=kind.name)
        ]
        if (removal := self._clearing.get(group)) is not None:
            last = removal - (kind.name == "operations")
            rows = [row for row in rows if row.sequence > last] if kind.name in _LOG else []
        key = [place for place, column in enumerate(kind.columns) if column.is_key]
        return sorted(rows, key=lambda row: [row[place] for place in key])

    @contextmanager
    def successor(self) -> Iterator[Store]:
        self._move()
        store = Connection(**self._login)
        vectors = (self._embedder, self._dimensions)
        new = Neo4jStore(store, schema.probe(store), vectors, folder=None, complete=True)
        with closing(new):
            yield new

    def _move(self) -> None:
        """Bring the database to the phase `building`, from any earlier phase."""
        if self._phase is None:
            self._db.alone(_INDEX)
            self._db.write(self._lock_out)
            self._phase = "moving"
        if self._phase == "moving":
            names = [name for name, *_ in self._db.rows(_MARKED)]
            for statement in (
                *_DERIVED,
                *(_moving(kind) for kind in OLD_KINDS.values() if kind.name != "facts"),
            ):
                self._repeat(statement, groups=names)
            self._enter("building")
        # Copies that were cut off.
        copies = [name for name, _, _, _, copied in self._db.rows(_MARKED) if copied]
        ids = [group_key(name) for name in (*copies, *(group.name for group in self.groups()))]
        self._db.write(lambda running: self._free(running, ids))
        self._drop_rules()
        schema.repair(self._db)

    def _lock_out(self, running: Running) -> None:
        self._db.run(running, cypher.LOCK_MAP)
        if self._db.run(running, _META)[0][3] is not None:
            return  # the answer to its commit was lost
        if living := self._db.run(running, _LIVING, lease=_LEASE_MS):
            raise Locked(
                f"{living[0][0]} is ingesting {self.location} now: end it, then run the upgrade again"
            )
        self._db.run(running, _STALE)
        self._db.run(running, _MARK_GROUPS)
        self._db.run(running, _PHASE, phase="moving", report=None)

    def _free(self, running: Running, ids: list[str]) -> None:
        self._db.run(running, _DROP_GROUPS, ids=ids)
        self._db.run(running, _FREE_GROUPS)

    def _enter(self, phase: str, report: str | None = None) -> None:
        self._phase = phase
        self._db.write(lambda running: self._db.run(running, _PHASE, phase=phase, report=report))

    def _repeat(self, statement: str, **values: Any) -> None:  # noqa: ANN401 - of a statement
        """Run a statement, each time in a transaction, until it changes nothing."""

        def once(running: Running) -> int:
            return int(self._db.run(running, statement, most=_ROWS_A_STEP, **values)[0][0])

        while self._db.write(once):
            pass

    def _drop_rules(self) -> None:
        """Drop the constraints and indexes that this version does not have."""
        for name, constraint in self._db.alone(_RULES):
            if name not in schema.RULES and name != "kgray_old":
                self._db.alone(f"DROP {'INDEX' if constraint is None else 'CONSTRAINT'} {name} IF EXISTS")

    def replace(self, report: str) -> None:
        if self._phase != "dropping":
            self._enter("dropping", report)
        self._repeat(_DROP_OLD)
        self._db.alone("DROP INDEX kgray_old IF EXISTS")
        self._db.write(lambda running: self._db.run(running, _SWAP, schema=schema.VERSION))
