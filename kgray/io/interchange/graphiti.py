"""Reads a Graphiti database: one text for each Graphiti episode with its facts, in their order of time.

A fact without its episodes gets a separate episode. An episode's text is stored in the metadata, too. Record
times are kgray's; Graphiti's are metadata.

Reads what graphiti-core 0.2x to 0.31 wrote. kgray's own nodes have the same labels; they are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from typing import Any

from kgray.domain import times
from kgray.domain.times import Instant
from kgray.errors import InputError, SettingsError
from kgray.io.intake import triples
from kgray.io.interchange.gathering import Unit
from kgray.io.interchange.importing import REASONS, Add, Import, ImportReport, taken_over
from kgray.settings.checks import NEO4J_SCHEMES, is_address
from kgray.storage.neo4j.connection import Connection

_TEXTS = 100  # episodes whose texts are in memory at once
_WITHOUT_FACTS = "episodes without facts"
# An episode or a fact by the names that Graphiti gives its properties: texts, "" where there is none (of a
# fact's source and target None), and instants, None where one is missing or cannot be read.
Theirs = Mapping[str, Any]
_FactTriple = tuple[Theirs, dict[str, Any]]
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
# $group, $known: properties of entities, $known_facts. One row: counts by the words that they are told in.
UNMAPPED = """
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
RETURN {`entities in no fact`: lonely, `entity summaries`: summaries, `entity types`: typed,
    `entities with attributes`: attributes, `facts with attributes`: of_facts,
    communities: communities, sagas: sagas}
"""
_ENTITY = ["uuid", "name", "group_id", "labels", "created_at", "name_embedding", "summary"]
_FACT = [
    "uuid", "group_id", "source_node_uuid", "target_node_uuid", "created_at", "name", "fact",
    "fact_embedding", "episodes", "expired_at", "valid_at", "invalid_at", "reference_time",
]  # fmt: skip


class GraphitiDatabase(Connection):
    """A connection for reading, to be closed. Reads page by page, so nobody may write meanwhile."""

    def __init__(self, *, uri: str, user: str, password: str, database: str | None) -> None:
        """Connect. Raises SettingsError if the server refuses, Unavailable if it does not answer."""
        try:
            super().__init__(uri=uri, user=user, password=password, database=database)
            self.rows("RETURN 1")
        except SettingsError:
            raise SettingsError(
                f"{uri} (user {user!r}) refused the user, the password or the database: check --user, "
                f"NEO4J_PASSWORD or --password-file, and --database"
            ) from None

    def groups(self) -> list[str]:
        """Return the group ids in the database, sorted; "" is Graphiti's default."""
        return [name for (name,) in self.rows(GROUPS)]

    def pages(self, statement: str, group: str) -> Iterator[list[Any]]:
        """Yield the rows of a statement, sorted by their first column, a uuid."""
        last_uuid = ""
        while page := self.rows(statement, group=group, after=last_uuid, limit=_PAGE):
            yield from page
            last_uuid = page[-1][0]


