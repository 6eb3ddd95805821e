"""The ledger: the state of each entry of a group's log (R19, R22, R24, R25).

Drafts and corrections are appended, and failed episodes retried, in short durable transactions; rows are
found by id, source or moment. All of it is `Store.append` and declared reads, so every store behaves alike.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, TypeAlias

from kgray import kinds, rows
from kgray.errors import InputError
from kgray.kinds import EPISODES, EPISODES_IN_STATE, OPERATIONS, OPERATIONS_IN_STATE, Kind, Read, Row
from kgray.ports import Appending, Patch, Store
from kgray.records import WITHDRAWALS, Draft, Episode, Operation, check_group, is_storable
from kgray.times import Instant

# -------------------------------------------------------------------------------- appending


_NEVER = 1 << 62  # later than every instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The outcome of accepting one draft.

    status  accepted | duplicate (same id and content: nothing changed) | conflict (same id, other
            content, no `replace`; `reason` names both hashes)
    retracted   a duplicate of an episode that was retracted, and stays so
    """

    status: Literal["accepted", "duplicate", "conflict"]
    id: str
    sequence: int | None = None
    reason: str = ""
    retracted: bool = False
    timed: bool = True  # False: no reference time was given, and acceptance gave one


def conflict(draft: Draft, stored: str) -> str:
    """Return the reason to refuse a draft whose id is taken by other content; stored: that content's hash."""
    return (
        f"id {draft.client_id!r} is taken by other content: stored sha256 {stored}, "
        f"submitted sha256 {draft.content_sha256}; with replace, the old one is retracted"
    )


class NoneAccepted(InputError):
    """A conflict among drafts of which all or none were to be accepted. found: what `accept` returns else."""

    def __init__(self, found: list[Acceptance]) -> None:
        """Keep the outcomes, none of which came to be."""
        super().__init__("the id of a row is taken by other content, and no row was accepted")
        self.found = found


def accept(
    store: Store,
    drafts: Sequence[Draft],
    *,
    now: Instant,
    replace: bool = False,
    again: bool = False,
    bulk: bool = False,
    whole: bool = False,
) -> list[Acceptance]:
    """Append drafts in order, in one transaction; durable on return (R19). Returns one outcome a draft.

    A live row with the same id and content is a duplicate. With other content it is a conflict, unless
    `replace`: then its retraction takes a sequence, and the draft the one after it. A retracted row with the
    same id and content is a duplicate too, unless `again`, or unless it was retracted to be replaced.

    now     the reference time of drafts that have none
    bulk    use the backfill lane
    whole   accept all or none
    Raises InputError for an invalid group name, NoneAccepted for a conflict where `whole`; nothing is
    accepted then.
    """
    for draft in drafts:
        check_group(draft.group)
    if not drafts:
        return []
    ids, groups = [draft.id for draft in drafts], sorted({draft.group for draft in drafts})

    def append(log: Appending) -> list[Acceptance]:
        how = {"now": now, "replaces": replace, "again": again, "bulk": bulk}
        found = _accepted({group: _GroupLog(log, group) for group in groups}, drafts, ids, **how)
        if whole and any(one.status == "conflict" for one in found):
            raise NoneAccepted(found)  # what was put goes with the transaction
        return found

    return store.append(groups, append)


class Foresight:
    """A log that takes nothing: it tells what `accept` would do, call after call, and what it would give."""

    def __init__(self, store: Store, *, replace: bool, again: bool) -> None:
        """replace, again: as of `accept`."""
        self._store, self._how = store, {"replaces": replace, "again": again, "bulk": False}
        self._groups: dict[str, _GroupLog] = {}
        self._last: dict[str, int] = {}

    def of(self, drafts: Sequence[Draft], *, now: Instant = 0) -> list[Acceptance]:
        """Return one outcome a draft, as `accept` does."""
        with self._store.reading():
            for group in {draft.group for draft in drafts} - self._groups.keys():
                self._last[group] = self._store.heads([group])[group].last
                self._groups[group] = _GroupLog(self, group)
            return _accepted(self._groups, drafts, [draft.id for draft in drafts], now=now, **self._how)

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> Iterable[Row]:
        """Return the rows of a declared read."""
        return self._store.rows(read, group, values)

    def take_sequence(self, group: str) -> int:
        """Return the sequence that the next entry would get."""
        self._last[group] += 1
        return self._last[group]

    def put(self, kind: Kind, group: str, row: Row) -> None:
        """Put nothing."""


