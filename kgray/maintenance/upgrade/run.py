"""Upgrade a store: convert each group, derive its graph, write both to the new store, and compare."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kgray.domain.ontology import Ontology
from kgray.domain.records import Episode
from kgray.domain.times import Instant
from kgray.errors import StoreError
from kgray.graph import dump
from kgray.graph.group import GroupGraph
from kgray.graph.stored import View, records_of
from kgray.maintenance.upgrade.content import GroupContent
from kgray.maintenance.upgrade.convert import content_of
from kgray.maintenance.upgrade.rulings import convert_rulings
from kgray.maintenance.upgrade.writing import rows_of
from kgray.ports import GroupCounts, Store
from kgray.schema import kinds
from kgray.schema.kinds import OWN
from kgray.schema.rows import STATES, episode
from kgray.storage.earlier import OLD_KINDS, EarlierStore, OldGroup, OldRow
from kgray.storage.texts import Sum
from kgray.storage.texts import rows_of as rows_in
from kgray.system.garbage import garbage_not_collected

_MOMENTS = 4  # the number of earlier moments when the old and the new graph are compared
OnGroup = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class UpgradedGroup:
    """The report of one group.

    verdicts, attached  verdicts on pairs of statements, and attached evidence, made from rulings of models
    changed             facts and entities that the earlier version had derived differently: the id of each,
                        and the columns that differ, before and after (null: it does not exist)
    """

    episodes: int
    entities: int
    facts: int
    verdicts: int = 0
    attached: int = 0
    changed: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Upgraded:
    """The report of an upgrade, or of a dry run.

    rows        written, by kind
    verified    all rows were read back, and give the same graph now and at earlier moments; and no fact
                differs in a group without rulings of models
    """

    schema: int
    schema_after: int
    groups: dict[str, UpgradedGroup] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    verified: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray upgrade --json` prints. kept: the path of the earlier file, or ""."""
        named = asdict(self)
        return {
            "from": named.pop("schema"),
            "to": named.pop("schema_after"),
            **named,
            "rows": dict(self.rows),
            "kept": "",
        }


def upgrade(
    earlier: EarlierStore, ontology: Ontology, *, dry_run: bool = False, on_group: OnGroup = lambda _: None
) -> Mapping[str, Any]:
    """Bring a store to this version; return the report (`Upgraded.as_dict`).

    ontology    of the settings: which of two synonyms is the main name
    dry_run     convert and derive everything, and change nothing

    Raises StoreError if the new store differs from the rows that were read. After a kill, run it again.
    """
    if dry_run and earlier.is_changed:
        raise StoreError(
            f"an upgrade of {earlier.location} was cut off, and its rows have moved: run `kgray upgrade` "
            f"without --dry-run, which goes on"
        )
    if dry_run or (earlier.is_in_place and not earlier.is_changed):
        plan = _upgraded(earlier, ontology, None, on_group)
        if dry_run:
            return plan.as_dict()
    if earlier.report:  # all groups were written
        report = earlier.report
    else:
        with earlier.successor() as store, store.writing():
            upgraded = _upgraded(earlier, ontology, store, on_group)
        report = json.dumps(upgraded.as_dict() | {"kept": earlier.kept_path})
    earlier.replace(report)
    result: Mapping[str, Any] = json.loads(report)
    return result


def _upgraded(earlier: EarlierStore, ontology: Ontology, store: Store | None, on_group: OnGroup) -> Upgraded:
    """Convert all groups, and write them to a store; None: to no store."""
    result = Upgraded(schema=earlier.schema, schema_after=earlier.schema_after, verified=store is not None)
    for group in earlier.groups():
        on_group(group.name)
        with garbage_not_collected():
            _upgrade_group(earlier, group, ontology, store, result)
    return result


def _upgrade_group(
    earlier: EarlierStore, group: OldGroup, ontology: Ontology, store: Store | None, result: Upgraded
) -> None:
    def read(kind: str) -> list[OldRow]:
        return earlier.rows(group.name, OLD_KINDS[kind])

    content = content_of(group.name, group.head, read, ontology, is_first=earlier.is_first)
    facts = read("facts")
    visible_statements = {(row.sequence, row.ordinal): row.shown for row in read("evidence")}
    converted = convert_rulings(content, read("rulings"), facts, visible_statements)
    graph = GroupGraph.build(content.records())
    rows = [*rows_of(content, graph)]
    if store is not None:
        _write(content, graph, rows, store)
    result.rows.update(kind.name for kind, _ in rows)
    if group.name == OWN:
        return
    ignored = {"text"} if earlier.is_first else set()  # version 0.1 composed the texts of facts (R18a)
    changed = [
        *_changed(kinds.FACTS, facts, rows, ignored),
        *_changed(kinds.ENTITIES, read("entities"), rows),
    ]
    result.groups[group.name] = UpgradedGroup(
        episodes=len(content.rows["episodes"]),
        entities=len(graph.entities),
        facts=sum(kind is kinds.FACTS for kind, _ in rows),
        verdicts=converted.verdicts,
        attached=converted.attached,
        changed=changed,
    )
    result.verified &= converted.had_rulings or not changed


