"""The offline extractor: English sentences by the ontology's table of phrases, JSON by its structure.

Demo quality: a wrong fact is worse than none, so it skips statements that are not plain. The evidence of a
clause (holds, ended, denied or happened) and its times (R3, R6, R18):

| phrase | present | past | perfect | used to | future | no longer | never |
|---|---|---|---|---|---|---|---|
| state ("works at") | holds | ended | holds, if "since" | ended | holds, if dated | ended | denied |
| start ("joined") | holds, if dated | holds | holds | | holds, if dated | | denied, if an event |
| end ("left") | ended, if dated | ended | ended | | ended, if dated | | |
| event ("met") | | happened | happened | | | | denied |

Without a date, a state holds from, or ended at, the reference time, inferred; the future counts only with a
date. A past state has ended if it is dated, or if only one is possible at a time: "I loved the film" does not
say that the love has ended. A plain "does not work at" gives no evidence: it may never have been true. "Never
moved to Rome" may be said by a person who was born there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from itertools import pairwise, product, zip_longest
from typing import NamedTuple

from kgray.domain.ontology import Ontology, RelationType
from kgray.domain.records import (
    Episode,
    EvidenceKind,
    ExtractedEntity,
    ExtractedFact,
    Extraction,
    canonical,
    clean_text,
)
from kgray.domain.times import Instant
from kgray.errors import InvalidAnswer
from kgray.language.dates import DatedMoment, resolve
from kgray.models.rules.clauses import Clause, ClauseReader
from kgray.models.rules.marking import (
    MAX_TEXT,
    PATTERNS,
    THIRD,
    WORDS,
    FactEnd,
    KnownWords,
    MarkedSentence,
    Mode,
    Phrase,
    PhraseTable,
    Sentence,
    sentences,
    third_person,
)
from kgray.ports import ExtractionRequest


class Timing(NamedTuple):
    """The kind of evidence, and when it began and ended; None = not stated."""

    kind: EvidenceKind
    start: DatedMoment | None = None
    end: DatedMoment | None = None


# The dates of a clause; lasting: the start belongs to a period that has not ended, "since 2018".
_Stated = tuple[DatedMoment | None, DatedMoment | None, bool]


def _timing(clause: Clause, phrase: Phrase, reference: Instant, *, has_opposite: bool) -> Timing | None:
    """Return the kind of evidence of a clause, and its times; None = it says nothing certain.

    phrase: its own, or of an event that it implies. has_opposite: "does not like" is another's evidence
    """
    (time, polarity), mode = clause.tense, phrase.mode
    stated = _stated(clause, reference, mode)
    if clause.denied:
        return Timing("denied")
    if stated is None:
        return None
    if polarity == "never":
        is_event = mode == "start" and not phrase.relation.phrases
        return Timing("denied") if (mode in {"state", "event"} or is_event) and not clause.dates else None
    if mode == "state":
        return _state(clause, stated, (reference, "instant"), has_opposite=has_opposite)
    happened = time in {"past", "perfect"}
    start, end, lasting = stated
    moment = start or ((reference, "instant") if happened else None)
    unclear = polarity or lasting or end or time == "former" or (mode == "event" and not happened)
    if unclear or moment is None or happened != (moment[0] <= reference):
        return None
    if mode == "end":
        return Timing("ended", end=moment)
    return Timing("happened" if mode == "event" else "holds", start=moment)


def _state(clause: Clause, stated: _Stated, reference: DatedMoment, *, has_opposite: bool) -> Timing | None:
    """Return the evidence of a state such as "works at"."""
    (time, polarity), (start, end, lasting) = clause.tense, stated
    if time in {"past", "former"}:
        changes = clause.phrase.slot in {"status", "price"}
        single = clause.phrase.relation.cardinality == "single" and not changes
        if start is end is None and (time == "former" or single):
            return Timing("ended", end=reference)
        if end is None or end[0] > reference[0] or (start and start[0] >= end[0]):
            return None  # "I worked at Acme in 2015": when did it end?
        return Timing("holds", start, end) if start else Timing("ended", end=end)
    if time == "future" and (start is None or start[0] <= reference[0]):
        return None
    if polarity == "no longer":
        return Timing("ended", end=start or reference) if end is None else None
    if polarity == "not" and time == "perfect":  # "has not worked at Acme since 2020"
        return Timing("ended", end=start) if start and lasting else None
    if polarity == "not":
        return Timing("holds", start=reference) if has_opposite and not clause.dates else None
    once = time == "perfect" and not lasting  # "I have worked at Acme": does it still hold?
    moment = start is not None and not lasting and time != "future"  # "works at Acme on Friday"
    if once or moment or (end and end[0] <= max(reference, start or reference)[0]):
        return None
    return Timing("holds", start or reference, end)


def _stated(clause: Clause, reference: Instant, mode: Mode) -> _Stated | None:
    """Return the dates of a clause; None if a date is unreadable or superfluous."""
    start = end = None
    lasting, time = False, clause.tense.time
    for date in clause.dates:
        if date.role == "length" and mode in {"start", "end"}:
            return None  # "left Acme for a week" did not leave it
        if date.role == "length" and (time in {"past", "former"} or mode == "event"):
            continue  # "worked at Acme for three years": not when
        if date.first.words.lower() in WORDS["at_present"] and (date.role, time) == ("at", "present"):
            continue  # "works at Acme today" says no more than "works at Acme"
        # An open date ("on Friday") may be after the reference time.
        is_future = date.role != "length" and time not in {"past", "perfect", "former"}
        is_future = is_future and (time != "present" or clause.phrase.mode != "state" or date.role == "until")
        first = resolve(date.first, reference, future=is_future)
        second = resolve(date.second, reference, future=is_future) if date.second else None
        if first is None or date.role == "other" or (date.second and second is None):
            return None
        if date.role == "until":
            first, second = None, first
        if (first and start) or (second and end):
            return None
        start, end = first or start, second or end
        lasting = lasting or date.role in {"since", "length", "range"}
    return start, end, lasting


def _wording(sentence: MarkedSentence, clause: Clause) -> str:
    """Return the clause's words as a sentence about its subject, in the third person."""
    units = sentence.units
    verb = units[clause.verb]
    group = [unit.low for unit in units[clause.first : clause.verb + 1]]
    if clause.subject.pronoun:
        present = clause.tense.time == "present" and WORDS["before_base"].isdisjoint(group)
        group = [THIRD.get(word, word) for word in group]
        if present and verb.low == clause.phrase.verb:
            group[-1] = third_person(verb.low)
    head = " ".join({"'s": "is", "'ll": "will"}.get(word, word) for word in group)
    remaining, last = "", verb.end
    for unit in units[clause.verb + 1 : clause.end]:
        remaining += sentence.text[last : unit.start] + (
            "" if unit.date else sentence.text[unit.start : unit.end]
        )
        last = unit.end
    qualifier = PATTERNS["qualifier"].match(sentence.text, last)
    remaining += qualifier[0] if qualifier else ""
    speaker = sentence.speaker.name if sentence.speaker else ""
    possessive = "their" if clause.subject.pronoun else f"{speaker}'s"
    predicate = PATTERNS["first_person"].sub(
        lambda word: possessive if word[0].lower() in {"my", "our"} else speaker, remaining
    )
    text = clean_text(
        f"{clause.subject.text} {head}{predicate}".replace(" n't", "n't").replace("cann't", "can't")
    )
    return text[:400].strip()


