"""Compare a fact with known statements that may say the same, contradict it, or be ended by it (R17a-R17c).

A model answers for each pair `same`, `contradicts`, `ends` or `independent`; an answer that is not allowed
for its pair counts as independent. The ontology answers first: two different listed names are independent,
and the cardinality of one name says which of its statements exclude each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kgray.domain.ontology import matters_of
from kgray.domain.records import Evidence, ExtractedFact, Place, Value
from kgray.domain.times import Instant
from kgray.graph.names import Relations
from kgray.graph.statements import CLOSING, ENDS_ONLY, Statement, StatementKey
from kgray.ingest.candidates import quantised
from kgray.ingest.state import Case, Quantised, span_of
from kgray.ports import Question

MAX_COMPARED = 15
# Statements of one entity or slot among which candidates are sought, the newest: a bound for long histories.
NEWEST = 128
_DECLARED = frozenset({"single", "single_object", "many"})
# Minimum cosines for a comparison of two statements that only one end connects, by a part of the embedder's
# identity. Estimates: with the hashing embedder .25, .35 and .5 gave the same graph of a generated world with
# free relation names (300 episodes); the questions about 30 labelled messages fell from .70 to .50 calls.
_FLOORS = (("hashing", 0.6), ("minilm", 0.65), ("bge", 0.7))
_OTHER_FLOOR = 0.7

Span = tuple[Instant | None, Instant | None]


def statement_floor(embedder: str) -> float:
    """Return the minimum cosine for a comparison of statements about one entity, for an embedder."""
    name = embedder.casefold()
    return next((floor for part, floor in _FLOORS if part in name), _OTHER_FLOOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFact:
    """A fact of the episode, with its ends as they resolved.

    key       with its relation name folded
    swapped   the key's subject is this fact's target
    names     of its ends, as the episode has them
    """

    fact: ExtractedFact
    place: Place
    subject: str
    target: str | Value
    key: StatementKey
    swapped: bool
    names: tuple[str, ...]

    def connects(self, statement: Statement) -> bool:
        """Return whether a statement has the same ends, in either direction."""
        return {self.subject, self.target} == {statement.subject, statement.key[2]}

    def is_reversed(self, statement: Statement) -> bool:
        """Return whether this fact's subject is the object of the statement's founding evidence."""
        return (
            isinstance(self.target, str) and (self.subject != statement.subject) != statement.key_is_reversed
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """The candidates of a comparison with a fact, by answer, each in order of birth.

    equal   the statement that the fact repeats
    ended   each with its index among all candidates; `connect` makes the ordinal of the evidence from it
    """

    equal: Statement | None = None
    contradicts: tuple[Statement, ...] = ()
    ended: tuple[tuple[int, Statement], ...] = ()
    independent: tuple[Statement, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class EpisodeStatements:
    """The statements that the facts so far have made, by id and by shared properties, oldest first."""

    by_id: dict[str, Statement] = field(default_factory=dict)
    # The keys: statement key, ("s", subject, relation), ("o", object, relation), both ends. An index, because
    # an episode may make 10,000 statements.
    by_key: dict[tuple[object, ...], list[Statement]] = field(default_factory=dict)

    def add(self, statement: Statement) -> None:
        """Add a new statement."""
        self.by_id[statement.id] = statement
        subject, relation, target = statement.key
        for key in (statement.key, ("s", subject, relation), ("o", target, relation), (subject, target)):
            self.by_key.setdefault(key, []).append(statement)


@dataclass(slots=True)
class Comparer:
    """Compares the facts of one episode, in their order."""

    case: Case
    relations: Relations
    new: EpisodeStatements = field(default_factory=EpisodeStatements)

    def compare(
        self, new: NewFact, variants: Sequence[Statement], supported: Statement | None = None
    ) -> Compared | None:
        """Return the answers about a fact and its candidates; None while the question is open.

        variants    the statements of its key; the fact may be a variant of any
        supported   the stored statement that the fact supports without a question. The candidates are then
                    the statements that have no verdict with it, and whose spans meet the time of this fact
                    and none of its spans
        """
        candidates = self._candidates(new, variants, supported) if self._is_compared(new) else []
        if self.case.questions.statement_vectors:
            return None
        if not candidates:
            return Compared()
        question = Question(
            kind="compare", item=new.fact.text, candidates=tuple(self.sentence(s) for s in candidates)
        )
        answer = self.case.answer(question)
        if answer is None:
            return None
        by_word: dict[str, list[Statement]] = {}
        for statement, word in zip(candidates, answer["answers"], strict=True):
            allowed = word if self._allows(new, statement, word, supported) else "independent"
            by_word.setdefault(allowed, []).append(statement)
        equal, *also_equal = by_word.get("same", [None])
        independent = [*by_word.get("independent", ()), *(s for s in also_equal if s is not None)]
        contradicts = tuple(by_word.get("contradicts", ()))
        ended = tuple((candidates.index(statement), statement) for statement in by_word.get("ends", ()))
        return Compared(equal, contradicts, ended, tuple(independent), str(answer.get("reason", "")))

    def _is_compared(self, new: NewFact) -> bool:
        """Return whether a fact is compared at all: a triple only with a relation declared as `depends`."""
        if self.case.episode.kind != "triples":
            return True
        return self.relations.traits(new.key[1]).cardinality == "depends"

    def sentence(self, statement: Statement) -> str:
        """Return the sentence that represents a statement in questions (R17a, R21)."""
        return self.case.state.graph.sentence(statement)

    def _allows(self, new: NewFact, statement: Statement, word: str, supported: Statement | None) -> bool:
        is_event = new.fact.kind == "happened"
        match word:
            case "same":
                alike = is_event == statement.is_event and new.fact.kind not in CLOSING
                return alike and supported is None and new.connects(statement)
            case "contradicts":
                return not statement.is_event and new.fact.kind == "holds"
            case "ends":
                return not statement.is_event and new.connects(statement)
        return False

    def _candidates(
        self, new: NewFact, variants: Sequence[Statement], supported: Statement | None
    ) -> list[Statement]:
        """Return at most MAX_COMPARED statements, by birth.

        Four classes are taken in this order: variants, statements between the same ends, in the same slot,
        and around either end. Of a class with too many members the most alike are chosen.
        """
        classes: list[list[Statement]] = []
        chosen_ids = {supported.id} if supported is not None else set()
        for members in (variants, self._between(new), self._in_slot(new), self._around(new)):
            fresh = [s for s in members if s.id not in chosen_ids]
            chosen_ids.update(s.id for s in fresh)
            classes.append([s for s in fresh if self._is_undecided(new, s, supported)])
        vector, floor = self._wording_vector(new), self.case.rules.statement_floor
        # A statement of the last class is a candidate only by its matter or its cosine.
        last = [(self._shares_matter(new, s), s) for s in classes.pop()]
        classes.append([s for shares, s in last if shares or self._cosine(vector, s) >= floor])
        # Spans cost most, so they are compared last.
        classes = [[s for s in each if self._meets(new, s, supported)] for each in classes]
        chosen: list[Statement] = []
        for each in classes:
            room = MAX_COMPARED - len(chosen)
            if len(each) > room:  # the most alike, then the oldest
                alike = {s.id: self._cosine(vector, s) for s in each}
                each.sort(key=lambda s: (-alike[s.id], s.born, s.id))
            chosen += each[:room]
        return sorted(chosen, key=lambda s: (s.born, s.id))

    def _between(self, new: NewFact) -> list[Statement]:
        """Return the statements between the same two ends, in either direction.

        Statements of the same message are included only if they `_may_clash`.
        """
        pairs: list[tuple[str, str | Value]] = [(new.subject, new.target)]
        if isinstance(new.target, str):
            pairs.append((new.target, new.subject))
        graph = self.case.state.graph
        stored = [graph.statements[id_] for pair in pairs for id_ in graph.by_ends.get(pair) or ()]
        if new.fact.only:  # two fields of one record are independent
            return stored
        new_statements = (s for pair in pairs for s in self.new.by_key.get(pair, ()))
        return [*stored, *(s for s in new_statements if _may_clash(s.first, new.fact))]

    def _in_slot(self, new: NewFact) -> list[Statement]:
        """Return the statements of the same subject and relation, with new statements as in `_between`.

        A field of a record is not compared in its slot: `connect` excludes its former values (R17).
        """
        if new.fact.only:
            return []
        graph, (subject, relation, _) = self.case.state.graph, new.key
        slot = graph.slots.get(("s", subject, relation)) or ()
        stored = [graph.statements[id_] for id_ in slot[-NEWEST:]]
        new_statements = self.new.by_key.get(("s", subject, relation), ())
        return [*stored, *(s for s in new_statements[-NEWEST:] if _may_clash(s.first, new.fact))]

    def _around(self, new: NewFact) -> list[Statement]:
        """Return the stored statements that share an end with the fact; only a `holds` is compared with them.

        Statements about the same subject whose relation is declared `many` are left out.
        """
        if new.fact.kind != "holds":
            return []
        graph = self.case.state.graph
        ends = [new.subject, *([new.target] if isinstance(new.target, str) else [])]
        statements = (graph.statements[id_] for end in ends for id_ in (graph.about.get(end) or ())[-NEWEST:])
        return [s for s in statements if not (s.subject == new.subject and self._is_many(s.relation))]

    def _is_many(self, relation: str) -> bool:
        return self.relations.traits(relation).cardinality == "many"

    def _shares_matter(self, new: NewFact, statement: Statement) -> bool:
        """Return whether both relations are about one matter, such as employment, of a shared end.

        A shared end that is the object in both counts only if it is a person: a person has one employer, in
        either direction of the relation, but a company has many staff.
        """
        if not matters_of(new.fact.relation) & matters_of(statement.relation):
            return False
        if new.subject in (statement.subject, statement.object) or new.target == statement.subject:
            return True
        note = self.case.state.graph.entities.get(str(statement.object))
        return note is not None and "Person" in note.labels

    def _is_undecided(self, new: NewFact, statement: Statement, supported: Statement | None) -> bool:
        """Return whether neither the ontology nor an earlier verdict decides on the fact and a statement."""
        is_variant = statement.key == new.key
        if statement.is_event and new.fact.kind != "happened":
            return False
        if new.fact.kind == "happened" and (statement.is_event or is_variant):
            same_day = statement.is_event and statement.first.valid_from == new.fact.valid_from
            return same_day and not is_variant and self._is_undeclared(new, statement)
        if supported is not None and self.case.state.graph.verdict(supported.id, statement.id) is not None:
            return False
        if is_variant:
            return self.case.episode.kind != "triples" and statement.end_rank[0] != ENDS_ONLY
        return self._is_undeclared(new, statement)

    def _meets(self, new: NewFact, statement: Statement, supported: Statement | None) -> bool:
        """Return whether the fact claims a time when a statement holds: else they are not compared (R17a)."""
        if new.fact.kind == "happened" and statement.is_event:
            return True
        if supported is None:
            # An ended state may hold again under another name: it is the same statement, though no span
            # meets. Its end may be reported again, too: this supports its last span and makes no new span
            # (R8).
            is_again = new.fact.kind in ("holds", "ended") and new.connects(statement)
            if is_again or statement.key == new.key:
                return True
        spans = self._spans(statement)
        if supported is None:
            return _meet([_claimed_span(new.fact)], spans)
        return _meet([_claimed_span(new.fact)], spans) and not _meet(self._spans(supported), spans)

    def _is_undeclared(self, new: NewFact, statement: Statement) -> bool:
        """Return whether the ontology leaves the relation of two statements with different keys open."""
        relation = new.key[1]
        if relation == statement.relation:
            return self.relations.traits(relation).cardinality not in _DECLARED
        if self.case.episode.kind == "triples":
            return False
        return not self.case.rules.ontology.are_independent(new.fact.relation, statement.relation)

    def _spans(self, statement: Statement) -> list[Span]:
        if statement.id in self.new.by_id:
            return [span_of(statement.first)]
        return self.case.state.spans(statement.id)

    def _wording_vector(self, new: NewFact) -> Quantised | None:
        embedding = self.case.answers.vectors.get(new.fact.text)
        return None if embedding is None else quantised(embedding.vector)

    def _cosine(self, vector: Quantised | None, statement: Statement) -> float:
        """Return the cosine with a statement's vector; -1 if the vector is missing or must be read first."""
        case = self.case
        stored = case.state.statement_vector(statement.id)
        if stored is None and (embedding := case.answers.vectors.get(statement.wording)) is not None:
            stored = quantised(embedding.vector)
        if stored is None and statement.id in case.state.graph.statements:
            if statement.id not in case.answers.statement_vectors:
                if statement.id not in case.questions.statement_vectors:
                    case.questions.statement_vectors.append(statement.id)
                return -1.0
            stored = case.answers.statement_vectors[statement.id]
        if vector is None or stored is None:
            return -1.0
        a, b = vector.astype(np.int64), stored.astype(np.int64)
        return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b) or 1.0)


