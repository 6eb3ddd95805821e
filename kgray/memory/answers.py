"""What reads of `Memory` return beside hits, and its JSON form; its field names are a stable interface.

`Shown` is one episode, entity or fact with all that belongs to it: texts with the words of their facts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from itertools import groupby
from typing import Any

from kgray import holds, kinds, rows
from kgray.derivation.dump import DumpRow
from kgray.derivation.stored import view_now
from kgray.errors import InputError
from kgray.graph import Entity, FactSpan
from kgray.kinds import Read
from kgray.ledger import Failure, failures
from kgray.memory.naming import entities_of, entity_called
from kgray.ports import GraphView, Store
from kgray.rows import folded
from kgray.search import spans_of
from kgray.search.texts import profiles
from kgray.times import Instant, to_datetime

KEPT = ("id", "client_id", "sequence", "source", "kind", "speaker", "text", "state")  # an episode's own
_ENDED_AT = kinds.EPISODES.names.index("ended_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Words of a text, [start, end) in characters, from which evidence about a statement was read."""

    start: int
    end: int
    statement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldEpisode:
    """An episode with both clocks.

    reference_time  when it was said
    recorded_at     when it was committed, or failed; None = it is pending
    marks           the words that facts were read from, by their start; () where the text has none of them
    """

    id: str
    client_id: str | None
    sequence: int
    source: str
    kind: str
    speaker: str | None
    text: str
    state: str
    reference_time: datetime
    recorded_at: datetime | None
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What has an id or a name, and what belongs to it.

    records     the dump rows
    names       entity id -> name
    clients     episode id -> the client's id
    profile     what is known of it, in short, where it is an entity
    """

    id: str
    records: list[DumpRow]
    episodes: tuple[ToldEpisode, ...]
    entities: tuple[Entity, ...]
    facts: tuple[FactSpan, ...]
    names: Mapping[str, str]
    clients: Mapping[str, str | None]
    profile: str = ""


def described(store: Store, group: str, identifier: str, records: list[DumpRow]) -> Shown:
    """Return the texts, names and facts that dump rows speak of; to be called within one snapshot."""
    view = view_now(store, group)
    of: dict[str, list[DumpRow]] = defaultdict(list)
    for record in records:
        of[record["type"]].append(record)
    entities = tuple(view.entities([record["id"] for record in of["entity"]]))
    facts = view.facts([record["id"] for record in of["fact"]])
    facts.sort(key=lambda f: (f.valid_at is not None, f.valid_at or 0, f.id))
    spans, clients = spans_of(view, facts)
    told = {entity.id for entity in entities}
    sequences = sorted(record["sequence"] for record in of["episode"])
    evidence = {(record["episode"], record["ordinal"]) for record in of["evidence"]}
    return Shown(
        id=identifier,
        records=records,
        episodes=tuple(told_episodes(store, group, sequences, evidence)),
        entities=entities,
        facts=tuple(spans.values()),
        names={entity.id: entity.name for entity in entities},
        clients=clients,
        profile=profiles(store, view, [identifier])[identifier] if identifier in told else "",
    )


def told_episodes(
    store: Store, group: str, sequences: Sequence[int], evidence: set[tuple[str, int]]
) -> Iterator[ToldEpisode]:
    """Yield the episodes with these sequences. evidence: (episode id, ordinal) of what is marked."""
    mentioned = _columns(store, kinds.MENTIONS_IN, group, sequences)
    mentions = {(mention["sequence"], mention["ordinal"]): mention for mention in mentioned}
    told = list(_columns(store, kinds.EVIDENCE_IN, group, sequences))
    for row in store.rows(kinds.EPISODES_AT, group, sequences):
        episode, recorded_at = rows.episode(group, row), row[_ENDED_AT]
        marks = [
            mark
            for piece in told
            if piece["sequence"] == episode.sequence and (episode.id, piece["ordinal"]) in evidence
            for mark in _marks(episode.text, piece, mentions)
        ]
        yield ToldEpisode(
            **{name: getattr(episode, name) for name in KEPT},
            reference_time=to_datetime(episode.reference_time),
            recorded_at=None if recorded_at is None else to_datetime(recorded_at),
            marks=tuple(sorted(set(marks), key=lambda mark: (mark.start, mark.end, mark.statement))),
        )


def _columns(store: Store, read: Read, group: str, sequences: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a declared read with the names of their columns."""
    return (dict(zip(read.chosen, row, strict=True)) for row in store.rows(read, group, sequences))


def _marks(
    text: str, piece: Mapping[str, Any], mentions: Mapping[tuple[int, int], Mapping[str, Any]]
) -> Iterator[Mark]:
    """Yield the words of a text from which a piece of evidence was read: its sentence, else its names."""
    statement: str | None = piece["shown"]
    if statement is None:  # a loop, which derives nothing (R16)
        return
    at = text.find(piece["text"])
    if at >= 0:
        yield Mark(start=at, end=at + len(piece["text"]), statement=statement)
        return
    for ordinal in (piece["subject"], piece["object"]):
        if (mention := mentions.get((piece["sequence"], ordinal))) is None:
            continue
        start, end = mention["span_from"], mention["span_to"]
        if start is None:
            start = text.find(mention["surface"])
            end = start + len(mention["surface"])
        if start >= 0:
            yield Mark(start=start, end=end, statement=statement)


