"""The derived graph of one group in memory, as known at one moment (R4): a ports.GraphView.

Made for reads with `known_at`, for the dump and for checking the stored index. It costs a walk over
the group's records; facts are swept where they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kgray.derivation.group import GroupGraph
from kgray.graph import Entity, Fact
from kgray.records import Episode, GroupRecords, Place
from kgray.times import Instant

ReadEpisodes = Callable[[Sequence[int]], list[Episode]]


class View:
    """Recorded ids go in, rows as they showed then come out."""

    def __init__(self, records: GroupRecords, episodes: ReadEpisodes) -> None:
        """Derive from records; `episodes` reads whole rows by sequence."""
        self.records = records
        self.graph = GroupGraph.build(records)
        self.group = records.group
        self._read_episodes = episodes
        self._live = {head.sequence for head in records.heads}
        self._by_statement: dict[str, list[Fact]] = {}
        self._places: dict[Place, str] | None = None
        self._at: dict[str, list[str]] | None = None
        self._spoken: dict[str, list[str]] | None = None

    def facts_of(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        """Return the facts that hold at `as_of`, of the statements that these recorded ids show as."""
        if self._spoken is None:
            places = self.places()
            spoken: dict[str, dict[str, None]] = {}
            for e in self.records.evidence:
                shown = places.get((e.sequence, e.ordinal))
                if shown is not None:
                    spoken.setdefault(e.statement, {})[shown] = None
            self._spoken = {recorded: list(shown) for recorded, shown in spoken.items()}
        shown_ids = [s for recorded in statements for s in self._spoken.get(recorded, ())]
        return self._holding(shown_ids, as_of)

    def facts_of_evidence(self, places: Sequence[Place], as_of: Instant | None) -> list[Fact]:
        """Return the facts that hold at `as_of`, of the statements that these pieces of evidence speak of."""
        known = self.places()
        return self._holding([known[p] for p in places if p in known], as_of)

    def facts_at(self, entities: Sequence[str], as_of: Instant | None, limit: int | None) -> list[Fact]:
        """Return facts whose subject or object is one of these entities, newest first, then by id."""
        if self._at is None:
            self._at = {}
            for statement in self.graph.statements.values():
                self._at.setdefault(statement.subject, []).append(statement.id)
                if statement.object is not None:
                    self._at.setdefault(statement.object, []).append(statement.id)
        found = self._holding([s for e in entities for s in self._at.get(e, ())], as_of)
        found.sort(key=lambda f: (-f.created_at, f.id))
        return found[:limit]

    def facts(self, ids: Sequence[str]) -> list[Fact]:
        """Return the facts with these ids."""
        wanted = set(ids)
        return [f for f in self.all_facts() if f.id in wanted]

    def entities(self, recorded: Sequence[str]) -> list[Entity]:
        """Return the entities that these recorded ids show as, in the order asked, each once."""
        shown = self.graph.shown_by_recorded()
        wanted = dict.fromkeys(i for r in recorded for i in sorted(shown.get(r, ())))
        return [self.graph.entities[i].shown() for i in wanted if i in self.graph.entities]

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        """Return the committed, live episodes with these sequences, in the order asked."""
        wanted = [s for s in sequences if s in self._live]
        found = {e.sequence: e for e in self._read_episodes(wanted)}
        return [found[s] for s in wanted if s in found]

    def supporters(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Return episode id -> client id."""
        wanted = set(ids)
        sequences = [h.sequence for h in self.records.heads if h.id in wanted]
        return {e.id: e.client_id for e in self._read_episodes(sequences)}

    def all_facts(self) -> list[Fact]:
        """Return every fact, at any time."""
        return self._holding(list(self.graph.statements), None)

    def all_entities(self) -> list[Entity]:
        """Return every entity, by id."""
        return [self.graph.entities[i].shown() for i in sorted(self.graph.entities)]

    def places(self) -> dict[Place, str]:
        """Return evidence place -> the statement it shows as."""
        if self._places is None:
            self._places = self.graph.places()
        return self._places

    def _holding(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        wanted = dict.fromkeys(statements)
        missing = [s for s in wanted if s not in self._by_statement]
        for statement, spans in self.graph.spans_of(missing).items():
            self._by_statement[statement] = [self.graph.fact(span) for span in spans]
        facts = (f for s in wanted for f in self._by_statement[s])
        return [f for f in facts if as_of is None or f.holds_at(as_of)]
