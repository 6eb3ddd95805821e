"""Small stores and changes by hand: literal rows, one entity and one fact an episode.

Sequence n mentions the entity En, says the statement Sn and shows the fact Fn.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import (
    Declaration,
    Draft,
    Evidence,
    Extraction,
    Mention,
    Operation,
    Value,
    Verdict,
    canonical,
)
from kgray.language.words import term, words
from kgray.ports import Appending, GroupHead, Matrix, Patch, RowChanges, Store, Vector
from kgray.schema import kinds, reads, rows
from kgray.schema.kinds import EPISODES, KINDS, OPERATIONS, EpisodeRow, Key, Kind, Row
from kgray.schema.record_rows import (
    EntryRecords,
    Judgements,
    NameVector,
    TextVector,
    judged_column,
    search_columns,
)
from kgray.storage.ledger import pending
from kgray.storage.sqlite import SqliteStore, open_sqlite
from tests import make

# One embedder for all tests on a store: the database that workers share is built for one.
EMBEDDER, WIDTH = "by-hand", 64
WEIGHTS = rows.weight_bytes(np.array([7, 250_001], np.uint32), np.array([0.5, 0.25], np.float32))
OPEN = frozenset({kinds.ACCEPTED, kinds.EXTRACTED})  # an episode that has not ended
ANY = frozenset({*OPEN, kinds.COMMITTED, kinds.FAILED})
PENDING = frozenset({kinds.PENDING})  # an operation that has not ended


def small(folder: Path, **options: Any) -> SqliteStore:
    """Open an embedded store of `WIDTH` numbers a vector."""
    return open_sqlite(folder, **{"embedder": EMBEDDER, "dimensions": WIDTH, **options})


draft = partial(make.draft, at=5)  # reference time 5


def pointing(*hot: int, width: int = WIDTH) -> Vector:
    """Return the unit vector between these axes."""
    vector = np.zeros(width, np.float32)
    vector[list(hot)] = 1.0
    return vector / np.float32(np.linalg.norm(vector))


def stored(*hot: int, width: int = WIDTH) -> bytes:
    """Return the same as a row has it."""
    return rows.vector_bytes(pointing(*hot, width=width))


# ------------------------------------------------------------------------------------- the log


def append(store: Store, *drafts: Draft, bulk: bool = False) -> list[int]:
    """Append drafts unchecked (the ledger rejects duplicates); return their sequences."""

    def work(log: Appending) -> list[int]:
        sequences = []
        for sent in drafts:
            sequences.append(log.take_sequence(sent.group))
            log.put(EPISODES, sent.group, episode_row(sent, sequences[-1], bulk=bulk))
        return sequences

    return store.append({sent.group for sent in drafts}, work)


def episode_row(sent: Draft, sequence: int, *, bulk: bool = False, **changed: Any) -> EpisodeRow:
    """Return the row of an accepted draft; changed: columns."""
    row = rows.new_episode_row(
        sent, id_=sent.id, content_sha256=sent.content_sha256, sequence=sequence,
        now=1, bulk=bulk,
    )  # fmt: skip
    return row._replace(**changed)


def ask(store: Store, operation: Operation) -> int:
    """Append a correction; return its sequence."""

    def work(log: Appending) -> int:
        sequence = log.take_sequence(operation.group)
        log.put(OPERATIONS, operation.group, rows.operation_row(replace(operation, sequence=sequence)))
        return sequence

    return store.append([operation.group], work)


# ------------------------------------------------------------------------------------- changes


def statement_commit(
    sequence: int, name: str, value: str, at: int, *, group: str = "g", sent: Draft | None = None,
    relation: str = "SAYS",
) -> RowChanges:  # fmt: skip
    """Return the commit of an episode that mentions an entity and states a value of it."""
    entity, statement, text = f"E{sequence}", f"S{sequence}", f"{name} says {value}"
    sent = sent or draft(text, group=group)
    mention = Mention(sequence=sequence, ordinal=0, surface=name, entity=entity, sentence=text)
    evidence = Evidence(
        sequence=sequence, ordinal=0, statement=statement, variant=0, kind="holds", relation=relation,
        text=text, subject=0, value=Value("text", value), valid_from=5,
    )  # fmt: skip
    fact = Fact(
        id=f"F{sequence}", statement=statement, source=entity, relation=relation, text=text, created_at=at,
        value=Value("text", value), valid_at=5, episodes=(sent.id,),
    )  # fmt: skip
    vector = stored(sequence % WIDTH)
    records = EntryRecords(
        sequence=sequence,
        recorded_at=at,
        mentions=[mention],
        evidence=[evidence],
        births={entity: (sequence, 0), statement: (sequence, 0)},
        names=[NameVector(entity, name, sequence, 0, vector)],
        statements={statement: TextVector(vector, WEIGHTS)},
        text=sent.text,
        vector=TextVector(vector),
    )
    return changes(
        sequence,
        at,
        {
            EPISODES: [episode_row(sent, sequence, state=kinds.COMMITTED, ended_at=at)],
            kinds.RECORDS: [records.row()],
            kinds.ENTITIES: [rows.entity_row(Entity(id=entity, name=name, born=(sequence, 0)))],
            kinds.MENTIONS: [(entity, sequence)],
            kinds.FACTS: [rows.fact_row(fact)],
        },
        group=group,
    )


def with_judgements(
    commit: RowChanges, *, declarations: Sequence[Declaration] = (), verdicts: Sequence[Verdict] = ()
) -> RowChanges:
    """Return a commit of `statement_commit` that records declarations and verdicts too."""
    at = commit.recorded_at or 0
    judgements = Judgements(
        [(declaration, at) for declaration in declarations], [(verdict, at) for verdict in verdicts]
    )
    (row,) = commit.puts[kinds.RECORDS]
    judged = kinds.RecordRow(*row)._replace(timed=at, judged=judged_column(judgements))
    return replace(commit, puts={**commit.puts, kinds.RECORDS: [judged]})


def changes(
    sequence: int, at: int | None, puts: Mapping[Kind, Sequence[Row]], *, group: str = "g", **overrides: Any
) -> RowChanges:
    """Return changes of an episode that has not ended; `overrides` may require other states."""
    fields = {"ledger": EPISODES, "states": OPEN, **overrides}
    return RowChanges(group=group, sequence=sequence, recorded_at=at, puts=puts, **fields)


def extracted(sequence: int, extraction: Extraction, *, group: str = "g") -> RowChanges:
    """Return the arrival of an extraction."""
    state = Patch(kind=EPISODES, columns=("state",), rows=((sequence, kinds.EXTRACTED),))
    return changes(
        sequence, None, {kinds.EXTRACTIONS: [rows.extraction_row(sequence, extraction)]}, group=group,
        states=frozenset({kinds.ACCEPTED}), patches=(state,), durable=False,
    )  # fmt: skip


def answered(
    sequence: int, key: str, *answers: dict[str, Any], group: str = "g", calls: int = 0
) -> RowChanges:
    """Return the arrival of answers to a request, which an episode uses."""
    puts = {kinds.ANSWERS: [rows.answers_row(sequence, key, answers, calls, 0, 0)]}
    return changes(sequence, None, puts, group=group, states=ANY, durable=False)


def failed(sequence: int, at: int, message: str = "no", *, group: str = "g", raw: str = "") -> RowChanges:
    """Return the end of an episode that the server refused."""
    columns = ("state", "ended_at", "attempts", "failure_kind", "failure_message", "failure_raw")
    row = (sequence, kinds.FAILED, at, 1, "Refused", message, raw)
    return changes(
        sequence, at, {}, group=group, patches=(Patch(kind=EPISODES, columns=columns, rows=(row,)),)
    )


def ended(
    operation: Operation, at: int, *, state: int = kinds.DONE, result: Mapping[str, Any] | None = None,
    puts: Mapping[Kind, Sequence[Row]] | None = None, **fields: Any,
) -> RowChanges:  # fmt: skip
    """Return the end of an operation, with all other changes of its commit."""
    row = rows.operation_row(operation, state, at, result or {})
    return changes(
        operation.sequence, at, {**(puts or {}), OPERATIONS: [row]}, group=operation.group,
        ledger=OPERATIONS, states=PENDING, **fields,
    )  # fmt: skip


def declined(sequence: int, at: int, reason: str, *, group: str = "g", kind: Any = "merge") -> RowChanges:
    """Return the end of an operation that cannot be done."""
    operation = Operation(group=group, sequence=sequence, kind=kind)
    return ended(operation, at, state=kinds.REFUSED, result={"error": reason}, erases=True)


# ------------------------------------------------------------------------------- applied at once


def tell(store: Store, name: str, value: str, **fields: Any) -> int:
    """Append and commit one episode; return its sequence. To be called inside `writing()`."""
    sent = draft(f"{name} says {value}", **fields)
    (sequence,) = append(store, sent)
    store.apply(
        [statement_commit(sequence, name, value, next_time(store, sent.group), group=sent.group, sent=sent)]
    )
    return sequence


def remove(store: Store, sequences: Sequence[int], *, group: str = "g", **named: Any) -> int:
    """Ask for a hard removal and carry it out; return its sequence."""
    operation = Operation(group=group, kind="remove", **named)
    operation = replace(operation, sequence=ask(store, operation))
    clears = bool(named.get("everything"))
    drops = {} if clears else rows_of(store, sequences, group=group)
    result = {"episodes": len(sequences)}
    options = {"clear": clears, "drops": drops, "erases": True, "unsettles": True}
    end = ended(operation, next_time(store, group), result=result, **options)
    store.apply([end])
    return operation.sequence


def rows_of(store: Store, sequences: Sequence[int], *, group: str = "g") -> dict[Kind, list[Key]]:
    """Return the keys of all rows of these episodes, which were committed by hand."""
    named = {f"{letter}{n}" for n in sequences for letter in "ESF"}
    results: dict[Kind, list[Key]] = {}
    for kind in KINDS:
        for row in store.rows(kind.all, group):
            values = dict(zip(kind.names, row, strict=True))
            if values.get("sequence") in sequences or named & {values[name] for name in kind.key}:
                results.setdefault(kind, []).append(kind.key_of(row))
    return results


# ------------------------------------------------------------------------------------- reading


def all_of(store: Store, kind: Kind, group: str = "g") -> list[Row]:
    """Return every row of a kind."""
    return list(store.rows(kind.all, group))


def head(store: Store, group: str = "g") -> GroupHead:
    """Return the counters of a group."""
    return store.heads([group])[group]


def next_time(store: Store, group: str = "g") -> int:
    """Return a record time past the group's last."""
    return head(store, group).last_recorded + 10


