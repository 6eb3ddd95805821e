"""What reads of `Memory` return beside hits, and its JSON form; its field names are a stable interface."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from itertools import compress, groupby
from typing import Any, NamedTuple

from kgray import kinds, ledger, rows
from kgray.derivation import dump
from kgray.derivation.dump import DumpRow
from kgray.derivation.group import GroupGraph
from kgray.derivation.stored import View, records_around, records_of, view_now
from kgray.errors import InputError
from kgray.graph import Entity, FactSpan
from kgray.kinds import Read
from kgray.ledger import Bearers, Failure, dumped_episodes, episodes_at, failures, find
from kgray.memory.naming import entities_of, entity_called
from kgray.ports import GraphView, Store
from kgray.records import Episode, GroupRecords
from kgray.rows import folded
from kgray.search import spans_of
from kgray.search.texts import profiles
from kgray.times import Instant, to_datetime

KEPT = ("id", "client_id", "sequence", "source", "kind", "speaker", "text", "state")  # an episode's own
_ENDED_AT = kinds.EPISODES.names.index("ended_at")


class Mark(NamedTuple):
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


def described(store: Store, group: str, identifier: str) -> Shown:
    """Return what has an id with the texts, names and facts of its rows; to be called within one snapshot."""
    view, records = view_now(store, group), shown(store, group, identifier)
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
        own = (one for one in told if one["sequence"] == episode.sequence)
        asked = (one for one in own if (episode.id, one["ordinal"]) in evidence)
        marks = {mark for one in asked for mark in _marks(episode.text, one, mentions)}
        yield ToldEpisode(
            **{name: getattr(episode, name) for name in KEPT},
            reference_time=to_datetime(episode.reference_time),
            recorded_at=None if recorded_at is None else to_datetime(recorded_at),
            marks=tuple(sorted(marks)),
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
        yield Mark(at, at + len(piece["text"]), statement)
        return
    for ordinal in (piece["subject"], piece["object"]):
        if (mention := mentions.get((piece["sequence"], ordinal))) is None:
            continue
        start, end = mention["span_from"], mention["span_to"]
        if start is None:
            start = text.find(mention["surface"])
            end = start + len(mention["surface"])
        if start >= 0:
            yield Mark(start, end, statement)


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
        facts = [
            {"scope": "fact", "id": fact.id, "text": fact.text, "group": self.group}
            | fact.as_dict()
            | {"statement": fact.statement, "ended_by": list(fact.ended_by) if fact.ended_by else None}
            for fact in self.facts
        ]
        return {"entity": entity_row(self.entity) | {"profile": self.profile}, "facts": facts}


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
    """Return what `GroupReads.history` does of a view; as_of None = spans of any time."""
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
        for name, hold in ledger.held(store).items():
            if group in (None, name):
                failure = Failure(kind="Held", message=hold.reason, attempts=hold.tries)
                stopped = next(told_episodes(store, name, [hold.sequence], set()), None)
                found.append(ToldFailure(group=name, episode=stopped, failure=failure))
    return found


def entities_like(store: Store, group: str, query: str, limit: int) -> list[EntityCount]:
    """Return the entities with a name like the query, best first; "" = all, those with most facts first.

    A name is equal to it, begins with it, has a word that does, or contains it; else is spelled much like it.
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
    every = sorted({name for called in names.values() for name in called})
    ranks = {name: _rank(wanted, name) for name in every if wanted in name}
    ranks = ranks or {name: rank for rank, name in enumerate(get_close_matches(wanted, every, n=limit))}
    ranked = {
        id_: min((ranks[n] for n in called if n in ranks), default=None) for id_, called in names.items()
    }
    chosen = [(rank, entity) for entity in everyone if (rank := ranked[entity.id]) is not None]
    chosen.sort(key=lambda row: (row[0], -counts[row[1].id], row[1].name, row[1].id))
    found = [entity for _, entity in chosen[:limit]]
    said = profiles(store, view, [entity.id for entity in found], most=_TOLD)
    return [EntityCount(entity=one, facts=counts[one.id], profile=said[one.id]) for one in found]


def _rank(wanted: str, name: str) -> int:
    """Return how a query meets a name that contains it, both folded: 0 is best."""
    found = wanted in ("", name), name.startswith(wanted), f" {wanted}" in f" {name}", True
    return found.index(True)


def derived(store: Store, group: str, known_at: Instant | None) -> View:
    """Return the graph of a group, derived from its records as known then (None: now)."""
    return View(records_of(store, group, known_at), partial(episodes_at, store, group))


def dumped(store: Store, group: str, known_at: Instant | None) -> list[DumpRow]:
    """Return the rows of the dump, unsorted; to be called inside `Store.reading`."""
    return list(dump.rows(derived(store, group, known_at), dumped_episodes(store, group, known_at)))


