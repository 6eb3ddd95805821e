"""What a phrase's slot takes: names, noun phrases, amounts, roles, states."""

from __future__ import annotations

from typing import NamedTuple

from kgray.backends.rules import lexicon as lex
from kgray.backends.rules import subjects
from kgray.backends.rules.phrases import Pattern, skipped
from kgray.backends.rules.scope import Ref, Scope
from kgray.records import Value, clean_text

_MAX_WORDS = 6  # of a noun phrase
_MAX_STATUS = 3


class Objects(NamedTuple):
    """refs: what the verb takes, in order; end: the token after them."""

    refs: tuple[Ref, ...]
    end: int


def find(
    scope: Scope, at: int, pattern: Pattern, heads: frozenset[int], *, switch: bool = False
) -> Objects | None:
    """Return what fills the slot at a token; None where nothing fits.

    heads: tokens where verbs stand. switch: it follows "moved from Acme", so that it need not be known.
    """
    while at < len(scope.tokens) and skipped(scope.tokens[at]) and not scope.chunk_at[at]:
        at += 1
    at += at < len(scope.tokens) and scope.tokens[at].text in {'"', "“"}  # a title in quotes
    if at >= len(scope.tokens):
        return None
    if pattern.slot in {"price", "role", "status"}:
        ref = _value(scope, at, pattern.slot)
        return Objects((ref,), ref.end) if ref else None
    if switch and pattern.slot == "employer":
        pattern = pattern._replace(slot="org")
    first = _one(scope, at, pattern)
    if first is None:
        return None
    refs = [first]
    end = first.end
    while (
        (join := _join(scope, end)) and (ref := _one(scope, join, pattern)) and not _acts(scope, ref, heads)
    ):
        if ref.span is None and ref.value is None:
            break
        refs.append(ref)
        end = ref.end
    return Objects(tuple(refs), end)


def _join(scope: Scope, end: int) -> int:
    """Return the token after "and", "," or ", and" at `end`; 0 where there is none."""
    at = end
    if scope.low(at) == ",":
        at += 1
    if scope.low(at) in {"and", "&"}:
        at += 1
    return at if end < at < len(scope.tokens) else 0


def _acts(scope: Scope, ref: Ref, heads: frozenset[int]) -> bool:
    """Whether a verb follows, so that what was taken for an object is the next subject."""
    at = ref.end
    while at < len(scope.tokens) and (skipped(scope.tokens[at]) or scope.low(at) in lex.AUXILIARIES):
        if scope.low(at) in lex.AUXILIARIES and scope.low(at) not in {"not", "never", "to", "no", "used"}:
            return True
        at += 1
    return at in heads or any(
        index in heads for index in range(ref.first, ref.end) if not scope.chunk_at[index]
    )


def _one(scope: Scope, at: int, pattern: Pattern) -> Ref | None:
    """Return the one object at a token."""
    slot = pattern.slot
    if slot in {"person", "someone"} or scope.low(at) in lex.PRONOUNS:
        ref = _person(scope, at) if slot in {"person", "someone", "thing", "name"} else None
    elif slot in {"thing", "group", "problem", "belonging"}:
        ref = _thing(scope, at, pattern)
    else:
        at += slot == "language" and scope.tokens[at].text.islower()  # "fluent French"
        ref = _name(scope, at)
    if ref is None or not _fits(scope, ref, pattern):
        return None
    return ref


def _person(scope: Scope, at: int) -> Ref | None:
    low = scope.low(at)
    if low in {"me", "us"} and scope.speaker:
        return Ref(scope.speaker, at, at + 1, scope.typed(scope.speaker))
    if low in {"him", "her", "it"}:
        if low == "her" and at + 1 < len(scope.tokens) and subjects.is_noun(scope, at + 1):
            return None
        found = scope.antecedent("thing" if low == "it" else "person", at)
        return found._replace(first=at, end=at + 1, span=None) if found else None
    owned = subjects.owner(scope, at)  # "my friend Bob"
    at += 2 if owned and scope.low(at + 1) in scope.book.nouns else 0
    return _name(scope, at)


