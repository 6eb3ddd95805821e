"""Hard removal (R25, R27), and what a correction retires: nodes are deleted, nothing is marked.

What Neo4j keeps of deleted nodes until it reuses their space, in its store files, transaction logs
and full-text segments, no query reads; `Neo4jStore.compact` says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kgray.ports import Commit
from kgray.records import Place
from kgray.stores import packing
from kgray.stores.neo4j import rows, statements_commit
from kgray.stores.neo4j import statements as log
from kgray.stores.neo4j import statements_erasing as cypher
from kgray.stores.neo4j.connection import Connection, Running
from kgray.stores.neo4j.groups import Group, ended_mark, group_id


def erases(commit: Commit) -> bool:
    """Whether a commit deletes, retires or rewrites anything: it is not folded with others then."""
    return commit.operation is not None or any(
        (
            commit.retired, commit.erased, commit.retired_rulings, commit.retired_verdicts,
            commit.erased_rulings, commit.erased_verdicts, commit.blanked, commit.gone_births,
            commit.rewritten, commit.forgotten,
        )
    )  # fmt: skip


def erase(db: Connection, running: Running, group: Group, commit: Commit) -> None:
    """Delete what a commit erases, retire its rulings and verdicts; derived rows go by `Derived`."""

    def run(statement: str, **values: Any) -> list[Any]:  # noqa: ANN401 - what Cypher takes
        return db.run(running, statement, group=commit.group, **values)

    sequences = sorted(set(commit.erased))
    if sequences:
        statements = sorted(row[0] for row in run(cypher.DROP_EVIDENCE, sequences=sequences))
        dropped = run(cypher.DROP_STATEMENTS, ids=statements)[0][0]
        mentions = [
            {"entity": entity, "digest": rows.digest(surface), "uses": uses}
            for entity, surface, uses in run(cypher.DROP_MENTIONS, sequences=sequences)
        ]
        dropped += run(cypher.UNUSE_NAMES, rows=mentions)[0][0]
        run(cypher.DROP_ANSWERS, sequences=sequences)
        dropped += run(cypher.DROP_EPISODES, sequences=sequences)[0][0]
        group.removals += bool(dropped)
    for statement, places, values in (
        (cypher.DROP_RULINGS, commit.erased_rulings, {}),
        (cypher.DROP_VERDICTS, commit.erased_verdicts, {}),
        (cypher.BLANK_RULINGS, commit.blanked, {}),
        (cypher.BLANK_VERDICTS, commit.blanked, {}),
        (cypher.RETIRE_RULINGS, commit.retired_rulings, {"at": commit.recorded_at}),
        (cypher.RETIRE_VERDICTS, commit.retired_verdicts, {"at": commit.recorded_at}),
    ):
        if places:
            run(statement, places=_places(places), **values)
    if commit.gone_births:
        for statement in (cypher.HIDE_BIRTHS, cypher.DROP_BIRTHS):
            run(statement, ids=sorted(set(commit.gone_births)))
    if commit.rewritten:
        payloads = [
            {"sequence": operation.sequence, "payload": packing.operation_payload(operation)}
            for operation in commit.rewritten
        ]
        run(cypher.REWRITE_OPERATIONS, rows=payloads)


def forget(db: Connection, running: Running, group: Group, commit: Commit) -> None:
    """Delete a group up to the commit's sequence; its node stays, nameless unless something came after."""
    for statement in cypher.FORGET:
        db.run(running, statement, group=commit.group, sequence=commit.sequence)
    group.removals += 1
    ended = {
        "group_id": commit.group,
        "sequence": commit.sequence,
        "state": rows.DONE,
        "recorded_at": commit.recorded_at,
        "result": packing.pack(dict(commit.result)),
        "payload": None,
    }
    db.run(running, statements_commit.END_OPERATIONS, rows=[ended])
    if db.run(running, log.PENDING_COUNT, group=commit.group)[0][0] == 0:
        db.run(running, log.UNNAME_GROUP, id=group_id(commit.group))
        mark = ended_mark(commit.group)
        db.run(running, cypher.UNNAME_OPERATION, group=commit.group, mark=mark, sequence=commit.sequence)


def _places(places: Iterable[Place]) -> list[list[int]]:
    return [list(place) for place in sorted(set(places))]
