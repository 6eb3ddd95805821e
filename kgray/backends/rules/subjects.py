"""Who a verb is about: the names, pronoun or noun phrase right before it."""

from __future__ import annotations

from typing import NamedTuple

from kgray.backends.rules import lexicon as lex
from kgray.backends.rules.phrases import skipped
from kgray.backends.rules.scope import Ref, Scope
from kgray.ontology import RelationType

_FIRST = frozenset({"i", "we"})
_JOINS = frozenset({"and", "&"})
_OWNERS = {"my": "speaker", "our": "speaker", "his": "person", "her": "person", "its": "thing"}
_PAST_ADJECTIVES = frozenset({"former", "ex", "old", "previous", "next", "future", "late"})
_MAX_PHRASE = 5  # words of a noun phrase before its head


class Subject(NamedTuple):
    """refs: the entities; the words are tokens [first, end). noun: the relation of "Ada's manager is ...".

    plural: a bare verb form after it is a present tense. said: False = taken from the clause before.
    """

    refs: tuple[Ref, ...]
    first: int
    end: int
    plural: bool = False
    noun: RelationType | None = None
    said: bool = True


def auxiliaries(scope: Scope, head: int) -> int:
    """Return where the auxiliaries and adverbs before a verb begin (the verb itself where none is)."""
    at = head
    while at > 0:
        token = scope.tokens[at - 1]
        if scope.chunk_at[at - 1] or not (
            token.low in lex.AUXILIARIES or skipped(token) or scope.when_at[at - 1]
        ):
            break
        at -= 1
    return at


def find(scope: Scope, head: int, last: Subject | None) -> Subject | None:
    """Return the subject of the verb whose auxiliaries begin at `head`; None where it is not sure.

    last: the subject of the clause before, which "and joined Beta" goes on with.
    """
    at = head - 1
    if at < 0:
        return None
    at -= at > 0 and scope.low(at) == "." and scope.chunk_at[at - 1] is not None  # "Acme Corp. bought"
    low = scope.low(at)
    if scope.chunk_at[at]:
        return _named(scope, at)
    if low in lex.PRONOUNS:
        return _pronoun(scope, at, low)
    if low in {"who", "which", "that"}:
        return _relative(scope, at)
    if low == ",":
        return _apposition(scope, at) or _again(at, head, last, scope)
    if low in {"and", "but", "then", "&", ";"}:
        return _again(at, head, last, scope)
    return _phrase(scope, at)


def _again(at: int, head: int, last: Subject | None, scope: Scope) -> Subject | None:
    if last is None or last.noun is not None or scope.low(at) == ";":
        return None
    return last._replace(first=head, end=head, said=False)


def _named(scope: Scope, at: int) -> Subject | None:
    """Return the names that end at a token: "Ada", "Ada and Bob", "Ada, Bob and Cy"."""
    chunk = scope.chunk_at[at]
    assert chunk is not None  # noqa: S101 - the caller looked
    chunks = [chunk]
    while True:
        first = chunks[0].first
        join = first - 1
        if join < 1 or not (scope.low(join) in _JOINS or (scope.low(join) == "," and len(chunks) > 1)):
            break
        if scope.low(join) in _JOINS and scope.low(join - 1) == ",":
            join -= 1
        before = scope.chunk_at[join - 1]
        if before is None or _belongs(scope, before.first):
            break
        chunks.insert(0, before)
    first = chunks[0].first
    if _belongs(scope, first):
        return _of(scope, first, chunk.end)
    refs = tuple(scope.ref(item) for item in chunks)
    return Subject(refs, first, chunk.end, plural=len(refs) > 1)


def _belongs(scope: Scope, first: int) -> bool:
    """Whether a name is part of a phrase about something else: "of Acme", "at Acme"."""
    before = scope.low(first - 1)
    if before == "the":
        before = scope.low(first - 2)
    return before in lex.PREPOSITIONS and not _opens(scope, first)


def _opens(scope: Scope, first: int) -> bool:
    """Whether only a conjunction of the clause stands before a name: "after Ada left"."""
    return scope.low(first - 1) in {"after", "before", "since", "until", "till", "as"}


def _of(scope: Scope, first: int, end: int) -> Subject | None:
    """Return the subject of "the price of the desk", whose noun is a relation's."""
    at = first - 1
    if scope.low(at) == "the":
        at -= 1
    noun = scope.book.nouns.get(scope.low(at - 1))
    chunk = scope.chunk_at[first]
    if (
        scope.low(at) != "of"
        or noun is None
        or chunk is None
        or scope.low(at - 2) not in {"the", "current", "new"}
    ):
        return None
    return Subject((scope.ref(chunk),), at - 2, end, noun=noun)


def _pronoun(scope: Scope, at: int, low: str) -> Subject | None:
    if low in _FIRST:
        speaker = _speaker(scope, at)
        if speaker is None:
            return None
        other = scope.chunk_at[at - 2] if at > 1 and scope.low(at - 1) in _JOINS else None
        if other:
            return Subject((scope.ref(other), speaker), other.first, at + 1, plural=True)
        return Subject((speaker,), at, at + 1, plural=True)
    if low in {"he", "she", "it"}:
        ref = scope.antecedent("thing" if low == "it" else "person", at)
        return Subject((ref._replace(first=at, end=at + 1, span=None),), at, at + 1) if ref else None
    return None


