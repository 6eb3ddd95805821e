"""Declarations of relation names that agree with the answers of models: `kgray ontology suggest`.

A model answers how two statements are related, one pair at a time, and no answer decides about a name. Where
the answers about a pair of names agree, a person may declare it: then no model is asked again.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kgray.domain.ontology import PAIR_KEYS, Ontology
from kgray.domain.records import GroupRecords, Verdict
from kgray.graph.stored import records_of
from kgray.ports import Store
from kgray.schema import kinds, reads

SuggestionKind = Literal["independent", "same_as", "inverse_of", "cardinality"]
MIN_ANSWERS = 3  # answers that agree
_NEARLY_ALL = 0.9
_BY_CODE = frozenset({"record", "ontology", "person", "upgrade"})  # judges of verdicts that are no models
_BARE = re.compile(r"[A-Z0-9_]+")  # TOML needs quotes around any other key
_FOLDS: Mapping[str, SuggestionKind] = {"same": "same_as", "reversed": "inverse_of"}
_COUNTED = ("independent", "exclusive", "same", "reversed")
Pair = tuple[str, str]
Table = dict[str, str | list[str]]  # the keys of [ontology.relations.NAME]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationSuggestion:
    """A declaration of one relation name or of two names, for a person to accept.

    kind        with two names independent, same_as or inverse_of; with one name cardinality
    names       the name of the settings table, then the second name
    value       single or many for a cardinality, else empty
    counts      the number of answers of each kind: independent and exclusive for two compared statements;
                same and reversed for a statement that both names express, reversed with exchanged ends
    examples    two sentences: of two compared statements, or of one statement under both names
    table       the keys of [ontology.relations.NAME]
    unlisted    a main name without a table: it needs one, maybe an empty one
    """

    kind: SuggestionKind
    names: tuple[str, ...]
    value: str = ""
    counts: Mapping[str, int]
    examples: tuple[str, ...]
    table: Table
    unlisted: str = ""

    @property
    def settings(self) -> str:
        """The lines for the settings. Only the keys, where the settings have the table."""
        return settings_of([self])

    def as_dict(self) -> dict[str, Any]:
        """Return the form of `kgray ontology suggest --json`."""
        return {
            "kind": self.kind, "names": list(self.names), "value": self.value or None,
            "counts": dict(self.counts), "examples": list(self.examples), "settings": self.settings,
            "table": self.table, "unlisted": self.unlisted,
        }  # fmt: skip


def settings_of(suggestions: Iterable[RelationSuggestion]) -> str:
    """Return one TOML table for each name, with the keys of all suggestions about it."""
    tables: dict[str, Table] = defaultdict(dict)
    for suggestion in suggestions:
        if suggestion.unlisted:
            tables.setdefault(suggestion.unlisted, {})
        table = tables[suggestion.names[0]]
        for key, value in suggestion.table.items():
            names = table.get(key)
            if isinstance(names, list) and isinstance(value, list):
                table[key] = [*dict.fromkeys((*names, *value))]
            else:
                table.setdefault(key, value)
    return "\n".join(_table_lines(name, table) for name, table in sorted(tables.items()))


def _table_lines(name: str, table: Table) -> str:
    head = f"[ontology.relations.{name if _BARE.fullmatch(name) else _toml(name)}]"
    return "\n".join((head, *(f"{key} = {_toml(value)}" for key, value in table.items()), ""))


def _toml(value: str | list[str]) -> str:
    """Return TOML: its texts and lists are those of JSON."""
    return json.dumps(value, ensure_ascii=False)


@dataclass(slots=True)
class _Tally:
    """Answers about one pair of names, or about one name.

    examples    answer -> the first two statements with this answer, each as (statement, name)
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[Pair, Pair]] = field(default_factory=dict)

    def add(self, answer: str, first: Pair, second: Pair) -> None:
        """Count an answer about two statements, or about one statement under two names."""
        self.counts[answer] += 1
        self.examples.setdefault(answer, (first, second))

    def is_agreed(self, answer: str) -> bool:
        """Return whether nearly all answers are this answer, and enough of them."""
        return self.counts[answer] >= max(MIN_ANSWERS, _NEARLY_ALL * self.counts.total())


