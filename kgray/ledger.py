"""The ledger: the state of each entry of a group's log, and which groups are held (R19, R22, R24, R25).

Drafts and corrections are appended, and failed episodes retried, in short durable transactions; rows are
found by id, source or moment. All of it is `Store.append` and declared reads, so every store behaves alike.

A group is held while its work fails for a reason that is neither its content nor a server. Every process sees
the row: whoever ingests tries again when its pause is over, and each failure makes the next pause longer;
`kgray retry` ends the pause. The other groups go on.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import islice
from typing import Any, Literal, TypeAlias

from kgray import kinds, reads, rows, times
from kgray.errors import InputError, KgrayError
from kgray.kinds import EPISODES, HOLDS, OPERATIONS, EpisodeRow, HoldRow, Kind, R, Read
from kgray.ports import Appending, GroupCounts, Patch, Store
from kgray.reads import EPISODES_IN_STATE, OPERATIONS_IN_STATE, EpisodeHeadRow, TakenRow
from kgray.records import WITHDRAWALS, Draft, Episode, Operation, check_group, is_storable
from kgray.times import Instant

_NEVER = 1 << 62  # later than every instant
_STATEMENT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # an id of one (`records.make_id`)
_FIRST_PAUSE_S, _TIMES, _LONGEST_PAUSE_S = 5, 4, 1800  # of a group that is held


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The outcome of accepting one draft."""

    # duplicate: same id and content, nothing changed; conflict: same id, other content, and no `replace`
    status: Literal["accepted", "duplicate", "conflict"]
    id: str
    sequence: int | None = None
    reason: str = ""  # of a conflict
    retracted: bool = False  # a duplicate of an episode that was retracted, and stays so
    timed: bool = True  # False: no reference time was given, and acceptance gave one


