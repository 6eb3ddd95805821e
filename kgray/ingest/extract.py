"""An extraction as the ontology lets it stand, before anything is resolved (R18).

The stated policy, where an answer and a declared relation disagree about what the object is:
a relation that takes a value makes a name a text value; one that takes an entity makes a text value
a name, and keeps a number, date or boolean as the value that it is.

And once the settings declare a type of entity:

types   a name's type that is not declared, case aside, becomes unknown; the name stays
ends    subject_type and object_type in the settings' own declaration of a relation are the pair that it
        allows: a fact with an end of another, known type is dropped; unknown types and values pass. Of a
        symmetric relation either end may be either. The relation is the one that the reader named

Without declared types nothing of this happens. What is dropped leaves no evidence; it stays in the
stored extraction, which is what the model said.

An episode's extraction: stored, read off its triples, or asked of the model (R22, R24).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kgray import rows
from kgray.derivation import names
from kgray.ingest import changes
from kgray.ingest.committer import Outbox, off_the_loop
from kgray.ingest.parts import Parts
from kgray.intake import triples
from kgray.kinds import EXTRACTIONS_AT
from kgray.ledger import previous
from kgray.ontology import Ontology
from kgray.ports import ExtractionRequest
from kgray.prompting.replies import speaker_first
from kgray.records import Episode, ExtractedEntity, ExtractedFact, Extraction, Value, clean_text

ANY_THING = "Thing"  # of the shipped relations: what is no label, so it limits no type


def shape(extraction: Extraction, episode: Episode, ontology: Ontology) -> Extraction:
    """Return the extraction with one entity a name, objects of the declared kind, and no idle value names."""
    merged, index = _one_a_name(_typed(extraction.entities, ontology))
    listed = len(merged)
    facts: list[ExtractedFact] = []
    turned: set[int] = set()
    for fact in extraction.facts:
        target = None if fact.target is None else index[fact.target]
        shaped = _objects(replace(fact, source=index[fact.source], target=target), merged, turned, ontology)
        if _is_allowed(shaped, merged, ontology):
            facts.append(shaped)
    used = {f.source for f in facts} | {f.target for f in facts if f.target is not None}
    if episode.kind == "message" and episode.speaker and merged:
        used.add(0)
    kept = [i for i in range(len(merged)) if i in used or (i < listed and i not in turned)]
    place = {old: new for new, old in enumerate(kept)}
    return replace(
        extraction,
        entities=tuple(merged[i] for i in kept),
        facts=tuple(
            replace(f, source=place[f.source], target=None if f.target is None else place[f.target])
            for f in facts
        ),
    )


def _typed(entities: Sequence[ExtractedEntity], ontology: Ontology) -> Sequence[ExtractedEntity]:
    """Return the entities with declared types alone; as they are where none is declared."""
    if not ontology.entities:
        return entities
    declared = {name.casefold(): name for name in ontology.entities}
    return [replace(entity, type=declared.get(entity.type.casefold(), "")) for entity in entities]


def _is_allowed(fact: ExtractedFact, entities: Sequence[ExtractedEntity], ontology: Ontology) -> bool:
    """Whether the fact's ends are of the types that the settings declare for its relation, or unknown."""
    relation = ontology.get(fact.relation)
    if relation is None or fact.relation not in ontology.paired or not ontology.entities:
        return True
    ends = (entities[fact.source].type, "" if fact.target is None else entities[fact.target].type)
    pairs = [(relation.subject_type, relation.object_type)]
    if relation.symmetric:
        pairs.append((relation.object_type, relation.subject_type))
    return any(_fits(ends[0], pair[0]) and _fits(ends[1], pair[1]) for pair in pairs)


def _fits(known: str, declared: str) -> bool:
    return not known or declared in ("", ANY_THING, known)


def _one_a_name(entities: Sequence[ExtractedEntity]) -> tuple[list[ExtractedEntity], list[int]]:
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


async def extract(parts: Parts, outbox: Outbox, episode: Episode) -> Extraction:
    """Return the episode's extraction, posted to the journal as it arrives: accepted -> extracted.

    It reads the episode and its previous context, no graph state. An episode that is extracted already
    is not asked about again, whatever the model setting says now (R21).
    Raises Refused, InvalidAnswer, Unavailable as the extractor does.
    """
    stored = await stored_extraction(parts, episode)
    return keep(outbox, episode, await read_episode(parts, episode)) if stored is None else stored


async def stored_extraction(parts: Parts, episode: Episode) -> Extraction | None:
    """Return the extraction that the journal holds."""
    if episode.state != "extracted":
        return None
    store, asked = parts.store, [episode.sequence]
    found = await off_the_loop(store, lambda: list(store.rows(EXTRACTIONS_AT, episode.group, asked)))
    return rows.extraction(found[0]) if found else None


def keep(outbox: Outbox, episode: Episode, found: Extraction) -> Extraction:
    """Post an extraction to the journal; return it as the journal gives it back."""
    row, kept = changes.extraction_as_kept(episode, found)
    outbox.post(changes.extracted(episode, row))
    return kept


async def read_episode(parts: Parts, episode: Episode) -> Extraction:
    """Return what the episode says, the speaker first; nothing is stored."""
    if episode.kind == "triples":
        # Triples are never sent to a model (cli.md, Input).
        return triples.to_extraction(episode.text, episode.reference_time)
    limit = parts.pipeline.previous_episodes
    said = await off_the_loop(parts.store, lambda: previous(parts.store, episode, limit))
    request = ExtractionRequest(episode=episode, previous=tuple(said))
    return speaker_first(await parts.extractor.extract(request), episode)
