"""What both stores do alike: reads that follow from others, counters, a copy into the store, refusals."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Any, Protocol

from kgray import rows as packing
from kgray.errors import StaleWriter, StoreError
from kgray.holds import held
from kgray.kinds import ACCEPTED, EPISODES_AT, EXTRACTED, OPERATIONS_AT, OWN, PENDING, WITHDRAWN, Kind, Row
from kgray.ports import GroupCounts, GroupHead, Store
from kgray.records import Episode, Operation
from kgray.stores.batch import Counters


class Reads(Store):
    """Reads that follow from others."""

    def pending(self, group: str, limit: int, *, after: int = 0) -> list[Episode | Operation]:
        with self.reading():
            asked = self.pending_sequences(group, after, limit)
            episodes = self.rows(EPISODES_AT, group, [sequence for sequence, its in asked if its])
            operations = self.rows(OPERATIONS_AT, group, [sequence for sequence, its in asked if not its])
            # Where there are no snapshots, an entry may have ended meanwhile.
            found: list[Episode | Operation] = [
                packing.episode(group, row) for row in episodes if row[10] in (ACCEPTED, EXTRACTED)
            ]
            found += [packing.operation(group, row) for row in operations if row[3] == PENDING]
        return sorted(found, key=attrgetter("sequence"))

    def pending_groups(self) -> dict[str, bool]:
        return self.newly_pending(0)[0]

    def counts(self, group: str | None = None) -> dict[str, GroupCounts]:
        with self.reading():
            found = self._counted(group)
            found.pop(OWN, None)
            for name in held(self) & found.keys():
                found[name] = replace(found[name], held=found[name].accepted + found[name].extracted)
            return found

    @abstractmethod
    def _counted(self, group: str | None) -> dict[str, GroupCounts]: ...


def counted(states: Iterable[Sequence[Any]], rest: Iterable[Sequence[Any]]) -> dict[str, GroupCounts]:
    """Return counts by group, sorted.

    states  rows of (group, state, how many)
    rest    rows of (group, the other fields of GroupCounts in their order), several of a group are added up
    """
    open_ = packing.STATES[:WITHDRAWN]  # what was withdrawn is retired
    others = [field.name for field in fields(GroupCounts) if field.name not in {*open_, "held"}]
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rest:
        found[row[0]].update(dict(zip(others, row[1:], strict=True)))
    for group, state, number in states:
        found[group][packing.STATES[state]] = number
    return {group: GroupCounts(**found[group]) for group in sorted(found)}


class Adoption(Protocol):
    """A group that is being copied in, in many transactions; nobody else finds any of it before `finish`."""

    def start(self) -> None:
        """Take the group's place; first delete what a killed process left of a copy.

        Raises StoreError where the group exists, or ever did.
        """

    def take(self, rows: Iterable[tuple[Kind, Row]]) -> None: ...

    def standing_in(self) -> AbstractContextManager[None]:
        """Let reads of this process find the copy."""

    def finish(self) -> None:
        """Make the group visible to everybody."""

    def undo(self) -> None:
        """Delete what was written, if this process may still write; else the next copy's `start` does."""


def adopt(adoption: Adoption, rows: Iterable[tuple[Kind, Row]], verify: Callable[[], None]) -> None:
    """Carry out a copy; see `ports.Store.adopt`."""
    adoption.start()
    try:
        adoption.take(rows)
        with adoption.standing_in():
            verify()
        adoption.finish()
    except BaseException:
        adoption.undo()
        raise


def portions(rows: Iterable[tuple[Kind, Row]], most: int) -> Iterator[tuple[Kind, list[Row]]]:
    """Yield the rows in portions of one kind and at most so many, in order."""
    for kind, found in groupby(rows, itemgetter(0)):
        while portion := [row for _, row in islice(found, most)]:
            yield kind, portion


def known(group: str, where: object, head: GroupHead | Counters) -> StoreError:
    """Return the refusal to copy a group into a store that has it, or had it."""
    why = (
        "is there already"
        if head.named
        else f"was there and was removed: its {head.last} sequences are never used again"
    )
    return StoreError(f"group {group!r} in {where} {why}; a copy needs a store that never had it")


def stale(where: object, newest: object, epoch: int | None) -> StaleWriter:
    """Return the refusal of a writer that does not hold the store; epoch: the one that it held."""
    why = "this process does not ingest it" if epoch is None else f"{epoch} was superseded"
    return StaleWriter(f"{where} is at epoch {newest}, and {why}: nothing was changed; run it again")


def check_version(where: object, stored: int, ours: int, *, empty: str) -> None:
    """Raise StoreError for data of another schema; empty: what takes the place of older data."""
    who, what_to_do = "an earlier", f"choose an empty {empty} and add the episodes again"
    if stored > ours:
        who, what_to_do = "a newer", "upgrade kgray"
    written = f"{where} was written by {who} kgray (schema {stored}; this one knows {ours})"
    if stored != ours:
        raise StoreError(f"{written}: {what_to_do}")


def check_embedder(
    where: object, stored: Mapping[str, object], embedder: str, dimensions: int, *, empty: str
) -> int:
    """Return how many numbers a vector has. stored: the store's note of its embedder; dimensions: 0 = any.

    Raises StoreError for a graph that was built with another embedder.
    """
    width = int(str(stored.get("dimensions")))
    if (stored.get("embedder"), width) != (embedder, dimensions or width):
        weighed = embedder.removesuffix("+sparse") == str(stored.get("embedder")).removesuffix("+sparse")
        raise StoreError(
            f"the embedder {embedder!r} gives {dimensions} numbers a text, but the graph in {where} was "
            f"built with {stored.get('embedder')!r} ({width} numbers): set "
            f"{'embedder.sparse as it was' if weighed else 'embedder.backend to that one'}, "
            f"or start an empty {empty} and add the episodes again"
        )
    return width
