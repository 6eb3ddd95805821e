"""The changes that an episode would make: the rows of `kgray add --dry-run`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from kgray import times
from kgray.derivation import dump
from kgray.derivation.change import retracted, with_change
from kgray.derivation.stored import View, records_of, stored_names, stored_records
from kgray.errors import InputError
from kgray.ingest.calls import EpisodeReading, settle
from kgray.ingest.committer import Committer
from kgray.ingest.correct import carried_out
from kgray.ingest.decide import decide
from kgray.ingest.parts import Parts
from kgray.ingest.state import Answers, Decision, GroupState, ReadEpisode
from kgray.ledger import Foresight, dumped_episodes, find, named
from kgray.ports import Answer, QuestionRequest, Store, embedded
from kgray.records import Draft, Operation


class Preview:
    """The changes that each draft would make in the current store; nothing is accepted or written.

    Each draft is decided on the stored graph, without the other drafts, and has the sequence that it would
    get.
    """

    def __init__(self, parts: Parts, *, replace: bool = False, again: bool = False) -> None:
        """Answer as `Memory.add_many` would with these options."""
        self._parts, self._foresight = parts, Foresight(parts.store, replace=replace, again=again)
        self._committer = Committer(parts, writes=False)  # for the groups' states
        self._accepted_at = times.now()
        self._views: dict[str, tuple[View, list[dump.DumpRow]]] = {}

    async def rows(self, draft: Draft) -> list[dump.DumpRow]:
        """Return the changes of a draft, as dump rows with "op"; [] if the draft is accepted already.

        Raises InputError where its id is taken, ContentError for a text that the model refuses.
        """
        group, store = draft.group, self._parts.store
        (answer,) = self._foresight.of([draft])
        if answer.status == "conflict":
            raise InputError(answer.reason, field="id")
        if answer.sequence is None or answer.status == "duplicate":
            return []
        replaced = find(store, group, draft.id).episodes
        episode = draft.episode(answer.sequence, now=self._accepted_at, state="committed")
        read = ReadEpisode(episode=episode, extraction=await EpisodeReading(self._parts, episode).read())
        recorded_at = await self._committer.record_time(group)
        if group not in self._views:
            view = View(records_of(store, group), lambda _: [])
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
        new_view = View(with_change(records, change, recorded_at), lambda _: [])
        return difference(
            [*map(dump.episode_row, replaced_episodes), *stored_rows], list(dump.rows(new_view, [episode]))
        )


def correction_rows(store: Store, operation: Operation) -> list[dump.DumpRow]:
    """Return what a correction or retraction would change. Raises NotFound or InputError."""
    group = operation.group
    if operation.withdraws:
        gone = {row.sequence for row in named(store, operation)}
        before = records_of(store, group)
        after = retracted(before, gone).records
        episodes = [one for one in dumped_episodes(store, group) if one.sequence in gone]
    else:
        operation = replace(operation, sequence=store.heads([group])[group].last + 1)
        _, _, before, after = carried_out(store, operation, times.now())
        episodes = []
    was, now = (View(records, lambda _: []) for records in (before, after))
    return difference(dump.rows(was, episodes), dump.rows(now, []))


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
