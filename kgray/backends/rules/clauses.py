"""The matcher: a marked sentence to clauses of subject, verb, object and date.

It reads a clause only if it can account for every word of it, from the subject to the next comma or "and".
What it cannot read says nothing, so that no misunderstood word turns a sentence into its opposite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kgray.backends.rules import words
from kgray.backends.rules.dates import DatePhrase
from kgray.backends.rules.marking import FactEnd, MarkedSentence
from kgray.backends.rules.objects import is_thing, read_object, read_objects, read_role
from kgray.backends.rules.phrases import Mode, Phrase
from kgray.backends.rules.tenses import Tense, read_tense
from kgray.ontology import RelationType

_MAX_SUBJECTS, _MAX_AUXILIARIES = 8, 4
_NOT_TRUE_THAT = (("it", "not", "true"), ("it", "n't", "true"), ("it", "wrong"), ("it", "untrue"), ("it", "false"))


class Subject(NamedTuple):
    """Whom a clause is about, at units [first, end).

    text      the words that name it: "Alice Nguyen" for "I", "Alice Nguyen's manager"
    relation  of "my manager is", "the price of the desk is": the relation that the noun names
    plural    a bare verb after it is a present tense. first_person: it is "I" or "we"
    """

    ends: tuple[FactEnd, ...]
    end: int
    text: str
    relation: RelationType | None = None
    plural: bool = False
    first_person: bool = False
    is_we: bool = False
    also: tuple[RelationType, FactEnd] | None = None  # "my wife Carol": what "I" and she are


@dataclass(slots=True, kw_only=True)
class Clause:
    """What one clause says, before it is known when it held.

    first, verb, end  units: the first auxiliary, the verb, the unit after the objects
    origin            Acme of "moved from Acme to Beta"
    successor         Beta of "left Acme for Beta"
    role, employer    beside WORKS_AT and HAS_ROLE: "works at Acme as a designer", "a designer at Acme"
    """

    subject: Subject
    phrase: Phrase
    tense: Tense
    objects: tuple[FactEnd, ...]
    first: int
    verb: int
    end: int
    after: int = 0  # the unit after its tail
    dates: list[DatePhrase] = field(default_factory=list)
    elided: bool = False  # its subject stands in the clause before
    reversed: bool = False  # "Bob is my manager"
    denied: bool = False  # "it is not true that ..."
    origin: FactEnd | None = None
    successor: FactEnd | None = None
    role: FactEnd | None = None
    employer: FactEnd | None = None


class ClauseReader:
    """Reads the clauses of one sentence."""

    def __init__(self, sentence: MarkedSentence, antecedent: FactEnd | None) -> None:
        """antecedent: whom "he" or "she" means; None = that is not sure."""
        self.sentence, self.table, self.antecedent = sentence, sentence.table, antecedent

    def read(self) -> list[Clause]:
        """Return the clauses that say something, in order; none of a question or a sentence that hedges."""
        if not self.sentence.states_something:
            return []
        clauses: list[Clause] = []
        subject: Subject | None = None
        at, denied, corrected = self._opening()
        while at < len(self.sentence.units):
            clause = self._clause(at, subject)
            if clause and (denied or corrected):
                # "It is not true that Bob works": denied. "That was wrong: Bob does not work": denied, too.
                plain = clause.tense.polarity == ""
                return [replace(clause, denied=True)] if plain == denied and clause.phrase.mode == "state" else []
            if clause:
                clauses.append(clause)
            elif subject and clauses and self._takes_back(at):
                clauses.pop()
            subject = clause.subject if clause else None
            at = self._next_start(clause.after if clause else at, after_clause=clause is not None)
        return clauses

    # ------------------------------------------------------------------- where a clause may begin

    def _opening(self) -> tuple[int, bool, bool]:
        """Return where the first clause begins; whether it is denied; whether it follows "that was wrong"."""
        low = self.sentence.low
        said = tuple(low(i) for i in range(5))
        if said[0] in {"that", "this"} and "wrong" in said[1:4]:
            return said.index("wrong") + 2, False, True
        head = tuple(word for word in said if word not in {"is", "was", "'s", "that"})
        for words_of in _NOT_TRUE_THAT:
            if head[: len(words_of)] == words_of and "that" in said:
                return said.index("that") + 1, True, False
        at = 0
        while low(at) in words.OPENERS or low(at) in {"-", "*", "•"} or (at and low(at) in {",", ":", "all", "everyone"}):
            at += 1
        if low(at) in {"at", "in"} and self.sentence.name(at + 1) and low(at + 2) == ",":
            at += 3  # "At Acme, Bob reports to Carol"
        return at, False, False

    def _next_start(self, at: int, *, after_clause: bool) -> int:
        """Return where the next clause may begin: after "and", "but", ";", and a comma that ends a clause."""
        joins = {"and", "but", ";", ","} if after_clause else {"and", "but", ";"}
        step = at if after_clause else at + 1
        while step < len(self.sentence.units) and self.sentence.low(step) not in joins:
            step += 1
            joins = {"and", "but", ";"}
        while self.sentence.low(step) in {"and", "but", ";", ",", "then"}:
            step += 1
        return max(step, at + 1)

    def _takes_back(self, at: int) -> bool:
        """Whether what follows "I joined Acme and" may have ended that again."""
        rest = [self.sentence.low(i) for i in range(at, len(self.sentence.units))]
        return any(low in words.TAKEN_BACK or self.table.verbs_of_ends & self.table.verbs.get(low, {}).keys() for low in rest)

    # ------------------------------------------------------------------------------- one clause

    def _clause(self, at: int, before: Subject | None) -> Clause | None:
        """Return the clause that begins at a unit. before: the subject that "and joined Beta" goes on with."""
        dates: list[DatePhrase] = []
        while (date := self.sentence.date(at)) or (dates and self.sentence.low(at) == ","):
            dates += [date] if date else []
            at += 1
        for subject in self._subjects(at):
            if found := self._predicate(subject, subject.end, dates):
                return found
        if before and not dates and (found := self._predicate(before, at, dates)):
            found.elided = True
            return found
        return None

    def _predicate(self, subject: Subject, at: int, dates: list[DatePhrase]) -> Clause | None:
        for verb, auxiliaries in self._verbs(at):
            for lemma, forms in self.table.verbs[self.sentence.low(verb)].items():
                start, after = verb + 1, ()
                while lemma == "be" and self.sentence.low(start) in {"not", "n't", "never", "no", "longer"}:
                    after, start = (*after, self.sentence.low(start)), start + 1
                group = (*auxiliaries, *after)
                for phrase in self._phrases(lemma, subject):
                    tense = read_tense(group, forms, phrase.mode, plural=subject.plural)
                    clause = tense and self._match(subject, phrase, tense, (at, verb, start), dates)
                    if clause:
                        return clause
                if lemma == "be" and (tense := read_tense(group, forms, "state", plural=subject.plural)):
                    clause = self._noun_clause(subject, tense, (at, verb, start), dates)
                    if clause:
                        return clause
        return None

    def _verbs(self, at: int) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield where the verb may stand, and the auxiliaries before it."""
        group: tuple[str, ...] = ()
        for index in range(at, at + _MAX_AUXILIARIES + 1):
            low = self.sentence.low(index)
            if low in self.table.verbs:
                yield index, group
            if low not in words.AUXILIARIES:
                return
            group = (*group, low)

    def _phrases(self, lemma: str, subject: Subject) -> list[Phrase]:
        """Return the phrases of a verb that its subject fits."""
        phrases = self.table.phrases.get(lemma, [])
        if subject.relation:  # "the price of the desk dropped to": that relation alone
            return [phrase for phrase in phrases if phrase.relation is subject.relation]
        fitting = [phrase for phrase in phrases if all(_suits(end, phrase.relation) for end in subject.ends)]
        unsure = any(not (end.type or is_thing(end)) for end in subject.ends)
        return [
            phrase
            for phrase in fitting
            if not (lemma == "be" and subject.is_we)  # "we are based in Berlin": the speaker, or a company?
            and not (unsure and lemma == "be" and _for_things(phrase) and _is_ambiguous(phrase, phrases))
        ]

    def _match(
        self, subject: Subject, phrase: Phrase, tense: Tense, places: tuple[int, int, int], dates: list[DatePhrase]
    ) -> Clause | None:
        """Return the clause if the phrase's words, its object and nothing else follow the verb."""
        first, verb, at = places
        origin = None
        for group in phrase.words:
            if self.sentence.low(at) == "from" and "from" not in group:
                found = read_object(self.sentence, at + 1, phrase)
                if found is None:
                    return None
                origin, at = found
            if self.sentence.low(at) not in group:
                return None
            at += 1
        objects = read_objects(self.sentence, at, phrase)
        if objects is None:
            return None
        clause = Clause(
            subject=subject, phrase=phrase, tense=tense, objects=objects[0], first=first, verb=verb,
            end=objects[1], dates=list(dates), origin=origin,
        )  # fmt: skip
        return clause if self._tail(clause, objects[1]) else None

    def _tail(self, clause: Clause, at: int) -> bool:
        """Read on from the objects to the clause's border; whether every word on the way is understood."""
        sentence, relation = self.sentence, clause.phrase.relation
        while not sentence.is_border(at):
            low = sentence.low(at)
            following = None
            if date := sentence.date(at):
                clause.dates.append(date)
                at += 1
            elif low == "anymore" or (low == "any" and sentence.low(at + 1) in {"more", "longer"}):
                if clause.tense.polarity != "not":
                    return False
                clause.tense = clause.tense._replace(polarity="no longer")
                at += 1 if low == "anymore" else 2
            elif relation.name == "WORKS_AT" and low == "as" and (following := read_role(sentence, at + 1)):
                clause.role, clause.end = following
                at = clause.end
            elif relation.name == "HAS_ROLE" and (following := self._employer(clause, at)):
                clause.employer, clause.end = following
                at = clause.end
            elif clause.phrase.mode == "end" and (following := self._successor(clause, at)):
                clause.successor, clause.end = following
                at = clause.end
            elif clause.phrase.mode == "state" and relation.object != "value" and (end := self._loose(at)):
                at = end
            else:
                return False
        clause.after = at
        return True

    def _employer(self, clause: Clause, at: int) -> tuple[FactEnd, int] | None:
        """Return Acme of "a designer at Acme" and "the CEO of Acme"."""
        office = clause.objects[0].name.lower().split()[-1] in words.OFFICES
        works = [row for row in self.table.phrases.get("work", []) if row.relation.name == "WORKS_AT"]
        if not works or self.sentence.low(at) not in ({"at", "for", "of"} if office else {"at", "for"}):
            return None
        return read_object(self.sentence, at + 1, works[0])

    def _successor(self, clause: Clause, at: int) -> tuple[FactEnd, int] | None:
        """Return Beta of "left Acme for Beta" and "left Acme to join Beta"."""
        if self.sentence.low(at) == "to" and self.sentence.low(at + 1) == "join":
            at += 1
        elif self.sentence.low(at) != "for":
            return None
        found = read_object(self.sentence, at + 1, clause.phrase)
        return found if found and not found[0].is_noun_phrase else None

    def _loose(self, at: int) -> int:
        """Return past "in Berlin", "for the roadmap"; 0 where no such words stand."""
        phrases = self.sentence.noun_phrases(at + 1)
        return phrases[0][1] if self.sentence.low(at) in words.LOOSE_PREPOSITIONS and phrases else 0

    # ------------------------------------------------------------------------------ subjects

    def _subjects(self, at: int) -> Iterator[Subject]:
        """Yield whom the clause that begins at a unit may be about, the longest wording first."""
        sentence, speaker = self.sentence, self.sentence.speaker
        low = sentence.low(at)
        if low in {"i", "we"} and speaker:
            yield Subject((speaker,), at + 1, speaker.name, plural=True, first_person=True, is_we=low == "we")
        if low in {"he", "she"} and self.antecedent:
            yield Subject((self.antecedent._replace(span=None),), at + 1, self.antecedent.name)
        yield from self._owned(at)
        if sentence.name(at):
            yield self._names(at)
        elif low in words.DETERMINERS and low not in {"a", "an"}:
            for thing, end in sentence.noun_phrases(at):
                if thing.name.lower() not in words.GROUPS and sentence.low(end - 1) not in self.table.nouns:
                    own = f"{speaker.name}'s {thing.name}" if low in {"my", "our"} and speaker else ""
                    yield Subject((thing,), end, own or sentence.text_of(at, end), plural=thing.name.endswith("s"))

    def _names(self, at: int) -> Subject:
        """Return "Ada", "Ada and Bob", "Ada, Bob and I"."""
        ends: list[FactEnd] = []
        sentence = self.sentence
        end = step = at
        while len(ends) < _MAX_SUBJECTS:
            name = sentence.name(step) or (sentence.speaker if ends and sentence.low(step) == "i" else None)
            if name is None:
                break
            ends.append(name)
            end = step + 1
            step = end + (sentence.low(end) == ",")
            step += sentence.low(step) in {"and", "&"}
            if step == end:
                break
        text = ", ".join(one.name for one in ends[:-1]) + " and " * (len(ends) > 1) + ends[-1].name
        return Subject(tuple(ends), end, text, plural=len(ends) > 1)

    def _owned(self, at: int) -> Iterator[Subject]:
        """Yield the subject of "my manager is", "Ada's manager is", "the desk's price is", "the price of the desk is"."""
        sentence = self.sentence
        owner, step = self._owner(at)
        if owner and (noun := self._noun(step)):
            relation, end = noun
            text = f"{owner.name}'s {sentence.text_of(step, end)}"
            if (name := sentence.name(end)) and relation.object != "value":  # "my wife Carol works ..."
                yield Subject((name,), end + 1, name.name, also=(relation, owner))
            else:
                yield Subject((owner,), end, text, relation=relation)
        elif sentence.low(at) == "the" and (noun := self._noun(at + 1)) and sentence.low(noun[1]) == "of":
            for thing, end in sentence.noun_phrases(noun[1] + 1):
                yield Subject((thing,), end, sentence.text_of(at, end), relation=noun[0])

    def _owner(self, at: int) -> tuple[FactEnd | None, int]:
        """Return whose thing the words at a unit begin to speak of, and the unit of the thing."""
        sentence = self.sentence
        if sentence.low(at) in {"my", "our"}:
            return sentence.speaker, at + 1
        if sentence.name(at) and sentence.low(at + 1) == "'s":
            return sentence.name(at), at + 2
        for thing, end in sentence.noun_phrases(at) if sentence.low(at) == "the" else ():
            if sentence.low(end) == "'s":
                return thing, end + 1
        return None, at

    def _noun(self, at: int) -> tuple[RelationType, int] | None:
        """Return the relation that the noun at a unit names, and the unit after the noun."""
        at += self.sentence.low(at) in {"new", "current"}
        for count in (2, 1):
            noun = " ".join(self.sentence.low(i) for i in range(at, at + count))
            if noun in self.table.nouns:
                return self.table.nouns[noun], at + count
        return None

    def _noun_clause(
        self, subject: Subject, tense: Tense, places: tuple[int, int, int], dates: list[DatePhrase]
    ) -> Clause | None:
        """Return "my manager is Bob", "the price is $90", and the reverse: "Bob is my manager"."""
        first, verb, at = places
        relation, swapped = subject.relation, subject.relation is None
        if relation is not None:
            slot = {"COSTS": "price", "HAS_STATUS": "status", "HAS_ROLE": "role"}.get(relation.name)
            slot = slot or ("person" if relation.object_type == "Person" else "name")
            phrase = _phrase_of(relation, slot)
            objects = None if relation.object == "value" and slot == "name" else read_objects(self.sentence, at, phrase)
        else:
            found = self._of_noun(at)
            if found is None or len(subject.ends) > 1 or not _fits_noun(subject.ends[0], found[0]):
                return None
            phrase, objects = _phrase_of(found[0], "name"), ((found[1],), found[2])
        if objects is None:
            return None
        clause = Clause(
            subject=subject, phrase=phrase, tense=tense, objects=objects[0], first=first, verb=verb,
            end=objects[1], dates=list(dates), reversed=swapped,
        )  # fmt: skip
        return clause if self._tail(clause, objects[1]) else None

    def _of_noun(self, at: int) -> tuple[RelationType, FactEnd, int] | None:
        """Return relation, owner and end of "my manager", "Ada's manager", "the founder of Acme"."""
        owner, step = self._owner(at)
        noun = self._noun(step) if owner else self._noun(at + 1) if self.sentence.low(at) in {"the", "a"} else None
        if noun is None or noun[0].object == "value":
            return None
        if owner:
            return noun[0], owner, noun[1]
        name = self.sentence.name(noun[1] + 1) if self.sentence.low(noun[1]) == "of" else None
        return (noun[0], name, noun[1] + 2) if name else None


def _phrase_of(relation: RelationType, slot: str) -> Phrase:
    """Return a phrase that stands for the relation's noun."""
    mode: Mode = "state"
    return Phrase(relation, mode, "be", (), slot)


def _suits(end: FactEnd, relation: RelationType) -> bool:
    """Whether the relation may speak of a subject."""
    if relation.subject_type == "Thing":
        return end.type != "Person" and not (end.type == "" and end.span is None)
    if end.is_noun_phrase:  # "the manager", "my friend": persons without a name; "the design team" has one
        return relation.subject_type == "" and end.name.lower().split()[-1] in words.GROUPS
    return not relation.subject_type or end.type in {"", relation.subject_type}


def _fits_noun(end: FactEnd, relation: RelationType) -> bool:
    return not end.is_noun_phrase and (not relation.object_type or end.type in {"", relation.object_type})


def _for_things(phrase: Phrase) -> bool:
    return phrase.relation.subject_type == "Thing"


def _is_ambiguous(phrase: Phrase, others: list[Phrase]) -> bool:
    """Whether the words after "be" leave open what the subject is: "is ready", "is based in"."""
    same = (other for other in others if other.words == phrase.words and not _for_things(other))
    return not any(phrase.words) or phrase.slot == "place" or any(same)
