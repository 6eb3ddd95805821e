"""Clauses to facts: which relation of whom to what, and when."""

from __future__ import annotations

from collections.abc import Iterator

from kgray.backends.rules import clauses, subjects, timing, wording
from kgray.backends.rules import lexicon as lex
from kgray.backends.rules import mood as moods
from kgray.backends.rules.clauses import Clause
from kgray.backends.rules.dates import When
from kgray.backends.rules.ledger import Ledger
from kgray.backends.rules.objects import Objects
from kgray.backends.rules.phrases import skipped
from kgray.backends.rules.scope import Ref, Scope
from kgray.ontology import Ontology, RelationType
from kgray.records import ExtractedFact
from kgray.times import Instant


class Reader:
    """Reads the sentences of one episode into a ledger."""

    def __init__(self, ontology: Ontology, ledger: Ledger, reference: Instant) -> None:
        """Read against a reference time: the episode's t_ref."""
        self.ontology, self.ledger, self.reference = ontology, ledger, reference

    def sentence(self, scope: Scope) -> None:
        """Add what one sentence says; a question says nothing."""
        if scope.sentence.question:
            return
        found = clauses.read(scope)
        for index, clause in enumerate(found):
            self._clause(scope, clause, self._dates(scope, found, index))
        self._appositions(scope)

    # ------------------------------------------------------------------------------- dates

    def _dates(self, scope: Scope, found: list[Clause], index: int) -> list[When]:
        """Return the dates of a clause, the one that counts first.

        "Left Acme and joined Beta in March" shares its date, where both tell of one relation.
        """
        whens = _own_dates(scope, found[index])
        if any(map(timing.starting, whens)):
            return whens
        for near, inherits in ((index + 1, index + 1), (index - 1, index)):
            if 0 <= near < len(found) and not found[inherits].subject.said:
                twin = found[near]
                same = twin.pattern.relation is found[index].pattern.relation
                both = "state" not in {twin.pattern.mode, found[index].pattern.mode}
                if same and both:
                    return whens + _own_dates(scope, twin)
        return whens

    # ------------------------------------------------------------------------------- facts

    def _clause(self, scope: Scope, clause: Clause, whens: list[When]) -> None:
        relation, mode, mood = clause.pattern.relation, clause.pattern.mode, clause.mood
        opposite = scope.book.opposites.get(relation.name)
        since = any(when.role in {"since", "length"} for when in whens)
        claim = moods.claim(mode, mood, has_opposite=opposite is not None, since=since)
        if clause.false:
            claim = moods.Claim("denied") if claim and (claim.kind == "holds" or mood.negation) else None
        if claim is None:
            return
        if claim.opposite and opposite is not None:
            relation = opposite
        fixed = timing.fix(claim, mood, whens, self.reference)
        text = wording.render(
            scope,
            clause.subject,
            (clause.subject.first if clause.subject.said else clause.auxiliary, clause.stop),
            (clause.head, clause.lemma if mood.time != "past" or clause.lemma == "be" else ""),
            clause.objects.refs,
        )
        if fixed is None or isinstance(fixed, str):
            if fixed:
                self.ledger.dropped.append(f"{relation.name}: {text[:80]!r}: {fixed}")
            return
        for subject in clause.subject.refs:
            for item in clause.objects.refs:
                ends = (item, subject) if clause.swapped else (subject, item)
                self._fact(relation, *ends, text, fixed)
            self._more(scope, clause, subject, text, fixed)

    def _more(self, scope: Scope, clause: Clause, subject: Ref, text: str, fixed: timing.Timing) -> None:
        """Add what else a clause tells: where from, where to, in which role."""
        relation, at = clause.pattern.relation, clause.objects.end
        event = fixed.valid_from if fixed.kind == "holds" else fixed.valid_to
        precision = fixed.from_precision if fixed.kind == "holds" else fixed.to_precision
        if clause.origin and fixed.kind == "holds" and relation.object == "entity":
            ended = timing.Timing("ended", valid_to=event, to_precision=precision, inferred=fixed.inferred)
            self._fact(relation, subject, clause.origin, text, ended)
        if clause.pattern.mode == "end" and fixed.kind == "ended":
            follower = _follower(scope, at)
            if follower is not None and not _misfit(relation, follower):
                began = timing.Timing("holds", event, precision, inferred=fixed.inferred)
                self._fact(relation, subject, follower, text, began)
        works, role = self.ontology.get("WORKS_AT"), self.ontology.get("HAS_ROLE")
        if relation.name == "HAS_ROLE" and works and (employer := _employer(scope, clause.objects)):
            self._fact(works, subject, employer, text, fixed)
        if relation.name == "WORKS_AT" and role and scope.low(at) == "as" and clause.pattern.mode != "end":
            found = clauses.role_at(scope, at + 1)
            if found:
                self._fact(role, subject, found, text, fixed)

    def _fact(self, relation: RelationType, source: Ref, target: Ref, text: str, when: timing.Timing) -> None:
        """Add one fact and its ends."""
        kind = "" if relation.subject_type == "Thing" else relation.subject_type
        index = self.ledger.entity(source.name, source.type or kind, source.span)
        end: int | None = None
        if target.value is None:
            label = "" if relation.object_type == "Thing" else relation.object_type
            end = self.ledger.entity(target.name, target.type or label, target.span)
        self.ledger.fact(
            ExtractedFact(
                source=index,
                relation=relation.name,
                text=text,
                kind=when.kind,
                target=end,
                value=target.value,
                valid_from=when.valid_from,
                valid_to=when.valid_to,
                from_precision=when.from_precision,
                to_precision=when.to_precision,
                inferred=when.inferred,
            )
        )

    def _appositions(self, scope: Scope) -> None:
        """Add "my wife Ada" and "Bob's sister Ada" wherever they stand."""
        for chunk in scope.chunks:
            at = chunk.first - 1
            at -= scope.low(at) == ","
            relation = scope.book.nouns.get(scope.low(at))
            if relation is None or relation.object == "value" or scope.low(chunk.end) == "'s":
                continue
            if (
                relation.object_type not in {"", "Person"}
                or relation.subject_type == "Thing"
                or scope.quoted[at]
            ):
                continue
            owned = subjects.owner(scope, at - 1)
            if owned is None or owned[0].name == chunk.surface or relation.cardinality is None:
                continue
            text = f"{owned[0].name}'s {scope.low(at)} is {chunk.surface}"
            known = timing.Timing("holds", self.reference, "instant", inferred=True)
            self._fact(relation, owned[0], scope.ref(chunk), text, known)


