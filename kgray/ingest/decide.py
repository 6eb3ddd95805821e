"""Decide how an episode changes the graph, or which questions must be answered first.

`resolve.py` declares the relation names that are new in the group and resolves the mentions. `connect` finds
or makes the statement of each fact (R17b, R17c, R18). A fact supports a statement of its key if its sentence
adds nothing to the sentence of that statement. Any other fact is compared with candidates (`compare.py`): a
model's answer attaches it to a statement, ends a state under another name, or names the statements that
exclude it.

First, `shape` settles conflicts between the extraction and the ontology. Once the settings declare a type of
entity, a type that is neither shipped nor declared (ignoring case) becomes unknown. A relation that they
declare with subject_type and object_type allows that pair only, a symmetric one either way round: a fact
whose subject or object has another known type is dropped; unknown types and values pass. A dropped fact
leaves no evidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Any

from kgray.domain.ontology import Ontology
from kgray.domain.records import (
    Episode,
    Evidence,
    EvidenceKind,
    ExtractedEntity,
    ExtractedFact,
    Extraction,
    Place,
    Value,
    Verdict,
    clean_text,
    statement_id,
    with_entities,
)
from kgray.graph import names
from kgray.graph.change import EpisodeChange
from kgray.graph.names import Relations
from kgray.graph.rivals import with_key
from kgray.graph.statements import CLOSING, ENDS_ONLY, Statement, fold_key, marks_of, names_variant, says_same
from kgray.ingest.candidates import told_names
from kgray.ingest.compare import NEWEST, Compared, Comparer, NewFact
from kgray.ingest.resolve import Resolved, declare, resolve_entities
from kgray.ingest.state import Answers, Case, Decision, KnownState, Questions, ReadEpisode, Rules
from kgray.models.prompting.reply_schemas import ENTITY_TYPES


def decide(read: ReadEpisode, state: KnownState, answers: Answers, rules: Rules) -> Decision:
    """Return the change that an episode makes, and the open questions. Pure: it waits for nothing.

    One pass collects all open questions. While a question about an entity is open, the questions about its
    facts assume the only candidate, or a new entity if there are several; after another answer they are asked
    again. So most episodes need one request (R21). The change is final once nothing is open. It is called on
    the true state, in order (`calls.settle`), and ahead of time on a view of uncommitted episodes.
    """
    named = read.text_names or told_names(shape(read.extraction, read.episode, rules.ontology), read.episode)
    read.text_names = named  # an episode is tried several times
    case = Case(read.episode, named.extraction, named.same_entities, state, answers, rules, Questions())
    if missing := _unembedded(case):
        return Decision(questions=Questions(texts=missing))
    relations, declarations = declare(case)
    resolved = resolve_entities(case)
    connected = connect(case, resolved, relations)
    stored, vectors = state.graph.entities, answers.vectors
    # The mentions with a surface that is new to the recorded entity, with the id of the shown one. After a
    # split, a known surface may be recorded with another entity than before.
    mentioned = zip(resolved.mentions, resolved.entity_ids, strict=True)
    fresh = [
        (m, id_)
        for m, id_ in mentioned
        if id_ not in stored or stored[id_].surfaces.get(m.surface) != m.entity
    ]
    wordings = [(statement.id, statement.wording) for statement in connected.new_statements.values()]
    texts = (read.episode.text, *(m.surface for m, _ in fresh), *(wording for _, wording in wordings))
    case.questions.texts = [text for text in dict.fromkeys(texts) if text not in vectors]
    change = EpisodeChange(
        episode=read.episode,
        entity_births=tuple(sorted((note.id, note.born) for note in resolved.new_entities.values())),
        statement_births=tuple(sorted(connected.births.items())),
        mentions=tuple(resolved.mentions),
        evidence=tuple(connected.evidence),
        declarations=declarations,
        verdicts=tuple(connected.verdicts.values()),
        name_vectors=tuple((m, vectors[m.surface].vector) for m, _ in fresh if m.surface in vectors),
        statement_vectors=tuple((id_, vectors[wording]) for id_, wording in wordings if wording in vectors),
        episode_vector=vectors.get(read.episode.text),
    )
    return Decision(
        questions=case.questions,
        change=change,
        entities=tuple(resolved.new_entities.values()),
        guessed=frozenset(resolved.guesses),
        statements=tuple(connected.new_statements.values()),
        aliases=tuple((entity, m.surface) for m, entity in fresh if entity in stored),
    )


def _unembedded(case: Case) -> list[str]:
    """Return texts that still lack a vector: the episode's text, the sentences of its facts, new names."""
    texts = [case.episode.text, *(f.text for f in case.extraction.facts)]
    for entity in case.extraction.entities:
        notes = map(case.state.graph.entities.get, case.state.names.bearers(entity.name))
        if not any(note is not None and entity.name in note.surfaces for note in notes):
            texts.append(entity.name)
    return [text for text in dict.fromkeys(texts) if text not in case.answers.vectors]


