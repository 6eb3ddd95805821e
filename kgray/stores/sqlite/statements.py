"""Every statement of the store: generated once from the record table, or written by hand; all have names.

Values go in as parameters, never as text. The group is checked in the statement itself, by its number `no`.
A list goes in as one JSON array (json_each) and joins its index by CROSS JOIN, which fixes the order of the
loops.
"""
# ruff: noqa: S608 - what is put into a statement is a name of the record table, never a value

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from kgray import kinds
from kgray.kinds import KINDS, Kind, Read
from kgray.reads import EVERYWHERE as READS_EVERYWHERE
from kgray.reads import READS
from kgray.stores.sqlite.schema import indexes


def _put(kind: Kind[Any]) -> str:
    """Return the statement that puts a row: (no, its columns)."""
    names = kind.names
    values = ", ".join(f"{name} = excluded.{name}" for name in names if name not in kind.key)
    what = "NOTHING" if kind.first_wins or not values else f"UPDATE SET {values}"
    new = f"INSERT INTO {kind.name} (no, {', '.join(names)}) VALUES (?{', ?' * len(names)})"
    return f"{new} ON CONFLICT (no, {', '.join(kind.key)}) DO {what}"


def _named(kind: Kind[Any]) -> str:
    return " AND ".join(f"{name} = ?" for name in ("no", *kind.key))


@cache
def patch(kind: Kind[Any], columns: tuple[str, ...]) -> str:
    """Return the statement that gives some columns new values: (values, no, key columns)."""
    values = ", ".join(f"{column} = ?" for column in columns)
    return f"UPDATE {kind.name} SET {values} WHERE {_named(kind)}"


PUT: Mapping[Kind[Any], str] = {kind: _put(kind) for kind in KINDS}
# (no, key columns).
DROP: Mapping[Kind[Any], str] = {kind: f"DELETE FROM {kind.name} WHERE {_named(kind)}" for kind in KINDS}


def _columns(names: Iterable[str]) -> str:
    return ", ".join(f"t.{name}" for name in names)


def _of_read(read: Read[Any]) -> str:
    """Return a look-up: (no, values as JSON); or a scan: (no, limit, *the place of the last row).

    The columns of a place, `place`, that it does not choose stand at the end of the rows of a scan.
    """
    kind, order = read.kind, read.place
    if read.by is None:
        marks = ", ".join(f"?{3 + n}" for n in range(len(order)))
        known = f"t.{read.since} IS NOT NULL AND " if read.since else ""
        within = f"t.no = ?1 AND {known}({_columns(order)}) > ({marks}) ORDER BY {_columns(order)} LIMIT ?2"
        chosen = dict.fromkeys((*read.columns, *order))
        return f"SELECT {_columns(chosen)} FROM {kind.name} AS t WHERE {within}"
    by = read.by if isinstance(read.by, tuple) else (read.by,)
    values = [f"json_extract(asked.value, '$[{n}]')" for n in range(len(by))] if by[1:] else ["asked.value"]
    meets = " AND ".join(f"t.{name} = {value}" for name, value in zip(by, values, strict=True))
    # Named: without statistics SQLite would walk all mentions of the group to find those of one entity.
    named = f" INDEXED BY {kind.name}_{by[0]}" if by[0] in indexes(kind) else ""
    sorted_by = "asked.key" if by == kind.key else f"asked.key, {_columns(order)}"
    asked = f"json_each(?2) AS asked CROSS JOIN {kind.name} AS t{named}"
    return f"SELECT {_columns(read.columns)} FROM {asked} ON t.no = ?1 AND {meets} ORDER BY {sorted_by}"


OF_READ: Mapping[Read[Any], str] = {read: _of_read(read) for read in READS}


def _everywhere(read: Read[Any]) -> str:
    """Return the statement that runs a read over all groups: (values as JSON); group, columns."""
    kind = read.kind
    joined = f"{kind.name} AS t CROSS JOIN groups AS g ON t.no = g.no AND ?1 IS NOT NULL"
    if read.by is not None:
        asked = f"t.no = g.no AND t.{read.by} IN (SELECT value FROM json_each(?1))"
        joined = f"groups AS g CROSS JOIN {kind.name} AS t INDEXED BY {kind.name}_{read.by} ON {asked}"
    order = f"ORDER BY g.name, {_columns(kind.key)}"
    return f"SELECT g.name, {_columns(read.columns)} FROM {joined} WHERE g.name IS NOT NULL {order}"


EVERYWHERE: Mapping[Read[Any], str] = {read: _everywhere(read) for read in READS_EVERYWHERE}

# (epoch | epochs | erased | rewritten | cut). epochs: the map of groups to shards, a JSON array of each
# shard's newest epoch. Erasures are counted; beside the count stands how many there were when the file was
# last rewritten and its log last cut: one that another process commits meanwhile is not taken for cleaned.
META = "SELECT value FROM meta WHERE key = ?"
NEW_EPOCH = "UPDATE meta SET value = value + 1 WHERE key = 'epoch' RETURNING value"
COUNT_ERASURE = "INSERT INTO meta VALUES ('erased', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1"
# (rewritten | cut, the count of erasures that it covers), or (epochs, as above).
SET_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"

NEW_GROUP = "INSERT INTO groups (digest) VALUES (?)"
NAME_GROUP = "UPDATE groups SET name = ?, digest = ? WHERE no = ?"
# name is NULL: removed, or being taken over.
GROUP_BY_DIGEST = "SELECT no, name, last, last_recorded, removals FROM groups WHERE digest = ?"
# NULL <> is NULL: no row of a removed group either.
GROUPS = f"SELECT name, last, last_recorded, removals FROM groups WHERE name <> '{kinds.OWN}' ORDER BY name"
# (name, last, last_recorded, removals, no).
SET_HEAD = "UPDATE groups SET name = ?, last = ?, last_recorded = ?, removals = ? WHERE no = ?"