MAX_ITEMS = 2_000  # an episode with more entities or facts is a table or noise: the rest is dropped
_MAX_NEAR = 64  # the latest entities, which include the entities of the same sentence


class ExtractionBuilder:
    """Entities by clean name in the order of mention, facts in the order of reading."""

    def __init__(self) -> None:
        self.entities: list[ExtractedEntity] = []
        self.facts: list[ExtractedFact] = []
        self.dropped: list[str] = []
        self._index: dict[str, int] = {}
        self._read_keys: set[tuple[object, ...]] = set()

    def entity(
        self, name: str, label: str = "", span: tuple[int, int] | None = None, *, key: str = ""
    ) -> int:
        """Return the index of a name, after adding a new name; the first known type stays.

        key: of the name's record; records with different keys are two entities
        """
        clean = clean_text(name)
        index = self._index.get(key or clean, len(self.entities))
        if index == len(self.entities):
            self._index.setdefault(clean, index)
            self._index[key or clean] = index
            key_of = index if key and key == clean else None
            self.entities.append(ExtractedEntity(name=clean, type=label, span=span, key_of=key_of))
            if key and key != clean:
                self.entities.append(ExtractedEntity(name=key, key_of=index))
        existing = self.entities[index]
        if (label and not existing.type) or (span and not existing.span):
            self.entities[index] = replace(existing, type=existing.type or label, span=existing.span or span)
        return index

    def type_of(self, name: str) -> str:
        """Return the type of a name so far; "" = not known."""
        index = self._index.get(clean_text(name))
        return "" if index is None else self.entities[index].type

    def mention(self, names: Sequence[FactEnd]) -> None:
        """Add names that are in no fact, except those inside a longer name: "Kestrel desk"."""
        for name in names:
            near = [
                entity.span
                for entity in self.entities[-_MAX_NEAR:]
                if entity.span and entity.span != name.span
            ]
            is_inside = name.span and any(a <= name.span[0] and name.span[1] <= b for a, b in near)
            if not is_inside and len(self.entities) < MAX_ITEMS:
                self.entity(name.name, name.type, name.span)

    def fact(self, fact: ExtractedFact) -> None:
        """Add a fact; a repeated fact, or a fact from an entity to itself, adds nothing."""
        if fact.source == fact.target:
            self.dropped.append(f"{fact.relation}: {fact.text[:80]!r} connects an entity with itself")
            return
        key = (fact.source, fact.relation, fact.target, fact.value, fact.kind, fact.valid_from, fact.valid_to)
        if key in self._read_keys:
            return
        if len(self.facts) < MAX_ITEMS:
            self._read_keys.add(key)
            self.facts.append(fact)
        elif (line := f"more than {MAX_ITEMS} facts: the rest was not read") not in self.dropped[-1:]:
            self.dropped.append(line)

    def drop_contradictions(self, ontology: Ontology) -> None:
        """Drop facts of this episode that end or deny each other at once: a misreading."""
        slots: dict[tuple[int, str], list[ExtractedFact]] = {}
        for fact in self.facts:
            slots.setdefault((fact.source, fact.relation), []).append(fact)
        consistent = []
        for fact in self.facts:
            declared = ontology.get(fact.relation)
            single = declared is not None and declared.cardinality == "single"
            slot = slots[fact.source, fact.relation][:_MAX_NEAR]
            rival = next(
                (candidate for candidate in slot if _contradict(fact, candidate, single=single)), None
            )
            if rival is None:
                consistent.append(fact)
            else:
                self.dropped.append(f"{fact.relation}: {fact.text[:80]!r} contradicts {rival.text[:80]!r}")
        self.facts = consistent