def _own_dates(scope: Scope, clause: Clause) -> list[When]:
    """Return the dates among the words of a clause: after its object first, then those before its subject."""
    tokens = scope.tokens
    begin = tokens[clause.start].start if clause.start < len(tokens) else 0
    end = tokens[clause.stop - 1].end if clause.stop else 0
    verb = tokens[clause.head].start
    inside = [when for when in scope.whens if begin <= when.start < end and _leads(scope, clause, when)]
    return [when for when in inside if when.start >= verb] + [when for when in inside if when.start < verb][
        ::-1
    ]


def _leads(scope: Scope, clause: Clause, when: When) -> bool:
    """Whether nothing but commas and adverbs stands between a date and the subject it precedes."""
    subject = clause.subject.first
    between = [i for i in range(subject) if scope.tokens[i].start >= when.end]
    return all(scope.low(i) == "," or scope.when_at[i] or skipped(scope.tokens[i]) for i in between)


def _follower(scope: Scope, at: int) -> Ref | None:
    """Return Beta of "left Acme for Beta" and "left Acme to join Beta"; `at` is the token after Acme."""
    while at < len(scope.tokens) and scope.when_at[at]:
        at += 1
    joins = {("for",): 1, ("to", "join"): 2, ("and", "went", "to"): 3}
    for words, length in joins.items():
        if tuple(scope.low(at + step) for step in range(length)) == words and at + length < len(scope.tokens):
            chunk = scope.chunk_at[at + length]
            return scope.ref(chunk) if chunk and chunk.first == at + length else None
    return None


def _misfit(relation: RelationType, ref: Ref) -> bool:
    """Whether a name cannot be the relation's object: "left Acme for Berlin"."""
    return bool(relation.object_type and ref.type and ref.type != relation.object_type)


def _employer(scope: Scope, taken: Objects) -> Ref | None:
    """Return Acme of "a designer at Acme" and "the CEO of Acme"."""
    at = taken.end
    role = taken.refs[0].name.lower().split()[-1]
    allowed = {"at", "for"} | ({"of"} if role in lex.OFFICES else set())
    if scope.low(at) not in allowed:
        return None
    at += 1
    at += scope.low(at) == "the"
    chunk = scope.chunk_at[at] if at < len(scope.tokens) else None
    if chunk is None or chunk.type in {"Person", "Place", "Product"}:
        return None
    return scope.ref(chunk)


def mentions(scope: Scope) -> Iterator[Ref]:
    """Yield the names of a sentence that are mentioned whether or not a fact speaks of them."""
    for chunk in scope.chunks:
        if chunk.surface.lower() not in lex.LANGUAGES:
            yield scope.ref(chunk)
