"""Texts and facts of another program's files, in a temporary database until all files are read."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kgray.domain.times import Instant
from kgray.schema.kinds import Row
from kgray.storage.sqlite.scratch import Scratch

_TABLES = """
CREATE TABLE names (id BLOB PRIMARY KEY, name BLOB);
CREATE TABLE notes (id BLOB PRIMARY KEY, note BLOB);
CREATE TABLE texts (no INTEGER PRIMARY KEY, name BLOB, at INT, unit BLOB);
CREATE TABLE facts (
    no INTEGER PRIMARY KEY, id BLOB UNIQUE, since BLOB, source BLOB, target BLOB, fact BLOB,
    taken INT DEFAULT 0
);
CREATE TABLE homes (text BLOB, fact INT, PRIMARY KEY (text, fact)) WITHOUT ROWID;
"""
_ADD_FACT = "INSERT OR IGNORE INTO facts (id, since, source, target, fact) VALUES (?, ?, ?, ?, ?)"
_ADD_HOME = "INSERT OR IGNORE INTO homes SELECT ?, no FROM facts WHERE id = ?"
_TEXTS = "SELECT name, unit FROM texts ORDER BY at IS NULL, at, no"
# A later state of one subject ends an earlier state, so that facts of one text come by their starts.
_OF_TEXT = (
    "SELECT f.no, f.taken, f.fact FROM homes AS h JOIN facts AS f ON f.no = h.fact WHERE h.text = ? "
    "ORDER BY f.since, f.no"
)
_WITHOUT_TEXT = "SELECT no, id, fact FROM facts WHERE NOT taken ORDER BY no"
_WITHOUT_FACTS = (
    "SELECT count(DISTINCT name) FROM names WHERE name NOT IN (SELECT source FROM facts) "
    "AND name NOT IN (SELECT target FROM facts WHERE target IS NOT NULL)"
)


@dataclass(slots=True, kw_only=True)
class Unit:
    """A text of the source with its facts.

    at      when the text was written; None: the source does not say
    facts   (whether no earlier unit has the fact, an unchecked triple of `kgray.io.intake.triples`)
    about   further fields of the text, for the metadata of its episode
    """

    id: str
    at: Instant | None
    text: str = ""
    source: str = ""
    facts: list[tuple[bool, dict[str, Any]]] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)


class Gathered:
    """Names, texts and facts by the ids of the source. To be closed."""

    def __init__(self) -> None:
        self._scratch = Scratch(_TABLES)

    def close(self) -> None:
        """Delete the temporary rows."""
        self._scratch.close()

    def add_name(self, id_: str, name: str) -> None:
        """Add an entity; of equal ids the first stays."""
        self._scratch.execute("INSERT OR IGNORE INTO names VALUES (?, ?)", (_key(id_), _key(name)))

    def name(self, id_: str) -> str | None:
        """Return the name of an entity; None: there is no such entity."""
        row = self._scratch.first("SELECT name FROM names WHERE id = ?", (_key(id_),))
        return None if row is None else row[0].decode(errors="surrogatepass")

    def add_note(self, id_: str, *values: str | int | None) -> None:
        """Keep values under an id, such as the time of a document."""
        self._scratch.execute(
            "INSERT OR REPLACE INTO notes VALUES (?, ?)", (_key(id_), marshal.dumps(values))
        )

    def note(self, id_: str) -> Row | None:
        """Return the values under an id."""
        row = self._scratch.first("SELECT note FROM notes WHERE id = ?", (_key(id_),))
        return None if row is None else tuple(marshal.loads(row[0]))  # noqa: S302 - of this process

    def add_text(self, unit: Unit, name: str | None = None) -> None:
        """Add a text without facts. name: its id in `add_fact`; None: the id of the unit."""
        row = marshal.dumps((unit.id, unit.at, unit.text, unit.source, [], dict(unit.about)))
        values = (_key(name or unit.id), unit.at, row)
        self._scratch.execute("INSERT INTO texts (name, at, unit) VALUES (?, ?, ?)", values)

    def add_fact(self, id_: str, fact: Mapping[str, Any], texts: Iterable[str]) -> bool:
        """Add a fact and the ids of the texts that support it; False: another fact has the id."""
        target = fact.get("target")
        ends = (_key(fact["source"]), None if target is None else _key(target))
        row = (_key(id_), _key(fact.get("valid_at") or ""), *ends, marshal.dumps(dict(fact)))
        if not self._scratch.execute(_ADD_FACT, row):
            return False
        self.support(id_, texts)
        return True

    def support(self, id_: str, texts: Iterable[str]) -> None:
        """Add texts that support a fact."""
        for text in texts:
            self._scratch.execute(_ADD_HOME, (_key(text), _key(id_)))

    def has_fact(self, id_: str) -> bool:
        """Return whether a fact has the id."""
        return self._scratch.first("SELECT 1 FROM facts WHERE id = ?", (_key(id_),)) is not None

    def units(self) -> Iterator[Unit]:
        """Yield the texts, oldest first, with their facts; then a unit for each fact without a text."""
        for name, row in self._scratch.rows(_TEXTS):
            id_, at, text, source, facts, about = marshal.loads(row)  # noqa: S302 - of this process
            for number, taken, fact in list(self._scratch.rows(_OF_TEXT, (name,))):
                facts.append((not taken, marshal.loads(fact)))  # noqa: S302 - of this process
                self._scratch.execute("UPDATE facts SET taken = 1 WHERE no = ?", (number,))
            yield Unit(id=id_, at=at, text=text, source=source, facts=facts, about=about)
        for _, id_, row in self._scratch.rows(_WITHOUT_TEXT):
            fact = marshal.loads(row)  # noqa: S302 - of this process
            yield Unit(id=f"fact {id_.decode(errors='replace')}", at=None, facts=[(True, fact)])

    def without_facts(self) -> int:
        """Return how many names of entities are in no fact."""
        return int(self._scratch.first(_WITHOUT_FACTS)[0])


def _key(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # JSON may have half a character
