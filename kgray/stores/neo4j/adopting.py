"""A group into the database from another store, portion by portion, and found by nobody before it is whole.

All reads of a graph begin at episodes, entities, or evidence and what it shows as; these are kept out of
sight (episodes and entities under a group of no name, evidence without what it shows) until one transaction
shows them all. The node of the group bears a token meanwhile, and appending to it is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from kgray import times
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
from kgray.stores.neo4j import fence, rows
from kgray.stores.neo4j import statements_commit as commit
from kgray.stores.neo4j import statements_copying as cypher
from kgray.stores.neo4j.connection import Connection, Running
from kgray.stores.neo4j.fence import Held
from kgray.stores.neo4j.groups import group_id
from kgray.stores.neo4j.rows import Values, digest, mark
from kgray.stores.words import folded, marked, words
from kgray.times import Instant

_PORTION_ROWS = 500
OPERATION_STATES: tuple[OperationState, ...] = ("pending", "done", "refused")  # as `rows.PENDING` and so on
_RECORDS = ("extractions", "answers", "births", "mentions", "evidence", "rulings", "verdicts")
Work = Callable[[Running], None]


class Adoption:
    """A group on its way into the database."""

    def __init__(self, db: Connection, held: Held | None, group: str, dimensions: int) -> None:
        """Nothing is written yet."""
        self._db, self._held, self._group, self._dimensions = db, held, group, dimensions
        self._id, self._staged, self._token = group_id(group), f"#{group_id(group)}", str(uuid.uuid4())
        self._number = 0
        self._head = KeptGroup(last=0, last_recorded=0)
        # Running numbers stand for places: what the group commits later has greater ones.
        self._places = {"name": 0, "statement": 0, "episode": 0, "born": 0}
        self._recorded: dict[int, Instant] = {}  # sequence -> when it ended
        self._edges: dict[str, list[str]] = {}  # episode id -> its facts
        self._linked: list[tuple[int, str]] = []  # committed episodes: sequence, id
        self._named: list[Values] = []  # entities, whose embedding is that of their name
        self._takers: dict[type[Any], Callable[[Sequence[Any]], Work]] = {
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
            KeptVector: self._vectors,
            KeptEntity: self._entities,
            KeptShown: self._shown,
            KeptFact: self._facts,
        }

    def start(self) -> None:
        """Refuse a group that is there; delete what a killed process left; make the node without a name."""

        def work(running: Running, _: int) -> bool:
            fence.check(self._db, running, self._held)
            found = self._db.run(running, cypher.HELD, id=self._id)
            left = bool(found) and found[0][2] is not None
            if found and not left:
                self._refuse(*found[0][:2])
            self._db.run(running, cypher.STAGE, id=self._id, token=self._token)
            return left

        if self._db.write(work):
            self._clear()

    def take(self, found: Iterable[Kept]) -> None:
        """Write the rows, a portion a transaction."""
        for kind, portion in portions(found, _PORTION_ROWS):
            self._carry_out(self._takers[kind](portion))
        for start in range(0, len(self._named), _PORTION_ROWS):
            named = self._named[start : start + _PORTION_ROWS]
            self._carry_out(self._sending(cypher.NAME_ENTITIES_IN, named))
        for start in range(0, len(self._linked), _PORTION_ROWS):
            ended = self._linked[start : start + _PORTION_ROWS]
            linked = [{"sequence": n, "edges": sorted(self._edges.get(id_, ()))} for n, id_ in ended]
            self._carry_out(self._sending(cypher.LINK_IN, linked))

    def reveal(self) -> None:
        """Let reads find it, in one transaction; it is not listed yet."""

        def work(running: Running) -> None:
            for statement in cypher.REVEAL:
                self._db.run(running, statement, group=self._group, staged=self._staged)
            counters = {"last": self._head.last, "last_recorded": self._head.last_recorded}
            self._db.run(running, cypher.COUNT_GROUP, id=self._id, **counters)

        self._carry_out(work)

    def finish(self) -> None:
        """Give the group its name: from now on it is there."""

        def work(running: Running, _: int) -> None:
            fence.check(self._db, running, self._held)
            named = {"id": self._id, "token": self._token, "group": self._group}
            if not self._db.run(running, cypher.NAME_GROUP, **named):
                raise self._lost()

        self._db.write(work)

    def undo(self) -> None:
        """Delete what was written, unless another process has taken it over since."""

        def work(running: Running, _: int) -> bool:
            found = self._db.run(running, cypher.HELD, id=self._id)
            return bool(found) and found[0][2] == self._token

        if self._db.write(work):
            self._clear()
            self._db.write(
                lambda running, _: self._db.run(running, cypher.UNSTAGE, id=self._id, token=self._token)
            )

    def _refuse(self, name: str | None, last: int) -> None:
        why = (
            "is there already"
            if name is not None
            else f"was there and was removed: its {last} sequences are never used again"
        )
        raise StoreError(
            f"group {self._group!r} in {self._db.where} {why}; a copy needs a store that never had it"
        )

    def _clear(self) -> None:
        for statement in cypher.CLEAR:
            self._db.alone(statement, groups=[self._group, self._staged])

    def _carry_out(self, work: Work) -> None:
        """Run a portion once, whatever became of the answer to its commit."""
        self._number += 1
        number = self._number

        def once(running: Running, _: int) -> None:
            fence.check(self._db, running, self._held)
            step = {"id": self._id, "token": self._token, "number": number}
            found = self._db.run(running, cypher.STEP, **step)
            if not found:
                raise self._lost()
            if found[0][0] < number:
                work(running)
                fence.renew_late(self._db, running, self._held)

        self._db.write(once)

    def _lost(self) -> StoreError:
        return StoreError(f"another process has taken group {self._group!r} over meanwhile: run it again")

    def _sending(self, statement: str, values: Sequence[Values]) -> Work:
        """Return the work of one statement that takes rows."""

        def work(running: Running) -> None:
            self._db.run(running, statement, rows=list(values), group=self._group, staged=self._staged)

        return work

    def _recording(self, kind: str, values: Sequence[Values]) -> Work:
        """Return the work of recording rows of one kind."""
        lists: dict[str, list[Values]] = {name: [] for name in _RECORDS}
        lists[kind] = list(values)

        def work(running: Running) -> None:
            self._db.run(running, commit.RECORD, **lists)

        return work

    # -------------------------------------------------------------------- rows of each kind

    def _group_row(self, found: Sequence[KeptGroup]) -> Work:
        self._head = found[0]
        return lambda _: None

    def _episodes(self, found: Sequence[KeptEpisode]) -> Work:
        values = []
        for kept in found:
            episode = kept.episode
            if kept.ended_at is not None:
                self._recorded[episode.sequence] = kept.ended_at
            live = episode.state == "committed" and kept.retired_at is None
            values.append({"put": self._episode_row(kept), "live": live})
        return self._sending(cypher.EPISODES_IN, values)

    def _episode_row(self, kept: KeptEpisode) -> Values:
        e = kept.episode
        row: Values = {
            "group_id": self._staged, "sequence": e.sequence, "uuid": e.id, "source_description": e.source,
            "kind": e.kind, "content": e.text, "said": e.reference_time, "content_sha256": e.content_sha256,
            "speaker": e.speaker, "client_id": e.client_id, "metadata": e.metadata,
            "state": rows.STATES.index(e.state), "bulk": e.bulk, "ended_at": kept.ended_at,
            "retired_at": kept.retired_at, "failure_kind": kept.failure_kind,
            "failure_message": kept.failure_message, "failure_raw": kept.failure_raw,
            "attempts": kept.attempts,
        }  # fmt: skip
        if e.state != "committed":
            return row
        self._linked.append((e.sequence, e.id))
        told = words(f"{e.speaker} {e.text}" if e.speaker else e.text)
        shown = rows.shown_episode(e.kind, e.client_id, e.id, e.reference_time)
        return row | shown | {"created_at": rows.moment(kept.ended_at), "words": self._marked(told)}

    def _operations(self, found: Sequence[KeptOperation]) -> Work:
        for kept in found:
            if kept.recorded_at is not None:
                self._recorded[kept.sequence] = kept.recorded_at
        values: list[Values] = [
            {
                "group_id": self._group, "sequence": kept.sequence, "kind": kept.kind,
                "payload": kept.payload, "state": OPERATION_STATES.index(kept.state), "bulk": False,
                "recorded_at": kept.recorded_at, "result": kept.result,
            }
            for kept in found
        ]  # fmt: skip
        return self._sending(cypher.OPERATIONS_IN, values)

    def _extractions(self, found: Sequence[KeptExtraction]) -> Work:
        return self._recording("extractions", [self._spent(x) | {"sequence": x.sequence} for x in found])

    def _answers(self, found: Sequence[KeptAnswers]) -> Work:
        return self._recording("answers", [self._spent(a) | {"request": a.request} for a in found])

    def _spent(self, kept: KeptExtraction | KeptAnswers) -> Values:
        return {
            "group_id": self._group,
            "body": kept.body,
            "calls": kept.calls,
            "prompt_tokens": kept.prompt_tokens,
            "completion_tokens": kept.completion_tokens,
        }

    def _uses(self, found: Sequence[KeptUse]) -> Work:
        values: list[Values] = [
            {"group_id": self._group, "sequence": u.sequence, "request": u.request} for u in found
        ]
        return self._sending(commit.USE_ANSWERS, values)

    def _births(self, found: Sequence[KeptBirth]) -> Work:
        values: list[Values] = [
            {"group_id": self._group, "id": b.id, "sequence": b.sequence, "ordinal": b.ordinal} for b in found
        ]
        return self._recording("births", values)

    def _mentions(self, found: Sequence[KeptMention]) -> Work:
        return self._recording("mentions", [rows.mention_row(self._group, kept.mention) for kept in found])

    def _evidence(self, found: Sequence[KeptEvidence]) -> Work:
        values = []
        for kept in found:
            item = kept.evidence
            told = words(f"{item.text} {item.relation.replace('_', ' ')}")  # as a commit does
            row = rows.evidence_row(self._group, item, None)
            values.append(row | {"words": self._marked(told), "adopted": kept.shown})
        return self._recording("evidence", values)

    def _rulings(self, found: Sequence[KeptRuling]) -> Work:
        values = [
            rows.ruling_row(self._group, k.ruling, k.recorded_at) | {"retired_at": k.retired_at}
            for k in found
        ]
        return self._recording("rulings", values)

    def _verdicts(self, found: Sequence[KeptVerdict]) -> Work:
        values = [
            rows.verdict_row(self._group, k.verdict, k.recorded_at) | {"retired_at": k.retired_at}
            for k in found
        ]
        return self._recording("verdicts", values)

    def _names(self, found: Sequence[KeptName]) -> Work:
        values: list[Values] = [
            {
                "group_id": self._group, "entity": name.entity, "digest": digest(name.surface),
                "uses": name.uses, "born": self._next("born"),
                "put": {
                    "surface": name.surface, "folded": digest(folded(name.surface)),
                    "words": self._marked(words(name.surface)),
                },
            }
            for name in found
        ]  # fmt: skip
        return self._sending(commit.USE_NAMES, values)

    def _vectors(self, found: Sequence[KeptVector]) -> Work:
        by_kind: dict[str, list[Values]] = {"name": [], "statement": [], "episode": []}
        for kept in found:
            vector = np.frombuffer(kept.vector, "<f4")
            if len(vector) != self._dimensions:
                raise StoreError(f"a vector of other than {self._dimensions} numbers: nothing was adopted")
            row: Values = {"embedding": vector.tolist(), "place": self._next(kept.kind)}
            match kept.kind:
                case "name":
                    row |= {"group_id": self._group, "entity": kept.owner, "digest": digest(kept.text)}
                    row |= {"surface": kept.text, "folded": digest(folded(kept.text))}
                case "statement":
                    row |= {"group_id": self._group, "id": kept.owner}
                case _:
                    row |= {"group_id": self._staged, "sequence": int(kept.owner)}
            by_kind[kept.kind].append(row)

        def work(running: Running) -> None:
            for kind, statement in (
                ("name", commit.PUT_NAME_VECTORS),
                ("statement", commit.PUT_STATEMENT_VECTORS),
                ("episode", commit.PUT_EPISODE_VECTORS),
            ):
                if by_kind[kind]:
                    self._db.run(running, statement, rows=by_kind[kind])

        return work

    def _entities(self, found: Sequence[KeptEntity]) -> Work:
        values: list[Values] = []
        for kept in found:
            entity = kept.entity
            at = self._recorded.get(entity.born[0], self._head.last_recorded)
            put = rows.entity_row(self._staged, entity)
            named: Values = {"group_id": self._staged, "uuid": entity.id, "at": times.to_datetime(at)}
            values.append(named | {"put": put})
            self._named.append({"uuid": entity.id, "digest": digest(entity.name)})
        return self._sending(commit.PUT_ENTITIES, values)

    def _shown(self, found: Sequence[KeptShown]) -> Work:
        return self._sending(cypher.SHOWN_IN, [{"id": s.recorded, "shown": s.shown} for s in found])

    def _facts(self, found: Sequence[KeptFact]) -> Work:
        new: list[Values] = []
        new_values: list[Values] = []
        for kept in found:
            fact = kept.fact
            for episode in fact.episodes:
                self._edges.setdefault(episode, []).append(fact.id)
            row: Values = {"uuid": fact.id, "source": fact.source, "put": rows.fact_row(self._group, fact)}
            shown = None if fact.value is None else fact.value.shown()
            (new_values if fact.target is None else new).append(row | {"end": fact.target, "value": shown})

        def work(running: Running) -> None:
            for statement, values in ((cypher.FACTS_IN, new), (cypher.VALUE_FACTS_IN, new_values)):
                named = {"rows": values, "group": self._group, "staged": self._staged}
                if len(self._db.run(running, statement, **named)) != len(values):
                    raise StoreError(
                        "a fact ends at an entity that is not in the export: nothing was adopted"
                    )

        return work

    def _next(self, kind: str) -> int:
        self._places[kind] += 1
        return self._places[kind]

    def _marked(self, found: list[str]) -> str:
        return marked(found, mark(self._group))