def everything(store: Store, group: str = "g") -> dict[str, object]:
    """Return all that a reader can see of a group whose episodes were committed by hand."""
    entities = [f"E{n}" for n in range(1, 10)]
    contents: dict[str, object] = {kind.name: all_of(store, kind, group) for kind in KINDS}
    contents["head"] = replace(
        head(store, group), removals=0
    )  # each store counts its own removals: a copy starts at 0
    contents |= {"counts": store.counts(group), "pending": pending(store, group, 99)}
    contents["facts at entities"] = store.facts_at(group, entities, None, None)
    return contents


def worded(store: Store, scope: str, text: str, group: str = "g") -> list[Any]:
    """Return all records with a word of a text, in scan order: evidence places, entity ids, sequences."""
    terms_of_text = {term(word) for word in words(text)}
    results: list[Any] = []
    for row in store.rows(reads.SEARCHED, group):
        columns = search_columns(row.search)
        bearers: list[tuple[Any, bytes]] = [((row.sequence, at), terms) for at, _, terms in columns.evidence]
        if scope == "entity":
            bearers = [(entity, terms) for _, _, entity, _, terms, _ in columns.names]
        elif scope == "episode":
            bearers = [(row.sequence, columns.episode[0])] if columns.episode else []
        results += [owner for owner, terms in bearers if not terms_of_text.isdisjoint(array("I", terms))]
    return results


def fill(store: Store, matrix: Matrix, *, group: str = "g", scope: str = "fact", first: int = 0) -> None:
    """Commit vectors of statements (scope "fact") or of names, owners "0", "1", ... from `first` on."""
    for start in range(0, len(matrix), 5_000):
        (sequence,) = append(store, draft(f"rows {start} {len(matrix)}", group=group))
        at = next_time(store, group)
        part = matrix[start : start + 5_000]
        named = {str(first + start + n): rows.vector_bytes(vector) for n, vector in enumerate(part)}
        records = EntryRecords(sequence=sequence, recorded_at=at, text="")
        if scope == "fact":
            records.statements = {owner: TextVector(vector) for owner, vector in named.items()}
        else:
            records.names = [NameVector(o, o, sequence, n, v) for n, (o, v) in enumerate(named.items())]
        commit = Patch(kind=EPISODES, columns=("state",), rows=((sequence, kinds.COMMITTED),))
        store.apply([changes(sequence, at, {kinds.RECORDS: [records.row()]}, group=group, patches=(commit,))])


def unit(matrix: NDArray[Any]) -> Matrix:
    """Return the rows at length one, float32."""
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


def metadata(**fields: str) -> str:
    """Return metadata as the intake writes it."""
    return canonical(fields)
