"""Join the extractions of a text's units, as if the whole text had been read at once (R18)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from kgray.domain.records import ExtractedEntity, ExtractedFact, Extraction
from kgray.errors import Cost
from kgray.graph import names
from kgray.graph.statements import says_same
from kgray.ingest.units import TextUnit


def joined(parts: Sequence[tuple[TextUnit, Extraction]]) -> Extraction:
    """Return one extraction, from the units of a text in order and the extraction of each.

    Entities with equal names (`names.key`) are united. A fact in an overlap is read twice and counts once. A
    line about a dropped item begins with the number of its unit. Only language models read units, and they
    give no keys of records (`ExtractedEntity.key_of`).
    """
    if len(parts) == 1:
        return parts[0][1]
    union = _Union()
    for number, (unit, part) in enumerate(parts):
        previous_end = parts[number - 1][0].end if number else 0
        union.add(unit, part, unit.text[: max(0, previous_end - unit.start)])
    costs = zip(*(part.cost for _, part in parts), strict=True)
    dropped = (
        f"unit {number} of {len(parts)}: {line}"
        for number, (_, part) in enumerate(parts, start=1)
        for line in part.dropped
    )
    return replace(
        parts[0][1],
        entities=tuple(union.entities),
        facts=tuple(union.facts),
        dropped=tuple(dropped),
        prompts=tuple(dict.fromkeys(prompt for _, part in parts for prompt in part.prompts)),
        **Cost(*map(sum, costs))._asdict(),
    )


class _Union:
    """The entities and facts of several units."""

    def __init__(self) -> None:
        self.entities: list[ExtractedEntity] = []
        self.facts: list[ExtractedFact] = []
        self._places: dict[str, int] = {}  # indexes of entities by the keys of their names
        self._alike: dict[
            Hashable, list[tuple[int, ExtractedFact]]
        ] = {}  # facts with their units; equal content, equal key
        self._units = 0

    def add(self, unit: TextUnit, part: Extraction, overlap: str) -> None:
        """Add the extraction of a unit; overlap: the text that this unit shares with the previous unit."""
        index = [self._place(entity, unit.start) for entity in part.entities]
        shared = names.folded(overlap)
        for fact in part.facts:
            target = None if fact.target is None else index[fact.target]
            moved = replace(fact, source=index[fact.source], target=target)
            content = (
                moved.source,
                moved.relation,
                target,
                moved.value,
                moved.kind,
                moved.valid_from,
                moved.valid_to,
            )
            alike = self._alike.setdefault(content, [])
            if not any(self._is_read_again(moved, *earlier, shared) for earlier in alike):
                self.facts.append(moved)
                alike.append((self._units, moved))
        self._units += 1

    def _place(self, entity: ExtractedEntity, start: int) -> int:
        """Return the index of an entity with this name, a new entity if necessary; start: of its unit."""
        span = entity.span and (entity.span[0] + start, entity.span[1] + start)
        at = self._places.setdefault(names.key(entity.name), len(self.entities))
        if at == len(self.entities):
            self.entities.append(replace(entity, span=span))
        else:
            entity_before = self.entities[at]
            self.entities[at] = replace(
                entity_before, type=entity_before.type or entity.type, span=entity_before.span or span
            )
        return at

    def _is_read_again(self, fact: ExtractedFact, unit: int, earlier: ExtractedFact, overlap: str) -> bool:
        """Return whether `fact` repeats an earlier fact with equal content that was read in the overlap.

        unit    the number of the earlier fact's unit

        A model may word a sentence differently each time. So another wording repeats the fact if it names no
        other variant and if the overlap names both ends.
        """
        if unit == self._units:
            return False  # the model lists it twice for one unit
        if names.key(fact.text) == names.key(earlier.text):
            return True
        ends = [self.entities[end].name for end in (fact.source, fact.target) if end is not None]
        return (
            unit == self._units - 1
            and says_same(fact, earlier)
            and all(names.folded(name) in overlap for name in ends)
        )
