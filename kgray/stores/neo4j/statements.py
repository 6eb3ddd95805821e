"""The statements that are generated from `mapping.STORED`, once, at import; declared reads, page by page.

Values go in as parameters. All that read begin with OPEN, which hides a group that another process is copying
in or that is being deleted in pieces (R27). Rows are found by an index that begins with the group; Neo4j uses
one over several properties only if a statement names all of them, hence the `IS NOT NULL` conditions.

    read    $group, $group_key, $copy and
            look-ups: $values; rows: (index of the value, the columns, those that sort)
            scans: $after (the last row's key), $limit; rows: (the columns, those that sort, the key)
    write   row: a map with `group_id`. Values are absolute, so a statement that is run again changes nothing
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from kgray import kinds
from kgray.kinds import READS, Kind, Read, Row
from kgray.records import is_storable
from kgray.stores.neo4j.connection import MAX_ROWS
from kgray.stores.neo4j.mapping import STORED, StoredKind, digest

# No row where the group may not be read. $copy: the token of this process's own copy into it, else "".
OPEN = (
    "MATCH (g:KgrayGroup {id: $group_key}) "
    "WHERE coalesce(g.adopting, '') = $copy AND (g.clearing IS NULL OR $copy <> '')"
)

# Not those whose rows are put by hand-written statements: what Graphiti's readers see.
PLAIN = tuple(kind for kind in STORED if kind not in (kinds.EPISODES, kinds.ENTITIES, kinds.FACTS))


def _hint(stored: StoredKind, properties: Sequence[str]) -> str:
    """Return the index hint; without it, the planner may choose an index that reads the whole group."""
    return f"USING INDEX n:{stored.label}(group_id, {', '.join(properties)})"


def _returned(read: Read, *before: str, behind: Iterable[str] = ()) -> str:
    """Return what a read returns: one list of its rows, each its columns and those that sort it.

    One list, because the driver spends 60 us on each record, and hardly anything on an item of a list.
    """
    columns = map(STORED[read.kind].property_of, (*read.chosen, *read.place))
    return f"RETURN collect([{', '.join((*before, *(f'n.{name}' for name in columns), *behind))}])"


def _look_up(read: Read) -> str:
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


def _scan(read: Read) -> str:
    """Return a scan, page by page in the order of the key's own index, or of that of `since`."""
    stored = STORED[read.kind]
    key = stored.lookups(read.place) if read.since else stored.key
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
{_returned(read, behind=place)}
"""


OF_READ: Mapping[Read, str] = {read: _look_up(read) if read.by else _scan(read) for read in READS}


def _everywhere(read: Read) -> str:
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


EVERYWHERE: Mapping[Read, str] = {read: _everywhere(read) for read in kinds.EVERYWHERE}


def _node(kind: Kind) -> str:
    keyed = ", ".join(f"{p}: row.{p}" for p in ("group_id", *STORED[kind].key))
    return f"(n:{STORED[kind].label} {{{keyed}}})"


# $rows: a map of lists by kind, of all kinds that have nothing but their rows: one round trip for all. One
# parameter, since the server plans a statement anew for each mixture of empty, short and long lists.
PUT_PLAIN = "\n".join(
    f"FOREACH (row IN $rows.{kind.name} | MERGE {_node(kind)} "
    f"{'ON CREATE SET n += row' if kind.first_wins else 'SET n = row'})"
    for kind in PLAIN
)
# {group_id, key}. Facts and entities go by statements of their own.
DROP: Mapping[Kind, str] = {kind: f"MATCH {_node(kind)} DETACH DELETE n" for kind in (kinds.EPISODES, *PLAIN)}
# {group_id, key, put: properties}. Facts are put whole. A retired episode is no longer visible to Graphiti.
PATCH: Mapping[Kind, str] = {
    kind: f"MATCH {_node(kind)} SET n += row.put"
    + """
