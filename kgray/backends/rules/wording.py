"""A clause to one sentence that stands alone: pronouns become names, date phrases go.

Dates are kept as fields of the fact. In its text they would make two wordings of one statement
out of "works at Acme" and "joined Acme in 2018", whose digits differ (R18).
"""

from __future__ import annotations

from kgray.backends.rules import lexicon as lex
from kgray.backends.rules import verbs
from kgray.backends.rules.scope import Ref, Scope
from kgray.backends.rules.subjects import Subject
from kgray.records import clean_text

MAX_WORDING = 400
_THIRD = {
    "am": "is",
    "are": "is",
    "'m": " is",
    "'re": " is",
    "were": "was",
    "have": "has",
    "'ve": " has",
    "do": "does",
}
_TRAILING = " ,;:.!?-–—([{"
_DANGLING = frozenset(
    {"and", "but", "as", "of", "in", "on", "at", "since", "then", "so", "with", "to", "by", "for", "from"}
)


def render(
    scope: Scope, subject: Subject, span: tuple[int, int], verb: tuple[int, str], refs: tuple[Ref, ...]
) -> str:
    """Return the words of tokens [span) as a sentence about the subject.

    verb: its token and base form, put in the third person after "I" and "we"; "" = leave it.
    """
    head, lemma = verb
    named = {ref.first: ref.name for ref in (*subject.refs, *refs) if ref.span is None and ref.value is None}
    own = any(ref.name == scope.speaker for ref in subject.refs)
    single = subject.plural and len(subject.refs) == 1
    words: list[str] = []
    first = span[0] if subject.said else max(span[0], subject.end)
    if not subject.said:
        words.append(" and ".join(ref.name for ref in subject.refs))
    last = None
    for index in range(first, span[1]):
        token = scope.tokens[index]
        if scope.when_at[index]:
            continue
        gap = " " if last is None or token.start > last else ""
        last = token.end
        words.append(
            gap + _word(scope, index, named, single=single, base=index == head, lemma=lemma, own=own)
        )
    return _trim(clean_text("".join(words)))


def _word(
    scope: Scope, index: int, named: dict[int, str], *, single: bool, base: bool, lemma: str, own: bool
) -> str:
    token = scope.tokens[index]
    low = token.low
    if index in named and low in lex.PRONOUNS:
        return named[index]
    if low in {"my", "our", "his", "her", "its"} and index in named:
        return f"{named[index]}'s"
    if scope.chunk_at[index]:
        return token.text  # "World War I", "the US": no word of the speaker's
    if scope.speaker and low in {"my", "our"}:
        return "their" if own else f"{scope.speaker}'s"
    if scope.speaker and low in {"i", "we", "me", "us"}:
        return scope.speaker
    if not single:
        return token.text
    if low in _THIRD and (not base or lemma == "be"):
        return _THIRD[low]
    if low == "'ll":
        return " will"
    if base and low == lemma and lemma != "can" and not _bare(scope, index):
        return verbs.third_person(lemma)
    return token.text


def _bare(scope: Scope, index: int) -> bool:
    """Whether an auxiliary before the verb carries the person: "will work", "does not work"."""
    at = index - 1
    while at >= 0 and (scope.low(at) in lex.ADVERBS or scope.when_at[at]):
        at -= 1
    return scope.low(at) in lex.FUTURE | lex.IRREAL | lex.DO | {"to"}


def _trim(text: str) -> str:
    text = text[:MAX_WORDING].strip(_TRAILING)
    while text and text.rpartition(" ")[2].lower() in _DANGLING:
        text = text.rpartition(" ")[0].strip(_TRAILING)
    return text[:1].upper() + text[1:] if text[:4].islower() and text.startswith("the ") else text
