"""The canonical dump: the whole graph of a group as sorted JSON lines.

It has the same bytes on every store and in every run: it contains no record time, score, vector or summary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from kgray.derivation.statements import Statement
from kgray.derivation.view import View
from kgray.graph import Entity, Fact
from kgray.records import Episode, Evidence, Mention, Operation, Verdict, canonical
from kgray.times import show

DumpRow = dict[str, Any]


def episode_row(episode: Episode) -> DumpRow:
    """Return the row of one episode."""
    return {
        "type": "episode",
        "id": episode.id,
        "client_id": episode.client_id,
        "source": episode.source,
        "kind": episode.kind,
        "speaker": episode.speaker,
        "reference_time": show(episode.reference_time),
        "sequence": episode.sequence,
        "content_sha256": episode.content_sha256,
        "state": episode.state,
    }


def entity_row(entity: Entity) -> DumpRow:
    """Return the row of one entity."""
    aliases, labels = list(entity.aliases), list(entity.labels)
    return {"type": "entity", "id": entity.id, "name": entity.name, "aliases": aliases, "labels": labels}


def mention_row(mention: Mention, entity: str, episode: str) -> DumpRow:
    """Return the row of one mention; entity: the one it shows as."""
    return {
        "type": "mention",
        "episode": episode,
        "ordinal": mention.ordinal,
        "entity": entity,
        "surface": mention.surface,
    }


def statement_row(statement: Statement) -> DumpRow:
    """Return the row of one statement."""
    return {
        "type": "statement",
        "id": statement.id,
        "subject": statement.subject,
        "relation": statement.relation,
        "object": statement.object,
        "value": statement.value.as_dict() if statement.value else None,
        "variant": statement.variant,
    }


def evidence_row(evidence: Evidence, statement: str | None, episode: str) -> DumpRow:
    """Return the row of one piece of evidence; statement None = a loop, which derives nothing."""
    return {
        "type": "evidence",
        "episode": episode,
        "ordinal": evidence.ordinal,
        "statement": statement,
        "kind": evidence.kind,
        "text": evidence.text,
        "valid_from": show(evidence.valid_from),
        "valid_to": show(evidence.valid_to),
        "from_precision": evidence.from_precision,
        "to_precision": evidence.to_precision,
        "inferred": evidence.inferred,
        "fact_group": evidence.fact_group,
    }


def relation_row(view: View, name: str) -> DumpRow:
    """Return the row of one relation name in use."""
    relations = view.graph.relations
    folded = relations.folded(name)
    traits = relations.traits(folded.name)
    itself = folded.name == name
    pair = None if itself else relations.pair_ruling(name, folded.name)
    return {
        "type": "relation",
        "name": name,
        "same_as": None if itself or folded.flipped else folded.name,
        "inverse_of": folded.name if folded.flipped else None,
        "excludes": sorted(traits.excludes),
        "cardinality": traits.cardinality,
        "judge": traits.cardinality_judge or (pair.judge if pair else None),
    }


def verdict_row(verdict: Verdict, a: str, b: str, episode: str | None) -> DumpRow:
    """Return the row of one exclusive verdict; a, b: statements as they show."""
    first, second = sorted((a, b))
    return {"type": "verdict", "a": first, "b": second, "episode": episode, "judge": verdict.judge}


def merge_row(operation: Operation) -> DumpRow:
    """Return the row of a merge or split in force."""
    return {
        "type": "merge",
        "sequence": operation.sequence,
        "kind": operation.kind,
        "entities": sorted(operation.entities),
        "surfaces": sorted(operation.surfaces),
    }


def fact_row(fact: Fact) -> DumpRow:
    """Return the row of one fact."""
    return {
        "type": "fact",
        "id": fact.id,
        "statement": fact.statement,
        "source": fact.source,
        "target": fact.target,
        "relation": fact.relation,
        "value": fact.value.as_dict() if fact.value else None,
        "text": fact.text,
        "valid_at": show(fact.valid_at),
        "invalid_at": show(fact.invalid_at),
        "episodes": list(fact.episodes),
        "ended_by": list(fact.ended_by) if fact.ended_by else None,
    }


def rows(view: View, episodes: Iterable[Episode]) -> Iterator[DumpRow]:
    """Yield every row of the dump, unsorted. episodes: those that the dump lists."""
    yield from map(episode_row, episodes)
    yield from map(entity_row, view.all_entities())
    graph, records, places = view.graph, view.records, view.places()
    ids = {head.sequence: head.id for head in records.heads}
    for mention in records.mentions:
        shown, _ = graph.fold.shown(mention.entity, mention.surface, mention.sequence)
        yield mention_row(mention, shown, ids[mention.sequence])
    for name in graph.relations.names():
        yield relation_row(view, name)
    yield from map(statement_row, graph.statements.values())
    for evidence in records.evidence:
        place = (evidence.sequence, evidence.ordinal)
        yield evidence_row(evidence, places.get(place), ids[evidence.sequence])
    yield from _verdict_rows(view, ids)
    yield from map(merge_row, graph.fold.in_force)
    yield from map(fact_row, view.all_facts())


def _verdict_rows(view: View, ids: dict[int, str]) -> Iterator[DumpRow]:
    shows: dict[str, dict[str, None]] = {}
    for evidence in view.records.evidence:
        shown = view.places().get((evidence.sequence, evidence.ordinal))
        if shown is not None:
            shows.setdefault(evidence.statement, {})[shown] = None
    newest: dict[tuple[str, str], Verdict] = {}
    for verdict in view.records.verdicts:
        for a in shows.get(verdict.a, ()):
            for b in shows.get(verdict.b, ()):
                if a != b:
                    newest[min(a, b), max(a, b)] = verdict
    for (a, b), verdict in newest.items():
        if verdict.exclusive:
            yield verdict_row(verdict, a, b, ids.get(verdict.sequence))


def lines(found: Iterable[DumpRow]) -> list[str]:
    """Return the dump's lines: one canonical JSON a row, sorted."""
    return sorted(map(canonical, found))


def digest(found: Iterable[DumpRow]) -> str:
    """Return the SHA-256, in hex, of the dump's bytes."""
    hashed = hashlib.sha256()
    for line in lines(found):
        hashed.update(line.encode())
        hashed.update(b"\n")
    return hashed.hexdigest()
