"""One commit, whole (R23): records, vectors, words, derived rows, the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import apsw
import numpy as np

from kgray.errors import Outrun, StoreError
from kgray.graph import Derived, Entity
from kgray.ports import Commit, NamedVector
from kgray.records import Evidence, Mention, Place
from kgray.stores import packing
from kgray.stores.sqlite import erasing, rows
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import Database, key_of, keys_of, one
from kgray.stores.sqlite.vectors import KIND_NUMBERS, first_key, last_key, sign_bits
from kgray.stores.words import folded, marked, words


def apply(db: Database, connection: apsw.Connection, commit: Commit, dimensions: int) -> None:
    """Apply one sequence inside a transaction of `db`; one that has ended, or was removed, is left out.

    Raises Outrun where its record time is not past the group's last, StoreError for a sequence that was
    never taken; the transaction is then to be rolled back.
    """
    no = db.known_group(connection, commit.group)
    if no is None:
        raise StoreError(f"group {commit.group!r} has no sequence {commit.sequence}: it is empty")
    if _ended(connection, no, commit):
        return
    times = (commit.recorded_at, no, commit.recorded_at)
    if not one(connection, sql.SET_RECORD_TIME, times):
        raise Outrun(
            f"sequence {commit.sequence} of group {commit.group!r} bears the record time "
            f"{commit.recorded_at}, which is not past the group's last"
        )
    if commit.forgotten:
        erasing.forget(connection, no, commit.sequence)
    else:
        erasing.erase(connection, no, commit)
        _record(connection, no, commit)
        _put_vectors(connection, no, commit.vectors, dimensions)
        for operation in commit.rewritten:
            values = (packing.operation_payload(operation), key_of(no, operation.sequence))
            connection.execute(sql.REWRITE_OPERATION, values)
        _derive(connection, no, commit.derived, {(e.sequence, e.ordinal) for e in commit.evidence})
        for sequence in sorted(set(commit.retired)):
            connection.execute(sql.RETIRE_EPISODE, (commit.recorded_at, key_of(no, sequence)))
    _end(connection, no, commit)


def _ended(connection: apsw.Connection, no: int, commit: Commit) -> bool:
    """Whether the sequence has ended, or was removed since."""
    key = key_of(no, commit.sequence)
    state = sql.EPISODE_STATE if commit.operation is None else sql.OPERATION_STATE
    row = one(connection, state, (key,))
    if row is None:
        last, _ = one(connection, sql.GROUP_LAST, (no,))
        if commit.sequence <= last and not one(connection, sql.IS_HELD, (key,)):
            return True
        raise StoreError(f"group {commit.group!r} has no such sequence to commit: {commit.sequence}")
    return bool(row[0] >= (rows.COMMITTED if commit.operation is None else rows.DONE))


def _end(connection: apsw.Connection, no: int, commit: Commit) -> None:
    """Write the ledger's row: the episode is committed, or the operation has its result."""
    key = key_of(no, commit.sequence)
    if commit.operation is not None:
        body = packing.pack(dict(commit.result))
        payload = packing.operation_payload(commit.operation)
        connection.execute(sql.END_OPERATION, (rows.DONE, commit.recorded_at, body, payload, key))
        return
    connection.execute(sql.COMMIT_EPISODE, (commit.recorded_at, key))
    speaker, text = one(connection, sql.EPISODE_TEXT, (key,))
    found = words(f"{speaker} {text}" if speaker else text)
    connection.execute(sql.INDEX_EPISODE, (key, marked(found, no)))


# ------------------------------------------------------------------------------------- records


def _record(connection: apsw.Connection, no: int, commit: Commit) -> None:
    births = sorted(set(commit.births), key=lambda birth: birth[1])
    if births:
        connection.executemany(sql.NEW_BIRTH, [(no, recorded, *place) for recorded, place in births])
    if commit.mentions:
        _record_mentions(connection, no, commit.mentions)
    if commit.evidence:
        _record_evidence(connection, no, commit.evidence, dict(commit.derived.shown_statements))
    if commit.rulings:
        connection.executemany(
            sql.NEW_RULING,
            [
                (
                    no, r.sequence, r.ordinal, r.name, r.aspect, r.value, r.judge, r.other, r.reason,
                    commit.recorded_at,
                )
                for r in sorted(commit.rulings, key=lambda r: (r.sequence, r.ordinal))
            ],
        )  # fmt: skip
    if commit.verdicts:
        connection.executemany(
            sql.NEW_VERDICT,
            [
                (no, v.sequence, v.ordinal, v.a, v.b, int(v.exclusive), v.judge, v.reason, commit.recorded_at)
                for v in sorted(commit.verdicts, key=lambda v: (v.sequence, v.ordinal))
            ],
        )


def _next_key(connection: apsw.Connection, statement: str, first: int, last: int) -> int:
    (highest,) = one(connection, statement, (first, last))
    return first + 1 if highest is None else int(highest) + 1


