"""The matcher: a marked sentence to clauses of subject, verb, object and date.

It reads a clause only if it can account for every word of it, from the subject to the next comma or "and".
Other clauses give no facts, so that no misunderstood word turns a sentence into its opposite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kgray.domain.ontology import RelationType
from kgray.domain.records import Value
from kgray.language.dates import DatePhrase
from kgray.models.rules.marking import AUXILIARIES, WORDS, FactEnd, MarkedSentence, Phrase, Tense, read_tense

_MAX_LIST, _MAX_AUXILIARIES, _MAX_LEAD, _MAX_ROLE, _MAX_STATUS = 8, 4, 12, 5, 3

EndAt = tuple[FactEnd, int]  # an object, and the unit after it


class Subject(NamedTuple):
    """The subject of a clause."""

    ends: tuple[FactEnd, ...]
    end: int  # the unit after its words
    text: str  # its name: "Alice Nguyen" for "I", "Alice Nguyen's manager"
    relation: RelationType | None = (
        None  # the relation of its noun: "my manager is", "the price of the desk is"
    )
    plural: bool = False  # a bare verb after it is a present tense
    pronoun: str = ""  # "i", "we" or neither


@dataclass(slots=True, kw_only=True)
class Clause:
    """The content of a clause, before its times are known."""

    subject: Subject
    phrase: Phrase
    tense: Tense
    objects: tuple[FactEnd, ...] = ()
    first: int  # the first unit of its verb group
    verb: int
    end: int  # the unit after the words that its text takes
    next_unit: int = 0  # the unit after the whole clause
    dates: list[DatePhrase] = field(default_factory=list)
    elided: bool = False  # its subject is in the previous clause
    reversed: bool = False  # "Bob is my manager"
    denied: bool = False  # "it is not true that ..."
    # Its other names: Acme of "moved from Acme to Beta" and Beta of "left Acme for Beta" ("other"), "works at
    # Acme as a designer" (HAS_ROLE), "a designer at Acme" (WORKS_AT).
    extras: list[tuple[str, FactEnd]] = field(default_factory=list)


class ClauseReader:
    """Reads the clauses of a sentence."""

    def __init__(self, sentence: MarkedSentence) -> None:
        self.sentence, self.table, self.low = sentence, sentence.table, sentence.low

    def read(self) -> list[Clause]:
        """Return the clauses with statements, in order; none of a question or a hedged sentence."""
        clauses: list[Clause] = []
        subject: Subject | None = None
        at, denial = self._opening()
        while at < len(self.sentence.units) and self.sentence.states_something:
            clause = self._clause(at, subject)
            if denial:  # of a plain clause; "It is not true that Bob does not work" says nothing
                fits = clause and clause.phrase.mode == "state" and clause.next_unit == clause.end
                return [replace(clause, denied=True)] if clause and fits and not clause.tense.polarity else []
            if clause:
                clauses.append(clause)
                # After a comma, a bracket, a dash.
                at = clause.next_unit + (self.low(clause.next_unit) not in WORDS["joins"])
            else:
                if subject and clauses and self._takes_back(at):
                    clauses.pop()
                # "All but Bob left" has no "but" between clauses: such a "but" follows a comma.
                last = len(self.sentence.units)
                joins = (i for i in range(at + 1, last) if self.low(i) in WORDS["joins"])
                at = next((i for i in joins if self.low(i) != "but" or self.low(i - 1) == ","), last)
            subject = clause.subject if clause else None
            while self.low(at) in WORDS["joins"] or self.low(at) in {",", "then"}:
                at += 1
        return clauses

    def _opening(self) -> tuple[int, bool]:
        """Return the start of the first clause, and whether words before it deny it."""
        opening = [self.low(i) for i in range(6)]
        if opening[0] in {"that", "this"} and "wrong" in opening:
            return len(self.sentence.units), False  # "That was wrong: Bob ...": which of the two is true?
        untrue = WORDS["untrue"] & set(opening) or ("true" in opening and {"not", "n't"} & set(opening))
        if opening[0] == "it" and untrue and "that" in opening:
            return opening.index("that") + 1, True
        at = int(self.low(0) in {"-", "*", "•"})
        while self.low(at) in WORDS["openers"] or (at and self.low(at) in {",", ":", "all", "everyone"}):
            at += 1
        for colon in range(at + 1, at + _MAX_LEAD):  # "Big news:", "New address for the file:"
            if self.sentence.name(colon - 1):
                break
            if self.low(colon) == ":":
                lead = {self.low(i) for i in range(at, colon)}
                at = colon + 1 if lead & WORDS["leads"] and not lead & WORDS["untrue"] else at
                break
        if self.low(at) in {"at", "in"} and self.sentence.name(at + 1) and self.low(at + 2) == ",":
            at += 3  # "At Acme, Bob reports to Carol"
        return at, False

    def _takes_back(self, at: int) -> bool:
        """Tell whether the words after "I joined Acme and" may have ended that again."""
        remaining = [self.low(i) for i in range(at, len(self.sentence.units))]
        if remaining[:1] == ["to"] and remaining[1:2] != ["be"]:
            return True  # "I moved to Berlin and then to Rome", but not "I like tea, to be honest"
        ended = (self.table.verbs_of_ends & self.table.verbs.get(low, {}).keys() for low in remaining)
        return not WORDS["taken_back"].isdisjoint(remaining) or any(ended)

    def _clause(self, at: int, earlier: Subject | None) -> Clause | None:
        """Return the clause that begins at a unit. earlier: the subject of "and joined Beta"."""
        dates: list[DatePhrase] = []
        while (date := self.sentence.unit(at).date) or (dates and self.low(at) == ","):
            dates += [date] if date else []
            at += 1
        for subject in self._subjects(at):
            if clause := self._predicate(subject, subject.end, dates):
                return clause
        clause = self._predicate(earlier, at, dates) if earlier and not dates else None
        return replace(clause, elided=True) if clause else None

    def _predicate(self, subject: Subject, first: int, dates: list[DatePhrase]) -> Clause | None:
        """Return the clause whose verb group begins at a unit: auxiliaries, a verb, of "be" a negation."""
        for verb in range(first, first + _MAX_AUXILIARIES + 1):
            for lemma, forms in self.table.verbs.get(self.low(verb), {}).items():
                next_unit = verb + 1
                while lemma == "be" and self.low(next_unit) in WORDS["not_be"]:
                    next_unit += 1
                group = [self.low(i) for i in range(first, next_unit) if i != verb]
                for phrase in self._phrases(lemma, subject):
                    if tense := read_tense(group, forms, phrase.mode, plural=subject.plural):
                        clause = Clause(
                            subject=subject, phrase=phrase, tense=tense, first=first, verb=verb,
                            end=next_unit, dates=list(dates),
                        )  # fmt: skip
                        if self._match(clause):
                            return clause
            if self.low(verb) not in AUXILIARIES:
                break
        return None

    def _phrases(self, lemma: str, subject: Subject) -> Iterator[Phrase]:
        """Yield the phrases of a verb that its subject fits."""
        phrases = self.table.phrases.get(lemma, [])
        if named := subject.relation:  # "the price of the desk": of that relation alone
            yield from (phrase for phrase in phrases if phrase.relation is named)
            if lemma == "be":  # "my manager is {person}": the slot is that of the relation's first phrase
                first = (named.phrases or named.starts or named.events or ("be {person}",))[0]
                yield Phrase(named, "state", "be", (), first.rpartition("{")[2].rstrip("}"))
            return
        unsure = not subject.pronoun and not all(end.type or _is_thing(end) for end in subject.ends)
        for phrase in phrases:
            if not all(_suits(end, phrase.relation) for end in subject.ends):
                continue
            # "We are based in Berlin": the speaker, or a company? "Is ready", "is based in": who?
            if lemma == "be" and (subject.pronoun == "we" or (unsure and _is_ambiguous(phrase, phrases))):
                continue
            yield phrase
        if lemma == "be" and len(subject.ends) == 1:
            yield from self.table.of_owners

    def _match(self, clause: Clause) -> bool:
        """Read on from the verb; return whether the phrase's words, its object and nothing else follow."""
        phrase, at = clause.phrase, clause.end
        for group in phrase.words:
            if self.low(at) == "from" and "from" not in group:
                if not (match := self._object(at + 1, phrase)):
                    return False
                at = match[1]
                clause.extras.append(("other", match[0]))
            if self.low(at) not in group:
                return False
            at += 1
        if phrase.slot == "owner":
            required, subject_type = phrase.relation.object_type, clause.subject.ends[0].type
            owned = self._owned(at) if required in {"", subject_type or required} else ()
            owner = next((candidate for candidate in owned if candidate.relation is phrase.relation), None)
            ends, end = (owner.ends, owner.end) if owner else ((), at)
        else:
            ends, end = self._objects(at, phrase)
        clause.objects, clause.end, clause.reversed = ends, end, phrase.slot == "owner"
        return bool(ends) and self._tail(clause, end)

    def _tail(self, clause: Clause, at: int) -> bool:
        """Read on from the objects to the clause's border; return whether every word is understood."""
        while not self.sentence.is_border(at):
            if date := self.sentence.unit(at).date:
                clause.dates.append(date)
                at += 1
            elif step := self._company(clause, at) or self._qualified(clause, at):
                at = step
            else:
                return False
        clause.next_unit = at
        return True

    def _qualified(self, clause: Clause, at: int) -> int:
        """Read "any more", and "in Berlin", "for the roadmap", but not "in the film"."""
        any_more = self.low(at) == "any" and self.low(at + 1) in {"more", "longer"}
        if clause.tense.polarity == "not" and (any_more or self.low(at) == "anymore"):
            clause.tense = clause.tense._replace(polarity="no longer")
            clause.end = at + 1 + any_more if at == clause.end else clause.end
            return at + 1 + any_more
        # These words change the meaning of "no longer".
        holds = clause.tense.polarity == "" and clause.tense.time not in {"past", "former"}
        if not holds or clause.phrase.mode != "state" or clause.phrase.relation.object == "value":
            return 0
        phrases = self.sentence.noun_phrases(at + 1) if self.low(at) in WORDS["loose_prepositions"] else []
        fiction = phrases and not WORDS["fictions"].isdisjoint(map(self.low, range(at, phrases[0][1])))
        return 0 if fiction or not phrases else phrases[0][1]

    def _company(self, clause: Clause, at: int) -> int:
        """Read "as a designer", "at Acme" after a role, "for Beta" and "to join Beta" after an end."""
        name, low = clause.phrase.relation.name, self.low(at)
        relation, match = "other", None
        if name == "WORKS_AT" and low == "as":
            relation, match = "HAS_ROLE", self._role(at + 1)
        elif name == "HAS_ROLE" and (
            low in {"at", "for"} or (low == "of" and clause.objects[0].last in WORDS["offices"])
        ):
            jobs = (row for row in self.table.phrases.get("work", ()) if row.relation.name == "WORKS_AT")
            relation, match = "WORKS_AT", next((self._object(at + 1, job) for job in jobs), None)
        elif clause.phrase.mode == "end" and (low == "for" or (low, self.low(at + 1)) == ("to", "join")):
            match = self._object(at + 1 + (low == "to"), clause.phrase)
        if match is None:
            return 0
        clause.extras.append((relation, match[0]))
        clause.end = match[1]
        return match[1]

    def _subjects(self, at: int) -> Iterator[Subject]:
        """Yield the possible subjects of the clause that begins at a unit, the longest wording first."""
        sentence, speaker, low = self.sentence, self.sentence.speaker, self.low(at)
        if low in {"i", "we"} and speaker:
            yield Subject((speaker,), at + 1, speaker.name, plural=True, pronoun=low)
        yield from self._owned(at)
        if sentence.name(at):
            yield self._names(at)
        elif low in {"the", "my", "our"}:
            for noun, end in sentence.noun_phrases(at):
                if noun.name.lower() not in WORDS["groups"] and self.low(end - 1) not in self.table.nouns:
                    owned_name = f"{speaker.name}'s {noun.name}" if low in {"my", "our"} and speaker else ""
                    text = owned_name or sentence.text_of(at, end)
                    yield Subject((noun,), end, text, plural=noun.name.endswith("s"))

    def _names(self, at: int) -> Subject:
        """Return "Ada", "Ada and Bob", "Ada, Bob and I"; for "Bob, I work", addressed to Bob, "Bob"."""
        sentence = self.sentence
        ends: list[FactEnd] = []
        end, step, joined = at, at, False
        while len(ends) < _MAX_LIST:
            name = sentence.name(step) or (sentence.speaker if ends and self.low(step) == "i" else None)
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
        names = [member.name for member in ends]
        text = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        return Subject(tuple(ends), end, text, plural=len(ends) > 1)

    def _owned(self, at: int) -> Iterator[Subject]:
        """Yield the owner in "my manager", "Ada's manager", "the price of the desk" at a unit."""
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
            for noun_end, end in sentence.noun_phrases(noun[1] + 1):
                yield Subject((noun_end,), end, sentence.text_of(at, end), noun[0])

    def _noun(self, at: int) -> tuple[RelationType, int] | None:
        """Return the relation of the noun at a unit, and the unit after the noun."""
        at += self.low(at) in {"new", "current"}
        nouns = ((" ".join(self.low(i) for i in range(at, at + n)), at + n) for n in (2, 1))
        return next(((self.table.nouns[noun], end) for noun, end in nouns if noun in self.table.nouns), None)

    def _objects(self, at: int, phrase: Phrase) -> tuple[tuple[FactEnd, ...], int]:
        """Return the objects in the phrase's slot, and the unit after them; () = nothing."""
        if phrase.slot == "before":
            return (FactEnd(""),), at
        ends: list[FactEnd] = []
        match = self._object(at, phrase)
        while match and len(ends) < _MAX_LIST:
            if ends and (match[0].value or match[0].is_noun_phrase != ends[0].is_noun_phrase):
                break
            ends.append(match[0])
            at = match[1]
            step = at + (self.low(at) == ",")
            step += self.low(step) == "and"
            match = self._object(step, phrase) if step > at else None
        return tuple(ends), at

    def _object(self, at: int, phrase: Phrase) -> EndAt | None:
        """Return the object at a unit, and the unit after it."""
        slot, sentence = phrase.slot, self.sentence
        if slot == "price":
            price = sentence.unit(at).price
            return (FactEnd(price.shown(), value=price), at + 1) if price else None
        if slot == "role":
            return self._role(at)
        if slot == "status":
            texts = [" ".join(map(self.low, range(at, at + n))) for n in range(_MAX_STATUS, 0, -1)]
            status = next((text for text in texts if text in WORDS["statuses"]), "")
            end = at + len(status.split())
            return (FactEnd(status, value=Value("text", status)), end) if status else None
        if slot in {"person", "someone"} and self.low(at) in {"me", "us"} and sentence.speaker:
            return sentence.speaker, at + 1
        if slot in WORDS["noun_phrase_slots"]:
            match = self._noun_object(at)
        else:
            at += slot == "language" and self.low(at) in WORDS["fluent"]
            the = self.low(at) == "the"
            name = sentence.name(at + the)
            # "At the Hilton" is a visit, "at the University of Oslo" is none.
            match = (name, at + the + 1) if name and not (the and name.type != "Organization") else None
        return match if match and _fits(match[0], phrase) else None

    def _noun_object(self, at: int) -> EndAt | None:
        match = next(iter(self.sentence.noun_phrases(at)), None)
        place = self.sentence.name(match[1] + 1) if match and self.low(match[1]) == "in" else None
        if match and place and place.type == "Place" and match[0].last in WORDS["belongings"]:
            name = f"{match[0].name} in {place.name}"  # "the house in Munich" is not the house in Rome
            return match[0]._replace(name=name, type=self.sentence.type_of(name)), match[1] + 2
        # "My wife", "the manager": its meaning depends on the speaker, so it is no entity.
        return None if match and self.low(match[1] - 1) in self.table.nouns else match

    def _role(self, at: int) -> EndAt | None:
        """Return "product manager" of "the new product manager", "head of design", and the unit after it."""
        while self.low(at) in {"a", "an", "the", "our", "their", "its", "new"}:
            at += 1
        never, end = WORDS["no_role"], at
        while end - at < _MAX_ROLE and self.low(end)[:1].isalpha() and self.low(end) not in never:
            end += 1
        if end == at or self.low(end - 1) not in WORDS["role_heads"]:
            return None
        if self.low(end) == "of" and self.low(end - 1) in WORDS["heads_of"]:
            field = self.low(end + 1)
            end += 2 * (field.isalpha() and field not in WORDS["function_words"])
        text = self.sentence.text_of(at, end)
        return FactEnd(text, value=Value("text", text)), end


