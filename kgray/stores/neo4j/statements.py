"""The statements that are generated from `mapping.STORED`, once, at import.

Values go in as parameters, never as text. All that read begin with OPEN, which hides a group that another
process is copying in or that is being deleted in pieces (R27). Rows are found by an index that begins with
the group; Neo4j uses an index over several properties only if a statement names all of them, hence the
`IS NOT NULL` conditions.

    read    $group, $group_key, $copy and
            look-ups: $values; rows: (index of the value, the columns, those that sort)
            scans: $after (the last row's key), $limit; rows: (the columns, those that sort, the key)
    write   $rows: maps with `group_id`, in portions of at most `values.MAX_ROWS`. Values are absolute, so a
            statement that is run again changes nothing
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kgray import kinds
from kgray.kinds import READS, Kind, Read
from kgray.stores.neo4j.mapping import STORED, StoredKind

# No row where the group may not be read. $copy: the token of this process's own copy into it, else "".
OPEN = "MATCH (g:KgrayGroup {id: $group_key}) WHERE g.clearing IS NULL AND coalesce(g.adopting, '') = $copy"

# Kinds whose rows are put by statements of their own (statements_by_hand.py): what Graphiti's readers see.
SEEN_BY_GRAPHITI = (kinds.EPISODES, kinds.ENTITIES, kinds.FACTS)
PLAIN: tuple[Kind, ...] = tuple(
    kind for kind in STORED if kind not in SEEN_BY_GRAPHITI and kind is not kinds.STATEMENT_VECTORS
)


def _hint(stored: StoredKind, properties: Sequence[str]) -> str:
    """Return the index hint; without it, the planner may choose an index that reads the whole group."""
    return f"USING INDEX n:{stored.label}(group_id, {', '.join(properties)})"


def _returned(read: Read, *before: str, behind: Iterable[str] = ()) -> str:
    """Return what a read returns: one list of its rows, each its columns and those that sort it.

    One list, because the driver spends 60 us on each record, and hardly anything on an item of a list.
    """
    columns = map(STORED[read.kind].property_of, (*read.chosen, *read.place))
    return f"RETURN collect([{', '.join((*before, *(f'n.{name}' for name in columns), *behind))}])"


def _look_up(stored: StoredKind, read: Read, by: tuple[str, ...]) -> str:
    properties = stored.serving(by)
    values = ["value"] if len(by) == 1 else [f"value[{n}]" for n in range(len(by))]
    matched = [f"n.{p} = {v}" for p, v in zip(properties, values, strict=False)]
    matched += [f"n.{p} IS NOT NULL" for p in properties[len(by) :]]
    return f"""
{OPEN}
UNWIND range(0, size($values) - 1) AS place
WITH place, $values[place] AS value
MATCH {stored.pattern} {_hint(stored, properties)}
WHERE n.group_id = {stored.group} AND {" AND ".join(matched)}
{_returned(read, "place")}
"""


def _scan(stored: StoredKind, read: Read) -> str:
    """Return a scan, page by page in the order of the key's own index, or of that of `since`."""
    key = stored.lookups(read.place) if read.since else stored.key
    behind = "n.{0} > $after[0]"
    if len(key) == 2:
        # A CASE and no OR: of that the planner makes two ranges, and sorts what they give.
        behind = (
            "n.{0} >= $after[0] AND n.{1} IS NOT NULL "
            "AND CASE WHEN n.{0} = $after[0] THEN n.{1} > $after[1] ELSE true END"
        )
    place = [f"n.{p}" for p in key]
    return f"""
{OPEN}
CALL () {{
    MATCH {stored.pattern} {_hint(stored, key)}
    WHERE n.group_id = {stored.group} AND {behind.format(*key)}
    RETURN n ORDER BY n.group_id, {", ".join(place)} LIMIT $limit
}}
{_returned(read, behind=place)}
"""


def _read(read: Read) -> str:
    stored = STORED[read.kind]
    if read.by is None:
        return _scan(stored, read)
    return _look_up(stored, read, (read.by,) if isinstance(read.by, str) else read.by)


OF_READ: Mapping[Read, str] = {read: _read(read) for read in READS}


def _everywhere(read: Read) -> str:
    """Return the statement that runs a read over all groups: $values; rows: group, as `_returned`."""
    kind = STORED[read.kind]
    if read.by is None:
        return f"MATCH {kind.pattern} {_returned(read, 'n.group_id')}"
    first, *others = kind.serving((str(read.by),))
    named = "".join(f" AND n.{p} IS NOT NULL" for p in others)
    return f"""
MATCH (g:KgrayGroup) WHERE g.name IS NOT NULL AND g.clearing IS NULL AND g.adopting IS NULL
MATCH {kind.pattern} {_hint(kind, (first, *others))}
WHERE n.group_id = g.name AND n.{first} IN $values{named}
{_returned(read, "g.name")}
"""


