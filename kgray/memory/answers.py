"""Results of the reads of `Memory` besides hits, with JSON forms, and the look-up of names and ids.

The names of fields are a stable interface. A thing is called by a name as it is shown, by its id, or by the
beginning of that.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from itertools import compress
from typing import Any

from kgray.domain.graph import Entity, EpisodeRef, Fact, FactSpan
from kgray.domain.json_form import as_json
from kgray.domain.records import Episode, Evidence, GroupRecords, Mention, Place, is_storable
from kgray.domain.times import Instant, to_datetime
from kgray.errors import Ambiguous, InputError, NotFound
from kgray.graph import dump
from kgray.graph.dump import DumpRow
from kgray.graph.group import GroupGraph
from kgray.graph.stored import View, records_around, records_of, view_now
from kgray.graph.texts import summarised
from kgray.memory.results import EntityNode, EpisodeFailure, LoggedEpisode, Mark
from kgray.ports import GraphView, Store
from kgray.schema import reads, rows
from kgray.schema.kinds import ENTITIES, EPISODES, FACTS
from kgray.schema.record_rows import UnpackedRecords
from kgray.schema.rows import folded
from kgray.search import Filters, spans_of
from kgray.search.context import profile_of, profile_texts
from kgray.storage.ledger import (
    Bearers,
    Failure,
    dumped_episodes,
    episodes_at,
    failures,
    find,
    sequences_with_evidence,
)
from kgray.system.garbage import garbage_not_collected

_BEGINNING = re.compile(r"[0-9a-f]{4}[0-9a-f-]*")  # at least 4 digits of an id
_SUGGESTED = 3
_LISTED = 10  # ids that an error lists
_FIELDS = ("id", "client_id", "sequence", "source", "kind", "speaker", "text", "state")  # an episode's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An item with an id or a name, and the rows that belong to it."""

    id: str
    records: list[DumpRow]  # the rows of the dump
    summary: str = ""  # of the entity, where it is one; and its profile, as of a `History`
    profile: str = ""
    profile_sources: tuple[EpisodeRef, ...] = ()
    episodes: tuple[LoggedEpisode, ...]
    entities: tuple[Entity, ...]
    facts: tuple[FactSpan, ...]
    clients: Mapping[str, str | None]  # episode id -> the client's id

    @property
    def names(self) -> dict[str, str]:
        """The names of the entities by their ids."""
        return {entity.id: entity.name for entity in self.entities}


def logged_episodes(
    store: Store, group: str, sequences: Sequence[int], evidence: Collection[tuple[str, int]] = ()
) -> Iterator[LoggedEpisode]:
    """Yield the episodes with these sequences. evidence: (episode id, ordinal) of the marked pieces."""
    marked = list(sequences) if evidence else []
    records = UnpackedRecords()
    records.take(store.rows(reads.PACKED_AT, group, marked), {})
    mentions = {(mention.sequence, mention.ordinal): mention for mention in records.mentions}
    moved = {(row.sequence, row.ordinal): row for row in store.rows(reads.SHOWN_BY_EVIDENCE, group, marked)}
    by_episode: dict[int, list[tuple[Evidence, str | None]]] = defaultdict(list)
    for piece in records.evidence:
        row = moved.get((piece.sequence, piece.ordinal))
        by_episode[piece.sequence].append((piece, piece.statement if row is None else row.shown))
    for stored in store.rows(reads.EPISODES_AT, group, sequences):
        episode, recorded_at = rows.episode(group, stored), stored.ended_at
        marks = {
            mark
            for piece, statement in by_episode[episode.sequence]
            if statement is not None and (episode.id, piece.ordinal) in evidence  # None: a loop (R16)
            for mark in _marks(episode.text, piece, statement, mentions)
        }
        yield LoggedEpisode(
            **{name: getattr(episode, name) for name in _FIELDS},
            reference_time=to_datetime(episode.reference_time),
            recorded_at=None if recorded_at is None else to_datetime(recorded_at),
            marks=tuple(sorted(marks)),
        )