_TOLD = 2  # facts of an entity in a list


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The spans of an entity's facts, in order of their start. clients: episode id -> the client's id.

    profile     what is known of the entity, in short
    """

    group: str
    entity: Entity
    profile: str = ""
    facts: tuple[FactSpan, ...] = ()
    clients: Mapping[str, str | None] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray history --json` prints."""
        entity = entity_row(self.entity) | {"profile": self.profile}
        return {"entity": entity, "facts": [self._fact(fact) for fact in self.facts]}

    def _fact(self, fact: FactSpan) -> dict[str, Any]:
        head = {"scope": "fact", "id": fact.id, "text": fact.text, "group": self.group}
        ended_by = list(fact.ended_by) if fact.ended_by else None
        return head | fact.as_dict() | {"statement": fact.statement, "ended_by": ended_by}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityCount:
    """An entity, the number of its facts of any time, and what is known of it, in short."""

    entity: Entity
    facts: int
    profile: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the form in which `kgray entities --json` prints it."""
        return entity_row(self.entity) | {"facts": self.facts, "profile": self.profile}


def entity_row(entity: Entity) -> dict[str, Any]:
    """Return an entity as JSON shows it."""
    names = {"aliases": list(entity.aliases), "labels": list(entity.labels)}
    return {"id": entity.id, "name": entity.name} | names


def history_of(
    store: Store, view: GraphView, name_or_id: str, as_of: Instant | None, known_at: Instant | None
) -> History:
    """Return the spans of an entity's facts that a view shows; as_of None = those of any time.

    Raises NotFound, and Ambiguous where several entities have the name.
    """
    entity = entity_called(store, view, name_or_id)
    facts = view.facts_at([entity.id], as_of, None)
    facts.sort(key=lambda f: (f.valid_at is not None, f.valid_at or 0, f.relation, f.created_at, f.id))
    spans, clients = spans_of(view, facts)
    said = profiles(store, view, [entity.id], as_of=as_of, known_at=known_at)[entity.id]
    return History(
        group=view.group, entity=entity, profile=said, facts=tuple(spans.values()), clients=clients
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFailure:
    """An episode that failed by its own content, or at which its group is held (kind "Held"), and why.

    episode     None where the group is held at a correction
    """

    group: str
    episode: ToldEpisode | None
    failure: Failure

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray failures --json` prints."""
        id_, client_id = (self.episode.id, self.episode.client_id) if self.episode else ("", None)
        return self.failure.as_dict(id_, client_id, self.group)


def told_failures(store: Store, group: str | None) -> list[ToldFailure]:
    """Return the failed episodes of a group (None: of all) and, where it is held, that; with the reasons."""
    found = []
    with store.reading():
        for name, failed in groupby(failures(store, group), lambda row: row.episode.group):
            rows_of = list(failed)
            told = told_episodes(store, name, [row.episode.sequence for row in rows_of], set())
            pairs = zip(told, rows_of, strict=True)
            found += [ToldFailure(group=name, episode=one, failure=row.failure) for one, row in pairs]
        for name, hold in holds.held(store).items():
            if group in (None, name):
                failure = Failure(kind="Held", message=hold.reason, attempts=hold.tries)
                stopped = next(told_episodes(store, name, [hold.sequence], set()), None)
                found.append(ToldFailure(group=name, episode=stopped, failure=failure))
    return found


def entities_like(store: Store, group: str, query: str, limit: int) -> list[EntityCount]:
    """Return the entities with a name like the query, best first; "" = all, those with most facts first.

    Names equal to the query come first, then those that begin with it, then those in which a word does, then
    those that contain it; where there is none of these, those that are spelled much like it.
    """
    if limit < 1:
        raise InputError(f"limit is {limit!r}: use 1 or more", field="limit")
    counts: Counter[str] = Counter()
    for _, _, source, target in store.rows(kinds.FACT_ENDS, group):
        counts.update({source, target} - {None})
    view = view_now(store, group)
    everyone = entities_of(store, view)
    wanted = folded(query)
    names = {e.id: [folded(name) for name in (e.name, *e.aliases)] for e in everyone}
    ranked = {id_: _rank(wanted, called) for id_, called in names.items()}
    if not any(rank is not None for rank in ranked.values()):
        every = sorted({name for called in names.values() for name in called})
        near = {name: rank for rank, name in enumerate(get_close_matches(wanted, every, n=limit))}
        ranked = {
            id_: min((near[n] for n in called if n in near), default=None) for id_, called in names.items()
        }
    chosen = [(rank, entity) for entity in everyone if (rank := ranked[entity.id]) is not None]
    chosen.sort(key=lambda row: (row[0], -counts[row[1].id], row[1].name, row[1].id))
    found = [entity for _, entity in chosen[:limit]]
    said = profiles(store, view, [entity.id for entity in found], most=_TOLD)
    return [EntityCount(entity=one, facts=counts[one.id], profile=said[one.id]) for one in found]


def _rank(wanted: str, names: Sequence[str]) -> int | None:
    """Return how a query meets the best of some names, both folded: 0 is best, None is not at all."""
    tests = (
        lambda name: name == wanted,
        lambda name: name.startswith(wanted),
        lambda name: f" {wanted}" in name,
        lambda name: wanted in name,
    )
    if not wanted:
        return 0
    return next((rank for rank, meets in enumerate(tests) if any(map(meets, names))), None)