def request(store: Store, operation: Operation) -> int:
    """Append a correction and return its sequence; durable on return."""
    check_group(operation.group)
    return store.append([operation.group], lambda log: _requested(log, operation).sequence)


def request_reading_again(
    store: Store, operation: Operation, followers: Collection[int]
) -> tuple[int, list[int]]:
    """Append a removal that takes these episodes too, which are accepted anew behind it, in one transaction.

    Returns the removal's sequence, and those of the episodes that are accepted anew, in their former order.
    """
    group = operation.group

    def append(log: Appending) -> tuple[int, list[int]]:
        found = [row for row in log.rows(kinds.EPISODES_AT, group, sorted(followers)) if row[14] is None]
        both = (*operation.episodes, *(row[1] for row in found))
        asked = _requested(log, replace(operation, episodes=both))
        again = [log.take_sequence(group) for _ in found]
        for row, sequence in zip(found, again, strict=True):
            log.put(EPISODES, group, rows.accepted_again(row, sequence))
        return asked.sequence, again

    return store.append([group], append)


def _accepted(
    groups: Mapping[str, _GroupLog],
    drafts: Sequence[Draft],
    ids: Sequence[str],
    **how: Any,  # noqa: ANN401
) -> list[Acceptance]:
    """Accept drafts in order. ids: theirs, which cost a hash each time; how: as of `_GroupLog.accept`."""
    found = list(zip(drafts, ids, strict=True))
    for group in sorted({draft.group for draft in drafts}):
        groups[group].meet(id_ for draft, id_ in found if draft.group == group)
    return [groups[draft.group].accept(draft, id_, **how) for draft, id_ in found]


class _GroupLog:
    """One group in an accepting transaction: what it held, and what the transaction has appended."""

    def __init__(self, log: Appending | Foresight, group: str) -> None:
        self._log, self._group = log, group
        self._removals = Removals.of(log, group)
        self._retractions: set[Instant] | None = None  # read where a draft meets a retracted row
        self._taken: dict[str, Row] = {}  # id -> the row that it means: the last one with it

    def meet(self, ids: Iterable[str]) -> None:
        """Read what these ids mean."""
        if fresh := [id_ for id_ in dict.fromkeys(ids) if id_ not in self._taken]:
            self._taken |= {row[1]: row for row in self._log.rows(kinds.TAKEN_IDS, self._group, fresh)}

    def accept(
        self, draft: Draft, id_: str, now: Instant, *, replaces: bool, again: bool, bulk: bool
    ) -> Acceptance:
        content = draft.content_sha256
        row = self._taken.get(id_)
        if row is not None and row[5] is None and not self._removals.cover(row[0], row[1:3], row[3]):
            sequence, stored = row[0], row[4]
            if stored == content:
                return Acceptance(status="duplicate", id=id_, sequence=sequence)
            if not replaces:
                reason = conflict(draft, stored)
                return Acceptance(status="conflict", id=id_, sequence=sequence, reason=reason)
            asked = Operation(group=draft.group, kind="retract", episodes=(id_,), replaces=True)
            self._removals = Removals((*self._removals.operations, _requested(self._log, asked)))
        elif row is not None and row[4] == content and not again and self._stays_retracted(row):
            return Acceptance(status="duplicate", id=id_, sequence=row[0], retracted=True)
        sequence = self._log.take_sequence(self._group)
        time = now if draft.reference_time is None else draft.reference_time
        new = rows.new_episode_row(
            draft, id=id_, content_sha256=content, sequence=sequence, time=time, bulk=bulk
        )
        self._log.put(EPISODES, self._group, new)
        self._taken[id_] = (sequence, id_, draft.client_id, draft.source, content, None, kinds.ACCEPTED)
        timed = draft.reference_time is not None
        return Acceptance(status="accepted", id=id_, sequence=sequence, timed=timed)

    def _stays_retracted(self, row: Row) -> bool:
        """Whether a row that is not live was retracted, and neither to be replaced nor to be removed."""
        asked = self._removals.operations
        if covering := [one for one in asked if Removals.covers(one, row[0], row[1:3], row[3])]:
            return all(one.kind == "retract" and not one.replaces for one in covering)
        if self._retractions is None:  # record times of those that were carried out and do not replace (R19)
            found = self._log.rows(OPERATIONS_IN_STATE, self._group, [kinds.DONE])
            done = (row for row in found if row[1] == "retract")
            self._retractions = {row[4] for row in done if not json.loads(row[5]).get("replaces")}
        return row[5] in self._retractions


