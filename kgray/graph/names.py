"""Names and their bearers: entities through merges and splits, relations by declarations (R14a-R17, R21).

An operation names entities as they showed when it was recorded. A mention keeps the id that it was resolved
to; the operations in force, applied in order, give the entity that it shows as. So an undo gives an
operation's mentions back, later mentions of the same surface included, and no id ever changes. Evidence keeps
the relation name of the extractor; declared synonyms and inverses show as the main name of the ontology.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from kgray.domain.graph import Entity
from kgray.domain.records import Declaration, Mention, Operation, Place
from kgray.domain.times import Instant
from kgray.errors import InputError

UNKNOWN = "unknown"  # a cardinality that the ontology declared once and no longer does
FOLDS = frozenset({"same_as", "inverse_of"})  # pairs of names that show as one
CONFIRMING_ANSWERS = 2  # of a model, in as many episodes, confirm an alias (R14a)
_FLIPPED = {"single": "single_object", "single_object": "single"}

# A word with signs that belong to the name: C++, C#, A+, A- at its end, a sign before a number.
_PIECES = re.compile(r"(?:(?<!\S)[-+](?=\d))?[^\W_]+(?:['\u2019][^\W_]+)*(?:[+#]+|-(?!\S))?", re.UNICODE)
_POSSESSIVE = re.compile(r"['\u2019]s$")
_OUTER = " \t\"'\u2018\u2019\u201c\u201d,;:.!?()[]{}"
# Legal forms at the end of a company's name, which are often left out. Two-letter forms (AG, SA, AB, AS) are
# missing, because they are too often names themselves.
_LEGAL_FORMS = frozenset(
    "inc incorporated corp corporation company ltd limited llc llp plc gmbh sarl pty".split()
)
_STOP_WORDS = frozenset("the of and for at in on to from by with de la le el der die das".split())


def key(surface: str) -> str:
    """Return the key of a name, ignoring case, width, spacing and outer punctuation: equal keys, one name.

    "acme" and "ACME." are one name; "C" and "C++", "Room 1" and "Room -1" are not.
    """
    return _read(surface)[0]


def tokens(surface: str) -> tuple[str, ...]:
    """Return the telling tokens of a name, in order: without legal forms at its end and stop words."""
    return _read(surface)[1]


@lru_cache(maxsize=16_384)
def _read(surface: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the key of a name, its telling tokens, and all its words."""
    text = folded(surface)
    words = text.split()
    if "".join(words).isalnum():  # letters, digits and spaces alone, as most names are
        name, pieces = " ".join(words), tuple(words)
    else:
        words = [word.rstrip(".,;:") or word for word in text.strip(_OUTER).split()]
        name, pieces = " ".join(words) or text.strip(), _pieces(text)
    telling = pieces
    while len(telling) > 1 and telling[-1] in _LEGAL_FORMS:
        telling = telling[:-1]
    if not _STOP_WORDS.isdisjoint(telling):
        telling = (*(p for p in telling[:-1] if p not in _STOP_WORDS), telling[-1])
    return name, telling or (name,), pieces


def _pieces(text: str) -> tuple[str, ...]:
    first_part, comma, last_part = text.partition(",")
    if comma and "," not in last_part and last_part.strip() and last_part.strip(" .") not in _LEGAL_FORMS:
        first_part, last_part = last_part, first_part  # "Webb, Marcus" is "Marcus Webb"
    return tuple(_POSSESSIVE.sub("", piece) for piece in _PIECES.findall(f"{first_part} {last_part}"))


def digits(surface: str) -> frozenset[str]:
    """Return the tokens with a digit; names where these differ are never the same (R15)."""
    return frozenset(t for t in tokens(surface) if any(c.isdigit() for c in t))


def _expands(new: str, old: str) -> bool:
    """Return whether each token of `old` begins a token of `new`, in order: M. Webb, Marcus Webb (R16)."""
    if sum(map(str.isalpha, new)) <= sum(map(str.isalpha, old)):
        return False
    later = iter(_read(new)[2])
    return all(any(candidate.startswith(token) for candidate in later) for token in _read(old)[2])


