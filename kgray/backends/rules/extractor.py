"""The offline extractor: English sentences by the ontology's table of phrases, JSON by its structure.

Demo quality: a wrong fact is worse than none, so it skips whatever is not said plainly.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from itertools import product, zip_longest

from kgray.backends.rules.clauses import Clause, ClauseReader
from kgray.backends.rules.evidence import Timing, other_side, share_dates, timing_of, wording_of
from kgray.backends.rules.grammar import MAX_TEXT, PATTERNS, WORDS, PhraseTable, Sentence, sentences
from kgray.backends.rules.marking import FactEnd, KnownWords, MarkedSentence
from kgray.errors import InvalidAnswer
from kgray.ontology import Ontology, RelationType
from kgray.ports import ExtractionRequest
from kgray.records import Episode, ExtractedEntity, ExtractedFact, Extraction, canonical, clean_text
from kgray.times import Instant

MAX_ITEMS = 2_000  # an episode with more entities or facts is a table or noise: the rest is dropped
_MAX_NEAR = 64  # the latest entities, among which those of the same sentence are


class ExtractionBuilder:
    """Entities by clean name in the order of mention, facts in the order of reading."""

    def __init__(self) -> None:
        self.entities: list[ExtractedEntity] = []
        self.facts: list[ExtractedFact] = []
        self.dropped: list[str] = []
        self._index: dict[str, int] = {}
        self._seen: set[tuple[object, ...]] = set()

    def entity(
        self, name: str, label: str = "", span: tuple[int, int] | None = None, *, key: str = ""
    ) -> int:
        """Return the index of a name, adding it where it is new; the first known type is kept.

        key: of the record that the name is about; records with different keys are two entities
        """
        clean = clean_text(name)
        index = self._index.get(key or clean, len(self.entities))
        if index == len(self.entities):
            self.entities.append(ExtractedEntity(name=clean, type=label, span=span))
            self._index.setdefault(clean, index)
            if key:
                self._index[key] = index
                if clean == key:
                    self.entities[index] = replace(self.entities[index], key_of=index)
                else:
                    self.entities.append(ExtractedEntity(name=key, key_of=index))
        known = self.entities[index]
        if (label and not known.type) or (span and not known.span):
            self.entities[index] = replace(known, type=known.type or label, span=known.span or span)
        return index

    def type_of(self, name: str) -> str:
        """Return the type of a name as known so far; "" = not known."""
        index = self._index.get(clean_text(name))
        return "" if index is None else self.entities[index].type

    def mention(self, names: Sequence[FactEnd]) -> None:
        """Add names that are in no fact, except those inside a longer name: "Kestrel desk"."""
        for name in names:
            near = [one.span for one in self.entities[-_MAX_NEAR:] if one.span and one.span != name.span]
            inside = name.span and any(a <= name.span[0] and name.span[1] <= b for a, b in near)
            if not inside and len(self.entities) < MAX_ITEMS:
                self.entity(name.name, name.type, name.span)

    def fact(self, fact: ExtractedFact) -> None:
        """Add a fact; one that was said before, or leads from an entity to itself, adds nothing."""
        if fact.source == fact.target:
            self.dropped.append(f"{fact.relation}: {fact.text[:80]!r} connects an entity with itself")
            return
        key = (fact.source, fact.relation, fact.target, fact.value, fact.kind, fact.valid_from, fact.valid_to)
        if key in self._seen:
            return
        if len(self.facts) < MAX_ITEMS:
            self._seen.add(key)
            self.facts.append(fact)
        elif (line := f"more than {MAX_ITEMS} facts: the rest was not read") not in self.dropped[-1:]:
            self.dropped.append(line)

    def drop_contradictions(self, ontology: Ontology) -> None:
        """Leave out facts of this episode that end or deny each other at once: one of them was misread.

        Two objects in one single-valued slot from the same instant; a start and an end, or a denial, of one
        statement at the same instant.
        """
        slots: dict[tuple[int, str], list[ExtractedFact]] = {}
        for fact in self.facts:
            slots.setdefault((fact.source, fact.relation), []).append(fact)
        kept = []
        for fact in self.facts:
            declared = ontology.get(fact.relation)
            single = declared is not None and declared.cardinality == "single"
            slot = slots[fact.source, fact.relation][:_MAX_NEAR]
            rival = next((other for other in slot if _contradict(fact, other, single=single)), None)
            if rival is None:
                kept.append(fact)
            else:
                self.dropped.append(f"{fact.relation}: {fact.text[:80]!r} contradicts {rival.text[:80]!r}")
        self.facts = kept

    def extraction(self, model: str) -> Extraction:
        return Extraction(
            entities=tuple(self.entities), facts=tuple(self.facts), dropped=tuple(self.dropped), model=model
        )


def _contradict(a: ExtractedFact, b: ExtractedFact, *, single: bool) -> bool:
    if (a.target, a.value) != (b.target, b.value):
        return single and a.kind == b.kind == "holds" and a.valid_from == b.valid_from
    if "denied" in {a.kind, b.kind}:
        return a.kind != b.kind
    begins, ends = (a, b) if a.kind == "holds" else (b, a)
    return begins.kind == "holds" and ends.kind == "ended" and begins.valid_from == ends.valid_to


_VERSION = "rules-3"
_SHORT = 6  # tokens of a sentence that may take back the one before it, its stop included


class RulesExtractor:
    """Reads messages, texts and JSON without a model; the same request always gives the same answer."""

    def __init__(self, ontology: Ontology, keys: Sequence[str] = ()) -> None:
        """keys: fields that identify a JSON record, before `id` and the like."""
        self._ontology, self._keys = ontology, keys
        self._table = PhraseTable(ontology)
        declared = [asdict(relation) for relation in ontology]
        digest = hashlib.sha256(canonical([declared, *keys] if keys else declared).encode())
        self.identity = f"{_VERSION}/{digest.hexdigest()[:12]}"

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return what the episode says. Raises InvalidAnswer for a `json` episode whose text is no JSON."""
        episode, builder = request.episode, ExtractionBuilder()
        if episode.kind == "json":
            from kgray.backends.rules.json_records import JsonReader

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
        return builder.extraction(self.identity)