@dataclass(slots=True)
class _Naming:
    """The relation name of a recorded statement's earliest evidence.

    is_turned   the ends of the main name are exchanged, compared with the evidence that founded the statement
    derived     the id of the derived statement; None for a loop
    """

    name: str
    is_turned: bool
    derived: str | None


def suggestions(store: Store, group: str, ontology: Ontology, *, limit: int) -> list[RelationSuggestion]:
    """Return declarations that agree with the answers of models; most answers first.

    Cost: one read of the records of the group; then look-ups of the facts of compared statements of one name.
    """
    answers = _Answers(store, group, ontology)
    folds: dict[str, RelationSuggestion] = {}
    for fold in sorted(answers.folds(), key=_rank):
        folds.setdefault(fold.names[0], fold)  # a name folds to one relation
    every = [*folds.values(), *answers.independents(), *answers.cardinalities(folds.keys())]
    return sorted(every, key=_rank)[:limit]


def _rank(suggestion: RelationSuggestion) -> tuple[int, tuple[str, ...], str]:
    return -sum(suggestion.counts.values()), suggestion.names, suggestion.kind


class _Answers:
    """The answers of models about the statements of a group, counted by relation name."""

    def __init__(self, store: Store, group: str, ontology: Ontology) -> None:
        self._store, self._group, self._ontology = store, group, ontology
        self._uses: Counter[str] = Counter()
        self._sentences: dict[Pair, str] = {}  # (statement, name) -> the earliest sentence
        self._between: dict[Pair, _Tally] = defaultdict(_Tally)  # two names, sorted
        self._one_name: dict[str, _Tally] = defaultdict(_Tally)  # statements of one name and subject
        records = records_of(store, group)
        self._count_verdicts(records.verdicts, self._read_evidence(records))

    def _read_evidence(self, records: GroupRecords) -> dict[str, _Naming]:
        """Return the recorded statements, and count the statements with evidence of two names."""
        statements: dict[str, _Naming] = {}
        counted = set[Pair]()
        moved = self._store.rows(kinds.SHOWN_EVIDENCE.all, self._group)
        derived_ids = {(row.sequence, row.ordinal): row.shown for row in moved}
        for piece in records.evidence:
            statement = piece.statement
            derived = derived_ids.get((piece.sequence, piece.ordinal), statement)
            name, is_turned = self._ontology.folded(piece.relation)
            is_turned ^= piece.is_reversed
            self._uses[name] += 1
            self._sentences.setdefault((statement, name), piece.text)
            first = statements.setdefault(statement, _Naming(name, is_turned, derived))
            if name == first.name or (statement, name) in counted:
                continue
            counted.add((statement, name))
            answer = "reversed" if first.is_turned != is_turned else "same"
            self._add(answer, (statement, first.name), (statement, name))
        return statements

    def _add(self, answer: str, *ends: Pair) -> None:
        """Count an answer about two statements, each as (statement, name), or about one under two names."""
        first, second = sorted(ends, key=lambda end: end[1])
        self._between[first[1], second[1]].add(answer, first, second)

    def _count_verdicts(self, judged: Iterable[Verdict], statements: Mapping[str, _Naming]) -> None:
        verdicts = dict[Pair, bool]()  # a newer verdict on a pair replaces an older verdict
        for verdict in judged:
            if verdict.judge not in _BY_CODE and verdict.a in statements and verdict.b in statements:
                verdicts[verdict.a, verdict.b] = verdict.exclusive
        of_one_name = list[tuple[str, str, str]]()
        for (a, b), exclusive in verdicts.items():
            answer = "exclusive" if exclusive else "independent"
            if statements[a].name == statements[b].name:
                of_one_name.append((a, b, answer))
            else:
                self._add(answer, (a, statements[a].name), (b, statements[b].name))
        self._count_alike(of_one_name, statements)

    def _count_alike(
        self, answers: Sequence[tuple[str, str, str]], statements: Mapping[str, _Naming]
    ) -> None:
        """Count the answers about two statements of one name and one subject with different objects."""
        derived = {statements[id_].derived for *pair, _ in answers for id_ in pair} - {None}
        facts = self._store.rows(reads.FACTS_OF_STATEMENTS, self._group, sorted(map(str, derived)))
        ends = {row.statement: (row.source, row.target or row.value) for row in facts}
        for a, b, answer in answers:
            first, second = (ends.get(str(statements[id_].derived)) for id_ in (a, b))
            if first is None or second is None:
                continue
            (subject, object_), (other_subject, other_object) = first, second
            if subject == other_subject and object_ != other_object:
                name = statements[a].name
                self._one_name[name].add(answer, (a, name), (b, name))

    def folds(self) -> Iterator[RelationSuggestion]:
        """Yield the synonyms and inverses: pairs of names that express the same statements."""
        for names, tally in self._between.items():
            if self._is_answered(*names):
                continue
            for answer, kind in _FOLDS.items():
                if tally.is_agreed(answer):
                    main, synonym = sorted(names, key=self._preference)
                    fold = self._suggested(kind, (synonym, main), tally, answer, {kind: main})
                    yield replace(fold, unlisted="" if self._ontology.get(main) else main)

    def _preference(self, name: str) -> tuple[bool, int, str]:
        """Return the order of names as main names: listed ones, then those with most evidence."""
        return not self._ontology.lists(name), -self._uses[name], name

    def independents(self) -> Iterator[RelationSuggestion]:
        """Yield the pairs of names with no answer but independent."""
        for (a, b), tally in self._between.items():
            count = tally.counts["independent"]
            if count < MIN_ANSWERS or count < tally.counts.total() or self._is_answered(a, b):
                continue
            name, partner = (b, a) if self._ontology.lists(b) else (a, b)
            declared = self._ontology.get(name) if name in self._ontology.own else None
            partners = [*(declared.independent if declared else ()), partner]
            table: Table = {"independent": partners}
            yield self._suggested("independent", (name, partner), tally, "independent", table)

    def cardinalities(self, synonyms: Collection[str]) -> Iterator[RelationSuggestion]:
        """Yield the names whose objects always, or never, exclude each other, without these synonyms."""
        ontology = self._ontology
        declared = {ontology.main_name(relation.name) for relation in ontology if relation.cardinality}
        for name, tally in self._one_name.items():
            if name in declared or name in synonyms:
                continue
            if tally.is_agreed("exclusive"):
                yield self._cardinality(name, "single", tally, "exclusive")
            elif tally.is_agreed("independent") and not tally.counts["exclusive"]:
                yield self._cardinality(name, "many", tally, "independent")

    def _cardinality(self, name: str, value: str, tally: _Tally, answer: str) -> RelationSuggestion:
        return self._suggested("cardinality", (name,), tally, answer, {"cardinality": value}, value)

    def _is_answered(self, a: str, b: str) -> bool:
        """Return whether the ontology relates two names."""
        declared = any(self._ontology.declares(key, *pair) for key in PAIR_KEYS for pair in ((a, b), (b, a)))
        return declared or (self._ontology.lists(a) and self._ontology.lists(b))

    def _suggested(
        self, kind: SuggestionKind, names: tuple[str, ...], tally: _Tally, answer: str, table: Table,
        value: str = "",
    ) -> RelationSuggestion:  # fmt: skip
        counts = {name: tally.counts[name] for name in _COUNTED}
        examples = tuple(self._sentences[pair] for pair in tally.examples[answer])
        return RelationSuggestion(
            kind=kind, names=names, value=value, counts=counts, examples=examples, table=table
        )
