"""Resolve the names of an episode to entities, known or new (R14, R15), and declare its relations (R17).

A name is resolved by three steps, in this order:

1. Exactly one entity bears the name, and the name is confirmed for it or the previous context has the name.
2. Else exactly one entity surely bears the name in another spelling.
3. Else a model answers; it sees the candidates' cards in order of birth.

Steps 1 and 2 decide only if no strong evidence speaks against the entity (`_evidence_against`) and the text
itself gives the name to no other. Nothing is merged by cosine alone, and names with different digits are
never the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from kgray.domain.ontology import Ontology, RelationType
from kgray.domain.records import (
    Aspect,
    Declaration,
    ExtractedEntity,
    ExtractedFact,
    Mention,
    ResolvedBy,
    Value,
    entity_id,
)
from kgray.graph import names
from kgray.graph.names import FOLDS, UNKNOWN, EntityNote, Relations, card
from kgray.ingest.candidates import MAX_POSTING, Likeness, code_match, likeness
from kgray.ingest.state import LATER, Case, KnownState
from kgray.models.prompting.reply_schemas import OTHER_TYPE
from kgray.ports import Question

# Cosines of the shipped hashing embedder. A name above the floor is only asked about, never merged.
#   pairs of some 500 made-up names       below 0.43
#   "M. Webb", "Marcus Webb"              0.69
#   "Vicky", "Victoria" (Kelstaholm)      0.58: nicknames are found by their surname instead
#   "Bob", "Robert" (Smith)               0.48
NAME_FLOOR = 0.6
NEAR_LIMIT = 5
MAX_CANDIDATES = 10
CARD_LENGTH = 240
# Evidence is compared with the newest statements of a slot only, so that long histories cost no more.
SLOT_LIMIT = 16
# Words that announce a change: beside them, another employer is no sign of another person.
_CHANGE = re.compile(
    r"\b(?:now|new|newly|joined|joins|started|starts|moved|moves|became|switched|changed|left|since|longer|anymore"
    r"|jetzt|nun|neu\w*|gewechselt|wechselte?|umgezogen|zieht|seit|mehr|maintenant|désormais|depuis|nouve\w+"
    r"|ahora|desde|nuev[oa]|adesso|ora|ormai|agora|теперь|сейчас|перешла?|nu|voortaan)\b"
    r"|现在|如今|改|今は|転職",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Resolved:
    """The mentions of an episode so far, and the entities that they make.

    entity_ids    by ordinal of the mention: the entity that it shows as
    new_entities  by id: the entities that this episode makes
    new_by_name   key of a name -> ids of the new entities with that name
    guesses       ids of new entities that may disappear when their question is answered
    has_key       the current mention has a record's key, so entities with other keys are excluded
    """

    case: Case
    mentions: list[Mention] = field(default_factory=list)
    entity_ids: list[str] = field(default_factory=list)
    new_entities: dict[str, EntityNote] = field(default_factory=dict)
    new_by_name: dict[str, dict[str, None]] = field(default_factory=dict)
    guesses: set[str] = field(default_factory=set)
    has_key: bool = False

    def new_named(self, surface: str) -> list[EntityNote]:
        """Return the entities that the episode makes and that bear a name, oldest first."""
        return [self.new_entities[id_] for id_ in self.new_by_name.get(names.key(surface), ())]

    def stored(self, ids: Iterable[str]) -> list[EntityNote]:
        """Return the group's entities with these ids, each once, without those that the episode makes."""
        entities = self.case.state.graph.entities
        unique = dict.fromkeys(ids)
        return self.possible(entities[i] for i in unique if i in entities and i not in self.new_entities)

    def possible(self, notes: Iterable[EntityNote]) -> list[EntityNote]:
        """Leave out the entities that are surely another record than the current mention."""
        return [note for note in notes if not (self.has_key and note.keys)]


