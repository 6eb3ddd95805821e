"""The tense and negation of a verb group, from the auxiliaries before the verb and the verb's form."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from kgray.backends.rules import words
from kgray.backends.rules.phrases import Mode
from kgray.backends.rules.verbs import Form

Time = Literal["present", "progressive", "perfect", "past", "former", "future"]
Polarity = Literal["", "not", "never", "no longer"]


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
