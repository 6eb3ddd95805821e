"""A group as a writer of a format reads it: at one moment of either clock, in an order that never changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from importlib.metadata import version
from itertools import chain, count
from typing import Any

from kgray import kinds, rows
from kgray.communities.reading import current_run
from kgray.derivation import dump
from kgray.derivation.change import mentioned_entities
from kgray.derivation.stored import View, in_pieces, records_of
from kgray.derivation.summaries import summarised
from kgray.graph import Community, Entity, Fact
from kgray.interchange.files import xml_text
from kgray.ledger import dumped_episodes, episodes_at
from kgray.ports import Store
from kgray.records import Episode, Evidence
from kgray.times import Instant, show, to_datetime


@dataclass(frozen=True, slots=True)
class ExportedEpisode:
    """A committed episode that was not withdrawn, and the time at which it was recorded."""

    episode: Episode
    recorded_at: Instant

    @property
    def spoken_text(self) -> str:
        """The text with its speaker."""
        one = self.episode
        return f"{one.speaker}: {one.text}" if one.speaker else one.text


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedCommunity:
    """A community.

    number    its place among all, from 0: roots first
    depth     how many communities are above it: 0 is the coarsest
    parent    the number of the community that holds it; None = it is a root
    members   ids of all entities in it; text_time: when its text was so
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
        found = (f"## {one['summary']}\n\n{one['explanation']}" for one in self.findings)
        return "\n\n".join([f"# {self.title}", self.community.summary, *found])

    @property
    def findings(self) -> list[dict[str, str]]:
        """The findings of a model's report; none where no model wrote one."""
        named = ("explanation", "summary")
        every = self.community.report.get("findings") or ()
        return [{name: str(one.get(name, "")) for name in named} for one in every]