RECORD = "record"  # the judge of pairs of fields of a JSON record
# The fields that evidence takes over from a fact.
_COPIED = "kind relation text value valid_from valid_to from_precision to_precision inferred".split()
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_SUFFIX = re.compile(r"(?<=...)(?:ing|ed|es|s|en)\Z")
# Words without content: articles, pronouns, prepositions, auxiliaries and words of time.
_STOP_WORDS = frozenset(
    """a about again all already also am an and any anymore are as at back be been being but by can currently
    did do does done for from had has have having he her here him his i in into is it its just last longer me
    more my new newly no not now of on or our out over own recently she since so some still than that the
    their them then there these they this those to today too up us very was we were what when where which who
    will with would yet you your ago day days month months week weeks year years aber als am an auch auf aus
    bei beim bin bis da das dem den der des die dies durch ein eine einem einen einer er es für hat habe haben
    heute ich ihr ihre im in ist jetzt mehr mein meine mit nach neu nicht noch nun schon seit sein seine sich
    sie sind über um und uns unser vom von vor war waren wir wird wurde zu zum zur au aux avec ce cette dans
    de depuis des du elle en est et il ils je la le les leur lui ma mais mon nous on par pas plus pour qui sa
    se ses son sont sur un une vous al con del desde el ella en es esta este estoy la las lo los me mi muy más
    no nos para pero por que se ser si sin
    su sus también un una uno y ya yo""".split()
)


@dataclass(slots=True)
class FactRecords:
    """The evidence and the verdicts of an episode, and the statements that it makes."""

    evidence: list[Evidence] = field(default_factory=list)
    new_statements: dict[str, Statement] = field(default_factory=dict)
    births: dict[str, Place] = field(default_factory=dict)
    verdicts: dict[tuple[str, str], Verdict] = field(default_factory=dict)


def connect(case: Case, resolved: Resolved, relations: Relations) -> FactRecords:
    """Return the evidence of all facts; while its question is open, a fact makes a new statement."""
    return _Connector(case, resolved, relations).connect()


