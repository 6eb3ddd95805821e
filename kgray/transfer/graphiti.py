"""A Graphiti database as episodes of triples, one for each Graphiti episode, in their order of time.

Each episode states its facts with their spans. A fact without its episodes gets a separate episode. An
episode's text is stored in the metadata and with its first triple, where a search of episodes finds it: under
the key EPISODE_TEXT, which has no meaning for the graph. Record times are kgray's; Graphiti's are metadata.

Reads what graphiti-core 0.2x to 0.31 wrote. kgray's own nodes have the same labels; they are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kgray import times
from kgray.errors import InputError, SettingsError
from kgray.intake import triples
from kgray.records import MAX_CLIENT_ID, Draft, canonical
from kgray.stores.neo4j.connection import Connection
from kgray.times import Instant

EPISODE_TEXT = "episode_text"
_TEXTS = 100  # episodes whose texts are in memory at once
# The field of a refused triple -> why the fact is not mapped.
_REASONS = {
    "source": "facts whose subject has no usable name",
    "target": "facts whose object has no usable name",
    "relation": "facts whose relation is no name",
    "invalid_at": "facts whose end is not after their start",
    "valid_at": "facts with a time that cannot be read",
    "text": "facts whose sentence cannot be stored",
}
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


@dataclass(slots=True, kw_only=True)
class Import:
    """The import of one Graphiti group into a group of kgray; counts are final when `drafts` has ended."""

    database: GraphitiDatabase
    from_group: str
    group: str
    episodes: int = 0
    facts: int = 0
    lost: int = 0  # facts that were not mapped
    unmapped: Counter[str] = field(default_factory=Counter)  # reason -> how many things were not mapped
    changed: Counter[str] = field(default_factory=Counter)  # reason -> how many were mapped with a change

    def drafts(self) -> Iterator[Draft]:
        """Yield the episodes, oldest first; then an episode for each fact without its episodes."""
        database, group, heads = self.database, self.from_group, []
        for id_, *moments in database.pages(HEADS, group):
            spoken, recorded = map(_instant, moments)
            heads.append((recorded or 0 if spoken is None else spoken, recorded or 0, id_))
        uuids = [id_ for *_, id_ in sorted(heads)]
        by_episode, without_episode = self._facts(set(uuids))
        for start in range(0, len(uuids), _TEXTS):
            batch = uuids[start : start + _TEXTS]
            rows = database.rows(EPISODES, group=group, uuids=batch)
            episodes = {row["uuid"]: _read(row) for (row,) in rows}
            for uuid in filter(episodes.__contains__, batch):
                self.episodes += 1
                if uuid in by_episode:
                    yield from self._of_episode(episodes[uuid], by_episode[uuid])
                else:
                    self.unmapped["episodes without facts"] += 1
        for fact, row in without_episode:
            at = fact["created_at"] if fact["valid_at"] is None else fact["valid_at"]
            yield self._draft(fact["uuid"], at, [row], {"facts": [_stored_metadata(fact)]})
        ((unmapped,),) = database.rows(UNMAPPED, group=group, known=_ENTITY, known_facts=_FACT)
        self.unmapped.update({name: count for name, count in unmapped.items() if count})

    def as_dict(self) -> dict[str, Any]:
        """Return the keys that every `kgray import --json` has (`ImportReport.as_dict`)."""
        taken = self.episodes - self.unmapped["episodes without facts"] + self.facts - self.lost
        omitted = {reason: count for reason, count in self.unmapped.items() if count}
        return {
            "format": "graphiti",
            "taken": taken,
            "changed": self.changed.total(),
            "omitted": sum(omitted.values()),
            "reasons": dict(sorted((omitted | dict(self.changed)).items())),
        }

    def _facts(self, known_episodes: set[str]) -> tuple[dict[str, list[_FactTriple]], list[_FactTriple]]:
        """Return the usable facts by episode, and the facts without episodes in the database."""
        by_episode: dict[str, list[_FactTriple]] = defaultdict(list)
        without_episode: list[_FactTriple] = []
        for _, properties in self.database.pages(FACTS, self.from_group):
            self.facts += 1
            fact = _read(properties) | {end: None for end in ("source", "target") if properties[end] is None}
            reason, row = _REASONS["valid_at"], None
            if not any(fact[at] is None is not properties[at] for at in ("valid_at", "invalid_at")):
                reason, row = _triple(fact)
            if row is None:
                self.unmapped[reason] += 1
                self.lost += 1
                continue
            homes = [
                uuid
                for uuid in dict.fromkeys(map(_text, properties["episodes"] or ()))
                if uuid in known_episodes
            ]
            for triples_of_home in [by_episode[uuid] for uuid in homes] or [without_episode]:
                triples_of_home.append((fact, row))
        return by_episode, without_episode

    def _of_episode(self, episode: Theirs, fact_triples: list[_FactTriple]) -> Iterator[Draft]:
        """Yield the draft of an episode, or several drafts if it has too many facts for a draft."""
        at = episode["created_at"] if episode["valid_at"] is None else episode["valid_at"]
        if episode["valid_at"] is None:
            self.changed["texts without a time: they get the time of their record"] += 1
        text = episode["content"].replace("\0", "\ufffd")
        about = {name: episode[name] for name in ("name", "source", "source_description")}
        about |= {"text": text, "created_at": times.show(episode["created_at"])}
        fact_triples = sorted(fact_triples, key=lambda pair: (pair[0]["created_at"] or 0, pair[0]["uuid"]))
        for part, start in enumerate(range(0, len(fact_triples), triples.MAX_TRIPLES)):
            portion = fact_triples[start : start + triples.MAX_TRIPLES]
            rows = [row for _, row in portion]
            if text.strip() and part == 0:
                rows[0] = rows[0] | {EPISODE_TEXT: text}
            facts = [_stored_metadata(fact) for fact, _ in portion]
            uuid = episode["uuid"]
            name = uuid if part == 0 else f"{uuid}#{part + 1}"
            yield self._draft(name, at, rows, about | {"uuid": uuid, "facts": facts})

    def _draft(
        self, uuid: str, at: Instant | None, rows: list[dict[str, Any]], about: Mapping[str, Any]
    ) -> Draft:
        return Draft(
            group=self.group, source="graphiti", kind="triples", text=triples.normalise(rows, at),
            reference_time=at, client_id=uuid[:MAX_CLIENT_ID], metadata=canonical({"graphiti": about}),
        )  # fmt: skip


def _stored_metadata(fact: Theirs) -> dict[str, Any]:
    recorded = {name: times.show(fact[name]) for name in ("created_at", "expired_at")}
    return {"uuid": fact["uuid"]} | recorded


def _triple(fact: Theirs) -> tuple[str, dict[str, Any] | None]:
    """Return (reason it cannot be mapped or "", the triple or None)."""
    row: dict[str, Any] = {
        "source": fact["source"], "relation": fact["name"], "target": fact["target"], "text": fact["fact"],
        "valid_at": times.show(fact["valid_at"]), "invalid_at": times.show(fact["invalid_at"]),
    }  # fmt: skip
    row = {key: value for key, value in row.items() if value is not None or key == "valid_at"}
    try:
        triples.normalise([row], None)
    except InputError as error:
        if "the same name" in str(error):
            return "facts from a thing to itself", None
        return _REASONS[(error.field or "").rpartition(".")[2]], None
    return "", row
