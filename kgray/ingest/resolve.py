"""What the names of an episode mean: entities, known or new (R14, R15); relations, and rulings on them (R17).

An entity is found in three steps, the first that decides: exactly one entity has this name and nothing speaks
against it; exactly one entity's name is surely this one in another spelling; the model answers, with the
candidates' cards in order of birth. Nothing is merged by cosine alone, and names whose digits differ are
never the same.

Against an entity that bears the name of a mention speak

type        both are known and differ
word        it is a one-word personal name, and another entity bears that word (R15); nothing else does then
likeness    another person has this name in another spelling
ends        a fact of the episode does not go with the slots of the entity (`_contradicts`)
context     a person's full name that was hardly mentioned so far, and no fact ties the mention to anything
            that is known of them
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from kgray.derivation import names
from kgray.derivation.names import UNKNOWN, EntityNote, Relations, card
from kgray.ingest.candidates import MAX_POSTING, Likeness, code_match, likeness
from kgray.ingest.state import LATER, Case, KnownState
from kgray.ontology import Ontology, RelationType
from kgray.ports import Question
from kgray.records import ExtractedEntity, ExtractedFact, Mention, Ruling, Value, entity_id

# Cosines of the shipped hashing embedder. A name above the floor is only asked about, never merged.
#   pairs of some 500 made-up names       below 0.43
#   "M. Webb", "Marcus Webb"              0.69
#   "Vicky", "Victoria" (Kelstaholm)      0.58: nicknames are found by their surname instead
#   "Bob", "Robert" (Smith)               0.48
NAME_FLOOR = 0.6
NEAR_LIMIT = 5
MAX_CANDIDATES = 10
CARD_LENGTH = 240
# A person of so few mentions is asked about where no fact ties them to what is known. On six worlds of 50
# persons, 5 % of them homonyms, by a reader that is always right (calls an episode: without homonyms):
#   HARDLY_KNOWN      0      2      3      4
#   least entity F1   0.965  0.986  0.991  0.997
#   calls             1.09   1.15   1.17   1.19
HARDLY_KNOWN = 4
_SLOT = 16  # of a slot's statements the newest are looked at, so that long histories cost no more
# Words that tell of a change: with them another job is no sign of another person.
_CHANGE = re.compile(
    r"\b(?:now|new|newly|joined|joins|started|starts|moved|moves|became|switched|changed|left|since|longer|anymore"
    r"|jetzt|nun|neu\w*|gewechselt|wechselte?|umgezogen|zieht|seit|mehr|maintenant|désormais|depuis|nouve\w+"
    r"|ahora|desde|nuev[oa]|adesso|ora|ormai|agora|теперь|сейчас|перешла?|nu|voortaan)\b"
    r"|现在|如今|改|今は|転職",
    re.IGNORECASE,
)
# Words of a relation name that do not make two names alike: WORKS_AT and LIVES_AT share only AT.
_FUNCTION_WORDS = frozenset(
    """A AN THE AT IN ON TO OF FOR BY WITH FROM AS IS ARE WAS WERE BE BEEN HAS HAVE HAD DOES DO DID NOT
    AND OR""".split()
)
_ENDING = re.compile(r"(?<=...)(?:ING|ED|ES|S)\Z")
_UNSAID = {"symmetric": "no", "text": ""}  # what holds of a name without a ruling
Aspect = Literal["cardinality", "symmetric", "pair", "text"]
_Place = tuple[str, Aspect, str]  # name, aspect, other name or ""


@dataclass(slots=True)
class Resolved:
    """The mentions of an episode so far, and the entities that they make."""

    case: Case
    mentions: list[Mention] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)  # by ordinal: the entity that the mention shows as
    made: dict[str, EntityNote] = field(default_factory=dict)
    by_name: dict[str, dict[str, None]] = field(default_factory=dict)  # key of a name -> those made with it
    guessed: set[str] = field(default_factory=set)  # those made while their question is open
    keyed: bool = False  # the mention at hand is of a record with a key: entities with another are not it

    def named(self, surface: str) -> list[EntityNote]:
        """Return the entities that the episode makes and that bear a name, oldest first."""
        return [self.made[made] for made in self.by_name.get(names.key(surface), ())]

    def bearing(self, ids: Iterable[str]) -> list[EntityNote]:
        """Return the group's entities with these ids, each once, without those that the episode makes."""
        known = self.case.state.graph.entities
        return self.possible(known[i] for i in dict.fromkeys(ids) if i in known and i not in self.made)

    def possible(self, notes: Iterable[EntityNote]) -> list[EntityNote]:
        """Leave out the entities that are surely another record than the mention at hand."""
        return [note for note in notes if not (self.keyed and note.keys)]


