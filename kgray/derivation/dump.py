"""The canonical dump: the whole graph of a group as sorted JSON lines.

It has the same bytes on every store and in every run: it contains no record time, score, vector or summary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from kgray.derivation.names import Relations
from kgray.derivation.stored import View
from kgray.graph import Entity
from kgray.records import Episode, Verdict, canonical
from kgray.times import show

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


def _relation_row(relations: Relations, name: str) -> DumpRow:
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


def rows(view: View, episodes: Iterable[Episode]) -> Iterator[DumpRow]:
    """Yield every row of the dump, unsorted; `episodes` are the listed ones."""
    yield from map(episode_row, episodes)
    graph, records = view.graph, view.records
    ids = {head.sequence: head.id for head in records.heads}
    yield from map(entity_row, view.all_entities())
    for mention in records.mentions:
        shown_id, _ = graph.fold.shown(mention.entity, mention.surface, mention.sequence)
        mention_ids = {"episode": ids[mention.sequence], "entity": shown_id}
        yield _row("mention", mention, "episode ordinal entity surface", **mention_ids)
    for name in graph.relations.names():
        yield _relation_row(graph.relations, name)
    for statement in graph.statements.values():
        value = statement.value.as_dict() if statement.value else None
        yield _row("statement", statement, "id subject relation object value variant", value=value)
    for evidence in records.evidence:
        # Statement None: a loop, which derives nothing.
        about = {
            "episode": ids[evidence.sequence],
            "statement": view.places.get((evidence.sequence, evidence.ordinal)),
        }
        dates = {name: show(getattr(evidence, name)) for name in ("valid_from", "valid_to")}
        yield _row("evidence", evidence, _EVIDENCE, **about, **dates)
    yield from _verdict_rows(view, ids)
    for operation in graph.fold.in_force:
        named = {name: sorted(getattr(operation, name)) for name in ("entities", "surfaces")}
        yield _row("merge", operation, "sequence kind entities surfaces", **named)
    for fact in view.all_facts():
        dates = {name: show(getattr(fact, name)) for name in ("valid_at", "invalid_at")}
        yield _row("fact", fact, _FACT, value=fact.value.as_dict() if fact.value else None, **dates)


def _verdict_rows(view: View, ids: dict[int, str]) -> Iterator[DumpRow]:
    """Yield the newest verdicts on statements as they show, where these are exclusive."""
    newest: dict[tuple[str, str], Verdict] = {}
    for verdict in view.records.verdicts:
        for a, b in view.graph.judged(verdict.a, verdict.b):
            newest[min(a, b), max(a, b)] = verdict
    for (a, b), verdict in newest.items():
        if verdict.exclusive:
            yield _row("verdict", verdict, "a b episode judge", a=a, b=b, episode=ids.get(verdict.sequence))


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
