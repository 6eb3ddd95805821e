"""Copies a group from one store to another and compares the two; the source is not changed."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from kgray import times
from kgray.derivation import dump
from kgray.derivation.stored import View, records_of
from kgray.errors import InputError, Locked, NotFound, StoreError
from kgray.kinds import ALL, KINDS, SINCE, Kind, Row
from kgray.ledger import dumped_episodes
from kgray.ports import GroupHead, Store
from kgray.times import Instant
from kgray.wiring import OpenStore

OnRow = Callable[[], None]
# The names that are shown for kinds, where their own words are not.
_CALLED = {
    "operations": "corrections", "answer_uses": "uses of answers", "community_runs": "runs of communities",
}  # fmt: skip
_MOMENTS = 4  # earlier moments at which the two graphs are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What was copied, or found to be there. rows: how many of each kind; moments: graphs compared."""

    group: str
    rows: Mapping[str, int]
    moments: int
    already: bool


def copy_group(source: OpenStore, target: OpenStore, group: str, *, on_row: OnRow = lambda: None) -> Copied:
    """Copy a group with all its records and record times into a store that never had it, and compare.

    Where the target has the group already, the two are only compared. Raises NotFound, InputError where a
    copy is not possible between the two, StoreError where the copy is not the same; it is then deleted.
    """
    with _held(source, target):
        head = source.store.heads([group])[group]
        if not head.named:
            raise NotFound(f"there is no group {group!r} in {source.shown}")
        already, moments = target.store.heads([group])[group].named, 0
        ours = _summed(source.store, group, on_row) if already else Sum(head)

        def verify() -> None:
            nonlocal moments
            theirs = _summed(target.store, group, on_row)
            if already and (different := ours.differing(theirs)):
                raise StoreError(
                    f"group {group!r} is in {target.shown} already, and not the same "
                    f"({'; '.join(different[:3])}): nothing was changed; a copy needs a store that never had "
                    f"the group"
                )
            moments = _verified(source, target, group, ours, theirs)

        if already:
            verify()
        else:
            # Closed whatever happens: a store that is scanned cannot be closed.
            with closing(rows_of(source.store, group, head)) as scanned:
                target.store.adopt(group, head, ours.passing(scanned, on_row), verify)
    return Copied(group=group, rows=dict(ours.counts), moments=moments, already=already)


@contextmanager
def _held(source: OpenStore, target: OpenStore) -> Iterator[None]:
    """Hold two stores between which a copy can be made: nobody else commits to either meanwhile."""
    one, other = source.store, target.store
    if (one.embedder, one.dimensions) != (other.embedder, other.dimensions):
        raise InputError(
            f"the source was embedded with {one.embedder!r} ({one.dimensions} numbers a text) and the target "
            f"is for {other.embedder!r} ({other.dimensions}): vectors of two embedders cannot be compared; "
            f"set the same embedder for both"
        )
    ours, theirs = source.settings.store, target.settings.store
    one_folder = source.folder.resolve() == target.folder.resolve()
    same_database = (ours.uri, ours.database) == (theirs.uri, theirs.database)
    if ours.backend == theirs.backend and (one_folder if ours.backend == "sqlite" else same_database):
        raise InputError(f"the source and the target are one store, {source.shown}: name another target")
    with ExitStack() as stack:
        for side in (source, target):
            try:
                stack.enter_context(side.store.writing(shared=one_folder and side.store.remote))
            except Locked as error:
                raise Locked(f"{side.shown} is in use: {error}; run the copy when that has ended") from None
        yield


def _verified(source: OpenStore, target: OpenStore, group: str, ours: Sum, theirs: Sum) -> int:
    """Compare the graphs at several moments; return how many. Raises StoreError where they differ."""
    if different := ours.differing(theirs):
        raise StoreError(f"the copy of group {group!r} differs ({'; '.join(different[:3])})")
    with source.store.reading():
        ended = [row[0] for row in source.store.rows(SINCE[0], group)]
    moments = [None, *ended[:: max(1, len(ended) // _MOMENTS)][:_MOMENTS]]
    for moment in moments:
        if _digest(source.store, group, moment) != _digest(target.store, group, moment):
            when = "as known now" if moment is None else f"as known at {times.show(moment)}"
            raise StoreError(f"the copy of group {group!r} derives another graph {when}")
    return len(moments)


def _digest(store: Store, group: str, known_at: Instant | None) -> str:
    with store.reading():
        view = View(records_of(store, group, known_at), lambda _: [])  # a dump names episodes, and reads none
        return dump.digest(dump.rows(view, dumped_episodes(store, group, known_at)))


def _summed(store: Store, group: str, on_row: OnRow) -> Sum:
    """Return the sum of a group's rows in one snapshot; `on_row` is called for each."""
    with store.reading():
        found = Sum(store.heads([group])[group])
        deque(found.passing(rows_of(store, group, found.head), on_row), maxlen=0)
    return found


def rows_of(store: Store, group: str, head: GroupHead) -> Generator[tuple[Kind, Row], None, None]:
    """Yield every row of a group at one moment, kind by kind in the order of KINDS, each kind in its order.

    What others have appended since `head` is left out: the copy would give its sequence to another entry.
    Raises Outrun at the end where the group was written meanwhile.
    """
    with store.reading():
        for kind in KINDS:
            numbered = kind.log and kind.key[0] == "sequence"
            for row in store.rows(ALL[kind.name], group):
                if not numbered or row[0] <= head.last:
                    yield kind, row


@dataclass(slots=True)
class Sum:
    """Sums of the rows read so far."""

    head: GroupHead
    counts: Counter[str] = field(default_factory=lambda: Counter({"group": 1}))  # by shown name of the kind
    hashes: dict[str, str] = field(default_factory=dict)  # SHA-256 of the rows of a kind
    _of_kind: Counter[str] = field(default_factory=Counter)

    def passing(
        self, rows: Iterable[tuple[Kind, Row]], on_row: OnRow = lambda: None
    ) -> Iterator[tuple[Kind, Row]]:
        """Yield the same rows while counting and hashing them; on_row: called for each."""
        for kind, found in groupby(rows, key=itemgetter(0)):
            hashed = hashlib.sha256()
            for _, row in found:
                # The repr of a tuple of texts, numbers and bytes is complete and always the same.
                hashed.update(repr(row).encode("utf-8", "surrogatepass"))
                self._of_kind[kind.name] += 1
                self.counts[called(kind)] += 1
                on_row()
                yield kind, row
            self.hashes[kind.name] = hashed.hexdigest()

    def differing(self, other: Sum) -> list[str]:
        """Return one line for each kind whose rows differ."""
        same = (self.head.last, self.head.last_recorded) == (other.head.last, other.head.last_recorded)
        lines = [] if same else ["group: 1 rows, 1 in the copy, of other content"]
        for kind in KINDS:
            ours, theirs = self._of_kind[kind.name], other._of_kind[kind.name]
            if self.hashes.get(kind.name) != other.hashes.get(kind.name):
                content = ", of other content" if ours == theirs else ""
                lines.append(f"{called(kind)}: {ours} rows, {theirs} in the copy{content}")
        return lines


def called(kind: Kind) -> str:
    """Return the name under which a kind is shown; vectors are counted together."""
    own = "vectors" if kind.name.endswith("_vectors") else kind.name.replace("_", " ")
    return _CALLED.get(kind.name, own)
