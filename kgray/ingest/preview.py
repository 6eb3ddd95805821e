"""What an episode would change in the store as it is: the rows of `kgray add --dry-run`."""

from __future__ import annotations

from collections.abc import Iterator

from kgray.derivation import dump
from kgray.derivation.absorb import compare
from kgray.derivation.view import View
from kgray.graph import Derived
from kgray.ingest.state import with_change
from kgray.ingest.values import Change
from kgray.records import Draft, Episode, GroupRecords
from kgray.times import Instant


def changes(before: View, change: Change, recorded_at: Instant) -> Iterator[dump.Row]:
    """Yield dump rows with "op" (add, change, remove), in the order of the pipeline; nothing is written."""
    episode = change.episode
    after = View(with_change(before.records, change, recorded_at), lambda _: [])
    derived = compare(before.graph, after.graph)
    yield {**dump.episode_row(episode), "op": "add"}
    yield from _entity_rows(before, derived)
    for mention in change.mentions:
        shown, _ = after.graph.fold.shown(mention.entity, mention.surface, mention.sequence)
        yield {**dump.mention_row(mention, shown, episode.id), "op": "add"}
    known = set(before.graph.relations.names())
    for name in after.graph.relations.names():
        row = dump.relation_row(after, name)
        if name not in known:
            yield {**row, "op": "add"}
        elif change.rulings and row != dump.relation_row(before, name):
            yield {**row, "op": "change"}
    for statement in after.graph.statements.values():
        if statement.id not in before.graph.statements:
            yield {**dump.statement_row(statement), "op": "add"}
    for evidence in change.evidence:
        shown_as = after.places().get((evidence.sequence, evidence.ordinal))
        yield {**dump.evidence_row(evidence, shown_as, episode.id), "op": "add"}
    for verdict in change.verdicts:
        if verdict.exclusive:
            yield {**dump.verdict_row(verdict, verdict.a, verdict.b, episode.id), "op": "add"}
    yield from _fact_rows(before, derived)


def _entity_rows(before: View, derived: Derived) -> Iterator[dump.Row]:
    for entity in derived.entities:
        op = "change" if entity.id in before.graph.entities else "add"
        yield {**dump.entity_row(entity), "op": op}


def _fact_rows(before: View, derived: Derived) -> Iterator[dump.Row]:
    touched = {f.statement for f in derived.facts} & before.graph.statements.keys()
    known = {f.id for f in before.graph.facts_of(sorted(touched))}
    for fact in derived.facts:
        yield {**dump.fact_row(fact), "op": "change" if fact.id in known else "add"}
    for fact in before.facts(derived.gone_facts):
        yield {**dump.fact_row(fact), "op": "remove"}


def prospective(records: GroupRecords, draft: Draft, now: Instant) -> Episode:
    """Return the episode that a draft would be if nothing else were accepted before it."""
    last = max((head.sequence for head in records.heads), default=0)
    return Episode(
        group=draft.group,
        sequence=max(last, max(records.recorded, default=0)) + 1,
        id=draft.id,
        source=draft.source,
        kind=draft.kind,
        text=draft.text,
        reference_time=now if draft.reference_time is None else draft.reference_time,
        content_sha256=draft.content_sha256,
        speaker=draft.speaker,
        client_id=draft.client_id,
        metadata=draft.metadata,
        state="committed",
    )