def _contradict(a: ExtractedFact, b: ExtractedFact, *, single: bool) -> bool:
    """Tell whether a slot has two objects from an instant, or a statement a denial, or start and end."""
    if (a.target, a.value) != (b.target, b.value):
        return single and a.kind == b.kind == "holds" and a.valid_from == b.valid_from
    if "denied" in {a.kind, b.kind}:
        return a.kind != b.kind
    begins, ends = (a, b) if a.kind == "holds" else (b, a)
    return begins.kind == "holds" and ends.kind == "ended" and begins.valid_from == ends.valid_to


class RulesExtractor:
    """Reads messages, texts and JSON without a model; the same request always gives the same answer."""

    def __init__(self, ontology: Ontology, keys: Sequence[str] = ()) -> None:
        """keys: fields that identify a JSON record, before `id` and similar fields."""
        self._ontology, self._keys = ontology, keys
        self._table = PhraseTable(ontology)
        declared = [asdict(relation) for relation in ontology]
        digest = hashlib.sha256(canonical([declared, *keys] if keys else declared).encode())
        self.identity = f"rules-3/{digest.hexdigest()[:12]}"

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return the extraction of the episode. Raises InvalidAnswer for `json` without valid JSON."""
        episode, builder = request.episode, ExtractionBuilder()
        if episode.kind == "json":
            from kgray.models.rules.json_records import JsonReader

            table = str(json.loads(episode.metadata).get("table", ""))
            try:
                content = json.loads(episode.text, parse_float=Decimal, parse_int=Decimal, parse_constant=str)
            except (ValueError, RecursionError) as error:
                reason = f"the episode's text is not JSON: {error}"
                raise InvalidAnswer(reason, raw=episode.text[:2000]) from None
            JsonReader(builder, self._ontology, episode.reference_time, self._keys).read(content, table)
        else:
            _TextReader(self._table, builder, episode, request.previous).read()
            builder.drop_contradictions(self._ontology)
        entities, facts, dropped = tuple(builder.entities), tuple(builder.facts), tuple(builder.dropped)
        return Extraction(entities=entities, facts=facts, dropped=dropped, model=self.identity)


class _TextReader:
    def __init__(
        self, table: PhraseTable, builder: ExtractionBuilder, episode: Episode, previous: Sequence[Episode]
    ) -> None:
        self.table, self.builder, self.text, self.previous = table, builder, episode.text, previous
        self.reference: Instant = episode.reference_time
        self.vocabulary = KnownWords()
        for message in (episode, *previous):
            if message.speaker and message.speaker.lower() not in WORDS["role_speakers"]:
                name = clean_text(message.speaker).lower()
                self.vocabulary.persons |= {name, *name.split()}
        self.speaker: FactEnd | None = None
        if episode.speaker and episode.kind == "message":
            name = clean_text(episode.speaker)
            self.speaker = FactEnd(name, "" if name.lower() in WORDS["role_speakers"] else "Person")
            builder.entity(name, self.speaker.type)
        # If there are other speakers, "I" may be another person.
        transcript, somebody = PATTERNS["transcript"].search, PATTERNS["somebody"].match
        self.is_transcript = bool(transcript(self.text[:MAX_TEXT]) or somebody(self.text))
        if greeting := PATTERNS["here"].match(self.text):
            name = self.speaker.name if self.speaker else ""
            # "B. Smith here": a short form of the speaker's name, initials or words of it?
            short_name, full = (re.findall(r"[^\W_]+", text.casefold()) for text in (greeting[1], name))
            if not set(short_name).isdisjoint(full) and all(
                any(w.startswith(s) for w in full) for s in short_name
            ):
                self.text = (
                    " " * greeting.end() + self.text[greeting.end() :]
                )  # the positions of the rest stay the same
            else:
                self.is_transcript = True

    def read(self) -> None:
        parts = list(sentences(self.text))
        self.vocabulary.lowers = {
            token.text for part in parts for token in part.tokens if token.text.islower()
        }
        speaker = None if self.is_transcript else self.speaker
        for part, following in zip_longest(parts, parts[1:]):
            sentence = MarkedSentence(
                self.text, part, self.vocabulary, self.table, speaker, self.builder.type_of
            )
            clauses = [] if following and _takes_back(following) else ClauseReader(sentence).read()
            # "Left Acme" in "left Acme and joined Beta in May" has the other clause's date, and the reverse.
            for first, second in pairwise(clauses):
                if second.elided and "state" not in {first.phrase.mode, second.phrase.mode}:
                    first.dates, second.dates = first.dates or second.dates, second.dates or first.dates
            for clause in clauses:
                text = _wording(sentence, clause)
                self._clause(clause, text)
                self._event(clause, text)
            self.builder.mention(sentence.names)
        if len(self.text) > MAX_TEXT:
            self.builder.dropped.append(f"the text after character {MAX_TEXT} was not read")

    def _clause(self, clause: Clause, text: str) -> None:
        """Add the facts of a clause."""
        relation, opposite = clause.phrase.relation, self.table.opposites.get(clause.phrase.relation.name)
        timing = _timing(clause, clause.phrase, self.reference, has_opposite=opposite is not None)
        if timing is None:
            return
        if opposite and clause.tense.polarity == "not" and timing.kind == "holds":
            relation = opposite
        holds = timing.kind in {"holds", "happened"}
        role = any(name == "HAS_ROLE" for name, _ in clause.extras)
        for subject in clause.subject.ends:
            # "No longer works at Acme as a designer" may work there as something else.
            for item in self._objects(clause, subject) if holds or not role else ():
                ends = (item, subject) if clause.reversed else (subject, item)
                self._fact(relation, *ends, text, timing)
            for name, end in clause.extras:
                if name != "other":
                    # A former CEO of Acme may still work there.
                    if (declared := self.table.ontology.get(name)) and (holds or name == "HAS_ROLE"):
                        self._fact(declared, subject, end, text, timing)
                elif relation.object == "entity" and timing.kind != "denied":
                    # "Moved from Acme to Beta" ends Acme when Beta begins.
                    ended, began = Timing("ended", end=timing.start), Timing("holds", start=timing.end)
                    self._fact(relation, subject, end, text, ended if timing.kind == "holds" else began)

    def _objects(self, clause: Clause, subject: FactEnd) -> tuple[FactEnd, ...]:
        """Return the clause's objects; for "I quit my job" the employer that was named before."""
        if clause.phrase.slot != "before":
            return clause.objects
        relation = clause.phrase.relation.name
        builders = [self.builder]
        for episode in reversed(self.previous):
            if (last := _last_said(builders[-1], subject.name, relation)) is not None:
                return last
            if episode.kind in {"message", "text"}:
                builders.append(ExtractionBuilder())
                _TextReader(self.table, builders[-1], episode, ()).read()
        return _last_said(builders[-1], subject.name, relation) or ()

    def _event(self, clause: Clause, text: str) -> None:
        """Add the event, if the clause's relation has only the beginning or end caused by it."""
        event = self.table.events.get((clause.phrase.verb, clause.phrase.words))
        if event is None or event is clause.phrase:
            return
        if timing := _timing(clause, event, self.reference, has_opposite=False):
            for subject, item in product(clause.subject.ends, clause.objects):
                self._fact(event.relation, subject, item, text, timing)

    def _fact(
        self, relation: RelationType, source: FactEnd, target: FactEnd, text: str, timing: Timing
    ) -> None:
        """Add a fact and its ends; an end without a type gets the type that the relation requires."""
        start, start_precision = timing.start or (None, None)
        end, end_precision = timing.end or (None, None)
        pairs = ((source, relation.subject_type), (target, relation.object_type))
        subject, entity = (
            None
            if fact_end.value
            else self.builder.entity(
                fact_end.name, fact_end.type or label.replace("Thing", ""), fact_end.span
            )
            for fact_end, label in pairs
        )
        self.builder.fact(
            ExtractedFact(
                source=subject or 0, relation=relation.name, text=text, kind=timing.kind, target=entity,
                value=target.value, valid_from=start, from_precision=start_precision, valid_to=end,
                to_precision=end_precision,
                inferred=(end if timing.kind == "ended" else start) == self.reference,
            )
        )  # fmt: skip


def _takes_back(sentence: Sentence) -> bool:
    """Tell whether a sentence denies the sentence before it, or asks: "Not!", "Just kidding", "Right?"."""
    lows = [token.low for token in sentence.tokens]
    if lows[0] in WORDS["takes_back"] or lows[:2] in (["i", "mean"], ["i", "lied"], ["no", ","]):
        return True
    if lows[0] not in WORDS["may_take_back"] or (len(lows) > 6 and lows[1] != ","):
        return False
    denials = WORDS["negations"] | WORDS["takes_back"] | WORDS["hedges"]
    return sentence.question or not denials.isdisjoint(lows)


def _last_said(builder: ExtractionBuilder, subject: str, relation: str) -> tuple[FactEnd, ...] | None:
    """Return the last stated object of a subject, () if it has ended; None = none was stated."""
    for fact in reversed(builder.facts):
        if fact.relation == relation and builder.entities[fact.source].name == subject:
            end = builder.entities[fact.target or 0]
            return (FactEnd(end.name, end.type),) if fact.kind == "holds" else ()
    return None
