"""COGX 0.1, the archive of cognee: JSON lines of episodes, entities and facts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgray.domain.graph import Fact
from kgray.domain.times import show
from kgray.io.interchange.files import Rows, fact_row, write_json, write_lines
from kgray.io.interchange.snapshot import ExportedCommunity, ExportedEpisode, Snapshot


def write(snapshot: Snapshot, path: Path) -> Rows:
    """Write a folder. The current fact of a statement comes first, because cognee keeps the first."""
    about = snapshot.about()
    files = {
        "episode": ("episodes", map(_episode, snapshot.episodes())),
        "entity": ("entities", _entities(snapshot)),
        "fact": ("facts", (_fact(snapshot, fact) for fact in snapshot.facts("time"))),
        "document": ("documents", map(_document, snapshot.communities)),
    }
    rows = {kind: write_lines(path / f"{name}.jsonl", items) for kind, (name, items) in files.items()}
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


def _episode(exported: ExportedEpisode) -> dict[str, Any]:
    episode = exported.episode
    names = ("client_id", "sequence", "speaker", "source")
    metadata = {"episode_kind": episode.kind, **{name: getattr(episode, name) for name in names}}
    turn: dict[str, Any] = {"role": episode.speaker or "user", "content": episode.text}
    turn |= {"occurred_at": show(episode.reference_time)}
    return _row(
        "episode",
        episode.id,
        title=episode.client_id or episode.source,
        turns=[turn],
        scope={"session_id": episode.source},
        created_at=show(exported.recorded_at),
        metadata=metadata | {"metadata": json.loads(episode.metadata)},
    )


def _entities(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    for entity in snapshot.entities():
        yield _row(
            "entity",
            entity.id,
            name=snapshot.name_of(entity.id),
            entity_type=entity.labels[0] if entity.labels else None,
            description=entity.summary,
            aliases=list(entity.aliases),
            attributes={"name": entity.name, "labels": list(entity.labels)},
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


def _document(exported: ExportedCommunity) -> dict[str, Any]:
    return _row(
        "document",
        exported.community.id,
        title=exported.title,
        content=exported.report_text,
        mime_type="text/markdown",
        updated_at=exported.text_time.isoformat(),
        metadata={
            "level": exported.depth,
            "members": list(exported.members),
            "stale": exported.community.stale,
        },
    )