def resolve_entities(case: Case) -> Resolved:
    """Resolve the mentions in order; while its question is open, a mention counts as a new entity."""
    resolved = Resolved(case)
    keys = {one.key_of: one.name for one in case.extraction.entities if one.key_of is not None}
    for ordinal, entity in enumerate(case.extraction.entities):
        place, sentence = (case.episode.sequence, ordinal), sentence_of(case.episode.text, entity.span)
        note = _record(resolved, keys.get(ordinal), entity)
        resolved.keyed = ordinal in keys
        if note is None:
            note = _entity_for(resolved, ordinal, sentence)
        if note is None:
            note = EntityNote(entity_id(case.episode.group, place), place)
            resolved.made[note.id] = note
        # A known surface is recorded with the id it was first recorded with, so that undoing a merge gives
        # later mentions back too (R16).
        recorded = note.surfaces.get(entity.name, note.id)
        if case.state.graph.fold.shown(recorded, entity.name, place[0])[0] != note.id:
            recorded = note.id  # a split gave the surface to this entity, so its later mentions are its own
        mention = Mention(
            sequence=place[0],
            ordinal=ordinal,
            surface=entity.name,
            entity=recorded,
            type=entity.type,
            sentence=sentence,
            key=entity.key_of is not None,
            span=entity.span,
        )
        if note.id in resolved.made:
            note.take(mention)
            resolved.by_name.setdefault(names.key(entity.name), {})[note.id] = None
        resolved.mentions.append(mention)
        resolved.shown.append(note.id)
    return resolved


def _record(resolved: Resolved, key: str | None, entity: ExtractedEntity) -> EntityNote | None:
    """Return the entity that bears the mention's key, or whose key the mention is; None = neither."""
    state, known = resolved.case.state, resolved.case.state.graph.entities
    if key is None and entity.key_of is not None:
        shown = resolved.shown[entity.key_of]
        return resolved.made.get(shown) or known[shown]
    if key is None:
        return None
    notes = resolved.named(key)
    notes += [known[i] for i in state.names.bearers(key) if i in known]
    return min((n for n in notes if key in n.keys), key=lambda n: (n.born, n.id), default=None)


def _entity_for(resolved: Resolved, ordinal: int, sentence: str) -> EntityNote | None:
    """Return the entity that the mention means; None = a new one."""
    case, state = resolved.case, resolved.case.state
    entity = case.extraction.entities[ordinal]
    bearers = resolved.bearing(state.names.bearers(entity.name))
    bearers += resolved.possible(resolved.named(entity.name))
    if case.episode.kind == "triples":
        # Names of triples resolve by exact name alone; if several entities have it, to the oldest.
        return min(bearers, key=lambda n: (n.born, n.id), default=None)
    ids = [one for other in case.others.get(ordinal, ()) for one in _meant(resolved, other)]
    made = [resolved.made[one] for one in dict.fromkeys(ids) if one in resolved.made]
    told = [*resolved.bearing(ids), *made]  # those that the text tells to bear the name
    if len(bearers) == 1 and _is_certain(resolved, ordinal, bearers[0]) and told in ([], bearers):
        return bearers[0]
    alike = _alike(entity, resolved)
    sure = [] if bearers or told else _sure(entity, alike)
    if len(sure) == 1 and _is_certain(resolved, ordinal, sure[0]):
        return sure[0]
    own, apart = bearers or sure, state.graph.fold.are_apart
    found = {note.id: note for note in (*bearers, *told, *(n for n, _ in alike))}
    if (said := case.answers.vectors.get(entity.name)) is not None:
        near = state.near_scored(said.vector, NAME_FLOOR, NEAR_LIMIT)
        for note in resolved.bearing((shown for _, shown in near)):
            if names.digits(note.name) == names.digits(entity.name):
                found.setdefault(note.id, note)
    likely = sorted(list(found.values())[:MAX_CANDIDATES], key=lambda n: (n.born, n.id))
    chosen = [n for n in likely if n in bearers or not any(apart(n.id, bearer.id) for bearer in bearers)]
    if not chosen:
        return None
    candidates = tuple(entity.name if n in own else next(iter(n.surfaces)) for n in chosen)
    cards = (card(entity.name, entity.type, sentence), *(n.card for n in chosen))
    answer = case.answer(Question(kind="entity", item=entity.name, candidates=candidates, cards=cards))
    if answer is None:
        # On a view a candidate may be a guess, which disappears when an earlier question is answered.
        case.asked.early = case.asked.early or any(state.is_guess(n.id) for n in chosen)
        if len(chosen) == 1:
            return chosen[0]  # usually right, so show it to later episodes
        resolved.guessed.add(entity_id(case.episode.group, (case.episode.sequence, ordinal)))
        return None
    index = answer["duplicate_of"]
    return None if index is None else chosen[index]