def _name(scope: Scope, at: int) -> Ref | None:
    """Return the name at a token, after "the" or "a company called"."""
    for step in range(at, min(at + 6, len(scope.tokens))):
        chunk = scope.chunk_at[step]
        if chunk and chunk.first == step:
            between = [scope.low(i) for i in range(at, step)]
            if (
                not between
                or between[-1] in {"called", "named"}
                or between in (["the"], ["a"], ["an"], ["our"])
            ):
                return None if scope.low(chunk.end) == "'s" else scope.ref(chunk)
            return None
        if step in scope.price_at or scope.when_at[step]:
            return None
    return None


def _thing(scope: Scope, at: int, pattern: Pattern) -> Ref | None:
    """Return the name or noun phrase at a token, without its determiner and general adjectives."""
    low = scope.low(at)
    if low in lex.BARRED_NP:
        return None
    determined = low in lex.DETERMINERS
    start = at + determined
    if low.isdigit() and start < len(scope.tokens) and scope.tokens[at].text != "1":
        return None
    if scope.low(at + 1) == "'s" or (scope.chunk_at[at] and scope.low(scope.chunk_at[at].end) == "'s"):  # type: ignore[union-attr]
        return None
    while (
        start + 1 < len(scope.tokens)
        and scope.low(start) in lex.DROPPED_ADJECTIVES
        and not scope.chunk_at[start]
    ):
        start += 1
    end = start
    while end < len(scope.tokens) and end - start < _MAX_WORDS + 6:
        chunk = scope.chunk_at[end]
        if chunk:
            if chunk.first != end:
                return None
            end = chunk.end
        elif subjects.is_noun(scope, end) and not _verb_after_noun(scope, start, end):
            end += 1
        else:
            break
    if end == start or end - start > _MAX_WORDS + 6:
        return None
    return _noun_ref(scope, at, start, end, pattern)


def _verb_after_noun(scope: Scope, start: int, at: int) -> bool:
    """Whether a word inside a noun phrase is rather a past tense: "bought a printer returned home"."""
    low = scope.low(at)
    return at > start and low.endswith("ed") and not scope.chunk_at[at]


def _noun_ref(scope: Scope, at: int, start: int, end: int, pattern: Pattern) -> Ref | None:
    begin, stop = scope.tokens[start].start, scope.tokens[end - 1].end
    surface = scope.text[begin:stop]
    chunk = scope.chunk_at[start]
    whole = chunk is not None and chunk.end == end
    head = scope.low(end - 1)
    if head in lex.BARRED_NP or (not whole and start < at):
        return None
    if not chunk and scope.low(start).endswith("ing") and scope.low(at) == scope.low(start):
        if pattern.relation.object is not None:
            return None  # an action is no entity (R18)
        return Ref(surface, at, end, value=Value("text", clean_text(surface)))
    label = scope.ref(chunk).type if chunk and whole else scope.typed(surface)
    return Ref(surface, at, end, label, (begin, stop))


def _fits(scope: Scope, ref: Ref, pattern: Pattern) -> bool:
    """Whether an object may be what the slot and the relation ask for."""
    low = ref.name.lower()
    words = low.split()
    if pattern.relation.object_type == "Place" and ref.type in {"Person", "Organization", "Product"}:
        return False
    if pattern.slot in {"person", "someone"}:
        return _personal(ref, words, strict=pattern.slot == "someone")
    if pattern.slot == "org":
        return _organised(scope, ref, low)
    kinds = {
        "group": len(words) > 1 and words[-1] in lex.GROUP_HEADS,
        "problem": any(word in lex.PROBLEM_WORDS for word in words),
        "belonging": (ref.span is not None and ref.type == "Product") or words[-1] in lex.BELONGINGS,
        "language": low in lex.LANGUAGES,
        "place": ref.type == "Place" or low in lex.PLACES,
        "employer": ref.type == "Organization",
    }
    return kinds.get(pattern.slot, True)


