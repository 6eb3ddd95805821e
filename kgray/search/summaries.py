"""The summaries of a group's communities, as a scope of a search: those of one published run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kgray import kinds, rows
from kgray.graph import PROFILE, Community
from kgray.ports import Store
from kgray.search.postings import Words
from kgray.search.vectors import Vectors
from kgray.times import Instant
from kgray.words import packed

_DONE = kinds.SINCE[1]  # operations that were carried out, or begun


class Texts:
    """The words and vectors of texts, in memory."""

    def __init__(self, dimensions: int, found: Sequence[Community]) -> None:
        self.words, self.vectors = Words(), Vectors(dimensions)
        self.ids = [one.id for one in found]
        self.words.add([packed(one.text) for one in found])
        numbers: dict[object, int] = {id_: number for number, id_ in enumerate(self.ids)}
        near = {one.id: one.vector for one in found if one.vector}  # an earlier version gave profiles none
        self.vectors.add([*near], [*near.values()], numbers, signs=False)


class Profiled(str):
    """The id of an entity that was found by what a model wrote of it."""

    __slots__ = ()


class Summaries:
    """The texts of one run: of communities, and what a model wrote of entities."""

    def __init__(self, store: Store, group: str, known_at: Instant | None, dimensions: int) -> None:
        """Read the run that was known then; to be called at one moment."""
        self.run, self.recorded_at = run_at(store, group, known_at) or (0, 0)  # it may be gone by now
        self._read_at = store.heads([group])[group].last_recorded
        communities, profiles = texts_of(store, group, self.run)
        self.communities = Texts(dimensions, communities)
        self.profiles = Texts(dimensions, [*profiles.values()])

    def stand(self, store: Store, group: str, known: tuple[int, Instant]) -> bool:
        """Whether they are the texts of this run still; a group begun anew counts from 1 again.

        No episode takes a text away: what does (R25) is an operation, recorded after they were read.
        """
        done = store.rows(_DONE, group, [self._read_at + 1])
        return (self.run, self.recorded_at) == known and not any(done)


def run_at(store: Store, group: str, known_at: Instant | None) -> tuple[int, Instant] | None:
    """Return the newest kept run that rests on nothing recorded later, and its record time."""
    known = [(row[0], row[2]) for row in store.rows(kinds.ALL["community_runs"], group)]
    return next((run for run in reversed(known) if known_at is None or run[1] <= known_at), None)


def texts_of(
    store: Store, group: str, run: int, ids: Iterable[str] | None = None
) -> tuple[list[Community], dict[str, Community]]:
    """Return the communities of a run, and entity id -> what a model wrote of it; of all, or of these ids."""
    read = kinds.COMMUNITIES_OF_RUN if ids is None else kinds.COMMUNITIES_AT
    keys: list[object] = [run] if ids is None else [(run, id_) for id_ in ids]
    texts = [rows.community(row) for row in store.rows(read, group, keys)] if keys else []
    return [t for t in texts if t.level != PROFILE], {t.id: t for t in texts if t.level == PROFILE}