def shown(store: Store, group: str, identifier: str) -> list[DumpRow]:
    """Return the dump rows of what has an id and of what belongs to it; inside `Store.reading`.

    Why an episode failed, with the model's last reply, is a row more (R24).
    """
    found = find(store, group, identifier)
    view = view_around(store, group, identifier, found)
    told = sorted({*found.episodes, *(head.sequence for head in view.records.heads)})
    kept = matches(identifier, found, view, episodes_at(store, group, told))
    for failed in failures(store, group):
        if failed.episode.sequence in found.episodes:
            why = failed.failure
            row = {"class": why.kind, "message": why.message, "attempts": why.attempts}
            kept.append({"type": "failure", "episode": failed.episode.id, **row, "reply": why.raw or None})
    return kept


def matches(identifier: str, found: Bearers, view: View, episodes: Iterable[Episode]) -> list[DumpRow]:
    """Return the dump rows of what has an id and of what belongs to it, in the order of the dump.

    An episode brings its mentions and evidence, and what these are about; an entity its mentions,
    statements, their evidence and facts; a fact or statement its evidence and the episodes behind it.
    """
    of: dict[str, list[DumpRow]] = defaultdict(list)
    for row in dump.rows(view, list(episodes)):
        of[row["type"]].append(row)
    asked = {row["id"] for row in of["episode"] if row["sequence"] in found.episodes}
    subjects = {entity.id for entity in view.entities([identifier])} if found.entity else set()
    statements = {row["statement"] for row in of["evidence"] if row["episode"] in asked}
    statements |= {row["id"] for row in of["statement"] if subjects & {row["subject"], row["object"]}}
    if found.fact:
        statements |= {row["statement"] for row in of["fact"] if row["id"] == identifier}
    if found.statement:
        statements |= {fact.statement for fact in view.facts_of([identifier], None)} or {identifier}
    kept = _belonging(of, asked, subjects, statements)
    return sorted(kept, key=lambda row: (row["type"], dump.lines([row])[0]))


def _belonging(
    of: Mapping[str, list[DumpRow]], asked: set[str], subjects: set[str], statements: set[str]
) -> Iterator[DumpRow]:
    """Yield the rows that belong to episodes that were asked for, entities and statements. of: by type."""
    about = [row for row in of["statement"] if row["id"] in statements]
    own = [row["episode"] in asked if asked else row["statement"] in statements for row in of["evidence"]]
    evidence = list(compress(of["evidence"], own))
    mentions = [row for row in of["mention"] if row["episode"] in asked or row["entity"] in subjects]
    entities = subjects | {row["entity"] for row in mentions}
    entities |= {end for row in about for end in (row["subject"], row["object"])}
    episodes = asked | {row["episode"] for row in evidence}
    episodes |= {row["episode"] for row in mentions if row["entity"] in subjects}
    relations = {row["relation"] for row in about}
    yield from (*about, *evidence, *mentions)
    yield from (row for row in of["episode"] if row["id"] in episodes)
    yield from (row for row in of["entity"] if row["id"] in entities)
    yield from (row for row in of["relation"] if row["name"] in relations)
    yield from (row for row in of["verdict"] if statements & {row["a"], row["b"]})
    yield from (row for row in of["merge"] if entities.intersection(row["entities"]))
    for row in of["fact"]:
        if row["statement"] in statements or (row["ended_by"] or [None])[0] in asked:
            yield row


class ViewAround(View):
    """The graph of some of a group's episodes. Entities show as the store has them, with all their names."""

    def __init__(self, store: Store, records: GroupRecords) -> None:
        super().__init__(records, partial(episodes_at, store, records.group))
        self._store = store

    def all_entities(self) -> list[Entity]:
        """Return all entities of these episodes, by id."""
        ids = sorted(self.graph.entities)
        return [rows.entity(row) for row in self._store.rows(kinds.ENTITIES_OF, self.group, ids)]


def view_around(store: Store, group: str, identifier: str, found: Bearers) -> ViewAround:
    """Return a view in which `matches` shows of an id what the whole group would; inside `Store.reading`."""
    reads = (kinds.FACTS_OF, kinds.FACTS_OF_STATEMENTS)
    facts = [row for read in reads for row in store.rows(read, group, [identifier])]
    told = {row[1] for row in store.rows(kinds.EVIDENCE_OF, group, [identifier])}

    def wanted(graph: GroupGraph) -> set[str]:
        """Return the statements with which `matches` begins."""
        places = graph.places()
        shown = {places[place] for place in places if place[0] in {*found.episodes, *told}}
        subjects = {*graph.shows.get(identifier, ()), identifier}
        shown |= {s.id for s in graph.statements.values() if s.subject in subjects or s.object in subjects}
        return shown | ({identifier, *(row[1] for row in facts)} & graph.statements.keys())

    entities = {identifier, *(row[2] for row in facts)}
    episodes = {*found.episodes, *told}
    return ViewAround(store, records_around(store, group, wanted, episodes=episodes, entities=entities))