def resolve_entities(case: Case) -> Resolved:
    """Resolve the mentions in order; `_choose` has the assumption while a question is open."""
    resolved = Resolved(case)
    listed = case.extraction.entities
    keys = {entity.key_of: entity.name for entity in listed if entity.key_of is not None}
    for ordinal, entity in enumerate(listed):
        place, sentence = (case.episode.sequence, ordinal), sentence_of(case.episode.text, entity.span)
        resolved_by: ResolvedBy = "name"
        note = _entity_with_key(resolved, keys.get(ordinal), entity)
        resolved.has_key = ordinal in keys
        if note is None:
            note, resolved_by = _entity_for(resolved, ordinal, sentence)
        if note is None:
            note = EntityNote(entity_id(case.episode.group, place), place)
            resolved.new_entities[note.id] = note
        # A known surface is recorded with the id it was first recorded with, so that undoing a merge gives
        # later mentions back too (R16).
        recorded = note.surfaces.get(entity.name, note.id)
        if case.state.graph.fold.shown(recorded, entity.name, place[0])[0] != note.id:
            recorded = note.id  # a split gave the surface to this entity, so its later mentions belong to it
        mention = Mention(
            sequence=place[0],
            ordinal=ordinal,
            surface=entity.name,
            entity=recorded,
            type=entity.type,
            sentence=sentence,
            key=entity.key_of is not None,
            resolved_by=resolved_by,
            span=entity.span,
        )
        if note.id in resolved.new_entities:
            note.take(mention)
            resolved.new_by_name.setdefault(names.key(entity.name), {})[note.id] = None
        resolved.mentions.append(mention)
        resolved.entity_ids.append(note.id)
    return resolved


def _entity_with_key(resolved: Resolved, key: str | None, entity: ExtractedEntity) -> EntityNote | None:
    """Return the entity that bears the mention's key, or whose key the mention is; None = neither."""
    state, entities = resolved.case.state, resolved.case.state.graph.entities
    if key is None and entity.key_of is not None:
        id_ = resolved.entity_ids[entity.key_of]
        return resolved.new_entities.get(id_) or entities[id_]
    if key is None:
        return None
    notes = resolved.new_named(key)
    notes += [entities[i] for i in state.names.bearers(key) if i in entities]
    return min((n for n in notes if key in n.keys), key=lambda n: (n.born, n.id), default=None)


def _entity_for(resolved: Resolved, ordinal: int, sentence: str) -> tuple[EntityNote | None, ResolvedBy]:
    """Return the entity that the mention means, or None for a new entity, and the means of resolution."""
    case, state = resolved.case, resolved.case.state
    entity = case.extraction.entities[ordinal]
    bearers = resolved.stored(state.names.bearers(entity.name))
    bearers += resolved.possible(resolved.new_named(entity.name))
    if case.episode.kind == "triples":
        # Names of triples resolve by exact name alone; if several entities have it, to the oldest.
        return min(bearers, key=lambda n: (n.born, n.id), default=None), "name"
    ids = [id_ for alias in case.same_entities.get(ordinal, ()) for id_ in _possible_ids(resolved, alias)]
    new = [resolved.new_entities[id_] for id_ in dict.fromkeys(ids) if id_ in resolved.new_entities]
    introduced = [*resolved.stored(ids), *new]  # the text itself says that they bear the name
    alike = _alike(entity, resolved)
    sure = [] if bearers or introduced else _surely_same(entity, alike)
    sole = bearers or sure
    if (
        len(sole) == 1
        and introduced in ([], sole)
        and (sole[0].is_confirmed(entity.name) or entity.in_context)
        and not _evidence_against(sole[0], resolved, ordinal)
    ):
        return sole[0], "name" if bearers else "code"
    notes = {note.id: note for note in (*bearers, *introduced, *(note for note, _ in alike))}
    if (embedding := case.answers.vectors.get(entity.name)) is not None:
        near = state.near_scored(embedding.vector, NAME_FLOOR, NEAR_LIMIT)
        for note in resolved.stored(id_ for _, id_ in near):
            if names.digits(note.name) == names.digits(entity.name):
                notes.setdefault(note.id, note)
    apart = state.graph.fold.are_apart
    candidates = [
        note
        for note in list(notes.values())[:MAX_CANDIDATES]
        if note in bearers or not any(apart(note.id, bearer.id) for bearer in bearers)
    ]
    names_shown = {note.id: entity.name if note in sole else next(iter(note.surfaces)) for note in candidates}
    in_order = sorted(candidates, key=lambda n: (n.born, n.id))
    chosen = _choose(resolved, ordinal, sentence, in_order, names_shown)
    # If the model chooses the entity that the spelling rule chose, `code` is recorded: this answer does not
    # count as a confirmation.
    return chosen, "name" if not candidates else "code" if chosen in sure else "model"


