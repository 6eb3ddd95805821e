"""English verbs: every inflection of a base form, and the tense and negation of a verb group."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from kgray.backends.rules import words

Form = Literal["base", "third", "past", "participle", "ing"]
Mode = Literal["state", "start", "end", "event"]  # of a phrase
Time = Literal["present", "progressive", "perfect", "past", "former", "future"]
Polarity = Literal["", "not", "never", "no longer"]

# base, past, participle
_IRREGULAR = {
    base: (past, participle)
    for base, past, participle in (
        verb.split()
        for verb in (
            "become became become, begin began begun, buy bought bought, choose chose chosen, come came "
            "come, cost cost cost, drive drove driven, eat ate eaten, fall fell fallen, find found "
            "found, fly flew flown, get got got, give gave given, go went gone, have had had, hold held "
            "held, keep kept kept, know knew known, lead led led, leave left left, lie lay lain, lose "
            "lost lost, make made made, meet met met, quit quit quit, rise rose risen, run ran run, say "
            "said said, sell sold sold, send sent sent, show showed shown, speak spoke spoken, spend "
            "spent spent, stand stood stood, take took taken, teach taught taught, throw threw thrown, "
            "wear wore worn, write wrote written"
        ).split(", ")
    )
}
_DOUBLING = frozenset("stop drop swap quit get run begin plan ship step chat prefer put set cut grab".split())
_BE: list[tuple[str, Form]] = [
    ("be", "base"), ("am", "base"), ("are", "base"), ("'m", "base"), ("'re", "base"), ("is", "third"),
    ("'s", "third"), ("was", "past"), ("were", "past"), ("been", "participle"),
]  # fmt: skip


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
    if verb in {"be", "can"}:
        return _BE if verb == "be" else [("can", "base"), ("can", "third")]
    stem = verb + verb[-1] if verb in _DOUBLING else verb
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


# Auxiliaries (am, is, are: be; has: have; does: do; n't: not) and the verb's form. Others say nothing:
# "would work", "can work", "had worked", "will not work", "has not yet worked".
_GROUPS: dict[tuple[str, Form], Tense] = {
    ("", "third"): Tense("present"),
    ("", "past"): Tense("past"),
    ("do", "base"): Tense("present"),
    ("be", "ing"): Tense("progressive"),
    ("have", "participle"): Tense("perfect"),
    ("have been", "ing"): Tense("perfect"),
    ("will", "base"): Tense("future"),
    ("will be", "ing"): Tense("future"),
    ("be going to", "base"): Tense("future"),
    ("used to", "base"): Tense("former"),
    ("do not", "base"): Tense("present", "not"),
    ("not", "third"): Tense("present", "not"),  # of "be" alone: "is not"
    ("be not", "ing"): Tense("progressive", "not"),
    ("have not", "participle"): Tense("perfect", "not"),
    ("have not been", "ing"): Tense("perfect", "not"),
    ("no longer", "third"): Tense("present", "no longer"),
    ("be no longer", "ing"): Tense("present", "no longer"),
    ("will no longer", "base"): Tense("future", "no longer"),
    ("never", "past"): Tense("past", "never"),
    ("have never", "participle"): Tense("perfect", "never"),
    ("can not", "base"): Tense("present", "not"),
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
        return _GROUPS[normal, "third"]
    for form in ("past", "participle", "ing", "base"):
        if form in forms and (tense := _GROUPS.get((normal, form))):
            return tense
    return None
