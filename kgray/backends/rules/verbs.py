"""English verb forms: a base form to every inflection of it."""

from __future__ import annotations

from typing import Literal

Form = Literal["base", "third", "past", "participle", "ing"]

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
    ("'s", "third"), ("was", "past"), ("were", "past"), ("been", "participle"), ("being", "ing"),
]  # fmt: skip


def third_person(verb: str) -> str:
    """Return "works" for "work"."""
    if verb in {"have", "be"}:
        return {"have": "has", "be": "is"}[verb]
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "x", "z", "ch", "sh", "o")) else "s")


def _past(verb: str) -> str:
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + "d" if verb.endswith("e") else _stem(verb) + "ed"


def _stem(verb: str) -> str:
    return verb + verb[-1] if verb in _DOUBLING else verb


def _gerund(verb: str) -> str:
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    return (verb[:-1] if verb.endswith("e") and not verb.endswith("ee") else _stem(verb)) + "ing"


def forms(verb: str) -> list[tuple[str, Form]]:
    """Return (word, form) of a verb; a word may stand for several forms."""
    if verb in {"be", "can"}:
        return _BE if verb == "be" else [("can", "base"), ("can", "third")]
    past, participle = _IRREGULAR.get(verb, (_past(verb), _past(verb)))
    found: list[tuple[str, Form]] = [
        (third_person(verb), "third"), (past, "past"), (participle, "participle"), (_gerund(verb), "ing")
    ]  # fmt: skip
    # The base form of "found" is far more often the past of "find".
    return found if verb == "found" else [(verb, "base"), *found]