def _changed(
    kind: kinds.Kind[Any],
    old_rows: Iterable[OldRow],
    new_rows: Iterable[tuple[kinds.Kind[Any], kinds.Row]],
    ignored: Iterable[str] = (),
) -> list[dict[str, Any]]:
    """Return the derived rows of a kind that differ from the earlier version's rows."""
    columns = [column.name for column in OLD_KINDS[kind.name].columns if column.name not in ignored]
    old = {row.id: {name: getattr(row, name) for name in columns} for row in old_rows}
    new = {}
    for row_kind, row in new_rows:
        if row_kind is kind:
            named = dict(zip(kind.names, row, strict=True))
            new[named["id"]] = {name: named[name] for name in columns}
    changed = []
    for id_ in sorted(old.keys() | new.keys()):
        if old.get(id_) != new.get(id_):
            both = [old.get(id_), new.get(id_)]
            differing = [n for n in columns if None in both or both[0][n] != both[1][n]]  # type: ignore[index]
            parts = [values and {name: values[name] for name in differing} for values in both]
            changed.append({"kind": kind.name, "id": id_, "before": parts[0], "after": parts[1]})
    return changed


def _write(
    content: GroupContent, graph: GroupGraph, rows: list[tuple[kinds.Kind[Any], kinds.Row]], store: Store
) -> None:
    """Write a group, unless a run that was cut off did; read it back, and compare."""
    group, written = content.name, Sum(content.name, content.head)
    for _ in written.passing(rows):
        pass

    def verify() -> None:
        _verify(content, graph, written, store)

    if store.heads([group])[group].named:
        verify()
    else:
        store.adopt(group, content.head, iter(rows), verify)


def _verify(content: GroupContent, graph: GroupGraph, written: Sum, store: Store) -> None:
    group, stored = content.name, Sum(content.name, content.head)
    for _ in stored.passing(rows_in(store, group, content.head)):
        pass
    different = written.differing(stored)
    counts, expected = store.counts(group)[group], _counts(content, graph)
    different += [f"counts: {expected}, {counts} in the new store"] if counts != expected else []
    if different:
        raise StoreError(f"group {group!r} was not written as it was read ({'; '.join(different[:3])})")
    ended = sorted(row.ended_at for row in content.rows["episodes"] if row.ended_at is not None)
    for moment in (None, *ended[:: max(1, len(ended) // _MOMENTS)][:_MOMENTS]):
        with store.reading():
            digest = _digest(View(records_of(store, group, moment), lambda _: []), content, moment)
        if digest != _digest(View(content.records(moment), lambda _: []), content, moment):
            moment_text = "now" if moment is None else f"as known at {moment}"
            raise StoreError(f"group {group!r} derives another graph {moment_text} than what was read")


def _digest(view: View, content: GroupContent, known_at: Instant | None) -> str:
    return dump.digest(dump.rows(view, _episodes(content, known_at)))


def _episodes(content: GroupContent, known_at: Instant | None) -> list[Episode]:
    at = 1 << 62 if known_at is None else known_at
    return [
        episode(content.name, kinds.EPISODES.row(*row))
        for row in content.rows["episodes"]
        if row.ended_at is not None and row.ended_at <= at and (row.retired_at is None or row.retired_at > at)
    ]


def _counts(content: GroupContent, graph: GroupGraph) -> GroupCounts:
    states = Counter(STATES[row.state] for row in content.rows["episodes"] if row.retired_at is None)
    states.pop("withdrawn", None)
    costs = [(row.calls, row.prompt_tokens, row.completion_tokens) for row in content.rows["extractions"]]
    costs += [(answer.cost.calls, *answer.cost[1:]) for answer in content.answers]
    calls, prompt, completion = (sum(cost[n] for cost in costs) for n in range(3))
    facts = len(graph.facts_of(graph.statements))
    return GroupCounts(
        entities=len(graph.entities), facts=facts, calls=calls, prompt_tokens=prompt,
        completion_tokens=completion, **states,
    )  # fmt: skip
