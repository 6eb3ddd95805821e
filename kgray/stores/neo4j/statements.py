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

from kgray import kinds, reads
from kgray.kinds import Kind, R, Read
from kgray.records import is_storable
from kgray.stores.neo4j.connection import MAX_ROWS
from kgray.stores.neo4j.mapping import EPISODE_TIMES, STORED, StoredKind

# No row where the group may not be read. $copy: the token of this process's own copy into it, else "".
OPEN = (
    "MATCH (g:KgrayGroup {id: $group_key}) "
    "WHERE coalesce(g.adopting, '') = $copy AND (g.clearing IS NULL OR $copy <> '')"
)

NODES = tuple(kind for kind, stored in STORED.items() if not stored.edge)


def _hint(stored: StoredKind, properties: Sequence[str]) -> str:
    """Return the index hint; without it, the planner may choose an index that reads the whole group."""
    return f"USING INDEX n:{stored.label}(group_id, {', '.join(properties)})"


def _returned(read: Read[Any], *before: str) -> str:
    """Return what a read returns: one list of its rows, each its columns and its place in the read's order.

    One list, because the driver spends 60 us on each record, and hardly anything on an item of a list.
    """
    columns = STORED[read.kind].properties((*read.columns, *read.place))
    return f"RETURN collect([{', '.join((*before, *(f'n.{name}' for name in columns)))}])"


def _look_up(read: Read[Any]) -> str:
    stored, by = STORED[read.kind], (read.by,) if isinstance(read.by, str) else read.by or ()
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


def _scan(read: Read[Any]) -> str:
    """Return a scan, page by page in the order of the key's own index, or of that of `since`."""
    stored = STORED[read.kind]
    key = stored.properties(read.place)
    place = [f"n.{p}" for p in key]
    behind = "{0} > $after[0]"
    if len(key) == 2:  # a CASE and no OR: of that the planner makes two ranges, and sorts what they give
        behind = (
            "{0} >= $after[0] AND {1} IS NOT NULL "
            "AND CASE WHEN {0} = $after[0] THEN {1} > $after[1] ELSE true END"
        )
    return f"""
{OPEN}
CALL () {{
    MATCH {stored.pattern} {_hint(stored, key)}
    WHERE n.group_id = {stored.group} AND {behind.format(*place)}
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
    first, *others = kind.serving((str(read.by),))
    named = "".join(f" AND n.{p} IS NOT NULL" for p in others)
    return f"""
MATCH (g:KgrayGroup) WHERE g.name IS NOT NULL AND g.clearing IS NULL
MATCH {kind.pattern} {_hint(kind, (first, *others))}
WHERE n.group_id = g.name AND n.{first} IN $values{named}
{_returned(read, "g.name")}
"""


EVERYWHERE: Mapping[Read[Any], str] = {read: _everywhere(read) for read in reads.EVERYWHERE}


def datetimes(of: str, properties: Sequence[str]) -> str:
    """Return assignments to a node or relationship of the datetimes that `row` has as text."""
    return ", ".join(f"{of}.{name} = datetime(row.{name})" for name in properties)


def _put(kind: Kind[Any]) -> str:
    made = f"MERGE {STORED[kind].keyed()} {'ON CREATE SET' if kind.first_wins else 'SET'} n += row"
    if kind is kinds.EPISODES:  # a live, committed episode is visible to Graphiti
        made += f", {datetimes('n', EPISODE_TIMES)}"
        made += " FOREACH (_ IN CASE WHEN n.state = 2 AND n.retired_at IS NULL THEN [1] END | SET n:Episodic)"
    return f"FOREACH (row IN $rows.{kind.name} | {made})"


# $rows: a map of lists by kind, each row with all properties of its columns; others, as an entity's
# `created_at`, stay.
PUT_NODES = "\n".join(map(_put, NODES))
# {group_id, key}. A fact goes with the value that it ends at.
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
    """Return the statement that takes rows of a group that goes: of the log, those up to a sequence (R27)."""
    stored = STORED[kind]
    matched = [f"n.{p} IS NOT NULL" for p in stored.key]
    if kind.log:
        # The removing operation's own row stays.
        matched.append(f"n.sequence {'<' if kind is kinds.OPERATIONS else '<='} $sequence")
    return f"MATCH {stored.pattern} WHERE n.group_id = {stored.group} AND {' AND '.join(matched)}"


# What speaks of a thing before the thing.
_CLEARED: Mapping[str, str] = {
    **{kind.name: _clear(kind) for kind in reversed(kinds.KINDS)},
    "values": "MATCH (n:Value) WHERE n.group_id = $group AND n.uuid IS NOT NULL",
}
# $group, $group_key, $sequence, $most: at most so many rows of each kind in turn. One row: how many went.
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
    """Return (group, row) of one of `reads.EVERYWHERE`, of all groups by name."""
    ((rows,),) = ask(EVERYWHERE[read], values=_storable(values))
    _sort(read, rows)
    return zip([row[0] for row in rows], _rows(read, rows, first=1), strict=True)


def _sort(read: Read[Any], rows: list[list[Any]]) -> None:
    """Sort rows by their first item, the index of a value or a group, then by the kind's key."""
    rows.sort(key=lambda row: (row[0], *row[1 + len(read.columns) :]))


def _storable(values: Sequence[Any]) -> list[Any]:
    return [value for value in dict.fromkeys(values) if storable(value)]


def _scanned(ask: Ask, read: Read[R], named: Named, since: Sequence[Any]) -> Iterator[R]:
    width = len(read.place)
    after = [*since, *read.kind.lowest(read.place[len(since) :])]
    size = _PAGE_ROWS
    while size == _PAGE_ROWS:
        ((page,),) = ask(OF_READ[read], after=after, limit=_PAGE_ROWS, **named)
        if size := len(page):
            after = page[-1][-width:]
            yield from _rows(read, page, first=0)


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {"texts": tuple, "bytes": bytes}


def _rows(read: Read[R], rows: Iterable[list[Any]], *, first: int) -> Iterator[R]:
    """Yield rows with the types that Neo4j lacks. first: where the columns begin."""
    types = [(n, read.kind.types[name]) for n, name in enumerate(read.columns, first)]
    converted = [(n, _CONVERTERS[of]) for n, of in types if of in _CONVERTERS]
    last = first + len(read.columns)
    for row in rows:
        for place, convert in converted:
            row[place] = None if row[place] is None else convert(row[place])
        yield read.make(row[first:last])


def storable(value: Any) -> bool:  # noqa: ANN401 - a text, a number or a place that is asked for
    """Whether the database can hold a value; a look-up of one that it cannot hold finds nothing."""
    if isinstance(value, str):
        return is_storable(value)
    if isinstance(value, int):
        return -_INT_LIMIT <= value < _INT_LIMIT
    return all(map(storable, value))
