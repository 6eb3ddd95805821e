"""What the rulings of models about relation names become (R17).

Version 0.1 asked a model about names: whether two mean the same, and how many objects one takes. One wrong
answer changed every fact of a name. Now only the ontology speaks of names, and models of pairs of statements:

    two names are the same or inverse    evidence of statements that showed as one attaches to the oldest
                                         (R17c); other statements show under their own name
    a ruling had ended a fact            a verdict on its statement and its rival, by the judge `upgrade`

What a ruling kept from being asked is asked when a new statement meets the old ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kgray.derivation.group import GroupGraph
from kgray.derivation.names import FOLDS
from kgray.records import Evidence, Place, Verdict
from kgray.stores.earlier import OldRow
from kgray.times import Instant
from kgray.upgrade.content import GroupContent, Timed
from kgray.upgrade.convert import ONTOLOGY

JUDGE = "upgrade"
_HARMLESS = frozenset({"independent", "depends", "many", "unknown"})  # rulings that ended nothing


class Converted(NamedTuple):
    """How many verdicts, and how many pieces of attached evidence, the rulings of a group became."""

    verdicts: int = 0
    attached: int = 0
    were_there: bool = False  # any ruling of a model that may change facts


class _Rulings:
    """The rulings in force that no person made, by the relation names that they connect or limit."""

    def __init__(self, rows: Iterable[OldRow]) -> None:
        newest = {
            (row.aspect, frozenset((row.name, row.other))): row for row in rows if row.retired_at is None
        }
        in_force = [row for row in newest.values() if row.judge != ONTOLOGY]
        self._same: dict[str, str] = {}
        for row in in_force:
            if row.value in FOLDS:
                self._same[self._root(row.name)] = self._root(row.other)
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
        while (parent := self._same.get(name, name)) != name:
            name = parent
        return name

    def are_same(self, a: str, b: str) -> bool:
        """Whether rulings say, step by step, that two names mean the same or the inverse."""
        return self._root(a) == self._root(b)

    def newest(self, names: Iterable[str]) -> tuple[int, Instant] | None:
        """Return (sequence, record time) of the newest ruling on one of the names; None: no ruling."""
        return max((self._made_at[r] for r in map(self._root, names) if r in self._made_at), default=None)


def convert_rulings(
    content: GroupContent,
    rulings: Sequence[OldRow],
    facts: Sequence[OldRow],
    shown: Mapping[Place, str | None],
) -> Converted:
    """Change a group by what the rulings of models become; return how much that is.

    facts, shown    as the earlier version derived them; place of evidence -> the statement that it was about,
                    None of a loop, and of what is retracted
    """
    in_force = _Rulings(rulings)
    if not in_force:
        return Converted()
    attached = _attach(content, in_force, shown)
    verdicts = _verdicts(content, in_force, facts, shown)
    content.verdicts = sorted(
        [*content.verdicts, *verdicts], key=lambda t: (t.value.sequence, t.value.ordinal)
    )
    return Converted(len(verdicts), attached, were_there=True)


def _attach(content: GroupContent, in_force: _Rulings, shown: Mapping[Place, str | None]) -> int:
    """Attach evidence to the oldest of the statements that a ruling showed as one; return how many pieces."""
    places = GroupGraph.build(content.records()).places()
    evidence_of, ends_of = content.evidence_of(), content.ends()
    oldest_of: dict[str, str] = {}  # what the earlier version showed -> the oldest recorded statement of it
    moved: dict[
        str, tuple[str, bool]
    ] = {}  # statement -> the one that takes it over, and whether its ends differ
    for statement in sorted(evidence_of, key=lambda id_: (content.births[id_], id_)):
        said = next((item for item in evidence_of[statement] if places.get(_place(item))), None)
        if said is None or (was := shown.get(_place(said))) is None:
            continue
        oldest = oldest_of.setdefault(was, statement)
        first, founding = evidence_of[statement][0], evidence_of[oldest][0]
        is_one = places[_place(said)] in {places.get(_place(item)) for item in evidence_of[oldest]}
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
    content: GroupContent, in_force: _Rulings, facts: Iterable[OldRow], shown: Mapping[Place, str | None]
) -> list[Timed[Verdict]]:
    """Return a verdict on each pair of statements of which one ended the other only by a ruling."""
    records = content.records()
    graph = GroupGraph.build(records)
    ends_now = {fact.id: fact.invalid_at for fact in graph.facts_of(graph.statements)}
    sequences = {head.id: head.sequence for head in records.heads}
    said: dict[str, list[Evidence]] = defaultdict(
        list
    )  # by what the earlier version showed, in order of place
    for item in records.evidence:
        if (statement := shown.get(_place(item))) is not None:
            said[statement].append(item)
    recorded_at = {head.sequence: head.recorded_at for head in records.heads}
    taken = Counter(timed.value.sequence for timed in content.verdicts)
    found: dict[tuple[str, str], Timed[Verdict]] = {}
    for fact in facts:
        if fact.ended_episode is None or ends_now.get(fact.id) == fact.invalid_at:
            continue
        rival = shown.get((sequences.get(fact.ended_episode, 0), fact.ended_ordinal))
        if rival is None or rival == fact.statement or not said[fact.statement]:
            continue
        pair = [said[fact.statement], said[rival]]
        ruling = in_force.newest({item.relation for items in pair for item in items})
        a, b = sorted(items[0].statement for items in pair)
        if ruling is None or a == b or (a, b) in found:
            continue
        # It is raised by what came last: one of the statements, or the ruling.
        sequence = max(*(items[0].sequence for items in pair), ruling[0])
        verdict = Verdict(
            sequence=sequence, ordinal=taken[sequence], a=a, b=b, exclusive=True, judge=JUDGE,
            reason="a ruling on their relation had ended one of the two",
        )  # fmt: skip
        taken[sequence] += 1
        found[a, b] = Timed(verdict, recorded_at.get(sequence, ruling[1]))
    return [*found.values()]


def _place(item: Evidence) -> Place:
    return item.sequence, item.ordinal