class _TextReader:
    """One message or text, sentence by sentence."""

    def __init__(
        self, table: PhraseTable, builder: ExtractionBuilder, episode: Episode, previous: Sequence[Episode]
    ) -> None:
        self.table, self.builder, self.text, self.previous = table, builder, episode.text, previous
        self.reference: Instant = episode.reference_time
        self.known = KnownWords()
        for one in (episode, *previous):
            if one.speaker and one.speaker.lower() not in WORDS["role_speakers"]:
                name = clean_text(one.speaker).lower()
                self.known.persons |= {name, *name.split()}
        self.speaker: FactEnd | None = None
        if episode.speaker and episode.kind == "message":
            name = clean_text(episode.speaker)
            self.speaker = FactEnd(name, "" if name.lower() in WORDS["role_speakers"] else "Person")
            builder.entity(name, self.speaker.type)
        # Where others speak, "I" may be somebody else.
        self.is_transcript = bool(
            PATTERNS["transcript"].search(self.text[:MAX_TEXT]) or PATTERNS["somebody"].match(self.text)
        )
        if here := PATTERNS["here"].match(self.text):
            if self.speaker and _is_called(here[1], self.speaker.name):
                self.text = " " * here.end() + self.text[here.end() :]  # what follows stays where it stands
            else:
                self.is_transcript = True

    def read(self) -> None:
        found = list(sentences(self.text))
        self.known.lowers = {token.text for part in found for token in part.tokens if token.text.islower()}
        speaker = None if self.is_transcript else self.speaker
        for part, following in zip_longest(found, found[1:]):
            sentence = MarkedSentence(self.text, part, self.known, self.table, speaker, self.builder.type_of)
            clauses = [] if following and _takes_back(following) else ClauseReader(sentence).read()
            share_dates(clauses)
            for clause in clauses:
                text = wording_of(sentence, clause)
                self._clause(clause, text)
                self._event(clause, text)
            self.builder.mention(sentence.names)
        if len(self.text) > MAX_TEXT:
            self.builder.dropped.append(f"the text after character {MAX_TEXT} was not read")

    def _clause(self, clause: Clause, text: str) -> None:
        """Add what one clause says of its relation."""
        relation, opposite = clause.phrase.relation, self.table.opposites.get(clause.phrase.relation.name)
        timing = timing_of(clause, clause.phrase, self.reference, has_opposite=opposite is not None)
        if timing is None:
            return
        if opposite and clause.tense.polarity == "not" and timing.kind == "holds":
            relation = opposite
        holds = timing.kind in {"holds", "happened"}
        role = any(what == "HAS_ROLE" for what, _ in clause.beside)
        for subject in clause.subject.ends:
            # "No longer works at Acme as a designer" may work there as something else.
            for item in self._objects(clause, subject) if holds or not role else ():
                ends = (item, subject) if clause.reversed else (subject, item)
                self._fact(relation, *ends, text, timing)
            for what, beside in clause.beside:
                if what == "other":
                    if change := other_side(timing, relation):
                        self._fact(relation, subject, beside, text, change)
                # Who was the CEO of Acme may work there still.
                elif (declared := self.table.ontology.get(what)) and (holds or what == "HAS_ROLE"):
                    self._fact(declared, subject, beside, text, timing)

    def _objects(self, clause: Clause, subject: FactEnd) -> tuple[FactEnd, ...]:
        """Return the clause's objects; of "I quit my job" the employer that was named before."""
        if clause.phrase.slot != "before":
            return clause.objects
        relation = clause.phrase.relation.name
        builders = [self.builder]
        for episode in reversed(self.previous):
            if (found := _last_said(builders[-1], subject.name, relation)) is not None:
                return found
            if episode.kind in {"message", "text"}:
                builders.append(ExtractionBuilder())
                _TextReader(self.table, builders[-1], episode, ()).read()
        return _last_said(builders[-1], subject.name, relation) or ()

    def _event(self, clause: Clause, text: str) -> None:
        """Add what took place, where the clause's relation tells only what began or ended by it."""
        event = self.table.events.get((clause.phrase.verb, clause.phrase.words))
        timing = timing_of(clause, event, self.reference) if event and event is not clause.phrase else None
        if event and timing:
            for subject, item in product(clause.subject.ends, clause.objects):
                self._fact(event.relation, subject, item, text, timing)

    def _fact(
        self, relation: RelationType, source: FactEnd, target: FactEnd, text: str, timing: Timing
    ) -> None:
        """Add one fact and its ends; a type that the relation asks for is the type of an end without one."""
        start, start_precision = timing.start or (None, None)
        end, end_precision = timing.end or (None, None)
        pairs = ((source, relation.subject_type), (target, relation.object_type))
        subject, entity = (
            None
            if one.value
            else self.builder.entity(one.name, one.type or label.replace("Thing", ""), one.span)
            for one, label in pairs
        )
        self.builder.fact(
            ExtractedFact(
                source=subject or 0, relation=relation.name, text=text, kind=timing.kind, target=entity,
                value=target.value, valid_from=start, from_precision=start_precision, valid_to=end,
                to_precision=end_precision,
                inferred=(end if timing.kind == "ended" else start) == self.reference,
            )
        )  # fmt: skip