def _choose(
    resolved: Resolved,
    ordinal: int,
    sentence: str,
    candidates: Sequence[EntityNote],
    candidate_names: Mapping[str, str],
) -> EntityNote | None:
    """Return the candidate that the model chooses; None = a new entity.

    While the question is open, a single candidate counts as chosen, and several as a new entity, a guess.

    candidates: in order of birth; candidate_names: by id, the name under which the question lists each
    """
    if not candidates:
        return None
    case, entity = resolved.case, resolved.case.extraction.entities[ordinal]
    question = Question(
        kind="entity",
        item=entity.name,
        candidates=tuple(candidate_names[note.id] for note in candidates),
        cards=(card(entity.name, entity.type, sentence), *(note.card for note in candidates)),
    )
    answer = case.answer(question)
    if answer is None:
        # On a view a candidate may be a guess, which disappears when an earlier question is answered.
        case.questions.rests_on_guess = case.questions.rests_on_guess or any(
            case.state.is_guess(note.id) for note in candidates
        )
        if len(candidates) == 1:
            return candidates[0]  # usually right, so show it to later episodes
        resolved.guesses.add(entity_id(case.episode.group, (case.episode.sequence, ordinal)))
        return None
    index = answer["duplicate_of"]
    return None if index is None else candidates[index]


def _evidence_against(bearer: EntityNote, resolved: Resolved, ordinal: int) -> bool:
    """Return whether strong evidence says that a mention does not mean the only entity with its name.

    R14a has the table of this evidence, and its effect in six generated worlds. Each name is checked for its
    type. Then the checks depend on the name:

    one word, of a person    first name alone
    one word without types   nothing
    other, of a person       namesake, two spellings, stranger, present tense
    other                    present tense
    """
    case, state = resolved.case, resolved.case.state
    entity = case.extraction.entities[ordinal]
    labels = set(bearer.labels) - {OTHER_TYPE}
    if entity.type not in ("", OTHER_TYPE) and labels and entity.type not in labels:
        return True
    is_person, tokens = _is_person(entity, bearer), names.tokens(entity.name)
    if len(tokens) == 1 and is_person:
        namesakes = [n for n in resolved.new_entities.values() if tokens[0] in names.tokens(n.name)]
        namesakes = resolved.possible(namesakes) + resolved.stored(state.names.bears_word(tokens[0]))
        return any(note.id != bearer.id for note in namesakes)
    if len(tokens) == 1 and not (entity.type or bearer.labels):
        return False  # one word without a type says too little for a model to decide
    if is_person:
        apart, shorts = state.graph.fold.are_apart, resolved.stored(state.names.shorts(entity.name))
        namesakes = [n for n in shorts if n.id != bearer.id and not apart(n.id, bearer.id)]
        if any(likeness(entity.name, note.name) in ("equal", "initials") for note in namesakes):
            return True
        spellings = (e.name for e in case.extraction.entities if names.key(e.name) != names.key(entity.name))
        if any(likeness(entity.name, name) == "equal" for name in spellings):
            return True
        # A speaker whom the previous context names, too, is no stranger.
        is_speaker = ordinal == 0 and case.episode.kind == "message" and bool(case.episode.speaker)
        if not (is_speaker and entity.in_context) and _is_stranger(bearer, resolved, ordinal):
            return True
    return any(_contradicts(fact, resolved, ordinal, bearer) for fact in case.extraction.facts)


