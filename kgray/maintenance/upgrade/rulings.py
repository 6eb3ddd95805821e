"""Convert the rulings of models about relation names (R17).

Version 0.1 asked a model about names: if two names mean the same, and how many objects a name takes. One
wrong answer changed every fact of a name. Now only the ontology rules on names, and models compare pairs of
statements. Rulings are converted as follows:

    two names are the same or inverse    evidence of statements that were merged attaches to the oldest
                                         (R17c); other statements appear under their own name
    a ruling had ended a fact            a verdict on its statement and its rival, by the judge `upgrade`

Questions that a ruling made needless are asked when a new statement meets the old statements.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kgray.domain.records import Evidence, Place, Verdict
from kgray.domain.times import Instant
from kgray.graph.group import GroupGraph
from kgray.graph.names import FOLDS
from kgray.maintenance.upgrade.content import GroupContent, Timed
from kgray.maintenance.upgrade.convert import ONTOLOGY
from kgray.storage.earlier import OldRow

JUDGE = "upgrade"
_HARMLESS = frozenset({"independent", "depends", "many", "unknown"})  # rulings that ended nothing


class Converted(NamedTuple):
    """The numbers of verdicts and of attached pieces of evidence that a group's rulings became."""

    verdicts: int = 0
    attached: int = 0
    had_rulings: bool = False  # any ruling of a model that may change facts


class _Rulings:
    """The rulings in force that no person made, by the relation names that they connect or limit."""

    def __init__(self, rows: Iterable[OldRow]) -> None:
        newest = {
            (row.aspect, frozenset((row.name, row.other))): row for row in rows if row.retired_at is None
        }
        in_force = [row for row in newest.values() if row.judge != ONTOLOGY]
        self._parents: dict[str, str] = {}
        for row in in_force:
            if row.value in FOLDS:
                self._parents[self._root(row.name)] = self._root(row.other)
        self._made_at: dict[str, Place] = {}  # name -> (sequence, record time) of the newest ruling on it
        for row in in_force:
            for root in {self._root(row.name), self._root(row.other or row.name)}:
                if row.value not in _HARMLESS:
                    self._made_at[root] = max(
                        (row.sequence, row.recorded_at), self._made_at.get(root, (0, 0))
                    )

    def __bool__(self) -> bool:
        return bool(self._made_at)

    def _root(self, name: str) -> str:
        while (parent := self._parents.get(name, name)) != name:
            name = parent
        return name

    def are_same(self, a: str, b: str) -> bool:
        """Return True if a chain of rulings says that two names mean the same or the inverse."""
        return self._root(a) == self._root(b)

    def newest(self, names: Iterable[str]) -> tuple[int, Instant] | None:
        """Return (sequence, record time) of the newest ruling on one of the names; None: no ruling."""
        return max((self._made_at[r] for r in map(self._root, names) if r in self._made_at), default=None)


def convert_rulings(
    content: GroupContent,
    rulings: Sequence[OldRow],
    facts: Sequence[OldRow],
    visible_statements: Mapping[Place, str | None],
) -> Converted:
    """Apply the rulings of models to a group's content; return the numbers of verdicts and attachments.

    facts                 as the earlier version derived them
    visible_statements    place of evidence -> its statement in the earlier version; None for a loop, and for
                          retracted evidence
    """
    in_force = _Rulings(rulings)
    if not in_force:
        return Converted()
    attached = _attach(content, in_force, visible_statements)
    verdicts = _verdicts(content, in_force, facts, visible_statements)
    content.verdicts = sorted(
        [*content.verdicts, *verdicts], key=lambda t: (t.value.sequence, t.value.ordinal)
    )
    return Converted(len(verdicts), attached, had_rulings=True)


