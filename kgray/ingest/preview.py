"""What an episode would change in the store as it is: the rows of `kgray add --dry-run`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

from kgray import times
from kgray.derivation import dump
from kgray.derivation.absorb import compare
from kgray.derivation.view import View
from kgray.graph import Derived
from kgray.ingest.committer import Committer
from kgray.ingest.extract import read_episode
from kgray.ingest.loop import settle
from kgray.ingest.parts import Parts
from kgray.ingest.state import with_change
from kgray.ingest.values import Change, Read
from kgray.records import Draft, Episode, GroupRecords
from kgray.times import Instant


async def preview(parts: Parts, committer: Committer, drafts: Iterable[Draft]) -> AsyncIterator[dump.Row]:
    """Yield what each draft would change in the store as it is, as dump rows with "op"; accepts nothing.

    Each draft is decided against the graph as stored, not against the drafts before it. One that is
    accepted already changes nothing. Raises ContentError for a text that the model refuses.
    """
    store, now = parts.store, times.now()
    committer.forget_stale()
    views: dict[str, View] = {}
    for draft in drafts:
        if any(kind == "episode" for kind, _ in store.find(draft.group, draft.id)):
            continue
        view = views.get(draft.group)
        if view is None:
            view = views[draft.group] = View(store.records(draft.group), lambda _: [])
        episode = prospective(view.records, draft, now)
        extraction = await read_episode(store, parts.extractor, episode, parts.pipeline.previous_episodes)
        read = Read(episode=episode, extraction=extraction)
        change = await settle(parts, read, committer.state(draft.group), keep=False)
        for row in changes(view, change, committer.record_time(draft.group)):
            yield row


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
