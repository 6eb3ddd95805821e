"""The derived graph of one group in memory, as known at one moment (R4): a `ports.GraphView`.

For reads with `known_at`, the dump, and the check of the stored graph. Building it walks over the group's
records; facts are swept when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from kgray.derivation.group import GroupGraph
from kgray.graph import Entity, Fact
from kgray.ports import GraphView
from kgray.records import Episode, GroupRecords, Place
from kgray.times import Instant

ReadEpisodes = Callable[[Sequence[int]], list[Episode]]


class View(GraphView):
    """A `ports.GraphView` built from records; its methods take recorded ids and return shown rows."""

    def __init__(self, records: GroupRecords, episodes: ReadEpisodes) -> None:
        """Build the graph; episodes: reads episodes by sequence."""
        self.records = records
        self.graph = GroupGraph.build(records)
        self.group = records.group
        self._read_episodes = episodes
        self._live = {head.sequence for head in records.heads}
        self._by_statement: dict[str, list[Fact]] = {}

    def facts_of(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        shown = self.shown_statements
        return self._holding([s for recorded in statements for s in shown.get(recorded, ())], as_of)

    def facts_of_evidence(self, places: Sequence[Place], as_of: Instant | None) -> list[list[Fact]]:
        return [self._holding([self.places[p]] if p in self.places else [], as_of) for p in places]

    def facts_at(self, entities: Sequence[str], as_of: Instant | None, limit: int | None) -> list[Fact]:
        found = self._holding([s for e in entities for s in self.graph.about.get(e, ())], as_of)
        found.sort(key=lambda f: (-f.created_at, f.id))
        return found[:limit]

    def facts(self, ids: Sequence[str]) -> list[Fact]:
        wanted = set(ids)
        return [f for f in self.all_facts() if f.id in wanted]

    def entities_of(self, recorded: Sequence[str]) -> list[list[Entity]]:
        held = self.graph.entities
        return [[held[i].shown() for i in sorted(self.graph.shows_as(r)) if i in held] for r in recorded]

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        wanted = [s for s in sequences if s in self._live]
        found = {e.sequence: e for e in self._read_episodes(wanted)}
        return [found[s] for s in wanted if s in found]

    def supporters(self, ids: Sequence[str]) -> dict[str, str | None]:
        wanted = set(ids)
        sequences = [h.sequence for h in self.records.heads if h.id in wanted]
        return {e.id: e.client_id for e in self._read_episodes(sequences)}

    def all_facts(self) -> list[Fact]:
        """Return all facts, of any time."""
        return self._holding(list(self.graph.statements), None)

    def all_entities(self) -> list[Entity]:
        """Return all entities, by id."""
        return [self.graph.entities[i].shown() for i in sorted(self.graph.entities)]

    @cached_property
    def places(self) -> dict[Place, str]:
        """Evidence place -> the statement it shows as."""
        return self.graph.places()

    @cached_property
    def shown_statements(self) -> dict[str, list[str]]:
        """Recorded statement -> the statements that its evidence shows as."""
        found: dict[str, dict[str, None]] = {}
        for said in self.records.evidence:
            if (shown := self.places.get((said.sequence, said.ordinal))) is not None:
                found.setdefault(said.statement, {})[shown] = None
        return {recorded: list(shown) for recorded, shown in found.items()}

    def _holding(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        wanted = dict.fromkeys(statements)
        missing = [s for s in wanted if s not in self._by_statement]
        for statement, spans in self.graph.spans_of(missing).items():
            self._by_statement[statement] = [self.graph.fact(span) for span in spans]
        facts = (f for s in wanted for f in self._by_statement[s])
        return [f for f in facts if as_of is None or f.holds_at(as_of)]
