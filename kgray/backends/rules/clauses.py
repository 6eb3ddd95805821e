"""A sentence to its clauses: each verb that the ontology knows, with its subject, objects and mood."""

from __future__ import annotations

from dataclasses import dataclass

from kgray.backends.rules import lexicon as lex
from kgray.backends.rules import mood as moods
from kgray.backends.rules import objects, subjects
from kgray.backends.rules.names import Chunk
from kgray.backends.rules.objects import Objects
from kgray.backends.rules.phrases import Match, Pattern, skipped
from kgray.backends.rules.scope import Ref, Scope
from kgray.backends.rules.subjects import Subject
from kgray.ontology import RelationType


@dataclass(slots=True, kw_only=True)
class Clause:
    """One verb with what belongs to it; tokens of the sentence.

    start, stop   its words; dates there are its own
    origin        what "from X to Y" left
    """

    subject: Subject
    pattern: Pattern
    objects: Objects
    mood: moods.Mood
    head: int
    lemma: str
    auxiliary: int
    origin: Ref | None = None
    start: int = 0
    stop: int = 0
    swapped: bool = False  # "Bob is Ada's manager": the subject is the fact's object
    false: bool = False  # inside "it is not true that ..."


def read(scope: Scope) -> list[Clause]:
    """Return the clauses of a sentence that say something, in order."""
    found: list[Clause] = []
    last = _opening(scope)
    heads = frozenset(_heads(scope))
    unsure, false = _shadow(scope)
    floor = 0
    for head in sorted(heads):
        if head < floor:
            continue
        auxiliary = subjects.auxiliaries(scope, head)
        subject = subjects.find(scope, auxiliary, last)
        if subject is None or (found and subject.said and subject.first < found[-1].objects.end):
            continue
        clause = _clause(scope, head, auxiliary, subject, heads)
        last = subject._replace(noun=None) if subject.noun is None else last
        if clause is None:
            continue
        floor = clause.objects.end
        clause.false = false is not None and head > false
        if (unsure is None or not unsure[0] <= head < unsure[1]) and not _doubted(scope, clause):
            found.append(clause)
    _bound(scope, found)
    return found


def _opening(scope: Scope) -> Subject | None:
    """Return the subject with which the sentence opens, for verbs that the ontology does not know."""
    if scope.low(0) == "i" and scope.speaker:
        return Subject((Ref(scope.speaker, 0, 1, scope.typed(scope.speaker)),), 0, 1, plural=True)
    chunk = scope.chunk_at[0]
    return (
        Subject((scope.ref(chunk),), 0, chunk.end)
        if chunk and scope.low(chunk.end) not in {",", "'s"}
        else None
    )


def _heads(scope: Scope) -> list[int]:
    known = scope.book.heads
    return [
        index
        for index, token in enumerate(scope.tokens)
        if token.low in known
        and not (scope.chunk_at[index] or scope.when_at[index] or scope.quoted[index])
        and (token.low != "'s" or scope.low(index - 1) in {"he", "she", "it", "that"})
    ]


def _shadow(scope: Scope) -> tuple[tuple[int, int] | None, int | None]:
    """Return the tokens under an "if" or "maybe", and where "it is not true that" begins."""
    unsure: tuple[int, int] | None = None
    false = None
    for index, token in enumerate(scope.tokens):
        if unsure is None and token.low in lex.HYPOTHETICAL and not scope.chunk_at[index]:
            stop = next(
                (i for i in range(index, len(scope.tokens)) if scope.low(i) in {";", "but"}),
                len(scope.tokens),
            )
            unsure = (index, stop)
        if token.low in {"wrong", "untrue", "incorrect", "false"} or (
            token.low == "true" and _negated(scope, index)
        ):
            false = index if scope.low(index + 1) in {"that", ":", ",", "-", "—"} else false
    return unsure, false


def _negated(scope: Scope, index: int) -> bool:
    return any(scope.low(i) in {"not", "n't"} for i in range(max(0, index - 3), index))


def _doubted(scope: Scope, clause: Clause) -> bool:
    """Whether the verb is weakened ("almost bought") or hangs on an open time ("when I move")."""
    if any(scope.low(i) in lex.UNSURE for i in range(clause.auxiliary, clause.head)):
        return True
    before = scope.low(clause.subject.first - 1)
    return before in lex.TEMPORAL_SUBORDINATORS and clause.mood.time in {"present", "progressive", "future"}


# ---------------------------------------------------------------------------- one clause


