"""A group as a writer of a format reads it: at one moment of either clock, in an order that never changes."""

from __future__ import annotations

import marshal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, lru_cache
from importlib.metadata import version
from itertools import chain, count, groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from kgray.communities.reading import current_run
from kgray.domain.graph import Community, Entity, Fact
from kgray.domain.records import Episode, EpisodeHead
from kgray.domain.times import Instant, show, to_datetime
from kgray.graph.stored import in_pieces
from kgray.graph.texts import summary_of
from kgray.io.interchange.derived import DerivedGroup, Part
from kgray.io.interchange.files import xml_text
from kgray.ports import Store
from kgray.ports.ingest import Stop, never
from kgray.schema import kinds, reads, rows
from kgray.schema.kinds import EntityRow, FactRow, R, Row
from kgray.storage.ledger import dumped_rows
from kgray.storage.sqlite.scratch import Scratch

_CACHED = 4_096  # names of entities


@dataclass(frozen=True, slots=True)
class ExportedEpisode:
    """A committed episode that was not withdrawn, with its record time."""

    episode: Episode
    recorded_at: Instant

    @property
    def spoken_text(self) -> str:
        """The text with its speaker."""
        speaker, text = self.episode.speaker, self.episode.text
        return f"{speaker}: {text}" if speaker else text


class CitedEpisode(NamedTuple):
    """An episode as a citation names it."""

    sequence: int
    client_id: str | None
    source: str
    reference_time: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedCommunity:
    """A community.

    number    its place among all, from 0: roots first
    depth     how many communities are above it: 0 is the coarsest
    parent    the number of the community that holds it; None = it is a root
    members   the ids of all its entities
    text_time its text is accurate as of this time
    """

    community: Community
    number: int
    depth: int
    parent: int | None
    children: tuple[int, ...]
    members: tuple[str, ...]
    text_time: datetime

    @property
    def title(self) -> str:
        """Its name, else its number."""
        return self.community.name or f"Community {self.number}"

    @property
    def report_text(self) -> str:
        """Its report as Markdown: title, summary, findings."""
        sections = (f"## {row['summary']}\n\n{row['explanation']}" for row in self.findings)
        return "\n\n".join([f"# {self.title}", self.community.summary, *sections])

    @property
    def findings(self) -> list[dict[str, str]]:
        """The findings of a model's report; none where no model wrote one."""
        findings = self.community.report.get("findings") or ()
        return [{name: str(row.get(name, "")) for name in ("explanation", "summary")} for row in findings]


_TABLES = """
CREATE TABLE entities (id TEXT PRIMARY KEY, sequence INT, ordinal INT, name TEXT, row BLOB);
CREATE TABLE names (id TEXT PRIMARY KEY, name TEXT, folded TEXT UNIQUE) WITHOUT ROWID;
CREATE TABLE facts (
    no INTEGER PRIMARY KEY, statement TEXT, source TEXT, target TEXT, ended INT, until INT, since INT,
    row BLOB
);
CREATE TABLE supports (episode TEXT, fact INT, PRIMARY KEY (episode, fact)) WITHOUT ROWID;
CREATE TABLE episodes (
    sequence INTEGER PRIMARY KEY, id TEXT UNIQUE, client_id TEXT, source TEXT, at INT, recorded_at INT
);
CREATE TABLE mentions (sequence INT, entity TEXT, PRIMARY KEY (sequence, entity)) WITHOUT ROWID;
"""
_ADD_ENTITY = "INSERT INTO entities VALUES (?, ?, ?, ?, ?)"
_ADD_NAME = "INSERT OR IGNORE INTO names VALUES (?, ?, ?)"
_ADD_FACT = "INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_BORN = "SELECT row FROM entities ORDER BY sequence, ordinal, id"
# The current (else the last) span of a statement comes first.
_NEWEST = "ORDER BY ended, until, since, no"
_FACTS = {
    "id": "SELECT row FROM facts ORDER BY no",
    "time": f"SELECT row FROM facts {_NEWEST}",  # noqa: S608 - of constants
    "statement": "SELECT row FROM facts ORDER BY statement, since, no",
}
_OF_SUBJECT = f"SELECT row FROM facts WHERE source = ?1 {_NEWEST} LIMIT ?2"  # noqa: S608 - of constants
_OF_ENTITY = f"SELECT row FROM facts WHERE source = ?1 OR target = ?1 {_NEWEST} LIMIT ?2"  # noqa: S608
_OF_PAIRS = (
    "SELECT min(source, target) AS a, max(source, target) AS b, row FROM facts "  # noqa: S608 - of constants
    f"WHERE target <> source ORDER BY a, b, {_NEWEST.removeprefix('ORDER BY ')}"
)
_SUPPORTED = "SELECT row FROM supports JOIN facts ON no = fact WHERE episode = ? ORDER BY no"
_SAYING = (
    "SELECT e.id FROM mentions AS m JOIN episodes AS e ON e.sequence = m.sequence WHERE m.entity = ? "
    "ORDER BY e.sequence"
)