class NoneAccepted(InputError):
    """A conflict among drafts of which all or none were to be accepted. found: what `accept` returns else."""

    def __init__(self, found: list[Acceptance]) -> None:
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

    now     the reference time of drafts that have none; bulk: use the backfill lane
    whole   accept all or none: a conflict raises NoneAccepted. Raises InputError for a group's wrong name
    """
    for draft in drafts:
        check_group(draft.group)
    if not drafts:
        return []
    ids, groups = [draft.id for draft in drafts], sorted({draft.group for draft in drafts})

    def append(log: Appending) -> list[Acceptance]:
        found = _Accepting(log, replaces=replace, again=again, bulk=bulk).each(drafts, ids, now)
        if whole and any(one.status == "conflict" for one in found):
            raise NoneAccepted(found)  # what was put goes with the transaction
        return found

    return store.append(groups, append)


class Foresight:
    """A log that takes nothing: it tells what `accept` would do, call after call, and what it would give."""

    def __init__(self, store: Store, *, replace: bool, again: bool) -> None:
        self._store, self._accepting = store, _Accepting(self, replaces=replace, again=again, bulk=False)
        self._last: dict[str, int] = {}

    def of(self, drafts: Sequence[Draft], *, now: Instant = 0) -> list[Acceptance]:
        """Return one outcome a draft, as `accept` does."""
        with self._store.reading():
            return self._accepting.each(drafts, [draft.id for draft in drafts], now)

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
    return store.append([operation.group], lambda log: _requested(log, operation).sequence)


def request_reading_again(
    store: Store, operation: Operation, followers: Collection[int]
) -> tuple[int, list[int]]:
    """Append a removal of these too, and accept them anew behind it; return its sequence, and theirs."""
    group = operation.group

    def append(log: Appending) -> tuple[int, list[int]]:
        followed = log.rows(reads.EPISODES_AT, group, sorted(followers))
        found = [row for row in followed if row.retired_at is None]
        both = (*operation.episodes, *(row.id for row in found))
        asked = _requested(log, replace(operation, episodes=both))
        again = [log.take_sequence(group) for _ in found]
        for row, sequence in zip(found, again, strict=True):
            log.put(EPISODES, group, rows.accepted_again(row, sequence))
        return asked.sequence, again

    return store.append([group], append)


class _Accepting:
    """Accepts drafts in a log: what its groups held, and what was appended meanwhile."""

    def __init__(self, log: Appending | Foresight, *, replaces: bool, again: bool, bulk: bool) -> None:
        self._log, self._replaces, self._again, self._bulk = log, replaces, again, bulk
        self._removals: dict[str, tuple[Operation, ...]] = {}
        self._retractions: dict[str, set[Instant | None]] = {}  # read where a draft meets a retracted row
        self._taken: dict[tuple[str, str], TakenRow] = {}  # group, id -> the row that it means: the last

    def each(self, drafts: Sequence[Draft], ids: Sequence[str], now: Instant) -> list[Acceptance]:
        """Accept drafts in order. ids: theirs, which cost a hash each time."""
        found = list(zip(drafts, ids, strict=True))
        for group in sorted({draft.group for draft in drafts}):
            if group not in self._removals:
                self._removals[group] = removals(self._log, group)
            fresh = [id_ for draft, id_ in found if draft.group == group and (group, id_) not in self._taken]
            self._taken |= {(group, row.id): row for row in self._log.rows(reads.TAKEN_IDS, group, fresh)}
        return [self._accept(draft, id_, now) for draft, id_ in found]

    def _accept(self, draft: Draft, id_: str, now: Instant) -> Acceptance:
        group, content = draft.group, draft.content_sha256
        row, waiting = self._taken.get((group, id_)), self._removals[group]
        if row is not None and row.retired_at is None and not _covering(waiting, row):
            sequence, stored = row.sequence, row.content_sha256
            if stored == content:
                return Acceptance(status="duplicate", id=id_, sequence=sequence)
            if not self._replaces:
                reason = (
                    f"id {draft.client_id!r} is taken by other content: stored sha256 {stored}, "
                    f"submitted sha256 {content}; with replace, the old one is retracted"
                )
                return Acceptance(status="conflict", id=id_, sequence=sequence, reason=reason)
            asked = Operation(group=group, kind="retract", episodes=(id_,), replaces=True)
            self._removals[group] = (*waiting, _requested(self._log, asked))
        elif row and row.content_sha256 == content and not self._again and self._stays_retracted(group, row):
            return Acceptance(status="duplicate", id=id_, sequence=row.sequence, retracted=True)
        sequence = self._log.take_sequence(group)
        new = rows.new_episode_row(
            draft, id_=id_, content_sha256=content, sequence=sequence, now=now, bulk=self._bulk
        )
        self._log.put(EPISODES, group, new)
        named = (draft.client_id, draft.source, content)
        self._taken[group, id_] = TakenRow(sequence, id_, *named, None, kinds.ACCEPTED)
        timed = draft.reference_time is not None
        return Acceptance(status="accepted", id=id_, sequence=sequence, timed=timed)

    def _stays_retracted(self, group: str, row: TakenRow) -> bool:
        """Whether a row that is not live was retracted, and neither to be replaced nor to be removed."""
        if covering := _covering(self._removals[group], row):
            return all(one.kind == "retract" and not one.replaces for one in covering)
        if group not in self._retractions:  # when those were carried out that replace nothing (R19)
            found = self._log.rows(OPERATIONS_IN_STATE, group, [kinds.DONE])
            done = ((row.recorded_at, row.result or "{}") for row in found if row.kind == "retract")
            self._retractions[group] = {at for at, said in done if not json.loads(said).get("replaces")}
        return row.retired_at in self._retractions[group]


def _requested(log: Appending | Foresight, operation: Operation) -> Operation:
    asked = replace(operation, sequence=log.take_sequence(operation.group))
    log.put(OPERATIONS, operation.group, rows.operation_row(asked))
    return asked


def retry(store: Store, group: str | None, ids: Sequence[str], *, now: Instant) -> int:
    """Give failed episodes of a group (None: of all) new sequences; return how many.

    ids: only those with these ids, ours or the client's; () = all. The failed rows are retired at `now`, and
    stay as history. Episodes that a pending correction will take away are not retried.
    """
    if not (groups := list(dict.fromkeys(row.episode.group for row in failures(store, group)))):
        return 0
    return store.append(groups, lambda log: sum(_retry(log, name, set(ids), now) for name in groups))


def _retry(log: Appending, group: str, ids: set[str], now: Instant) -> int:
    waiting = removals(log, group)
    chosen = [
        row
        for row in _failed_rows(log, group)
        if (not ids or ids & {row.id, row.client_id}) and not _covering(waiting, row)
    ]
    if chosen:
        retired_at = log.take_record_time(group, now)
        retired = tuple((row.sequence, retired_at) for row in chosen)
        log.patch(group, Patch(kind=EPISODES, columns=("retired_at",), rows=retired))
        for row in chosen:
            log.put(EPISODES, group, rows.accepted_again(row, log.take_sequence(group)))
    return len(chosen)


RowSource: TypeAlias = "Store | Appending | Foresight"


def removals(source: RowSource, group: str) -> tuple[Operation, ...]:
    """Return requested retractions and removals that are not carried out yet; what they take is out."""
    found = source.rows(OPERATIONS_IN_STATE, group, [kinds.PENDING])
    return tuple(rows.operation(group, row) for row in found if row.kind in WITHDRAWALS)


def _covering(asked: Iterable[Operation], row: TakenRow | EpisodeRow | Episode) -> list[Operation]:
    """Return those of these operations that take an episode away."""
    later = (one for one in asked if row.sequence < one.sequence)
    ids = {row.id, row.client_id}
    return [o for o in later if o.everything or o.source == row.source or not ids.isdisjoint(o.episodes)]


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

    def there(*looked_up: Read[Any]) -> bool:
        return any(next(iter(store.rows(read, group, [identifier])), None) is not None for read in looked_up)

    with store.reading():
        taken = _taken_by(store, group, [identifier])
        found = Bearers(
            episodes=tuple(sorted({row.sequence for row in taken if row.retired_at is None})),
            entity=there(reads.ENTITY_IDS, reads.SHOWN_OF),
            statement=there(reads.FACTS_OF_STATEMENTS, reads.SHOWN_BY_STATEMENTS),
            fact=there(reads.FACTS_OF),
        )
        if not found and stated_at(store, group, identifier):  # a statement that has no facts
            return Bearers(statement=True)
        return found


def stated_at(store: Store, group: str, statement: str) -> list[int]:
    """Return the sequences whose evidence was recorded with a statement; a scan where it is an id of one."""
    if not _STATEMENT.fullmatch(statement):
        return []
    told = store.rows(reads.STATEMENTS, group)
    return [row.sequence for row in told if any(one.endswith(f" {statement}") for one in row.statements)]


def named(store: Store, operation: Operation) -> list[TakenRow]:
    """Return the episodes that a retraction or removal names, in any state, by sequence."""
    group, source = operation.group, operation.source
    with store.reading():
        found = _taken_by(store, group, operation.episodes)
        if source is not None and is_storable(source):
            found += store.rows(reads.TAKEN_IN_SOURCES, group, [source])
        if operation.everything:
            found += store.rows(reads.TAKEN, group)
    return sorted({row.sequence: row for row in found}.values(), key=lambda row: row.sequence)


def sequences_of(store: Store, group: str, ids: Sequence[str]) -> list[int]:
    """Return the sequences of the episodes with these ids, ours or the client's, sorted; retired ones too."""
    return sorted({row.sequence for row in _taken_by(store, group, ids)})


