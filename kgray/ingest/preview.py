"""What an episode would change: the rows of `kgray add --dry-run`."""

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
    """What each draft would change in the current store; nothing is accepted or written.

    Each draft is decided on the stored graph, without the drafts before it, with the sequence that it
    would be given.
    """

    def __init__(self, parts: Parts, *, replace: bool = False, again: bool = False) -> None:
        """Answer as `Memory.add_many` would with these options."""
        self._parts, self._foresight = parts, Foresight(parts.store, replace=replace, again=again)
        self._committer = Committer(parts, writes=False)  # for the groups' states
        self._now = times.now()
        self._views: dict[str, tuple[View, list[dump.DumpRow]]] = {}

    async def rows(self, draft: Draft) -> list[dump.DumpRow]:
        """Return what the draft would change, as dump rows with "op"; [] where it is accepted already.

        Raises InputError where its id is taken, ContentError for a text that the model refuses.
        """
        group, store = draft.group, self._parts.store
        (answer,) = self._foresight.of([draft])
        if answer.status == "conflict":
            raise InputError(answer.reason, field="id")
        if answer.sequence is None or answer.status == "duplicate":
            return []
        replaced = find(store, group, draft.id).episodes
        episode = draft.episode(answer.sequence, now=self._now, state="committed")
        read = ReadEpisode(episode=episode, extraction=await EpisodeReading(self._parts, episode).read())
        recorded_at = await self._committer.record_time(group)
        if group not in self._views:
            view = View(records_of(store, group), lambda _: [])
            self._views[group] = view, list(dump.rows(view, []))
        before, rows_before = self._views[group]
        if not replaced:
            left, gone, state = before.records, [], await self._committer.state(group)
        else:
            left = retracted(before.records, replaced).records
            gone = [e for e in dumped_episodes(store, group) if e.sequence in replaced]
            stored = stored_records(store, group)
            names = stored_names(store, group, stored.saved_at)
            state = GroupState(left, names, self._parts.embedder.dimensions, stored.vectors)
        parts = self._parts

        async def attempt(answers: Answers) -> Decision:
            return decide(read, state, answers, parts.rules)

        async def ask(request: QuestionRequest) -> tuple[Answer, ...]:
            return (await parts.resolve(request)).answers  # which are not journaled

        embed = partial(embedded, parts.embedder)
        look_up = partial(self._committer.statement_vectors, group)
        change, _ = await settle(read, parts, attempt=attempt, embed=embed, look_up=look_up, ask=ask)
        after = View(with_change(left, change, recorded_at), lambda _: [])
        return difference([*map(dump.episode_row, gone), *rows_before], list(dump.rows(after, [episode])))


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


def difference(before: Iterable[dump.DumpRow], after: Iterable[dump.DumpRow]) -> list[dump.DumpRow]:
    """Return the rows that differ between two dumps, with "op": add, change or remove; types in order."""
    was, now = (
        {(row["type"], *(row[name] for name in _IDENTITY[row["type"]])): row for row in rows}
        for rows in (before, after)
    )
    found = [
        {**row, "op": "change" if key in was else "add"} for key, row in now.items() if row != was.get(key)
    ]
    found += [{**row, "op": "remove"} for key, row in was.items() if key not in now]
    return sorted(found, key=lambda row: list(_IDENTITY).index(row["type"]))