def _is_called(said: str, name: str) -> bool:
    """Whether words such as "B. Smith" are a short form of a name: initials or words of it."""
    short, full = (re.findall(r"[^\W_]+", text.casefold()) for text in (said, name))
    return not set(short).isdisjoint(full) and all(any(w.startswith(s) for w in full) for s in short)


def _takes_back(sentence: Sentence) -> bool:
    """Whether a sentence says that the one before it is not so, or asks: "Not!", "Just kidding", "Right?"."""
    lows = [token.low for token in sentence.tokens]
    if lows[0] in WORDS["takes_back"] or lows[:2] in (["i", "mean"], ["i", "lied"], ["no", ","]):
        return True
    short = len(lows) <= _SHORT or lows[1] == ","
    negated = sentence.question or not WORDS["negations"].union(
        WORDS["takes_back"], WORDS["hedges"]
    ).isdisjoint(lows)
    return short and negated and lows[0] in WORDS["may_take_back"]


def _last_said(builder: ExtractionBuilder, subject: str, relation: str) -> tuple[FactEnd, ...] | None:
    """Return the object that a subject was last said to have, () where it has ended; None = none said."""
    for fact in reversed(builder.facts):
        if fact.relation == relation and builder.entities[fact.source].name == subject:
            end = builder.entities[fact.target or 0]
            return (FactEnd(end.name, end.type),) if fact.kind == "holds" else ()
    return None