def live_ids(store: Store, operation: Operation) -> list[str]:
    """Return the ids of the named episodes that were not retired, in any state, in the group's order."""
    return list(dict.fromkeys(row.id for row in named(store, operation) if row.retired_at is None))


def read_with(store: Store, group: str, gone: Collection[int], limit: int) -> list[EpisodeHeadRow]:
    """Return the heads of live episodes that were extracted with one of these as previous context (R22).

    limit: how many episodes are another's previous context. Earlier removals made room, so one may
    be listed that had another in this one's place.
    """
    found = []
    said: dict[str, list[tuple[Instant, int, Instant]]] = {}  # source -> (said at, sequence, retired at)
    for row in store.rows(reads.EPISODE_HEADS, group):
        before = said.setdefault(row.source, [])
        last = bisect_right(before, (row.reference_time, row.sequence, 0))
        was_read = row.state in {kinds.EXTRACTED, kinds.COMMITTED} and row.kind != "triples"
        if was_read and row.retired_at is None and row.sequence not in gone:
            ended_at = -1 if row.ended_at is None else row.ended_at
            there = (at for _, at, out in reversed(before[:last]) if out > ended_at)
            if any(at in gone for at in islice(there, limit)):
                found.append(row)
        retired_at = _NEVER if row.retired_at is None else row.retired_at
        before.insert(last, (row.reference_time, row.sequence, retired_at))
    return found


def result(store: Store, group: str, sequence: int) -> Mapping[str, Any] | None:
    """Return an operation's result; None while it is pending or where there is no such operation."""
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
    group, left, most = episodes[0].group, list(episodes), limit
    with store.reading():
        waiting = removals(store, group)  # what they take away is no context (R27)
        known = {episode.sequence: episode for episode in episodes}
        while left:
            before = store.said_before(left, most)
            unknown = {n for sequences in before.values() for n in sequences} - known.keys()
            known |= {episode.sequence: episode for episode in episodes_at(store, group, sorted(unknown))}
            for sequence, sequences in before.items():
                context = [known[n] for n in sequences if n in known and not _covering(waiting, known[n])]
                contexts[sequence] = context[:limit][::-1]
            left = [e for e in left if len(contexts[e.sequence]) < limit and len(before[e.sequence]) == most]
            most *= 4
    return contexts


def pending_groups(store: Store) -> dict[str, bool]:
    """Return the groups with anything accepted, extracted or requested, sorted; True = some of it is live."""
    return store.newly_pending(0)[0]


