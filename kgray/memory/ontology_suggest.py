"""Declarations of relation names that the answers of models speak for: `kgray ontology suggest`.

A model answers what two statements are to each other, one pair at a time, and no answer says anything of a
name. Where the answers about a pair of names agree, a person may declare it: then nobody is asked again.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kgray import kinds
from kgray.ontology import PAIR_KEYS, Ontology
from kgray.ports import Store

LEAST = 3  # answers that agree
_NEARLY_ALL = 0.9
_BY_CODE = frozenset({"record", "ontology", "person", "upgrade"})  # judges of verdicts that are no models
_BARE = re.compile(r"[A-Z0-9_]+")  # TOML needs quotes around any other key
_END = {"subject": 2, "target": 6, "value": 8}  # columns of a fact
_COUNTED = ("independent", "exclusive", "same", "reversed")
Pair = tuple[str, str]
Table = dict[str, str | list[str]]  # the keys of [ontology.relations.NAME]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationSuggestion:
    """What a person may declare of one relation name, or of two.

    kind        independent, same_as, inverse_of: of two names; cardinality: of one
    names       the name that the table is of, then the other one
    value       single or many, of a cardinality
    counts      how often models answered so: independent, exclusive (of two statements that they compared),
                same, reversed (one statement under both names, in one direction or in both)
    examples    the sentences of two statements that were compared, or of one under both names
    table       the keys of [ontology.relations.NAME]
    """

    kind: Literal["independent", "same_as", "inverse_of", "cardinality"]
    names: tuple[str, ...]
    value: str = ""
    counts: Mapping[str, int]
    examples: tuple[str, ...]
    table: Table

    @property
    def settings(self) -> str:
        """The lines to paste into the settings; where the table is there, only the keys."""
        return settings_of([self])

    def as_dict(self) -> dict[str, Any]:
        """Return the form of `kgray ontology suggest --json`."""
        return {
            "kind": self.kind, "names": list(self.names), "value": self.value or None,
            "counts": dict(self.counts), "examples": list(self.examples), "settings": self.settings,
        }  # fmt: skip


def settings_of(suggestions: Iterable[RelationSuggestion]) -> str:
    """Return one table a name with the keys of all these suggestions, as TOML."""
    tables: dict[str, Table] = defaultdict(dict)
    for one in suggestions:
        table = tables[one.names[0]]
        for key, value in one.table.items():
            before = table.get(key)
            if isinstance(before, list) and isinstance(value, list):
                table[key] = [*dict.fromkeys((*before, *value))]
            else:
                table.setdefault(key, value)
    return "\n".join(
        "\n".join(
            (f"[ontology.relations.{_quoted(name)}]", *(f"{k} = {_toml(v)}" for k, v in table.items()), "")
        )
        for name, table in sorted(tables.items())
    )


def _quoted(name: str) -> str:
    return name if _BARE.fullmatch(name) else f'"{name}"'


def _toml(value: str | list[str]) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return f"[{', '.join(map(_toml, value))}]"


@dataclass(slots=True)
class _Tally:
    """Answers about one pair of names, or one name; example: where two of its sentences are."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[Pair, Pair]] = field(default_factory=dict)  # answer -> (statement, name) twice

    def add(self, answer: str, one: Pair, other: Pair) -> None:
        self.counts[answer] += 1
        self.examples.setdefault(answer, (one, other))

    def is_agreed(self, answer: str) -> bool:
        """Whether this is nearly every answer, and given often enough."""
        return self.counts[answer] >= max(LEAST, _NEARLY_ALL * self.counts.total())


@dataclass(slots=True)
class _Said:
    """A recorded statement: the name and the direction of its earliest evidence, and what it is shown as."""

    name: str
    is_turned: bool
    shown: str | None


def suggestions(store: Store, group: str, ontology: Ontology, *, limit: int) -> list[RelationSuggestion]:
    """Return what may be declared, that which most answers speak for first.

    It passes once over the verdicts and the evidence of the group, without their texts, and holds one entry a
    statement; then it looks up the facts of compared statements of one name, and the examples.
    """
    found = _Answers(store, group, ontology)
    folds = list(found.folds())
    folded = {one.names[0] for one in folds}
    every = [*folds, *found.independents(), *found.cardinalities(folded)]
    every.sort(key=lambda one: (-sum(one.counts.values()), one.names, one.kind))
    return every[:limit]


