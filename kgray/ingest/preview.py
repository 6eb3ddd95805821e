"""The changes that an episode would make: the rows of `kgray add --dry-run`."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from functools import partial

from kgray.domain import times
from kgray.domain.graph import Entity
from kgray.domain.records import Draft, Episode, EpisodeHead, GroupRecords, Operation, Verdict
from kgray.errors import InputError
from kgray.graph import dump
from kgray.graph.change import retracted, with_change
from kgray.graph.group import GroupGraph
from kgray.graph.names import connected
from kgray.graph.stored import View, records_around, records_of, stored_names, stored_records
from kgray.ingest.calls import EpisodeReading, Parts, settle
from kgray.ingest.committer import Committer
from kgray.ingest.correct import carried_out
from kgray.ingest.decide import decide
from kgray.ingest.state import Answers, Decision, GroupState, ReadEpisode
from kgray.ports import Answer, QuestionRequest, Store
from kgray.ports.ingest import embedded
from kgray.schema import kinds, reads
from kgray.storage.ledger import AcceptancePreview, dumped_episodes, find, named_episodes


class Preview:
    """The changes that each draft would make in the current store; nothing is accepted or written.

    Each draft is decided on the stored graph, without the other drafts, and has the sequence that it would
    get.
    """

    def __init__(self, parts: Parts, *, replace: bool = False, again: bool = False) -> None:
        """Predict `Memory.add_many` with these options."""
        self._parts, self._acceptances = parts, AcceptancePreview(parts.store, replace=replace, again=again)
        self._committer = Committer(parts, writes=False)  # for the groups' states
        self._accepted_at = times.now()
        self._views: dict[str, tuple[View, list[dump.DumpRow]]] = {}

    async def rows(self, draft: Draft) -> list[dump.DumpRow]:
        """Return the changes of a draft, as dump rows with "op"; [] if the draft is accepted already.

        Raises InputError where its id is taken, ContentError for a text that the model refuses.
        """
        group, store = draft.group, self._parts.store
        (answer,) = self._acceptances.of([draft])
        if answer.status == "conflict":
            raise InputError(answer.reason, field="id")
        if answer.status == "duplicate":
            return []
        replaced = find(store, group, draft.id).episodes
        episode = draft.episode(answer.sequence, now=self._accepted_at, state="committed")
        read = ReadEpisode(episode=episode, extraction=await EpisodeReading(self._parts, episode).read())
        recorded_at = await self._committer.record_time(group)
        if group not in self._views:
            view = View(records_of(store, group), _no_episodes)
            self._views[group] = view, list(dump.rows(view, []))
        stored_view, stored_rows = self._views[group]
        if not replaced:
            records, replaced_episodes, state = stored_view.records, [], await self._committer.state(group)
        else:
            records = retracted(stored_view.records, replaced).records
            replaced_episodes = [e for e in dumped_episodes(store, group) if e.sequence in replaced]
            stored = stored_records(store, group)
            names = stored_names(store, group, stored.saved_at)
            state = GroupState(records, names, self._parts.embedder.dimensions, stored.vectors)
        parts = self._parts

        async def attempt(answers: Answers) -> Decision:
            return decide(read, state, answers, parts.rules)

        async def ask(request: QuestionRequest) -> tuple[Answer, ...]:
            return (await parts.resolve(request)).answers  # which are not journaled

        embed = partial(embedded, parts.embedder)
        look_up = partial(self._committer.statement_vectors, group)
        change, _ = await settle(read, parts, attempt=attempt, embed=embed, look_up=look_up, ask=ask)
        new_view = View(with_change(records, change, recorded_at), _no_episodes)
        return difference(
            [*map(dump.episode_row, replaced_episodes), *stored_rows], list(dump.rows(new_view, [episode]))
        )


def _no_episodes(_sequences: object) -> list[Episode]:
    """Return no episodes: a dump takes them as an argument."""
    return []


def correction_rows(store: Store, operation: Operation) -> list[dump.DumpRow]:
    """Return the changes that a correction would make. Raises NotFound or InputError."""
    if operation.withdraws:
        return _retraction_rows(store, operation)
    operation = replace(operation, sequence=store.heads([operation.group])[operation.group].last + 1)
    correction = carried_out(store, operation, times.now())
    old_view = View(correction.before, _no_episodes, correction.graph)
    return difference(dump.rows(old_view, []), dump.rows(View(correction.after, _no_episodes), []))


def _retraction_rows(store: Store, operation: Operation) -> list[dump.DumpRow]:
    """Return the changes that a retraction would make, derived from the records that it touches.

    An entity may have far more mentions than the retracted statements have evidence. So entities are derived
    from mentions alone, and evidence is read only around the retracted statements and the renamed entities.
    """
    group, withdrawn_sequences = operation.group, {row.sequence for row in named_episodes(store, operation)}
    withdrawn = records_of(store, group, within=sorted(withdrawn_sequences))
    heads = [
        EpisodeHead(row.sequence, row.id, row.reference_time, row.ended_at or 0)
        for row in store.rows(reads.EPISODE_HEADS, group)
        if row.state == kinds.COMMITTED and row.retired_at is None
    ]
    entities = sorted(connected(withdrawn.operations, {mention.entity for mention in withdrawn.mentions}))
    mentioning = {
        row.sequence for row in store.rows(reads.MENTIONS_OF, group, entities)
    } | withdrawn_sequences
    mentions = replace(records_of(store, group, within=sorted(mentioning)), evidence=[], heads=heads)
    old_entities, new_entities = (
        _entities(records) for records in (mentions, retracted(mentions, withdrawn_sequences).records)
    )
    renamed = {
        id_
        for id_, entity in old_entities.items()
        if id_ in new_entities and new_entities[id_].name != entity.name
    }

    def choose(graph: GroupGraph) -> list[str]:
        places = graph.places()
        chosen = {statement for place, statement in places.items() if place[0] in withdrawn_sequences}
        about = (s.id for s in graph.statements.values() if not renamed.isdisjoint((s.subject, s.object)))
        return [*chosen.union(about)]

    around = records_around(store, group, choose, episodes=withdrawn_sequences, entities=renamed)
    views = _before_and_after(store, replace(around, heads=heads), withdrawn, withdrawn_sequences)
    old, new = (
        [
            *(row for row in dump.rows(view, []) if row["type"] != "entity"),
            *map(dump.entity_row, shown.values()),
        ]
        for view, shown in zip(views, (old_entities, new_entities), strict=True)
    )
    old += map(dump.episode_row, dumped_episodes(store, group, sequences=sorted(withdrawn_sequences)))
    return difference(old, new)


def _entities(records: GroupRecords) -> dict[str, Entity]:
    graph = GroupGraph.build(records)
    return {id_: note.shown() for id_, note in graph.entities.items()}


def _before_and_after(
    store: Store, before: GroupRecords, withdrawn: GroupRecords, withdrawn_sequences: Set[int]
) -> tuple[View, View]:
    """Return views of the records around retracted episodes, before and after the retraction."""
    statements = {evidence.statement for evidence in withdrawn.evidence}
    # Only a verdict on these statements or of these episodes can be dropped. The evidence of the others is
    # not loaded, so `retracted` might drop them wrongly.
    affected, unaffected = list[Verdict](), list[Verdict]()
    for verdict in before.verdicts:
        is_affected = verdict.sequence in withdrawn_sequences or not statements.isdisjoint(
            (verdict.a, verdict.b)
        )
        (affected if is_affected else unaffected).append(verdict)
    after = retracted(replace(before, verdicts=affected), withdrawn_sequences).records
    verdicts = sorted([*after.verdicts, *unaffected], key=lambda verdict: (verdict.sequence, verdict.ordinal))
    after = replace(after, verdicts=verdicts)
    relations = {evidence.relation for evidence in withdrawn.evidence}
    unused = relations - {evidence.relation for evidence in after.evidence}
    for fact in store.rows(kinds.FACTS.all, before.group) if unused else ():
        if fact.statement not in statements:
            unused.discard(fact.relation)
        if not unused:
            break
    if unused:  # only all records tell whether the relation remains
        before = records_of(store, before.group)
        after = retracted(before, withdrawn_sequences).records
    old_view, new_view = (View(records, _no_episodes) for records in (before, after))
    for relation in relations - unused:
        new_view.graph.relations.use(relation)
    return old_view, new_view


# The types of dump rows in the order of the pipeline, with the fields that identify a row.
_IDENTITY = {
    "episode": ("id", "sequence"),
    "entity": ("id",),
    "mention": ("episode", "ordinal"),
    "relation": ("name",),
    "statement": ("id",),
    "evidence": ("episode", "ordinal"),
    "verdict": ("a", "b"),
    "merge": ("sequence",),
    "fact": ("id",),
}


def difference(old_rows: Iterable[dump.DumpRow], new_rows: Iterable[dump.DumpRow]) -> list[dump.DumpRow]:
    """Return the rows that differ between two dumps, with "op": add, change or remove; types in order."""
    old, new = (
        {(row["type"], *(row[name] for name in _IDENTITY[row["type"]])): row for row in rows}
        for rows in (old_rows, new_rows)
    )
    changed = [
        {**row, "op": "change" if key in old else "add"} for key, row in new.items() if row != old.get(key)
    ]
    changed += [{**row, "op": "remove"} for key, row in old.items() if key not in new]
    return sorted(changed, key=lambda row: list(_IDENTITY).index(row["type"]))