# (no, sequence): the ledgers that have the entry, its state there, and when it ended.
STATES = (
    "SELECT 'episodes', state, ended_at FROM episodes WHERE no = ?1 AND sequence = ?2 "
    "UNION ALL SELECT 'operations', state, recorded_at FROM operations WHERE no = ?1 AND sequence = ?2"
)
# (no, after, limit): (sequence, whether it is an episode); the indexes hold all of it.
SEQUENCES_PENDING = (
    "SELECT sequence, 1 FROM episodes INDEXED BY episodes_pending "
    "WHERE no = ?1 AND state < 2 AND sequence > ?2 "
    "UNION ALL SELECT sequence, 0 FROM operations WHERE no = ?1 AND state = 0 AND sequence > ?2 "
    "ORDER BY 1 LIMIT ?3"
)
# R22: greatest (reference time, sequence) first, among smaller sequences said no later.
SAID_BEFORE = (
    "SELECT sequence FROM episodes WHERE no = ?1 AND source = ?2 "
    "AND reference_time <= ?3 AND sequence < ?4 AND retired_at IS NULL "
    "ORDER BY reference_time DESC, sequence DESC LIMIT ?5"
)
# (mark): name, whether any of it is live, when something was last appended.
PENDING_GROUPS = (
    "SELECT name, live, waiting FROM (SELECT name, no, waiting, "
    "EXISTS (SELECT 1 FROM operations INDEXED BY operations_asked WHERE no = groups.no AND state = 0) OR "
    "EXISTS (SELECT 1 FROM episodes INDEXED BY episodes_live "
    "WHERE no = groups.no AND state < 2 AND bulk = 0) AS live "
    "FROM groups INDEXED BY groups_waiting WHERE waiting > 0 AND waiting > ?1 AND name IS NOT NULL) AS g "
    "WHERE live OR EXISTS (SELECT 1 FROM episodes INDEXED BY episodes_pending WHERE no = g.no AND state < 2) "
    "ORDER BY name"
)
# (now, no): after an append.
NOTE_WAITING = "UPDATE groups SET waiting = max(?, waiting + 1) WHERE no = ?"
# (no): nothing waits in the group any more.
SETTLE = (
    "UPDATE groups SET waiting = 0 WHERE no = ?1 AND NOT EXISTS (SELECT 1 FROM episodes "
    "INDEXED BY episodes_pending WHERE no = ?1 AND state < 2) AND NOT EXISTS (SELECT 1 FROM operations "
    "INDEXED BY operations_asked WHERE no = ?1 AND state = 0)"
)
# (name) of groups with a retraction or removal that was requested and not carried out.
WITHDRAWING = (
    "SELECT DISTINCT name FROM operations INDEXED BY operations_asked CROSS JOIN groups "
    "ON groups.no = operations.no WHERE state = 0 AND kind IN ('remove', 'retract') AND name IS NOT NULL "
    "ORDER BY name"
)
# (name, or NULL for all that have one: another may be on its way into the file; most).
PENDING_COUNT = (
    "WITH named AS (SELECT no FROM groups INDEXED BY groups_waiting "
    "WHERE waiting > 0 AND (name = ?1 OR ?1 IS NULL AND name IS NOT NULL)) "
    "SELECT count(*) FROM (SELECT 1 FROM named CROSS JOIN episodes INDEXED BY episodes_pending "
    "ON episodes.no = named.no AND state < 2 UNION ALL SELECT 1 FROM named CROSS JOIN operations "
    "INDEXED BY operations_asked ON operations.no = named.no AND state = 0 LIMIT ?2)"
)
_COUNTED = "groups AS g WHERE g.no = ?1 OR ?1 IS NULL AND g.name IS NOT NULL"
# (no, or NULL for all): name, state, how many.
COUNT_STATES = (
    f"SELECT name, state, count(*) FROM (SELECT g.no, g.name FROM {_COUNTED}) AS g CROSS JOIN episodes AS e "
    "INDEXED BY episodes_state ON e.no = g.no WHERE retired_at IS NULL GROUP BY g.no, state"
)
# (no, or NULL for all): name, entities, facts, calls, prompt tokens, completion tokens.
COUNT_REST = (
    "SELECT name, (SELECT count(*) FROM entities WHERE no = g.no), (SELECT count(*) FROM facts "
    "WHERE no = g.no), "
    + ", ".join(
        f"(SELECT coalesce(sum({cost}), 0) FROM extractions WHERE no = g.no) + "
        f"(SELECT coalesce(sum({cost}), 0) FROM answers WHERE no = g.no)"
        for cost in ("calls", "prompt_tokens", "completion_tokens")
    )
    + f" FROM {_COUNTED}"
)

# :no, :sequence. Of log kinds the rows before an entry, of others all: what was accepted after it stays,
# because nothing of it can be committed yet.
CLEAR: Mapping[str, str] = {
    kind.name: f"DELETE FROM {kind.name} WHERE no = :no{' AND sequence < :sequence' * kind.log}"
    for kind in KINDS
}

_HOLDS = "(?3 IS NULL OR (valid_at IS NULL OR valid_at <= ?3) AND (invalid_at IS NULL OR ?3 < invalid_at))"
# (no, entity, as_of, limit): newest first by the index; a hub costs what is taken of it.
FACTS_AT: Mapping[str, str] = {
    end: f"SELECT created_at, id FROM facts WHERE no = ?1 AND {end} = ?2 AND {_HOLDS} "
    "ORDER BY created_at DESC, id LIMIT ?4"
    for end in ("source", "target")
}
