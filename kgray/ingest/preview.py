"""What an episode would change in the current store: the rows of `kgray add --dry-run`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kgray import times
from kgray.derivation import dump
from kgray.derivation.absorb import compare
from kgray.derivation.change import Difference, EpisodeChange, with_change
from kgray.derivation.stored import records_of
from kgray.derivation.view import View
from kgray.ingest.case import ReadEpisode
from kgray.ingest.committer import Committer
from kgray.ingest.correct import retracted
from kgray.ingest.extract import read_episode
from kgray.ingest.loop import decided_change
from kgray.ingest.parts import Parts
from kgray.ingest.state import GroupState, name_vectors
from kgray.ledger import conflict, dumped_episodes, find, standing
from kgray.records import Draft, Episode
from kgray.times import Instant


class Preview:
    """What each draft would change in the current store; nothing is accepted or written.

    Each draft is decided on the stored graph, without the drafts before it, with the sequence that it
    would be given.
    """

    def __init__(self, parts: Parts, *, replace: bool = False) -> None:
        """replace: an id that is taken with other content would be retracted and accepted anew."""
        self._parts, self._replace = parts, replace
        self._committer = Committer(parts)  # for the groups' states: nothing is posted
        self._now = times.now()
        self._views: dict[str, View] = {}
        self._next: dict[str, int] = {}
        self._seen: dict[str, str] = {}  # id -> content hash, of the drafts before

    def conflict(self, draft: Draft) -> str | None:
        """Return why accepting would refuse the draft; None where it would not."""
        held = self._held(draft)
        taken = held is not None and held != draft.content_sha256 and not self._replace
        return conflict(draft, held) if taken and held is not None else None

    async def rows(self, draft: Draft) -> list[dump.DumpRow]:
        """Return what the draft would change, as dump rows with "op"; [] where it is accepted already.

        Raises ContentError for a text that the model refuses.
        """
        group, store = draft.group, self._parts.store
        if self._held(draft) == draft.content_sha256:
            return []
        self._seen[draft.id] = draft.content_sha256
        replaced = find(store, group, draft.id).episodes
        next_sequence = self._next.setdefault(group, store.heads([group])[group].last + 1) + len(replaced)
        self._next[group] = next_sequence + 1
        episode = prospective(draft, next_sequence, self._now)
        extraction = await read_episode(self._parts, episode)
        read = ReadEpisode(episode=episode, extraction=extraction)
        recorded_at = self._committer.record_time(group)
        if replaced:
            return await self._replacing(read, set(replaced), recorded_at)
        view = self._view(group)
        change = await decided_change(self._parts, read, await self._committer.state(group), None)
        return list(changes(view, change, recorded_at))

    def _held(self, draft: Draft) -> str | None:
        held = standing(self._parts.store, draft.group, [draft.id])
        return self._seen.get(draft.id) or held.get(draft.id)

    def _view(self, group: str) -> View:
        if group not in self._views:
            self._views[group] = View(records_of(self._parts.store, group), lambda _: [])
        return self._views[group]

    async def _replacing(
        self, read: ReadEpisode, replaced: set[int], recorded_at: Instant
    ) -> list[dump.DumpRow]:
        """Return the difference of retracting the old episodes and adding the new one."""
        parts, group = self._parts, read.episode.group
        before = self._view(group)
        left = retracted(before.records, replaced)
        state = GroupState(left, name_vectors(parts.store, group), parts.embedder.dimensions)
        state.fetch_vectors(parts.store, parts.pipeline.judging)
        change = await decided_change(parts, read, state, None)
        after = View(with_change(left, change, recorded_at), lambda _: [])
        episodes = list(dumped_episodes(parts.store, group))
        kept = [episode for episode in episodes if episode.sequence not in replaced]
        return list(difference(dump.rows(before, episodes), dump.rows(after, [*kept, read.episode])))


# The fields that identify a dump row, by type (default: id).
_IDENTITY = {
    "episode": ("id", "sequence"),
    "mention": ("episode", "ordinal"),
    "evidence": ("episode", "ordinal"),
    "relation": ("name",),
    "verdict": ("a", "b"),
    "merge": ("sequence",),
}


def difference(before: Iterable[dump.DumpRow], after: Iterable[dump.DumpRow]) -> Iterator[dump.DumpRow]:
    """Yield the rows that differ between two dumps, with "op": remove, add or change."""
    was, now = ({_identity(row): row for row in rows} for rows in (before, after))
    for key, row in was.items():
        if key not in now:
            yield {**row, "op": "remove"}
    for key, row in now.items():
        if key not in was:
            yield {**row, "op": "add"}
        elif row != was[key]:
            yield {**row, "op": "change"}


def _identity(row: dump.DumpRow) -> tuple[object, ...]:
    return (row["type"], *(row[name] for name in _IDENTITY.get(row["type"], ("id",))))


def changes(before: View, change: EpisodeChange, recorded_at: Instant) -> Iterator[dump.DumpRow]:
    """Yield the change as dump rows with "op" (add, change, remove), in the order of the pipeline."""
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


def _entity_rows(before: View, derived: Difference) -> Iterator[dump.DumpRow]:
    for entity in derived.entities:
        op = "change" if entity.id in before.graph.entities else "add"
        yield {**dump.entity_row(entity), "op": op}


def _fact_rows(before: View, derived: Difference) -> Iterator[dump.DumpRow]:
    touched = {f.statement for f in derived.facts} & before.graph.statements.keys()
    known = {f.id for f in before.graph.facts_of(sorted(touched))}
    for fact in derived.facts:
        yield {**dump.fact_row(fact), "op": "change" if fact.id in known else "add"}
    for fact in before.facts(derived.gone_facts):
        yield {**dump.fact_row(fact), "op": "remove"}


def prospective(draft: Draft, sequence: int, now: Instant) -> Episode:
    """Return the episode that a draft would become."""
    return Episode(
        group=draft.group,
        sequence=sequence,
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
