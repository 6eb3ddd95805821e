"""Reads the Parquet tables of GraphRAG: relationships and claims become facts, text units become episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgray.interchange.importing import (
    Import,
    Unit,
    known_moment,
    text_of,
    time_text,
    with_facts,
    without_facts,
)
from kgray.interchange.tables import read_table
from kgray.times import Instant

# A relationship has a description, but no name of its relation.
UNNAMED = "RELATED_TO"
_UNKNOWN = frozenset({"", "NONE"})
_Facts = dict[str, dict[str, Any]]


def units(path: Path, importing: Import) -> Iterator[Unit]:
    """Yield the text units, oldest first, then the facts without a text unit. Raises InputError."""
    titles = {text_of(row["title"]) for row in read_table(path / "entities.parquet", ("title",))}
    facts, homes = _facts(path, importing, titles)
    yield from with_facts(_text_units(path), facts, homes)
    importing.omitted["entities in no fact"] += without_facts(titles, facts)
    for table in ("communities", "community_reports"):
        if (path / f"{table}.parquet").exists():
            count = sum(1 for _ in read_table(path / f"{table}.parquet", ("id",)))
            importing.omitted[f"{table.replace('_', ' ')}: `kgray communities refresh` makes them"] += count


def _facts(path: Path, importing: Import, titles: set[str]) -> tuple[_Facts, dict[str, list[str]]]:
    """Return the facts by id, and the ids of their text units.

    kgray's own export has a claim and a relationship of one id for a fact between entities.
    """
    facts, homes = _Facts(), defaultdict[str, list[str]](list)
    if (claims := path / "covariates.parquet").exists():
        columns = ("id", "type", "subject_id", "object_id", "status", "start_date", "end_date", "description")
        for row in read_table(claims, columns, ("text_unit_id",)):
            id_, status = text_of(row["id"]), text_of(row["status"]).upper()
            if status == "SUSPECTED":
                importing.omitted["claims that are only suspected"] += 1
                continue
            name = text_of(row["object_id"])
            if name.upper() in _UNKNOWN:
                importing.omitted["claims without an object"] += 1
                continue
            facts[id_] = {
                "source": text_of(row["subject_id"]),
                "relation": text_of(row["type"]),
                **({"target": name} if name in titles else {"value": {"type": "text", "value": name}}),
                "text": text_of(row["description"]),
                "valid_at": time_text(row["start_date"]),
                "invalid_at": time_text(row["end_date"]),
                **({"denied": True} if status == "FALSE" else {}),
            }
            homes[id_] = [text_of(row["text_unit_id"])] if text_of(row["text_unit_id"]) else []
    pairs = ("id", "source", "target", "description", "text_unit_ids")
    for row in read_table(path / "relationships.parquet", pairs, ("relation", "valid_at", "invalid_at")):
        id_ = text_of(row["id"])
        homes[id_] = [text_of(unit) for unit in row["text_unit_ids"] or ()] or homes[id_]
        if id_ in facts:
            continue
        if not (relation := text_of(row["relation"])):
            importing.changed[f"relationships without the name of a relation: {UNNAMED}"] += 1
        if not (start := time_text(row["valid_at"])):
            importing.changed["facts without dates"] += 1
        facts[id_] = {
            "source": text_of(row["source"]), "relation": relation or UNNAMED,
            "target": text_of(row["target"]), "text": text_of(row["description"]), "valid_at": start,
            "invalid_at": time_text(row["invalid_at"]),
        }  # fmt: skip
    return facts, homes


def _text_units(path: Path) -> list[Unit]:
    """Return the text units without facts; a unit without a time has the time of its document."""
    if not (table := path / "text_units.parquet").exists():
        return []
    documents: dict[str, tuple[str, Instant | None]] = {}
    if (path / "documents.parquet").exists():
        for row in read_table(path / "documents.parquet", ("id", "title"), ("creation_date",)):
            documents[text_of(row["id"])] = text_of(row["title"]), known_moment(row["creation_date"])
    units_ = []
    for row in read_table(table, ("id", "text"), ("document_id", "reference_time")):
        title, made_at = documents.get(text_of(row["document_id"]), ("", None))
        at = known_moment(row["reference_time"]) if row["reference_time"] else made_at
        units_.append(Unit(id=text_of(row["id"]), at=at, text=text_of(row["text"]), source=title[:256]))
    return units_