def _is_stranger(bearer: EntityNote, resolved: Resolved, ordinal: int) -> bool:
    """Return whether the entity was mentioned once, and the facts about a mention share no end with it.

    False where no fact is about the mention: then nothing could tell the two apart.
    """
    case, by_ends = resolved.case, resolved.case.state.graph.by_ends
    facts = [fact for fact in case.extraction.facts if ordinal in (fact.source, fact.target)]
    if not facts or bearer.count > 1 or bearer.id in resolved.new_entities:
        return False
    if case.state.mention_count(bearer.id) > 1:  # a view counts the mentions in uncommitted episodes, too
        return False
    for fact in facts:
        end = fact.target if ordinal == fact.source else fact.source
        ends: list[str | Value | None] = [fact.value]
        if end is not None:
            bearers = case.state.names.bearers(case.extraction.entities[end].name)
            ends = [*_possible_ids(resolved, end), *bearers]
        if any(by_ends.get((bearer.id, end)) or by_ends.get((str(end), bearer.id)) for end in ends if end):
            return False
    return True


def _possible_ids(resolved: Resolved, ordinal: int) -> list[str]:
    """Return the entity of a resolved mention; of a later mention, the entities that bear its name."""
    if ordinal < len(resolved.entity_ids):
        return [resolved.entity_ids[ordinal]]
    return resolved.case.state.names.bearers(resolved.case.extraction.entities[ordinal].name)


def _contradicts(fact: ExtractedFact, resolved: Resolved, ordinal: int, bearer: EntityNote) -> bool:
    """Return whether a fact in the present tense contradicts the latest statement about the entity.

    It does where a relation takes one object at a time, the latest statement in that slot has another object,
    and no word in the sentence announces a change. Values count for persons only: prices and states change.
    Stated starts and ends are weak evidence, because news arrives late: on six worlds with homonyms 2 of 104
    starts, 2 of 71 ends and 18 of 45 sentences in the present tense were about another person.
    """
    case, graph = resolved.case, resolved.case.state.graph
    mentioned = case.extraction.entities[ordinal]
    folded = graph.relations.folded(fact.relation)
    side = {"single": 0, "single_object": 1}.get(str(graph.relations.traits(folded.name).cardinality))
    ends = (fact.target, fact.source) if folded.flipped else (fact.source, fact.target)
    is_present = fact.kind == "holds" and fact.inferred and fact.valid_to is None
    if side is None or ends[side] != ordinal or not is_present:
        return False
    if fact.only or (fact.value is not None and not _is_person(mentioned, bearer)):
        return False  # the field of a record changes
    slot = graph.slots.get(("so"[side], bearer.id, folded.name)) or ()
    statements = [s for id_ in slot[-SLOT_LIMIT:] if (s := graph.statements.get(id_)) is not None]
    claims = [(c.said, c, s) for s in statements for c in s.claims if c.kind != "denied"]
    _, claim, latest = max(claims, key=itemgetter(0), default=(None, None, None))
    if claim is None or latest is None or claim.kind != "holds" or claim.end is not None:
        return False
    sentence = sentence_of(case.episode.text, mentioned.span)
    if claim.said[0] > case.episode.reference_time or _CHANGE.search(sentence):
        return False
    return not _is_same_end(resolved, fact, ends[1 - side], (latest.key[2], latest.subject)[side])


def _is_same_end(resolved: Resolved, fact: ExtractedFact, ordinal: int | None, end: str | Value) -> bool:
    """Return whether a fact's other end is this end of a stored statement, or has a name like it.

    ordinal: of the fact's other end; None where it is a value
    """
    if ordinal is None or isinstance(end, Value):
        return fact.value == end
    if end in _possible_ids(resolved, ordinal):
        return True
    case, note = resolved.case, resolved.case.state.graph.entities.get(end)
    return note is not None and likeness(case.extraction.entities[ordinal].name, note.name) is not None


