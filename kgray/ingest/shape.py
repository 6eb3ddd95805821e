"""An extraction as the ontology lets it stand, before anything is resolved (R18).

The stated policy, where an answer and a declared relation disagree about what the object is:
a relation that takes a value makes a name a text value; one that takes an entity makes a text value
a name, and keeps a number, date or boolean as the value that it is.
"""

from __future__ import annotations

from dataclasses import replace

from kgray.derivation import names
from kgray.ontology import Ontology
from kgray.records import Episode, ExtractedEntity, ExtractedFact, Extraction, Value, clean_text


def shape(extraction: Extraction, episode: Episode, ontology: Ontology) -> Extraction:
    """Return the extraction with one entity a name, objects of the declared kind, and no idle value names."""
    merged, index = _one_a_name(extraction.entities)
    facts: list[ExtractedFact] = []
    turned: set[int] = set()
    for fact in extraction.facts:
        target = None if fact.target is None else index[fact.target]
        facts.append(
            _objects(replace(fact, source=index[fact.source], target=target), merged, turned, ontology)
        )
    used = {f.source for f in facts} | {f.target for f in facts if f.target is not None}
    if episode.kind == "message" and episode.speaker and merged:
        used.add(0)
    kept = [i for i in range(len(merged)) if i in used or i not in turned]
    place = {old: new for new, old in enumerate(kept)}
    return replace(
        extraction,
        entities=tuple(merged[i] for i in kept),
        facts=tuple(
            replace(f, source=place[f.source], target=None if f.target is None else place[f.target])
            for f in facts
        ),
    )


def _one_a_name(entities: tuple[ExtractedEntity, ...]) -> tuple[list[ExtractedEntity], list[int]]:
    """Return the distinct entities, and for each one listed its place among them."""
    merged: list[ExtractedEntity] = []
    seen: dict[str, int] = {}
    index: list[int] = []
    for entity in entities:
        key = names.key(entity.name)
        if key not in seen:
            seen[key] = len(merged)
            merged.append(replace(entity, name=clean_text(entity.name)))
        elif not merged[seen[key]].type and entity.type:
            merged[seen[key]] = replace(merged[seen[key]], type=entity.type)
        index.append(seen[key])
    return merged, index


def _objects(
    fact: ExtractedFact, entities: list[ExtractedEntity], turned: set[int], ontology: Ontology
) -> ExtractedFact:
    """Give the fact's object the kind its relation declares; may add a name to `entities`."""
    declared = ontology.get(fact.relation)
    if declared is None or declared.object is None:
        return fact
    if declared.object == "value" and fact.target is not None:
        turned.add(fact.target)
        return replace(fact, target=None, value=Value("text", entities[fact.target].name))
    if declared.object == "entity" and fact.value is not None and fact.value.type == "text":
        key = names.key(fact.value.value)
        for place, entity in enumerate(entities):
            if names.key(entity.name) == key:
                return replace(fact, target=place, value=None)
        entities.append(ExtractedEntity(name=clean_text(fact.value.value)))
        return replace(fact, target=len(entities) - 1, value=None)
    return fact
