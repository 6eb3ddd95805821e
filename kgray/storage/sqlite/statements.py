"""Every statement of the store: generated once from the record table, or written by hand; all have names.

Values go in as parameters, never as text. The group is checked in the statement itself, by its number `no`.
A list goes in as one JSON array (json_each) and joins its index by CROSS JOIN, which fixes the order of the
loops.
"""
# ruff: noqa: S608 - statements are formatted with names of the record table, never with values

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from kgray.schema import kinds
from kgray.schema.kinds import KINDS, Kind, Read
from kgray.schema.reads import EVERYWHERE as READS_EVERYWHERE
from kgray.schema.reads import READS
from kgray.storage.sqlite.schema import indexes


def _put(kind: Kind[Any]) -> str:
    """Return the statement that puts a row: (no, its columns)."""
    names = kind.names
    values = ", ".join(f"{name} = excluded.{name}" for name in names if name not in kind.key)
    action = "NOTHING" if kind.first_wins or not values else f"UPDATE SET {values}"
    new = f"INSERT INTO {kind.name} (no, {', '.join(names)}) VALUES (?{', ?' * len(names)})"
    return f"{new} ON CONFLICT (no, {', '.join(kind.key)}) DO {action}"


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

    A scan's rows end with the columns of `read.place` that are not among the read's columns.
    """
    kind, order = read.kind, read.place
    if read.by is None:
        marks = ", ".join(f"?{3 + n}" for n in range(len(order)))
        dated = f"t.{read.since} IS NOT NULL AND " if read.since else ""
        condition = (
            f"t.no = ?1 AND {dated}({_columns(order)}) > ({marks}) ORDER BY {_columns(order)} LIMIT ?2"
        )
        chosen = dict.fromkeys((*read.columns, *order))
        return f"SELECT {_columns(chosen)} FROM {kind.name} AS t WHERE {condition}"
    keys = read.by if isinstance(read.by, tuple) else (read.by,)
    values = (
        [f"json_extract(asked.value, '$[{n}]')" for n in range(len(keys))] if keys[1:] else ["asked.value"]
    )
    meets = " AND ".join(f"t.{name} = {value}" for name, value in zip(keys, values, strict=True))
    # Name the index: without statistics SQLite would read all mentions of a group to find an entity's.
    named = f" INDEXED BY {kind.name}_{keys[0]}" if keys[0] in indexes(kind) else ""
    sorted_by = "asked.key" if keys == kind.key else f"asked.key, {_columns(order)}"
    source = f"json_each(?2) AS asked CROSS JOIN {kind.name} AS t{named}"
    return f"SELECT {_columns(read.columns)} FROM {source} ON t.no = ?1 AND {meets} ORDER BY {sorted_by}"


OF_READ: Mapping[Read[Any], str] = {read: _of_read(read) for read in READS}


def _everywhere(read: Read[Any]) -> str:
    """Return the statement that runs a read over all groups: (values as JSON); group, columns."""
    kind = read.kind
    joined = f"{kind.name} AS t CROSS JOIN groups AS g ON t.no = g.no AND ?1 IS NOT NULL"
    if read.by is not None:
        condition = f"t.no = g.no AND t.{read.by} IN (SELECT value FROM json_each(?1))"
        joined = f"groups AS g CROSS JOIN {kind.name} AS t INDEXED BY {kind.name}_{read.by} ON {condition}"
    order = f"ORDER BY g.name, {_columns(kind.key)}"
    return f"SELECT g.name, {_columns(read.columns)} FROM {joined} WHERE g.name IS NOT NULL {order}"


EVERYWHERE: Mapping[Read[Any], str] = {read: _everywhere(read) for read in READS_EVERYWHERE}

# (epoch | erased | rewritten | cut). epoch: the last epoch; erased: the count of erasures; rewritten, cut:
# that count when the file was last rewritten and its log last cut. So an erasure that another process commits
# during the cleaning does not count as cleaned.
META = "SELECT value FROM meta WHERE key = ?"
NEW_EPOCH = "UPDATE meta SET value = value + 1 WHERE key = 'epoch' RETURNING value"
COUNT_ERASURE = "INSERT INTO meta VALUES ('erased', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1"
# (rewritten | cut, the count of erasures that it covers).
SET_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"

_LIST = "(SELECT value FROM json_each(?) AS asked)"
SHARDS = "SELECT shard, epoch, token FROM shards ORDER BY shard"
OWNERS = "SELECT shard FROM slots ORDER BY slot"
# (number of shards) that there are from now on.
SLOTS_BEYOND = "SELECT count(*) FROM slots WHERE shard >= ?"
END_MOVES_BEYOND = "UPDATE slots SET target = NULL WHERE target >= ?"
# (epoch, token, shards as JSON).
TAKE_SHARDS = f"UPDATE shards SET epoch = ?, token = ? WHERE shard IN {_LIST}"
# (epoch, shards as JSON): slot, epoch. A move that is not complete ends.
TAKE_SLOTS = f"UPDATE slots SET epoch = ?, target = NULL WHERE shard IN {_LIST} RETURNING slot, epoch"
# (slots as JSON): the columns of `transactions.SlotRow`.
SLOTS_AT = (
    "SELECT s.slot, s.shard, s.epoch, o.epoch, o.token FROM json_each(?1) AS asked "
    "CROSS JOIN slots AS s ON s.slot = asked.value CROSS JOIN shards AS o ON o.shard = s.shard"
)
# A new division of the groups: (shards), (shards, epoch).
DROP_SHARDS = "DELETE FROM shards WHERE shard >= ?"
NEW_SHARD = "INSERT OR IGNORE INTO shards (shard) VALUES (?)"
DIVIDE_SLOTS = "UPDATE slots SET shard = slot % ?, epoch = ?, target = NULL"
# A move. (shard, slots as JSON), (the same; RETURNING slot), (epoch, shard, slots), (now, slots).
MARK_SLOTS = f"UPDATE slots SET target = ? WHERE slot IN {_LIST}"
UNMARK_SLOTS = f"UPDATE slots SET target = NULL WHERE target = ? AND slot IN {_LIST}"
MOVE_SLOTS = (
    "UPDATE slots SET epoch = ?1, shard = ?2, target = NULL WHERE target = ?2 "
    "AND slot IN (SELECT value FROM json_each(?3) AS asked) RETURNING slot"
)
NOTE_WAITING_IN = f"UPDATE groups SET waiting = max(?, waiting + 1) WHERE waiting > 0 AND slot IN {_LIST}"

NEW_GROUP = "INSERT INTO groups (digest, slot) VALUES (?, ?)"
NAME_GROUP = "UPDATE groups SET name = ?, digest = ?, slot = ? WHERE no = ?"
# name is NULL: removed, or being taken over.
GROUP_BY_DIGEST = "SELECT no, name, last, last_recorded, removals FROM groups WHERE digest = ?"
# NULL <> is NULL: no row of a removed group either.
GROUPS = f"SELECT name, last, last_recorded, removals FROM groups WHERE name <> '{kinds.OWN}' ORDER BY name"
# (name, slot, last, last_recorded, removals, no).
SET_HEAD = "UPDATE groups SET name = ?, slot = ?, last = ?, last_recorded = ?, removals = ? WHERE no = ?"

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
# (shard, or NULL for all): `s`, the slots that are asked about.
_SLOTS = "slots AS s {} WHERE (?1 IS NULL OR s.shard = ?1 AND s.target IS NULL) AND "
_WAITING = _SLOTS.format(
    "CROSS JOIN groups AS g INDEXED BY groups_waiting ON g.slot = s.slot AND g.waiting > 0"
)
# (shard, mark): name, whether any of it is live, when something was last appended.
PENDING_GROUPS = (
    "SELECT name, live, waiting FROM (SELECT g.name, g.no, g.waiting, "
    "EXISTS (SELECT 1 FROM operations INDEXED BY operations_asked WHERE no = g.no AND state = 0) OR "
    "EXISTS (SELECT 1 FROM episodes INDEXED BY episodes_live "
    "WHERE no = g.no AND state < 2 AND bulk = 0) AS live "
    f"FROM {_WAITING} g.waiting > ?2 AND g.name IS NOT NULL) AS g "
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
# (shard): names of groups with a retraction or removal that was requested and not carried out.
WITHDRAWING = (
    "SELECT DISTINCT g.name FROM operations AS o INDEXED BY operations_asked CROSS JOIN groups AS g "
    "ON g.no = o.no CROSS JOIN slots AS s ON s.slot = g.slot "
    "WHERE o.state = 0 AND o.kind IN ('remove', 'retract') AND g.name IS NOT NULL "
    "AND (?1 IS NULL OR s.shard = ?1 AND s.target IS NULL) ORDER BY g.name"
)
# (shard, most), (group, most). Only groups with a name: a group without one may be a copy in progress.
_COUNT_IN = (
    "SELECT count(*) FROM (SELECT 1 FROM named CROSS JOIN episodes INDEXED BY episodes_pending "
    "ON episodes.no = named.no AND state < 2 UNION ALL SELECT 1 FROM named CROSS JOIN operations "
    "INDEXED BY operations_asked ON operations.no = named.no AND state = 0 LIMIT ?2)"
)
PENDING_COUNT = f"WITH named AS (SELECT g.no FROM {_WAITING} g.name IS NOT NULL) {_COUNT_IN}"
PENDING_COUNT_OF = f"WITH named AS (SELECT no FROM groups WHERE name = ?1 AND waiting > 0) {_COUNT_IN}"
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

# :no, :sequence. All rows, but of log kinds only the rows before the entry: later entries stay, because none
# of them can be committed yet.
CLEAR: Mapping[str, str] = {
    kind.name: f"DELETE FROM {kind.name} WHERE no = :no{' AND sequence < :sequence' * kind.log}"
    for kind in KINDS
}

_HOLDS = "(?3 IS NULL OR (valid_at IS NULL OR valid_at <= ?3) AND (invalid_at IS NULL OR ?3 < invalid_at))"
# (no, entity, as_of, limit): newest first by the index, so that a hub costs only the rows taken.
FACTS_AT: Mapping[str, str] = {
    end: f"SELECT created_at, id FROM facts WHERE no = ?1 AND {end} = ?2 AND {_HOLDS} "
    "ORDER BY created_at DESC, id LIMIT ?4"
    for end in ("source", "target")
}
