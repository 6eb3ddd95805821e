"""Failed episodes, and taking them up again (R24)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgray import rows
from kgray.kinds import EPISODES, EPISODES_IN_STATE, FAILED, Row
from kgray.ledger.removals import Removals, RowReader
from kgray.ports import Appending, Patch, Store
from kgray.records import Episode
from kgray.times import Instant


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
            for row in _failed_rows(store, name)
        ]


def retry(store: Store, group: str | None, ids: Sequence[str], *, now: Instant) -> int:
    """Give failed episodes of a group (None: of all) new sequences; return how many.

    ids     only those with these ids, ours or the client's; () = all
    now     when: the failed rows leave the ledger at that record time, and stay as history
    One that a pending correction takes away is left to it.
    """
    groups = [name for name in (store.heads() if group is None else [group]) if _failed_rows(store, name)]

    def append(log: Appending) -> int:
        return sum(_retry(log, name, set(ids), now) for name in groups)

    return store.append(groups, append) if groups else 0


def _retry(log: Appending, group: str, ids: set[str], now: Instant) -> int:
    removals = Removals.of(log, group)
    chosen = [
        row
        for row in _failed_rows(log, group)
        if (not ids or ids & {row[1], row[8]}) and not removals.cover(row[0], (row[1], row[8]), row[2])
    ]
    if chosen:
        retired_at = log.take_record_time(group, now)
        retired = tuple((row[0], retired_at) for row in chosen)
        log.patch(group, Patch(kind=EPISODES, columns=("retired_at",), rows=retired))
        for row in chosen:
            log.put(EPISODES, group, rows.accepted_again(row, log.take_sequence(group)))
    return len(chosen)


def _failed_rows(source: RowReader, group: str) -> list[Row]:
    """Return the rows of a group's failed episodes that were not retired, by sequence."""
    found = source.rows(EPISODES_IN_STATE, group, [FAILED])
    return [row for row in found if row[14] is None]


def _failed_episode(group: str, row: Row) -> FailedEpisode:
    kind, message, raw = row[15:18]
    failure = Failure(kind=kind, message=message, raw=raw, attempts=row[12])
    return FailedEpisode(episode=rows.episode(group, row), failure=failure)
