"""Copies a group from one store to another and compares the two; the source is not changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from kgray.domain import times
from kgray.domain.times import Instant
from kgray.errors import InputError, Locked, NotFound, StoreError
from kgray.graph import dump
from kgray.graph.stored import View, records_of
from kgray.ports import Store
from kgray.runtime.wiring import OpenStore
from kgray.schema.reads import EPISODES_SINCE
from kgray.storage.ledger import dumped_episodes
from kgray.storage.texts import OnRow, Sum, rows_of, sum_of, take_over

_MOMENTS = 4  # number of earlier moments for comparisons of the two graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The result of a copy, or of a comparison. rows: counts by kind; moments: number of compared graphs."""

    group: str
    rows: Mapping[str, int]
    moments: int
    existed: bool


def copy_group(source: OpenStore, target: OpenStore, group: str, *, on_row: OnRow = lambda: None) -> Copied:
    """Copy a group with all its records and record times into a store that never had it, and compare.

    If the target has the group already, the two are only compared. Raises NotFound, InputError if a copy
    between the two is not possible, StoreError if the copy differs; it is then deleted.
    """
    with _both_locked(source, target):
        head = source.store.heads([group])[group]
        if not head.named:
            raise NotFound(f"there is no group {group!r} in {source.location}")
        existed, moments = target.store.heads([group])[group].named, 0

        def verify(ours: Sum, theirs: Sum) -> None:
            nonlocal moments
            moments = _verified(source, target, group, ours, theirs)

        if existed:
            ours, theirs = (sum_of(side.store, group, on_row) for side in (source, target))
            if different := ours.differing(theirs):
                raise conflict_error(target, group, "; ".join(different[:3]))
            verify(ours, theirs)
        else:
            ours = take_over(target.store, group, head, rows_of(source.store, group, head), verify, on_row)
    return Copied(group=group, rows=dict(ours.counts), moments=moments, existed=existed)


def conflict_error(target: OpenStore, group: str, difference: str) -> StoreError:
    """Return the error for a group that the target has with other rows."""
    return StoreError(
        f"group {group!r} is in {target.location} already, and not the same ({difference}): nothing was "
        "changed; a copy needs a store that never had the group"
    )


@contextmanager
def _both_locked(source: OpenStore, target: OpenStore) -> Iterator[None]:
    """Lock two compatible stores for a copy: no other process commits to them inside the block."""
    first, second = source.store, target.store
    if (first.embedder, first.dimensions) != (second.embedder, second.dimensions):
        raise InputError(
            f"the source was embedded with {first.embedder!r} ({first.dimensions} numbers a text) and the "
            f"target is for {second.embedder!r} ({second.dimensions}): vectors of two "
            "embedders cannot be compared; "
            "set the same embedder for both"
        )
    ours, theirs = source.settings.store, target.settings.store
    one_folder = source.folder.resolve() == target.folder.resolve()
    same_database = (ours.uri, ours.database) == (theirs.uri, theirs.database)
    if ours.backend == theirs.backend and (one_folder if ours.backend == "sqlite" else same_database):
        raise InputError(f"the source and the target are one store, {source.location}: name another target")
    with ExitStack() as stack:
        for side in (source, target):
            stack.enter_context(single_writer(side, shared=one_folder and side.store.remote))
        yield


@contextmanager
def single_writer(side: OpenStore, *, shared: bool = False) -> Iterator[None]:
    """Lock a store as its only writer; shared: see `Store.writing`."""
    with ExitStack() as stack:
        try:
            stack.enter_context(side.store.writing(shared=shared))
        except Locked as error:
            raise Locked(f"{side.location} is in use: {error}; run the command when that has ended") from None
        yield


def _verified(source: OpenStore, target: OpenStore, group: str, ours: Sum, theirs: Sum) -> int:
    """Compare the graphs at several moments; return the number. Raises StoreError if they differ."""
    if different := ours.differing(theirs):
        raise StoreError(f"the copy of group {group!r} differs ({'; '.join(different[:3])})")
    with source.store.reading():
        ended = [row.ended_at for row in source.store.rows(EPISODES_SINCE, group)]
    moments = [None, *ended[:: max(1, len(ended) // _MOMENTS)][:_MOMENTS]]
    for moment in moments:
        if _digest(source.store, group, moment) != _digest(target.store, group, moment):
            moment_text = "as known now" if moment is None else f"as known at {times.show(moment)}"
            raise StoreError(f"the copy of group {group!r} derives another graph {moment_text}")
    return len(moments)


def _digest(store: Store, group: str, known_at: Instant | None) -> str:
    with store.reading():
        view = View(records_of(store, group, known_at), lambda _: [])  # a dump names episodes, and reads none
        return dump.digest(dump.rows(view, dumped_episodes(store, group, known_at)))