EVERYWHERE: Mapping[Read, str] = {read: _everywhere(read) for read in kinds.EVERYWHERE}


def _keyed(stored: StoredKind) -> str:
    return "{group_id: row.group_id, " + ", ".join(f"{p}: row.{p}" for p in stored.key) + "}"


def _put(kind: Kind) -> str:
    stored = STORED[kind]
    setting = "ON CREATE SET n += row" if kind.first_wins else "SET n = row"
    return f"FOREACH (row IN $rows.{kind.name} | MERGE (n:{stored.label} {_keyed(stored)}) {setting})"


# $rows: a map of lists by kind, of all kinds that have nothing but their rows: one round trip for all. One
# parameter, since the server plans a statement anew for each mixture of empty, short and long lists.
PUT_PLAIN = "\n".join(_put(kind) for kind in PLAIN)
# {group_id, id, vector, signs}. Rows: group of each vector that took the place of another.
PUT_STATEMENT_VECTORS = """
UNWIND $rows AS row
MERGE (n:KgrayStatementVector {group_id: row.group_id, id: row.id})
WITH row, n, n.vector <> row.vector AS replaced
SET n = row
WITH row, replaced WHERE replaced
RETURN row.group_id
"""
# {group_id, key}. Facts and entities go by statements of their own.
DROP: Mapping[Kind, str] = {
    kind: f"UNWIND $rows AS row\nMATCH (n:{stored.label} {_keyed(stored)})\nDETACH DELETE n"
    for kind, stored in STORED.items()
    if kind not in (kinds.ENTITIES, kinds.FACTS)
}
# {group_id, key, put: properties}. Facts and vectors are put whole.
PATCH: Mapping[Kind, str] = {
    kind: f"UNWIND $rows AS row\nMATCH (n:{STORED[kind].label} {_keyed(STORED[kind])})\nSET n += row.put"
    for kind in (kinds.EPISODES, kinds.ENTITIES, *PLAIN)
}


def _clear(kind: Kind) -> str:
    """Return the statement that takes rows of a group that goes: of the log, those up to a sequence (R27)."""
    stored = STORED[kind]
    first, *others = stored.key
    matched = [f"n.{p} IS NOT NULL" for p in others]
    if kind.log:
        # The removing operation's own row stays.
        matched.insert(0, f"n.sequence {'<' if kind is kinds.OPERATIONS else '<='} $sequence")
    else:
        matched.insert(0, f"n.{first} IS NOT NULL")
    return f"MATCH {stored.pattern} WHERE n.group_id = {stored.group} AND {' AND '.join(matched)}"


_CLEARED_ANSWERS = """
MATCH (n:KgrayAnswer) WHERE n.group_id = $group AND n.request IS NOT NULL AND (
    EXISTS { MATCH (u:KgrayUse) USING INDEX u:KgrayUse(group_id, request)
        WHERE u.group_id = $group AND u.request = n.request AND u.sequence <= $sequence }
    OR NOT EXISTS { MATCH (u:KgrayUse) USING INDEX u:KgrayUse(group_id, request)
        WHERE u.group_id = $group AND u.request = n.request })
"""
_CLEARED_USES = """
MATCH (n:KgrayUse) WHERE n.group_id = $group AND n.sequence IS NOT NULL AND n.request IS NOT NULL
    AND NOT EXISTS { MATCH (a:KgrayAnswer) WHERE a.group_id = $group AND a.request = n.request }
"""
# What speaks of a thing before the thing. By hand: values, and the journal. An answer that a sequence up to
# this one used goes, whoever else did (R25), and with it all notes of its use.
_CLEARED: Mapping[str, str] = {
    **{
        kind.name: _clear(kind)
        for kind in reversed(kinds.KINDS)
        if kind not in (kinds.ANSWERS, kinds.ANSWER_USES)
    },
    "values": "MATCH (n:Value) WHERE n.group_id = $group AND n.uuid IS NOT NULL",
    "answers": _CLEARED_ANSWERS,
    "answer_uses": _CLEARED_USES,
}
# $group, $group_key, $sequence, $most: at most so many rows of each kind in turn. One row: how many went.
CLEAR: Mapping[str, str] = {
    name: f"{match} WITH n LIMIT $most {'DELETE' if name == 'facts' else 'DETACH DELETE'} n RETURN count(*)"
    for name, match in _CLEARED.items()
}
