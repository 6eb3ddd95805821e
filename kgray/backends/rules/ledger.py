"""What was read so far in one episode: its entities, each once, and its facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kgray.backends.rules.scope import Ref
from kgray.records import ExtractedEntity, ExtractedFact, Extraction, clean_text

# An episode with more is a table or noise; what comes later is counted as dropped.
MAX_ITEMS = 2_000
MAX_NEAR = 64  # the latest entities: those of the sentence are among them


class Ledger:
    """Entities by clean name in the order of mention, facts in the order of reading."""

    def __init__(self) -> None:
        """Start empty."""
        self.entities: list[ExtractedEntity] = []
        self.facts: list[ExtractedFact] = []
        self.dropped: list[str] = []
        self._index: dict[str, int] = {}
        self._seen: set[tuple[object, ...]] = set()

    def entity(self, name: str, label: str = "", span: tuple[int, int] | None = None) -> int:
        """Return the index of a name, adding it where it is new; the first type that is known stands."""
        clean = clean_text(name)
        index = self._index.get(clean)
        if index is None:
            index = len(self.entities)
            self._index[clean] = index
            self.entities.append(ExtractedEntity(name=clean, type=label, span=span))
            return index
        known = self.entities[index]
        if (label and not known.type) or (span and not known.span):
            self.entities[index] = replace(known, type=known.type or label, span=known.span or span)
        return index

    def mention(self, refs: Sequence[Ref]) -> None:
        """Add names that no fact speaks of, but for those inside a longer name: "Kestrel desk"."""
        for ref in refs:
            inside = any(
                one.span
                and ref.span
                and one.span != ref.span
                and one.span[0] <= ref.span[0]
                and ref.span[1] <= one.span[1]
                for one in self.entities[-MAX_NEAR:]
            )
            if not inside and len(self.entities) < MAX_ITEMS:
                self.entity(ref.name, ref.type, ref.span)

    def find(self, name: str) -> ExtractedEntity | None:
        """Return the entity with this name, None where there is none yet."""
        index = self._index.get(clean_text(name))
        return None if index is None else self.entities[index]

    def fact(self, fact: ExtractedFact) -> None:
        """Add a fact; one that was said in the same way, or leads from an entity to itself, adds nothing."""
        if fact.source == fact.target:
            self.dropped.append(f"{fact.relation}: {fact.text[:80]!r} connects an entity with itself")
            return
        key = (fact.source, fact.relation, fact.target, fact.value, fact.kind, fact.valid_from, fact.valid_to)
        if key in self._seen:
            return
        if len(self.facts) >= MAX_ITEMS:
            if len(self.facts) == MAX_ITEMS and not any(
                line.startswith("more than") for line in self.dropped[-1:]
            ):
                self.dropped.append(f"more than {MAX_ITEMS} facts: the rest was not read")
            return
        self._seen.add(key)
        self.facts.append(fact)

    def extraction(self, model: str) -> Extraction:
        """Return everything as a value."""
        return Extraction(
            entities=tuple(self.entities), facts=tuple(self.facts), dropped=tuple(self.dropped), model=model
        )
