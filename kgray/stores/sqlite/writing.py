"""A run's writes, in order, in one transaction (R21, R23, R24)."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from kgray.ports import Answered, Declined, Extracted, Failed, Write
from kgray.stores import packing
from kgray.stores.sqlite import applying, rows
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import Database, key_of, one


def write(db: Database, writes: Sequence[Write], dimensions: int) -> None:
    """Carry out all of them or none; the epoch is checked first. See `ports.Store.write`.

    What a model can be asked again is not worth a wait for the disk; all else is.
    """
    durable = not all(isinstance(item, Extracted | Answered) for item in writes)
    with db.transaction(durable=durable) as connection:
        db.check_epoch(connection)
        for item in writes:
            match item:
                case Extracted():
                    _keep_extraction(db, connection, item)
                case Answered():
                    _keep_answers(db, connection, item)
                case Failed():
                    _fail(db, connection, item)
                case Declined():
                    _decline(db, connection, item)
                case _:
                    applying.apply(db, connection, item, dimensions)


def _keep_extraction(db: Database, connection: apsw.Connection, item: Extracted) -> None:
    no = db.known_group(connection, item.group)
    if no is None:
        return
    key = key_of(no, item.sequence)
    connection.execute(sql.EXTRACT_EPISODE, (key,))
    if connection.changes():
        extraction = item.extraction
        spent = (extraction.calls, extraction.prompt_tokens, extraction.completion_tokens)
        body = packing.storable(packing.extraction_body(extraction))
        connection.execute(sql.NEW_EXTRACTION, (key, *spent, body))


def _keep_answers(db: Database, connection: apsw.Connection, item: Answered) -> None:
    """Keep the first answers, and note who uses them; nothing for a sequence that has no row (any more)."""
    no = db.known_group(connection, item.group)
    if no is None or not one(connection, sql.IS_HELD, (key_of(no, item.sequence),)):
        return
    if item.judged is not None:
        judged = item.judged
        spent = (judged.calls, judged.prompt_tokens, judged.completion_tokens)
        body = packing.storable(packing.pack([dict(answer) for answer in judged.answers]))
        connection.execute(sql.NEW_ANSWERS, (no, item.key, body, *spent))
    elif not one(connection, sql.ANSWERS, (no, item.key)):
        return  # a removal took them since they were read
    connection.execute(sql.USE_ANSWERS, (no, item.sequence, item.key))


def _fail(db: Database, connection: apsw.Connection, item: Failed) -> None:
    no = db.known_group(connection, item.group)
    row = None if no is None else one(connection, sql.EPISODE_STATE, (key_of(no, item.sequence),))
    if no is None or row is None or row[0] >= rows.COMMITTED:
        return
    failed_at = db.next_record_time(connection, no, item.recorded_at)
    failure = item.failure
    message, raw = packing.storable(failure.message), packing.storable(failure.raw)
    why = (failure.kind, message, raw, failure.attempts)
    connection.execute(sql.FAIL_EPISODE, (failed_at, *why, key_of(no, item.sequence)))


def _decline(db: Database, connection: apsw.Connection, item: Declined) -> None:
    no = db.known_group(connection, item.group)
    row = None if no is None else one(connection, sql.OPERATION_STATE, (key_of(no, item.sequence),))
    if no is None or row is None or row[0] != rows.PENDING:
        return
    recorded_at = db.next_record_time(connection, no, item.recorded_at)
    body = packing.pack({"error": packing.storable(item.reason)})
    # Its names may be of what is removed later, and no removal would look for them here.
    ended = (rows.REFUSED, recorded_at, body, packing.NOTHING_NAMED, key_of(no, item.sequence))
    connection.execute(sql.END_OPERATION, ended)
    connection.execute(sql.MARK_ERASED)
