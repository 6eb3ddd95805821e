"""The ledger: the state of each entry of a group's log, and which groups are held (R19, R22, R24, R25).

An entry is an episode or an operation (a correction). Functions that write (acceptance, corrections, retries,
holds) use short durable transactions of `Store.append`; the others only read. So every store behaves alike.

A group is held if its work fails although its content is valid and all servers answer, as after a defect. A
process that ingests tries again after a pause, which grows with each failure. Other groups continue.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, TypeAlias

from kgray.domain import times
from kgray.domain.records import WITHDRAWALS, Draft, Episode, Operation, check_group, is_storable
from kgray.domain.times import Instant
from kgray.errors import InputError, KgrayError
from kgray.ports import Appending, GroupCounts, Patch, Store
from kgray.schema import kinds, reads, rows
from kgray.schema.kinds import EPISODES, HOLDS, OPERATIONS, EpisodeRow, HoldRow, Kind, R, Read
from kgray.schema.reads import EPISODES_IN_STATE, OPERATIONS_IN_STATE, EpisodeHeadRow, TakenRow

_END_OF_TIME = 1 << 62  # later than every instant
_STATEMENT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # an id as of `records.make_id`
FIRST_PAUSE_S, _PAUSE_GROWTH, LONGEST_PAUSE_S = 5, 4, 1800  # of a held group


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The outcome of accepting one draft."""

    # duplicate: same id and content, nothing changed; conflict: same id, other content, and no `replace`
    status: Literal["accepted", "duplicate", "conflict"]
    id: str
    sequence: int
    reason: str = ""  # of a conflict
    retracted: bool = False  # a duplicate of an episode that was retracted, and stays so
    timed: bool = True  # False: the draft had no reference time, so acceptance set one


class NoneAccepted(InputError):
    """A conflict among drafts of `accept(whole=True)`; `outcomes` has the outcome of each draft."""

    def __init__(self, outcomes: list[Acceptance]) -> None:
        super().__init__("the id of a row is taken by other content, and no row was accepted")
        self.outcomes = outcomes


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
    """Append drafts in order, in one transaction; durable on return (R19). Returns the outcome of each draft.

    A live row with the same id and content is a duplicate. With other content it is a conflict, unless
    `replace` is set: then the retraction of the row gets a sequence, and the draft the next one. A retracted
    row with the same id and content is a duplicate too, unless `again`, or unless it was retracted to be
    replaced. Raises InputError for an invalid group name.

    now     the reference time of drafts without one; bulk: use the backfill lane
    whole   accept all or none: a conflict raises NoneAccepted
    """
    for draft in drafts:
        check_group(draft.group)
    if not drafts:
        return []
    ids, groups = [draft.id for draft in drafts], sorted({draft.group for draft in drafts})

    def append(log: Appending) -> list[Acceptance]:
        outcomes = _Intake(log, replaces=replace, again=again, bulk=bulk).accept(drafts, ids, now)
        if whole and any(outcome.status == "conflict" for outcome in outcomes):
            raise NoneAccepted(outcomes)  # the transaction is rolled back
        return outcomes

    return store.append(groups, append)


class AcceptancePreview:
    """Predicts the outcomes of several calls of `accept`, as an `Appending` that stores nothing."""

    def __init__(self, store: Store, *, replace: bool, again: bool) -> None:
        self._store, self._intake = store, _Intake(self, replaces=replace, again=again, bulk=False)
        self._last: dict[str, int] = {}

    def of(self, drafts: Sequence[Draft], *, now: Instant = 0) -> list[Acceptance]:
        """Return the outcome of each draft, as `accept` does."""
        with self._store.reading():
            return self._intake.accept(drafts, [draft.id for draft in drafts], now)

    def rows(self, read: Read[R], group: str, values: Sequence[Any] = ()) -> Iterable[R]:
        """Return the rows of a declared read."""
        return self._store.rows(read, group, values)

    def take_sequence(self, group: str) -> int:
        """Return the sequence that the next entry would get."""
        last = self._last[group] if group in self._last else self._store.heads([group])[group].last
        self._last[group] = last + 1
        return last + 1

    def put(self, kind: Kind[R], group: str, row: R) -> None:
        """Put nothing."""


def request(store: Store, operation: Operation) -> int:
    """Append a correction and return its sequence; durable on return."""
    check_group(operation.group)
    return store.append([operation.group], lambda log: _append_operation(log, operation).sequence)


