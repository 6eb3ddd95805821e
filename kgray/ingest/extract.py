"""What an episode says: its extraction, read or asked for (R22, R24), and its shape under the ontology (R18).

`shape` runs before anything is resolved. Where an answer and a declared relation disagree about the object:

relation takes a value     a named object becomes a text value
relation takes an entity   a text value becomes a name; a number, date or boolean stays a value

Two more rules hold once the settings declare a type of entity:

types   a type that is not declared (ignoring case) becomes unknown; the name stays
ends    a relation that the settings declare with subject_type and object_type allows that pair only: a
        fact with an end of another known type is dropped; unknown types and values pass. A symmetric
        relation allows its ends either way round. The relation is the one that the extractor named

A dropped fact leaves no evidence; it stays in the stored extraction, which is what the model said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kgray import rows
from kgray.derivation import names
from kgray.ingest import changes
from kgray.ingest.committer import Outbox, Parts
from kgray.ingest.grounding import ground
from kgray.ingest.threads import off_the_loop
from kgray.intake import triples
from kgray.kinds import EXTRACTIONS_AT
from kgray.ledger import previous
from kgray.ontology import Ontology
from kgray.ports import ExtractionRequest
from kgray.prompting.replies import speaker_first, with_entities
from kgray.records import Episode, ExtractedEntity, ExtractedFact, Extraction, Value, clean_text

ANY_THING = "Thing"  # an end's type in the shipped relations that allows every type


def shape(extraction: Extraction, episode: Episode, ontology: Ontology) -> Extraction:
    """Return the extraction with one entity per name and objects of the kind their relation declares.

    A name that only served as an object and became a value is dropped.
    """
    entities = extraction.entities
    if ontology.entities:  # a type that is not declared is unknown
        declared = {name.casefold(): name for name in ontology.entities}
        entities = tuple(replace(one, type=declared.get(one.type.casefold(), "")) for one in entities)
    merged, index = _one_a_name(entities)
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
    return with_entities(replace(extraction, entities=tuple(merged), facts=tuple(facts)), kept)


def _is_allowed(fact: ExtractedFact, entities: Sequence[ExtractedEntity], ontology: Ontology) -> bool:
    """Whether the types of the fact's ends are allowed by the declared relation, or unknown."""
    relation = ontology.get(fact.relation)
    if relation is None or fact.relation not in ontology.paired or not ontology.entities:
        return True
    ends = (entities[fact.source].type, "" if fact.target is None else entities[fact.target].type)
    pair = (relation.subject_type, relation.object_type)
    ways = (pair, pair[::-1]) if relation.symmetric else (pair,)
    return any(all(not k or d in ("", ANY_THING, k) for k, d in zip(ends, way, strict=True)) for way in ways)


def _one_a_name(entities: Sequence[ExtractedEntity]) -> tuple[list[ExtractedEntity], list[int]]:
    """Return the distinct entities, and for each given entity its index among them.

    Records with different keys are different, whatever their names.
    """
    keys = {one.key_of: names.key(one.name) for one in entities if one.key_of is not None}
    own = [(names.key(one.name), keys.get(place)) for place, one in enumerate(entities)]
    merged: dict[tuple[str, str | None], ExtractedEntity] = {}
    for key, entity in zip(own, entities, strict=True):
        first = merged.setdefault(key, replace(entity, name=clean_text(entity.name)))
        if not first.type and entity.type:
            merged[key] = replace(first, type=entity.type)
    places = {key: place for place, key in enumerate(merged)}
    index = [places[key] for key in own]
    moved = (e if e.key_of is None else replace(e, key_of=index[e.key_of]) for e in merged.values())
    return list(moved), index


def _objects(
    fact: ExtractedFact, entities: list[ExtractedEntity], turned: set[int], ontology: Ontology
) -> ExtractedFact:
    """Return the fact with an object of the kind its relation declares.

    May append a name to `entities`; adds the index of a name that became a value to `turned`.
    """
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


async def stored_extraction(parts: Parts, episode: Episode) -> Extraction | None:
    """Return the extraction that the journal holds, None without one."""
    if episode.state != "extracted":
        return None
    store, asked = parts.store, [episode.sequence]
    found = await off_the_loop(store, lambda: list(store.rows(EXTRACTIONS_AT, episode.group, asked)))
    return rows.extraction(found[0]) if found else None


def keep(outbox: Outbox, episode: Episode, found: Extraction) -> Extraction:
    """Post an extraction to the journal; return it as a read of the journal would.

    It differs where a model's output is invalid Unicode: what cannot be stored becomes a question mark, and a
    replay must decide on the same text.
    """
    row = rows.extraction_row(episode.sequence, found)
    outbox.post(changes.extracted(episode, row))
    return rows.extraction(row) if "?" in row[-1] else found


async def read_episode(parts: Parts, episode: Episode) -> Extraction:
    """Return what the episode says, the speaker first, without what does not stand in it; stores nothing."""
    if episode.kind == "triples":
        # Triples are never sent to a model.
        return triples.to_extraction(episode.text, episode.reference_time)
    limit = parts.pipeline.previous_episodes
    said = await off_the_loop(parts.store, lambda: previous(parts.store, episode, limit))
    request = ExtractionRequest(episode=episode, previous=tuple(said))
    return ground(speaker_first(await parts.extractor.extract(request), episode), request)
