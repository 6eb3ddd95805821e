"""Mentions to entities: which known entity a name means, or a new one (R14, R15).

Three steps, the first that decides: exactly one entity has this name and nothing speaks against it; exactly
one entity's name is surely this one in another spelling; the model answers, with the candidates' cards in
order of birth. Nothing is merged by cosine alone, and names whose digits differ are never the same.

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

from kgray.derivation import names
from kgray.derivation.names import EntityNote, card
from kgray.ingest.candidates import MAX_POSTING, Likeness, code_match, likeness
from kgray.ingest.state import Case, KnownState
from kgray.ports import Question
from kgray.records import ExtractedEntity, ExtractedFact, Mention, Value, entity_id

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


@dataclass(slots=True)
class Resolved:
    """The mentions of an episode so far, and the entities that they make."""

    mentions: list[Mention] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)  # by ordinal: the entity that the mention shows as
    made: dict[str, EntityNote] = field(default_factory=dict)
    # Key of a name -> those made that bear it.
    by_name: dict[str, dict[str, None]] = field(default_factory=dict)
    guessed: set[str] = field(default_factory=set)  # those made while their question is open
    keyed: bool = False  # the mention at hand is of a record with a key: entities with another are not it

    def named(self, surface: str) -> list[EntityNote]:
        """Return the entities that the episode makes and that bear a name, oldest first."""
        return self._possible(self.made[made] for made in self.by_name.get(names.key(surface), ()))

    @property
    def fresh(self) -> list[EntityNote]:
        """The entities that the episode makes, without those that are surely another record."""
        return self._possible(self.made.values())

    def bearing(self, state: KnownState, ids: Iterable[str]) -> list[EntityNote]:
        """Return the group's entities with these ids, each once, without those that the episode makes."""
        known = state.graph.entities
        return self._possible(known[i] for i in dict.fromkeys(ids) if i in known and i not in self.made)

    def _possible(self, notes: Iterable[EntityNote]) -> list[EntityNote]:
        return [note for note in notes if not (self.keyed and note.keys)]


def resolve_entities(case: Case) -> Resolved:
    """Resolve the mentions in order; while its question is open, a mention counts as a new entity."""
    resolved = Resolved()
    keys = {one.key_of: one.name for one in case.extraction.entities if one.key_of is not None}
    for ordinal, entity in enumerate(case.extraction.entities):
        place, sentence = (case.sequence, ordinal), sentence_of(case.episode.text, entity.span)
        note = _record(case, resolved, keys.get(ordinal), entity)
        resolved.keyed = ordinal in keys
        if note is None:
            note = _entity_for(case, resolved, ordinal, sentence)
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


def _record(case: Case, resolved: Resolved, key: str | None, entity: ExtractedEntity) -> EntityNote | None:
    """Return the entity that bears the mention's key, or whose key the mention is; None = neither."""
    known = case.state.graph.entities
    if key is None and entity.key_of is not None:
        shown = resolved.shown[entity.key_of]
        return resolved.made.get(shown) or known[shown]
    if key is None:
        return None
    notes = [resolved.made[made] for made in resolved.by_name.get(names.key(key), ())]
    notes += [known[i] for i in case.state.names.bearers(key) if i in known]
    return min((n for n in notes if key in n.keys), key=lambda n: (n.born, n.id), default=None)


def _entity_for(case: Case, resolved: Resolved, ordinal: int, sentence: str) -> EntityNote | None:
    """Return the entity that the mention means; None = a new one."""
    state, entity = case.state, case.extraction.entities[ordinal]
    bearers = resolved.bearing(state, state.names.bearers(entity.name))
    bearers += resolved.named(entity.name)
    if case.episode.kind == "triples":
        # Names of triples resolve by exact name alone; if several entities have it, to the oldest.
        return min(bearers, key=lambda n: (n.born, n.id), default=None)
    told = _told(case, resolved, ordinal)
    if len(bearers) == 1 and _is_certain(case, resolved, ordinal, bearers[0]) and told in ([], bearers):
        return bearers[0]
    alike = _alike(entity, state, resolved)
    sure = [] if bearers or told else _sure(entity, alike)
    if len(sure) == 1 and _is_certain(case, resolved, ordinal, sure[0]):
        return sure[0]
    own, apart = bearers or sure, state.graph.fold.are_apart
    chosen = [
        note
        for note in _candidates(case, resolved, entity, [*bearers, *told, *(n for n, _ in alike)])
        if note in bearers or not any(apart(note.id, bearer.id) for bearer in bearers)
    ]
    if not chosen:
        return None
    answer = case.answer(
        Question(
            kind="entity",
            item=entity.name,
            candidates=tuple(entity.name if n in own else next(iter(n.surfaces)) for n in chosen),
            cards=(card(entity.name, entity.type, sentence), *(n.card for n in chosen)),
        )
    )
    if answer is None:
        # On a view a candidate may be a guess, which disappears when an earlier question is answered.
        case.asked.early = case.asked.early or any(state.is_guess(n.id) for n in chosen)
        if len(chosen) == 1:
            return chosen[0]  # usually right, so show it to later episodes
        resolved.guessed.add(entity_id(case.episode.group, (case.sequence, ordinal)))
        return None
    index = answer["duplicate_of"]
    return None if index is None else chosen[index]