def request_reading_again(
    store: Store, operation: Operation, context_readers: Collection[int]
) -> tuple[int, list[int]]:
    """Append a removal that also covers the context readers, and accept these again after it.

    context_readers: the sequences of `episodes_with_context`. Returns the removal's sequence and theirs.
    """
    group = operation.group

    def append(log: Appending) -> tuple[int, list[int]]:
        episodes = log.rows(reads.EPISODES_AT, group, sorted(context_readers))
        live = [row for row in episodes if row.retired_at is None]
        ids = (*operation.episodes, *(row.id for row in live))
        removal = _append_operation(log, replace(operation, episodes=ids))
        sequences = [log.take_sequence(group) for _ in live]
        for row, sequence in zip(live, sequences, strict=True):
            log.put(EPISODES, group, rows.accepted_again(row, sequence))
        return removal.sequence, sequences

    return store.append([group], append)


class _Intake:
    """Accepts drafts into a log; it remembers the ids that it has read or appended."""

    def __init__(
        self, log: Appending | AcceptancePreview, *, replaces: bool, again: bool, bulk: bool
    ) -> None:
        self._log, self._replaces, self._again, self._bulk = log, replaces, again, bulk
        self._withdrawals: dict[str, tuple[Operation, ...]] = {}
        self._retractions: dict[str, set[Instant | None]] = {}  # read at the first draft of a retracted row
        self._latest: dict[tuple[str, str], TakenRow] = {}  # group, id -> the last row with this id

    def accept(self, drafts: Sequence[Draft], ids: Sequence[str], now: Instant) -> list[Acceptance]:
        """Accept drafts in order. ids: their ids, because each access to `Draft.id` costs a hash."""
        pairs = list(zip(drafts, ids, strict=True))
        for group in sorted({draft.group for draft in drafts}):
            if group not in self._withdrawals:
                self._withdrawals[group] = pending_withdrawals(self._log, group)
            unread = [
                id_ for draft, id_ in pairs if draft.group == group and (group, id_) not in self._latest
            ]
            self._latest |= {(group, row.id): row for row in self._log.rows(reads.TAKEN_IDS, group, unread)}
        return [self._accept(draft, id_, now) for draft, id_ in pairs]

    def _accept(self, draft: Draft, id_: str, now: Instant) -> Acceptance:
        group, content = draft.group, draft.content_sha256
        row, withdrawals = self._latest.get((group, id_)), self._withdrawals[group]
        if row is not None and row.retired_at is None and not _covering(withdrawals, row):
            sequence, stored = row.sequence, row.content_sha256
            if stored == content:
                return Acceptance(status="duplicate", id=id_, sequence=sequence)
            if not self._replaces:
                reason = (
                    f"id {draft.client_id!r} is taken by other content: stored sha256 {stored}, "
                    f"submitted sha256 {content}; with replace, the old one is retracted"
                )
                return Acceptance(status="conflict", id=id_, sequence=sequence, reason=reason)
            retraction = Operation(group=group, kind="retract", episodes=(id_,), replaces=True)
            self._withdrawals[group] = (*withdrawals, _append_operation(self._log, retraction))
        elif row and row.content_sha256 == content and not self._again and self._stays_retracted(group, row):
            return Acceptance(status="duplicate", id=id_, sequence=row.sequence, retracted=True)
        sequence = self._log.take_sequence(group)
        episode = rows.new_episode_row(
            draft, id_=id_, content_sha256=content, sequence=sequence, now=now, bulk=self._bulk
        )
        self._log.put(EPISODES, group, episode)
        self._latest[group, id_] = TakenRow(
            sequence, id_, draft.client_id, draft.source, content, None, kinds.ACCEPTED
        )
        timed = draft.reference_time is not None
        return Acceptance(status="accepted", id=id_, sequence=sequence, timed=timed)

    def _stays_retracted(self, group: str, row: TakenRow) -> bool:
        """Return True if a retired row was retracted, and neither replaced nor removed."""
        if covering := _covering(self._withdrawals[group], row):
            return all(removal.kind == "retract" and not removal.replaces for removal in covering)
        if group not in self._retractions:  # the times of retractions that replaced nothing (R19)
            operations = self._log.rows(OPERATIONS_IN_STATE, group, [kinds.DONE])
            results = ((row.recorded_at, row.result or "{}") for row in operations if row.kind == "retract")
            self._retractions[group] = {at for at, text in results if not json.loads(text).get("replaces")}
        return row.retired_at in self._retractions[group]


