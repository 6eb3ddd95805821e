"""The part of a group's records from which some statements follow as they do from all.

To show one message of 40,000, or to merge two entities, the whole group need not be derived (5 s). A
statement follows from all evidence with its key, and its facts from the statements that rivalry connects to
it. All of that is said in episodes that mention its subject; so these are read, until no more is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from kgray import kinds
from kgray.derivation.group import GroupGraph
from kgray.derivation.names import connected
from kgray.derivation.relations import FOLDS
from kgray.derivation.stored import records_of
from kgray.ports import Store, at_one_moment
from kgray.records import GroupRecords, Place

# Where more than a quarter of many episodes is needed, to read all costs less than to look them up.
_MANY, _PART = 1_000, 4
Wanted = Callable[[GroupGraph], Iterable[str]]  # the statements that are to follow as from all records


def records_around(
    store: Store, group: str, wanted: Wanted, *, episodes: Iterable[int] = (), entities: Iterable[str] = ()
) -> GroupRecords:
    """Return records that hold these episodes, the episodes of these entities, and what decides on `wanted`.

    The statements that `wanted` returns, their facts and verdicts, and what these entities show as, follow
    from them as from all records of the group; what else they mention may be incomplete. To be called inside
    `Store.reading`.
    """
    last = store.heads([group])[group].last
    none = records_of(store, group, within=[])
    complete = connected(none.operations, entities)
    within = set(episodes) | _mentioning(store, none, complete)
    while len(within) <= _MANY or _PART * len(within) <= last:
        records = _with_uses(store, records_of(store, group, within=sorted(within)))
        needed = _needed(store, records, wanted) - within
        if not needed:
            return replace(records, names=_names(store, records, set(entities)))
        within |= needed
    return records_of(store, group)


def records_of_entities(store: Store, group: str, ids: Iterable[str], *, undone: int | None) -> GroupRecords:
    """Return the records from which all that entities take part in follows; for corrections of them.

    undone  the sequence of a merge or split: its entities too
    """

    def read() -> GroupRecords:
        operations = records_of(store, group, within=[]).operations
        undoing = (i for operation in operations if operation.sequence == undone for i in operation.entities)
        entities = connected(operations, {*ids, *undoing})

        def wanted(graph: GroupGraph) -> list[str]:
            return [s.id for s in graph.statements.values() if {s.subject, s.object} & entities]

        return records_around(store, group, wanted, entities=entities)

    return at_one_moment(store, read)


def _with_uses(store: Store, records: GroupRecords) -> GroupRecords:
    """Return the records with all names' first uses, where rulings fold names to the one used first."""
    group = records.group
    if not any(ruling.aspect == "pair" and ruling.value in FOLDS for ruling in records.rulings):
        return records
    live = {
        row[0]
        for row in store.rows(kinds.EPISODE_HEADS, group)
        if row[5] == kinds.COMMITTED and row[7] is None
    }
    uses: dict[str, Place] = {}
    for sequence, ordinal, _, relation in store.rows(kinds.SAID, group):
        if sequence in live:
            uses.setdefault(relation, (sequence, ordinal))  # scanned in the order of places
    return replace(records, uses=uses)


def _names(store: Store, records: GroupRecords, complete: set[str]) -> dict[str, str]:
    """Return the stored names of the entities whose mentions may be missing: facts tell of them (R18)."""
    corrected = {i for operation in records.operations for i in (*operation.entities, operation.made) if i}
    ids = {mention.entity for mention in records.mentions} | corrected
    found = store.rows(
        kinds.ENTITIES_OF, records.group, sorted(ids - connected(records.operations, complete))
    )
    return {row[0]: row[1] for row in found}


def _needed(store: Store, records: GroupRecords, wanted: Wanted) -> set[int]:
    """Return the episodes from which the wanted statements, their rivals and the verdicts on them follow."""
    graph = GroupGraph.build(records)
    members = {m for statement in wanted(graph) for m in graph.component(statement)[1]}
    ends = {graph.statements[member].subject for member in members}
    ends |= {end for member in members for _, end, _ in graph.slot_keys(member)}
    sequences = _mentioning(store, records, ends)
    places = graph.places()
    told = {e.statement for e in records.evidence if places.get((e.sequence, e.ordinal)) in members}
    judged = [verdict for verdict in records.verdicts if {verdict.a, verdict.b} & told]
    sequences |= {verdict.sequence for verdict in judged}
    both = sorted({statement for verdict in judged for statement in (verdict.a, verdict.b)})
    return sequences | {row[1] for row in store.rows(kinds.EVIDENCE_OF, records.group, both)}


def _mentioning(store: Store, records: GroupRecords, ends: Iterable[str]) -> set[int]:
    """Return the episodes that mention entities, under any id that corrections connect with them."""
    entities = sorted(connected(records.operations, ends))
    return {row[2] for row in store.rows(kinds.MENTIONS_OF, records.group, entities)}