def _told(case: Case, resolved: Resolved, ordinal: int) -> list[EntityNote]:
    """Return the entities that the text tells to bear the mention's name."""
    ids = [one for other in case.others.get(ordinal, ()) for one in _meant(case, resolved, other)]
    made = [resolved.made[one] for one in dict.fromkeys(ids) if one in resolved.made]
    return [*resolved.bearing(case.state, ids), *made]


def _candidates(
    case: Case, resolved: Resolved, entity: ExtractedEntity, known: list[EntityNote]
) -> list[EntityNote]:
    """Return the candidates, by birth: those alike by letters, and those near by vector."""
    candidates = {note.id: note for note in known}
    said = case.answers.vectors.get(entity.name)
    if said is not None:
        near = case.state.near_scored(said.vector, NAME_FLOOR, NEAR_LIMIT)
        for note in resolved.bearing(case.state, (shown for _, shown in near)):
            if names.digits(note.name) == names.digits(entity.name):
                candidates.setdefault(note.id, note)
    return sorted(list(candidates.values())[:MAX_CANDIDATES], key=lambda n: (n.born, n.id))


# --------------------------------------------------------------------- what speaks against an entity


def _is_certain(case: Case, resolved: Resolved, ordinal: int, note: EntityNote) -> bool:
    """Whether nothing speaks against the only entity that the name can mean."""
    entity, state = case.extraction.entities[ordinal], case.state
    if entity.type and note.labels and entity.type not in note.labels:
        return False
    is_person = _is_person(entity, note)
    if is_person and any(other.id != note.id for other in _confusable(entity.name, note, state, resolved)):
        return False
    if len(names.tokens(entity.name)) == 1 and (is_person or not (entity.type or note.labels)):
        return True  # no full name, so that a model would know no more of it: only R15 holds
    if is_person and note.count <= HARDLY_KNOWN and not _is_tied(case, resolved, ordinal, note):
        return False
    return not any(_contradicts(case, resolved, fact, ordinal, note) for fact in case.extraction.facts)


def _confusable(name: str, bearer: EntityNote, state: KnownState, resolved: Resolved) -> Iterator[EntityNote]:
    """Yield entities that bear the word of a one-word name, or another spelling of a longer one.

    Not those of a like name that are known to be another one than the bearer (R16).
    """
    tokens = names.tokens(name)
    if len(tokens) == 1:
        yield from (note for note in resolved.fresh if tokens[0] in names.tokens(note.name))
        yield from resolved.bearing(state, state.names.bears_word(tokens[0]))
    for note in resolved.bearing(state, state.names.shorts(name)):
        is_other = state.graph.fold.are_apart(note.id, bearer.id)
        if not is_other and likeness(name, note.name) in ("equal", "initials"):
            yield note


def _is_tied(case: Case, resolved: Resolved, ordinal: int, note: EntityNote) -> bool:
    """Whether a fact of the episode ties the mention to what a stored fact ties the entity to."""
    by_ends, entities = case.state.graph.by_ends, case.extraction.entities
    for fact in case.extraction.facts:
        if ordinal in (fact.source, fact.target):
            other = fact.target if ordinal == fact.source else fact.source
            ends: list[str | Value | None] = [fact.value]
            if other is not None:
                ends = [*_meant(case, resolved, other), *case.state.names.bearers(entities[other].name)]
            if any(by_ends.get((note.id, end)) or by_ends.get((str(end), note.id)) for end in ends if end):
                return True
    return False


def _meant(case: Case, resolved: Resolved, ordinal: int) -> list[str]:
    """Return the entity of a mention that is resolved; of a later one, those that it may mean by its name."""
    if ordinal < len(resolved.shown):
        return [resolved.shown[ordinal]]
    return case.state.names.bearers(case.extraction.entities[ordinal].name)


