"""Builds an episode's `Extraction` while it is read: its entities, each once, and its facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kgray.backends.rules.marking import FactEnd
from kgray.ontology import Ontology
from kgray.records import ExtractedEntity, ExtractedFact, Extraction, clean_text

MAX_ITEMS = 2_000  # an episode with more entities or facts is a table or noise: the rest is dropped
_MAX_NEAR = 64  # the latest entities, among which those of the same sentence are


class ExtractionBuilder:
    """Entities by clean name in the order of mention, facts in the order of reading."""

    def __init__(self) -> None:
        self.entities: list[ExtractedEntity] = []
        self.facts: list[ExtractedFact] = []
        self.dropped: list[str] = []
        self._index: dict[str, int] = {}
        self._seen: set[tuple[object, ...]] = set()

    def entity(
        self, name: str, label: str = "", span: tuple[int, int] | None = None, *, key: str = ""
    ) -> int:
        """Return the index of a name, adding it where it is new; the first known type is kept.

        key: of the record that the name is about; records with different keys are two entities
        """
        clean = clean_text(name)
        index = self._index.get(key or clean, len(self.entities))
        if index == len(self.entities):
            self.entities.append(ExtractedEntity(name=clean, type=label, span=span))
            self._index.setdefault(clean, index)
            if key:
                self._index[key] = index
                if clean == key:
                    self.entities[index] = replace(self.entities[index], key_of=index)
                else:
                    self.entities.append(ExtractedEntity(name=key, key_of=index))
        known = self.entities[index]
        if (label and not known.type) or (span and not known.span):
            self.entities[index] = replace(known, type=known.type or label, span=known.span or span)
        return index

    def type_of(self, name: str) -> str:
        """Return the type of a name as known so far; "" = not known."""
        index = self._index.get(clean_text(name))
        return "" if index is None else self.entities[index].type

    def mention(self, names: Sequence[FactEnd]) -> None:
        """Add names that are in no fact, except those inside a longer name: "Kestrel desk"."""
        for name in names:
            near = [one.span for one in self.entities[-_MAX_NEAR:] if one.span and one.span != name.span]
            inside = name.span and any(a <= name.span[0] and name.span[1] <= b for a, b in near)
            if not inside and len(self.entities) < MAX_ITEMS:
                self.entity(name.name, name.type, name.span)

    def fact(self, fact: ExtractedFact) -> None:
        """Add a fact; one that was said before, or leads from an entity to itself, adds nothing."""
        if fact.source == fact.target:
            self.dropped.append(f"{fact.relation}: {fact.text[:80]!r} connects an entity with itself")
            return
        key = (fact.source, fact.relation, fact.target, fact.value, fact.kind, fact.valid_from, fact.valid_to)
        if key in self._seen:
            return
        if len(self.facts) < MAX_ITEMS:
            self._seen.add(key)
            self.facts.append(fact)
        elif (line := f"more than {MAX_ITEMS} facts: the rest was not read") not in self.dropped[-1:]:
            self.dropped.append(line)

    def drop_contradictions(self, ontology: Ontology) -> None:
        """Leave out facts of this episode that end or deny each other at once: one of them was misread.

        Two objects in one single-valued slot from the same instant; a start and an end, or a denial, of one
        statement at the same instant.
        """
        slots: dict[tuple[int, str], list[ExtractedFact]] = {}
        for fact in self.facts:
            slots.setdefault((fact.source, fact.relation), []).append(fact)
        kept = []
        for fact in self.facts:
            declared = ontology.get(fact.relation)
            single = declared is not None and declared.cardinality == "single"
            slot = slots[fact.source, fact.relation][:_MAX_NEAR]
            rival = next((other for other in slot if _contradict(fact, other, single=single)), None)
            if rival is None:
                kept.append(fact)
            else:
                self.dropped.append(f"{fact.relation}: {fact.text[:80]!r} contradicts {rival.text[:80]!r}")
        self.facts = kept

    def extraction(self, model: str) -> Extraction:
        return Extraction(
            entities=tuple(self.entities), facts=tuple(self.facts), dropped=tuple(self.dropped), model=model
        )


def _contradict(a: ExtractedFact, b: ExtractedFact, *, single: bool) -> bool:
    if (a.target, a.value) != (b.target, b.value):
        return single and a.kind == b.kind == "holds" and a.valid_from == b.valid_from
    if "denied" in {a.kind, b.kind}:
        return a.kind != b.kind
    begins, ends = (a, b) if a.kind == "holds" else (b, a)
    return begins.kind == "holds" and ends.kind == "ended" and begins.valid_from == ends.valid_to
