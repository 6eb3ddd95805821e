"""Mentions to entities: which known entity a name means, or a new one (R14, R15).

Three steps, the first that decides: exactly one entity has this name; exactly one entity's name is surely
this one in another spelling; the model answers, with the candidates' cards in order of birth. Nothing is
merged by cosine alone, and names whose digits differ are never the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kgray.derivation import names
from kgray.derivation.entities import EntityNote, card
from kgray.ingest.candidates import Likeness, likeness
from kgray.ingest.case import Case, KnownState
from kgray.ports import Question
from kgray.records import ExtractedEntity, Mention, Place, entity_id

# Cosines of the shipped hashing embedder. A name above the floor is only asked about, never merged.
#   pairs of some 500 made-up names       below 0.43
#   "M. Webb", "Marcus Webb"              0.69
#   "Vicky", "Victoria" (Kelstaholm)      0.58: nicknames are found by their surname instead
#   "Bob", "Robert" (Smith)               0.48
NAME_FLOOR = 0.6
NEAR_LIMIT = 5
MAX_CANDIDATES = 10
CARD_LENGTH = 240


@dataclass(slots=True)
class Resolved:
    """The mentions of an episode so far, and the entities that they make."""

    mentions: list[Mention] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)  # by ordinal: the entity that the mention shows as
    births: dict[str, Place] = field(default_factory=dict)
    made: dict[str, EntityNote] = field(default_factory=dict)
    guessed: set[str] = field(default_factory=set)  # those made while their question is open


def resolve_entities(case: Case) -> Resolved:
    """Resolve the mentions in order; while its question is open, a mention counts as a new entity."""
    resolved = Resolved()
    for ordinal, entity in enumerate(case.extraction.entities):
        sentence = sentence_of(case.episode.text, entity.span)
        place = (case.sequence, ordinal)
        note = _entity_for(case, resolved, place, entity, sentence)
        if note is None:
            made = entity_id(case.episode.group, place)
            note = EntityNote(made, place)
            resolved.births[made] = place
            resolved.made[made] = note
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
            span=entity.span,
        )
        if note.id in resolved.made:
            note.take(mention)
        resolved.mentions.append(mention)
        resolved.shown.append(note.id)
    return resolved


def _entity_for(
    case: Case, resolved: Resolved, place: Place, entity: ExtractedEntity, sentence: str
) -> EntityNote | None:
    """Return the entity that the mention means; None = a new one."""
    state = case.state
    bearers = _notes(state, resolved, state.names.bearers(entity.name))
    bearers += [n for n in resolved.made.values() if _bears(n, entity.name)]
    if case.episode.kind == "triples":
        # Names of triples resolve by exact name alone; if several entities have it, to the oldest.
        return min(bearers, key=lambda n: (n.born, n.id), default=None)
    if len(bearers) == 1 and _is_certain(entity, bearers[0], state, resolved):
        return bearers[0]
    alike = _alike(entity, state, resolved)
    if not bearers and (sure := _sure(entity, alike, state, resolved)) is not None:
        return sure
    chosen = _candidates(case, resolved, entity, [*bearers, *(n for n, _ in alike)])
    if not chosen:
        return None
    answer = case.answer(
        Question(
            kind="entity",
            item=entity.name,
            candidates=tuple(next(iter(n.surfaces)) for n in chosen),
            cards=(card(entity.name, entity.type, sentence), *(n.card for n in chosen)),
        )
    )
    if answer is None:
        # On a view a candidate may be a guess, which disappears when an earlier question is answered.
        case.asked.early = case.asked.early or any(state.is_guess(n.id) for n in chosen)
        if len(chosen) == 1:
            return chosen[0]  # usually right, so show it to later episodes
        resolved.guessed.add(entity_id(case.episode.group, place))
        return None
    index = answer["duplicate_of"]
    return None if index is None else chosen[index]


def _candidates(
    case: Case, resolved: Resolved, entity: ExtractedEntity, known: list[EntityNote]
) -> list[EntityNote]:
    """Return the candidates, by birth: those alike by letters, and those near by vector."""
    candidates = {note.id: note for note in known}
    vector = case.answers.vectors.get(entity.name)
    if vector is not None:
        near = case.state.near_scored(vector, NAME_FLOOR, NEAR_LIMIT)
        for note in _notes(case.state, resolved, [shown for _, shown in near]):
            if names.digits(note.name) == names.digits(entity.name):
                candidates.setdefault(note.id, note)
    return sorted(list(candidates.values())[:MAX_CANDIDATES], key=lambda n: (n.born, n.id))


def _is_certain(entity: ExtractedEntity, note: EntityNote, state: KnownState, resolved: Resolved) -> bool:
    """Whether nothing contradicts the only entity that bears the name."""
    return _types_agree(entity, note) and not _doubtful(entity, note, state, resolved)


def _alike(
    entity: ExtractedEntity, state: KnownState, resolved: Resolved
) -> list[tuple[EntityNote, Likeness]]:
    """Return the entities whose shown name is alike by its letters, each with how."""
    notes = [*_notes(state, resolved, state.names.near(entity.name)), *resolved.made.values()]
    found = []
    for note in notes:
        how = likeness(entity.name, note.name)
        # Two first names with one surname may be relatives or one person: the model is asked, for persons.
        if how == "surname" and "Person" not in (entity.type, *note.labels):
            continue
        if how is not None:
            found.append((note, how))
    return found


def _sure(
    entity: ExtractedEntity, alike: list[tuple[EntityNote, Likeness]], state: KnownState, resolved: Resolved
) -> EntityNote | None:
    """Return the one entity that the name surely means though it is written otherwise (R14, second step)."""
    equal = [n for n, how in alike if how == "equal"]
    if len(equal) == 1:
        return equal[0] if _is_certain(entity, equal[0], state, resolved) else None
    if equal:
        return None
    paired = [n for n, how in alike if how == "initials"]
    if len(paired) != 1 or len(names.tokens(entity.name)) < 2:
        return None
    only = paired[0]
    return only if _initials_only(entity, only) and _types_agree(entity, only) else None


def _initials_only(entity: ExtractedEntity, note: EntityNote) -> bool:
    """Whether two personal names differ only in initials before the last: "M. Webb", "Marcus Webb" (R15).

    A last token is never an initial ("World War I"), a longer prefix is another name ("Ann", "Anna"),
    and a single letter counts only for a person or with a dot after it.
    """
    a, b = names.tokens(entity.name), names.tokens(note.name)
    if len(a) != len(b) or a[-1] != b[-1]:
        return False
    personal = "Person" in (entity.type, *note.labels)
    for ours, theirs in zip(a[:-1], b[:-1], strict=True):
        if ours == theirs:
            continue
        short, surface = (ours, entity.name) if len(ours) < len(theirs) else (theirs, note.name)
        if len(short) != 1 or ours[0] != theirs[0]:
            return False
        if not personal and f"{short}." not in surface.casefold():
            return False
    return True


def _doubtful(entity: ExtractedEntity, bearer: EntityNote, state: KnownState, resolved: Resolved) -> bool:
    """Whether another entity also has the word of a one-word personal name (R15)."""
    tokens = names.tokens(entity.name)
    if len(tokens) != 1 or ("Person" not in (entity.type, *bearer.labels)):
        return False
    others = [i for i in state.names.bears_word(tokens[0]) if i != bearer.id and i in state.graph.entities]
    return bool(others) or any(
        tokens[0] in names.tokens(n.name) for n in resolved.made.values() if n is not bearer
    )


def _notes(state: KnownState, resolved: Resolved, ids: list[str]) -> list[EntityNote]:
    known = state.graph.entities
    return [known[i] for i in dict.fromkeys(ids) if i in known and i not in resolved.made]


def _bears(note: EntityNote, surface: str) -> bool:
    wanted = names.key(surface)
    return any(names.key(s) == wanted for s in note.surfaces)


def _types_agree(entity: ExtractedEntity, note: EntityNote) -> bool:
    return not entity.type or not note.labels or entity.type in note.labels


def sentence_of(text: str, span: tuple[int, int] | None) -> str:
    """Return the sentence around a span, cut to 240 characters; the text's start where there is no span."""
    if span is None:
        return " ".join(text[: 4 * CARD_LENGTH].split())[:CARD_LENGTH]
    start = max((text.rfind(mark, 0, span[0]) for mark in ".!?\n"), default=-1) + 1
    start = max(start, span[0] - CARD_LENGTH // 2)
    ends = [e for mark in ".!?\n" if (e := text.find(mark, span[1], span[1] + CARD_LENGTH)) >= 0]
    end = min(ends, default=span[1] + CARD_LENGTH) + 1
    return " ".join(text[start:end].split())[:CARD_LENGTH]
