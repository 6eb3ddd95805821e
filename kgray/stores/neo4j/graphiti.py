"""Reads a database that Graphiti wrote: episodes, facts, and counts of the rest (graphiti-core 0.2x to 0.31).

kgray's own nodes have the same labels; they are left out here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from kgray import times
from kgray.errors import SettingsError
from kgray.stores.neo4j.connection import Connection
from kgray.times import Instant

_PAGE = 500
# Rows: the group ids.
GROUPS = """
MATCH (e:Episodic|Entity) WHERE NOT e:KgrayEpisode AND e.born_sequence IS NULL
RETURN DISTINCT coalesce(e.group_id, '') AS found ORDER BY found
"""
# $group, $after, $limit: uuid, valid_at, created_at.
HEADS = """
MATCH (e:Episodic) WHERE coalesce(e.group_id, '') = $group AND e.uuid > $after AND NOT e:KgrayEpisode
RETURN e.uuid, e.valid_at, e.created_at ORDER BY e.uuid LIMIT $limit
"""
# $group, $uuids: a map each.
EPISODES = """
MATCH (e:Episodic) WHERE e.uuid IN $uuids AND coalesce(e.group_id, '') = $group AND NOT e:KgrayEpisode
RETURN e {.uuid, .name, .content, .source, .source_description, .valid_at, .created_at}
"""
# $group, $after, $limit: uuid, a map; source, target: the names of both ends. A fact of ours bears `created`.
FACTS = """
MATCH (s)-[f:RELATES_TO]->(o)
WHERE coalesce(f.group_id, '') = $group AND f.uuid > $after AND f.created IS NULL
RETURN f.uuid, f {.uuid, .name, .fact, .episodes, .valid_at, .invalid_at, .created_at, .expired_at,
    source: CASE WHEN s:Entity THEN s.name END, target: CASE WHEN o:Entity THEN o.name END}
ORDER BY f.uuid LIMIT $limit
"""
# $group, $known: properties of entities, $known_facts. One row: the counts that _BESIDES names.
BESIDES = """
CALL () {
    MATCH (e:Entity) WHERE coalesce(e.group_id, '') = $group AND e.born_sequence IS NULL
    RETURN count(CASE WHEN coalesce(e.summary, '') <> '' THEN 1 END) AS summaries,
        count(CASE WHEN any(k IN keys(e) WHERE NOT k IN $known) THEN 1 END) AS attributes,
        count(CASE WHEN size(labels(e)) > 1 THEN 1 END) AS typed,
        count(CASE WHEN NOT EXISTS { (e)-[:RELATES_TO]-() } THEN 1 END) AS lonely
}
CALL () {
    MATCH ()-[f:RELATES_TO]->() WHERE coalesce(f.group_id, '') = $group AND f.created IS NULL
    RETURN count(CASE WHEN any(k IN keys(f) WHERE NOT k IN $known_facts) THEN 1 END) AS of_facts
}
CALL () { MATCH (c:Community) WHERE coalesce(c.group_id, '') = $group RETURN count(c) AS communities }
CALL () { MATCH (s:Saga) WHERE coalesce(s.group_id, '') = $group RETURN count(s) AS sagas }
RETURN lonely, summaries, typed, attributes, of_facts, communities, sagas
"""
_BESIDES = (
    "entities in no fact", "entity summaries", "entity types", "entities with attributes",
    "facts with attributes", "communities", "sagas",
)  # fmt: skip
_ENTITY = ["uuid", "name", "group_id", "labels", "created_at", "name_embedding", "summary"]
_FACT = [
    "uuid", "group_id", "source_node_uuid", "target_node_uuid", "created_at", "name", "fact",
    "fact_embedding", "episodes", "expired_at", "valid_at", "invalid_at", "reference_time",
]  # fmt: skip


# An episode or a fact by the names that Graphiti gives its properties: texts, "" where there is none (of a
# fact's source and target None), and instants, None where one is missing or cannot be read.
Theirs = Mapping[str, Any]


class GraphitiDatabase:
    """A connection for reading, to be closed. Reads page by page, so nobody may write meanwhile."""

    def __init__(self, *, uri: str, user: str, password: str, database: str | None) -> None:
        """Connect. Raises SettingsError where the server refuses, Unavailable where it does not answer."""
        try:
            self._db = Connection(uri=uri, user=user, password=password, database=database)
            self._db.rows("RETURN 1")
        except SettingsError:
            raise SettingsError(
                f"{uri} (user {user!r}) refused the user, the password or the database: check --user, "
                f"NEO4J_PASSWORD or --password-file, and --database"
            ) from None

    def close(self) -> None:
        self._db.close()

    def groups(self) -> list[str]:
        """Return the group ids in the database, sorted; "" is Graphiti's default."""
        return [name for (name,) in self._db.rows(GROUPS)]

    def said(self, group: str) -> list[str]:
        """Return the episodes' uuids, in the order in which they were said."""
        found = []
        for id_, *given in self._pages(HEADS, group):
            valid_at, created_at = map(_instant, given)
            found.append((created_at or 0 if valid_at is None else valid_at, created_at or 0, id_))
        return [id_ for *_, id_ in sorted(found)]

    def episodes(self, group: str, uuids: Sequence[str]) -> list[Theirs]:
        rows = self._db.rows(EPISODES, group=group, uuids=list(uuids))
        found = {row["uuid"]: {name: _read(name, given) for name, given in row.items()} for (row,) in rows}
        return [found[id_] for id_ in uuids if id_ in found]

    def facts(self, group: str) -> Iterator[Theirs]:
        """Yield the facts; episodes: uuids, oldest first; unread: whether its span cannot be read."""
        for _, row in self._pages(FACTS, group):
            read = {name: _read(name, given) for name, given in row.items()}
            read["episodes"] = tuple(map(_text, row["episodes"] or ()))
            read |= {end: None for end in ("source", "target") if row[end] is None}
            lost = any(read[at] is None is not row[at] for at in ("valid_at", "invalid_at"))
            yield read | {"unread": lost}

    def besides(self, group: str) -> dict[str, int]:
        """Count what is neither an episode nor a fact, by what it is; nothing that there is none of."""
        (row,) = self._db.rows(BESIDES, group=group, known=_ENTITY, known_facts=_FACT)
        return {name: count for name, count in zip(_BESIDES, row, strict=True) if count}

    def _pages(self, statement: str, group: str) -> Iterator[list[Any]]:
        after = ""
        while page := self._db.rows(statement, group=group, after=after, limit=_PAGE):
            yield from page
            after = page[-1][0]


def _read(name: str, value: object) -> Any:  # noqa: ANN401 - a text or an instant
    return _instant(value) if name.endswith("_at") else _text(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _instant(value: Any) -> Instant | None:  # noqa: ANN401 - whatever a property holds
    """Return the instant of a driver's datetime or of ISO 8601 (no zone = UTC); None = it is neither."""
    native = value.to_native() if hasattr(value, "to_native") else value
    try:
        if isinstance(native, datetime):
            return times.from_datetime(native)
        return times.parse(native)[0] if isinstance(native, str | int | float) else None
    except (ValueError, OverflowError):
        return None
