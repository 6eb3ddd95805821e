"""The canonical dump: the whole graph of a group as sorted JSON lines.

It has the same bytes on every store and in every run: it contains no record time, score, vector or summary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import Episode, Evidence, Mention, Operation, Verdict, canonical
from kgray.domain.times import show
from kgray.graph.names import Fold, Relations
from kgray.graph.statements import Statement
from kgray.graph.stored import View

DumpRow = dict[str, Any]
_EVIDENCE = (
    "episode ordinal statement kind text valid_from valid_to from_precision to_precision inferred fact_group "
    "every_variant"
)
_FACT = "id statement source target relation value text valid_at invalid_at event episodes ended_by"


def _row(type_: str, record: object, keys: str, **values: Any) -> DumpRow:  # noqa: ANN401 - JSON values
    """Return a row with these keys after its type: from `values`, else from the record, tuples as lists."""
    row = {
        "type": type_,
        **{key: values[key] if key in values else getattr(record, key) for key in keys.split()},
    }
    return {key: list(value) if isinstance(value, tuple) else value for key, value in row.items()}


def episode_row(episode: Episode) -> DumpRow:
    """Return the row of one episode."""
    keys = "id client_id source kind speaker reference_time sequence content_sha256 state"
    return _row("episode", episode, keys, reference_time=show(episode.reference_time))


def entity_row(entity: Entity) -> DumpRow:
    """Return the row of one entity."""
    return _row("entity", entity, "id name aliases labels")


def relation_row(relations: Relations, name: str) -> DumpRow:
    """Return the row of a relation name in use."""
    folded = relations.folded(name)
    traits = relations.traits(folded.name)
    itself = folded.name == name
    cardinality = traits.cardinality
    return {
        "type": "relation",
        "name": name,
        "same_as": None if itself or folded.flipped else folded.name,
        "inverse_of": folded.name if folded.flipped else None,
        "excludes": sorted(traits.excludes),
        "cardinality": cardinality,
        "judge": None if itself and cardinality is None else "ontology",
    }


def mention_row(mention: Mention, episode: str, fold: Fold) -> DumpRow:
    """Return the row of a mention. episode: its id."""
    entity, _ = fold.shown(mention.entity, mention.surface, mention.sequence)
    return _row("mention", mention, "episode ordinal entity surface", episode=episode, entity=entity)


def statement_row(statement: Statement) -> DumpRow:
    """Return the row of a statement."""
    value = statement.value.as_dict() if statement.value else None
    return _row("statement", statement, "id subject relation object value variant", value=value)


def evidence_row(evidence: Evidence, episode: str, statement: str | None) -> DumpRow:
    """Return the row of a piece of evidence. statement: None for a loop, which derives nothing."""
    dates = {name: show(getattr(evidence, name)) for name in ("valid_from", "valid_to")}
    return _row("evidence", evidence, _EVIDENCE, episode=episode, statement=statement, **dates)


def merge_row(operation: Operation) -> DumpRow:
    """Return the row of a merge, a split or a distinction."""
    named = {name: sorted(getattr(operation, name)) for name in ("entities", "surfaces")}
    return _row("merge", operation, "sequence kind entities surfaces", **named)


def fact_row(fact: Fact) -> DumpRow:
    """Return the row of a fact."""
    dates = {name: show(getattr(fact, name)) for name in ("valid_at", "invalid_at")}
    return _row("fact", fact, _FACT, value=fact.value.as_dict() if fact.value else None, **dates)


def rows(view: View, episodes: Iterable[Episode]) -> Iterator[DumpRow]:
    """Yield every row of the dump, unsorted; `episodes` are the listed ones."""
    yield from map(episode_row, episodes)
    graph, records = view.graph, view.records
    ids = {head.sequence: head.id for head in records.heads}
    yield from map(entity_row, view.all_entities())
    for mention in records.mentions:
        yield mention_row(mention, ids[mention.sequence], graph.fold)
    for name in graph.relations.names():
        yield relation_row(graph.relations, name)
    yield from map(statement_row, graph.statements.values())
    for evidence in records.evidence:
        statement = view.places.get((evidence.sequence, evidence.ordinal))
        yield evidence_row(evidence, ids[evidence.sequence], statement)
    yield from verdict_rows(records.verdicts, graph.judged, ids.get)
    yield from map(merge_row, graph.fold.in_force)
    yield from map(fact_row, view.all_facts())


def verdict_rows(
    verdicts: Iterable[Verdict],
    judged: Callable[[str, str], Iterable[tuple[str, str]]],
    episode_of: Callable[[int], str | None],
) -> Iterator[DumpRow]:
    """Yield the newest verdicts on statements as they show, where these are exclusive.

    judged      recorded statements -> the pairs of statements that they show as (`GroupGraph.judged`)
    episode_of  sequence -> the id of the episode
    """
    newest: dict[tuple[str, str], Verdict] = {}
    for verdict in verdicts:
        for a, b in judged(verdict.a, verdict.b):
            newest[min(a, b), max(a, b)] = verdict
    for (a, b), verdict in newest.items():
        if verdict.exclusive:
            episode = episode_of(verdict.sequence)
            yield _row("verdict", verdict, "a b episode judge", a=a, b=b, episode=episode)


def lines(dump_rows: Iterable[DumpRow]) -> list[str]:
    """Return the dump's lines: one canonical JSON a row, sorted."""
    return sorted(map(canonical, dump_rows))


def digest(dump_rows: Iterable[DumpRow]) -> str:
    """Return the SHA-256, in hex, of the dump's bytes."""
    hashed = hashlib.sha256()
    for line in lines(dump_rows):
        hashed.update(line.encode())
        hashed.update(b"\n")
    return hashed.hexdigest()