def _may_clash(fact: Evidence | ExtractedFact, rival: Evidence | ExtractedFact) -> bool:
    """Return whether two facts of one message may exclude or end each other.

    Two facts in the present tense hold together, and two events took place: speakers seldom contradict
    themselves.
    """
    if fact.kind == "happened" and rival.kind == "happened":
        return False
    return not (_is_present(fact) and _is_present(rival))


def _is_present(fact: Evidence | ExtractedFact) -> bool:
    return fact.kind == "holds" and fact.inferred and fact.valid_to is None


def _claimed_span(fact: ExtractedFact) -> Span:
    """Return the claimed time of a fact for comparisons: of an event its instant, of a denial any time."""
    if fact.kind == "happened":
        return fact.valid_from, fact.valid_from
    return span_of(fact)


def _meet(first: Iterable[Span], second: Iterable[Span]) -> bool:
    """Return whether a span of `first` and a span of `second` with a length have an instant in common."""
    spans = [span for span in second if span[0] is None or span[0] != span[1]]
    return any(_overlap(a, b) for a in first for b in spans)


def _overlap(a: Span, b: Span) -> bool:
    if a[0] is not None and a[0] == a[1]:  # an instant
        return (b[0] is None or b[0] <= a[0]) and (b[1] is None or a[0] < b[1])
    starts_before_end = a[0] is None or b[1] is None or a[0] < b[1]
    return starts_before_end and (b[0] is None or a[1] is None or b[0] < a[1])