def _is_certain(resolved: Resolved, ordinal: int, note: EntityNote) -> bool:
    """Whether nothing speaks against the only entity that the name can mean."""
    case, state = resolved.case, resolved.case.state
    entity = case.extraction.entities[ordinal]
    if entity.type and note.labels and entity.type not in note.labels:
        return False
    is_person, tokens = _is_person(entity, note), names.tokens(entity.name)
    others: Iterable[EntityNote] = ()
    if is_person and len(tokens) == 1:
        made = resolved.possible(resolved.made.values())
        others = [one for one in made if tokens[0] in names.tokens(one.name)]
        others += resolved.bearing(state.names.bears_word(tokens[0]))
    elif is_person:  # another spelling of the name, unless that entity is known to be another one (R16)
        shorts = resolved.bearing(state.names.shorts(entity.name))
        likely = (one for one in shorts if not state.graph.fold.are_apart(one.id, note.id))
        others = (one for one in likely if likeness(entity.name, one.name) in ("equal", "initials"))
    if any(other.id != note.id for other in others):
        return False
    if len(tokens) == 1 and (is_person or not (entity.type or note.labels)):
        return True  # no full name, so that a model would know no more of it: only R15 holds
    if is_person and note.count <= HARDLY_KNOWN and not _is_tied(resolved, ordinal, note):
        return False
    return not any(_contradicts(resolved, fact, ordinal, note) for fact in case.extraction.facts)


def _is_tied(resolved: Resolved, ordinal: int, note: EntityNote) -> bool:
    """Whether a fact of the episode ties the mention to what a stored fact ties the entity to."""
    case, by_ends = resolved.case, resolved.case.state.graph.by_ends
    for fact in case.extraction.facts:
        if ordinal in (fact.source, fact.target):
            other = fact.target if ordinal == fact.source else fact.source
            ends: list[str | Value | None] = [fact.value]
            if other is not None:
                name = case.extraction.entities[other].name
                ends = [*_meant(resolved, other), *case.state.names.bearers(name)]
            if any(by_ends.get((note.id, end)) or by_ends.get((str(end), note.id)) for end in ends if end):
                return True
    return False


def _meant(resolved: Resolved, ordinal: int) -> list[str]:
    """Return the entity of a resolved mention; of a later one, those that it may mean by its name."""
    if ordinal < len(resolved.shown):
        return [resolved.shown[ordinal]]
    return resolved.case.state.names.bearers(resolved.case.extraction.entities[ordinal].name)


