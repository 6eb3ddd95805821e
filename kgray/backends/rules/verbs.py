"""English verb forms: a base form to every inflection of it."""

from __future__ import annotations

from typing import Literal

Form = Literal["base", "third", "past", "participle", "ing"]

# base: past, participle
_IRREGULAR = {
    "become": ("became", "become"),
    "begin": ("began", "begun"),
    "buy": ("bought", "bought"),
    "choose": ("chose", "chosen"),
    "come": ("came", "come"),
    "cost": ("cost", "cost"),
    "drive": ("drove", "driven"),
    "eat": ("ate", "eaten"),
    "fall": ("fell", "fallen"),
    "find": ("found", "found"),
    "fly": ("flew", "flown"),
    "get": ("got", "got"),
    "give": ("gave", "given"),
    "go": ("went", "gone"),
    "have": ("had", "had"),
    "hold": ("held", "held"),
    "keep": ("kept", "kept"),
    "know": ("knew", "known"),
    "lead": ("led", "led"),
    "leave": ("left", "left"),
    "lie": ("lay", "lain"),
    "lose": ("lost", "lost"),
    "make": ("made", "made"),
    "meet": ("met", "met"),
    "quit": ("quit", "quit"),
    "rise": ("rose", "risen"),
    "run": ("ran", "run"),
    "say": ("said", "said"),
    "sell": ("sold", "sold"),
    "send": ("sent", "sent"),
    "show": ("showed", "shown"),
    "speak": ("spoke", "spoken"),
    "spend": ("spent", "spent"),
    "stand": ("stood", "stood"),
    "step": ("stepped", "stepped"),
    "take": ("took", "taken"),
    "teach": ("taught", "taught"),
    "throw": ("threw", "thrown"),
    "wear": ("wore", "worn"),
    "write": ("wrote", "written"),
}
# The last consonant doubles before -ed and -ing.
_DOUBLING = frozenset("stop drop swap quit get run begin plan ship step chat prefer put set cut grab".split())
_SIBILANT = ("s", "x", "z", "ch", "sh", "o")


def third_person(verb: str) -> str:
    """Return "works" for "work"."""
    if verb in {"have", "be"}:
        return {"have": "has", "be": "is"}[verb]
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(_SIBILANT) else "s")


def _stem(verb: str) -> str:
    return verb + verb[-1] if verb in _DOUBLING else verb


def past(verb: str) -> str:
    """Return the past tense of a verb."""
    if verb in _IRREGULAR:
        return _IRREGULAR[verb][0]
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + "d" if verb.endswith("e") else _stem(verb) + "ed"


def gerund(verb: str) -> str:
    """Return the -ing form of a verb."""
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith("ee"):
        return verb[:-1] + "ing"
    return _stem(verb) + "ing"


def forms(verb: str) -> list[tuple[str, Form]]:
    """Return (word, form) of a verb; a word may stand for several forms."""
    if verb == "found":  # its base form is far more often the past of "find"
        return [("founds", "third"), ("founded", "past"), ("founded", "participle"), ("founding", "ing")]
    participle = _IRREGULAR[verb][1] if verb in _IRREGULAR else past(verb)
    return [
        (verb, "base"),
        (third_person(verb), "third"),
        (past(verb), "past"),
        (participle, "participle"),
        (gerund(verb), "ing"),
    ]
