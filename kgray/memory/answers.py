"""What reads of `Memory` return beside hits, and its JSON form; its field names are a stable interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import groupby
from typing import Any

from kgray import holds, kinds
from kgray.derivation.stored import view_now
from kgray.errors import InputError
from kgray.graph import Entity, FactSpan
from kgray.ledger import Failure, failures
from kgray.memory.naming import entities_of, entity_called
from kgray.memory.showing import ToldEpisode, told_episodes
from kgray.ports import GraphView, Store
from kgray.rows import folded
from kgray.search import spans_of
from kgray.search.profiles import profiles
from kgray.times import Instant

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
