"""The texts of communities and entities that a search reads: their words and vectors, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kgray.domain.graph import PROFILE, Community
from kgray.domain.times import Instant
from kgray.language.words import packed
from kgray.ports import Store
from kgray.schema.reads import OPERATIONS_SINCE
from kgray.search.index import Ints, Vectors, Words
from kgray.search.loading import run_at, texts_of


class Profiled(str):
    """The id of an entity that matched by the profile that a model wrote."""

    __slots__ = ()


class Texts:
    """The words and vectors of texts, in memory."""

    def __init__(self, dimensions: int, texts: Sequence[Community]) -> None:
        self.words, self.vectors = Words(), Vectors(dimensions)
        self.ids = [Profiled(text.id) if text.level == PROFILE else text.id for text in texts]
        self.words.add([packed(text.text) for text in texts])
        numbers: dict[object, int] = {id_: number for number, id_ in enumerate(self.ids)}
        embedded = {text.id: text.vector for text in texts if text.vector}  # old profiles have no vector
        places = [(0, 0)] * len(embedded)
        self.vectors.add([*embedded], [*embedded.values()], numbers, places, signs=False)

    def records(self, rows: Ints) -> list[Any]:
        """Return the ids of rows."""
        return [self.ids[row] for row in rows.tolist()]


class Summaries:
    """The texts of one run: summaries of communities, and profiles of entities."""

    def __init__(self, store: Store, group: str, known_at: Instant | None, dimensions: int) -> None:
        """Read the run that was current at `known_at`; call it within `at_one_moment`."""
        self.run, self.recorded_at = run_at(store, group, known_at) or (0, 0)  # the run may be deleted
        self._read_at = store.heads([group])[group].last_recorded
        communities, profiles = texts_of(store, group, self.run)
        self.communities = Texts(dimensions, communities)
        self.profiles = Texts(dimensions, [*profiles.values()])

    def are_current(self, store: Store, group: str, run: tuple[int, Instant]) -> bool:
        """Return whether these are still the texts of this run (number, record time).

        The record time is compared because a deleted and recreated group counts its runs from 1 again.
        Only an operation (R25) deletes texts; an episode never does.
        """
        operations = store.rows(OPERATIONS_SINCE, group, [self._read_at + 1])  # complete or under way
        return (self.run, self.recorded_at) == run and not any(operations)
