"""Hard removal (R25, R27): rows, words, vectors, answers; then the bytes.

Deleted rows are zeroed (secure_delete) and taken out of the full-text indexes at once (FTS5's own
secure-delete). What is left is what SQLite moved before it was deleted: copies in pages that were
rebalanced, and the write-ahead log. `Database.compact` rewrites the file and cuts the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import apsw

from kgray.ports import Commit
from kgray.records import Place
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import key_of, keys_of, many, one
from kgray.stores.sqlite.vectors import KIND_NUMBERS


def erase(connection: apsw.Connection, no: int, commit: Commit) -> None:
    """Delete what a commit erases, retire its rulings and verdicts; derived rows go by `Derived`."""
    sequences = sorted(set(commit.erased))
    dropped = 0
    statements: set[str] = set()
    for sequence in sequences:
        statements |= _erase_evidence(connection, no, sequence)
        dropped += _erase_mentions(connection, no, sequence)
        dropped += _drop_vector(connection, no, "episode", str(sequence), "")
        _erase_episode(connection, no, sequence)
    for statement in sorted(statements):
        if not one(connection, sql.HAS_EVIDENCE, (no, statement)):
            dropped += _drop_vector(connection, no, "statement", statement, "")
    if dropped:
        connection.execute(sql.COUNT_REMOVAL, (no,))
    _at(connection, sql.DROP_RULING, no, commit.erased_rulings)
    _at(connection, sql.DROP_VERDICT, no, commit.erased_verdicts)
    _at(connection, sql.BLANK_RULING, no, commit.blanked)
    _at(connection, sql.BLANK_VERDICT, no, commit.blanked)
    _at(connection, sql.RETIRE_RULING, no, commit.retired_rulings, commit.recorded_at)
    _at(connection, sql.RETIRE_VERDICT, no, commit.retired_verdicts, commit.recorded_at)
    for recorded in commit.gone_births:
        connection.execute(sql.DROP_BIRTH, (no, recorded))
        connection.execute(sql.DROP_SHOWN, (no, recorded))
    if sequences or commit.rewritten or commit.blanked or commit.erased_rulings or commit.erased_verdicts:
        connection.execute(sql.MARK_ERASED)


def forget(connection: apsw.Connection, no: int, sequence: int) -> None:
    """Delete a whole group up to `sequence`; the row that stays has no name unless something came after."""
    first, last = keys_of(no)
    for statement in sql.MARK_DELETIONS:
        connection.execute(statement)
    for statement in sql.FORGET_KEYED:
        connection.execute(statement, (first, last))
    for statement in sql.DELETE_AT_ONCE:
        connection.execute(statement)
    for statement in sql.FORGET_SEQUENCED:
        connection.execute(statement, (first, key_of(no, sequence)))
    for statement in sql.FORGET_NUMBERED:
        connection.execute(statement, (no,))
    connection.execute(sql.FORGET_ANSWERS, (no, sequence))
    connection.execute(sql.FORGET_USES, (no,))
    connection.execute(sql.COUNT_REMOVAL, (no,))
    if (
        one(connection, sql.PENDING_COUNT, (no,))[0] <= 1
    ):  # the removal itself, which ends in this transaction
        connection.execute(sql.UNNAME_GROUP, (no,))
    connection.execute(sql.MARK_ERASED)


def _erase_evidence(connection: apsw.Connection, no: int, sequence: int) -> set[str]:
    found = many(connection, sql.EVIDENCE_OF, (no, sequence))
    for key, _ in found:
        connection.execute(sql.UNINDEX_EVIDENCE, (key,))
        connection.execute(sql.DROP_EVIDENCE, (key,))
    return {statement for _, statement in found}


def _erase_mentions(connection: apsw.Connection, no: int, sequence: int) -> int:
    """Delete mentions and the surfaces that no other mention bears; return the vectors dropped."""
    dropped = 0
    for key, entity, surface in many(connection, sql.MENTIONS_OF, (no, sequence)):
        connection.execute(sql.DROP_MENTION, (key,))
        for name, uses in many(connection, sql.UNUSE_NAME, (no, entity, surface)):
            if uses <= 0:
                connection.execute(sql.UNINDEX_NAME, (name,))
                connection.execute(sql.DROP_NAME, (name,))
                dropped += _drop_vector(connection, no, "name", entity, surface)
    return dropped


def _erase_episode(connection: apsw.Connection, no: int, sequence: int) -> None:
    key = key_of(no, sequence)
    connection.execute(sql.UNINDEX_EPISODE, (key,))
    connection.execute(sql.DROP_EXTRACTION, (key,))
    connection.execute(sql.DROP_EPISODE, (key,))
    for (request,) in many(connection, sql.REQUESTS_OF, (no, sequence)):
        connection.execute(sql.DROP_ANSWERS, (no, request))
        connection.execute(sql.DROP_USES, (no, request))


def _drop_vector(connection: apsw.Connection, no: int, kind: str, owner: str, text: str) -> int:
    values = (no, KIND_NUMBERS[kind], owner, text)
    return len(connection.execute(sql.DROP_VECTOR, values).fetchall())


def _at(connection: apsw.Connection, statement: str, no: int, places: Iterable[Place], *before: int) -> None:
    values: Sequence[tuple[int, ...]] = [(*before, no, *place) for place in sorted(set(places))]
    if values:
        connection.executemany(statement, values)