class _Connector:
    def __init__(self, case: Case, resolved: Resolved, relations: Relations) -> None:
        self.case, self.resolved, self.relations = case, resolved, relations
        self.comparer = Comparer(case, relations)
        self.result = FactRecords(new_statements=self.comparer.new.by_id)
        facts = case.extraction.facts
        self._verdicts = count()
        self._ordinals_by_text: dict[str, list[int]] = {}  # the ordinals of the facts by their text (R18)
        for ordinal, fact in enumerate(facts):
            self._ordinals_by_text.setdefault(fact.text, []).append(ordinal)

    def connect(self) -> FactRecords:
        for ordinal, fact in enumerate(self.case.extraction.facts):
            place = (self.case.episode.sequence, ordinal)
            new = self._new_fact(fact, place)
            if new is None:  # a loop: it derives nothing (R16)
                self._record(fact, place, statement_id(self.case.episode.group, place), 0)
            else:
                self._connect(new)
        self.result.evidence.sort(key=lambda item: item.ordinal)
        return self.result

    def _new_fact(self, fact: ExtractedFact, place: Place) -> NewFact | None:
        entities, stored = self.resolved.entity_ids, self.case.state.graph.entities

        def born_of(entity: str) -> Place:
            return (self.resolved.new_entities.get(entity) or stored[entity]).born

        subject = entities[fact.source]
        target = fact.value if fact.target is None else entities[fact.target]
        key, swapped, _ = fold_key(self.relations, born_of, fact.relation, subject, target)
        if key is None or target is None:
            return None
        listed = self.case.extraction.entities
        names = tuple(listed[i].name for i in (fact.source, fact.target) if i is not None)
        return NewFact(
            fact=fact, place=place, subject=subject, target=target, key=key, swapped=swapped, names=names
        )

    def _connect(self, new: NewFact) -> None:
        same_key = self._statements_of_key(new)
        statement = self._find_supported(new, same_key)
        if statement is not None:
            compared = self._compare_again(new, statement)
            self._support(new, statement)
            self._add_verdicts(statement, compared)
            self._end(new, compared.ended)
            return
        compared = self.comparer.compare(new, self._variants(new, same_key)) or Compared()
        if compared.equal is not None:
            self._support(new, compared.equal)
            self._add_verdicts(compared.equal, compared)
            self._end(new, compared.ended)
        elif compared.ended and new.fact.kind in CLOSING:
            (_, first), *remaining = compared.ended
            self._support(new, first)
            self._end(new, remaining)
        else:
            variants = [s.variant for s in same_key if s.key == new.key]
            self._add_verdicts(self._make(new, max(variants, default=-1) + 1), compared)
            self._end(new, compared.ended)

    def _statements_of_key(self, new: NewFact) -> list[Statement]:
        """Return the statements with the fact's key, by birth.

        They include statements of another key that have attached evidence with the fact's key (R17c).

        Evidence that only ended a statement, "Alice left Acme", leads only an end or a denial to it.
        """
        graph, closes = self.case.state.graph, new.fact.kind in CLOSING
        attached = (graph.attached.get(new.key) or {}).items()
        under_other_names = (id_ for id_, is_same in attached if is_same or closes)
        ids = dict.fromkeys((*with_key(graph.statements, graph.by_ends, new.key), *under_other_names))
        statements = [graph.statements[id_] for id_ in ids]
        statements += self.comparer.new.by_key.get(new.key, ())
        return sorted(statements, key=lambda s: (s.born, s.id))

    def _find_supported(self, new: NewFact, same_key: Sequence[Statement]) -> Statement | None:
        """Return the statement of the key that the fact supports without a question; None = none."""
        fact = new.fact
        if not same_key:
            return None
        if fact.kind == "happened":
            return next((s for s in same_key if says_same(s.first, fact)), None)
        # Only a denial can be about an event: an event cannot end, and a state does not repeat it.
        if fact.kind != "denied":
            same_key = [s for s in same_key if not s.is_event]
        if same_key and fact.kind in CLOSING and not names_variant(marks_of(fact), new.names):
            return min(same_key, key=lambda s: s.end_rank)  # the fact is about all variants (R6)
        if fact.kind in CLOSING:
            return self._find_closed(new, same_key)
        return self._find_repeated(new, same_key)

    def _find_repeated(self, new: NewFact, same_key: Sequence[Statement]) -> Statement | None:
        """Return the statement whose sentence has the marks and all content words of the new sentence."""
        fact = new.fact
        # The default sentence of a triple has no marks. So the triple supports the variant without marks,
        # else the first variant that was stated earlier and may still hold.
        if self.case.episode.kind == "triples" and not (fact.text and '"text":' in self.case.episode.text):
            position = (self.case.episode.reference_time, *new.place)
            plain = (s for s in same_key if not names_variant(s.marks, new.names))
            earlier = (s for s in same_key if not s.claims or min(c.said for c in s.claims) < position)
            return next(plain, None) or next(earlier, None)
        marks = marks_of(fact)
        return next((s for s in same_key if s.marks == marks and not self._adds_content(new, s)), None)

    def _adds_content(self, new: NewFact, statement: Statement) -> bool:
        """Return whether the new sentence has a content word that is missing in the statement's sentence."""
        empty = _stems(" ".join((*new.names, *_relation_words(new.fact.relation, self.case.rules.ontology))))
        return not _stems(new.fact.text) <= _stems(self.comparer.sentence(statement)) | empty

    def _find_closed(self, new: NewFact, same_key: Sequence[Statement]) -> Statement | None:
        """Return the variant that an end or a denial names by its marks, or the latest variant that held."""
        numbers, _, qualifiers = marks_of(new.fact)
        for statement in same_key:
            if (statement.marks[0], statement.marks[2]) == (numbers, qualifiers):
                return statement
        if qualifiers or not same_key:
            return None
        position = (self.case.episode.reference_time, *new.place)

        def latest_claim(statement: Statement) -> tuple[int, int, int]:
            if not statement.claims:  # a statement of this episode
                return (position[0], *statement.born)
            earlier = [c.said for c in statement.claims if c.kind == "holds" and c.said < position]
            return max(earlier, default=(-(1 << 62), *statement.born))

        return max(same_key, key=latest_claim)

    def _variants(self, new: NewFact, same_key: Sequence[Statement]) -> list[Statement]:
        """Return the statements of its key that a fact may be a variant of, or may end."""
        if new.fact.kind == "happened" or self.case.episode.kind == "triples":
            return []
        return [s for s in same_key if not s.is_event and s.end_rank[0] != ENDS_ONLY]

    def _compare_again(self, new: NewFact, statement: Statement) -> Compared:
        """Compare a stored statement with those that it meets only because of the new evidence (R17a)."""
        if new.fact.kind != "holds" or statement.id in self.comparer.new.by_id:
            return Compared()
        return self.comparer.compare(new, (), statement) or Compared()

    def _support(self, new: NewFact, statement: Statement) -> None:
        self._record(
            new.fact, new.place, statement.id, statement.variant, names=new.names, born=statement.born,
            is_reversed=new.is_reversed(statement), may_close_all=new.key == statement.key,
        )  # fmt: skip
        self._exclude_fields(new, statement)

    def _make(self, new: NewFact, variant: int) -> Statement:
        """Make a new statement of a fact."""
        id_ = statement_id(self.case.episode.group, new.place)
        evidence = self._record(new.fact, new.place, id_, variant, names=new.names)
        subject, relation, target = new.key
        entity, value = (None, target) if isinstance(target, Value) else (target, None)
        statement = Statement(
            id_, new.place, subject, relation, entity, value, variant, evidence, new.swapped, new.fact.only
        )
        self._exclude_fields(new, statement)
        self.comparer.new.add(statement)
        return statement

    def _end(self, new: NewFact, ended: Sequence[tuple[int, Statement]]) -> None:
        """Record that a fact under another name ends states, at its instant and with its sentence (R17b).

        The ordinal of the evidence counts all candidates, so that it does not depend on answers about others.
        """
        fact = new.fact
        kind: EvidenceKind = "denied" if fact.kind == "denied" else "ended"
        at, precision = fact.valid_to, fact.to_precision
        if fact.kind in ("happened", "holds"):
            at, precision = fact.valid_from, fact.from_precision
        if at is None and kind == "ended":
            at, precision = self.case.episode.reference_time, "instant"
        for number, statement in ended:
            place = (new.place[0], len(self.case.extraction.facts) * (1 + number) + new.place[1])
            names = ("valid_from", "from_precision", "valid_to", "to_precision")
            dates: dict[str, Any] = dict.fromkeys(names)
            if kind == "ended":
                dates |= {"valid_to": at, "to_precision": precision}
            self._record(
                fact, place, statement.id, statement.variant, born=statement.born,
                is_reversed=new.is_reversed(statement), may_close_all=False, changed={"kind": kind, **dates},
            )  # fmt: skip

    def _record(
        self,
        fact: ExtractedFact,
        place: Place,
        statement: str,
        variant: int,
        *,
        names: Sequence[str] = (),
        born: Place | None = None,
        is_reversed: bool = False,
        may_close_all: bool = True,
        changed: Mapping[str, Any] | None = None,
    ) -> Evidence:
        """Add the evidence of a fact about a statement; without `born` it founds the statement.

        may_close_all   an end or a denial without marks is about every variant of its key; False: it has
                        another key, and an answer named one statement
        """
        # After a split a part may have an id that is not recorded yet: this evidence records it (R16).
        self.result.births.setdefault(statement, born or place)
        sharing, closes = self._ordinals_by_text[fact.text], fact.kind in CLOSING
        evidence = Evidence(
            sequence=place[0],
            ordinal=place[1],
            statement=statement,
            variant=variant,
            subject=fact.source,
            object=fact.target,
            **({name: getattr(fact, name) for name in _COPIED} | dict(changed or {})),
            fact_group=sharing[0] if len(sharing) > 1 else None,
            every_variant=closes and may_close_all and not names_variant(marks_of(fact), names),
            is_reversed=is_reversed,
            is_field=fact.only,
        )
        self.result.evidence.append(evidence)
        return evidence

    def _add_verdicts(self, statement: Statement, compared: Compared) -> None:
        """Record a verdict on each compared pair that contradicts or is independent."""
        judge, reason = self.case.rules.judge, compared.reason
        for candidates, is_exclusive in ((compared.contradicts, True), (compared.independent, False)):
            for candidate in candidates:
                if candidate.id != statement.id and not statement.is_event and not candidate.is_event:
                    self._add_verdict(statement, candidate, is_exclusive, judge, reason)

    def _exclude_fields(self, new: NewFact, statement: Statement) -> None:
        """Let a field of a record exclude the former values of the same field of the same record (R17)."""
        if not new.fact.only:
            return
        graph, relation = self.case.state.graph, statement.relation
        is_flipped = self.relations.folded(new.fact.relation).flipped
        if self.relations.traits(relation).cardinality == ("single_object" if is_flipped else "single"):
            return  # statements of one functional slot are rivals without a verdict
        record = statement.object if is_flipped else statement.subject
        stored = [graph.statements[id_] for id_ in (graph.about.get(record or "") or ())[-NEWEST:]]
        fresh = self.comparer.new.by_key.get(("o" if is_flipped else "s", record, relation), ())
        for value in (*stored, *fresh):
            end = value.object if is_flipped else value.subject
            is_former = value.in_field and value.relation == relation and end == record
            if is_former and value.key != statement.key:
                self._add_verdict(statement, value, True, RECORD)

    def _add_verdict(
        self, first: Statement, second: Statement, is_exclusive: bool, judge: str, reason: str = ""
    ) -> None:
        lower, higher = sorted((first, second), key=lambda statement: statement.id)
        a, b = lower.id, higher.id
        if (a, b) in self.result.verdicts or self.case.state.graph.verdict(a, b) is not None:
            return
        self.result.verdicts[a, b] = Verdict(
            sequence=self.case.episode.sequence,
            ordinal=next(self._verdicts),
            a=a,
            b=b,
            exclusive=is_exclusive,
            judge=judge,
            reason=reason,
            subjects=(lower.subject, higher.subject),
        )