def pending(store: Store, group: str, limit: int, *, after: int = 0) -> list[Episode | Operation]:
    """Return what is next in a group's order behind a sequence, at most `limit`."""
    with store.reading():
        asked = store.pending_sequences(group, after, limit)
        episodes = store.rows(reads.EPISODES_AT, group, [sequence for sequence, its in asked if its])
        operations = store.rows(reads.OPERATIONS_AT, group, [sequence for sequence, its in asked if not its])
        # Where there are no snapshots, an entry may have ended meanwhile.
        found: list[Episode | Operation] = [
            rows.episode(group, row) for row in episodes if row.state in (kinds.ACCEPTED, kinds.EXTRACTED)
        ]
        found += [rows.operation(group, row) for row in operations if row.state == kinds.PENDING]
    return sorted(found, key=lambda entry: entry.sequence)


def episodes_at(store: Store, group: str, sequences: Sequence[int]) -> list[Episode]:
    """Return the episodes with these sequences, in any state, in the order asked, each once."""
    asked = list(dict.fromkeys(sequences))
    return [rows.episode(group, row) for row in store.rows(reads.EPISODES_AT, group, asked)] if asked else []


def dumped_episodes(store: Store, group: str, known_at: Instant | None = None) -> Iterator[Episode]:
    """Yield the episodes of the dump, by sequence: ended, and not retired, by `known_at` (None: now)."""
    at = _NEVER if known_at is None else known_at
    for row in store.rows(EPISODES.all, group):
        has_ended = row.state >= kinds.COMMITTED and row.ended_at is not None and row.ended_at <= at
        if has_ended and (row.retired_at is None or row.retired_at > at):
            yield rows.episode(group, row)


def _taken_by(store: Store, group: str, ids: Sequence[str]) -> list[TakenRow]:
    """Return the rows with one of these ids, their own or the client's."""
    asked = [id_ for id_ in dict.fromkeys(ids) if is_storable(id_)]
    both = (reads.TAKEN_IDS, reads.TAKEN_CLIENT_IDS) if asked else ()
    return [row for read in both for row in store.rows(read, group, asked)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an episode failed by its own content (R24)."""

    kind: str  # the error's class: Refused, InvalidAnswer
    message: str
    raw: str = ""  # the last answer of the model
    attempts: int = 1  # of this sequence and of those it was retried from

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
        everywhere = store.everywhere(EPISODES_IN_STATE, [kinds.FAILED])
        found = [(name, row) for name, row in everywhere if row.retired_at is None]
    else:
        found = [(group, row) for row in _failed_rows(store, group)]
    return [
        FailedEpisode(
            episode=rows.episode(name, row),
            failure=Failure(
                kind=row.failure_kind or "", message=row.failure_message or "", raw=row.failure_raw or "",
                attempts=row.attempts,
            ),
        )
        for name, row in found
    ]  # fmt: skip


def _failed_rows(source: RowSource, group: str) -> list[EpisodeRow]:
    found = source.rows(EPISODES_IN_STATE, group, [kinds.FAILED])
    return [row for row in found if row.retired_at is None]


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a group is held; as a `kinds.HoldRow`."""

    sequence: int
    since: Instant
    again_at: Instant
    tries: int
    reason: str


def held(store: Store) -> dict[str, Hold]:
    """Return the groups that are held, those whose pause is over included, by name."""
    found = ((group, row) for group, row in store.everywhere(HOLDS.all) if row.tries)
    return {name: Hold(row.sequence, row.since, row.again_at, row.tries, row.reason) for name, row in found}


def counts(store: Store, group: str | None = None) -> dict[str, GroupCounts]:
    """Return `Store.counts`, and how many entries are held."""
    with store.reading():
        found = store.counts(group)
        for name in held(store).keys() & found.keys():
            found[name] = replace(found[name], held=found[name].accepted + found[name].extracted)
    return found


def hold(store: Store, group: str, sequence: int, error: BaseException, before: Hold | None) -> Hold:
    """Hold a group, for longer than before. What an unknown error says may quote texts, and is not kept."""
    now, tries = times.now(), 1 if before is None else before.tries + 1
    reason = str(error) if isinstance(error, KgrayError) else f"{type(error).__name__}, a fault of kgray"
    pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * _TIMES ** min(tries - 1, 9))
    found = Hold(sequence, now if before is None else before.since, now + pause * times.SECOND, tries, reason)
    _put_hold(store, group, found)
    return found


def release(store: Store, group: str) -> None:
    """End a hold: the group's work went well, or its records were repaired."""
    _put_hold(store, group, Hold(0, 0, 0, 0, ""))


def try_again(store: Store, group: str | None) -> None:
    """End the pause of a group (None: of all), so that whoever ingests tries again at once."""
    for name, one in held(store).items():
        if group in (None, name):
            _put_hold(store, name, replace(one, again_at=0))


def _put_hold(store: Store, group: str, found: Hold) -> None:
    store.append([group], lambda log: log.put(HOLDS, group, HoldRow(0, *astuple(found))))
