"""The statements that are generated from `mapping.STORED`, once, at import; declared reads, page by page.

Values go in as parameters. All that read begin with OPEN, which hides a group that another process is copying
in or that is being deleted in pieces (R27). Rows are found by an index that begins with the group; Neo4j uses
one over several properties only if a statement names all of them, hence the `IS NOT NULL` conditions.

    read    $group, $group_key, $copy and
            look-ups: $values; rows: (index of the value, the columns, the place)
            scans: $after (the last row's place), $limit; rows: (the columns, the place)
    write   row: a map with `group_id`. Values are absolute, so a statement that is run again changes nothing
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kgray.domain.records import is_storable
from kgray.schema import kinds, reads
from kgray.schema.kinds import Kind, R, Read
from kgray.storage.neo4j.connection import MAX_ROWS
from kgray.storage.neo4j.mapping import EPISODE_TIMES, STORED, StoredKind

# No row if the group may not be read. $copy: the token of this process's copy into the group, else "".
OPEN = (
    "MATCH (g:KgrayGroup {id: $group_key}) "
    "WHERE coalesce(g.adopting, '') = $copy AND (g.clearing IS NULL OR $copy <> '')"
)

NODES = tuple(kind for kind, stored in STORED.items() if not stored.edge)


def _hint(stored: StoredKind, properties: Sequence[str]) -> str:
    """Return the index hint; without it, the planner may choose an index that reads the whole group."""
    return f"USING INDEX n:{stored.label}(group_id, {', '.join(properties)})"


def _returned(read: Read[Any], *first: str) -> str:
    """Return the RETURN clause of a read: a list of rows, each its columns and its place in the order.

    A single list, because the driver spends 60 us on each record, and almost nothing on an item of a list.
    """
    columns = STORED[read.kind].properties((*read.columns, *read.place))
    return f"RETURN collect([{', '.join((*first, *(f'n.{name}' for name in columns)))}])"


def _look_up(read: Read[Any]) -> str:
    stored, keys = STORED[read.kind], (read.by,) if isinstance(read.by, str) else read.by or ()
    properties = stored.serving(keys)
    values = ["value"] if len(keys) == 1 else [f"value[{n}]" for n in range(len(keys))]
    matched = [f"n.{p} = {v}" for p, v in zip(properties, values, strict=False)]
    matched += [f"n.{p} IS NOT NULL" for p in properties[len(keys) :]]
    return f"""
{OPEN}
UNWIND range(0, size($values) - 1) AS place
WITH place, $values[place] AS value
MATCH {stored.pattern} {_hint(stored, properties)}
WHERE n.group_id = {stored.group} AND {" AND ".join(matched)}
{_returned(read, "place")}
"""


def _scan(read: Read[Any]) -> str:
    """Return a scan, page by page in the order of the index of the key, or of `since`."""
    stored = STORED[read.kind]
    key = stored.properties(read.place)
    place = [f"n.{p}" for p in key]
    condition = "{0} > $after[0]"
    if (
        len(key) == 2
    ):  # a CASE, not an OR, because the planner turns an OR into two ranges and sorts their rows
        condition = (
            "{0} >= $after[0] AND {1} IS NOT NULL "
            "AND CASE WHEN {0} = $after[0] THEN {1} > $after[1] ELSE true END"
        )
    return f"""
{OPEN}
CALL () {{
    MATCH {stored.pattern} {_hint(stored, key)}
    WHERE n.group_id = {stored.group} AND {condition.format(*place)}
    RETURN n ORDER BY n.group_id, {", ".join(place)} LIMIT $limit
}}
{_returned(read)}
"""


OF_READ: Mapping[Read[Any], str] = {read: _look_up(read) if read.by else _scan(read) for read in reads.READS}


def _everywhere(read: Read[Any]) -> str:
    """Return the statement that runs a read over all groups: $values; rows: group, as `_returned`."""
    kind = STORED[read.kind]
    if read.by is None:
        return f"MATCH {kind.pattern} {_returned(read, 'n.group_id')}"
    first, *more_keys = kind.serving((str(read.by),))
    named = "".join(f" AND n.{p} IS NOT NULL" for p in more_keys)
    return f"""
