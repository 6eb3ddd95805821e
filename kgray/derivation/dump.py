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


def _row(type_: str, of: object, keys: str, **given: Any) -> DumpRow:  # noqa: ANN401 - JSON values
    """Return a row with these keys after its type: as given, else a field of the value, a tuple as a list."""
    row = {"type": type_, **{key: given[key] if key in given else getattr(of, key) for key in keys.split()}}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in row.items()}


def episode_row(episode: Episode) -> DumpRow:
    """Return the row of one episode."""
    keys = "id client_id source kind speaker reference_time sequence content_sha256 state"
    return _row("episode", episode, keys, reference_time=show(episode.reference_time))


def entity_row(entity: Entity) -> DumpRow:
    """Return the row of one entity."""
    return _row("entity", entity, "id name aliases labels")


def mention_row(mention: Mention, entity: str, episode: str) -> DumpRow:
    """Return the row of one mention; entity: the one it shows as."""
    return _row("mention", mention, "episode ordinal entity surface", entity=entity, episode=episode)


def statement_row(statement: Statement) -> DumpRow:
    """Return the row of one statement."""
    value = statement.value.as_dict() if statement.value else None
    return _row("statement", statement, "id subject relation object value variant", value=value)


def evidence_row(evidence: Evidence, statement: str | None, episode: str) -> DumpRow:
    """Return the row of one piece of evidence; statement None = a loop, which derives nothing."""
    dates = "valid_from valid_to from_precision to_precision inferred"
    return _row(
        "evidence",
        evidence,
        f"episode ordinal statement kind text {dates} fact_group every_variant",
        episode=episode,
        statement=statement,
        valid_from=show(evidence.valid_from),
        valid_to=show(evidence.valid_to),
    )


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
    return _row("verdict", verdict, "a b episode judge", a=first, b=second, episode=episode)


def merge_row(operation: Operation) -> DumpRow:
    """Return the row of a merge, split or distinction in force."""
    entities, surfaces = sorted(operation.entities), sorted(operation.surfaces)
    return _row("merge", operation, "sequence kind entities surfaces", entities=entities, surfaces=surfaces)


def fact_row(fact: Fact) -> DumpRow:
    """Return the row of one fact."""
    return _row(
        "fact",
        fact,
        "id statement source target relation value text valid_at invalid_at event episodes ended_by",
        value=fact.value.as_dict() if fact.value else None,
        valid_at=show(fact.valid_at),
        invalid_at=show(fact.invalid_at),
    )


def rows(view: View, episodes: Iterable[Episode]) -> Iterator[DumpRow]:
    """Yield every row of the dump, unsorted. episodes: those that the dump lists."""
    yield from map(episode_row, episodes)
    yield from map(entity_row, view.all_entities())
    graph, records, places = view.graph, view.records, view.places
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
    newest: dict[tuple[str, str], Verdict] = {}
    for verdict in view.records.verdicts:
        for a, b in view.graph.judged(verdict.a, verdict.b):
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
