"""Reads the Parquet tables of GraphRAG: relationships and claims become facts, text units become episodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kgray.io.interchange.gathering import Gathered, Unit
from kgray.io.interchange.importing import REPEATED, Import, known_moment, text_of, time_text
from kgray.io.interchange.tables import read_table

# A relationship has a description, but no name of its relation.
UNNAMED = "RELATED_TO"
_UNKNOWN = frozenset({"", "NONE"})


def units(path: Path, importing: Import) -> Iterator[Unit]:
    """Yield the text units, oldest first, then the facts without a text unit. Raises InputError."""
    gathered = importing.gathered
    for row in read_table(path / "entities.parquet", ("title",)):
        gathered.add_name(title := text_of(row["title"]), title)
    if (path / "covariates.parquet").exists():
        _gather_claims(path / "covariates.parquet", importing)
    _gather_relationships(path / "relationships.parquet", importing)
    if (path / "text_units.parquet").exists():
        _gather_texts(path, gathered)
    importing.omitted["entities in no fact"] += gathered.without_facts()
    for table in ("communities", "community_reports"):
        if (path / f"{table}.parquet").exists():
            count = sum(1 for _ in read_table(path / f"{table}.parquet", ("id",)))
            importing.omitted[f"{table.replace('_', ' ')}: `kgray communities refresh` makes them"] += count
    yield from gathered.units()


def _gather_claims(path: Path, importing: Import) -> None:
    columns = ("id", "type", "subject_id", "object_id", "status", "start_date", "end_date", "description")
    for row in read_table(path, columns, ("text_unit_id",)):
        status, name = text_of(row["status"]).upper(), text_of(row["object_id"])
        if status == "SUSPECTED":
            importing.omitted["claims that are only suspected"] += 1
            continue
        if name.upper() in _UNKNOWN:
            importing.omitted["claims without an object"] += 1
            continue
        is_entity = importing.gathered.name(name) is not None
        fact = {
            "source": text_of(row["subject_id"]),
            "relation": text_of(row["type"]),
            **({"target": name} if is_entity else {"value": {"type": "text", "value": name}}),
            "text": text_of(row["description"]),
            "valid_at": time_text(row["start_date"]),
            "invalid_at": time_text(row["end_date"]),
            **({"denied": True} if status == "FALSE" else {}),
        }
        home = text_of(row["text_unit_id"])
        is_new = importing.gathered.add_fact(text_of(row["id"]), fact, [home] if home else ())
        importing.omitted[REPEATED] += not is_new


def _gather_relationships(path: Path, importing: Import) -> None:
    """Add the relationships without a claim; kgray's own export has a claim of the same id for each."""
    pairs = ("id", "source", "target", "description", "text_unit_ids")
    for row in read_table(path, pairs, ("relation", "valid_at", "invalid_at"), lists=("text_unit_ids",)):
        id_, homes = text_of(row["id"]), list(map(text_of, row["text_unit_ids"] or ()))
        if importing.gathered.has_fact(id_):
            importing.gathered.support(id_, homes)
            continue
        if not (relation := text_of(row["relation"])):
            importing.changed[f"relationships without the name of a relation: {UNNAMED}"] += 1
        if not (start := time_text(row["valid_at"])):
            importing.changed["facts without dates"] += 1
        fact = {
            "source": text_of(row["source"]), "relation": relation or UNNAMED,
            "target": text_of(row["target"]), "text": text_of(row["description"]), "valid_at": start,
            "invalid_at": time_text(row["invalid_at"]),
        }  # fmt: skip
        importing.gathered.add_fact(id_, fact, homes)


def _gather_texts(path: Path, gathered: Gathered) -> None:
    """Add the text units; a unit without a time has the time of its document."""
    if (documents := path / "documents.parquet").exists():
        for row in read_table(documents, ("id", "title"), ("creation_date",)):
            at = known_moment(row["creation_date"])
            gathered.add_note(text_of(row["id"]), text_of(row["title"])[:256], at)
    optional, lists = (
        ("document_id", "document_ids", "reference_time"),
        ("document_ids",),
    )  # GraphRAG 2 has lists
    for row in read_table(path / "text_units.parquet", ("id", "text"), optional, lists=lists):
        document = row["document_id"] or next(iter(row["document_ids"] or ()), None)
        title, made_at = gathered.note(text_of(document)) or ("", None)
        at = known_moment(row["reference_time"]) if row["reference_time"] else made_at
        gathered.add_text(Unit(id=text_of(row["id"]), at=at, text=text_of(row["text"]), source=title))
