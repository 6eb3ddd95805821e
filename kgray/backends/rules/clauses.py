"""The matcher: a marked sentence to clauses of subject, verb, object and date.

It reads a clause only if it can account for every word of it, from the subject to the next comma or "and".
Other clauses give no facts, so that no misunderstood word turns a sentence into its opposite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kgray.backends.rules import words
from kgray.backends.rules.marking import FactEnd, MarkedSentence
from kgray.backends.rules.objects import is_thing, read_object, read_objects, read_role
from kgray.backends.rules.phrases import Phrase
from kgray.backends.rules.verbs import Tense, read_tense
from kgray.dates import DatePhrase
from kgray.ontology import RelationType

_MAX_SUBJECTS, _MAX_AUXILIARIES, _MAX_LEAD = 8, 4, 12
_JOINS = frozenset({"and", "but", ";"})
_NEGATIONS = frozenset({"not", "n't", "never", "no", "longer"})
_UNTRUE = frozenset({"untrue", "false", "fake", "incorrect"})


class Subject(NamedTuple):
    """The subject of a clause; its words end before unit `end`.

    text      what names it: "Alice Nguyen" for "I", "Alice Nguyen's manager"
    relation  of "my manager is", "the price of the desk is": the relation that the noun names
    plural    a bare verb after it is a present tense
    pronoun   "i" or "we", "" = neither
    """

    ends: tuple[FactEnd, ...]
    end: int
    text: str
    relation: RelationType | None = None
    plural: bool = False
    pronoun: str = ""


@dataclass(slots=True, kw_only=True)
class Clause:
    """What one clause says, before it is known when it held.

    first, verb     the first unit of its verb group, and the verb's
    end             the unit after the words that its text takes; after: the one after the whole clause
    elided          its subject stands in the clause before. reversed: "Bob is my manager"
    denied          "it is not true that ..."
    beside          what else it names: Acme of "moved from Acme to Beta" and Beta of "left Acme for Beta"
                    ("other"), "works at Acme as a designer" (HAS_ROLE), "a designer at Acme" (WORKS_AT)
    """

    subject: Subject
    phrase: Phrase
    tense: Tense
    objects: tuple[FactEnd, ...] = ()
    first: int
    verb: int
    end: int
    after: int = 0
    dates: list[DatePhrase] = field(default_factory=list)
    elided: bool = False
    reversed: bool = False
    denied: bool = False
    beside: list[tuple[str, FactEnd]] = field(default_factory=list)


class ClauseReader:
    """Reads the clauses of one sentence."""

    def __init__(self, sentence: MarkedSentence) -> None:
        self.sentence, self.table, self.low = sentence, sentence.table, sentence.low

    def read(self) -> list[Clause]:
        """Return the clauses that say something, in order; none of a question or a sentence that hedges."""
        clauses: list[Clause] = []
        subject: Subject | None = None
        at, denial = self._opening()
        while at < len(self.sentence.units) and self.sentence.states_something:
            clause = self._clause(at, subject)
            if denial:
                # "It is not true that Bob works" denies it, and so does "That was wrong: Bob does not work".
                fits = clause and clause.phrase.mode == "state" and clause.after == clause.end
                plain = clause and clause.tense.polarity == ""
                return (
                    [replace(clause, denied=True)] if clause and fits and plain == (denial == "that") else []
                )
            if clause:
                clauses.append(clause)
            elif subject and clauses and self._takes_back(at):
                clauses.pop()
            subject = clause.subject if clause else None
            at = self._next_start(clause.after if clause else at + 1, after_clause=clause is not None)
        return clauses

    # ------------------------------------------------------------------- where a clause may begin

    def _opening(self) -> tuple[int, str]:
        """Return where the first clause begins; "that" or "wrong" after words that deny it, else ""."""
        said = [self.low(i) for i in range(6)]
        if said[0] in {"that", "this"} and "wrong" in said:
            return said.index("wrong") + 2, "wrong"
        untrue = _UNTRUE & set(said) or ("true" in said and {"not", "n't"} & set(said))
        if said[0] == "it" and untrue and "that" in said:
            return said.index("that") + 1, "that"
        at = int(self.low(0) in {"-", "*", "•"})
        while self.low(at) in words.OPENERS or (at and self.low(at) in {",", ":", "all", "everyone"}):
            at += 1
        at = self._after_lead(at)
        if self.low(at) in {"at", "in"} and self.sentence.name(at + 1) and self.low(at + 2) == ",":
            at += 3  # "At Acme, Bob reports to Carol"
        return at, ""

    def _after_lead(self, at: int) -> int:
        """Return the unit after "Big news:", "New address for the file:"; `at` where there are none."""
        for colon in range(at + 1, at + _MAX_LEAD):
            if self.sentence.name(colon - 1):
                return at
            if self.low(colon) == ":":
                lead = {self.low(i) for i in range(at, colon)}
                return at if words.LEADS.isdisjoint(lead) or not _UNTRUE.isdisjoint(lead) else colon + 1
        return at

    def _next_start(self, at: int, *, after_clause: bool) -> int:
        """Return where the next clause may begin: after "and", "but", ";", or the sign that ends a clause."""
        if after_clause and self.low(at) not in _JOINS:
            at += 1  # a comma, a bracket, a dash
        else:
            # "All but Bob left" is no "but" between clauses; one of those follows a comma.
            while at < len(self.sentence.units) and not (
                self.low(at) in _JOINS and (self.low(at) != "but" or after_clause or self.low(at - 1) == ",")
            ):
                at += 1
        while self.low(at) in _JOINS or self.low(at) in {",", "then"}:
            at += 1
        return at

    def _takes_back(self, at: int) -> bool:
        """Whether what follows "I joined Acme and" may have ended that again."""
        rest = [self.low(i) for i in range(at, len(self.sentence.units))]
        if rest[:1] == ["to"] and rest[1:2] != ["be"]:
            return True  # "I moved to Berlin and then to Rome", but not "I like tea, to be honest"
        ended = (self.table.verbs_of_ends & self.table.verbs.get(low, {}).keys() for low in rest)
        return not words.TAKEN_BACK.isdisjoint(rest) or any(ended)

    # ------------------------------------------------------------------------------- one clause

    def _clause(self, at: int, before: Subject | None) -> Clause | None:
        """Return the clause that begins at a unit. before: the subject of an "and joined Beta"."""
        dates: list[DatePhrase] = []
        while (date := self.sentence.unit(at).date) or (dates and self.low(at) == ","):
            dates += [date] if date else []
            at += 1
        for subject in self._subjects(at):
            if found := self._predicate(subject, subject.end, dates):
                return found
        found = self._predicate(before, at, dates) if before and not dates else None
        return replace(found, elided=True) if found else None

    def _predicate(self, subject: Subject, first: int, dates: list[DatePhrase]) -> Clause | None:
        """Return the clause whose verb group begins at a unit: auxiliaries, a verb, of "be" a negation."""
        verb = first
        while self.low(verb) in words.AUXILIARIES or self.low(verb) in self.table.verbs:
            for lemma, forms in self.table.verbs.get(self.low(verb), {}).items():
                after = verb + 1
                while lemma == "be" and self.low(after) in _NEGATIONS:
                    after += 1
                group = [self.low(i) for i in range(first, after) if i != verb]
                for phrase in self._phrases(lemma, subject):
                    if tense := read_tense(group, forms, phrase.mode, plural=subject.plural):
                        clause = Clause(
                            subject=subject, phrase=phrase, tense=tense, first=first, verb=verb,
                            end=after, dates=list(dates),
                        )  # fmt: skip
                        if self._match(clause):
                            return clause
            if verb - first == _MAX_AUXILIARIES or self.low(verb) not in words.AUXILIARIES:
                return None
            verb += 1
        return None

    def _phrases(self, lemma: str, subject: Subject) -> Iterator[Phrase]:
        """Yield the phrases of a verb that its subject fits."""
        phrases = self.table.phrases.get(lemma, [])
        if subject.relation:  # "the price of the desk": of that relation alone
            yield from (phrase for phrase in phrases if phrase.relation is subject.relation)
            if lemma == "be":
                yield self.table.phrase_of_noun(subject.relation)
            return
        unsure = not subject.pronoun and not all(end.type or is_thing(end) for end in subject.ends)
        for phrase in phrases:
            if not all(_suits(end, phrase.relation) for end in subject.ends):
                continue
            if lemma == "be" and (subject.pronoun == "we" or (unsure and _is_ambiguous(phrase, phrases))):
                continue  # "we are based in Berlin": the speaker, or a company?
            yield phrase
        if lemma == "be" and len(subject.ends) == 1:
            yield from self.table.reversed_nouns

    def _match(self, clause: Clause) -> bool:
        """Read on from the verb; whether the phrase's words, its object and nothing else follow."""
        phrase, at = clause.phrase, clause.end
        for group in phrase.words:
            if self.low(at) == "from" and "from" not in group:
                found = read_object(self.sentence, at + 1, phrase)
                if found is None:
                    return False
                at = found[1]
                clause.beside.append(("other", found[0]))
            if self.low(at) not in group:
                return False
            at += 1
        clause.reversed = phrase.slot == "owner"
        if clause.reversed:
            wanted, held = phrase.relation.object_type, clause.subject.ends[0].type
            owned = self._owned(at) if wanted in {"", held or wanted} else ()
            found_owner = (one for one in owned if one.relation is phrase.relation)
            owner = next(found_owner, None)
            objects = (owner.ends, owner.end) if owner else None
        else:
            objects = read_objects(self.sentence, at, phrase)
        if objects is None:
            return False
        clause.objects, clause.end = objects
        return self._tail(clause, clause.end)

    # ------------------------------------------------------------------------ after the object

    def _tail(self, clause: Clause, at: int) -> bool:
        """Read on from the objects to the clause's border; whether every word on the way is understood."""
        while not self.sentence.is_border(at):
            step = self._date(clause, at) or self._any_more(clause, at) or self._company(clause, at)
            if not step and self._is_loose(clause):
                loose = self.sentence.noun_phrases(at + 1) if self.low(at) in words.LOOSE_PREPOSITIONS else []
                if loose and words.FICTIONS.isdisjoint(map(self.low, range(at, loose[0][1]))):
                    step = loose[0][1]  # "in Berlin", "for the roadmap", but not "in the film"
            if not step:
                return False
            at = step
        clause.after = at
        return True

    @staticmethod
    def _is_loose(clause: Clause) -> bool:
        """Whether "in Berlin", "for the roadmap" beside it change nothing; they do beside "no longer"."""
        holds = clause.tense.polarity == "" and clause.tense.time not in {"past", "former"}
        return holds and clause.phrase.mode == "state" and clause.phrase.relation.object != "value"

    def _date(self, clause: Clause, at: int) -> int:
        date = self.sentence.unit(at).date
        clause.dates += [date] if date else []
        return at + 1 if date else 0

    def _any_more(self, clause: Clause, at: int) -> int:
        """Read "any more", which makes "no longer" of "not"."""
        any_more = self.low(at) == "any" and self.low(at + 1) in {"more", "longer"}
        if clause.tense.polarity != "not" or not (any_more or self.low(at) == "anymore"):
            return 0
        clause.tense = clause.tense._replace(polarity="no longer")
        clause.end = at + 1 + any_more if at == clause.end else clause.end
        return at + 1 + any_more

    def _company(self, clause: Clause, at: int) -> int:
        """Read "as a designer", "at Acme" after a role, "for Beta" and "to join Beta" after an end."""
        name, low = clause.phrase.relation.name, self.low(at)
        office = name == "HAS_ROLE" and clause.objects[0].name.lower().split()[-1] in words.OFFICES
        what, found = "", None
        if name == "WORKS_AT" and low == "as":
            what, found = "HAS_ROLE", read_role(self.sentence, at + 1)
        elif name == "HAS_ROLE" and (low in {"at", "for"} or (low == "of" and office)):
            job = self.table.employment
            what, found = "WORKS_AT", read_object(self.sentence, at + 1, job) if job else None
        elif clause.phrase.mode == "end" and (low == "for" or (low, self.low(at + 1)) == ("to", "join")):
            what, found = "other", read_object(self.sentence, at + 1 + (low == "to"), clause.phrase)
        if found is None:
            return 0
        clause.beside.append((what, found[0]))
        clause.end = found[1]
        return found[1]

    # ------------------------------------------------------------------------------ subjects

    def _subjects(self, at: int) -> Iterator[Subject]:
        """Yield the possible subjects of the clause that begins at a unit, the longest wording first."""
        sentence, speaker, low = self.sentence, self.sentence.speaker, self.low(at)
        if low in {"i", "we"} and speaker:
            yield Subject((speaker,), at + 1, speaker.name, plural=True, pronoun=low)
        yield from self._owned(at)
        if sentence.name(at):
            yield self._names(at)
        elif low in {"the", "my", "our"}:
            for thing, end in sentence.noun_phrases(at):
                if thing.name.lower() not in words.GROUPS and self.low(end - 1) not in self.table.nouns:
                    own = f"{speaker.name}'s {thing.name}" if low in {"my", "our"} and speaker else ""
                    yield Subject(
                        (thing,), end, own or sentence.text_of(at, end), plural=thing.name.endswith("s")
                    )

    def _names(self, at: int) -> Subject:
        """Return "Ada", "Ada and Bob", "Ada, Bob and I"; of "Bob, I work", which speaks to Bob, "Bob"."""
        ends: list[FactEnd] = []
        end, step, joined = at, at, False
        while len(ends) < _MAX_SUBJECTS:
            name = self.sentence.name(step) or (
                self.sentence.speaker if ends and self.low(step) == "i" else None
            )
            if name is None:
                break
            ends.append(name)
            end = step + 1
            step = end + (self.low(end) == ",")
            if joined or step == end == step + (self.low(step) in {"and", "&"}):
                break
            joined = self.low(step) in {"and", "&"}
            step += joined
        if not joined:
            ends, end = ends[:1], at + 1
        names = [one.name for one in ends]
        text = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        return Subject(tuple(ends), end, text, plural=len(ends) > 1)

    def _owned(self, at: int) -> Iterator[Subject]:
        """Yield what "my manager", "Ada's manager", "the price of the desk" at a unit tell of: the owner."""
        sentence, low = self.sentence, self.low(at)
        my, name = low in {"my", "our"}, sentence.name(at)
        owners = [(name, at + 1)] if name else sentence.noun_phrases(at) if low == "the" else []
        steps = [(owner, end + 1) for owner, end in owners if self.low(end) == "'s"][:1]
        if my and sentence.speaker:
            steps = [(sentence.speaker, at + 1)]
        for owner, step in steps:
            if noun := self._noun(step):
                mine = f"{owner.name}'s {sentence.text_of(step, noun[1])}"
                yield Subject((owner,), noun[1], mine if my else sentence.text_of(at, noun[1]), noun[0])
                return
        if low == "the" and (noun := self._noun(at + 1)) and self.low(noun[1]) == "of":
            for thing, end in sentence.noun_phrases(noun[1] + 1):
                yield Subject((thing,), end, sentence.text_of(at, end), noun[0])

    def _noun(self, at: int) -> tuple[RelationType, int] | None:
        """Return the relation that the noun at a unit names, and the unit after the noun."""
        at += self.low(at) in {"new", "current"}
        for count in (2, 1):
            noun = " ".join(self.low(i) for i in range(at, at + count))
            if noun in self.table.nouns:
                return self.table.nouns[noun], at + count
        return None


def _suits(end: FactEnd, relation: RelationType) -> bool:
    if relation.subject_type == "Thing":
        return end.type != "Person" and end.span is not None  # without a span: the speaker
    if end.is_noun_phrase:  # "the manager" is nobody by name; "the design team" is
        return relation.subject_type == "" and end.name.lower().split()[-1] in words.GROUPS
    return relation.subject_type in {"", end.type or relation.subject_type}


def _is_ambiguous(phrase: Phrase, phrases: list[Phrase]) -> bool:
    """Whether the meaning of the words after "be" depends on the subject: "is ready", "is based in"."""
    same = {
        other.relation.subject_type
        for other in phrases
        if (other.words, other.slot) == (phrase.words, phrase.slot)
    }
    short = not phrase.words or phrase.slot == "place"
    return len(same) > 1 or (short and phrase.relation.subject_type == "Thing")