def _requested(log: Appending | Foresight, operation: Operation) -> Operation:
    """Append a correction; return it with its sequence."""
    asked = replace(operation, sequence=log.take_sequence(operation.group))
    log.put(OPERATIONS, operation.group, rows.operation_row(asked))
    return asked


def retry(store: Store, group: str | None, ids: Sequence[str], *, now: Instant) -> int:
    """Give failed episodes of a group (None: of all) new sequences; return how many.

    ids     only those with these ids, ours or the client's; () = all
    now     the record time at which the failed rows are retired; they stay as history
    Episodes that a pending correction will take away are not retried.
    """
    groups = list(dict.fromkeys(row.episode.group for row in failures(store, group)))
    if not groups:
        return 0
    return store.append(groups, lambda log: sum(_retry(log, name, set(ids), now) for name in groups))


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


# -------------------------------------------------------------------------------- looking up


RowSource: TypeAlias = "Store | Appending | Foresight"


@dataclass(frozen=True, slots=True)
class Removals:
    """The retractions and removals of a group that were requested and not carried out yet, in order.

    Entries accepted after one of them are not affected by it. Acceptance, previous context and retry must
    ignore the rows that they will take away.
    """

    operations: tuple[Operation, ...] = ()

    @classmethod
    def of(cls, source: RowSource, group: str) -> Removals:
        """Read those of a group."""
        found = source.rows(OPERATIONS_IN_STATE, group, [kinds.PENDING])
        return cls(tuple(rows.operation(group, row) for row in found if row[1] in WITHDRAWALS))

    def cover(self, sequence: int, names: tuple[str | None, ...], source: str) -> bool:
        """Whether one of them takes away the row with one of these ids."""
        return any(self.covers(asked, sequence, names, source) for asked in self.operations)

    @staticmethod
    def covers(asked: Operation, sequence: int, names: tuple[str | None, ...], source: str) -> bool:
        """Whether the operation takes away the row with one of these ids."""
        named = asked.everything or asked.source == source or any(name in asked.episodes for name in names)
        return sequence < asked.sequence and named


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearers:
    """What an id refers to. episodes: sequences of live episodes that have it as own or client's id."""

    episodes: tuple[int, ...] = ()
    entity: bool = False
    statement: bool = False
    fact: bool = False

    def __bool__(self) -> bool:
        return self != Bearers()


def find(store: Store, group: str, identifier: str) -> Bearers:
    """Return what has this id, as known now."""
    if not is_storable(identifier):
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


def named(store: Store, operation: Operation) -> list[Row]:
    """Return the episodes that a retraction or removal names, each once, by sequence (columns of TAKEN_BY).

    Retired ones and all states are included; so are those accepted after the operation: the caller leaves out
    greater sequences.
    """
    group, source = operation.group, operation.source
    with store.reading():
        found = _taken_by(store, group, operation.episodes)
        if source is not None and is_storable(source):
            found += store.rows(kinds.TAKEN_IN_SOURCES, group, [source])
        if operation.everything:
            found += store.rows(kinds.TAKEN, group)
    return sorted({row[0]: row for row in found}.values(), key=lambda row: row[0])