def _relation_words(name: str, ontology: Ontology) -> Iterator[str]:
    """Yield the words of a relation's name, and its phrases in the ontology."""
    for each in {name, ontology.main_name(name)}:
        yield each.replace("_", " ")
        if (kind := ontology.get(each)) is not None:
            yield kind.text
            for phrases in (kind.phrases, kind.starts, kind.ends, kind.events, kind.nouns):
                yield from phrases


@lru_cache(maxsize=16_384)
def _stems(text: str) -> frozenset[str]:
    """Return the stems of the content words of a text, in lower case."""
    words = (word.replace("’", "'").removesuffix("'s") for word in _WORD.findall(text.casefold()))
    return frozenset(_SUFFIX.sub("", word).rstrip("e") for word in words if word not in _STOP_WORDS)


ANY_THING = "Thing"  # an end's type in the shipped relations that allows every type


def shape(extraction: Extraction, episode: Episode, ontology: Ontology) -> Extraction:
    """Return the extraction in the shape of the ontology, with one entity for each name (R14, R18).

    If the relation takes a value, a named object becomes a text value, and the name is dropped if it served
    only as an object. If it takes an entity, a text value becomes a name; a number, date or boolean stays.
    """
    entities = extraction.entities
    if ontology.entities:  # a type that is neither shipped nor declared is unknown
        types = {name.casefold(): name for name in (*ENTITY_TYPES, *ontology.entities)}
        entities = tuple(replace(entity, type=types.get(entity.type.casefold(), "")) for entity in entities)
    # Records with different keys are different, also with equal names.
    keys = {entity.key_of: names.key(entity.name) for entity in entities if entity.key_of is not None}
    entity_keys = [(names.key(entity.name), keys.get(number)) for number, entity in enumerate(entities)]
    distinct: dict[tuple[str, str | None], ExtractedEntity] = {}
    for key, entity in zip(entity_keys, entities, strict=True):
        first = distinct.setdefault(key, replace(entity, name=clean_text(entity.name)))
        if not first.type and entity.type:
            distinct[key] = replace(first, type=entity.type)
    numbers = {key: number for number, key in enumerate(distinct)}
    index = [numbers[key] for key in entity_keys]
    merged = [e if e.key_of is None else replace(e, key_of=index[e.key_of]) for e in distinct.values()]
    listed = len(merged)
    facts: list[ExtractedFact] = []
    became_values: set[int] = set()
    for fact in extraction.facts:
        target = None if fact.target is None else index[fact.target]
        shaped = _objects(
            replace(fact, source=index[fact.source], target=target), merged, became_values, ontology
        )
        relation = ontology.get(shaped.relation)
        if relation is not None and ontology.entities and shaped.relation in ontology.paired:
            ends = (merged[shaped.source].type, "" if shaped.target is None else merged[shaped.target].type)
            pair = (relation.subject_type, relation.object_type)
            pairs = (pair, pair[::-1]) if relation.symmetric else (pair,)
            if not any(
                all(not k or d in ("", ANY_THING, k) for k, d in zip(ends, end_types, strict=True))
                for end_types in pairs
            ):
                continue
        facts.append(shaped)
    used = {f.source for f in facts} | {f.target for f in facts if f.target is not None}
    if episode.kind == "message" and episode.speaker and merged:
        used.add(0)
    retained = [i for i in range(len(merged)) if i in used or (i < listed and i not in became_values)]
    return with_entities(replace(extraction, entities=tuple(merged), facts=tuple(facts)), retained)


def _objects(
    fact: ExtractedFact, entities: list[ExtractedEntity], became_values: set[int], ontology: Ontology
) -> ExtractedFact:
    """Return the fact with an object of the kind its relation declares.

    May append a name to `entities`; adds the index of a name that became a value to `became_values`.
    """
    declared = ontology.object_kind(fact.relation)
    if declared == "value" and fact.target is not None:
        became_values.add(fact.target)
        return replace(fact, target=None, value=Value("text", entities[fact.target].name))
    if declared == "entity" and fact.value is not None and fact.value.type == "text":
        key = names.key(fact.value.value)
        for index, entity in enumerate(entities):
            if names.key(entity.name) == key:
                return replace(fact, target=index, value=None)
        entities.append(ExtractedEntity(name=clean_text(fact.value.value)))
        return replace(fact, target=len(entities) - 1, value=None)
    return fact