class Snapshot:
    """A group as known at one moment; to be made and read inside `ports.at_one_moment`, and closed.

    as_of     only facts that hold at this instant; None = facts of all spans
    known_at  the knowledge at this record time; None = now
    Entities, facts and communities are in the order of their ids, episodes in that of the log.

    Rows that are read in several orders lie in a temporary database, and a past `known_at` is derived part by
    part, so that memory does not grow with the group. Communities are in memory with their members.
    """

    def __init__(
        self, store: Store, group: str, as_of: Instant | None = None, known_at: Instant | None = None,
        stop: Stop = never,
    ) -> None:  # fmt: skip
        self.store, self.group, self.as_of, self.known_at = store, group, as_of, known_at
        self.head = store.heads([group])[group]
        is_past = known_at is not None and known_at < self.head.last_recorded
        self.is_stored = not is_past and not in_pieces(store, group)
        self.scratch = Scratch(_TABLES, stop)
        self.name_of = lru_cache(_CACHED)(self._name_of)

    def close(self) -> None:
        """Delete the temporary rows."""
        self.scratch.close()

    @cached_property
    def derived(self) -> DerivedGroup:
        """The graph as it follows from the records, with statements and evidence."""
        return DerivedGroup(self.store, self.group, self.known_at, self.scratch, self._head_of)

    def derived_parts(self) -> Iterator[Part]:
        """Yield the graph as it follows from the records, part by part."""
        return self.derived.parts(self.stored_name)

    def _head_of(self, sequence: int) -> EpisodeHead | None:
        row = self._episode_rows.first(
            "SELECT sequence, id, at, recorded_at FROM episodes WHERE sequence = ?", (sequence,)
        )
        return None if row is None else EpisodeHead._make(row)

    @cached_property
    def recorded_at(self) -> Instant:
        """The newest record time in the export; 0 = the export is empty."""
        last = self.head.last_recorded
        return last if self.known_at is None else min(self.known_at, last)

    def about(self) -> dict[str, Any]:
        """Return the description of the export for its files."""
        return {
            "kgray": version("kgray"),
            "group": self.group,
            "as_of": show(self.as_of),
            "known_at": show(self.known_at),
            "recorded_at": show(self.recorded_at),
            "holds": "all spans" if self.as_of is None else "facts that hold at as_of",
        }

    @cached_property
    def _entity_rows(self) -> Scratch:
        """The database, with entities and their unique names."""
        stored: Iterable[EntityRow] = self.store.rows(kinds.ENTITIES.all, self.group)
        entity_rows = stored if self.is_stored else map(rows.entity_row, self.derived.entities())
        values = ((r.id, r.born_sequence, r.born_ordinal, r.name, _packed(r)) for r in entity_rows)
        self.scratch.pour(_ADD_ENTITY, values)
        for (row,) in self.scratch.rows(_BORN):
            entity = rows.entity(_unpacked(EntityRow, row))
            for name in possible_names(entity):
                if self.scratch.execute(_ADD_NAME, (entity.id, name, rows.folded(name))):
                    break
        return self.scratch

    @cached_property
    def fact_rows(self) -> Scratch:
        """The database, with facts."""
        stored: Iterable[FactRow] = self.store.rows(kinds.FACTS.all, self.group)
        facts = stored if self.is_stored else self._derived_facts()
        self.scratch.pour(_ADD_FACT, (_fact_values(n, row) for n, row in enumerate(facts) if self.holds(row)))
        for end in ("source", "target"):
            self.scratch.execute(f"CREATE INDEX facts_{end} ON facts ({end})")
        return self.scratch

    def _derived_facts(self) -> Iterator[FactRow]:
        """Yield the facts that the records derive, by id."""
        self.scratch.execute("CREATE TABLE derived (id TEXT PRIMARY KEY, row BLOB) WITHOUT ROWID")
        facts = (fact for part in self.derived_parts() for fact in part.facts())
        derived = ((fact.id, _packed(rows.fact_row(fact))) for fact in facts)
        self.scratch.pour("INSERT INTO derived VALUES (?, ?)", derived)
        for (row,) in self.scratch.rows("SELECT row FROM derived ORDER BY id"):
            yield _unpacked(FactRow, row)

    def holds(self, row: FactRow) -> bool:
        """Return whether a fact holds at `as_of`."""
        return self.as_of is None or rows.fact(row).holds_at(self.as_of)

    def plain_entities(self) -> Iterator[Entity]:
        """Yield all entities, by id, with the stored summary or none."""
        for (row,) in self._entity_rows.rows("SELECT row FROM entities ORDER BY id"):
            yield rows.entity(_unpacked(EntityRow, row))

    def entities(self) -> Iterator[Entity]:
        """Yield all entities, by id, with summaries."""
        moment = self.recorded_at if self.as_of is None else self.as_of
        for entity in self.plain_entities():
            if not self.is_stored or self.as_of is not None:
                yield replace(entity, summary=summary_of(self.facts_of(entity.id), moment))
            else:
                yield entity

    def count(self, table: Literal["entities", "episodes"]) -> int:
        """Return the number of rows."""
        filled = self._entity_rows if table == "entities" else self._episode_rows
        return int(filled.first(f"SELECT count(*) FROM {table}")[0])  # noqa: S608 - one of two

    def _name_of(self, entity: str) -> str:
        """Return the unique name of an entity.

        If several entities share a name, all but the oldest get a suffix: a label, else the beginning of
        the id, "Acme (Place)", "Acme (3f2a)". Characters that XML lacks are replaced, so that the files of an
        export agree.
        """
        row = self._entity_rows.first("SELECT name FROM names WHERE id = ?", (entity,))
        return entity if row is None else str(row[0])

    def stored_name(self, entity: str) -> str | None:
        """Return the name of an entity without a suffix; None: there is no such entity."""
        row = self._entity_rows.first("SELECT name FROM entities WHERE id = ?", (entity,))
        return None if row is None else str(row[0])

    def facts(self, order: Literal["id", "time", "statement"] = "id") -> Iterator[Fact]:
        """Yield the facts; by time: the current (else the last) span of a statement comes first."""
        return map(_fact, self.fact_rows.rows(_FACTS[order]))

    def facts_of(self, entity: str, *, both: bool = True, limit: int = -1) -> Iterator[Fact]:
        """Yield the facts of a subject, by time; both: also the facts with the entity as object."""
        return map(_fact, self.fact_rows.rows(_OF_ENTITY if both else _OF_SUBJECT, (entity, limit)))

    def pairs(self) -> Iterator[tuple[tuple[str, str], list[Fact]]]:
        """Yield each pair of ids of entities, with the facts that connect them, by time."""
        for ends, fact_rows in groupby(self.fact_rows.rows(_OF_PAIRS), key=itemgetter(0, 1)):
            yield ends, [_fact(row[2:]) for row in fact_rows]

    def facts_in(self, episode: str) -> Iterator[Fact]:
        """Yield the facts that an episode supports, by id."""
        return map(_fact, self._supports.rows(_SUPPORTED, (episode,)))

    @cached_property
    def _supports(self) -> Scratch:
        pairs = (
            (episode, number)
            for number, row in self.fact_rows.rows("SELECT no, row FROM facts ORDER BY no")
            for episode in _fact((row,)).episodes
        )
        self.scratch.pour("INSERT INTO supports VALUES (?, ?)", pairs)
        return self.scratch

    def object_of(self, fact: Fact) -> str:
        """Return the name of a fact's object, or its value as people read it."""
        if fact.value is not None:
            return fact.value.shown()
        return self.name_of(fact.target or "")

    def episodes(self) -> Iterator[ExportedEpisode]:
        """Yield the episodes that the graph rests on."""
        for row in dumped_rows(self.store, self.group, self.known_at):
            if row.state == kinds.COMMITTED:
                yield ExportedEpisode(rows.episode(self.group, row), row.ended_at or 0)

    def episodes_at(self, sequences: Sequence[int]) -> Iterator[ExportedEpisode]:
        """Yield the episodes with these sequences."""
        for row in self.store.rows(reads.EPISODES_AT, self.group, sequences):
            yield ExportedEpisode(rows.episode(self.group, row), row.ended_at or 0)

    @cached_property
    def _episode_rows(self) -> Scratch:
        episodes = ((exported.episode, exported.recorded_at) for exported in self.episodes())
        episode_rows = ((e.sequence, e.id, e.client_id, e.source, e.reference_time, at) for e, at in episodes)
        self.scratch.pour("INSERT INTO episodes VALUES (?, ?, ?, ?, ?, ?)", episode_rows)
        return self.scratch

    def cited(self, episode: str) -> CitedEpisode | None:
        """Return the fields that a citation shows of an episode; None: there is no such episode."""
        row = self._episode_rows.first(
            "SELECT sequence, client_id, source, at FROM episodes WHERE id = ?", (episode,)
        )
        return None if row is None else CitedEpisode._make(row)

    def episode_id(self, sequence: int) -> str | None:
        """Return the id of a committed episode; None: there is no such episode, or it was withdrawn."""
        row = self._episode_rows.first("SELECT id FROM episodes WHERE sequence = ?", (sequence,))
        return None if row is None else str(row[0])

    @cached_property
    def _mention_rows(self) -> Scratch:
        pairs: Iterable[tuple[str, int]] = self.store.rows(kinds.MENTIONS.all, self.group)
        if not self.is_stored:
            pairs = self._derived_mentions()
        mention_rows = ((sequence, entity) for entity, sequence in pairs)
        self._episode_rows.pour("INSERT OR IGNORE INTO mentions VALUES (?, ?)", mention_rows)
        self.scratch.execute("CREATE INDEX mentions_entity ON mentions (entity)")
        return self.scratch

    def _derived_mentions(self) -> Iterator[tuple[str, int]]:
        for mention in self.derived.mentions():
            shown_id, _ = self.derived.fold.shown(mention.entity, mention.surface, mention.sequence)
            yield shown_id, mention.sequence

    def entities_in(self, sequence: int) -> list[str]:
        """Return the ids of the entities that an episode mentions."""
        query = "SELECT entity FROM mentions WHERE sequence = ? ORDER BY entity"
        return [entity for (entity,) in self._mention_rows.rows(query, (sequence,))]

    def episodes_of(self, entity: str) -> list[str]:
        """Return the ids of the episodes that mention an entity, in the order of the log."""
        return [id_ for (id_,) in self._mention_rows.rows(_SAYING, (entity,))]

    @cached_property
    def communities(self) -> Sequence[ExportedCommunity]:
        """The communities, the coarsest first, then by size; none before the first run."""
        run = current_run(self.store, self.group, self.known_at)
        above = {id_: run.upwards(community.parent) for id_, community in run.by_id.items()}
        order = sorted(run.by_id.values(), key=lambda c: (len(above[c.id]), -c.size, c.id))
        number = {community.id: place for place, community in enumerate(order)}
        entity_ids = set(
            chain.from_iterable(self._entity_rows.rows("SELECT id FROM entities") if order else ())
        )
        members, children = defaultdict[str, list[str]](list), defaultdict[str, list[int]](list)
        for entity, lowest in sorted(run.owner.items()):
            for id_ in run.upwards(lowest) if entity in entity_ids else ():
                members[id_].append(entity)
        for community in order:
            children[community.parent or ""].append(number[community.id])
        return [
            ExportedCommunity(
                community=community,
                number=number[community.id],
                depth=len(above[community.id]),
                parent=number.get(community.parent or ""),
                children=tuple(children[community.id]),
                members=tuple(members[community.id]),
                text_time=community.told_at(to_datetime(run.recorded_at)),
            )
            for community in order
        ]

    @cached_property
    def places(self) -> Mapping[str, Sequence[ExportedCommunity]]:
        """Entity id -> its communities, the coarsest first."""
        by_entity = defaultdict[str, list[ExportedCommunity]](list)
        for community in self.communities:
            for member in community.members:
                by_entity[member].append(community)
        return by_entity


def possible_names(entity: Entity) -> Iterator[str]:
    """Yield the names of an entity in an export, the best first; the first unused name is taken."""
    digits = entity.id.replace("-", "")
    beginnings = (digits[:length] for length in range(4, len(digits) + 1))
    plain = xml_text(entity.name)[0]
    yield plain
    for mark in chain(entity.labels[:1], beginnings, count(2)):
        yield f"{plain} ({mark})"


def _packed(row: Row) -> bytes:
    return marshal.dumps(tuple(row))


def _unpacked(kind: type[R], row: bytes) -> R:
    row_class: Any = kind
    return row_class._make(marshal.loads(row))  # type: ignore[no-any-return]  # noqa: S302 - of this process


def _fact(row: Row) -> Fact:
    return rows.fact(_unpacked(FactRow, row[0]))


def _fact_values(number: int, row: FactRow) -> tuple[Any, ...]:
    order = (row.invalid_at is not None, -(row.invalid_at or 0), row.valid_at or 0)
    return number, row.statement, row.source, row.target, *order, _packed(row)
