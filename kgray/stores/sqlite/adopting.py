"""A group into the file from another store, row by row, and seen by nobody before it is whole.

It stands under a number of its own, in a group without a name whose digest is no group's, until all of it is
there: one small transaction then gives it the name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apsw
import numpy as np

from kgray.errors import StoreError
from kgray.kept import (
    Kept,
    KeptAnswers,
    KeptBirth,
    KeptEntity,
    KeptEpisode,
    KeptEvidence,
    KeptExtraction,
    KeptFact,
    KeptGroup,
    KeptMention,
    KeptName,
    KeptOperation,
    KeptRuling,
    KeptShown,
    KeptUse,
    KeptVector,
    KeptVerdict,
    OperationState,
    portions,
)
from kgray.stores import packing
from kgray.stores.sqlite import erasing, rows
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite import statements_copying as copying
from kgray.stores.sqlite.database import MASK, Database, digest, key_of, one
from kgray.stores.sqlite.vectors import KIND_NUMBERS, first_key, sign_bits
from kgray.stores.words import folded, marked, words

_PORTION_ROWS = 1_000  # of a transaction
OPERATION_STATES: tuple[OperationState, ...] = ("pending", "done", "refused")  # as `rows.PENDING` and so on


class Adoption:
    """A group on its way into the file. no: its number, from `start` on."""

    def __init__(self, db: Database, group: str, dimensions: int) -> None:
        """Nothing is written yet."""
        self._db, self._group, self._dimensions = db, group, dimensions
        # "#" is in no group's name.
        self._stage = hashlib.sha256(b"#adopting " + group.encode()).digest()
        self._counts = {KeptMention: 0, KeptEvidence: 0, KeptName: 0}
        self._vectors = dict.fromkeys(KIND_NUMBERS, 0)
        self.no = 0
        self._takers: dict[type[Any], Callable[[apsw.Connection, Sequence[Any]], None]] = {
            KeptGroup: self._group_row,
            KeptEpisode: self._episodes,
            KeptOperation: self._operations,
            KeptExtraction: self._extractions,
            KeptAnswers: self._answers,
            KeptUse: self._uses,
            KeptBirth: self._births,
            KeptMention: self._mentions,
            KeptEvidence: self._evidence,
            KeptRuling: self._rulings,
            KeptVerdict: self._verdicts,
            KeptName: self._names,
            KeptVector: self._put_vectors,
            KeptEntity: self._entities,
            KeptShown: self._shown,
            KeptFact: self._facts,
        }

    def start(self) -> None:
        """Refuse a group that is there; delete what a killed process left; make the row without a name."""
        with self._db.transaction(durable=True) as connection:
            self._db.check_epoch(connection)
            self._refuse_known(connection)
            left = one(connection, sql.GROUP_NUMBER, (self._stage,))
            if left is None:
                connection.execute(copying.STAGE_GROUP, (self._stage,))
                self.no = int(connection.last_insert_rowid())
            else:
                self.no = int(left[0])
                erasing.forget(connection, self.no, MASK)

    def take(self, found: Iterable[Kept]) -> None:
        """Write the rows, a portion a transaction; a power cut may lose the last ones, and then all goes."""
        for kind, portion in portions(found, _PORTION_ROWS):
            with self._db.transaction(durable=False) as connection:
                self._db.check_epoch(connection)
                self._takers[kind](connection, portion)

    def finish(self) -> None:
        """Give the group its name: from now on it is there."""
        with self._db.transaction(durable=True) as connection:
            self._db.check_epoch(connection)
            self._refuse_known(connection)
            connection.execute(copying.NAME_GROUP, (self._group, digest(self._group), self.no))

    def undo(self) -> None:
        """Delete what was written, where this process may still write; else the next call does it."""
        with self._db.transaction(durable=True) as connection:
            row = one(connection, sql.GROUP_NUMBER, (self._stage,))
            if row is not None and row[0] == self.no:
                erasing.forget(connection, self.no, MASK)

    def _refuse_known(self, connection: apsw.Connection) -> None:
        held = one(connection, copying.HELD_GROUP, (digest(self._group),))
        if held is None:
            return
        name, last = held
        why = (
            "is there already"
            if name is not None
            else f"was there and was removed: its {last} sequences are never used again"
        )
        raise StoreError(
            f"group {self._group!r} in {self._db.path.parent} {why}; a copy needs a store that never had it"
        )

    # -------------------------------------------------------------------- rows of each kind

    def _group_row(self, connection: apsw.Connection, found: Sequence[KeptGroup]) -> None:
        for head in found:
            connection.execute(copying.COUNT_GROUP, (head.last, head.last_recorded, self.no))

    def _episodes(self, connection: apsw.Connection, found: Sequence[KeptEpisode]) -> None:
        no = self.no
        for kept in found:
            e = kept.episode
            key = key_of(no, e.sequence)
            values = (
                key, no, e.id, e.source, e.kind, e.text, e.reference_time, e.content_sha256, e.speaker,
                e.client_id, e.metadata, rows.STATES.index(e.state), int(e.bulk), kept.ended_at,
                kept.retired_at, kept.failure_kind, kept.failure_message, kept.failure_raw, kept.attempts,
            )  # fmt: skip
            connection.execute(copying.PUT_EPISODE, values)
            if e.state == "committed":
                told = words(f"{e.speaker} {e.text}" if e.speaker else e.text)
                connection.execute(sql.INDEX_EPISODE, (key, marked(told, no)))

    def _operations(self, connection: apsw.Connection, found: Sequence[KeptOperation]) -> None:
        connection.executemany(
            copying.PUT_OPERATION,
            [
                (
                    key_of(self.no, o.sequence), self.no, o.kind, o.payload,
                    OPERATION_STATES.index(o.state), o.recorded_at, o.result,
                )
                for o in found
            ],
        )  # fmt: skip

    def _extractions(self, connection: apsw.Connection, found: Sequence[KeptExtraction]) -> None:
        values = [
            (key_of(self.no, x.sequence), x.calls, x.prompt_tokens, x.completion_tokens, x.body)
            for x in found
        ]
        connection.executemany(sql.NEW_EXTRACTION, values)

    def _answers(self, connection: apsw.Connection, found: Sequence[KeptAnswers]) -> None:
        values = [(self.no, a.request, a.body, a.calls, a.prompt_tokens, a.completion_tokens) for a in found]
        connection.executemany(sql.NEW_ANSWERS, values)

    def _uses(self, connection: apsw.Connection, found: Sequence[KeptUse]) -> None:
        connection.executemany(sql.USE_ANSWERS, [(self.no, u.sequence, u.request) for u in found])

    def _births(self, connection: apsw.Connection, found: Sequence[KeptBirth]) -> None:
        connection.executemany(sql.NEW_BIRTH, [(self.no, b.id, b.sequence, b.ordinal) for b in found])

    def _mentions(self, connection: apsw.Connection, found: Sequence[KeptMention]) -> None:
        keyed = [(key, kept.mention) for key, kept in self._numbered(KeptMention, found)]
        connection.executemany(sql.NEW_MENTION, [rows.mention_row(self.no, *pair) for pair in keyed])

    def _evidence(self, connection: apsw.Connection, found: Sequence[KeptEvidence]) -> None:
        for key, kept in self._numbered(KeptEvidence, found):
            item = kept.evidence
            connection.execute(sql.NEW_EVIDENCE, rows.evidence_row(self.no, key, item, kept.shown))
            told = words(f"{item.text} {item.relation.replace('_', ' ')}")  # as a commit does
            connection.execute(sql.INDEX_EVIDENCE, (key, marked(told, self.no)))

    def _rulings(self, connection: apsw.Connection, found: Sequence[KeptRuling]) -> None:
        connection.executemany(
            copying.PUT_RULING,
            [
                (
                    self.no, r.sequence, r.ordinal, r.name, r.aspect, r.value, r.judge, r.other, r.reason,
                    kept.recorded_at, kept.retired_at,
                )
                for kept in found
                for r in (kept.ruling,)
            ],
        )  # fmt: skip

    def _verdicts(self, connection: apsw.Connection, found: Sequence[KeptVerdict]) -> None:
        connection.executemany(
            copying.PUT_VERDICT,
            [
                (
                    self.no, v.sequence, v.ordinal, v.a, v.b, int(v.exclusive), v.judge, v.reason,
                    kept.recorded_at, kept.retired_at,
                )
                for kept in found
                for v in (kept.verdict,)
            ],
        )  # fmt: skip

    def _names(self, connection: apsw.Connection, found: Sequence[KeptName]) -> None:
        for key, name in self._numbered(KeptName, found):
            connection.execute(copying.PUT_NAME, (key, self.no, name.entity, name.surface, name.uses))
            connection.execute(sql.INDEX_NAME, (key, marked(words(name.surface), self.no)))

    def _put_vectors(self, connection: apsw.Connection, found: Sequence[KeptVector]) -> None:
        if any(len(kept.vector) != 4 * self._dimensions for kept in found):
            raise StoreError(f"a vector of other than {self._dimensions} numbers: nothing was adopted")
        matrix = np.frombuffer(b"".join([kept.vector for kept in found]), "<f4")
        bits = sign_bits(matrix.reshape(len(found), self._dimensions))
        for kept, signs in zip(found, bits, strict=True):
            kind = KIND_NUMBERS[kept.kind]
            self._vectors[kept.kind] += 1
            key = first_key(self.no, kind) + self._vectors[kept.kind]
            values = (key, self.no, kind, kept.owner, kept.text, signs.tobytes(), kept.vector)
            connection.execute(sql.NEW_VECTOR, values).fetchall()

    def _entities(self, connection: apsw.Connection, found: Sequence[KeptEntity]) -> None:
        for kept in found:
            entity = kept.entity
            aliases, labels = packing.pack(entity.aliases), packing.pack(entity.labels)
            connection.execute(
                sql.PUT_ENTITY, (self.no, entity.id, entity.name, aliases, labels, *entity.born)
            )
            called = sorted({folded(name) for name in (entity.name, *entity.aliases)})
            connection.executemany(sql.PUT_CALLED, [(self.no, name, entity.id) for name in called])

    def _shown(self, connection: apsw.Connection, found: Sequence[KeptShown]) -> None:
        connection.executemany(sql.PUT_SHOWN, [(self.no, s.recorded, s.shown) for s in found])

    def _facts(self, connection: apsw.Connection, found: Sequence[KeptFact]) -> None:
        connection.executemany(sql.PUT_FACT, [rows.fact_row(self.no, kept.fact) for kept in found])

    def _numbered(self, kind: type[Any], found: Sequence[Any]) -> list[tuple[int, Any]]:
        """Return the rows with their keys, on from those before them."""
        before = self._counts[kind]
        self._counts[kind] += len(found)
        return [(key_of(self.no, n), item) for n, item in enumerate(found, before + 1)]