def _append_operation(log: Appending | AcceptancePreview, operation: Operation) -> Operation:
    numbered = replace(operation, sequence=log.take_sequence(operation.group))
    log.put(OPERATIONS, operation.group, rows.operation_row(numbered))
    return numbered


def retry_failed(store: Store, group: str | None, ids: Sequence[str], *, now: Instant) -> int:
    """Give failed episodes of a group (None: of all groups) new sequences; return their number.

    ids: the ids of the episodes to retry, our ids or the client's; empty: all. The failed rows are retired at
    `now`, and stay as history. Episodes that a pending correction covers are not retried.
    """
    if not (groups := list(dict.fromkeys(row.episode.group for row in failures(store, group)))):
        return 0
    return store.append(groups, lambda log: sum(_retry(log, name, set(ids), now) for name in groups))


def _retry(log: Appending, group: str, ids: set[str], now: Instant) -> int:
    pending = pending_withdrawals(log, group)
    chosen = (row for row in _failed_rows(log, group) if not ids or ids & {row.id, row.client_id})
    if failed := [row for row in chosen if not _covering(pending, row)]:
        retired_at = log.take_record_time(group, now)
        retirements = tuple((row.sequence, retired_at) for row in failed)
        log.patch(group, Patch(kind=EPISODES, columns=("retired_at",), rows=retirements))
        for row in failed:
            log.put(EPISODES, group, rows.accepted_again(row, log.take_sequence(group)))
    return len(failed)


RowSource: TypeAlias = "Store | Appending | AcceptancePreview"


def pending_withdrawals(source: RowSource, group: str) -> tuple[Operation, ...]:
    """Return the pending retractions and removals. The episodes that they cover count as retired already."""
    pending = source.rows(OPERATIONS_IN_STATE, group, [kinds.PENDING])
    return tuple(rows.operation(group, row) for row in pending if row.kind in WITHDRAWALS)