class _Answers:
    """The answers of models about statements of a group, counted by the names of those."""

    def __init__(self, store: Store, group: str, ontology: Ontology) -> None:
        self._store, self._group, self._ontology = store, group, ontology
        heads = store.rows(kinds.EPISODE_HEADS, group)
        self._live = {row[0] for row in heads if row[5] == kinds.COMMITTED and row[7] is None}
        self._uses: Counter[str] = Counter()
        self._between: dict[Pair, _Tally] = defaultdict(_Tally)  # two names, sorted
        self._within: dict[str, _Tally] = defaultdict(_Tally)  # statements of one name and subject
        statements = self._read_evidence()
        self._count_verdicts(statements)

    def _read_evidence(self) -> dict[str, _Said]:
        """Return the recorded statements; count those that are said under two names."""
        statements: dict[str, _Said] = {}
        counted = set[tuple[str, str]]()
        found = self._store.rows(kinds.RELATIONS_BY_PLACE, self._group)
        for sequence, _, statement, relation, is_reversed, shown in found:
            if sequence not in self._live:
                continue
            name, is_turned = self._ontology.folded(relation)
            is_turned ^= is_reversed
            self._uses[name] += 1
            first = statements.setdefault(statement, _Said(name, is_turned, shown))
            if name == first.name or (statement, name) in counted:
                continue
            counted.add((statement, name))
            answer = "reversed" if first.is_turned != is_turned else "same"
            ends = sorted(((statement, first.name), (statement, name)), key=lambda end: end[1])
            self._between[ends[0][1], ends[1][1]].add(answer, *ends)
        return statements

    def _count_verdicts(self, statements: Mapping[str, _Said]) -> None:
        verdicts = dict[Pair, bool]()  # the newest holds
        for _, _, a, b, exclusive, judge, _, _, retired_at in self._store.rows(
            kinds.ALL["verdicts"], self._group
        ):
            if retired_at is None and judge not in _BY_CODE and a in statements and b in statements:
                verdicts[a, b] = exclusive
        alike = list[tuple[str, str, bool]]()
        for (a, b), exclusive in verdicts.items():
            one, other = statements[a].name, statements[b].name
            if one == other:
                alike.append((a, b, exclusive))
                continue
            ends = sorted(((a, one), (b, other)), key=lambda end: end[1])
            answer = "exclusive" if exclusive else "independent"
            self._between[ends[0][1], ends[1][1]].add(answer, *ends)
        self._count_within(alike, statements)

    def _count_within(self, alike: Sequence[tuple[str, str, bool]], statements: Mapping[str, _Said]) -> None:
        """Count verdicts on statements of one name and one subject with different objects."""
        shown = {said.shown for a, b, _ in alike for said in (statements[a], statements[b])} - {None}
        facts = self._store.rows(kinds.FACTS_OF_STATEMENTS, self._group, sorted(map(str, shown)))
        ends = {row[1]: (row[_END["subject"]], row[_END["target"]] or row[_END["value"]]) for row in facts}
        for a, b, exclusive in alike:
            one, other = (ends.get(str(statements[id_].shown)) for id_ in (a, b))
            if one is not None and other is not None and one[0] == other[0] and one[1] != other[1]:
                name = statements[a].name
                answer = "exclusive" if exclusive else "independent"
                self._within[name].add(answer, (a, name), (b, name))

    def folds(self) -> Iterator[RelationSuggestion]:
        """Yield names whose statements were answered to be the same."""
        for names, tally in self._between.items():
            for answer, kind in (("same", "same_as"), ("reversed", "inverse_of")):
                if tally.is_agreed(answer) and not self._is_answered(*names):
                    main, other = sorted(
                        names, key=lambda n: (not self._ontology.lists(n), -self._uses[n], n)
                    )
                    yield self._suggested(kind, (other, main), tally, answer, {kind: main})

    def independents(self) -> Iterator[RelationSuggestion]:
        """Yield names whose statements were never exclusive, and never the same."""
        for (a, b), tally in self._between.items():
            if tally.counts["independent"] < LEAST or tally.counts["independent"] < tally.counts.total():
                continue
            if self._is_answered(a, b):
                continue
            name, other = (b, a) if self._ontology.lists(b) else (a, b)
            declared = self._ontology.get(name) if name in self._ontology.own else None
            listed = [*(declared.independent if declared else ()), other]
            yield self._suggested("independent", (name, other), tally, "independent", {"independent": listed})

    def cardinalities(self, folded: set[str]) -> Iterator[RelationSuggestion]:
        """Yield names whose objects always, or never, exclude each other; folded: suggested to be another."""
        declared = {self._ontology.main_name(one.name) for one in self._ontology if one.cardinality}
        for name, tally in self._within.items():
            if name in declared or name in folded:
                continue
            for answer, value in (("exclusive", "single"), ("independent", "many")):
                never = value == "many" and tally.counts["exclusive"]
                if tally.is_agreed(answer) and not never:
                    table: Table = {"cardinality": value}
                    yield self._suggested("cardinality", (name,), tally, answer, table, value)

    def _is_answered(self, a: str, b: str) -> bool:
        """Whether the ontology says what two names are to each other."""
        declared = any(self._ontology.declares(key, *pair) for key in PAIR_KEYS for pair in ((a, b), (b, a)))
        return declared or (self._ontology.lists(a) and self._ontology.lists(b))

    def _suggested(
        self, kind: Any, names: tuple[str, ...], tally: _Tally, answer: str, table: Table, value: str = ""  # noqa: ANN401
    ) -> RelationSuggestion:  # fmt: skip
        counts = {name: tally.counts[name] for name in _COUNTED}
        examples = tuple(map(self._sentence, tally.examples[answer]))
        return RelationSuggestion(
            kind=kind, names=names, value=value, counts=counts, examples=examples, table=table
        )

    def _sentence(self, place: Pair) -> str:
        """Return the earliest sentence of a statement under a name; any name where that has none left."""
        statement, name = place
        wordings = self._store.rows(kinds.WORDINGS_OF, self._group, [statement])
        texts = [
            (self._ontology.main_name(row[3]) != name, row[4]) for row in wordings if row[0] in self._live
        ]
        return min(texts, key=lambda one: one[0])[1] if texts else ""