def _marks(text: str, piece: Evidence, statement: str, mentions: Mapping[Place, Mention]) -> Iterator[Mark]:
    """Yield the ranges of a text that are evidence about a statement: its sentence, or names."""
    at = text.find(piece.text)
    if at >= 0:
        yield Mark(at, at + len(piece.text), statement)
        return
    for ordinal in (piece.subject, piece.object):
        mention = None if ordinal is None else mentions.get((piece.sequence, ordinal))
        if mention is None:
            continue
        start = text.find(mention.surface)
        start, end = mention.span or (start, start + len(mention.surface))
        if start >= 0:
            yield Mark(start, end, statement)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The spans of an entity's facts, by their start; episode id -> client's id.

    profile             what a model wrote of the entity, while nothing was learned of it since; else ""
    profile_sources     (id, the client's id) of the episodes that it rests on
    """

    group: str
    entity: Entity
    profile: str = ""
    profile_sources: tuple[EpisodeRef, ...] = ()
    facts: tuple[FactSpan, ...] = ()
    clients: Mapping[str, str | None] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray history --json` prints."""
        facts = [
            {"scope": "fact", "id": fact.id, "text": fact.text, "group": self.group}
            | fact.as_hit()
            | {"statement": fact.statement, "ended_by": list(fact.ended_by) if fact.ended_by else None}
            for fact in self.facts
        ]
        texts = {"profile": self.profile, "profile_sources": as_json(self.profile_sources)}
        return {"entity": self.entity.as_dict() | texts, "facts": facts}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityCount:
    """An entity, the number of its facts of any time, and its profile as of a `History`."""

    entity: Entity
    facts: int
    profile: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return a row of `kgray entities --json`."""
        row = self.entity.as_dict()
        return row | {"facts": self.facts, "summary": row["summary"], "profile": self.profile}


def history_of(
    store: Store, view: GraphView, name_or_id: str, as_of: Instant | None, known_at: Instant | None
) -> History:
    """Return the result of `GroupReads.history` for a view; as_of None = spans of any time."""
    entity = entity_called(store, view, name_or_id)
    facts = view.facts_at([entity.id], as_of, None)
    facts.sort(key=lambda f: (f.valid_at is not None, f.valid_at or 0, f.relation, f.created_at, f.id))
    spans, clients = spans_of(view, facts)
    (entity,) = summarised(view, [entity], as_of)
    profile, sources = profile_of(store, view, entity.id, as_of=as_of, known_at=known_at)
    return History(
        group=view.group, entity=entity, profile=profile, profile_sources=sources,
        facts=tuple(spans.values()), clients=clients,
    )  # fmt: skip


def failure_of(group: str, episode: Episode | None, failure: Failure) -> EpisodeFailure:
    """Return a failure of an episode for callers; None: of a correction."""
    return EpisodeFailure(
        id=episode.id if episode else "", client_id=episode.client_id if episode else None,
        kind=failure.kind, message=failure.message, attempts=failure.attempts, reply=failure.raw or None,
        group=group,
    )  # fmt: skip


def entities_like(store: Store, group: str, query: str, limit: int) -> list[EntityCount]:
    """Return the entities with a name like the query, best first; "" = all, most facts first."""
    if limit < 1:
        raise InputError(f"limit is {limit!r}: use 1 or more", field="limit")
    counts: Counter[str] = Counter()
    for ends in store.rows(reads.FACT_ENDS, group):
        counts.update({end for end in (ends.source, ends.target) if end is not None})
    view = view_now(store, group)
    everyone = entities_of(store, view)
    key = folded(query)
    names = {e.id: [folded(name) for name in (e.name, *e.aliases)] for e in everyone}
    every = sorted({name for called in names.values() for name in called})
    # A name is equal, begins so, has a word that does, or contains it; else it is spelled much like it.
    ranks = {
        name: (key in ("", name), name.startswith(key), f" {key}" in f" {name}", True).index(True)
        for name in every
        if key in name
    }
    ranks = ranks or {name: rank for rank, name in enumerate(get_close_matches(key, every, n=limit))}
    ranked = {
        id_: min((ranks[n] for n in called if n in ranks), default=None) for id_, called in names.items()
    }
    chosen = [(rank, entity) for entity in everyone if (rank := ranked[entity.id]) is not None]
    chosen.sort(key=lambda row: (row[0], -counts[row[1].id], row[1].name, row[1].id))
    ids = [entity.id for _, entity in chosen[:limit]]
    by_id = {entity.id: entity for entity in view.entities(ids)}
    profiles = profile_texts(store, view, ids)
    return [EntityCount(entity=by_id[i], facts=counts[i], profile=profiles.get(i, "")) for i in ids]


def derived(store: Store, group: str, known_at: Instant | None) -> View:
    """Return the graph of a group, derived from its records as known then (None: now)."""
    return View(records_of(store, group, known_at), partial(episodes_at, store, group))


def dumped(store: Store, group: str, known_at: Instant | None) -> list[DumpRow]:
    """Return the rows of the dump, unsorted; to be called inside `Store.reading`."""
    return list(dump.rows(derived(store, group, known_at), dumped_episodes(store, group, known_at)))


def shown(store: Store, group: str, identifier: str) -> list[DumpRow]:
    """Return `matches` of an id, and of an episode what its extraction left out, or why it failed (R24).

    To be called inside `Store.reading`.
    """
    bearers = find(store, group, identifier)
    view = view_around(store, group, identifier, bearers)
    sequences = sorted({*bearers.episodes, *(head.sequence for head in view.records.heads)})
    episodes = episodes_at(store, group, sequences)
    chosen = matches(identifier, bearers, view, episodes)
    ids = {episode.sequence: episode.id for episode in episodes}
    for stored in store.rows(reads.EXTRACTIONS_AT, group, bearers.episodes):
        for line in rows.extraction(stored).dropped:
            chosen.append({"type": "left_out", "episode": ids.get(stored.sequence), "reason": line})
    for failed in failures(store, group):
        if failed.episode.sequence in bearers.episodes:
            why = failed.failure
            row = {"class": why.kind, "message": why.message, "attempts": why.attempts}
            chosen.append({"type": "failure", "episode": failed.episode.id, **row, "reply": why.raw or None})
    return chosen


def matches(identifier: str, bearers: Bearers, view: View, episodes: Iterable[Episode]) -> list[DumpRow]:
    """Return the dump rows of an item and of the rows that belong to it, in the order of the dump.

    An episode brings its mentions and evidence with their entities and statements; an entity its mentions,
    statements, their evidence and facts; a fact or statement its evidence and the episodes behind it.
    """
    by_type: dict[str, list[DumpRow]] = defaultdict(list)
    for row in dump.rows(view, list(episodes)):
        by_type[row["type"]].append(row)
    chosen = {row["id"] for row in by_type["episode"] if row["sequence"] in bearers.episodes}
    subjects = {entity.id for entity in view.entities([identifier])} if bearers.entity else set()
    statements = {row["statement"] for row in by_type["evidence"] if row["episode"] in chosen}
    statements |= {row["id"] for row in by_type["statement"] if subjects & {row["subject"], row["object"]}}
    if bearers.fact:
        statements |= {row["statement"] for row in by_type["fact"] if row["id"] == identifier}
    if bearers.statement:
        statements |= {fact.statement for fact in view.facts_of([identifier], None)} or {identifier}
    about = [row for row in by_type["statement"] if row["id"] in statements]
    belongs = [
        row["episode"] in chosen if chosen else row["statement"] in statements for row in by_type["evidence"]
    ]
    evidence = list(compress(by_type["evidence"], belongs))
    mentions = [row for row in by_type["mention"] if row["episode"] in chosen or row["entity"] in subjects]
    entities = subjects | {row["entity"] for row in mentions}
    entities |= {end for row in about for end in (row["subject"], row["object"])}
    episode_ids = chosen | {row["episode"] for row in evidence}
    episode_ids |= {row["episode"] for row in mentions if row["entity"] in subjects}
    relations = {row["relation"] for row in about}
    chosen_rows = [*about, *evidence, *mentions]
    chosen_rows += [row for row in by_type["episode"] if row["id"] in episode_ids]
    chosen_rows += [row for row in by_type["entity"] if row["id"] in entities]
    chosen_rows += [row for row in by_type["relation"] if row["name"] in relations]
    chosen_rows += [row for row in by_type["verdict"] if statements & {row["a"], row["b"]}]
    chosen_rows += [row for row in by_type["merge"] if entities.intersection(row["entities"])]
    ended = [(row, (row["ended_by"] or [None])[0]) for row in by_type["fact"]]
    chosen_rows += [row for row, ender in ended if row["statement"] in statements or ender in chosen]
    return sorted(chosen_rows, key=lambda row: (row["type"], dump.lines([row])[0]))


class ViewAround(View):
    """The graph of some of a group's episodes. Entities show as the store has them, with all their names."""

    def __init__(self, store: Store, records: GroupRecords) -> None:
        super().__init__(records, partial(episodes_at, store, records.group))
        self._store = store

    def all_entities(self) -> list[Entity]:
        """Return all entities of these episodes, by id."""
        ids = sorted(self.graph.entities)
        return [rows.entity(row) for row in self._store.rows(reads.ENTITIES_OF, self.group, ids)]


def view_around(store: Store, group: str, identifier: str, bearers: Bearers) -> ViewAround:
    """Return a partial view with the rows of `matches` of the whole group; inside `Store.reading`."""
    both = (reads.FACTS_OF, reads.FACTS_OF_STATEMENTS)
    facts = [row for read in both for row in store.rows(read, group, [identifier])]
    episodes = {
        *bearers.episodes,
        *(sequences_with_evidence(store, group, identifier) if bearers.statement else ()),
    }

    def choose(graph: GroupGraph) -> set[str]:
        """Return the first statements of `matches`."""
        places = graph.places()
        chosen = {places[place] for place in places if place[0] in episodes}
        subjects = {*graph.shows.get(identifier, ()), identifier}
        chosen |= {s.id for s in graph.statements.values() if s.subject in subjects or s.object in subjects}
        return chosen | ({identifier, *(row.statement for row in facts)} & graph.statements.keys())

    entities = {identifier, *(row.source for row in facts)}
    return ViewAround(store, records_around(store, group, choose, episodes=episodes, entities=entities))


def entity_called(store: Store, view: GraphView, identifier: str) -> Entity:
    """Return the entity with this id, name or alias (case and spacing ignored), or beginning of an id.

    Raises NotFound with similar names, and Ambiguous with the ids if several entities match.
    """
    suffix = " as known then" if isinstance(view, View) else ""
    nothing = f"group {view.group} has no entity {identifier!r}{suffix}"
    if is_storable(identifier) and (exact := view.entities([identifier])):
        # A split entity shows as several: the part that kept the id is meant.
        return next((entity for entity in exact if entity.id == identifier), exact[0])
    id_ = _called(store, view, identifier, nothing)
    return next(entity for entity in view.entities([id_]) if entity.id == id_)


def id_called(store: Store, group: str, identifier: str) -> str:
    """Return the id of the item with this name; a client's id stays itself. Raises as `entity_called`."""
    if find(store, group, identifier):
        return identifier
    nothing = f"group {group} has no episode, entity or fact {identifier!r}"
    return _called(store, view_now(store, group), identifier, nothing, of_all=True)


def _called(store: Store, view: GraphView, identifier: str, nothing: str, *, of_all: bool = False) -> str:
    """Return the id of the only entity with this name or beginning of an id; of_all: of other items, too."""
    if not is_storable(identifier):
        raise NotFound(nothing)
    group = view.group
    matching = {entity.id: entity.name for entity in view.entities_named(identifier)}
    if not matching:
        everyone = entities_of(store, view)
        every_head = store.rows(reads.EPISODE_HEADS, group) if of_all else ()
        heads = [row for row in every_head if row.retired_at is None]
        labels = {row.id: row.client_id or "episode" for row in heads}
        for fact in store.rows(reads.FACT_ENDS, group) if of_all else ():
            labels |= {fact.statement: "statement", fact.id: "fact"}
        labels |= {entity.id: entity.name for entity in everyone}
        if _BEGINNING.fullmatch(begin := identifier.lower()):
            matching = {id_: label for id_, label in labels.items() if id_.startswith(begin)}
        if not matching:
            names = (name for one in everyone for name in (one.name, *one.aliases))
            like = suggestion(identifier, [*(row.client_id for row in heads if row.client_id), *names])
            raise NotFound(no_group(store, group) or f"{nothing}{like}")
    if len(matching) == 1:
        return next(iter(matching))
    ids = ", ".join(f"{id_} ({name})" for id_, name in list(matching.items())[:_LISTED])
    omitted = f", and {len(matching) - _LISTED} more" if len(matching) > _LISTED else ""
    is_name = any(folded(identifier) == folded(name) for name in matching.values())
    label = "is the name of" if is_name else "is what begins the ids, or an alias, of"
    raise Ambiguous(f"{identifier!r} {label} {len(matching)} of the group; say which id: {ids}{omitted}")


def entities_of(store: Store, view: GraphView, ids: Sequence[str] | None = None) -> list[Entity]:
    """Return all entities that a view shows, oldest first, or those with these ids in the order given."""
    if isinstance(view, View):
        entities = view.all_entities()
    else:
        read = (ENTITIES.all, view.group) if ids is None else (reads.ENTITIES_OF, view.group, ids)
        entities = [rows.entity(row) for row in store.rows(*read)]
    if ids is None:
        return sorted(entities, key=lambda entity: (entity.born, entity.id))
    by_id = {entity.id: entity for entity in entities}
    return [by_id[id_] for id_ in ids if id_ in by_id]


def fact_spans(store: Store, view: GraphView, facts: Sequence[Fact]) -> tuple[FactSpan, ...]:
    """Return facts with their `inferred_dates`, in the order given."""
    with garbage_not_collected():  # of up to 20,000 facts
        spans, _ = spans_of(view, facts, inferred_dates(store, view.group, facts))
    return tuple(spans[fact.id] for fact in facts)


def entity_nodes(
    entities: Iterable[Entity], owners: Mapping[str, str] | None = None
) -> tuple[EntityNode, ...]:
    """Return entities as nodes. owners: entity id -> its community."""
    names = ("id", "name", "aliases", "labels")
    return tuple(
        EntityNode(**{name: getattr(entity, name) for name in names}, community=(owners or {}).get(entity.id))
        for entity in entities
    )


def no_group(store: Store, group: str) -> str:
    """Return the message that the group does not exist, with a similar name; "" if it exists."""
    if store.heads([group])[group].named:
        return ""
    return f"there is no group {group}{suggestion(group, store.heads())}"


def suggestion(term: str, names: Iterable[str]) -> str:
    """Return `: did you mean 'Alice Nguyen'?` for the names that are like what was asked; "" for none."""
    originals: dict[str, str] = {}
    for name in names:
        originals.setdefault(folded(name), name)
    key = folded(term)
    containing = [name for name in originals if key and key in name.split()]
    near = get_close_matches(key, originals, n=_SUGGESTED, cutoff=0.7)
    quoted = [repr(originals[name]) for name in dict.fromkeys([*near, *containing])][:_SUGGESTED]
    return f": did you mean {' or '.join(quoted)}?" if quoted else ""


def unmet(store: Store, group: str, filters: Filters) -> list[str]:
    """Return a line for each value of a filter that nothing in the group has; it scans the group."""
    episodes = list(store.rows(EPISODES.all, group)) if filters.sources or filters.speakers else []
    existing = {
        "relation": {row.relation for row in store.rows(FACTS.all, group)} if filters.relations else (),
        "type": {label for entity in entities_of(store, view_now(store, group)) for label in entity.labels}
        if filters.labels
        else (),
        "source": {row.source for row in episodes},
        "speaker": {row.speaker for row in episodes if row.speaker},
    }
    requested = zip(
        existing, (filters.relations, filters.labels, filters.sources, filters.speakers), strict=True
    )
    return [
        f"group {group} has no {kind} {value!r}{suggestion(value, sorted(existing[kind]))}"
        for kind, values in requested
        for value in values
        if value not in existing[kind]
        and (kind != "speaker" or folded(value) not in map(folded, existing[kind]))
    ]


def inferred_dates(store: Store, group: str, facts: Iterable[Fact]) -> Mapping[str, list[str]]:
    """Return by fact which of "valid_at" and "invalid_at" are inferred; facts with neither are left out.

    A start is inferred where it is the reference time of a supporting episode; a stated start that equals it
    counts as inferred (R3). An end is inferred where it is that of the episode that ended the fact.
    """
    dated = [fact for fact in facts if fact.valid_at is not None or fact.invalid_at is not None]
    supporters = {id_ for fact in dated for id_ in fact.episodes}
    ids = sorted(supporters | {fact.ended_by[0] for fact in dated if fact.ended_by})
    reference_times: dict[str, set[Instant]] = defaultdict(set)
    for row in store.rows(reads.REFERENCE_TIMES, group, ids) if ids else ():
        reference_times[row.id].add(row.reference_time)
    inferred: dict[str, list[str]] = {}
    for fact in dated:
        dates = [("valid_at", fact.valid_at, id_) for id_ in fact.episodes]
        dates += [("invalid_at", fact.invalid_at, fact.ended_by[0])] if fact.ended_by else []
        if names := dict.fromkeys(
            name for name, at, id_ in dates if at is not None and at in reference_times[id_]
        ):
            inferred[fact.id] = [*names]
    return inferred