def sequences_of(store: Store, group: str, ids: Sequence[str]) -> list[int]:
    """Return the sequences of the episodes with these ids, ours or the client's, sorted; retired ones too."""
    return sorted({row[0] for row in _taken_by(store, group, ids)})


def live_ids(store: Store, operation: Operation) -> list[str]:
    """Return the ids of the named episodes that were not retired, in any state, in the group's order."""
    return list(dict.fromkeys(row[1] for row in named(store, operation) if row[5] is None))


def read_with(store: Store, group: str, gone: Collection[int], limit: int) -> list[Row]:
    """Return the live episodes that were extracted with one of these as previous context (R22).

    By sequence, with the columns of EPISODE_HEADS. limit: how many episodes are another's previous context.
    Earlier removals made room in contexts, so one may be listed that had another in this one's place.
    """
    found = []
    said: dict[str, list[tuple[Instant, int, Instant]]] = {}  # source -> (said at, sequence, retired at)
    for row in store.rows(kinds.EPISODE_HEADS, group):
        sequence, source, said_at, state, ended_at, retired_at, kind = (row[0], *row[3:])
        before = said.setdefault(source, [])
        last = bisect_right(before, (said_at, sequence, 0))
        was_read = state in {kinds.EXTRACTED, kinds.COMMITTED} and kind != "triples" and retired_at is None
        if was_read and sequence not in gone:
            there = (at for _, at, out in reversed(before[:last]) if ended_at is None or out > ended_at)
            if any(at in gone for at in islice(there, limit)):
                found.append(row)
        before.insert(last, (said_at, sequence, _NEVER if retired_at is None else retired_at))
    return found


def result(store: Store, group: str, sequence: int) -> Mapping[str, Any] | None:
    """Return an operation's result; None while it is pending or where there is no such operation."""
    for row in store.rows(kinds.OPERATIONS_AT, group, [sequence]):
        if row[3] != kinds.PENDING:
            answer: Mapping[str, Any] = json.loads(row[5])
            return answer
    return None


def previous(store: Store, episode: Episode, limit: int) -> list[Episode]:
    """Return the previous context (R22), oldest first, at most `limit`.

    An episode that a requested retraction or removal takes away is left out already: it is carried out
    before all that is pending (R27).
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
                if not removals.cover(said.sequence, (said.id, said.client_id), said.source)
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
    """Return the rows with one of these ids, their own or the client's (columns of TAKEN_BY)."""
    asked = [id_ for id_ in dict.fromkeys(ids) if is_storable(id_)]
    if not asked:
        return []
    return [
        row for read in (kinds.TAKEN_IDS, kinds.TAKEN_CLIENT_IDS) for row in store.rows(read, group, asked)
    ]


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

    def as_dict(self, id_: str, client_id: str | None, group: str) -> dict[str, Any]:
        """Return the form that `kgray failures --json` prints; of the episode with these ids."""
        why = {"class": self.kind, "message": self.message, "attempts": self.attempts}
        return {"id": id_, "client_id": client_id, **why, "reply": self.raw or None, "group": group}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedEpisode:
    """A row of `kgray failures`."""

    episode: Episode
    failure: Failure


def failures(store: Store, group: str | None = None) -> list[FailedEpisode]:
    """Return the failed episodes that were not retried or retracted, by group and sequence."""
    if group is None:
        found = [row for row in store.everywhere(EPISODES_IN_STATE, [kinds.FAILED]) if row[1][14] is None]
    else:
        found = [(group, row) for row in failed_rows(store, group)]
    return [
        FailedEpisode(
            episode=rows.episode(name, row),
            failure=Failure(kind=row[15], message=row[16], raw=row[17], attempts=row[12]),
        )
        for name, row in found
    ]


def failed_rows(source: RowSource, group: str) -> list[Row]:
    """Return the rows of a group's failed episodes that were not retired, by sequence."""
    found = source.rows(EPISODES_IN_STATE, group, [kinds.FAILED])
    return [row for row in found if row[14] is None]
