"""What hangs on an id: the rows of the dump that are about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kgray.derivation import dump
from kgray.derivation.view import View
from kgray.ledger import Bearers
from kgray.records import Episode

dump.DumpRow = dict[str, Any]


def matches(identifier: str, found: Bearers, view: View, episodes: Iterable[Episode]) -> list[dump.DumpRow]:
    """Return the dump rows of what bears an id and of what hangs on it, in the order of the dump.

    An episode brings its mentions and evidence, and what these speak of; an entity its mentions,
    statements, their evidence and facts; a fact or statement its evidence and the episodes behind it.
    """
    rows = list(dump.rows(view, list(episodes)))
    evidence = {(row["episode"], row["ordinal"]): row for row in rows if row["type"] == "evidence"}
    wanted = _Wanted()
    wanted.start(identifier, found, rows, view)
    wanted.spread(rows)
    kept = [row for row in rows if wanted.holds(row, evidence)]
    return sorted(kept, key=lambda row: (row["type"], dump.lines([row])[0]))


class _Wanted:
    """Ids of what is shown, by type of row."""

    def __init__(self) -> None:
        self.asked: set[str] = set()  # episodes whose mentions and evidence are shown, all of them
        self.episodes: set[str] = set()
        self.entities: set[str] = set()
        self.subjects: set[str] = set()  # entities whose statements are shown
        self.statements: set[str] = set()
        self.relations: set[str] = set()

    def start(self, identifier: str, found: Bearers, rows: list[dump.DumpRow], view: View) -> None:
        """Take in what was asked for."""
        self.asked |= {row["id"] for row in _of(rows, "episode") if row["sequence"] in found.episodes}
        if found.entity:
            self.subjects |= {entity.id for entity in view.entities([identifier])}
        if found.fact:
            self.statements |= {row["statement"] for row in _of(rows, "fact") if row["id"] == identifier}
        if found.statement:
            self.statements |= {fact.statement for fact in view.facts_of([identifier], None)} or {identifier}

    def spread(self, rows: list[dump.DumpRow]) -> None:
        """Follow what was asked for to what hangs on it."""
        self.statements |= {
            row["id"] for row in _of(rows, "statement") if {row["subject"], row["object"]} & self.subjects
        }
        self.statements |= {row["statement"] for row in _of(rows, "evidence") if row["episode"] in self.asked}
        for row in _of(rows, "statement"):
            if row["id"] in self.statements:
                self.entities |= {end for end in (row["subject"], row["object"]) if end is not None}
                self.relations.add(row["relation"])
        self.entities |= {row["entity"] for row in _of(rows, "mention") if row["episode"] in self.asked}
        self.entities |= self.subjects
        self.episodes |= self.asked
        for row in _of(rows, "evidence"):
            if row["statement"] in self.statements and not self.asked:
                self.episodes.add(row["episode"])
        self.episodes |= {row["episode"] for row in _of(rows, "mention") if row["entity"] in self.subjects}

    def holds(self, row: dump.DumpRow, evidence: dict[tuple[str, int], dump.DumpRow]) -> bool:
        """Whether a row is shown."""
        match row["type"]:
            case "episode":
                return row["id"] in self.episodes
            case "entity":
                return row["id"] in self.entities
            case "mention":
                return row["episode"] in self.asked or row["entity"] in self.subjects
            case "statement":
                return row["id"] in self.statements
            case "evidence":
                return row["episode"] in self.asked or (
                    not self.asked and row["statement"] in self.statements
                )
            case "verdict":
                return bool({row["a"], row["b"]} & self.statements)
            case "relation":
                return row["name"] in self.relations
            case "merge":
                return bool(set(row["entities"]) & self.entities)
            case "fact":
                ended = evidence.get(tuple(row["ended_by"])) if row["ended_by"] else None
                by_asked = ended is not None and ended["episode"] in self.asked
                return row["statement"] in self.statements or by_asked
        return False


def _of(rows: list[dump.DumpRow], kind: str) -> Iterator[dump.DumpRow]:
    return (row for row in rows if row["type"] == kind)