class Snapshot:
    """A group as known at one moment; to be made and read inside `ports.at_one_moment`.

    as_of     only facts that hold then; None = facts of all spans
    known_at  what the memory knew then; None = now
    Entities, facts and communities are in the order of their ids, episodes in that of the log.
    """

    def __init__(
        self, store: Store, group: str, as_of: Instant | None = None, known_at: Instant | None = None
    ) -> None:
        self.store, self.group, self.as_of, self.known_at = store, group, as_of, known_at
        self.head = store.heads([group])[group]
        is_past = known_at is not None and known_at < self.head.last_recorded
        self._is_stored = not is_past and not in_pieces(store, group)

    @cached_property
    def view(self) -> View:
        """The graph as it follows from the records: with mentions, evidence, statements and rulings."""
        store, group = self.store, self.group
        return View(records_of(store, group, self.known_at), partial(episodes_at, store, group))

    @cached_property
    def recorded_at(self) -> Instant:
        """The newest record time of what is exported; 0 = there is nothing."""
        last = self.head.last_recorded
        return last if self.known_at is None else min(self.known_at, last)

    def about(self) -> dict[str, Any]:
        """Return what a file says of itself."""
        return {
            "kgray": version("kgray"),
            "group": self.group,
            "as_of": show(self.as_of),
            "known_at": show(self.known_at),
            "recorded_at": show(self.recorded_at),
            "holds": "all spans" if self.as_of is None else "facts that hold at as_of",
        }

    @cached_property
    def entities(self) -> Sequence[Entity]:
        """All entities, by id, with summaries."""
        if self._is_stored and self.as_of is None:
            return [rows.entity(row) for row in self.store.rows(kinds.ENTITIES.all, self.group)]
        moment = self.recorded_at if self.as_of is None else self.as_of
        return summarised(self.view, self.view.all_entities(), moment)

    @cached_property
    def names(self) -> dict[str, str]:
        """Entity id -> a name that no other entity has: see `unique_names`."""
        return unique_names(self.entities)

    def facts(self) -> Iterator[Fact]:
        """Yield the facts, by id."""
        if self._is_stored:
            every: Iterable[Fact] = map(rows.fact, self.store.rows(kinds.FACTS.all, self.group))
        else:
            every = sorted(self.view.all_facts(), key=lambda fact: fact.id)
        return (fact for fact in every if self.as_of is None or fact.holds_at(self.as_of))

    def ordered_facts(self) -> list[Fact]:
        """Return the facts by time: of a statement, the span that holds (else the last) comes first."""
        found = list(self.facts())
        found.sort(key=lambda f: (f.invalid_at is not None, -(f.invalid_at or 0), f.valid_at or 0, f.id))
        return found

    def facts_by_entity(self, *, both: bool = True) -> dict[str, list[Fact]]:
        """Return entity id -> the facts about it, as ordered above; both: those that point at it, too."""
        found = defaultdict[str, list[Fact]](list)
        for fact in self.ordered_facts():
            for end in dict.fromkeys(fact.ends if both else fact.ends[:1]):
                found[end].append(fact)
        return found

    def object_of(self, fact: Fact) -> str:
        """Return the name of a fact's object, or its value as people read it."""
        if fact.value is not None:
            return fact.value.shown()
        return self.names.get(fact.target or "", fact.target or "")

    def episodes(self) -> Iterator[ExportedEpisode]:
        """Yield the episodes that the graph rests on."""
        ended = {row.sequence: row.ended_at or 0 for row in self.store.rows(kinds.EPISODES.all, self.group)}
        for one in dumped_episodes(self.store, self.group, self.known_at):
            if one.state == "committed":
                yield ExportedEpisode(one, ended[one.sequence])

    def dumped(self) -> Iterator[dump.DumpRow]:
        """Yield the rows of the dump, unsorted, without facts that do not hold at `as_of`."""
        found = dump.rows(self.view, dumped_episodes(self.store, self.group, self.known_at))
        kept = None if self.as_of is None else {fact.id for fact in self.facts()}
        return (row for row in found if kept is None or row["type"] != "fact" or row["id"] in kept)

    def mentions(self) -> dict[int, list[str]]:
        """Return the sequence of an episode -> ids of the entities that it mentions."""
        found = defaultdict[int, list[str]](list)
        pairs: Iterable[tuple[str, int]]
        if self._is_stored:
            pairs = ((row.entity, row.sequence) for row in self.store.rows(kinds.MENTIONS.all, self.group))
        else:
            pairs = mentioned_entities(self.view.graph.fold, self.view.records.mentions)
        for entity, sequence in sorted(pairs):
            found[sequence].append(entity)
        return found

    def evidence(self) -> Iterator[tuple[Evidence, str | None]]:
        """Yield the evidence with the statement that it shows as; None: a loop, which states nothing."""
        for piece in self.view.records.evidence:
            yield piece, self.view.places.get((piece.sequence, piece.ordinal))

    @cached_property
    def communities(self) -> Sequence[ExportedCommunity]:
        """The communities, the coarsest first, then by size; none before the first run."""
        run = current_run(self.store, self.group, self.known_at)
        above = {id_: run.upwards(one.parent) for id_, one in run.by_id.items()}
        order = sorted(run.by_id.values(), key=lambda one: (len(above[one.id]), -one.size, one.id))
        number = {one.id: place for place, one in enumerate(order)}
        there = {entity.id for entity in self.entities}
        members, children = defaultdict[str, list[str]](list), defaultdict[str, list[int]](list)
        for entity, lowest in sorted(run.owner.items()):
            for id_ in run.upwards(lowest) if entity in there else ():
                members[id_].append(entity)
        for one in order:
            children[one.parent or ""].append(number[one.id])
        return [
            ExportedCommunity(
                community=one,
                number=number[one.id],
                depth=len(above[one.id]),
                parent=number.get(one.parent or ""),
                children=tuple(children[one.id]),
                members=tuple(members[one.id]),
                text_time=one.told_at(to_datetime(run.recorded_at)),
            )
            for one in order
        ]


def unique_names(entities: Iterable[Entity]) -> dict[str, str]:
    """Return entity id -> its name; all but the oldest of those with one name get a suffix.

    The suffix is a label, else the beginning of the id: "Acme (Place)", "Acme (3f2a)". What XML cannot carry
    is replaced, so that files of one export agree.
    """
    names, taken = dict[str, str](), set[str]()
    for one in sorted(entities, key=lambda one: (one.born, one.id)):
        digits = one.id.replace("-", "")
        beginnings = (digits[:length] for length in range(4, len(digits) + 1))
        plain = xml_text(one.name)[0]
        marked = (f"{plain} ({mark})" for mark in chain(one.labels[:1], beginnings, count(2)))
        name = next(name for name in chain([plain], marked) if rows.folded(name) not in taken)
        taken.add(rows.folded(name))
        names[one.id] = name
    return names
