"""English verbs: every inflection of a base form, and the tense and negation of a verb group."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, cast

from kgray.backends.rules import words

Form = Literal["base", "third", "past", "participle", "ing"]
Mode = Literal["state", "start", "end", "event"]  # of a phrase
Time = Literal["present", "progressive", "perfect", "past", "former", "future"]
Polarity = Literal["", "not", "never", "no longer"]

_IRREGULAR = {base: (past, other) for base, past, other in map(str.split, words.IRREGULAR)}


def third_person(verb: str) -> str:
    """Return "works" for "work"."""
    if verb in {"have", "be"}:
        return {"have": "has", "be": "is"}[verb]
    if _ends_in_y(verb):
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "x", "z", "ch", "sh", "o")) else "s")


def _ends_in_y(verb: str) -> bool:
    return verb.endswith("y") and verb[-2:-1] not in "aeiou"


def forms(verb: str) -> list[tuple[str, Form]]:
    """Return (word, form) of a verb; a word may stand for several forms."""
    if verb == "be":
        return [(word, cast("Form", form)) for form, listed in words.BE.items() for word in listed.split()]
    if verb == "can":
        return [("can", "base"), ("can", "third")]
    stem = verb + verb[-1] if verb in words.DOUBLING else verb
    regular = verb[:-1] + "ied" if _ends_in_y(verb) else verb + "d" if verb.endswith("e") else stem + "ed"
    past, participle = _IRREGULAR.get(verb, (regular, regular))
    silent = verb.endswith("e") and not verb.endswith("ee")
    gerund = (verb[:-2] + "y" if verb.endswith("ie") else verb[:-1] if silent else stem) + "ing"
    found: list[tuple[str, Form]] = [
        (third_person(verb), "third"), (past, "past"), (participle, "participle"), (gerund, "ing")
    ]  # fmt: skip
    # The base form of "found" is far more often the past of "find".
    return found if verb == "found" else [(verb, "base"), *found]


class Tense(NamedTuple):
    """The time of a verb group and its negation; former: "used to"."""

    time: Time
    polarity: Polarity = ""


_TENSES = {
    group: Tense(*cast("tuple[Time, Polarity]", tense.split(", "))) for group, tense in words.TENSES.items()
}


def read_tense(group: Sequence[str], forms: Collection[Form], mode: Mode, *, plural: bool) -> Tense | None:
    """Return what the auxiliaries and the verb's form mean together; None = nothing sure.

    plural: the subject is I, we, they or several, so that a bare verb form is a present tense.
    """
    normal = " ".join(words.AUXILIARIES[word] for word in group)
    if normal.startswith("'s"):
        normal = ("have" if "participle" in forms or "been" in normal else "be") + normal[2:]
    ambiguous = {"base", "past"} <= set(forms)  # "I quit Acme" happened, "they cost $5" is so
    present = "third" in forms or ("base" in forms and plural and not (ambiguous and mode != "state"))
    if normal in {"", "not", "no longer"} and present:
        return _TENSES[f"{normal} third".strip()]
    for form in ("past", "participle", "ing", "base"):
        if form in forms and (tense := _TENSES.get(f"{normal} {form}".strip())):
            return tense
    return None
