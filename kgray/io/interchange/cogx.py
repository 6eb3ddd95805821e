"""COGX 0.1, the archive of cognee, a folder or a .cogx.tar.gz: JSON lines of episodes, entities and facts."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kgray.domain.graph import Fact
from kgray.domain.times import show
from kgray.errors import InputError
from kgray.io.interchange.files import Rows, fact_row, write_json, write_lines
from kgray.io.interchange.gathering import Gathered, Unit
from kgray.io.interchange.importing import REPEATED, Import, known_moment, object_of, text_of, time_text
from kgray.io.interchange.lines import read_json, read_lines, unreadable
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


_MEMBERS, _MEMBER_BYTES, _BYTES = 100_000, 512 << 20, 2 << 30  # the limits of cognee's reader
_UNREAD = ("documents", "memories", "memory_blocks", "nodes")


def units(path: Path, importing: Import) -> Iterator[Unit]:
    """Yield the episodes with their facts, then the facts without an episode. Raises InputError."""
    if path.is_dir():
        yield from _units(path, importing)
        return
    with TemporaryDirectory() as folder:
        _unpack(path, Path(folder))
        folders = [entry for entry in Path(folder).iterdir() if entry.is_dir()]
        is_nested = not (Path(folder) / "manifest.json").exists() and len(folders) == 1
        yield from _units(folders[0] if is_nested else Path(folder), importing)


def _unpack(path: Path, folder: Path) -> None:
    try:
        with tarfile.open(path) as archive:
            size = 0
            for number, member in enumerate(archive):
                size += member.size
                if number >= _MEMBERS or member.size > _MEMBER_BYTES or size > _BYTES:
                    raise InputError(f"{path} is larger than an archive of cognee may be")
                if member.isreg() or member.isdir():
                    archive.extract(member, folder, filter="data")
    except FileNotFoundError:
        raise InputError(f"{path} is not there") from None
    except (tarfile.TarError, OSError, EOFError) as error:
        raise unreadable(path, "a .cogx.tar.gz", error) from None


def _units(path: Path, importing: Import) -> Iterator[Unit]:
    stated = _check(path)
    gathered, counts = importing.gathered, Counter[str]()
    for number, row in _rows(path, "entities"):
        counts["entity"] += 1
        gathered.add_name(_id(row, number, "entities"), text_of(row.get("name")))
    for number, row in _rows(path, "facts"):
        counts["fact"] += 1
        id_, episodes = _id(row, number, "facts"), row.get("provenance") or []
        if not isinstance(episodes, list):
            raise InputError(f"{path}/facts.jsonl, line {number}: provenance is not a list")
        is_new = gathered.add_fact(id_, _triple(row, gathered), map(text_of, episodes))
        importing.omitted[REPEATED] += not is_new
    for unit in _texts(path):
        counts["episode"] += 1
        gathered.add_text(unit)
    for kind in ("entity", "fact", "episode"):
        if counts[kind] < (number := stated.get(kind, 0)):
            raise InputError(
                f"{path} has {counts[kind]} rows of kind {kind}, and its manifest says {number}: it may be "
                "truncated"
            )
    for name in _UNREAD:
        importing.omitted[name.replace("_", " ")] += sum(1 for _ in _rows(path, name))
    importing.omitted["entities in no fact"] += gathered.without_facts()
    yield from gathered.units()


def _check(path: Path) -> dict[str, int]:
    """Return the numbers of rows by the manifest. Raises InputError for a folder that is no archive."""
    if (path / "permissions.json").exists():
        raise InputError(f"{path} has permissions.json, with hashes of passwords: delete that file first")
    if (path / "manifest.json").exists():
        manifest = read_json(path / "manifest.json")
        if not isinstance(manifest, dict):
            raise InputError(f"{path}/manifest.json is not an object")
        version, counts = text_of(manifest.get("cogx_version")), manifest.get("counts")
        if version.partition(".")[0] not in ("", "0"):
            raise InputError(f"{path} is of COGX {version}: this version of kgray reads 0.x")
        stated_counts = counts.items() if isinstance(counts, dict) else ()
        return {kind: count for kind, count in stated_counts if isinstance(count, int)}
    if not (path / "facts.jsonl").exists():
        raise InputError(f"{path} has neither manifest.json nor facts.jsonl: name the folder of an archive")
    return {}


def _texts(path: Path) -> Iterator[Unit]:
    for number, row in _rows(path, "episodes"):
        listed = row.get("turns")
        turns = [turn for turn in listed if isinstance(turn, dict)] if isinstance(listed, list) else []
        times = (known_moment(turn.get("occurred_at")) for turn in turns)
        yield Unit(
            id=_id(row, number, "episodes"),
            at=next((at for at in times if at is not None), None),
            text="\n".join(map(_turn_text, turns)),
            source=text_of(object_of(row.get("scope")).get("session_id"))[:256],
            about={"title": text_of(row.get("title"))},
        )


def _rows(path: Path, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    return read_lines(path / f"{name}.jsonl")


def _id(row: dict[str, Any], number: int, name: str) -> str:
    if not (id_ := text_of(row.get("external_id"))):
        raise InputError(f"{name}.jsonl, line {number}, has no external_id")
    return id_


def _turn_text(turn: dict[str, Any]) -> str:
    role, content = text_of(turn.get("role")), text_of(turn.get("content"))
    return f"{role}: {content}" if role not in ("", "user") else content


def _triple(row: dict[str, Any], gathered: Gathered) -> dict[str, Any]:
    """Return the triple of a fact. A reference that is no id of an entity is a plain name.

    kgray's export has the object's value in the metadata.
    """
    subject, target = text_of(row.get("subject_ref")), text_of(row.get("object_ref"))
    value = object_of(row.get("metadata")).get("value")
    return {
        "source": _named(gathered, subject),
        "relation": text_of(row.get("predicate")),
        **({"value": value} if isinstance(value, dict) else {"target": _named(gathered, target)}),
        "text": text_of(row.get("fact_text")),
        "valid_at": time_text(row.get("valid_at")),
        "invalid_at": time_text(row.get("invalid_at")),
    }


def _named(gathered: Gathered, reference: str) -> str:
    name = gathered.name(reference)
    return reference if name is None else name
