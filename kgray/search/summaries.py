"""The summaries of a group's communities, as a scope of a search: those of one published run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from kgray import kinds
from kgray.graph import Community
from kgray.kinds import Row
from kgray.ports import Store
from kgray.search.index import Vectors, Words
from kgray.times import Instant
from kgray.words import packed


class Summaries:
    """The words and vectors of the texts of one run, in memory."""

    def __init__(self, run: int, dimensions: int, rows: Sequence[Row]) -> None:
        """Take rows of `kinds.COMMUNITY_TEXTS`."""
        self.run = run
        self.words, self.vectors = Words(), Vectors(dimensions)
        self.ids = [row[1] for row in rows]
        self.words.add([packed(f"{row[2]} {row[3]}") for row in rows])
        numbers = {id_: number for number, id_ in enumerate(self.ids)}
        self.vectors.add(self.ids, [row[8] for row in rows], numbers, signs=False)

    def chosen(self, rows: Sequence[int]) -> list[str]:
        """Return the communities of rows."""
        return [self.ids[row] for row in rows]


def run_at(store: Store, group: str, known_at: Instant | None) -> tuple[int, Instant] | None:
    """Return the newest run that is kept and rests on nothing recorded later, and its record time."""
    known = [
        (row[0], row[2])
        for row in store.rows(kinds.ALL["community_runs"], group)
        if known_at is None or row[2] <= known_at
    ]
    return known[-1] if known else None


def summaries_of(store: Store, group: str, run: int, dimensions: int) -> Summaries:
    """Read the texts of a run."""
    return Summaries(run, dimensions, list(store.rows(kinds.COMMUNITY_TEXTS_OF_RUN, group, [run])))


def communities_at(store: Store, group: str, run: int, ids: Iterable[str]) -> list[Community]:
    """Return the communities of a run that have a text now, in the order asked: a removal takes texts."""
    keys = [(run, id_) for id_ in ids]
    if not keys:
        return []
    runs = {row[0]: row[2] for row in store.rows(kinds.ALL["community_runs"], group)}
    listed = {row[1]: row for row in store.rows(kinds.COMMUNITIES_AT, group, keys)}
    found = []
    for _, id_, name, summary, report, _, writer, *_ in store.rows(kinds.COMMUNITY_TEXTS_AT, group, keys):
        if run in runs and id_ in listed:
            _, _, level, parent, size, members = listed[id_]
            told = json.loads(report) if report else {}
            found.append(
                Community(
                    id=id_, level=level, parent=parent, size=size, name=name, summary=summary, report=told,
                    writer=writer, members=tuple(members), recorded_at=runs[run],
                )
            )  # fmt: skip
    return found