def _contradicts(case: Case, resolved: Resolved, fact: ExtractedFact, ordinal: int, note: EntityNote) -> bool:
    """Whether a fact about the mention does not go with a slot of the entity, by what was said last of it.

    said of the mention     does not go with a slot that holds one thing at a time where
    an end, a denial        the slot never had that object
    a stated start          another object was still said to be there then
    the present tense       another object is there, and no word tells of a change

    Values are left out, but for those of persons: prices and states change, and say nothing of identity.
    """
    graph, entities = case.state.graph, case.extraction.entities
    folded = graph.relations.folded(fact.relation)
    side = {"single": 0, "single_object": 1}.get(str(graph.relations.traits(folded.name).cardinality))
    ends = (fact.target, fact.source) if folded.flipped else (fact.source, fact.target)
    other = ends[1 - side] if side is not None else None
    is_over = fact.kind == "happened" or (fact.kind == "holds" and fact.valid_to is not None)
    if side is None or ends[side] != ordinal or is_over:
        return False
    if fact.only or (fact.value is not None and not _is_person(entities[ordinal], note)):
        return False  # the field of a record changes
    stored = graph.slots.get(("so"[side], note.id, folded.name)) or ()
    held = [statement for s in stored[-_SLOT:] if (statement := graph.statements.get(s)) is not None]
    same = {s.id for s in held if _is_end(case, resolved, fact, other, (s.key[2], s.subject)[side])}
    if fact.kind != "holds" or not held:
        return bool(held) and not same
    claims = [claim for statement in held for claim in statement.claims if claim.kind != "denied"]
    last = max(claims, key=lambda claim: claim.said, default=None)
    if last is None or last.statement in same or last.kind != "holds" or last.end is not None:
        return False
    said_at = last.said[0]
    if not fact.inferred:
        return fact.valid_from is None or fact.valid_from <= said_at
    told = sentence_of(case.episode.text, entities[ordinal].span)
    return said_at <= case.episode.reference_time and not _CHANGE.search(told)


def _is_end(
    case: Case, resolved: Resolved, fact: ExtractedFact, other: int | None, known: str | Value
) -> bool:
    """Whether a fact's other end is, or is named like, the end of a stored statement."""
    if other is None or isinstance(known, Value):
        return fact.value == known
    if known in _meant(case, resolved, other):
        return True
    note = case.state.graph.entities.get(known)
    return note is not None and likeness(case.extraction.entities[other].name, note.name) is not None


# ---------------------------------------------------------------------------------- likeness by letters


def _alike(
    entity: ExtractedEntity, state: KnownState, resolved: Resolved
) -> list[tuple[EntityNote, Likeness]]:
    """Return the entities whose shown name is alike by its letters, each with how.

    Two first names with one surname may be relatives or one person: only persons are asked about.
    """
    notes = [*resolved.bearing(state, state.names.near(entity.name)), *resolved.fresh]
    found = [(note, likeness(entity.name, note.name)) for note in notes]
    # Codes that other names of an entity are, or spell: the likeliest, then those born first.
    match = code_match(entity.name)
    coded = [
        (min(ranks), note.born, note.id, note)
        for note in resolved.bearing(state, state.names.coded(entity.name))
        if (ranks := [rank for s in note.surfaces if (rank := match(s)) is not None])
    ]
    found += [(note, "acronym") for *_, note in sorted(coded)[:MAX_POSTING]]
    return [(n, how) for n, how in found if how and (how != "surname" or _is_person(entity, n))]


def _sure(entity: ExtractedEntity, alike: list[tuple[EntityNote, Likeness]]) -> list[EntityNote]:
    """Return the entities that the name surely means if there is one: it is written otherwise (R14)."""
    equal = [note for note, how in alike if how == "equal"]
    paired = [note for note, how in alike if how == "initials"]
    if equal or len(paired) != 1 or len(names.tokens(entity.name)) < 2:
        return equal
    return paired if _initials_only(entity, paired[0]) else []


def _initials_only(entity: ExtractedEntity, note: EntityNote) -> bool:
    """Whether two personal names differ only in initials before the last: "M. Webb", "Marcus Webb" (R15).

    A last token is never an initial ("World War I"), a longer prefix is another name ("Ann", "Anna"),
    and a single letter counts only for a person or with a dot after it.
    """
    a, b = names.tokens(entity.name), names.tokens(note.name)
    if len(a) != len(b) or a[-1] != b[-1]:
        return False
    for ours, theirs in zip(a[:-1], b[:-1], strict=True):
        if ours == theirs:
            continue
        short, surface = (ours, entity.name) if len(ours) < len(theirs) else (theirs, note.name)
        if len(short) != 1 or ours[0] != theirs[0]:
            return False
        if not _is_person(entity, note) and f"{short}." not in surface.casefold():
            return False
    return True


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
