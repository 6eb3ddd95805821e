"""Turns the rows of another program into episodes: one episode of triples for each of its texts.

A reader yields units, each a text with the facts that it supports. No model reads them. A text without facts
is omitted, because no model has read it; `kgray add` reads it. Ids are from the source, so that a second
import adds only new rows, and a stopped import continues.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kgray.domain import times
from kgray.domain.records import MAX_CLIENT_ID, Draft, canonical
from kgray.domain.times import Instant
from kgray.errors import InputError
from kgray.io.intake import triples
from kgray.io.interchange.formats import format_called
from kgray.io.interchange.gathering import Gathered, Unit

# The key for an episode's text in the metadata of its first triple, where a search of episodes finds it.
EPISODE_TEXT = "episode_text"
# The field of a refused triple -> the reason why the fact is omitted.
REASONS = {
    "source": "facts whose subject has no usable name",
    "target": "facts whose object has no usable name",
    "value": "facts whose value cannot be stored",
    "relation": "facts whose relation is no name",
    "invalid_at": "facts whose end is not after their start",
    "valid_at": "facts with a time that cannot be read",
    "text": "facts whose sentence cannot be stored",
}
# Format -> a file that no folder of another format has.
MARKS = {
    "graphrag": "relationships.parquet",
    "lightrag": "graph_chunk_entity_relation.graphml",
    "cogx": "facts.jsonl",
    "parquet": "kgray.json",
}
UNNAMED = "RELATED_TO"  # the relation of a row that has a description, but no name of its relation
REPEATED = "facts with the id of another fact: the first is taken"
_REPLACED = "texts with characters that cannot be stored: U+FFFD stands for each"
_NOT_STORABLE = re.compile("[\0\ud800-\udfff]")
_UNKNOWN = frozenset({"", "none", "nan", "nat", "null", "unknown"})


class IngestionReport(Protocol):
    """The outcome of `Memory.add_many`."""

    @property
    def exit_code(self) -> int:
        """The exit code of a command."""

    def as_dict(self) -> dict[str, Any]:
        """Return the form of JSON."""


Add = Callable[[Iterator[Draft]], Awaitable[IngestionReport]]


@dataclass(slots=True, kw_only=True)
class Import:
    """An import into a group; the counts are final when `drafts` has ended."""

    format: str
    group: str
    gathered: Gathered
    taken: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)  # reason -> rows that were taken with a change
    omitted: Counter[str] = field(default_factory=Counter)  # reason -> rows that were not taken

    def drafts(self, units: Iterable[Unit | Draft]) -> Iterator[Draft]:
        """Yield the episodes of units; a draft of a reader passes as it is."""
        for unit in units:
            if isinstance(unit, Draft):
                self.taken["texts"] += 1
                yield self._storable(unit)
                continue
            checked = (self.checked(fact, is_new=is_new) for is_new, fact in unit.facts)
            rows = [row for row in checked if row is not None]
            if not rows:
                self.omitted["texts without facts: `kgray add` has them read"] += bool(unit.text.strip())
                continue
            at = unit.at
            if at is None and not unit.text.strip():  # a fact of no text
                at = known_moment(rows[0].get("valid_at"))
            if at is None:
                self.changed["texts without a time: they get the time of the import"] += 1
            self.taken["texts"] += bool(unit.text.strip())
            if unit.text.strip():
                rows[0] = rows[0] | {EPISODE_TEXT: storable(unit.text)}
            for part, start in enumerate(range(0, len(rows), triples.MAX_TRIPLES)):
                portion = rows[start : start + triples.MAX_TRIPLES]
                draft = Draft(
                    group=self.group,
                    source=unit.source or self.format,
                    kind="triples",
                    text=triples.normalise(portion, at),
                    reference_time=at,
                    client_id=(f"{unit.id}#{part + 1}" if part else unit.id)[:MAX_CLIENT_ID],
                    metadata=canonical({self.format: dict(unit.about)}),
                )
                yield self._storable(draft)

    def _storable(self, draft: Draft) -> Draft:
        """Return a draft whose texts the store can hold."""
        names = ("text", "source", "client_id", "metadata")
        texts = {name: storable(text) for name in names if (text := getattr(draft, name))}
        changed: dict[str, Any] = {n: text for n, text in texts.items() if text != getattr(draft, n)}
        self.changed[_REPLACED] += bool(changed)
        return replace(draft, **changed)

    def checked(self, fact: dict[str, Any], *, is_new: bool) -> dict[str, Any] | None:
        """Return a usable triple; None if the fact is omitted. is_new: it counts, no earlier text has it."""
        row = {key: value for key, value in fact.items() if value is not None or key == "valid_at"}
        try:
            triples.normalise([row], None).encode()
        except UnicodeEncodeError:
            self.omitted[REASONS["text"]] += is_new
            return None
        except InputError as error:
            reason = REASONS.get((error.field or "").rpartition(".")[2], "facts that cannot be stored")
            if "the same name" in str(error):
                reason = "facts from a thing to itself"
            self.omitted[reason] += is_new
            return None
        self.taken["facts"] += is_new
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """The outcome of an import.

    taken, changed, omitted     rows of the source: taken (some of them changed), and left out
    reasons                     the reason -> how many rows were changed or omitted for it
    ingestion                   the report of the episodes; None: a dry run
    lost                        omitted rows that could have been facts: then the exit code is 1
    further                     counts that one format alone has
    """

    format: str
    taken: int
    changed: int
    omitted: int
    reasons: Mapping[str, int]
    ingestion: IngestionReport | None = None
    lost: int = 0
    further: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """The exit code of a command."""
        return max(self.ingestion.exit_code if self.ingestion else 0, int(self.lost > 0))

    def as_dict(self) -> dict[str, Any]:
        """Return the form of `kgray import --json`."""
        names = ("format", "taken", "changed", "omitted")
        document = {name: getattr(self, name) for name in names} | {"reasons": dict(self.reasons)}
        document |= self.further
        return document if self.ingestion is None else self.ingestion.as_dict() | document


async def import_from(path: Path, form: str, group: str, add: Add | None) -> ImportReport:
    """Import a file or a folder into a group; see `Memory.import_from`. add: None in a dry run."""
    reader = format_called(form, "reader").module()
    check_folder(path, form)
    return await taken_over(form, group, partial(reader.units, path), add)


async def taken_over(
    form: str, group: str, units: Callable[[Import], Iterable[Unit | Draft]], add: Add | None
) -> ImportReport:
    """Import the units of a reader into a group."""
    ingestion = None
    with closing(Gathered()) as gathered:
        importing = Import(format=form, group=group, gathered=gathered)
        drafts = importing.drafts(units(importing))
        if add is None:
            deque(drafts, maxlen=0)
        else:
            ingestion = await add(drafts)
    reasons = {name: count for name, count in (importing.changed + importing.omitted).items() if count}
    omitted = importing.omitted.total()
    return ImportReport(
        format=form,
        taken=importing.taken.total(),
        changed=importing.changed.total(),
        omitted=omitted,
        reasons=dict(sorted(reasons.items())),
        ingestion=ingestion,
        lost=omitted,
    )


def check_folder(path: Path, form: str) -> None:
    """Raise InputError where a folder has files of another format beside those of `form`."""
    for rival, file in MARKS.items():
        if rival != form and (path / file).exists() and (path / MARKS.get(form, "")).is_file():
            raise InputError(
                f"{path} has files of two formats, {MARKS[form]} of {form} and {file} of {rival}: move those "
                f"of one to a folder of their own"
            )


def moment(value: object) -> Instant | None:
    """Return the instant of a time in another program's file; None without a time. Raises ValueError."""
    if value is None or str(value).strip().lower() in _UNKNOWN:
        return None
    if isinstance(value, str | int | float):
        return times.parse(value)[0]
    raise ValueError(f"{value!r:.60} is no time")


def known_moment(value: object) -> Instant | None:
    """Return the instant of a time; None without a time, or if it cannot be read."""
    try:
        return moment(value)
    except (ValueError, OverflowError):
        return None


def time_text(value: object) -> str | None:
    """Return a time as a triple has it; None without a time. An unreadable time stays, and is refused."""
    try:
        instant = moment(value)
    except (ValueError, OverflowError):
        return str(value)
    return times.show(instant)


def storable(text: str) -> str:
    """Return a text with U+FFFD for each character that the store cannot hold."""
    return _NOT_STORABLE.sub("\ufffd", text)


def object_of(value: object) -> Mapping[str, Any]:
    """Return an object of JSON; an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def text_of(value: object) -> str:
    """Return a text; "" for a null of Parquet, pandas or JSON."""
    return "" if value is None or value != value else str(value)  # noqa: PLR0124 - NaN differs from itself