def _alike(entity: ExtractedEntity, resolved: Resolved) -> list[tuple[EntityNote, Likeness]]:
    """Return the entities with a display name of similar letters, and the kind of each similarity."""
    look_up = resolved.case.state.names
    notes = resolved.stored(look_up.near(entity.name)) + resolved.possible(resolved.new_entities.values())
    similar = [(note, likeness(entity.name, note.name)) for note in notes]
    # Entities with a name that abbreviates this name, or that this name abbreviates: the likeliest first,
    # then the entity born first.
    match = code_match(entity.name)
    coded = [
        (min(ranks), note.born, note.id, note)
        for note in resolved.stored(look_up.coded(entity.name))
        if (ranks := [rank for s in note.surfaces if (rank := match(s)) is not None])
    ]
    similar += [(note, "acronym") for *_, note in sorted(coded)[:MAX_POSTING]]
    # Two first names with one surname may be relatives or one person; only persons are asked about.
    pairs = [(n, kind) for n, kind in similar if kind and (kind != "surname" or _is_person(entity, n))]
    # Common nouns are no short form of a person's name: "juniors", "Jun Mori".
    is_noun = entity.name.islower() and entity.type != "Person"
    return [(n, kind) for n, kind in pairs if not (is_noun and kind != "equal" and "Person" in n.labels)]


