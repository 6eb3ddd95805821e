"""What an episode adds to a group's records, and what differs in the derived graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kgray.graph import Entity, Fact
from kgray.ports import Embedding, Vector
from kgray.records import Episode, EpisodeHead, Evidence, GroupRecords, Mention, Place, Ruling, Verdict
from kgray.timeline import Span
from kgray.times import Instant

if TYPE_CHECKING:
    from kgray.derivation.group import GroupGraph

SpanChanges = dict[str, tuple[tuple[Span, ...], tuple[Span, ...]]]  # statement -> spans before, after


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeChange:
    """The records that one episode adds, in order of their ordinals; the record time is given at the commit.

    *_births            (recorded id, place) of what it makes, and of parts of a split that it records first
    name_vectors        of surfaces that are new to their entity, with the mention of each
    statement_vectors   (recorded statement id, vector of its first wording)
    """

    episode: Episode
    entity_births: tuple[tuple[str, Place], ...] = ()
    statement_births: tuple[tuple[str, Place], ...] = ()
    mentions: tuple[Mention, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    rulings: tuple[Ruling, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    name_vectors: tuple[tuple[Mention, Vector], ...] = ()
    statement_vectors: tuple[tuple[str, Embedding], ...] = ()
    episode_vector: Embedding | None = None

    def head(self, recorded_at: Instant) -> EpisodeHead:
        """Return the episode's place on both clocks, once it is recorded."""
        episode = self.episode
        return EpisodeHead(
            sequence=episode.sequence,
            id=episode.id,
            reference_time=episode.reference_time,
            recorded_at=recorded_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs between a group's derived graph before and after: whole rows, sorted by id.

    shown, unshown      added and removed pairs (recorded entity, entity it shows as)
    spoken              (place of evidence, the statement it is about now or None) where that changed
    """

    entities: tuple[Entity, ...] = ()
    gone_entities: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    gone_facts: tuple[str, ...] = ()
    shown: tuple[tuple[str, str], ...] = ()
    unshown: tuple[tuple[str, str], ...] = ()
    spoken: tuple[tuple[Place, str | None], ...] = ()


def with_change(records: GroupRecords, change: EpisodeChange, recorded_at: Instant) -> GroupRecords:
    """Return the records with the change added."""
    return replace(
        records,
        heads=[*records.heads, change.head(recorded_at)],
        mentions=[*records.mentions, *change.mentions],
        evidence=[*records.evidence, *change.evidence],
        rulings=[*records.rulings, *change.rulings],
        verdicts=[*records.verdicts, *change.verdicts],
        recorded={**records.recorded, change.episode.sequence: recorded_at},
        births={**dict((*change.entity_births, *change.statement_births)), **records.births},
        last_recorded=recorded_at,
    )


def fact_changes(
    fact_before: Callable[[Span], Fact], fact_now: Callable[[Span], Fact], changes: SpanChanges
) -> tuple[tuple[Fact, ...], tuple[str, ...]]:
    """Return the facts that differ, and the ids of those that are gone, where these spans change."""
    rows: list[Fact] = []
    gone: set[str] = set()
    kept: set[str] = set()
    for earlier, later in changes.values():
        was = {fact.id: fact for fact in map(fact_before, earlier)}
        now = {fact.id: fact for fact in map(fact_now, later)}
        rows += [fact for i, fact in now.items() if was.get(i) != fact]
        kept.update(now)
        gone.update(was)
    return tuple(sorted(rows, key=lambda f: f.id)), tuple(sorted(gone - kept))


def compare(old: GroupGraph, new: GroupGraph) -> Difference:
    """Return the difference between two graphs of one group; sweeps only the statements that changed."""
    was, now = old.places(), new.places()
    places = [place for place, shown in now.items() if was.get(place) != shown]
    places += [place for place in was if place not in now]
    moves = {p for p in old.moved.keys() | new.moved.keys() if old.moved.get(p) != new.moved.get(p)}
    moved = {s for p in moves for s in (was.get(p), now.get(p)) if s}
    facts, gone = fact_changes(old.fact, new.fact, _changed_spans(old, new, moved | _touched(old, new)))
    others = sorted(e for e, note in new.entities.items() if old.entities.get(e) != note)
    entities = [(new.entities[e].shown(), old.entities.get(e)) for e in others]
    recorded = {*(old.entities.keys() ^ new.entities.keys()), *old.shows, *new.shows}
    before, after = ({(r, i) for r in recorded for i in graph.shows_as(r)} for graph in (old, new))
    return Difference(
        entities=tuple(shown for shown, note in entities if note is None or note.shown() != shown),
        gone_entities=tuple(sorted(old.entities.keys() - new.entities.keys())),
        facts=facts,
        gone_facts=gone,
        shown=tuple(sorted(after - before)),
        unshown=tuple(sorted(before - after)),
        spoken=tuple((place, now.get(place)) for place in sorted(places)),
    )


def _touched(old: GroupGraph, new: GroupGraph) -> set[str]:
    touched = old.statements.keys() - new.statements.keys()
    told = [{i: (s.key, s.variant, s.first, s.claims) for i, s in g.statements.items()} for g in (old, new)]
    touched.update(statement for statement, now in told[1].items() if told[0].get(statement) != now)
    for name in old.by_relation.keys() | new.by_relation.keys():
        words, words_now = (graph.relations.aspect(name, "text") for graph in (old, new))
        if old.relations.traits(name) != new.relations.traits(name) or words != words_now:
            touched.update(old.by_relation.get(name, ()), new.by_relation.get(name, ()))
    for entity in old.entities.keys() & new.entities.keys():
        if old.entities[entity].name != new.entities[entity].name:
            touched.update(old.about.get(entity, ()), new.about.get(entity, ()))
    judged = old.verdicts.keys() | new.verdicts.keys()
    return touched | {s for s in judged if old.verdicts.get(s) != new.verdicts.get(s)}


def _changed_spans(old: GroupGraph, new: GroupGraph, touched: Iterable[str]) -> SpanChanges:
    """Return old and new spans of the touched statements and of their components in either graph."""
    asked = set(touched)
    while True:
        was = old.spans_of(s for s in sorted(asked) if s in old.statements)
        now = new.spans_of(s for s in sorted(asked) if s in new.statements)
        reached = was.keys() | now.keys()
        if reached <= asked:
            return {s: (was.get(s, ()), now.get(s, ())) for s in sorted(asked)}
        asked |= reached