def _record_mentions(connection: apsw.Connection, no: int, mentions: Sequence[Mention]) -> None:
    own = {(mention.sequence, mention.ordinal): mention for mention in mentions}
    key = _next_key(connection, sql.LAST_MENTION, *keys_of(no))
    sorted_own = [own[place] for place in sorted(own)]
    connection.executemany(
        sql.NEW_MENTION, [rows.mention_row(no, key + n, mention) for n, mention in enumerate(sorted_own)]
    )
    key = _next_key(connection, sql.LAST_NAME, *keys_of(no))
    for (entity, surface), uses in Counter((m.entity, m.surface) for m in sorted_own).items():
        (stored,) = one(connection, sql.USE_NAME, (key, no, entity, surface, uses))
        if stored == key:
            connection.execute(sql.INDEX_NAME, (key, marked(words(surface), no)))
            key += 1


def _record_evidence(
    connection: apsw.Connection, no: int, evidence: Sequence[Evidence], shown: dict[Place, str | None]
) -> None:
    own = {(item.sequence, item.ordinal): item for item in evidence}
    key = _next_key(connection, sql.LAST_EVIDENCE, *keys_of(no))
    numbered = list(enumerate((own[place] for place in sorted(own)), key))
    connection.executemany(
        sql.NEW_EVIDENCE,
        [rows.evidence_row(no, n, item, shown.get((item.sequence, item.ordinal))) for n, item in numbered],
    )
    # The relation's words are found too: "where does she live" meets "moved to Lyon" in LIVES_IN.
    connection.executemany(
        sql.INDEX_EVIDENCE,
        [(n, marked(words(f"{item.text} {item.relation.replace('_', ' ')}"), no)) for n, item in numbered],
    )


def _put_vectors(
    connection: apsw.Connection, no: int, vectors: Sequence[NamedVector], dimensions: int
) -> None:
    """Insert vectors; one that replaces another (a statement's first wording changed) is a new row."""
    if not vectors:
        return
    matrix = np.ascontiguousarray([named.vector for named in vectors], dtype="<f4")
    if matrix.shape != (len(vectors), dimensions):
        raise StoreError(f"vectors of shape {matrix.shape[1:]} in a store of {dimensions} numbers a vector")
    bits = sign_bits(matrix)
    next_keys: dict[int, int] = {}
    replaced = False
    for n, named in enumerate(vectors):
        kind = KIND_NUMBERS[named.kind]
        if kind not in next_keys:
            next_keys[kind] = _next_key(connection, sql.LAST_VECTOR, first_key(no, kind), last_key(no, kind))
        # A statement has one vector, whatever its wording was: the text is not kept.
        text = named.text if named.kind == "name" else ""
        values = (no, kind, named.owner, text, bits[n].tobytes(), matrix[n].tobytes())
        if not one(connection, sql.NEW_VECTOR, (next_keys[kind], *values)):
            old, blob = one(connection, sql.VECTOR_OF, values[:4])
            if blob == values[5]:
                continue
            connection.execute(sql.DROP_VECTOR_KEY, (old,))
            connection.execute(sql.NEW_VECTOR, (next_keys[kind], *values)).fetchall()
            replaced = True
        next_keys[kind] += 1
    if replaced:
        connection.execute(sql.COUNT_REMOVAL, (no,))


# --------------------------------------------------------------------------- the derived graph


def _derive(connection: apsw.Connection, no: int, derived: Derived, just_recorded: set[Place]) -> None:
    for fact_id in sorted(set(derived.gone_facts)):
        connection.execute(sql.DROP_FACT, (no, fact_id))
    facts = {fact.id: fact for fact in derived.facts}
    if facts:
        connection.executemany(sql.PUT_FACT, [rows.fact_row(no, facts[id_]) for id_ in sorted(facts)])
    for entity_id in sorted(set(derived.gone_entities)):
        connection.execute(sql.DROP_CALLED, (no, entity_id))
        connection.execute(sql.DROP_ENTITY, (no, entity_id))
    for entity in sorted({entity.id: entity for entity in derived.entities}.values(), key=lambda e: e.id):
        _put_entity(connection, no, entity)
    shown: dict[str, list[str]] = {}
    for recorded, as_id in derived.shown_entities:
        shown.setdefault(recorded, []).extend([] if as_id is None else [as_id])
    for recorded in sorted(shown):
        connection.execute(sql.DROP_SHOWN, (no, recorded))
        for as_id in shown[recorded]:
            connection.execute(sql.PUT_SHOWN, (no, recorded, as_id))
    moved = [(as_id, no, *place) for place, as_id in derived.shown_statements if place not in just_recorded]
    if moved:
        connection.executemany(sql.SHOW_EVIDENCE, moved)


def _put_entity(connection: apsw.Connection, no: int, entity: Entity) -> None:
    connection.execute(sql.DROP_CALLED, (no, entity.id))
    aliases, labels = packing.pack(entity.aliases), packing.pack(entity.labels)
    connection.execute(sql.PUT_ENTITY, (no, entity.id, entity.name, aliases, labels, *entity.born))
    names = sorted({folded(name) for name in (entity.name, *entity.aliases)})
    connection.executemany(sql.PUT_CALLED, [(no, name, entity.id) for name in names])