MATCH (g:KgrayGroup) WHERE g.name IS NOT NULL AND g.clearing IS NULL
MATCH {kind.pattern} {_hint(kind, (first, *more_keys))}
WHERE n.group_id = g.name AND n.{first} IN $values{named}
{_returned(read, "g.name")}
"""


EVERYWHERE: Mapping[Read[Any], str] = {read: _everywhere(read) for read in reads.EVERYWHERE}


def datetimes(target: str, properties: Sequence[str]) -> str:
    """Return assignments to a node or relationship of the datetimes that `row` has as text."""
    return ", ".join(f"{target}.{name} = datetime(row.{name})" for name in properties)


def _put(kind: Kind[Any]) -> str:
    statement = f"MERGE {STORED[kind].keyed()} {'ON CREATE SET' if kind.first_wins else 'SET'} n += row"
    if kind is kinds.EPISODES:  # a live, committed episode is visible to Graphiti
        statement += f", {datetimes('n', EPISODE_TIMES)}"
        statement += (
            " FOREACH (_ IN CASE WHEN n.state = 2 AND n.retired_at IS NULL THEN [1] END | SET n:Episodic)"
        )
    return f"FOREACH (row IN $rows.{kind.name} | {statement})"


# $rows: a map of lists by kind, each row with all properties of its columns; other properties, for example an
# entity's `created_at`, stay.
PUT_NODES = "\n".join(map(_put, NODES))
# {group_id, key}. A fact is deleted together with its value.
DROP: Mapping[Kind[Any], str] = {
    kind: f"MATCH {stored.keyed()} {'DELETE' if stored.edge else 'DETACH DELETE'} n"
    + " FOREACH (_ IN CASE WHEN o:Value THEN [1] END | DELETE o)" * (kind is kinds.FACTS)
    for kind, stored in STORED.items()
}
# {group_id, key, put: properties}; of nodes. A retired episode is no longer visible to Graphiti.
PATCH: Mapping[Kind[Any], str] = {
    kind: f"MATCH {STORED[kind].keyed()} SET n += row.put"
    + " WITH n WHERE n:Episodic AND n.retired_at IS NOT NULL REMOVE n:Episodic" * (kind is kinds.EPISODES)
    for kind in NODES
}


def _clear(kind: Kind[Any]) -> str:
    """Return the pattern of a removed group's rows; of log kinds, the rows up to a sequence (R27)."""
    stored = STORED[kind]
    matched = [f"n.{p} IS NOT NULL" for p in stored.key]
    if kind.log:
        # The removing operation's own row stays.
        matched.append(f"n.sequence {'<' if kind is kinds.OPERATIONS else '<='} $sequence")
    return f"MATCH {stored.pattern} WHERE n.group_id = {stored.group} AND {' AND '.join(matched)}"


# Rows that refer to a row come before it.
_CLEARED: Mapping[str, str] = {
    **{kind.name: _clear(kind) for kind in reversed(kinds.KINDS)},
    "values": "MATCH (n:Value) WHERE n.group_id = $group AND n.uuid IS NOT NULL",
}
# $group, $group_key, $sequence, $most: the maximum of rows. One row: the number of deleted rows.
CLEAR: Mapping[str, str] = {
    name: f"{match} WITH n LIMIT $most {'DELETE' if '->' in match else 'DETACH DELETE'} n RETURN count(*)"
    for name, match in _CLEARED.items()
}


_PAGE_ROWS = 1_000
_INT_LIMIT = 1 << 63
Ask = Callable[..., list[list[Any]]]  # runs a statement with named values; rows in the order of its RETURN
Named = Mapping[str, str]  # a group, as `OPEN` takes it


def read_rows(ask: Ask, read: Read[R], named: Named, values: Sequence[Any]) -> Iterator[R]:
    """Return the rows of a declared read of a group."""
    if read.by is None:
        yield from _scanned(ask, read, named, values)
        return
    lookups = _storable(values)
    for start in range(0, len(lookups), MAX_ROWS):
        ((rows,),) = ask(OF_READ[read], values=lookups[start : start + MAX_ROWS], **named)
        _sort(read, rows)
        yield from _rows(read, rows, first=1)


def rows_everywhere(ask: Ask, read: Read[R], values: Sequence[Any]) -> Iterator[tuple[str, R]]:
    """Return (group, row) of a read of `reads.EVERYWHERE`, of all groups by name."""
    ((rows,),) = ask(EVERYWHERE[read], values=_storable(values))
    _sort(read, rows)
    return zip([row[0] for row in rows], _rows(read, rows, first=1), strict=True)


def _sort(read: Read[Any], rows: list[list[Any]]) -> None:
    """Sort rows by their first item, the index of a value or a group, then by the kind's key."""
    rows.sort(key=lambda row: (row[0], *row[1 + len(read.columns) :]))


def _storable(values: Sequence[Any]) -> list[Any]:
    return [value for value in dict.fromkeys(values) if storable(value)]


def _scanned(ask: Ask, read: Read[R], named: Named, start: Sequence[Any]) -> Iterator[R]:
    width = len(read.place)
    place = [*start, *read.kind.lowest(read.place[len(start) :])]
    size = _PAGE_ROWS
    while size == _PAGE_ROWS:
        ((page,),) = ask(OF_READ[read], after=place, limit=_PAGE_ROWS, **named)
        if size := len(page):
            place = page[-1][-width:]
            yield from _rows(read, page, first=0)


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {"texts": tuple, "bytes": bytes}


def _rows(read: Read[R], rows: Iterable[list[Any]], *, first: int) -> Iterator[R]:
    """Yield rows with the types that Neo4j lacks. first: the index of the first column."""
    types = [(n, read.kind.types[name]) for n, name in enumerate(read.columns, first)]
    converted = [(n, _CONVERTERS[type_name]) for n, type_name in types if type_name in _CONVERTERS]
    last = first + len(read.columns)
    for row in rows:
        for place, convert in converted:
            row[place] = None if row[place] is None else convert(row[place])
        yield read.make(row[first:last])


def storable(value: Any) -> bool:  # noqa: ANN401 - a text, a number or a place
    """Return True if the database can hold a value; else a look-up of it has no rows."""
    if isinstance(value, str):
        return is_storable(value)
    if isinstance(value, int):
        return -_INT_LIMIT <= value < _INT_LIMIT
    return all(map(storable, value))