def _contradicts(resolved: Resolved, fact: ExtractedFact, ordinal: int, note: EntityNote) -> bool:
    """Whether a fact about the mention does not go with a slot of the entity, by what was said last of it.

    said of the mention     does not go with a slot that holds one thing at a time where
    an end, a denial        the slot never had that object
    a stated start          another object was still said to be there then
    the present tense       another object is there, and no word tells of a change

    Values are left out, but for those of persons: prices and states change, and say nothing of identity.
    """
    case, graph = resolved.case, resolved.case.state.graph
    mentioned = case.extraction.entities[ordinal]
    folded = graph.relations.folded(fact.relation)
    side = {"single": 0, "single_object": 1}.get(str(graph.relations.traits(folded.name).cardinality))
    ends = (fact.target, fact.source) if folded.flipped else (fact.source, fact.target)
    other = ends[1 - side] if side is not None else None
    is_over = fact.kind == "happened" or (fact.kind == "holds" and fact.valid_to is not None)
    if side is None or ends[side] != ordinal or is_over:
        return False
    if fact.only or (fact.value is not None and not _is_person(mentioned, note)):
        return False  # the field of a record changes
    stored = graph.slots.get(("so"[side], note.id, folded.name)) or ()
    held = [statement for s in stored[-_SLOT:] if (statement := graph.statements.get(s)) is not None]
    same = {s.id for s in held if _is_end(resolved, fact, other, (s.key[2], s.subject)[side])}
    if fact.kind != "holds" or not held:
        return bool(held) and not same
    claims = [claim for statement in held for claim in statement.claims if claim.kind != "denied"]
    last = max(claims, key=lambda claim: claim.said, default=None)
    if last is None or last.statement in same or last.kind != "holds" or last.end is not None:
        return False
    said_at = last.said[0]
    if not fact.inferred:
        return fact.valid_from is None or fact.valid_from <= said_at
    told = sentence_of(case.episode.text, mentioned.span)
    return said_at <= case.episode.reference_time and not _CHANGE.search(told)


def _is_end(resolved: Resolved, fact: ExtractedFact, other: int | None, known: str | Value) -> bool:
    """Whether a fact's other end is, or is named like, the end of a stored statement."""
    if other is None or isinstance(known, Value):
        return fact.value == known
    if known in _meant(resolved, other):
        return True
    case, note = resolved.case, resolved.case.state.graph.entities.get(known)
    return note is not None and likeness(case.extraction.entities[other].name, note.name) is not None


def _alike(entity: ExtractedEntity, resolved: Resolved) -> list[tuple[EntityNote, Likeness]]:
    """Return the entities whose shown name is alike by its letters, each with how."""
    look_up = resolved.case.state.names
    notes = resolved.bearing(look_up.near(entity.name)) + resolved.possible(resolved.made.values())
    found = [(note, likeness(entity.name, note.name)) for note in notes]
    # Codes that other names of an entity are, or spell: the likeliest, then those born first.
    match = code_match(entity.name)
    coded = [
        (min(ranks), note.born, note.id, note)
        for note in resolved.bearing(look_up.coded(entity.name))
        if (ranks := [rank for s in note.surfaces if (rank := match(s)) is not None])
    ]
    found += [(note, "acronym") for *_, note in sorted(coded)[:MAX_POSTING]]
    # Two first names with one surname may be relatives or one person: only persons are asked about.
    return [(n, how) for n, how in found if how and (how != "surname" or _is_person(entity, n))]


def _sure(entity: ExtractedEntity, alike: list[tuple[EntityNote, Likeness]]) -> list[EntityNote]:
    """Return the entities that the name surely means if there is one: it is written otherwise (R14)."""
    equal = [note for note, how in alike if how == "equal"]
    paired = [note for note, how in alike if how == "initials"]
    if equal or len(paired) != 1 or len(names.tokens(entity.name)) < 2:
        return equal
    (note,) = paired
    a, b = names.tokens(entity.name), names.tokens(note.name)
    if len(a) != len(b) or a[-1] != b[-1]:
        return []
    # They may differ in initials: "M. Webb", "Marcus Webb" (R15). The last token is none ("World War I"), a
    # longer prefix is another name ("Ann", "Anna"), and a letter counts of a person, or with a dot after it.
    for ours, theirs in zip(a[:-1], b[:-1], strict=True):
        short, surface = (ours, entity.name) if len(ours) < len(theirs) else (theirs, note.name)
        is_initial = len(short) == 1 and ours[0] == theirs[0]
        is_marked = _is_person(entity, note) or f"{short}." in surface.casefold()
        if ours != theirs and not (is_initial and is_marked):
            return []
    return paired


def _is_person(entity: ExtractedEntity, note: EntityNote) -> bool:
    return "Person" in (entity.type, *note.labels)


