"""COGX 0.1, the archive of cognee: JSON lines of episodes, entities and facts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgray.graph import Fact
from kgray.interchange.files import Rows, fact_row, write_json, write_lines
from kgray.interchange.snapshot import ExportedCommunity, ExportedEpisode, Snapshot
from kgray.times import show


def write(snapshot: Snapshot, path: Path) -> Rows:
    """Write a folder. The current fact of a statement comes first, because cognee keeps the first."""
    about = snapshot.about()
    found = {
        "episode": ("episodes", map(_episode, snapshot.episodes())),
        "entity": ("entities", _entities(snapshot)),
        "fact": ("facts", (_fact(snapshot, one) for one in snapshot.facts("time"))),
        "document": ("documents", map(_document, snapshot.communities)),
    }
    rows = {kind: write_lines(path / f"{name}.jsonl", every) for kind, (name, every) in found.items()}
    manifest = {
        "cogx_version": "0.1",
        "source_system": "kgray",
        "exported_at": about["recorded_at"],
        "counts": rows,
        "embedding_model": None,
        "migration_revision": None,
        "notes": [f"{name}: {value}" for name, value in about.items()],
    }
    write_json(path / "manifest.json", manifest.items())
    return rows


def _row(kind: str, id_: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"kind": kind, "external_id": id_, "external_system": "kgray", **fields}


def _episode(item: ExportedEpisode) -> dict[str, Any]:
    one = item.episode
    names = ("client_id", "sequence", "speaker", "source")
    metadata = {"episode_kind": one.kind, **{name: getattr(one, name) for name in names}}
    turn = {"role": one.speaker or "user", "content": one.text, "occurred_at": show(one.reference_time)}
    return _row(
        "episode",
        one.id,
        title=one.client_id or one.source,
        turns=[turn],
        scope={"session_id": one.source},
        created_at=show(item.recorded_at),
        metadata=metadata | {"metadata": json.loads(one.metadata)},
    )


def _entities(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    for one in snapshot.entities():
        yield _row(
            "entity",
            one.id,
            name=snapshot.name_of(one.id),
            entity_type=one.labels[0] if one.labels else None,
            description=one.summary,
            aliases=list(one.aliases),
            attributes={"name": one.name, "labels": list(one.labels)},
        )


def _fact(snapshot: Snapshot, fact: Fact) -> dict[str, Any]:
    row = fact_row(fact)
    return _row(
        "fact",
        fact.id,
        subject_ref=fact.source,
        predicate=fact.relation,
        object_ref=fact.target or snapshot.object_of(fact),
        fact_text=fact.text,
        valid_at=row["valid_at"],
        invalid_at=row["invalid_at"],
        provenance=list(fact.episodes),
        created_at=row["created_at"],
        metadata={
            "subject": snapshot.stored_name(fact.source),
            "object": snapshot.stored_name(fact.target or ""),
            **{name: row[name] for name in ("statement", "value", "event", "expired_at", "ended_by")},
        },
    )


def _document(one: ExportedCommunity) -> dict[str, Any]:
    return _row(
        "document",
        one.community.id,
        title=one.title,
        content=one.report_text,
        mime_type="text/markdown",
        updated_at=one.text_time.isoformat(),
        metadata={"level": one.depth, "members": list(one.members), "stale": one.community.stale},
    )