def _attach(content: GroupContent, in_force: _Rulings, visible_statements: Mapping[Place, str | None]) -> int:
    """Attach evidence of statements that a ruling merged to the oldest; return the number of pieces."""
    places = GroupGraph.build(content.records()).places()
    evidence_of, ends_of = content.evidence_of(), content.ends()
    oldest_of: dict[str, str] = {}  # the earlier version's statement -> its oldest recorded statement
    moved: dict[str, tuple[str, bool]] = {}  # statement -> its new statement, and whether the ends differ
    for statement in sorted(evidence_of, key=lambda id_: (content.births[id_], id_)):
        visible = next((item for item in evidence_of[statement] if places.get(_place(item))), None)
        if visible is None or (was := visible_statements.get(_place(visible))) is None:
            continue
        oldest = oldest_of.setdefault(was, statement)
        first, founding = evidence_of[statement][0], evidence_of[oldest][0]
        is_one = places[_place(visible)] in {places.get(_place(item)) for item in evidence_of[oldest]}
        if not is_one and in_force.are_same(first.relation, founding.relation):
            moved[statement] = (oldest, ends_of(first) != ends_of(founding))
    if not moved:
        return 0

    def attached(item: Evidence) -> Evidence:
        if item.statement not in moved:
            return item
        statement, turns = moved[item.statement]
        variant = evidence_of[statement][0].variant
        return item._replace(statement=statement, variant=variant, is_reversed=item.is_reversed != turns)

    def renamed(timed: Timed[Verdict]) -> Timed[Verdict]:
        a, b = sorted(moved.get(id_, (id_,))[0] for id_ in (timed.value.a, timed.value.b))
        return timed._replace(value=replace(timed.value, a=a, b=b))

    content.evidence = [attached(item) for item in content.evidence]
    content.verdicts = [timed for timed in map(renamed, content.verdicts) if timed.value.a != timed.value.b]
    for statement in moved:
        del content.births[statement]
        content.statements.pop(statement, None)
    return sum(len(evidence_of[statement]) for statement in moved)


def _verdicts(
    content: GroupContent,
    in_force: _Rulings,
    facts: Iterable[OldRow],
    visible_statements: Mapping[Place, str | None],
) -> list[Timed[Verdict]]:
    """Return a verdict on each pair of statements where only a ruling made one end the other."""
    records = content.records()
    graph = GroupGraph.build(records)
    ends_now = {fact.id: fact.invalid_at for fact in graph.facts_of(graph.statements)}
    sequences = {head.id: head.sequence for head in records.heads}
    # Keyed by the earlier version's statement; values in order of place.
    evidence_of: dict[str, list[Evidence]] = defaultdict(list)
    for item in records.evidence:
        if (statement := visible_statements.get(_place(item))) is not None:
            evidence_of[statement].append(item)
    recorded_at = {head.sequence: head.recorded_at for head in records.heads}
    next_ordinals = Counter(timed.value.sequence for timed in content.verdicts)
    verdicts: dict[tuple[str, str], Timed[Verdict]] = {}
    for fact in facts:
        if fact.ended_episode is None or ends_now.get(fact.id) == fact.invalid_at:
            continue
        rival = visible_statements.get((sequences.get(fact.ended_episode, 0), fact.ended_ordinal))
        if rival is None or rival == fact.statement or not evidence_of[fact.statement]:
            continue
        pair = [evidence_of[fact.statement], evidence_of[rival]]
        ruling = in_force.newest({item.relation for items in pair for item in items})
        a, b = sorted(items[0].statement for items in pair)
        if ruling is None or a == b or (a, b) in verdicts:
            continue
        # The newest of the two statements and the ruling raises the verdict.
        sequence = max(*(items[0].sequence for items in pair), ruling[0])
        verdict = Verdict(
            sequence=sequence, ordinal=next_ordinals[sequence], a=a, b=b, exclusive=True, judge=JUDGE,
            reason="a ruling on their relation had ended one of the two",
        )  # fmt: skip
        next_ordinals[sequence] += 1
        verdicts[a, b] = Timed(verdict, recorded_at.get(sequence, ruling[1]))
    return [*verdicts.values()]


def _place(item: Evidence) -> Place:
    return item.sequence, item.ordinal