def sentence_of(text: str, span: tuple[int, int] | None) -> str:
    """Return the sentence around a span, cut to 240 characters; the text's start where there is no span."""
    if span is None:
        return " ".join(text[: 4 * CARD_LENGTH].split())[:CARD_LENGTH]
    start = max((text.rfind(mark, 0, span[0]) for mark in ".!?\n"), default=-1) + 1
    start = max(start, span[0] - CARD_LENGTH // 2)
    ends = [e for mark in ".!?\n" if (e := text.find(mark, span[1], span[1] + CARD_LENGTH)) >= 0]
    end = min(ends, default=span[1] + CARD_LENGTH) + 1
    return " ".join(text[start:end].split())[:CARD_LENGTH]


@dataclass(slots=True)
class Related:
    """The relations with this episode's rulings applied, and those rulings."""

    case: Case
    relations: Relations
    rulings: list[Ruling] = field(default_factory=list)
    undecided: set[str] = field(default_factory=set)  # names whose tie to another name is asked about

    def rule(
        self, name: str, aspect: Aspect, value: str, other: str = "", *, judge: str = "", reason: str = ""
    ) -> None:
        """Add a ruling of this episode; judge: "" = the one that was asked."""
        if self.relations is self.case.state.graph.relations:
            self.relations = self.relations.copy()
        ruling = Ruling(
            sequence=self.case.episode.sequence,
            ordinal=len(self.rulings),
            name=name,
            aspect=aspect,
            value=value,
            judge=judge or self.case.rules.judge,
            other=other,
            reason=reason,
        )
        self.rulings.append(ruling)
        self.relations.rule(ruling, LATER)  # its record time is given at the commit, later than all before


def relate(case: Case, resolved: Resolved) -> Related:
    """Rule on the relation names of the episode's facts; asks about pairs that are open."""
    extraction, state, ontology = case.extraction, case.state, case.rules.ontology
    known = state.graph.relations
    fresh = [n for n in dict.fromkeys(f.relation for f in extraction.facts) if not known.in_use(n)]
    related = Related(case, known)
    declared = _declared(fresh, state, ontology)
    if fresh or declared:
        related.relations = known.copy()
        for ordinal, fact in enumerate(extraction.facts):
            related.relations.use(fact.relation, (case.episode.sequence, ordinal))
    for (name, aspect, other), value in declared.items():
        related.rule(name, aspect, value, other, judge="ontology")
    for (newer, older), fact in _pairs_to_rule(case, resolved, fresh, related).items():
        both_declared = ontology.get(newer) is not None and ontology.get(older) is not None
        # Of two declared names the ontology says everything; where it says nothing, they are independent.
        if both_declared or related.relations.pair_ruling(newer, older) is not None:
            continue
        stored = state.graph.by_relation.get(known.folded(older).name) or ()
        example = [state.graph.statements[id_].wording for id_ in stored[:1]]
        example = example or [f.text for f in extraction.facts if f.relation == older][:1]
        cards = (fact.text, *example)
        answer = case.answer(Question(kind="relation", item=newer, candidates=(older,), cards=cards))
        if answer is None:
            related.undecided.update((newer, older))
        else:
            told = (value for value in ("same_as", "inverse_of", "excludes") if answer.get(value))
            ruled, reason = next(told, "independent"), str(answer.get("reason", ""))
            related.rule(newer, "pair", ruled, older, reason=reason)
    return related


def _pairs_to_rule(
    case: Case, resolved: Resolved, fresh: list[str], related: Related
) -> dict[tuple[str, str], ExtractedFact]:
    """Return the pairs of a newer and an older name that may need a ruling; of each a fact with the newer."""
    graph, facts = case.state.graph, case.extraction.facts
    found: dict[tuple[str, str], ExtractedFact] = {}
    order = {name: place for place, name in enumerate(related.relations.names())}
    firsts = {fact.relation: fact for fact in reversed(facts)}
    for name in fresh:
        words = _telling(name)
        for older in related.relations.names()[: order[name]]:
            if words & _telling(older):
                found.setdefault((name, older), firsts[name])
    met: dict[tuple[str, str | Value], dict[str, None]] = {}
    for fact in facts:
        subject = resolved.shown[fact.source]
        target = fact.value if fact.target is None else resolved.shown[fact.target]
        if target is None:
            continue
        ends = [(subject, target)] + ([(target, subject)] if isinstance(target, str) else [])
        here = {graph.statements[s].relation for e in ends for s in graph.by_ends.get(e) or ()}
        for end in ends:
            here.update(met.get(end, ()))
        for other in sorted(here, key=lambda n: order.get(n, -1)):
            if other != fact.relation and other in order:
                newer, older = sorted((fact.relation, other), key=order.__getitem__, reverse=True)
                found.setdefault((newer, older), firsts.get(newer, fact))
        met.setdefault((subject, target), {})[fact.relation] = None
    return found


def _telling(name: str) -> frozenset[str]:
    """Return the stems of a relation name's telling words: WORKS_AT, WORKED_FOR and WORK_WITH share WORK."""
    words = (word for word in name.split("_") if word and word not in _FUNCTION_WORDS)
    return frozenset(_ENDING.sub("", word).rstrip("E") for word in words)


def _declared(fresh: list[str], state: KnownState, ontology: Ontology) -> dict[_Place, str]:
    """Return what the ontology says of new names and no ruling in force says already.

    At a run's first commit also of all other names, where the ontology was changed.
    """
    relations = state.graph.relations
    said: dict[_Place, str] = {}
    waiting = fresh[::-1]
    if not state.ontology_settled:
        said.update(_undeclared(relations, ontology))
        waiting += reversed(relations.names())
    kinds: dict[str, RelationType] = {}  # of the names, and of those that they are the same as or inverse of
    while waiting:
        kind = ontology.get(waiting.pop())
        if kind is not None and kind.name not in kinds:
            kinds[kind.name] = kind
            waiting += [mate.name for mate in _mates(kind, ontology)]
    for kind in kinds.values():
        # "many" leaves the other end open: OWNS has many objects, and a thing may have one owner at a time.
        bounds = {mate.cardinality for mate in _mates(kind, ontology)} - {None, "many"}
        if kind.cardinality is not None and not (kind.cardinality == "many" and bounds):
            said[kind.name, "cardinality", ""] = kind.cardinality
        said[kind.name, "symmetric", ""] = "yes" if kind.symmetric else "no"
        said[kind.name, "text", ""] = kind.text
        said |= {(kind.name, "pair", other): value for other, value in _ties(kind.name, ontology)}

    def in_force(name: str, aspect: Aspect, other: str) -> str:
        held = relations.pair_ruling(name, other) if aspect == "pair" else relations.aspect(name, aspect)
        return _UNSAID.get(aspect, "") if held is None else held.value

    return {place: value for place, value in said.items() if value != in_force(*place)}


def _undeclared(relations: Relations, ontology: Ontology) -> Iterator[tuple[_Place, str]]:
    """Yield what takes back the rulings that the ontology declared once and no longer does."""
    for held in relations.declared():
        kind = ontology.get(held.name)
        place = (held.name, held.aspect, held.other)
        if held.aspect == "cardinality" and (kind is None or kind.cardinality is None):
            yield place, UNKNOWN
        elif held.aspect in _UNSAID and kind is None:
            yield place, _UNSAID[held.aspect]
        elif held.aspect == "pair" and held.other not in dict(_ties(held.name, ontology)):
            yield place, "independent"


def _mates(kind: RelationType, ontology: Ontology) -> list[RelationType]:
    """Return the declared relations that a relation is the same as or the inverse of, whichever says it."""
    tied = [other for other, value in _ties(kind.name, ontology) if value != "excludes"]
    return [mate for other in tied if (mate := ontology.get(other)) is not None]


def _ties(name: str, ontology: Ontology) -> Iterator[tuple[str, str]]:
    """Yield (other relation, ruling value) for each pair with this name that the ontology declares.

    The settings declare a pair on one of its two names; the first use of either must bring it.
    """
    if (own := ontology.get(name)) is not None:
        yield from ((other, "excludes") for other in own.excludes)
        yield from ((own.same_as, "same_as"),) if own.same_as else ()
        yield from ((own.inverse_of, "inverse_of"),) if own.inverse_of else ()
    for partner in ontology:
        if name in partner.excludes:
            yield partner.name, "excludes"
        if partner.same_as == name:
            yield partner.name, "same_as"
        if partner.inverse_of == name:
            yield partner.name, "inverse_of"
