"""The offline extractor: English sentences by the ontology's table of phrases, JSON by its structure.

Demo quality: a wrong fact is worse than none, so it skips whatever is not said plainly.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict
from decimal import Decimal

from kgray.backends.rules import words
from kgray.backends.rules.builder import ExtractionBuilder
from kgray.backends.rules.clauses import Clause, ClauseReader
from kgray.backends.rules.evidence import Timing, other_side, share_dates, timing_of
from kgray.backends.rules.json_records import read_json
from kgray.backends.rules.marking import FactEnd, MarkedSentence
from kgray.backends.rules.names import KnownWords
from kgray.backends.rules.phrases import PhraseTable
from kgray.backends.rules.sentences import MAX_TEXT, sentences
from kgray.backends.rules.wording import wording_of
from kgray.errors import InvalidAnswer
from kgray.ontology import Ontology, RelationType
from kgray.ports import ExtractionRequest
from kgray.records import Episode, ExtractedFact, Extraction, canonical, clean_text
from kgray.times import Instant

_VERSION = "rules-2"
_TRANSCRIPT = re.compile(r"^[ \t]*(?:[A-Z][\w.'-]{0,30} ?){1,3}:\s", re.MULTILINE)  # "Ann: I joined Acme"


class RulesExtractor:
    """Reads messages, texts and JSON without a model; the same request always gives the same answer."""

    def __init__(self, ontology: Ontology) -> None:
        self._ontology = ontology
        self._table = PhraseTable(ontology)
        digest = hashlib.sha256(canonical([asdict(relation) for relation in ontology]).encode())
        self.identity = f"{_VERSION}/{digest.hexdigest()[:12]}"

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return what the episode says. Raises InvalidAnswer for a `json` episode whose text is no JSON."""
        episode, builder = request.episode, ExtractionBuilder()
        if episode.kind == "json":
            read_json(_parsed(episode.text), builder, self._ontology, episode.reference_time)
        else:
            persons = [one.speaker for one in (episode, *request.previous) if one.speaker]
            _TextReader(self._table, builder, episode, persons).read()
            builder.drop_contradictions(self._ontology)
        return builder.extraction(self.identity)


def _parsed(text: str) -> object:
    try:
        return json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise InvalidAnswer(f"the episode's text is not JSON: {error}", raw=text[:2000]) from None


class _TextReader:
    """One message or text, sentence by sentence."""

    def __init__(
        self, table: PhraseTable, builder: ExtractionBuilder, episode: Episode, persons: list[str]
    ) -> None:
        self.table, self.builder, self.text = table, builder, episode.text
        self.reference: Instant = episode.reference_time
        self.known = KnownWords()
        for person in persons:
            if person.lower() not in words.ROLE_SPEAKERS:
                self.known.add_person(clean_text(person))
        self.speaker: FactEnd | None = None
        if episode.speaker and episode.kind == "message":
            name = clean_text(episode.speaker)
            self.speaker = FactEnd(name, "" if name.lower() in words.ROLE_SPEAKERS else "Person")
            builder.entity(name, self.speaker.type)
        self.is_transcript = _TRANSCRIPT.search(self.text[:MAX_TEXT]) is not None  # "I" is somebody else

    def read(self) -> None:
        found = list(sentences(self.text))
        self.known.lowers = {token.text for part in found for token in part.tokens if token.text.islower()}
        speaker = None if self.is_transcript else self.speaker
        for part in found:
            sentence = MarkedSentence(self.text, part, self.known, self.table, speaker, self.builder.type_of)
            clauses = ClauseReader(sentence).read()
            share_dates(clauses)
            for clause in clauses:
                self._clause(sentence, clause)
            self.builder.mention(sentence.names)
        if len(self.text) > MAX_TEXT:
            self.builder.dropped.append(f"the text after character {MAX_TEXT} was not read")

    def _clause(self, sentence: MarkedSentence, clause: Clause) -> None:
        """Add the facts of one clause."""
        relation, opposite = clause.phrase.relation, self.table.opposites.get(clause.phrase.relation.name)
        timing = timing_of(clause, self.reference, has_opposite=opposite is not None)
        if timing is None:
            return
        if opposite and clause.tense.polarity == "not" and timing.kind == "holds":
            relation = opposite
        text = wording_of(sentence, clause)
        for subject in clause.subject.ends:
            # "No longer works at Acme as a designer" may work there as something else.
            for item in clause.objects if timing.kind == "holds" or not clause.role else ():
                ends = (item, subject) if clause.reversed else (subject, item)
                self._fact(relation, *ends, text, timing)
            for other in (clause.origin, clause.successor):
                if other and (change := other_side(timing, relation)):
                    self._fact(relation, subject, other, text, change)
            for name, beside in (("HAS_ROLE", clause.role), ("WORKS_AT", clause.employer)):
                declared = self.table.relations.get(name)
                # Who was the CEO of Acme may work there still.
                if beside and declared and (timing.kind == "holds" or name == "HAS_ROLE"):
                    self._fact(declared, subject, beside, text, timing)

    def _fact(
        self, relation: RelationType, source: FactEnd, target: FactEnd, text: str, timing: Timing
    ) -> None:
        """Add one fact and its ends; a type that the relation asks for is the type of an end without one."""
        kind, start, end = timing
        labels = [
            label if label != "Thing" else "" for label in (relation.subject_type, relation.object_type)
        ]
        moment = start if kind == "holds" else end
        subject = self.builder.entity(source.name, source.type or labels[0], source.span)
        entity = None
        if target.value is None:
            entity = self.builder.entity(target.name, target.type or labels[1], target.span)
        self.builder.fact(
            ExtractedFact(
                source=subject,
                relation=relation.name,
                text=text,
                kind=kind,
                target=entity,
                value=target.value,
                valid_from=start[0] if start else None,
                from_precision=start[1] if start else None,
                valid_to=end[0] if end else None,
                to_precision=end[1] if end else None,
                inferred=moment is not None and moment[0] == self.reference,
            )
        )