def _clause(
    scope: Scope, head: int, auxiliary: int, subject: Subject, heads: frozenset[int]
) -> Clause | None:
    if scope.low(head) in lex.BE and (clause := _about_noun(scope, head, auxiliary, subject, heads)):
        return clause
    for match in scope.book.match(scope.tokens, head, scope.origin):
        pattern = match.pattern
        if not _suits(scope, subject, pattern.relation) or (
            subject.noun and subject.noun is not pattern.relation
        ):
            continue
        if pattern.relation.name == "HAS_STATUS" and subject.noun is None and not _stateful(subject):
            continue
        if match.lemma == "be" and pattern.slot == "org" and scope.low(match.end) == "the":
            continue  # "is at the Hilton" is a visit
        taken = objects.find(scope, match.end, pattern, heads, switch=_switch(scope, match))
        if taken is None:
            continue
        clause = _complete(scope, subject, match, taken, head, auxiliary)
        if clause is not None:
            return clause
    return _changed_noun(scope, head, auxiliary, subject)


def _switch(scope: Scope, match: Match) -> bool:
    """Whether somebody moved from what is no known place: from one employer to another."""
    chunk = scope.chunk_at[match.origin[0]] if match.origin else None
    return match.lemma == "move" and chunk is not None and scope.ref(chunk).type in {"", "Organization"}


def _stateful(subject: Subject) -> bool:
    """Whether a thing may have a status: not somebody, and not a bare pronoun's guess."""
    return all(ref.type != "Person" for ref in subject.refs)


def _complete(
    scope: Scope, subject: Subject, match: Match, taken: Objects, head: int, auxiliary: int
) -> Clause | None:
    mood = _mood(scope, head, auxiliary, taken.end, match.lemma, match.pattern, plural=subject.plural)
    if mood is None:
        return None
    pattern = match.pattern
    if pattern.slot == "status" and mood.time == "past" and taken.refs[0].name in lex.STATUS_EVENTS:
        pattern = pattern._replace(mode="start")
    origin = None
    left = match.origin[0] if match.origin else taken.end + 1 if scope.low(taken.end) == "from" else None
    if left is not None and pattern.mode == "start" and (chunk := _at(scope, left)):
        origin = scope.ref(chunk)
    return Clause(
        subject=subject,
        pattern=pattern,
        objects=taken,
        mood=mood,
        head=head,
        lemma=match.lemma,
        auxiliary=auxiliary,
        origin=origin,
    )


def _at(scope: Scope, index: int) -> Chunk | None:
    return scope.chunk_at[index] if index < len(scope.tokens) else None


def _mood(
    scope: Scope, head: int, auxiliary: int, end: int, lemma: str, pattern: Pattern, *, plural: bool
) -> moods.Mood | None:
    before = [scope.low(i) for i in range(auxiliary, head) if not scope.when_at[i]]
    if pattern.relation.name == "SPEAKS":
        before = [word for word in before if word != "can"]
    forms = scope.book.heads[scope.low(head)].get(lemma, set())
    time = moods.read(scope.low(head), lemma, forms, before, plural=plural, mode=pattern.mode)
    if time is None:
        return None
    # "is not at Acme", "does not like tea any more": negations stand around the verb, not in the object.
    around = before + [scope.low(i) for i in range(head + 1, min(head + 4, end)) if _negating(scope, i)]
    around += (
        [scope.low(i) for i in range(end, min(end + 6, len(scope.tokens)))]
        if "n't" in around or "not" in around
        else []
    )
    if lemma == "can":
        around = []
    return moods.Mood(time, moods.negation(around))


def _negating(scope: Scope, index: int) -> bool:
    return scope.low(index) in {"not", "n't", "never", "no", "longer", "more"} and not scope.chunk_at[index]


def _suits(scope: Scope, subject: Subject, relation: RelationType) -> bool:
    """Whether the subject may be what the relation speaks of."""
    for ref in subject.refs:
        written = (
            ref.name[:1].isupper()
            or ref.name == scope.speaker
            or any(c.isupper() or c.isdigit() for c in ref.name)
        )
        if ref.name in lex.GROUP_HEADS:  # "our team", whose name nobody said
            return False
        if relation.subject_type == "Thing":
            if ref.type == "Person" or ref.name == scope.speaker:
                return False
            continue
        named = written or subject.noun or ref.name.rpartition(" ")[2] in lex.GROUP_HEADS
        if not named or (relation.subject_type and ref.type not in {"", relation.subject_type}):
            return False
    return True


# ------------------------------------------------------------------ nouns that are relations