def _surely_same(entity: ExtractedEntity, alike: list[tuple[EntityNote, Likeness]]) -> list[EntityNote]:
    """Return the entities that surely bear the name in another spelling (R14)."""
    equal = [note for note, kind in alike if kind == "equal"]
    paired = [note for note, kind in alike if kind == "initials"]
    if equal or len(paired) != 1 or len(names.tokens(entity.name)) < 2:
        return equal
    (note,) = paired
    a, b = names.tokens(entity.name), names.tokens(note.name)
    if len(a) != len(b) or a[-1] != b[-1]:
        return []
    # They may differ in initials: "M. Webb", "Marcus Webb" (R15). The last token is never an initial
    # ("World War I"), a longer prefix is another name ("Ann", "Anna"), and a letter is an initial if the
    # entity is a person, or if a dot follows it.
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
    """Return the sentence around a span, cut to 240 characters; without a span, the start of the text."""
    if span is None:
        return " ".join(text[: 4 * CARD_LENGTH].split())[:CARD_LENGTH]
    start = max((text.rfind(mark, 0, span[0]) for mark in ".!?\n"), default=-1) + 1
    start = max(start, span[0] - CARD_LENGTH // 2)
    ends = [e for mark in ".!?\n" if (e := text.find(mark, span[1], span[1] + CARD_LENGTH)) >= 0]
    end = min(ends, default=span[1] + CARD_LENGTH) + 1
    return " ".join(text[start:end].split())[:CARD_LENGTH]


# The values of aspects that are not declared; "listed" and these need no record.
_DEFAULTS = {"listed": "no", "symmetric": "no", "text": ""}
_Place = tuple[str, Aspect, str]  # name, aspect, other name or ""


def declare(case: Case) -> tuple[Relations, tuple[Declaration, ...]]:
    """Declare the relations of the episode's facts, and at a run's first commit every change of the ontology.

    Return the group's relations with the new declarations, and these declarations (R17).
    """
    relations, ontology = case.state.graph.relations, case.rules.ontology
    used = dict.fromkeys(fact.relation for fact in case.extraction.facts)
    fresh = [name for name in used if ontology.get(name) is not None and not relations.is_listed(name)]
    if not fresh and case.state.ontology_settled:
        return relations, ()
    sequence, missing = case.episode.sequence, _missing(fresh, case.state, ontology).items()
    declarations = tuple(
        Declaration(sequence=sequence, ordinal=ordinal, name=name, aspect=aspect, value=value, other=partner)
        for ordinal, ((name, aspect, partner), value) in enumerate(missing)
    )
    if declarations:
        relations = relations.copy()
    for declaration in declarations:  # the commit gives the record time, which is later than all others
        relations.declare(declaration, LATER)
    return relations, declarations


def _missing(fresh: list[str], state: KnownState, ontology: Ontology) -> dict[_Place, str]:
    """Return the declarations of fresh names that are not in force yet.

    At a run's first commit also those of all other names, where the ontology was changed.
    """
    relations = state.graph.relations
    declared: dict[_Place, str] = {}
    waiting = fresh[::-1]
    if not state.ontology_settled:
        declared.update(_withdrawn(relations, ontology))
        waiting += reversed(relations.names())
    kinds: dict[str, RelationType] = {}  # the names, and those whose declarations bear on them
    while waiting:
        kind = ontology.get(waiting.pop())
        if kind is not None and kind.name not in kinds:
            kinds[kind.name] = kind
            waiting += [main for main in (kind.same_as, kind.inverse_of) if main]
            waiting += [mate.name for mate in _bounds(kind, ontology)]
    for kind in kinds.values():
        declared[kind.name, "listed", ""] = "yes"
        if kind.cardinality is not None and not _bounds(kind, ontology):
            declared[kind.name, "cardinality", ""] = kind.cardinality
        declared[kind.name, "symmetric", ""] = "yes" if kind.symmetric else "no"
        declared[kind.name, "text", ""] = kind.text
        for name, partner, value in _pairs(kind.name, ontology):
            declared[name, "pair", partner] = value

    return {place: value for place, value in declared.items() if not _is_in_force(relations, place, value)}


def _is_in_force(relations: Relations, place: _Place, value: str) -> bool:
    name, aspect, partner = place
    if aspect != "pair":
        current = relations.aspect(name, aspect)
        return value == (_DEFAULTS.get(aspect, "") if current is None else current.value)
    current = relations.pair(name, partner)
    if current is None or current.value != value:
        return current is None and value == "none"
    return value not in FOLDS or current.name == name


def _withdrawn(relations: Relations, ontology: Ontology) -> Iterator[tuple[_Place, str]]:
    """Yield the declarations that take back those in force that the ontology does not make any more."""
    for declaration in relations.in_force():
        kind = ontology.get(declaration.name)
        place: _Place = (declaration.name, declaration.aspect, declaration.other)
        if declaration.aspect == "cardinality" and (kind is None or kind.cardinality is None):
            yield place, UNKNOWN
        elif declaration.aspect in _DEFAULTS and kind is None:
            yield place, _DEFAULTS[declaration.aspect]
        elif declaration.aspect == "pair":
            pairs = {frozenset(names) for *names, _ in _pairs(declaration.name, ontology)}
            if frozenset((declaration.name, declaration.other)) not in pairs:
                yield place, "none"


def _bounds(kind: RelationType, ontology: Ontology) -> list[RelationType]:
    """Return the synonyms and inverses of a relation with many objects that limit its other end.

    "many" leaves the other end open: OWNS has many objects, and OWNED_BY may say that a thing has one owner.
    """
    if kind.cardinality != "many":
        return []
    tied = {n for *names, value in _pairs(kind.name, ontology) if value in FOLDS for n in names} - {kind.name}
    mates = (ontology.get(name) for name in sorted(tied))
    return [mate for mate in mates if mate is not None and mate.cardinality not in (None, "many")]


def _pairs(name: str, ontology: Ontology) -> Iterator[tuple[str, str, str]]:
    """Yield (name, other, value) of each pair with this name that the ontology declares.

    People declare a pair on either of its two names; the first use of either must record it.
    """
    for kind in ontology:
        if kind.same_as and name in (kind.name, kind.same_as):
            yield kind.name, kind.same_as, "same_as"
        if kind.inverse_of and name in (kind.name, kind.inverse_of):
            yield kind.name, kind.inverse_of, "inverse_of"
        for excluded in kind.excludes:
            if name in (kind.name, excluded):
                yield kind.name, excluded, "excludes"
