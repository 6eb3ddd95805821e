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

from bench.world import WorldEpisode
from bench.world.growing import growing
from kgray import kinds
from kgray.kinds import ALL, Kind, Row
from kgray.ports import GroupHead, Store
from kgray.times import SECOND, now

COPIES = 16
_KINDS = tuple(
    kinds.BY_NAME[name]
    for name in "episodes births mentions evidence names name_vectors statement_vectors episode_vectors "
    "entities shown_entities facts".split()
)
_PLACES = frozenset({"sequence", "born_sequence"})
_INSTANTS = frozenset(
    "reference_time ended_at created_at expired_at valid_at invalid_at valid_from valid_to".split()
)
_KEPT = ("kind", "metadata", "content_sha256", "relation", "source")  # but of a fact: an entity, there
_NOISE = 0.5  # of a copy's vector, as long as this beside the text's own: copies of a text are no twins
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_WORD = re.compile(r"\w+")


def telling_one(group: str, count: int) -> Iterator[WorldEpisode]:
    """Yield episodes of a growing world that tell a fact each, all others and all but the first left out."""
    telling = (episode for episode in growing(group) if episode.said)
    for episode in islice(telling, count):
        yield replace(episode, said=episode.said[:1])


def put_copies(source: Store, base: str, targets: Sequence[Store], group: str, copies: int = COPIES) -> None:
    """Put the rows of a group so many times, as one group, into stores that are held for writing."""
    rows = {kind: list(source.rows(ALL[kind.name], base)) for kind in _KINDS}
    head = source.heads([base])[base]
    copied = _Copies(rows, head, copies)
    for target in targets:
        target.adopt(group, copied.head, copied.rows(), lambda: None)


@dataclass(slots=True)
class _Copies:
    """The rows of a group, and how its copies differ."""

    _of: dict[Kind, list[Row]]
    _base: GroupHead
    _count: int

    @property
    def head(self) -> GroupHead:
        """The counters of all copies together."""
        return replace(self._base, last=self._base.last * self._count)

    def rows(self) -> Iterator[tuple[Kind, Row]]:
        """Yield the rows, kind by kind, each kind in the order of its key or, where it has one, its place."""
        names = {word for row in self._of[kinds.NAMES] for word in _WORD.findall(row[1])}
        renamed = names | {word.casefold() for word in names}
        dates = [row[5] for row in self._of[kinds.EPISODES]]
        span, late = max(dates) - min(dates) + 86_400 * SECOND, max(0, max(dates) - now())
        for kind, rows in self._of.items():
            for number in range(self._count):
                change = _changed(
                    kind, number, self._base.last, late + span * (self._count - 1 - number), renamed
                )
                yield from ((kind, change(row)) for row in rows)


def _changed(kind: Kind, number: int, sequences: int, back: int, renamed: set[str]) -> Callable[[Row], Row]:
    """Return what makes the row of a copy from that of the group."""
    random = np.random.default_rng(number)
    suffix = "bcdfghjklmnpqrst"[number % 16] + "aeiou"[number // 16 % 5]

    @cache
    def identity(text: str) -> str:
        return str(UUID(int=UUID(text).int ^ (0x9E37_79B9_7F4A_7C15 * number)))

    def word(match: re.Match[str]) -> str:
        return match[0] + suffix if match[0] in renamed else match[0]

    def text(value: str) -> str:
        return identity(value) if _UUID.fullmatch(value) else _WORD.sub(word, value)

    def vector(value: bytes) -> bytes:
        given = np.frombuffer(value, "<f4")
        noise = random.standard_normal(len(given), np.float32)
        mixed = given + _NOISE * noise / np.linalg.norm(noise)
        return np.asarray(mixed / np.linalg.norm(mixed), "<f4").tobytes()

    by_type: dict[str, Callable[[Any], Any]] = {
        "text": text,
        "texts": lambda values: tuple(map(text, values)),
        "vector": vector,
    }
    by_name: dict[str, Callable[[Any], Any] | None] = {
        **dict.fromkeys(_PLACES, lambda value: value + number * sequences),
        **dict.fromkeys(_INSTANTS, lambda value: value - back),
        **({} if kind is kinds.FACTS else dict.fromkeys(_KEPT)),
        "client_id": lambda value: f"{value}{suffix}",
    }
    changes = [by_name.get(column.name, by_type.get(column.type)) for column in kind.columns]
    return lambda row: tuple(
        value if value is None or change is None else change(value)
        for value, change in zip(row, changes, strict=True)
    )
