"""What the auxiliaries before a verb say: when, whether at all, and what kind of evidence that is.

    state ("works at")   present: holds · past: has ended · "has worked since": holds · "will": from its date
    start ("joined")     past: holds from its date, else from the reference time · "will join": with a date
    end   ("left")       past: ended at its date, else at the reference time · "will leave": with a date

Negation: "never" denies, always. "No longer" and "not ... any more" end at the date, else at the reference
time. A plain "does not work at" ends too: said now, it does not claim that it never was; but where the
ontology has a relation that excludes this one ("does not like": DISLIKES), that one holds instead. "Did not
join", "did not work at" deny. "Will not", "has not yet", "would", "might", "can" and infinitives say nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from typing import Literal, NamedTuple

from kgray.backends.rules import lexicon as lex
from kgray.backends.rules.phrases import Mode

_HAVING = frozenset({"have", "has", "had", "'ve", "'s"})
_PASSIVE = frozenset({"am", "is", "are", "was", "were", "been", "'m", "'re"})

Time = Literal["present", "progressive", "perfect", "past", "future"]
Negation = Literal["", "not", "never", "no longer"]


class Mood(NamedTuple):
    """The time of a verb and its negation."""

    time: Time
    negation: Negation = ""

    @property
    def ahead(self) -> bool:
        """Whether an open date beside the verb lies in the future."""
        return self.time in {"future", "progressive", "present"}


class Claim(NamedTuple):
    """How a clause becomes evidence.

    kind      holds | ended | denied
    default   what stands where no date is stated: "reference" (inferred), or "none": no fact
    """

    kind: Literal["holds", "ended", "denied"]
    default: Literal["reference", "none"] = "reference"
    over: bool = False  # a state in the past: it holds no longer, whatever its dates
    opposite: bool = False  # tells of the relation that excludes this one


def negation(words: Sequence[str]) -> Negation:
    """Return the negation among the words around a verb."""
    if "never" in words:
        return "never"
    joined = " ".join(words)
    if "no longer" in joined or "no more" in joined:
        return "no longer"
    if "not" in words or "n't" in words:
        more = ("any more", "anymore", "any longer")
        return "no longer" if any(phrase in joined for phrase in more) else "not"
    return ""


def read(
    word: str, lemma: str, forms: Collection[str], before: Sequence[str], *, plural: bool, mode: Mode
) -> Time | None:
    """Return the time of a verb by its form and the auxiliaries before it; None = it says nothing.

    plural: the subject is I, you, we, they or several, so that a bare form is a present tense.
    """
    words = set(before)
    if words & lex.IRREAL:
        return None
    if words & lex.FUTURE:
        return "future"
    if "to" in words:
        if "used" in words:
            return "past" if mode == "state" else None
        return "future" if "going" in words and _be(words) == "present" else None
    if lemma == "be":
        return _copula(word, words)
    if words & lex.DO:
        return ("past" if "did" in words else "present") if "base" in forms else None
    if "ing" in forms:
        time = _ongoing(words)
        return None if time == "past" and mode != "state" else time
    if _be(words) is not None or "been" in words or words & lex.HAVE:
        return _perfect(words, forms)
    return _bare(forms, plural=plural, mode=mode)


def _perfect(words: Set[str], forms: Collection[str]) -> Time | None:
    """Return the time of a participle after "have"; after "be" it is a passive, which says nothing here."""
    if "participle" not in forms or words & _PASSIVE or not words & _HAVING:
        return None
    return "past" if "had" in words else "perfect"


def _bare(forms: Collection[str], *, plural: bool, mode: Mode) -> Time | None:
    """Return the time of a verb without auxiliaries."""
    if "past" in forms and "base" in forms:  # "quit", "cost"
        return "present" if plural and mode == "state" else "past"
    if "past" in forms:
        return "past"
    return "present" if "third" in forms or plural else None


def _be(words: Collection[str]) -> str | None:
    for word in ("was", "were"):
        if word in words:
            return "past"
    return "present" if any(word in words for word in ("am", "is", "are", "'m", "'re", "'s")) else None


def _copula(word: str, words: Collection[str]) -> Time | None:
    if word == "been":
        if "had" in words:
            return "past"
        return "perfect" if set(words) & {"have", "has", "'ve", "'s"} else None
    kind = lex.BE[word]
    return kind if kind in {"present", "past"} else None  # type: ignore[return-value]  # the two times


def _ongoing(words: Collection[str]) -> Time | None:
    if "been" in words:
        return "past" if "had" in words else "perfect"
    being = _be(words)
    if being is None:
        return None
    return "progressive" if being == "present" else "past"


def claim(mode: Mode, mood: Mood, *, has_opposite: bool, since: bool) -> Claim | None:
    """Return what kind of evidence a verb in a mood is; None = none. since: it has "since" or a length."""
    if mood.negation == "never":
        return None if mood.time == "future" else Claim("denied")
    if mode == "state":
        return _state(mood, has_opposite=has_opposite, since=since)
    if mood.negation:
        return Claim("denied") if mode == "start" and mood == Mood("past", "not") else None
    kind: Literal["holds", "ended"] = "holds" if mode == "start" else "ended"
    return Claim(kind, "none" if mood.time in {"future", "progressive"} else "reference")


def _state(mood: Mood, *, has_opposite: bool, since: bool) -> Claim | None:
    time, neg = mood
    if neg == "no longer":
        return Claim("ended", "none" if time == "future" else "reference")
    if neg == "not":
        if time == "past":
            return Claim("denied")
        if time in {"present", "progressive"}:
            return Claim("holds", opposite=True) if has_opposite else Claim("ended")
        return Claim("ended", "none") if time == "perfect" and since else None
    if time == "past":
        return Claim("ended", over=True)
    if time == "perfect":
        return Claim("holds") if since else None
    return Claim("holds", "none" if time == "future" else "reference")
