"""The ontology's phrases, compiled: which relations a verb and the words after it may express."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kgray.backends.rules.sentences import tokenise
from kgray.backends.rules.verbs import Form, Mode, forms
from kgray.ontology import Ontology, RelationType

_LIGHT = frozenset({"be", "get", "give", "go"})  # say nothing by themselves


class Phrase(NamedTuple):
    """One row of the table: "start at {org}" begins (mode) WORKS_AT (relation) with an organisation (slot).

    slot "before": no object follows; it is the one that the relation was said to have before

    words: each word after the verb, as the set of its alternatives
    """

    relation: RelationType
    mode: Mode
    verb: str
    words: tuple[frozenset[str], ...]
    slot: str


class PhraseTable:
    """Every phrase of an ontology by its verb, and every noun that names a relation ("manager").

    verbs      a word in the text -> the verbs it may be, each with its forms
    phrases    a verb's base form -> its phrases: the longest first, then in the ontology's order
    events     (verb, words) -> the event that a clause tells of, besides what it begins or ends: "buy" BOUGHT
    verbs_of_ends   verbs of phrases that end something
    reversed_nouns  "is Ada's manager", "is the founder of Acme": the slot "owner"
    employment      "work at {org}"
    opposites  relation -> the one that its negation with "does not" expresses: LIKES -> DISLIKES
    """

    def __init__(self, ontology: Ontology) -> None:
        self.verbs: dict[str, dict[str, set[Form]]] = {}
        self.phrases: dict[str, list[Phrase]] = {}
        self.nouns: dict[str, RelationType] = {}
        self.opposites: dict[str, RelationType] = {}
        self.relations = {relation.name: relation for relation in ontology}
        for relation in ontology:
            self._add(relation, "state", relation.phrases)
            self._add(relation, "start", relation.starts)
            self._add(relation, "end", relation.ends)
            self._add(relation, "event", relation.events)
            for noun in relation.nouns:
                self.nouns.setdefault(noun, relation)
            if len(relation.excludes) == 1:
                self.opposites.setdefault(relation.excludes[0], relation)
        rows = [row for rows in self.phrases.values() for row in rows]
        self.events = {(row.verb, row.words): row for row in rows if row.mode == "event"}
        self.verbs_of_ends = {row.verb for row in rows if row.mode == "end"} - _LIGHT
        self.reversed_nouns = [
            Phrase(relation, "state", "be", (), "owner")
            for relation in ontology
            if relation.nouns and relation.object != "value"
        ]
        self.employment = next(
            (row for row in self.phrases.get("work", []) if row.relation.name == "WORKS_AT"), None
        )
        for phrases in self.phrases.values():
            # Stable: equals keep the ontology's order. An event comes after what it begins or ends.
            phrases.sort(key=lambda phrase: (-len(phrase.words), phrase.mode == "event"))

    def phrase_of_noun(self, relation: RelationType) -> Phrase:
        """Return the phrase of "my manager is {person}": its slot is that of the relation's first phrase."""
        first = (relation.phrases or relation.starts or relation.events or ("be {person}",))[0]
        return Phrase(relation, "state", "be", (), first.rpartition("{")[2].rstrip("}"))

    def _add(self, relation: RelationType, mode: Mode, phrases: Iterable[str]) -> None:
        for phrase in phrases:
            words, _, slot = phrase.rpartition(" ")
            verbs, *rest = [_alternatives(word) for word in _split(words)]
            for verb in sorted(verbs):
                row = Phrase(relation, mode, verb, tuple(rest), slot.strip("{}"))
                self.phrases.setdefault(verb, []).append(row)
                for word, form in forms(verb):
                    self.verbs.setdefault(word, {}).setdefault(verb, set()).add(form)


def _alternatives(word: str) -> frozenset[str]:
    return frozenset(word.split("|"))


def _split(phrase: str) -> list[str]:
    """Return the words as a sentence's tokens: "can't" is "can" and "n't"; alternatives stay joined."""
    words: list[str] = []
    for word in phrase.split():
        words += [word] if "|" in word else [token.low for token in tokenise(word, 0, len(word))]
    return words