def _slot(relation: RelationType) -> str:
    """Return the slot of a relation's first phrase: what its noun takes, too."""
    phrases = relation.phrases + relation.starts
    return phrases[0].rpartition("{")[2].rstrip("}") if phrases else "name"


def _about_noun(
    scope: Scope, head: int, auxiliary: int, subject: Subject, heads: frozenset[int]
) -> Clause | None:
    """Read "Ada's manager is Bob", "the price of the desk is $90", and "Bob is Ada's manager"."""
    at = head + 1
    while at < len(scope.tokens) and skipped(scope.tokens[at]) and not scope.chunk_at[at]:
        at += 1
    if subject.noun is not None:
        taken = _noun_object(scope, at, subject.noun, heads)
        return taken and _noun_clause(scope, head, auxiliary, subject, subject.noun, taken)
    for end in range(at, min(at + 4, len(scope.tokens))):
        relation = _noun_after(scope, end)
        owned = subjects.owner(scope, end - 1) if relation and end > at else None
        if relation and owned and owned[1] == at and relation.object != "value" and len(subject.refs) == 1:
            ends = Objects((owned[0],), end + 1)
            clause = _noun_clause(scope, head, auxiliary, subject, relation, ends)
            if clause:
                clause.swapped = True
            return clause
    return None


def _noun_after(scope: Scope, at: int) -> RelationType | None:
    if scope.chunk_at[at] or (at + 1 < len(scope.tokens) and subjects.is_noun(scope, at + 1)):
        return None
    return scope.book.nouns.get(scope.low(at))


def _noun_object(scope: Scope, at: int, relation: RelationType, heads: frozenset[int]) -> Objects | None:
    pattern = Pattern(relation, "state", _slot(relation), 0)
    if relation.object == "value":
        ref = objects.anything(scope, at, pattern) if at < len(scope.tokens) else None
        return Objects((ref,), ref.end) if ref else None
    if scope.low(at) in {"in", "at"}:
        at += 1
    return objects.find(scope, at, pattern, heads)


def _noun_clause(
    scope: Scope, head: int, auxiliary: int, subject: Subject, relation: RelationType, taken: Objects
) -> Clause | None:
    pattern = Pattern(relation, "state", _slot(relation), 0)
    mood = _mood(scope, head, auxiliary, taken.end, "be", pattern, plural=False)
    if mood is None:
        return None
    return Clause(
        subject=subject, pattern=pattern, objects=taken, mood=mood, head=head, lemma="be", auxiliary=auxiliary
    )


def _changed_noun(scope: Scope, head: int, auxiliary: int, subject: Subject) -> Clause | None:
    """Read "the status of the order changed to shipped"."""
    if (
        subject.noun is None
        or subject.noun.object != "value"
        or scope.low(head) not in {"changed", "became", "went", "switched", "moved"}
    ):
        return None
    at = head + 1
    if scope.low(at) == "from":
        at = scope.origin(at)
    at += scope.low(at) == "to"
    ref = (
        objects.anything(scope, at, Pattern(subject.noun, "start", _slot(subject.noun), 0))
        if at < len(scope.tokens)
        else None
    )
    if ref is None:
        return None
    return Clause(
        subject=subject,
        pattern=Pattern(subject.noun, "start", _slot(subject.noun), 0),
        objects=Objects((ref,), ref.end),
        mood=moods.Mood("past"),
        head=head,
        lemma="change",
        auxiliary=auxiliary,
    )


# ----------------------------------------------------------------------------- clause borders


def _bound(scope: Scope, clauses: list[Clause]) -> None:
    """Give each clause its words: from the border before it to the border after it."""
    border = 0
    for index, clause in enumerate(clauses):
        clause.start = border
        limit = len(scope.tokens)
        if index + 1 < len(clauses):
            following = clauses[index + 1]
            limit = following.subject.first if following.subject.said else following.auxiliary
        clause.stop = border = _border(scope, clause.objects.end, max(limit, clause.objects.end))


def _border(scope: Scope, at: int, limit: int) -> int:
    """Return where the clause whose object ends at `at` ends itself."""
    while at < limit:
        low = scope.low(at)
        dated = scope.when_at[at]
        if not dated and (low in lex.CLAUSE_BREAKS or low in {"and", "but", ";", ":", "(", "—", "–", "-"}):
            return at
        if low == "," and not (at + 1 < limit and scope.when_at[at + 1]):
            return at
        at += 1
    return limit


def role_at(scope: Scope, at: int) -> Ref | None:
    """Return the role at a token: "a designer" of "works at Acme as a designer"."""
    return objects.role(scope, at) if at < len(scope.tokens) else None