def _fits(end: FactEnd, phrase: Phrase) -> bool:
    """Tell whether an object fits the slot and the relation."""
    if end.value and phrase.relation.object is not None:
        return False  # an action is no entity (R18)
    required, low, last = phrase.relation.object_type, end.name.lower(), end.last
    if required == "Place" and end.type in {"Person", "Organization", "Product"}:
        return False
    if required == "Thing" and not _is_thing(end):
        return False
    place = end.type == "Place" or low in WORDS["places"]
    foreign = place or low in WORDS["languages"]
    person = end.type in {"", "Person"} and not (foreign or any(map(str.isdigit, low)))
    person = person and last not in WORDS["organisations"]
    checks = {
        "person": person,
        "someone": end.type == "Person" or (person and " " in low),
        # Nobody owns or uses somebody; LIKES takes anything.
        "thing": phrase.relation.object != "entity" or end.type != "Person",
        "org": end.type in {"", "Organization"} and not (foreign or last in WORDS["groups"]),
        "employer": end.type == "Organization",
        "place": place,
        "group": " " in low and last in WORDS["groups"],
        "problem": not WORDS["problems"].isdisjoint(low.split()),
        "belonging": end.type == "Product" or last in WORDS["belongings"],
        "language": low in WORDS["languages"],
    }
    return checks.get(phrase.slot, True)


