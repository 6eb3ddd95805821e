"""What is appended to the log, in short durable transactions: drafts (R19), corrections, retries (R24)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kgray import rows
from kgray.kinds import EPISODES, OPERATIONS, TAKEN_IDS, Row
from kgray.ledger.lookup import Removals, failed_rows
from kgray.ports import Appending, Patch, Store
from kgray.records import Draft, Operation, check_group
from kgray.times import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The outcome of accepting one draft.

    status  accepted | duplicate (same id and content: nothing changed) | conflict (same id, other
            content, no `replace`; `reason` names both hashes)
    """

    status: Literal["accepted", "duplicate", "conflict"]
    id: str
    sequence: int | None = None
    reason: str = ""
    timed: bool = True  # False: no reference time was given, and acceptance gave one


def conflict(draft: Draft, stored: str) -> str:
    """Return the reason to refuse a draft whose id is taken by other content; stored: that content's hash."""
    return (
        f"id {draft.client_id!r} is taken by other content: stored sha256 {stored}, "
        f"submitted sha256 {draft.content_sha256}; use --replace to retract the old one"
    )


def accept(
    store: Store, drafts: Sequence[Draft], *, now: Instant, replace: bool = False, bulk: bool = False
) -> list[Acceptance]:
    """Append drafts in order, in one transaction; durable on return (R19). Returns one outcome a draft.

    A live row with the same id and content is a duplicate. With other content it is a conflict, unless
    `replace`: then its retraction takes a sequence, and the draft the one after it.

    now     the reference time of drafts that have none
    bulk    use the backfill lane
    Raises InputError for an invalid group name; nothing is accepted then.
    """
    for draft in drafts:
        check_group(draft.group)
    if not drafts:
        return []
    ids = [draft.id for draft in drafts]
    wanted: dict[str, list[str]] = {}
    for draft, id_ in zip(drafts, ids, strict=True):
        wanted.setdefault(draft.group, []).append(id_)

    def append(log: Appending) -> list[Acceptance]:
        groups = {group: _GroupLog(log, group, names) for group, names in sorted(wanted.items())}
        return [
            groups[draft.group].accept(draft, id_, now, replaces=replace, bulk=bulk)
            for draft, id_ in zip(drafts, ids, strict=True)
        ]

    return store.append(sorted(wanted), append)


def request(store: Store, operation: Operation) -> int:
    """Append a correction and return its sequence; durable on return."""
    check_group(operation.group)
    return store.append([operation.group], lambda log: _requested(log, operation).sequence)


def standing(store: Store, group: str, ids: Sequence[str]) -> dict[str, str]:
    """Return episode id -> content hash of the live rows with these ids, whatever their state.

    A row that a pending retraction or removal takes away is not live: see `accept`.
    """
    with store.reading():
        removals = Removals.of(store, group)
        taken = _last_with_id(store.rows(TAKEN_IDS, group, list(dict.fromkeys(ids)))) if ids else {}
        return {id_: row[4] for id_, row in taken.items() if _is_live(row, removals)}


class _GroupLog:
    """One group in an accepting transaction: what it held, and what the transaction has appended."""

    def __init__(self, log: Appending, group: str, ids: Iterable[str]) -> None:
        self._log, self._group = log, group
        self._removals = Removals.of(log, group)
        self._taken = _last_with_id(log.rows(TAKEN_IDS, group, list(dict.fromkeys(ids))))

    def accept(self, draft: Draft, id_: str, now: Instant, *, replaces: bool, bulk: bool) -> Acceptance:
        content = draft.content_sha256
        row = self._taken.get(id_)
        if row is not None and _is_live(row, self._removals):
            sequence, stored = row[0], row[4]
            if stored == content:
                return Acceptance(status="duplicate", id=id_, sequence=sequence)
            if not replaces:
                reason = conflict(draft, stored)
                return Acceptance(status="conflict", id=id_, sequence=sequence, reason=reason)
            asked = _requested(self._log, Operation(group=draft.group, kind="retract", episodes=(id_,)))
            self._removals = Removals((*self._removals.operations, asked))
        sequence = self._log.take_sequence(self._group)
        time = now if draft.reference_time is None else draft.reference_time
        new = rows.new_episode_row(
            draft, id=id_, content_sha256=content, sequence=sequence, time=time, bulk=bulk
        )
        self._log.put(EPISODES, self._group, new)
        self._taken[id_] = (sequence, id_, draft.client_id, draft.source, content, None)
        timed = draft.reference_time is not None
        return Acceptance(status="accepted", id=id_, sequence=sequence, timed=timed)


def _requested(log: Appending, operation: Operation) -> Operation:
    """Append a correction; return it with its sequence."""
    asked = replace(operation, sequence=log.take_sequence(operation.group))
    log.put(OPERATIONS, operation.group, rows.operation_row(asked))
    return asked


def _last_with_id(found: Iterable[Row]) -> dict[str, Row]:
    """Return id -> the row that the id means: the last one with it (columns of TAKEN_IDS)."""
    return {row[1]: row for row in found}


def _is_live(row: Row, removals: Removals) -> bool:
    sequence, id_, client_id, source, _, retired_at = row
    return retired_at is None and not removals.cover(sequence, (id_, client_id), source)


def retry(store: Store, group: str | None, ids: Sequence[str], *, now: Instant) -> int:
    """Give failed episodes of a group (None: of all) new sequences; return how many.

    ids     only those with these ids, ours or the client's; () = all
    now     the record time at which the failed rows are retired; they stay as history
    Episodes that a pending correction will take away are not retried.
    """
    groups = [name for name in (store.heads() if group is None else [group]) if failed_rows(store, name)]

    def append(log: Appending) -> int:
        return sum(_retry(log, name, set(ids), now) for name in groups)

    return store.append(groups, append) if groups else 0


def _retry(log: Appending, group: str, ids: set[str], now: Instant) -> int:
    removals = Removals.of(log, group)
    chosen = [
        row
        for row in failed_rows(log, group)
        if (not ids or ids & {row[1], row[8]}) and not removals.cover(row[0], (row[1], row[8]), row[2])
    ]
    if chosen:
        retired_at = log.take_record_time(group, now)
        retired = tuple((row[0], retired_at) for row in chosen)
        log.patch(group, Patch(kind=EPISODES, columns=("retired_at",), rows=retired))
        for row in chosen:
            log.put(EPISODES, group, rows.accepted_again(row, log.take_sequence(group)))
    return len(chosen)
