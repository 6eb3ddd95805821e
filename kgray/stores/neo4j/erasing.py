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
from kgray.stores.neo4j import fence, rows, statements_commit
from kgray.stores.neo4j import statements as log
from kgray.stores.neo4j import statements_erasing as cypher
from kgray.stores.neo4j.connection import Connection, Running
from kgray.stores.neo4j.fence import Held
from kgray.stores.neo4j.groups import Group, ended_mark, group_id, locked

# Rows: 20,600, of 3,000 facts with vectors of 1,024 numbers, took 231 MB of the server's heap at once.
AT_ONCE = 20_000
ROWS_AT_ONCE = 4000  # of a group that is thinned
_ALL = 1 << 62


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


def is_large(db: Connection, commit: Commit) -> bool:
    """Whether the group that a commit removes is too large for one transaction."""
    found = db.rows(cypher.GROUP_SIZE, group=commit.group, sequence=commit.sequence)
    return bool(found[0][0] > AT_ONCE)


def thin(db: Connection, held: Held | None, commit: Commit) -> None:
    """Delete a large group ahead of its removal, in transactions that the server's heap can hold.

    Until the last one the removal is pending: whoever ingests next goes on where this process was ended.
    The price: while it lasts, readers see what is left. A group of at most `AT_ONCE` rows goes at once (R27).
    """

    def some(running: Running, _: int) -> int:
        fence.check(db, running, held)
        locked(db, running, [commit.group], make=False)
        asked = {"group": commit.group, "sequence": commit.sequence}
        left = ROWS_AT_ONCE
        # A batch that comes again finds the removal done: what was told since is not its.
        for statement in cypher.FORGET if db.run(running, cypher.PENDING_OPERATION, **asked) else ():
            left -= db.run(running, statement, **asked, most=left)[0][0]
        return ROWS_AT_ONCE - left

    while db.write(some):
        pass


def forget(db: Connection, running: Running, group: Group, commit: Commit) -> None:
    """Delete a group up to the commit's sequence; its node stays, nameless unless something came after."""
    for statement in cypher.FORGET:
        db.run(running, statement, group=commit.group, sequence=commit.sequence, most=_ALL)
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
