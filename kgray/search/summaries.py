"""The summaries of a group's communities, as a scope of a search: those of one published run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kgray import kinds, rows
from kgray.graph import PROFILE, Community
from kgray.ports import Store
from kgray.search.index import Words
from kgray.search.vectors import Ints, Vectors
from kgray.times import Instant
from kgray.words import packed


class Summaries:
    """The words and vectors of the texts of one run, in memory."""

    def __init__(self, run: int, recorded_at: Instant, dimensions: int, found: Sequence[Community]) -> None:
        """recorded_at: the last record time that the run has seen."""
        self.run, self.recorded_at = run, recorded_at
        self.words, self.vectors = Words(), Vectors(dimensions)
        self.ids = [one.id for one in found]
        self.words.add([packed(one.text) for one in found])
        numbers: dict[object, int] = {id_: number for number, id_ in enumerate(self.ids)}
        self.vectors.add(self.ids, [one.vector for one in found], numbers, signs=False)

    def chosen(self, places: Ints) -> list[str]:
        """Return the communities at these places."""
        return [self.ids[place] for place in places.tolist()]


def run_at(store: Store, group: str, known_at: Instant | None) -> tuple[int, Instant] | None:
    """Return the newest kept run that rests on nothing recorded later, and its record time."""
    known = [(row[0], row[2]) for row in store.rows(kinds.ALL["community_runs"], group)]
    return next((run for run in reversed(known) if known_at is None or run[1] <= known_at), None)


def communities_of(store: Store, group: str, run: int, ids: Iterable[str] | None = None) -> list[Community]:
    """Return the communities of a run, by id, or (ids) those that are still there."""
    return [one for one in _of_run(store, group, run, ids) if one.level != PROFILE]


def profiles_of(store: Store, group: str, run: int, ids: Iterable[str] | None = None) -> dict[str, Community]:
    """Return entity id -> what a model wrote of it in a run; of all, or of these."""
    return {one.id: one for one in _of_run(store, group, run, ids) if one.level == PROFILE}


def _of_run(store: Store, group: str, run: int, ids: Iterable[str] | None) -> list[Community]:
    if ids is None:
        found = store.rows(kinds.COMMUNITIES_OF_RUN, group, [run])
    else:
        keys = [(run, id_) for id_ in ids]
        found = store.rows(kinds.COMMUNITIES_AT, group, keys) if keys else iter(())
    return [rows.community(row) for row in found]