def _personal(ref: Ref, words: list[str], *, strict: bool) -> bool:
    """Whether a name may be a person's; strict: "I know Python" tells of none."""
    if strict and ref.type != "Person" and (len(words) == 1 or words[-1] in lex.ORG_WORDS):
        return False
    digits = any(c.isdigit() for c in ref.name)
    return ref.type in {"", "Person"} and " ".join(words) not in lex.PLACES and not digits


def _organised(scope: Scope, ref: Ref, low: str) -> bool:
    """Whether a name may be an organisation's; "the Acme team" is a group within one."""
    if ref.type in {"Person", "Place", "Product"} or low in lex.LANGUAGES or low in lex.PLACES:
        return False
    return not scope.is_group(ref.end) and not scope.is_group(ref.end + 1)


# ----------------------------------------------------------------------------------- values


def _value(scope: Scope, at: int, slot: str) -> Ref | None:
    if slot == "price":
        return _price(scope, at)
    return role(scope, at) if slot == "role" else _status(scope, at)


def _price(scope: Scope, at: int) -> Ref | None:
    for step in range(at, min(at + 3, len(scope.tokens))):
        if step in scope.price_at:
            end, value = scope.price_at[step]
            return Ref(value.shown(), at, end, value=value)
        if scope.low(step) not in {"about", "around", "only", "at", "just"}:
            return None
    return None


def role(scope: Scope, at: int) -> Ref | None:
    """Return "product manager" of "the new product manager at Acme", "head of design", "VP of Sales"."""
    start = at
    while scope.low(start) in {"a", "an", "the", "our", "their", "its", "new"}:
        start += 1
    end = start
    while end < len(scope.tokens) and end - start < _MAX_WORDS and scope.tokens[end].text[0].isalpha():
        low = scope.low(end)
        if (
            low in lex.PREPOSITIONS
            or low in {"and", "or"}
            or low in lex.CLAUSE_BREAKS
            or skipped(scope.tokens[end])
        ):
            break
        if scope.when_at[end]:
            break
        end += 1
    while end > start and scope.low(end - 1) not in lex.ROLE_HEADS:
        end -= 1
    if end == start:
        return None
    if scope.low(end - 1) in {"head", "vp", "director", "president", "lead"} and scope.low(end) == "of":
        chunk = scope.chunk_at[end + 1] if end + 1 < len(scope.tokens) else None
        field = scope.low(end + 1)
        if not chunk and field.isalpha() and field not in lex.BARRED_NP | lex.DETERMINERS:
            end += 2
    if end < len(scope.tokens) and (scope.low(end) == "'s" or subjects.is_noun(scope, end)):
        return None
    text = clean_text(scope.text[scope.tokens[start].start : scope.tokens[end - 1].end])
    return Ref(text, at, end, value=Value("text", text))


def _status(scope: Scope, at: int) -> Ref | None:
    for words in range(_MAX_STATUS, 0, -1):
        text = " ".join(scope.low(i) for i in range(at, at + words))
        if text in lex.STATUSES and at + words <= len(scope.tokens):
            following = scope.low(at + words)
            if following == "by" or (following == "for" and text == "available"):
                return None
            return Ref(text, at, at + words, value=Value("text", text))
    return None


def anything(scope: Scope, at: int, pattern: Pattern) -> Ref | None:
    """Return the value after "the status of X is": an amount, or up to three words."""
    if pattern.relation.name == "COSTS":
        return _price(scope, at)
    ref = _value(scope, at, pattern.slot if pattern.slot in {"role", "status"} else "role")
    if ref:
        return ref
    while scope.low(at) in {"a", "an", "the", "now"}:
        at += 1
    end = at
    while end < len(scope.tokens) and end - at < _MAX_STATUS and not scope.when_at[end]:
        if not (subjects.is_noun(scope, end) or scope.chunk_at[end]):
            break
        end += 1
    if end == at:
        return None
    text = clean_text(scope.text[scope.tokens[at].start : scope.tokens[end - 1].end])
    return Ref(text, at, end, value=Value("text", text))
