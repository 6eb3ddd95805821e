"""Look-ups in the ledger: rows by id, source, order or moment; failed episodes; pending removals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kgray import kinds, rows
from kgray.kinds import EPISODES_IN_STATE, FAILED, OPERATIONS_IN_STATE, PENDING, Read, Row
from kgray.ports import Store
from kgray.records import Episode, Operation
from kgray.times import Instant


class RowSource(Protocol):
    """Reads declared rows: a store, or a transaction that appends to it."""

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> Iterable[Row]:
        """Return the rows of a declared read."""
        ...


@dataclass(frozen=True, slots=True)
class Removals:
    """The pending retractions and removals of a group, in order.

    Entries accepted after one of them are not affected by it. Acceptance, previous context and retry must
    ignore the rows that they will take away.
    """

    operations: tuple[Operation, ...] = ()

    @classmethod
    def of(cls, source: RowSource, group: str) -> Removals:
        """Read those of a group."""
        found = source.rows(OPERATIONS_IN_STATE, group, [PENDING])
        return cls(tuple(rows.operation(group, row) for row in found if row[1] in {"retract", "remove"}))

    def cover(
        self, sequence: int, names: tuple[str | None, ...], source: str, before: int | None = None
    ) -> bool:
        """Whether one of them (with a sequence below `before`) takes away the row with one of these ids."""
        return any(
            sequence < asked.sequence
            and (before is None or asked.sequence < before)
            and (asked.everything or asked.source == source or any(name in asked.episodes for name in names))
            for asked in self.operations
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearers:
    """What an id refers to. episodes: sequences of live episodes that have it as own or client's id."""

    episodes: tuple[int, ...] = ()
    entity: bool = False
    statement: bool = False
    fact: bool = False

    def __bool__(self) -> bool:
        """Whether anything has the id."""
        return self != Bearers()


def find(store: Store, group: str, identifier: str) -> Bearers:
    """Return what has this id, as known now."""
    if not _is_storable(identifier):
        return Bearers()

    def there(*reads: Read) -> bool:
        return any(next(iter(store.rows(read, group, [identifier])), None) is not None for read in reads)

    with store.reading():
        taken = _taken_by(store, group, [identifier])
        return Bearers(
            episodes=tuple(sorted({row[0] for row in taken if row[5] is None})),
            entity=there(kinds.ENTITY_IDS, kinds.SHOWN_OF),
            statement=there(kinds.FACTS_OF_STATEMENTS, kinds.STATEMENTS_SHOWN),
            fact=there(kinds.FACTS_OF),
        )


def sequences_of(
    store: Store,
    group: str,
    *,
    ids: Sequence[str] = (),
    source: str | None = None,
    everything: bool = False,
) -> list[int]:
    """Return the sequences of the rows an operation names, sorted; retired ones and all states included.

    Rows accepted after the operation are named too: the caller leaves out greater sequences.
    """
    with store.reading():
        found = {row[0] for row in _taken_by(store, group, ids)}
        if source is not None and _is_storable(source):
            found |= {row[0] for row in store.rows(kinds.SEQUENCES_OF_SOURCE, group, [source])}
        if everything:
            found |= {row[0] for row in store.rows(kinds.EPISODE_HEADS, group)}
    return sorted(found)


def result(store: Store, group: str, sequence: int) -> Mapping[str, Any] | None:
    """Return an operation's result; None while it is pending or where there is no such operation."""
    for row in store.rows(kinds.OPERATIONS_AT, group, [sequence]):
        if row[3] != PENDING:
            answer: Mapping[str, Any] = json.loads(row[5])
            return answer
    return None


def previous(store: Store, episode: Episode, limit: int) -> list[Episode]:
    """Return the previous context (R22), oldest first, at most `limit`.

    An episode that a pending retraction or removal, asked before this one was accepted, takes
    away is left out already, because the plain loop would not see it either.
    """
    if limit <= 0:
        return []
    with store.reading():
        removals = Removals.of(store, episode.group)
        asked = limit
        while True:
            found = store.said_before(episode, asked)
            kept = [
                said
                for said in found
                if not removals.cover(said.sequence, (said.id, said.client_id), said.source, episode.sequence)
            ]
            if len(kept) >= limit or len(found) < asked:
                return kept[:limit][::-1]
            asked *= 4


def episodes_at(store: Store, group: str, sequences: Sequence[int]) -> list[Episode]:
    """Return the episodes with these sequences, in any state, in the order asked, each once."""
    asked = list(dict.fromkeys(sequences))
    return [rows.episode(group, row) for row in store.rows(kinds.EPISODES_AT, group, asked)] if asked else []


def dumped_episodes(store: Store, group: str, known_at: Instant | None = None) -> Iterator[Episode]:
    """Yield the episodes of the dump, by sequence: ended, and not retired, by `known_at` (None: now)."""
    for row in store.rows(kinds.ALL["episodes"], group):
        ended_at, retired_at = row[13], row[14]
        if row[10] < kinds.COMMITTED:
            continue
        if known_at is None:
            shown = retired_at is None
        else:
            shown = ended_at <= known_at and (retired_at is None or retired_at > known_at)
        if shown:
            yield rows.episode(group, row)


def _taken_by(store: Store, group: str, ids: Sequence[str]) -> list[Row]:
    """Return the rows with one of these ids, their own or the client's (columns of TAKEN_IDS)."""
    asked = [id_ for id_ in dict.fromkeys(ids) if _is_storable(id_)]
    if not asked:
        return []
    return [
        row for read in (kinds.TAKEN_IDS, kinds.TAKEN_CLIENT_IDS) for row in store.rows(read, group, asked)
    ]


def _is_storable(text: str) -> bool:
    """Whether the text can be stored at all: one with a lone surrogate cannot, so it is no id."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# -------------------------------------------------------------------------------- failed episodes (R24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an episode failed by its own content (R24).

    kind        the error's class: Refused, InvalidAnswer
    raw         the last answer of the model
    attempts    of this sequence and of those it was retried from
    """

    kind: str
    message: str
    raw: str = ""
    attempts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedEpisode:
    """A row of `kgray failures`."""

    episode: Episode
    failure: Failure


def failures(store: Store, group: str | None = None) -> list[FailedEpisode]:
    """Return the failed episodes that were not retried or retracted, by group and sequence."""
    with store.reading():
        return [
            _failed_episode(name, row)
            for name in (store.heads() if group is None else [group])
            for row in failed_rows(store, name)
        ]


def failed_rows(source: RowSource, group: str) -> list[Row]:
    """Return the rows of a group's failed episodes that were not retired, by sequence."""
    found = source.rows(EPISODES_IN_STATE, group, [FAILED])
    return [row for row in found if row[14] is None]


def _failed_episode(group: str, row: Row) -> FailedEpisode:
    kind, message, raw = row[15:18]
    failure = Failure(kind=kind, message=message, raw=raw, attempts=row[12])
    return FailedEpisode(episode=rows.episode(group, row), failure=failure)
