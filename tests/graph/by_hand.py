"""Small stores and commits by hand: literal records, one entity and one fact an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kgray.graph import Derived, Entity, Fact
from kgray.ports import (
    Answered,
    Commit,
    Declined,
    Extracted,
    Failed,
    Failure,
    Judged,
    Matrix,
    NamedVector,
    SearchScope,
    Store,
    Vector,
)
from kgray.records import Draft, Evidence, Extraction, Mention, Operation, Value, canonical
from kgray.stores.sqlite import SqliteStore, open_sqlite

# One embedder for all tests on a store: the database that workers share is built for one.
EMBEDDER, WIDTH = "by-hand", 64


def small(folder: Path, **options: Any) -> SqliteStore:
    """Open an embedded store of `WIDTH` numbers a vector."""
    return open_sqlite(folder, **{"embedder": EMBEDDER, "dimensions": WIDTH, **options})


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


def extracted(sequence: int, extraction: Extraction, *, group: str = "g") -> Extracted:
    """Return the arrival of an extraction."""
    return Extracted(group=group, sequence=sequence, extraction=extraction)


def answered(sequence: int, key: str, *answers: dict[str, Any], group: str = "g", calls: int = 0) -> Answered:
    """Return the arrival of a request's answers; without any, their use alone."""
    judged = Judged(answers=answers, calls=calls) if answers else None
    return Answered(group=group, sequence=sequence, key=key, judged=judged)


def failed(sequence: int, at: int, message: str = "no", *, group: str = "g", raw: str = "") -> Failed:
    """Return the end of an episode that the server refused."""
    failure = Failure(kind="Refused", message=message, raw=raw)
    return Failed(group=group, sequence=sequence, recorded_at=at, failure=failure)


def declined(sequence: int, at: int, reason: str, *, group: str = "g") -> Declined:
    """Return the end of an operation that cannot be done."""
    return Declined(group=group, sequence=sequence, recorded_at=at, reason=reason)


def tell(store: Store, name: str, value: str, **fields: Any) -> int:
    """Accept and commit one episode; return its sequence. To be called inside `writing()`."""
    accepted = store.accept([draft(f"{name} says {value}", **fields)], now=1)[0]
    group = fields.get("group", "g")
    at = store.last_recorded(group) + 10
    commit = told(accepted.sequence or 0, name, value, at, group=group, episode=accepted.id)
    store.write([commit])
    return commit.sequence


def remove(store: Store, sequences: Sequence[int], *, group: str = "g", **named: Any) -> int:
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
    store.write([commit])
    return sequence


def everything(store: Store, group: str = "g") -> tuple[object, ...]:
    """Return what a reader can see of a group whose episodes were told by hand."""
    sequences = range(1, 10)
    entities = [f"E{n}" for n in sequences]
    records, view = store.records(group), store.view(group)
    return (
        records, view.facts_at(entities, None, None), view.entities(entities), store.counts(group),
        [store.lexical(group, scope, "al says one", 9) for scope in get_args(SearchScope)],
        [(owner, surface, vector.tolist()) for owner, surface, vector in store.name_vectors(group)],
        sorted(store.statement_vectors(group, [f"S{n}" for n in sequences])),
        [found[0] for found in store.nearest(group, "episode", pointing(*range(WIDTH)), 9)],
        list(store.episode_rows(group)), store.pending(group, 99), store.failures(group),
        [store.extraction(group, n) for n in sequences], [store.result(group, n) for n in sequences],
        store.last_recorded(group),
    )  # fmt: skip


def fill(
    store: Store, matrix: Matrix, *, group: str = "g", kind: Literal["name", "statement"] = "statement"
) -> None:
    """Commit these vectors, owners "0", "1", ...; 5,000 a commit."""
    for start in range(0, len(matrix), 5_000):
        (accepted,) = store.accept([draft(f"rows {start} {len(matrix)}", group=group)], now=1)
        named = tuple(
            NamedVector(kind=kind, owner=f"{start + n}", text=f"{start + n}", vector=vector)
            for n, vector in enumerate(matrix[start : start + 5_000])
        )
        at = store.last_recorded(group) + 1
        commit = Commit(group=group, sequence=accepted.sequence or 0, recorded_at=at, vectors=named)
        store.write([commit])


def unit(matrix: NDArray[Any]) -> Matrix:
    """Return the rows at length one, float32."""
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


def metadata(**fields: str) -> str:
    """Return metadata as the intake writes it."""
    return canonical(fields)