def _is_thing(end: FactEnd) -> bool:
    """Tell whether an end is certainly no person: a noun phrase, a product, "Project Aurora", "Ticket 42"."""
    if end.type:
        return end.type != "Person"
    low = end.name.lower()
    return end.is_noun_phrase or any(map(str.isdigit, low)) or not WORDS["things"].isdisjoint(low.split())


def _suits(end: FactEnd, relation: RelationType) -> bool:
    """Tell whether an end may be the subject of a relation."""
    if relation.subject_type == "Thing":
        return end.type != "Person" and end.span is not None  # without a span: the speaker
    if end.is_noun_phrase:  # "the manager" is nobody by name; "the design team" is
        return relation.subject_type == "" and end.last in WORDS["groups"]
    return relation.subject_type in {"", end.type or relation.subject_type}


def _is_ambiguous(phrase: Phrase, phrases: list[Phrase]) -> bool:
    """Tell whether the meaning of the words after "be" depends on the subject: "is ready", "is based in"."""
    rivals = [rival for rival in phrases if (rival.words, rival.slot) == (phrase.words, phrase.slot)]
    short = not phrase.words or phrase.slot == "place"
    subjects = {rival.relation.subject_type for rival in rivals}
    return len(subjects) > 1 or (short and phrase.relation.subject_type == "Thing")