def spellings(surface: str) -> set[tuple[str, ...]]:
    """Return the words whose letters an acronym may take: with and without legal form and stop words."""
    _, telling, pieces = _read(surface)
    spelled = {telling, pieces}
    if not _STOP_WORDS.isdisjoint(pieces):
        spelled.add(tuple(p for p in pieces if p not in _STOP_WORDS))
    if len(pieces) > 2 and len(pieces[-1]) <= 3:
        spelled.add(pieces[:-1])  # a legal form such as AG
    spelled.discard(())
    return spelled


def folded(surface: str) -> str:
    """Return a text without case, width and accents."""
    if surface.isascii():
        return surface.lower()
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", surface).casefold())
    return "".join(c for c in apart if not unicodedata.combining(c))


@dataclass(slots=True)
class EntityNote:
    """An entity as derived from its mentions, which are taken in order of place.

    surfaces: surface -> the recorded entity that it was first resolved to, oldest first. New mentions of it
    are recorded with that entity, so that undoing a merge gives them back (R16).
    """

    id: str
    born: Place
    name: str = ""
    surfaces: dict[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    card: str = ""
    keys: tuple[str, ...] = ()  # the surfaces that are keys of records
    count: int = 0  # of its mentions
    # Key of a name that code cannot match -> at most CONFIRMING_ANSWERS episodes where a model resolved it to
    # this entity (R14a).
    answered: dict[str, tuple[int, ...]] = field(default_factory=dict)
    certain: frozenset[str] = frozenset()  # keys of names that need no confirmation, besides its first name

    def take(self, mention: Mention) -> bool:
        """Add the next mention; return whether the entity shows differently after it."""
        self.count += 1
        surface = mention.surface
        if self.surfaces and (mention.resolved_by != "name" or mention.entity != self.id):
            self._take_resolution(mention)
        fresh = surface not in self.surfaces
        changed = fresh
        if fresh:
            self.surfaces[surface] = mention.entity
            if not self.name:
                self.name = surface
                self.card = card(surface, mention.type, mention.sentence)
            # A key is shown only where there is no name.
            elif not mention.key and (self.name in self.keys or _expands(surface, self.name)):
                self.name = surface
        if mention.key and surface not in self.keys:
            self.keys = (*self.keys, surface)
        if mention.type and mention.type not in self.labels:
            self.labels = tuple(sorted((*self.labels, mention.type)))
            changed = True
        return changed

    def _take_resolution(self, mention: Mention) -> None:
        first = next(iter(self.surfaces))
        if mention.surface == first:
            return
        name = key(mention.surface)
        if name in self.certain or name == key(first):
            return
        if mention.resolved_by == "code" or mention.entity != self.id:
            self.certain |= {name}  # code matched this name, or a person merged it
        elif mention.resolved_by == "model":
            episodes = self.answered.get(name, ())
            if mention.sequence not in episodes and len(episodes) < CONFIRMING_ANSWERS:
                self.answered[name] = (*episodes, mention.sequence)

    def is_confirmed(self, surface: str) -> bool:
        """Return whether a name needs no further answer; an alias with a single answer does (R14a)."""
        name = key(surface)
        return name in self.certain or len(self.answered.get(name, ())) != 1

    def shown(self) -> Entity:
        """Return the entity as it shows."""
        aliases = tuple(sorted(s for s in self.surfaces if s != self.name))
        return Entity(id=self.id, name=self.name, aliases=aliases, labels=self.labels, born=self.born)


def card(name: str, label: str, sentence: str) -> str:
    """Return the text that describes an entity to a model; it never changes (R21)."""
    kind = f" ({label})" if label else ""
    return f"{name}{kind}: {sentence}" if sentence else f"{name}{kind}"


def connected(operations: Sequence[Operation], entities: Iterable[str]) -> set[str]:
    """Return these entities and all that merges, splits and their kind connect with them."""
    entity_ids, size = set(entities), -1
    while len(entity_ids) > size:
        size = len(entity_ids)
        for operation in operations:
            ids = {*operation.entities, operation.made} - {""}
            if ids & entity_ids:
                entity_ids |= ids
    return entity_ids


class Fold:
    """The merges and splits in force, as a function from recorded entity to shown entity."""

    def __init__(
        self, operations: Sequence[Operation], births: Mapping[str, Place], recorded: Mapping[int, Instant]
    ) -> None:
        undone = {o.target for o in operations if o.kind == "undo"}
        self._births = births
        self._recorded = recorded
        # The merges, splits and distinctions that were not undone, in order.
        self.in_force = [o for o in operations if o.kind != "undo" and o.sequence not in undone]
        self._returned = {
            o.made: o.entities[0]
            for o in operations
            if o.kind == "split" and o.minted and o.sequence in undone
        }
        self._made_at = {o.made: o.sequence for o in self.in_force if o.kind == "split"}
        self._apart: dict[frozenset[str], int] = {}  # entities as they show now -> the distinction
        for distinction in (step for step in self.in_force if step.kind == "distinct"):
            ids = set(distinction.entities)
            for step in self.in_force:
                if step.kind == "merge" and step.sequence > distinction.sequence and ids & {*step.entities}:
                    ids = ids - {*step.entities} | {self.first_born(step.entities)}
            self._apart[frozenset(ids)] = distinction.sequence
        self._involved = {i for o in operations for i in (*o.entities, o.made) if i}

    def involves(self, entity: str) -> bool:
        """Return whether a correction names the entity; without a correction it shows as itself."""
        return entity in self._involved

    def shown(self, entity: str, surface: str, sequence: int) -> tuple[str, Instant]:
        """Return the entity a mention shows as, and the record time of its last move (0 = none)."""
        if entity not in self._involved:
            return entity, 0
        current, moved_at = entity, 0
        while current in self._returned:
            current = self._returned[current]
        # A mention recorded after the split that made its entity was resolved with earlier steps in force.
        made_at = self._made_at.get(entity, 0)
        settled = made_at if sequence > made_at else 0
        for step in self.in_force:
            if step.sequence <= settled or current not in step.entities:
                continue
            if step.kind == "merge":
                target = self.first_born(step.entities)
            elif sequence < step.sequence and key(surface) in step.moved:
                # Only earlier mentions move: later ones were resolved with the split in force.
                target = step.made
            else:
                continue
            if target != current:
                current, moved_at = target, self._recorded[step.sequence]
        return current, moved_at

    def are_apart(self, a: str, b: str) -> bool:
        """Return whether a person declared that these shown entities are distinct."""
        return bool(self._apart) and frozenset((a, b)) in self._apart

    def check_together(self, operation: Operation, shown_ids: Iterable[str]) -> None:
        """Raise InputError for a merge, or another distinction, of two entities that are held apart."""
        apart = self._apart.get(frozenset(shown_ids))
        if apart is not None:
            todo = f"undo {apart} first" if operation.kind == "merge" else "nothing is left to say"
            raise InputError(f"distinct {apart} says that these two are not one: {todo}.")

    def first_born(self, entities: Sequence[str]) -> str:
        """Return the id born first: a merged entity shows under it."""
        return min(entities, key=lambda i: (self._births[i], i))

    def check_undo(self, target: int) -> Operation:
        """Return the operation with the sequence `target`; raise InputError if it cannot be undone now."""
        step = next((step for step in self.in_force if step.sequence == target), None)
        if step is None:
            raise InputError(
                f"{target} is not the sequence of a merge, split or distinction in force: nothing to undo."
            )
        touched = {*step.entities, step.made}
        for later in self.in_force:
            if "distinct" in (step.kind, later.kind) and step.made not in later.entities:
                continue  # the two do not depend on each other, as both entities exist without the split
            if later.sequence > target and touched & {*later.entities, later.made}:
                raise InputError(
                    f"{later.kind} {later.sequence} rests on {target}: undo {later.sequence} first."
                )
        return step


class Folded(NamedTuple):
    """The name that a relation name shows as, and whether its ends are swapped."""

    name: str
    flipped: bool
    declared_at: Instant  # record time of the last declaration needed to fold it; 0 = it shows as itself


@dataclass(frozen=True, slots=True)
class Traits:
    """The declared properties of a class of names, with subject and object in the order of the shown name."""

    cardinality: str | None  # None = not declared: counts as many-valued
    cardinality_since: Instant
    symmetric: bool
    # shown name -> record time of the last declaration that it needs; of several reasons, the earliest time
    excludes: dict[str, Instant]


class Relations:
    """The relation names that a group's live evidence uses, and the declarations about names (R17)."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._aspects: dict[tuple[str, str], list[tuple[Declaration, Instant]]] = {}  # all, by place
        self._pairs: dict[frozenset[str], tuple[Declaration, Instant]] = {}
        self._partners: dict[str, set[str]] = {}  # name -> its partners in declared pairs
        self._folded: dict[str, Folded] = {}
        self._traits: dict[str, Traits] = {}

    def use(self, name: str) -> None:
        """Note that live evidence uses a name."""
        self._used.add(name)

    def declare(self, declaration: Declaration, recorded: Instant) -> None:
        """Take a declaration; the newest by place holds, for each aspect and each pair of names."""
        place = (declaration.sequence, declaration.ordinal)
        if declaration.aspect != "listed":
            self._traits.clear()
        if declaration.aspect != "pair":
            history = self._aspects.setdefault((declaration.name, declaration.aspect), [])
            history.append((declaration, recorded))
            history.sort(key=lambda item: (item[0].sequence, item[0].ordinal))
            return
        pair = frozenset((declaration.name, declaration.other))
        current = self._pairs.get(pair)
        if current is not None and (current[0].sequence, current[0].ordinal) > place:
            return
        if current is not None and (current[0].value, current[0].name) == (
            declaration.value,
            declaration.name,
        ):
            recorded = current[1]  # a repetition changes nothing (R2)
        if declaration.value in FOLDS or (current is not None and current[0].value in FOLDS):
            self._folded.clear()  # new groups declare something with most episodes: names that fold are few
        self._pairs[pair] = (declaration, recorded)
        self._partners.setdefault(declaration.name, set()).add(declaration.other)
        self._partners.setdefault(declaration.other, set()).add(declaration.name)

    def copy(self) -> Relations:
        """Return an independent copy, to try declarations on."""
        twin = Relations()
        twin._used = set(self._used)
        twin._aspects = {key: list(history) for key, history in self._aspects.items()}
        twin._pairs = dict(self._pairs)
        twin._partners = {name: set(partners) for name, partners in self._partners.items()}
        return twin

    def names(self) -> list[str]:
        """Return the names in use, sorted."""
        return sorted(self._used)

    def is_listed(self, name: str) -> bool:
        """Return whether the ontology lists the name, as far as it is recorded."""
        declared = self.aspect(name, "listed")
        return declared is not None and declared.value == "yes"

    def pair(self, a: str, b: str) -> Declaration | None:
        """Return the declaration on two names, in either order."""
        current = self._pairs.get(frozenset((a, b)))
        return current[0] if current else None

    def aspect(self, name: str, aspect: str) -> Declaration | None:
        """Return the declaration in force on one aspect of a name."""
        history = self._aspects.get((name, aspect))
        return history[-1][0] if history else None

    def refolded(self, declarations: Sequence[Declaration], recorded: Instant) -> bool:
        """Return whether these declarations would change the statements of the names in use."""
        if not any(d.aspect in ("symmetric", "listed", "pair") for d in declarations):
            return False
        trial = self.copy()
        for declaration in declarations:
            trial.declare(declaration, recorded)
        for name in self._used:
            old, new = self.folded(name), trial.folded(name)
            if old[:2] != new[:2] or self.is_listed(name) != trial.is_listed(name):
                return True
            if self.traits(old.name).symmetric != trial.traits(new.name).symmetric:
                return True
        return False

    def in_force(self) -> list[Declaration]:
        """Return the declarations in force, oldest first."""
        newest = [history[-1][0] for history in self._aspects.values()]
        newest += [declaration for declaration, _ in self._pairs.values()]
        return sorted(newest, key=lambda d: (d.sequence, d.ordinal))

    def folded(self, name: str) -> Folded:
        """Return the main name that declared synonyms and inverses lead to; an undeclared name stays."""
        folded_name = self._folded.get(name)
        if folded_name is None:
            main_name, flipped, declared_at, visited = name, False, 0, {name}
            while (step := self._step(main_name)) is not None and step[0] not in visited:
                main_name, is_inverse, recorded = step
                visited.add(main_name)
                flipped, declared_at = flipped != is_inverse, max(declared_at, recorded)
            folded_name = self._folded[name] = Folded(main_name, flipped, declared_at)
        return folded_name

    def _step(self, name: str) -> tuple[str, bool, Instant] | None:
        """Return (the name that this name is declared to mean, whether as its inverse, record time)."""
        pairs = [self._pairs[frozenset((name, partner))] for partner in self._partners.get(name, ())]
        folds = [(d, recorded) for d, recorded in pairs if d.name == name and d.value in FOLDS]
        if not folds:
            return None
        declaration, recorded = max(folds, key=lambda item: (item[0].sequence, item[0].ordinal))
        return declaration.other, declaration.value == "inverse_of", recorded

    def traits(self, main_name: str) -> Traits:
        """Return the declared properties of the class of names that shows as `main_name`."""
        traits = self._traits.get(main_name)
        if traits is None:
            members = self._members(main_name)
            cardinality, declared_at = self._cardinality(members)
            latest = [
                ((d.sequence, d.ordinal), d.value == "yes")
                for member in members
                for d, _ in self._aspects.get((member, "symmetric"), ())[-1:]
            ]
            is_symmetric = max(latest)[1] if latest else False
            traits = Traits(cardinality, declared_at, is_symmetric, self._excluded(main_name, members))
            self._traits[main_name] = traits
        return traits

    def _members(self, main_name: str) -> dict[str, Folded]:
        """Return the names that fold to a main name, itself included."""
        members = {main_name: self.folded(main_name)}
        waiting = [main_name]
        for member in waiting:  # which grows
            for partner in self._partners.get(member, ()):
                if partner not in members and self.folded(partner).name == main_name:
                    members[partner] = self.folded(partner)
                    waiting.append(partner)
        return members

    def _cardinality(self, members: Mapping[str, Folded]) -> tuple[str | None, Instant]:
        """Return the newest declared cardinality, and since when it is declared without a break."""
        declared = sorted(
            ((d.sequence, d.ordinal), as_flipped(d.value) if flipped else d.value, recorded)
            for member, (_, flipped, _) in members.items()
            for d, recorded in self._aspects.get((member, "cardinality"), ())
        )
        if not declared or declared[-1][1] == UNKNOWN:
            return None, 0
        # A repetition of the declaration in force changes nothing, so the earlier time counts (R2).
        newest = declared[-1][1]
        repetitions = itertools.takewhile(lambda item: item[1] == newest, reversed(declared))
        return newest, min(recorded for _, _, recorded in repetitions)

    def _excluded(self, main_name: str, members: Mapping[str, Folded]) -> dict[str, Instant]:
        """Return the names that exclude a class, with the record time of the last declaration needed."""
        excluded: dict[str, Instant] = {}
        for member, (_, _, member_since) in members.items():
            for partner in self._partners.get(member, ()):
                declaration, recorded = self._pairs[frozenset((member, partner))]
                rival, _, rival_since = self.folded(partner)
                if declaration.value == "excludes" and rival != main_name:
                    needed = max(recorded, rival_since, member_since)
                    excluded[rival] = min(needed, excluded.get(rival, needed))
        return excluded


def as_flipped(cardinality: str) -> str:
    """Return the cardinality of the inverse relation."""
    return _FLIPPED.get(cardinality, cardinality)