def _read(row: Theirs) -> dict[str, Any]:
    return {name: _instant(v) if name.endswith("_at") else _text(v) for name, v in row.items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _instant(value: Any) -> Instant | None:  # noqa: ANN401 - any value of a property
    """Return the instant of a driver's datetime or of ISO 8601 (no zone = UTC); None = it is neither."""
    native = value.to_native() if hasattr(value, "to_native") else value
    try:
        if isinstance(native, datetime):
            return times.from_datetime(native)
        return times.parse(native)[0] if isinstance(native, str | int | float) else None
    except (ValueError, OverflowError):
        return None


async def import_graphiti(
    uri: str, group: str, add: Add | None, *, user: str = "neo4j", password: str = "",
    database: str | None = None, from_group: str | None = None,
) -> ImportReport:  # fmt: skip
    """Import a group of a Graphiti database; add: None in a dry run. Raises InputError, Unavailable."""
    if not is_address(uri, NEO4J_SCHEMES):
        raise InputError(
            f"the URI is not an address such as bolt://localhost:7687 ({', '.join(NEO4J_SCHEMES)}; a host; "
            f"no user or password: --user and NEO4J_PASSWORD are for that)"
        )
    with closing(GraphitiDatabase(uri=uri, user=user, password=password, database=database)) as theirs:
        reading = _Reading(theirs, _chosen(theirs.groups(), from_group))
        report = await taken_over("graphiti", group, reading.units, add)
    unmapped = {name: count for name, count in report.reasons.items() if name not in reading.changes}
    counts = {"episodes": reading.episodes, "facts": reading.facts, "unmapped": unmapped}
    return replace(report, lost=reading.facts - reading.mapped, further=counts)


def _chosen(group_ids: list[str], requested: str | None) -> str:
    listed_ids = ", ".join(map(repr, group_ids[:10])) + (", ..." if len(group_ids) > 10 else "")
    content = f"the group_ids {listed_ids}" if group_ids else "no episode and no entity of Graphiti"
    if requested is not None and requested not in group_ids:
        raise InputError(f"no group_id {requested!r} in the database; it has {content}")
    if requested is None and len(group_ids) != 1:
        raise InputError(f"the database has {content}: name one by --from-group")
    return group_ids[0] if requested is None else requested


class _Reading:
    """A pass over one Graphiti group; its counts are final when `units` has ended."""

    def __init__(self, database: GraphitiDatabase, from_group: str) -> None:
        self.database, self.from_group = database, from_group
        self.episodes = self.facts = self.mapped = 0
        self.changes: frozenset[str] = frozenset()  # the reasons of changed rows

    def units(self, importing: Import) -> Iterator[Unit]:
        """Yield the episodes, oldest first; then an episode for each fact without its episodes."""
        database, group, heads = self.database, self.from_group, []
        for id_, *moments in database.pages(HEADS, group):
            spoken, recorded = map(_instant, moments)
            heads.append((recorded or 0 if spoken is None else spoken, recorded or 0, id_))
        uuids = [id_ for *_, id_ in sorted(heads)]
        by_episode, without_episode = self._facts(set(uuids), importing)
        for start in range(0, len(uuids), _TEXTS):
            batch = uuids[start : start + _TEXTS]
            rows = database.rows(EPISODES, group=group, uuids=batch)
            episodes = {row["uuid"]: _read(row) for (row,) in rows}
            for uuid in filter(episodes.__contains__, batch):
                self.episodes += 1
                if uuid in by_episode:
                    yield from _of_episode(episodes[uuid], by_episode[uuid], importing)
                else:
                    importing.omitted[_WITHOUT_FACTS] += 1
        for fact, row in without_episode:
            at = fact["created_at"] if fact["valid_at"] is None else fact["valid_at"]
            yield Unit(
                id=fact["uuid"], at=at, facts=[(False, row)], about={"facts": [_stored_metadata(fact)]}
            )
        ((unmapped,),) = database.rows(UNMAPPED, group=group, known=_ENTITY, known_facts=_FACT)
        importing.omitted.update({name: count for name, count in unmapped.items() if count})
        self.mapped, self.changes = importing.taken["facts"], frozenset(importing.changed)

    def _facts(
        self, known_episodes: set[str], importing: Import
    ) -> tuple[dict[str, list[_FactTriple]], list[_FactTriple]]:
        """Return the usable facts by episode, and the facts without episodes in the database."""
        by_episode: dict[str, list[_FactTriple]] = defaultdict(list)
        without_episode: list[_FactTriple] = []
        for _, properties in self.database.pages(FACTS, self.from_group):
            self.facts += 1
            fact = _read(properties) | {end: None for end in ("source", "target") if properties[end] is None}
            if any(fact[at] is None is not properties[at] for at in ("valid_at", "invalid_at")):
                importing.omitted[REASONS["valid_at"]] += 1
                continue
            row = importing.checked(_triple(fact), is_new=True)
            if row is None:
                continue
            homes = [
                uuid
                for uuid in dict.fromkeys(map(_text, properties["episodes"] or ()))
                if uuid in known_episodes
            ]
            for triples_of_home in [by_episode[uuid] for uuid in homes] or [without_episode]:
                triples_of_home.append((fact, row))
        return by_episode, without_episode


def _of_episode(episode: Theirs, fact_triples: list[_FactTriple], importing: Import) -> Iterator[Unit]:
    """Yield the unit of an episode, or several units if it has too many facts for a draft."""
    at = episode["created_at"] if episode["valid_at"] is None else episode["valid_at"]
    if episode["valid_at"] is None:
        importing.changed["texts without a time: they get the time of their record"] += 1
    text = episode["content"].replace("\0", "\ufffd")
    about = {name: episode[name] for name in ("name", "source", "source_description", "uuid")}
    about |= {"text": text, "created_at": times.show(episode["created_at"])}
    fact_triples = sorted(fact_triples, key=lambda pair: (pair[0]["created_at"] or 0, pair[0]["uuid"]))
    for part, start in enumerate(range(0, len(fact_triples), triples.MAX_TRIPLES)):
        portion = fact_triples[start : start + triples.MAX_TRIPLES]
        uuid = episode["uuid"]
        yield Unit(
            id=uuid if part == 0 else f"{uuid}#{part + 1}",
            at=at,
            text=text if part == 0 else "",
            facts=[(False, row) for _, row in portion],
            about=about | {"facts": [_stored_metadata(fact) for fact, _ in portion]},
        )


def _stored_metadata(fact: Theirs) -> dict[str, Any]:
    recorded = {name: times.show(fact[name]) for name in ("created_at", "expired_at")}
    return {"uuid": fact["uuid"]} | recorded


def _triple(fact: Theirs) -> dict[str, Any]:
    return {
        "source": fact["source"], "relation": fact["name"], "target": fact["target"], "text": fact["fact"],
        "valid_at": times.show(fact["valid_at"]), "invalid_at": times.show(fact["invalid_at"]),
    }  # fmt: skip
