"""A large group at the price of its rows: a smaller one many times, with other ids, names and times."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any
from uuid import UUID

import numpy as np

from kgray.domain.times import SECOND, now
from kgray.ports import GroupHead, Store
from kgray.schema import kinds
from kgray.schema.kinds import EpisodeRow, Kind, RecordRow, Row
from kgray.schema.reads import PackedRow
from kgray.schema.record_rows import (
    EntryRecords,
    TextVector,
    UnpackedRecords,
    name_vectors,
    search_columns,
    vector_at,
)
from tests.world import WorldEpisode
from tests.world.growing import growing

COPIES = 16
_KINDS: tuple[Kind[Any], ...] = (
    kinds.EPISODES, kinds.RECORDS, kinds.ENTITIES, kinds.MENTIONS, kinds.FACTS,
)  # fmt: skip
_PLACES = frozenset({"sequence", "born_sequence"})
_INSTANTS = frozenset(
    "reference_time ended_at created_at expired_at valid_at invalid_at valid_from valid_to".split()
)
_COPIED_COLUMNS = (
    "kind",
    "metadata",
    "content_sha256",
    "relation",
    "source",
)  # but of a fact: an entity, there
_NOISE = 0.5  # of a copy's vector, as long as this beside the text's own: copies of a text are no twins
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_WORD = re.compile(r"\w+")


def telling_one(group: str, count: int) -> Iterator[WorldEpisode]:
    """Yield episodes of a growing world that tell a fact each, all others and all but the first left out."""
    telling = (episode for episode in growing(group) if episode.said)
    for episode in islice(telling, count):
        yield replace(episode, said=episode.said[:1])


def put_copies(source: Store, base: str, targets: Sequence[Store], group: str, copies: int = COPIES) -> None:
    """Write several copies of the rows of a group, as a single group, into stores open for writing."""
    rows: dict[Kind[Any], list[Any]] = {kind: list(source.rows(kind.all, base)) for kind in _KINDS}
    head = source.heads([base])[base]
    copied = _Copies(rows, head, copies, source.dimensions)
    for target in targets:
        target.adopt(group, copied.head, copied.rows(), lambda: None)


@dataclass(slots=True)
class _Copies:
    """The rows of a group, and how its copies differ."""

    _rows_by_kind: dict[Kind[Any], list[Any]]
    _base: GroupHead
    _count: int
    _dimensions: int

    @property
    def head(self) -> GroupHead:
        """The counters of all copies together."""
        return replace(self._base, last=self._base.last * self._count)

    def rows(self) -> Iterator[tuple[Kind[Any], Row]]:
        """Yield the rows, kind by kind, each kind in the order of its key."""
        entities = self._rows_by_kind[kinds.ENTITIES]
        names = {
            word for row in entities for name in (row.name, *row.aliases) for word in _WORD.findall(name)
        }
        renamed = names | {word.casefold() for word in names}
        dates = [row.reference_time for row in self._rows_by_kind[kinds.EPISODES]]
        span, late = max(dates) - min(dates) + 86_400 * SECOND, max(0, max(dates) - now())
        copies = [
            _Copy(number, self._base.last, late + span * (self._count - 1 - number), renamed)
            for number in range(self._count)
        ]
        texts = {row.sequence: row for row in self._rows_by_kind[kinds.EPISODES]}
        for kind, rows in self._rows_by_kind.items():
            for copy in copies:
                for row in rows:
                    if kind is kinds.RECORDS:
                        yield kind, copy.records(row, texts[row.sequence], self._dimensions)
                    else:
                        yield kind, copy.row(kind, row)


class _Copy:
    """A copy: its rows differ from the group's in ids, names, sequences, vectors and times."""

    def __init__(self, number: int, sequences: int, back: int, renamed: set[str]) -> None:
        """Make the copy with this number, from 0. sequences: of the group; back: how much earlier it is."""
        self._offset, self._back, self._renamed = number * sequences, back, renamed
        self._mask = 0x9E37_79B9_7F4A_7C15 * number
        self._random = np.random.default_rng(number)
        self._suffix = "bcdfghjklmnpqrst"[number % 16] + "aeiou"[number // 16 % 5]
        self._identity = cache(lambda text: str(UUID(int=UUID(text).int ^ self._mask)))
        self._changes: dict[Kind[Any], list[Callable[[Any], Any] | None]] = {}

    def row(self, kind: Kind[Any], row: Row) -> Row:
        """Return the row of the copy."""
        if kind not in self._changes:
            by_type: dict[str, Callable[[Any], Any]] = {
                "text": self._text,
                "texts": lambda values: tuple(map(self._text, values)),
            }
            by_name: dict[str, Callable[[Any], Any] | None] = {
                **dict.fromkeys(_PLACES, lambda value: value + self._offset),
                **dict.fromkeys(_INSTANTS, self._moved),
                **({} if kind is kinds.FACTS else dict.fromkeys(_COPIED_COLUMNS)),
                "client_id": lambda value: f"{value}{self._suffix}",
            }
            self._changes[kind] = [
                by_name.get(column.name, by_type.get(column.type)) for column in kind.columns
            ]
        changed: Row = kind.row(
            *(
                value if value is None or change is None else change(value)
                for value, change in zip(row, self._changes[kind], strict=True)
            )
        )
        return changed

    def records(self, row: RecordRow, episode: EpisodeRow, dimensions: int) -> RecordRow:
        """Return the record row of the copy; without declarations and verdicts."""
        stored = UnpackedRecords()
        stored.take([PackedRow(row.sequence, row.packed)], {})
        columns = search_columns(row.search)
        vectors = [vector_at(row.vectors, n, dimensions) for n in range(len(columns.statements) + 1)]
        sequence, identity = row.sequence + self._offset, self._identity
        texts = " ".join(filter(None, (episode.speaker, episode.text)))
        return EntryRecords(
            sequence=sequence,
            recorded_at=self._moved(columns.recorded_at),
            mentions=[
                item._replace(
                    sequence=sequence, surface=self._text(item.surface), entity=identity(item.entity),
                    sentence=self._text(item.sentence),
                )
                for item in stored.mentions
            ],
            evidence=[
                item._replace(
                    sequence=sequence, statement=identity(item.statement), text=self._text(item.text),
                    valid_from=self._moved(item.valid_from), valid_to=self._moved(item.valid_to),
                )
                for item in stored.evidence
            ],
            births={identity(id_): (at + self._offset, n) for id_, (at, n) in stored.births.items()},
            names=[
                item._replace(
                    entity=identity(item.entity), surface=self._text(item.surface),
                    sequence=item.sequence + self._offset, vector=self._noisy(item.vector),
                )
                for item in name_vectors(row.names)
            ],
            statements={
                identity(id_): TextVector(self._noisy(vector), weights)
                for (id_, weights, _), vector in zip(columns.statements, vectors, strict=False)
            },
            text=self._text(texts),
            vector=TextVector(self._noisy(vectors[-1])),
        ).row()  # fmt: skip

    def _moved(self, at: Any) -> Any:  # noqa: ANN401 - an instant or None
        return at and at - self._back

    def _text(self, value: str) -> str:
        return self._identity(value) if _UUID.fullmatch(value) else _WORD.sub(self._word, value)

    def _word(self, match: re.Match[str]) -> str:
        return match[0] + self._suffix if match[0] in self._renamed else match[0]

    def _noisy(self, value: bytes) -> bytes:
        vector = np.frombuffer(value, "<f4")
        noise = self._random.standard_normal(len(vector), np.float32)
        mixed = vector + _NOISE * noise / np.linalg.norm(noise)
        return np.asarray(mixed / np.linalg.norm(mixed), "<f4").tobytes()