def _speaker(scope: Scope, at: int) -> Ref | None:
    if scope.speaker is None:
        return None
    return Ref(scope.speaker, at, at + 1, scope.typed(scope.speaker))


def owner(scope: Scope, at: int) -> tuple[Ref, int] | None:
    """Return whom the possessive that ends at a token means, and where it begins: "my", "Ada's"."""
    low = scope.low(at)
    if low in _OWNERS:
        kind = _OWNERS[low]
        ref = _speaker(scope, at) if kind == "speaker" else scope.antecedent(kind, at)
        return (ref._replace(first=at, end=at + 1, span=None), at) if ref else None
    if low in {"'s", "'"} and at > 0:
        chunk = scope.chunk_at[at - 1]
        if chunk:
            return scope.ref(chunk), chunk.first
        thing = noun_phrase(scope, at - 1)
        return (thing, thing.first) if thing else None
    return None


def _relative(scope: Scope, at: int) -> Subject | None:
    """Return the name before "who" or "which"."""
    before = at - 1 - (scope.low(at - 1) == ",")
    chunk = scope.chunk_at[before] if before >= 0 else None
    if chunk is None:
        return None
    return Subject((scope.ref(chunk),), at, at + 1, said=False)


def _apposition(scope: Scope, comma: int) -> Subject | None:
    """Return the name of "Ada Lind, our new designer, works ..."."""
    for at in range(comma - 1, max(comma - 9, 0), -1):
        if scope.low(at) == ",":
            chunk = scope.chunk_at[at - 1]
            inside = scope.low(at + 1)
            if (
                chunk is None
                or inside not in lex.DETERMINERS | {"who"}
                or inside == "who"
                or _belongs(scope, chunk.first)
            ):
                return None
            return Subject((scope.ref(chunk),), chunk.first, comma + 1)
        if scope.low(at) in lex.BE or scope.low(at) in {";", ":", "and"}:
            return None
    return None


def _phrase(scope: Scope, at: int) -> Subject | None:
    """Return the subject "my printer", "the price of the desk", "Ada's manager", "the desk's price"."""
    noun = _noun(scope, at)
    if noun is not None:
        relation, first = noun
        possessive = first - 1
        if scope.low(possessive) in {"new", "current"}:
            possessive -= 1
        if scope.low(possessive) in _PAST_ADJECTIVES:
            return None
        owned = owner(scope, possessive)
        if owned:
            return Subject((owned[0],), owned[1], at + 1, noun=relation)
        return None
    thing = noun_phrase(scope, at)
    if thing is None:
        return None
    before = scope.low(thing.first - 1)
    if before in lex.PREPOSITIONS:
        relation_of = scope.book.nouns.get(scope.low(thing.first - 2))
        if before == "of" and relation_of and scope.low(thing.first - 3) == "the":
            return Subject((thing,), thing.first - 3, at + 1, noun=relation_of)
        if not _opens(scope, thing.first):
            return None
    return Subject((thing,), thing.first, at + 1)


def _noun(scope: Scope, at: int) -> tuple[RelationType, int] | None:
    """Return the relation of the noun that ends at a token, and where the noun begins."""
    for words in (2, 1):
        text = " ".join(scope.low(i) for i in range(at - words + 1, at + 1))
        if text in scope.book.nouns:
            return scope.book.nouns[text], at - words + 1
    return None


def noun_phrase(scope: Scope, at: int) -> Ref | None:
    """Return the thing whose phrase ends at a token: a determiner, words, a head: "the office printer"."""
    first = at
    while first >= 0 and at - first <= _MAX_PHRASE:
        token = scope.tokens[first]
        if token.low in lex.DETERMINERS:
            break
        if not (scope.chunk_at[first] or is_noun(scope, first)):
            return None
        first -= 1
    else:
        return None
    if first == at or scope.low(at) in lex.BARRED_NP:
        return None
    start = first + 1
    while start < at and scope.low(start) in lex.DROPPED_ADJECTIVES and not scope.chunk_at[start]:
        start += 1
    begin, end = scope.tokens[start].start, scope.tokens[at].end
    surface = scope.text[begin:end]
    chunk = scope.chunk_at[at]
    label = scope.ref(chunk).type if chunk and chunk.first == start else scope.typed(surface)
    return Ref(surface, first, at + 1, label, (begin, end))


def is_noun(scope: Scope, index: int) -> bool:
    """Whether a lower-case word may stand in a noun phrase."""
    token = scope.tokens[index]
    low = token.low
    if not token.text[0].isalpha() or scope.when_at[index] or index in scope.price_at:
        return False
    return not (
        low in lex.PREPOSITIONS
        or low in lex.PRONOUNS
        or low in lex.AUXILIARIES
        or low in lex.CLAUSE_BREAKS
        or low in lex.BARRED_NP
        or low in lex.ADVERBS
        or low in {"and", "but", "or", "nor"}
        or (low.endswith("ly") and len(low) > 4)  # not "fly", "ally"
    )
