"""Turns the rows of another program into episodes: one episode of triples for each of its texts.

A reader yields units, each a text with the facts that it supports. No model reads them. A text without facts
is omitted, because no model has read it; `kgray add` reads it. Ids are from the source, so that a second
import adds only new rows, and a stopped import continues.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kgray import times
from kgray.errors import InputError
from kgray.intake import triples
from kgray.interchange.formats import format_called
from kgray.records import MAX_CLIENT_ID, Draft, canonical
from kgray.times import Instant

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
class Unit:
    """A text of the source with its facts.

    at      when the text was written; None: the source does not say
    facts   pairs of the fact's id and a triple (`kgray.intake.triples`) that was not checked yet
    about   further fields of the text, for the metadata of its episode
    """

    id: str
    at: Instant | None
    text: str = ""
    source: str = ""
    facts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Import:
    """An import into a group; the counts are final when `drafts` has ended."""

    format: str
    group: str
    taken: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)  # reason -> rows that were taken with a change
    omitted: Counter[str] = field(default_factory=Counter)  # reason -> rows that were not taken
    _facts: set[str] = field(default_factory=set)

    def drafts(self, units: Iterable[Unit | Draft]) -> Iterator[Draft]:
        """Yield the episodes of units; a draft of a reader passes as it is."""
        for unit in units:
            if isinstance(unit, Draft):
                self.taken["texts"] += 1
                yield unit
                continue
            rows = [row for id_, fact in unit.facts if (row := self._checked(id_, fact)) is not None]
            if not rows:
                self.omitted["texts without facts: `kgray add` has them read"] += bool(unit.text.strip())
                continue
            if unit.at is None:
                self.changed["texts without a time: they get the time of the import"] += 1
            self.taken["texts"] += bool(unit.text.strip())
            if unit.text.strip():
                rows[0] = rows[0] | {EPISODE_TEXT: unit.text.replace("\0", "\ufffd")}
            for part, start in enumerate(range(0, len(rows), triples.MAX_TRIPLES)):
                portion = rows[start : start + triples.MAX_TRIPLES]
                yield Draft(
                    group=self.group,
                    source=unit.source or self.format,
                    kind="triples",
                    text=triples.normalise(portion, unit.at),
                    reference_time=unit.at,
                    client_id=(f"{unit.id}#{part + 1}" if part else unit.id)[:MAX_CLIENT_ID],
                    metadata=canonical({self.format: dict(unit.about)}),
                )

    def _checked(self, id_: str, fact: dict[str, Any]) -> dict[str, Any] | None:
        """Return a usable triple; None if the fact is omitted. A fact of several texts counts once."""
        is_new = id_ not in self._facts
        self._facts.add(id_)
        row = {key: value for key, value in fact.items() if value is not None or key == "valid_at"}
        try:
            triples.normalise([row], None)
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
    """

    format: str
    taken: int
    changed: int
    omitted: int
    reasons: Mapping[str, int]
    ingestion: IngestionReport | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the form of `kgray import --json`."""
        names = ("format", "taken", "changed", "omitted")
        document = {name: getattr(self, name) for name in names} | {"reasons": dict(self.reasons)}
        return document if self.ingestion is None else self.ingestion.as_dict() | document


async def import_from(path: Path, form: str, group: str, add: Add | None) -> ImportReport:
    """Import a file or a folder into a group; see `Memory.import_from`. add: None in a dry run."""
    reader = format_called(form, "reader").code("reader")
    importing = Import(format=form, group=group)
    drafts = importing.drafts(reader.units(path, importing))
    ingestion = None
    if add is None:
        deque(drafts, maxlen=0)
    else:
        ingestion = await add(drafts)
    reasons = {name: count for name, count in (importing.changed + importing.omitted).items() if count}
    return ImportReport(
        format=form,
        taken=importing.taken.total(),
        changed=importing.changed.total(),
        omitted=importing.omitted.total(),
        reasons=dict(sorted(reasons.items())),
        ingestion=ingestion,
    )


def with_facts(
    texts: Iterable[Unit], facts: Mapping[str, dict[str, Any]], homes: Mapping[str, Iterable[str]]
) -> Iterator[Unit]:
    """Yield texts, oldest first, with their facts; then a unit for each fact whose texts are not there.

    facts   triples by the fact's id
    homes   the fact's id -> the ids of the texts that support it
    """
    by_text, orphans = defaultdict[str, list[str]](list), dict.fromkeys(facts)
    for id_ in facts:
        for text in dict.fromkeys(homes.get(id_, ())):
            by_text[text].append(id_)
    for unit in sorted(texts, key=lambda unit: (unit.at is None, unit.at or 0)):
        ids = sorted(by_text.get(unit.id, ()), key=lambda id_: facts[id_].get("valid_at") or "")
        unit.facts = [(id_, facts[id_]) for id_ in ids]  # a later state of one subject ends an earlier state
        for id_, _ in unit.facts:
            orphans.pop(id_, None)
        yield unit
    for id_ in orphans:
        yield Unit(id=f"fact {id_}", at=known_moment(facts[id_].get("valid_at")), facts=[(id_, facts[id_])])


def without_facts(names: Iterable[str], facts: Mapping[str, Mapping[str, Any]]) -> int:
    """Return how many names of entities are in no fact."""
    linked = {name for fact in facts.values() for name in (fact["source"], fact.get("target"))}
    return len(set(names) - linked)


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


def text_of(value: object) -> str:
    """Return a text; "" for a null of Parquet, pandas or JSON."""
    return "" if value is None or value != value else str(value)  # noqa: PLR0124 - NaN differs from itself
