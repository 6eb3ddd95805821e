"""Rivals: statements of a group that cannot hold at the same time, and since when that is recorded (R17).

Two statements share a functional slot: a subject (or an object) of a relation that is declared single-valued.
Or they have the same ends, and their relations exclude each other. Or a verdict says that they do.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import product

from kgray.domain.records import Place, Value
from kgray.domain.times import Instant
from kgray.graph.names import Relations
from kgray.graph.statements import Statement, StatementKey
from kgray.timeline import Claim

Ends = tuple[str, str | Value]  # subject, object entity or value
SlotKey = tuple[str, str, str]  # ("s" | "o", entity, relation): a slot by subject or by object (R17)


def with_key(
    statements: Mapping[str, Statement], by_ends: Mapping[Ends, list[str]], key: StatementKey
) -> list[str]:
    """Return the statements with a key, of those between its ends."""
    subject, relation, target = key
    between = by_ends.get((subject, target)) or ()
    return [id_ for id_ in between if statements[id_].relation == relation]


class StatementRivals:
    """The statements of one group, indexed by the reasons for rivalry; `GroupGraph` fills the fields."""

    def __init__(self) -> None:
        """Start empty."""
        self.relations = Relations()
        self.statements: dict[str, Statement] = {}
        self.slots: dict[SlotKey, list[str]] = {}
        self.by_ends: dict[Ends, list[str]] = {}
        self.parts: dict[str, list[str]] = {}  # recorded statement -> shown ones, unless it is just itself
        self.verdicts: dict[str, dict[str, tuple[bool, Instant]]] = {}  # (exclusive, record time)
        # Evidence -> when a correction, a declaration or later evidence last moved it to another key.
        self.moved: dict[Place, Instant] = {}
        self._linked: set[SlotKey] = set()  # slots with a member that also has rivals outside the slot

    def with_key(self, key: StatementKey) -> list[str]:
        """Return the statements with a key, its variants, by birth."""
        return with_key(self.statements, self.by_ends, key)

    def take_verdict(self, a: str, b: str, exclusive: bool, recorded: Instant) -> None:
        """Take a verdict on two recorded statements: it replaces an older verdict that differs (R2)."""
        for first, second in self.judged(a, b):
            if self.verdict(first, second) != exclusive:
                self.verdicts.setdefault(first, {})[second] = (exclusive, recorded)
                self.verdicts.setdefault(second, {})[first] = (exclusive, recorded)

    def judged(self, a: str, b: str) -> list[tuple[str, str]]:
        """Return the shown statements that a verdict on two recorded ones is on (R16).

        After a split it is on every pair of parts that still have an end in common.
        """
        pairs = []
        for pair in product(*([p for p in self.parts.get(s, (s,)) if p in self.statements] for s in (a, b))):
            first, second = (self.statements[part] for part in pair)
            if first is not second and {first.subject, first.key[2]} & {second.subject, second.key[2]}:
                pairs.append((first.id, second.id))
        return pairs

    def slot_keys(self, statement: str) -> tuple[SlotKey, ...]:
        """Return the statement's slots; all statements of one slot are mutual rivals (R17)."""
        this = self.statements[statement]
        traits = self.relations.traits(this.relation)
        if this.is_event or traits.cardinality not in {"single", "single_object"}:
            return ()
        by_subject = ("s", this.subject, this.relation)
        if this.object is not None and traits.symmetric:
            return by_subject, ("s", this.object, this.relation)
        if traits.cardinality == "single":
            return (by_subject,)
        return () if this.object is None else (("o", this.object, this.relation),)

    def pairs(self, statement: str) -> tuple[str, ...]:
        """Return rivals outside its slots: by exclusive verdict, or excluding relation on the same ends."""
        this = self.statements[statement]
        if this.is_event:
            return ()
        rivals = [s for s, (exclusive, _) in self.verdicts.get(statement, {}).items() if exclusive]
        if excludes := self.relations.traits(this.relation).excludes:
            same_ends = list(self.by_ends.get((this.subject, this.key[2]), ()))
            in_reverse = self.by_ends.get((this.object, this.subject), ()) if this.object is not None else ()
            for opposite in in_reverse:
                if self._is_symmetric(this) or self._is_symmetric(self.statements[opposite]):
                    same_ends.append(opposite)
            rivals += [rival for rival in same_ends if self.statements[rival].relation in excludes]
        return tuple(s for s in rivals if not self.statements[s].is_event)

    def verdict(self, a: str, b: str) -> bool | None:
        """Return whether two statements were found exclusive; None = never judged."""
        verdict = self.verdicts.get(a, {}).get(b)
        return verdict[0] if verdict else None

    def _is_symmetric(self, statement: Statement) -> bool:
        return self.relations.traits(statement.relation).symmetric

    def link(self, statement: str) -> None:
        """Mark the slots of a statement with rivals outside its one slot, and the slots of those rivals."""
        slot_keys = self.slot_keys(statement)
        partners = self.pairs(statement)
        if partners or len(slot_keys) > 1:
            self._linked.update(slot_keys)
            for partner in partners:
                self._linked.update(self.slot_keys(partner))

    def needed(self, opened: Claim, ended: Claim) -> Instant:
        """Return the record time of the last record that lets a claim end another (R17)."""
        opened_moved, ended_moved = self.moved.get(opened.said[1:], 0), self.moved.get(ended.said[1:], 0)
        moved_at = max(opened_moved, ended_moved) if opened_moved != ended_moved else 0
        if opened.statement == ended.statement:
            return moved_at
        a, b = self.statements[opened.statement], self.statements[ended.statement]
        reasons = []
        if set(self.slot_keys(a.id)) & set(self.slot_keys(b.id)):
            reasons.append(self.relations.traits(a.relation).cardinality_since)
        excluded = self.relations.traits(a.relation).excludes.get(b.relation)
        if excluded is not None and a.key[::2] in {b.key[::2], b.key[::-2]}:
            reasons.append(excluded)
        exclusive, recorded = self.verdicts.get(a.id, {}).get(b.id, (False, 0))
        if exclusive:
            reasons.append(recorded)
        # If they are rivals for several reasons, the first recorded reason was enough.
        return max(moved_at, min(reasons, default=0))

    def component(self, statement: str) -> tuple[Hashable | None, list[str]]:
        """Return the key of a component's cached sweep (None = it has none), and its statements."""
        slot_keys = self.slot_keys(statement)
        if not slot_keys and not self.pairs(statement):
            return ("one", statement), [statement]
        if len(slot_keys) == 1 and slot_keys[0] not in self._linked:
            return slot_keys[0], self.slots[slot_keys[0]]
        visited, waiting = {statement}, [statement]
        for current in waiting:
            near = (s for key in self.slot_keys(current) for s in self.slots[key])
            fresh = dict.fromkeys(s for s in (*near, *self.pairs(current)) if s not in visited)
            visited.update(fresh)
            waiting.extend(fresh)
        return None, sorted(visited, key=lambda s: (self.statements[s].born, s))