def _covering(operations: Iterable[Operation], row: TakenRow | EpisodeRow | Episode) -> list[Operation]:
    """Return those of the operations that withdraw an episode."""
    later = (operation for operation in operations if row.sequence < operation.sequence)
    ids = {row.id, row.client_id}
    return [o for o in later if o.everything or o.source == row.source or not ids.isdisjoint(o.episodes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearers:
    """The kinds of items that bear an id. episodes: sequences of live episodes with this id or client id."""

    episodes: tuple[int, ...] = ()
    entity: bool = False
    statement: bool = False
    fact: bool = False

    def __bool__(self) -> bool:
        return self != Bearers()


def find(store: Store, group: str, identifier: str) -> Bearers:
    """Return the items that bear an id now."""
    if not is_storable(identifier):
        return Bearers()

    def exists(*tables: Read[Any]) -> bool:
        return any(next(iter(store.rows(read, group, [identifier])), None) is not None for read in tables)

    with store.reading():
        episodes = _rows_with_ids(store, group, [identifier])
        bearers = Bearers(
            episodes=tuple(sorted({row.sequence for row in episodes if row.retired_at is None})),
            entity=exists(reads.ENTITY_IDS, reads.SHOWN_OF),
            statement=exists(reads.FACTS_OF_STATEMENTS, reads.SHOWN_BY_STATEMENTS),
            fact=exists(reads.FACTS_OF),
        )
        if not bearers and sequences_with_evidence(store, group, identifier):  # a statement without facts
            return Bearers(statement=True)
        return bearers


def sequences_with_evidence(store: Store, group: str, statement: str) -> list[int]:
    """Return the sequences of the episodes with evidence of a statement. It scans the group's statements."""
    if not _STATEMENT.fullmatch(statement):
        return []
    records = store.rows(reads.STATEMENTS, group)
    return [row.sequence for row in records if any(text.endswith(f" {statement}") for text in row.statements)]


def named_episodes(store: Store, operation: Operation) -> list[TakenRow]:
    """Return the episodes that a retraction or removal names, in any state, by sequence."""
    group, source = operation.group, operation.source
    with store.reading():
        episodes = _rows_with_ids(store, group, operation.episodes)
        if source is not None and is_storable(source):
            episodes += store.rows(reads.TAKEN_IN_SOURCES, group, [source])
        if operation.everything:
            episodes += store.rows(reads.TAKEN, group)
    return sorted({row.sequence: row for row in episodes}.values(), key=lambda row: row.sequence)


def sequences_of(store: Store, group: str, ids: Sequence[str]) -> list[int]:
    """Return the sequences of the episodes with these ids, ours or the client's, sorted; retired ones too."""
    return sorted({row.sequence for row in _rows_with_ids(store, group, ids)})


def live_ids(store: Store, operation: Operation) -> list[str]:
    """Return the ids of the named episodes that were not retired, in any state, in the group's order."""
    return list(dict.fromkeys(row.id for row in named_episodes(store, operation) if row.retired_at is None))


def episodes_with_context(
    store: Store, group: str, removed: Collection[int], limit: int
) -> list[EpisodeHeadRow]:
    """Return the heads of live episodes whose previous context had one of the removed episodes (R22).

    removed: sequences; limit: the length of a context. After earlier removals a context reaches further back
    than when the model read it, so the list may contain a superfluous episode.
    """
    readers = []
    sources: dict[str, list[tuple[Instant, int, Instant]]] = {}  # reference time, sequence, retirement
    for row in store.rows(reads.EPISODE_HEADS, group):
        earlier = sources.setdefault(row.source, [])
        place = bisect_right(earlier, (row.reference_time, row.sequence, 0))
        was_read = row.state in {kinds.EXTRACTED, kinds.COMMITTED} and row.kind != "triples"
        if was_read and row.retired_at is None and row.sequence not in removed:
            ended_at = -1 if row.ended_at is None else row.ended_at
            context = (sequence for _, sequence, retired in reversed(earlier[:place]) if retired > ended_at)
            if any(sequence in removed for sequence in islice(context, limit)):
                readers.append(row)
        retired_at = _END_OF_TIME if row.retired_at is None else row.retired_at
        earlier.insert(place, (row.reference_time, row.sequence, retired_at))
    return readers


def result(store: Store, group: str, sequence: int) -> Mapping[str, Any] | None:
    """Return an operation's result; None if it is pending or does not exist."""
    for row in store.rows(reads.OPERATIONS_AT, group, [sequence]):
        if row.state != kinds.PENDING and row.result is not None:
            answer: Mapping[str, Any] = json.loads(row.result)
            return answer
    return None


def previous(store: Store, episodes: Sequence[Episode], limit: int) -> dict[int, list[Episode]]:
    """Return the previous context (R22), oldest first, of each of these episodes of a group, by sequence."""
    contexts: dict[int, list[Episode]] = {episode.sequence: [] for episode in episodes}
    if limit <= 0 or not episodes:
        return contexts
    group, incomplete, count = episodes[0].group, list(episodes), limit
    with store.reading():
        pending = pending_withdrawals(store, group)  # an episode that they cover is no context (R27)
        cache = {episode.sequence: episode for episode in episodes}
        while incomplete:
            earlier = store.said_before(incomplete, count)
            unread = {n for sequences in earlier.values() for n in sequences} - cache.keys()
            cache |= {episode.sequence: episode for episode in episodes_at(store, group, sorted(unread))}
            for sequence, sequences in earlier.items():
                context = [cache[n] for n in sequences if n in cache and not _covering(pending, cache[n])]
                contexts[sequence] = context[:limit][::-1]
            short = {n for n, context in contexts.items() if len(context) < limit}
            incomplete = [e for e in incomplete if e.sequence in short and len(earlier[e.sequence]) == count]
            count *= 4
    return contexts


def pending_groups(store: Store) -> dict[str, bool]:
    """Return the groups with pending entries, sorted; True if any of these entries is in the live lane."""
    return store.newly_pending(0)[0]


def pending(store: Store, group: str, limit: int, *, after: int = 0) -> list[Episode | Operation]:
    """Return the next pending entries of a group after a sequence, in order, `limit` at most."""
    with store.reading():
        places = store.pending_sequences(group, after, limit)
        episodes = store.rows(reads.EPISODES_AT, group, [n for n, is_episode in places if is_episode])
        operations = store.rows(reads.OPERATIONS_AT, group, [n for n, is_episode in places if not is_episode])
        # A store without snapshots may return an entry that ended between the two reads.
        entries: list[Episode | Operation] = [
            rows.episode(group, row) for row in episodes if row.state in (kinds.ACCEPTED, kinds.EXTRACTED)
        ]
        entries += [rows.operation(group, row) for row in operations if row.state == kinds.PENDING]
    return sorted(entries, key=lambda entry: entry.sequence)


def episodes_at(store: Store, group: str, sequences: Sequence[int]) -> list[Episode]:
    """Return the episodes with these sequences, in any state, in the given order, each once."""
    stored = store.rows(reads.EPISODES_AT, group, unique) if (unique := [*dict.fromkeys(sequences)]) else ()
    return [rows.episode(group, row) for row in stored]


def dumped_episodes(
    store: Store, group: str, known_at: Instant | None = None, *, sequences: Sequence[int] | None = None
) -> Iterator[Episode]:
    """Yield the dump's episodes, all or of these sequences: ended, not retired, by `known_at` (None: now)."""
    return (rows.episode(group, row) for row in dumped_rows(store, group, known_at, sequences))


def dumped_rows(
    store: Store, group: str, known_at: Instant | None, sequences: Sequence[int] | None = None
) -> Iterator[kinds.EpisodeRow]:
    """Yield the rows of `dumped_episodes`."""
    at = _END_OF_TIME if known_at is None else known_at
    read = (EPISODES.all, group) if sequences is None else (reads.EPISODES_AT, group, sequences)
    for row in store.rows(*read):
        has_ended = row.state >= kinds.COMMITTED and row.ended_at is not None and row.ended_at <= at
        if has_ended and (row.retired_at is None or row.retired_at > at):
            yield row


def _rows_with_ids(store: Store, group: str, ids: Sequence[str]) -> list[TakenRow]:
    """Return the episodes whose own id or client id is listed."""
    storable = [id_ for id_ in dict.fromkeys(ids) if is_storable(id_)]
    tables = (reads.TAKEN_IDS, reads.TAKEN_CLIENT_IDS) if storable else ()
    return [row for read in tables for row in store.rows(read, group, storable)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an episode failed by its own content (R24)."""

    kind: str  # the error's class: Refused, InvalidAnswer
    message: str
    raw: str = ""  # the last answer of the model
    attempts: int = 1  # of this sequence and of the sequences that it was retried from


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedEpisode:
    """A row of `kgray failures`."""

    episode: Episode
    failure: Failure


def failures(store: Store, group: str | None = None) -> list[FailedEpisode]:
    """Return the failed episodes that were not retried or retracted, by group and sequence."""
    if group is None:
        failed = store.everywhere(EPISODES_IN_STATE, [kinds.FAILED])
        episodes = [(name, row) for name, row in failed if row.retired_at is None]
    else:
        episodes = [(group, row) for row in _failed_rows(store, group)]
    return [
        FailedEpisode(
            episode=rows.episode(name, row),
            failure=Failure(
                kind=row.failure_kind or "", message=row.failure_message or "", raw=row.failure_raw or "",
                attempts=row.attempts,
            ),
        )
        for name, row in episodes
    ]  # fmt: skip


def _failed_rows(source: RowSource, group: str) -> list[EpisodeRow]:
    return [row for row in source.rows(EPISODES_IN_STATE, group, [kinds.FAILED]) if row.retired_at is None]


def held(store: Store) -> dict[str, HoldRow]:
    """Return the groups that are held, by name, including groups whose pause is over."""
    return {group: row for group, row in store.everywhere(HOLDS.all) if row.tries}


def counts(store: Store, group: str | None = None) -> dict[str, GroupCounts]:
    """Return `Store.counts` with the number of entries in held groups."""
    with store.reading():
        groups = store.counts(group)
        for name in held(store).keys() & groups.keys():
            groups[name] = replace(groups[name], held=groups[name].accepted + groups[name].extracted)
    return groups


def hold(store: Store, group: str, sequence: int, error: BaseException, last: HoldRow | None) -> HoldRow:
    """Hold a group, with a longer pause than last time. An unknown error may quote texts: store its class."""
    now, tries = times.now(), 1 if last is None else last.tries + 1
    reason = str(error) if isinstance(error, KgrayError) else f"{type(error).__name__}, a fault of kgray"
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * _PAUSE_GROWTH ** min(tries - 1, 9)) * times.SECOND
    row = HoldRow(0, sequence, now if last is None else last.since, now + pause, tries, reason)
    _put_hold(store, group, row)
    return row


def release(store: Store, group: str) -> None:
    """End a hold: the group's work went well, or its records were repaired."""
    _put_hold(store, group, HoldRow(0, 0, 0, 0, 0, ""))


def end_pause(store: Store, group: str | None) -> None:
    """End the pause of a group (None: of all groups), so that a process that ingests tries again at once."""
    for name, row in held(store).items():
        if group in (None, name):
            _put_hold(store, name, row._replace(again_at=0))


def _put_hold(store: Store, group: str, row: HoldRow) -> None:
    store.append([group], lambda log: log.put(HOLDS, group, row))
