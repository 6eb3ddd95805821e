"""Small stores and commits by hand: literal records, one entity and one fact an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kgray.graph import Derived, Entity, Fact
from kgray.ports import Commit, NamedVector, Vector
from kgray.records import Draft, Evidence, Mention, Operation, Value, canonical
from kgray.stores.sqlite import SqliteStore, open_sqlite

WIDTH = 16


def small(folder: Path, **options: Any) -> SqliteStore:
    """Open a store of 16 numbers a vector."""
    return open_sqlite(folder, **{"embedder": "by-hand", "dimensions": WIDTH, **options})


def draft(text: str, **fields: Any) -> Draft:
    """Return a draft in group g, said at instant 5 unless told."""
    return Draft(**{"group": "g", "source": "s", "kind": "text", "text": text, "reference_time": 5, **fields})


def pointing(*hot: int, width: int = WIDTH) -> Vector:
    """Return the unit vector between these axes."""
    vector = np.zeros(width, np.float32)
    vector[list(hot)] = 1.0
    return vector / np.float32(np.linalg.norm(vector))


def told(
    sequence: int,
    name: str,
    value: str,
    at: int,
    *,
    group: str = "g",
    episode: str = "",
    relation: str = "SAYS",
) -> Commit:
    """Return the commit of an episode that mentions one entity and says one value of it."""
    entity, statement, fact = f"E{sequence}", f"S{sequence}", f"F{sequence}"
    text = f"{name} says {value}"
    vectors = (
        NamedVector(kind="name", owner=entity, text=name, vector=pointing(sequence % WIDTH)),
        NamedVector(kind="statement", owner=statement, text=text, vector=pointing(sequence % WIDTH)),
        NamedVector(kind="episode", owner=str(sequence), text="", vector=pointing(sequence % WIDTH)),
    )
    place = (sequence, 0)
    return Commit(
        group=group,
        sequence=sequence,
        recorded_at=at,
        births=((entity, place), (statement, place)),
        mentions=(Mention(sequence=sequence, ordinal=0, surface=name, entity=entity, sentence=text),),
        evidence=(
            Evidence(
                sequence=sequence, ordinal=0, statement=statement, variant=0, kind="holds", relation=relation,
                text=text, subject=0, value=Value("text", value), valid_from=5,
            ),
        ),
        vectors=vectors,
        derived=Derived(
            entities=(Entity(id=entity, name=name, born=place),),
            facts=(
                Fact(
                    id=fact, statement=statement, source=entity, relation=relation, text=text, created_at=at,
                    value=Value("text", value), valid_at=5, episodes=(episode,) if episode else (),
                ),
            ),
            shown_entities=((entity, entity),),
            shown_statements=((place, statement),),
        ),
    )  # fmt: skip


def gone(*sequences: int) -> Derived:
    """Return what derivation says when these episodes' records are gone."""
    return Derived(
        gone_entities=tuple(f"E{n}" for n in sequences),
        gone_facts=tuple(f"F{n}" for n in sequences),
        shown_entities=tuple((f"E{n}", None) for n in sequences),
        shown_statements=tuple(((n, 0), None) for n in sequences),
    )


def tell(store: SqliteStore, name: str, value: str, **fields: Any) -> int:
    """Accept and commit one episode; return its sequence. To be called inside `writing()`."""
    accepted = store.accept([draft(f"{name} says {value}", **fields)], now=1)[0]
    group = fields.get("group", "g")
    at = store.last_recorded(group) + 10
    commit = told(accepted.sequence or 0, name, value, at, group=group, episode=accepted.id)
    store.apply(commit)
    return commit.sequence


def remove(store: SqliteStore, sequences: Sequence[int], *, group: str = "g", **named: Any) -> int:
    """Request a hard removal and carry it out; return its sequence."""
    asked = Operation(group=group, kind="remove", **named)
    sequence = store.request(asked, now=1)
    commit = Commit(
        group=group,
        sequence=sequence,
        recorded_at=store.last_recorded(group) + 10,
        operation=replace(asked, sequence=sequence),
        result={"episodes": len(sequences)},
        erased=tuple(sequences),
        forgotten=bool(named.get("everything")),
        gone_births=tuple(f"{kind}{n}" for n in sequences for kind in "ES"),
        derived=gone(*sequences),
    )
    store.apply(commit)
    return sequence


def metadata(**fields: str) -> str:
    """Return metadata as the intake writes it."""
    return canonical(fields)