WITH n WHERE n:Episodic AND n.retired_at IS NOT NULL REMOVE n:Episodic
WITH n OPTIONAL MATCH (n)-[m:MENTIONS]->(:Entity) DELETE m
"""
    * (kind is kinds.EPISODES)
    for kind in (kinds.EPISODES, kinds.ENTITIES, *PLAIN)
}


def _clear(kind: Kind) -> str:
    """Return the statement that takes rows of a group that goes: of the log, those up to a sequence (R27)."""
    stored = STORED[kind]
    matched = [f"n.{p} IS NOT NULL" for p in stored.key]
    if kind.log:
        # The removing operation's own row stays.
        matched[0] = f"n.sequence {'<' if kind is kinds.OPERATIONS else '<='} $sequence"
    return f"MATCH {stored.pattern} WHERE n.group_id = {stored.group} AND {' AND '.join(matched)}"


# What speaks of a thing before the thing.
_CLEARED: Mapping[str, str] = {
    **{kind.name: _clear(kind) for kind in reversed(kinds.KINDS)},
    "values": "MATCH (n:Value) WHERE n.group_id = $group AND n.uuid IS NOT NULL",
}
# $group, $group_key, $sequence, $most: at most so many rows of each kind in turn. One row: how many went.
CLEAR: Mapping[str, str] = {
    name: f"{match} WITH n LIMIT $most {'DELETE' if name == 'facts' else 'DETACH DELETE'} n RETURN count(*)"
    for name, match in _CLEARED.items()
}


_PAGE_ROWS = 1_000
_INT_LIMIT = 1 << 63
Ask = Callable[..., list[list[Any]]]  # runs a statement with named values; rows in the order of its RETURN


def read_rows(ask: Ask, read: Read, named: Mapping[str, str] | None, values: Sequence[Any]) -> Iterator[Row]:
    """Return the rows of a declared read. named: the group, as `OPEN` takes it; None: all, at once."""
    if read.by is None and named:
        yield from _scanned(ask, read, named, values)
        return
    asked = [value for value in dict.fromkeys(values) if storable(value)]
    if read.by in STORED[read.kind].digested:
        asked = list(map(digest, asked))
    statement, parts = (OF_READ if named else EVERYWHERE)[read], [asked]
    if named:
        parts = [asked[start : start + MAX_ROWS] for start in range(0, len(asked), MAX_ROWS)]
    for part in parts:
        ((found,),) = ask(statement, values=part, **(named or {}))
        # They begin with the index of a value, or their group; then in the kind's order.
        found.sort(key=lambda row: (row[0], *row[1 + len(read.chosen) :]))
        yield from _rows(read, found, first=1, start=int(bool(named)))


def _scanned(ask: Ask, read: Read, named: Mapping[str, str], since: Sequence[Any]) -> Iterator[Row]:
    stored, walked = STORED[read.kind], read.place if read.since else read.kind.key
    key = stored.lookups(walked)
    after = [*since, *read.kind.lowest(walked[len(since) :])]
    found: list[tuple[list[Any], Row]] = []
    size = _PAGE_ROWS
    while size == _PAGE_ROWS:
        ((page,),) = ask(OF_READ[read], after=after, limit=_PAGE_ROWS, **named)
        if not (size := len(page)):
            break
        after = page[-1][-len(key) :]
        rows = _rows(read, page, first=0, start=0)
        if key == tuple(map(stored.property_of, read.place)):
            yield from rows
        else:  # no index has them in this order
            found += zip([row[len(read.chosen) : -len(key)] for row in page], rows, strict=True)
    found.sort(key=itemgetter(0), reverse=True)
    while found:  # released as they are read: vectors are large
        yield found.pop()[1]


_MADE: Mapping[str, Callable[[Any], Any]] = {"texts": tuple, "vector": bytes, "bytes": bytes}


def _rows(read: Read, found: Iterable[list[Any]], *, first: int, start: int) -> Iterator[Row]:
    """Yield rows from index `start` on, with the types that Neo4j lacks. first: where the columns begin."""
    types = [(n, read.kind.types[name]) for n, name in enumerate(read.chosen, first)]
    changed = [(n, _MADE[of]) for n, of in types if of in _MADE]
    for row in found:
        for place, convert in changed:
            row[place] = None if row[place] is None else convert(row[place])
        yield tuple(row[start : first + len(read.chosen)])


def storable(value: Any) -> bool:  # noqa: ANN401 - a text, a number or a place that is asked for
    """Whether the database can hold a value; a look-up of one that it cannot hold finds nothing."""
    if isinstance(value, str):
        return is_storable(value)
    if isinstance(value, int):
        return -_INT_LIMIT <= value < _INT_LIMIT
    return all(map(storable, value))
