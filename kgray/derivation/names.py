"""Names, and what bears them: entities through merges and splits (R15, R16, R21), relations by rulings (R17).

An operation names entities as they showed when it was recorded. A mention keeps the id that it was resolved
to; the entity it shows as follows by applying the operations in force, in order. So undoing one gives its
mentions back, later ones of the same surface included, and no id ever changes. A relation keeps the name it
was said by, and shows as the one of its class that was used first.
"""

from __future__ import annotations

import heapq
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from kgray.errors import InputError
from kgray.graph import Entity
from kgray.records import Mention, Operation, Place, Ruling
from kgray.times import Instant

UNKNOWN = "unknown"  # a cardinality that the ontology declared once and no longer does
FOLDS = frozenset({"same_as", "inverse_of"})  # rulings on two names that show them as one
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


@lru_cache(maxsize=16_384)
def key(surface: str) -> str:
    """Return the key of a name, ignoring case, width, spacing and outer punctuation: equal keys, one name.

    "acme" and "ACME." are one name; "C" and "C++", "Room 1" and "Room -1" are not.
    """
    text = folded(surface)
    if plain := _plain(text):
        return " ".join(plain)
    return " ".join(word.rstrip(".,;:") or word for word in text.strip(_OUTER).split()) or text.strip()


def _plain(text: str) -> list[str] | None:
    """Return the words of a text of letters, digits and spaces alone, as most names are; else None."""
    words = text.split()
    return words if all(map(str.isalnum, words)) else None


@lru_cache(maxsize=16_384)
def tokens(surface: str) -> tuple[str, ...]:
    """Return the telling tokens of a name, in order: without legal forms at its end and stop words."""
    pieces = _pieces(surface)
    while len(pieces) > 1 and pieces[-1] in _LEGAL_FORMS:
        pieces = pieces[:-1]
    if not _STOP_WORDS.isdisjoint(pieces):
        pieces = (*(p for p in pieces[:-1] if p not in _STOP_WORDS), pieces[-1])
    return pieces or (key(surface),)


def digits(surface: str) -> frozenset[str]:
    """Return the tokens with a digit; names where these differ are never the same (R15)."""
    return frozenset(t for t in tokens(surface) if any(c.isdigit() for c in t))


def _expands(new: str, old: str) -> bool:
    """Whether the tokens of `old` begin tokens of `new`, in order: M. Webb, Marcus Webb (R16)."""
    if sum(map(str.isalpha, new)) <= sum(map(str.isalpha, old)):
        return False
    later = iter(_pieces(new))
    return all(any(candidate.startswith(token) for candidate in later) for token in _pieces(old))


def spellings(surface: str) -> set[tuple[str, ...]]:
    """Return the words whose letters an acronym may take: with and without legal form and stop words."""
    pieces = _pieces(surface)
    found = {tokens(surface), pieces}
    if not _STOP_WORDS.isdisjoint(pieces):
        found.add(tuple(p for p in pieces if p not in _STOP_WORDS))
    if len(pieces) > 2 and len(pieces[-1]) <= 3:
        found.add(pieces[:-1])  # a legal form such as AG
    return found - {()}


@lru_cache(maxsize=16_384)
def _pieces(surface: str) -> tuple[str, ...]:
    text = folded(surface)
    if plain := _plain(text):
        return tuple(plain)
    before, comma, after = text.partition(",")
    if comma and "," not in after and after.strip() and after.strip(" .") not in _LEGAL_FORMS:
        before, after = after, before  # "Webb, Marcus" is "Marcus Webb"
    return tuple(_POSSESSIVE.sub("", piece) for piece in _PIECES.findall(f"{before} {after}"))


def folded(surface: str) -> str:
    """Return a text without case, width and accents."""
    if surface.isascii():
        return surface.lower()
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", surface).casefold())
    return "".join(c for c in apart if not unicodedata.combining(c))


@dataclass(slots=True)
class EntityNote:
    """An entity as derived from its mentions, which are taken in order of place.

    surfaces: surface -> the recorded entity it was first resolved to, oldest first: new mentions of it are
    recorded with that one, so that undoing a merge gives them back (R16).
    """

    id: str
    born: Place
    name: str = ""
    surfaces: dict[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    card: str = ""
    keys: tuple[str, ...] = ()  # the surfaces that are keys of records
    count: int = 0  # of its mentions

    def take(self, mention: Mention) -> bool:
        """Add the next mention; return whether the entity shows differently after it."""
        self.count += 1
        fresh = mention.surface not in self.surfaces
        changed = fresh
        if fresh:
            self.surfaces[mention.surface] = mention.entity
            if not self.name:
                self.name = mention.surface
                self.card = card(mention.surface, mention.type, mention.sentence)
            # A key is shown only where there is no name.
            elif not mention.key and (self.name in self.keys or _expands(mention.surface, self.name)):
                self.name = mention.surface
        if mention.key and mention.surface not in self.keys:
            self.keys = (*self.keys, mention.surface)
        if mention.type and mention.type not in self.labels:
            self.labels = tuple(sorted((*self.labels, mention.type)))
            changed = True
        return changed

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
    found, size = set(entities), -1
    while len(found) > size:
        size = len(found)
        for operation in operations:
            ids = {*operation.entities, operation.made} - {""}
            if ids & found:
                found |= ids
    return found


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
        for said in (step for step in self.in_force if step.kind == "distinct"):
            ids = set(said.entities)
            for step in self.in_force:
                if step.kind == "merge" and step.sequence > said.sequence and ids & {*step.entities}:
                    ids = ids - {*step.entities} | {self.first_born(step.entities)}
            self._apart[frozenset(ids)] = said.sequence
        self._involved = {i for o in operations for i in (*o.entities, o.made) if i}

    def shown(self, entity: str, surface: str, sequence: int) -> tuple[str, Instant]:
        """Return the entity a mention shows as, and the record time of its last move (0 = none)."""
        if entity not in self._involved:
            return entity, 0
        current, since = entity, 0
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
                current, since = target, self._recorded[step.sequence]
        return current, since

    def are_apart(self, a: str, b: str) -> bool:
        """Whether a person said that these shown entities are not one."""
        return bool(self._apart) and frozenset((a, b)) in self._apart

    def check_together(self, operation: Operation, shown: Iterable[str]) -> None:
        """Raise InputError for a merge, or another distinction, of two entities that are held apart."""
        apart = self._apart.get(frozenset(shown))
        if apart is not None:
            todo = f"undo {apart} first" if operation.kind == "merge" else "nothing is left to say"
            raise InputError(f"distinct {apart} says that these two are not one: {todo}.")

    def first_born(self, entities: Sequence[str]) -> str:
        """Return the id born first: the one that a merged entity shows as."""
        return min(entities, key=lambda i: (self._births[i], i))

    def check_undo(self, target: int) -> Operation:
        """Return what the operation `target` did, if it can be undone now; else raises InputError."""
        step = next((step for step in self.in_force if step.sequence == target), None)
        if step is None:
            raise InputError(
                f"{target} is not the sequence of a merge, split or distinction in force: nothing to undo."
            )
        touched = {*step.entities, step.made}
        for later in self.in_force:
            if "distinct" in (step.kind, later.kind) and step.made not in later.entities:
                continue  # it says something of entities that are there without the other one too
            if later.sequence > target and touched & {*later.entities, later.made}:
                raise InputError(
                    f"{later.kind} {later.sequence} rests on {target}: undo {later.sequence} first."
                )
        return step


class Folded(NamedTuple):
    """What a name shows as: the name of its class that was used first, its ends swapped or not."""

    name: str
    flipped: bool
    since: Instant  # record time of the last ruling needed to fold it; 0 = it shows as itself


@dataclass(frozen=True, slots=True)
class Traits:
    """What the rulings say of a class of names, with subject and object as in the shown name."""

    cardinality: str | None  # None = no ruling: counts as many-valued
    cardinality_since: Instant
    cardinality_judge: str | None
    symmetric: bool
    # shown name -> record time of the last ruling needed for it; of several ways, by the one known first
    excludes: dict[str, Instant]


class Relations:
    """The relation names of a group, with their uses and the rulings on them."""

    def __init__(self) -> None:
        self._uses: dict[str, Place] = {}
        self._aspects: dict[tuple[str, str], list[tuple[Ruling, Instant]]] = {}  # all, by place
        self._pairs: dict[frozenset[str], tuple[Ruling, Instant]] = {}
        self._links: dict[str, dict[str, tuple[str, Instant]]] = {}  # name -> other -> (ruling, recorded)
        self._folded: dict[str, Folded] = {}
        self._traits: dict[str, Traits] = {}

    def use(self, name: str, place: Place) -> None:
        """Note that the evidence at `place` uses `name`; in any order."""
        known = self._uses.get(name)
        if known is None or place < known:
            self._uses[name] = place
            self._forget(name)

    def rule(self, ruling: Ruling, recorded: Instant) -> None:
        """Take a ruling; the newest by place holds, for each aspect and each pair of names."""
        place = (ruling.sequence, ruling.ordinal)
        if ruling.aspect != "pair":
            history = self._aspects.setdefault((ruling.name, ruling.aspect), [])
            history.append((ruling, recorded))
            history.sort(key=lambda item: (item[0].sequence, item[0].ordinal))
            self._forget(ruling.name)
            return
        pair = frozenset((ruling.name, ruling.other))
        held = self._pairs.get(pair)
        if held is not None and (held[0].sequence, held[0].ordinal) > place:
            return
        if held is not None and held[0].value == ruling.value:
            recorded = held[1]  # one that repeats the one in force changes nothing (R2)
        self._pairs[pair] = (ruling, recorded)
        self._links.setdefault(ruling.name, {})[ruling.other] = (ruling.value, recorded)
        self._links.setdefault(ruling.other, {})[ruling.name] = (ruling.value, recorded)
        if held is not None or ruling.value != "independent":
            self._folded.clear()
            self._traits.clear()

    def copy(self) -> Relations:
        """Return an independent copy, to try rulings on."""
        twin = Relations()
        twin._uses = dict(self._uses)
        twin._aspects = {key: list(history) for key, history in self._aspects.items()}
        twin._pairs = dict(self._pairs)
        twin._links = {name: dict(ties) for name, ties in self._links.items()}
        return twin

    def names(self) -> list[str]:
        """Return the names in use, oldest first."""
        return sorted(self._uses, key=lambda name: (self._uses[name], name))

    def in_use(self, name: str) -> bool:
        """Whether live evidence uses the name."""
        return name in self._uses

    def pair_ruling(self, a: str, b: str) -> Ruling | None:
        """Return the ruling on two names, in either order."""
        held = self._pairs.get(frozenset((a, b)))
        return held[0] if held else None

    def aspect(self, name: str, aspect: str) -> Ruling | None:
        """Return the ruling in force on one name's "cardinality" or "symmetric"."""
        history = self._aspects.get((name, aspect))
        return history[-1][0] if history else None

    def refolded(self, rulings: Sequence[Ruling], recorded: Instant) -> bool:
        """Whether these rulings would change how the names in use fold."""
        if not any(r.aspect == "symmetric" or r.value in FOLDS for r in rulings):
            return False
        trial = self.copy()
        for ruling in rulings:
            trial.rule(ruling, recorded)
        for name in self.names():
            old, new = self.folded(name), trial.folded(name)
            if old[:2] != new[:2] or self.traits(old.name).symmetric != trial.traits(new.name).symmetric:
                return True
        return False

    def declared(self) -> list[Ruling]:
        """Return the rulings in force that the ontology declared, oldest first."""
        newest = [history[-1][0] for history in self._aspects.values()]
        newest += [ruling for ruling, _ in self._pairs.values()]
        return sorted((r for r in newest if r.judge == "ontology"), key=lambda r: (r.sequence, r.ordinal))

    def folded(self, name: str) -> Folded:
        """Return what a name shows as: of those tied to it by same_as or inverse_of the one used first."""
        if name in self._folded:
            return self._folded[name]
        members = {name}
        waiting = [name]
        for known in waiting:  # which grows
            tied = (other for other, (value, _) in self._links.get(known, {}).items() if value in FOLDS)
            fresh = [other for other in tied if other not in members]
            members.update(fresh)
            waiting.extend(fresh)
        used = [n for n in members if n in self._uses]
        shown = min(used, key=lambda n: (self._uses[n], n), default=name)
        # Shortest paths from the shown name, by the latest record time on a path: so `since` is the last
        # ruling that a member needs to be folded, whichever name was asked about.
        paths: list[tuple[Instant, str, bool]] = [(0, shown, False)]
        while paths:
            since, member, flipped = heapq.heappop(paths)
            if member in self._folded and self._folded[member].name == shown:
                continue
            self._folded[member] = Folded(shown, flipped, since)
            for other, (value, recorded) in self._links.get(member, {}).items():
                if value in FOLDS:
                    heapq.heappush(paths, (max(since, recorded), other, flipped != (value == "inverse_of")))
        return self._folded[name]

    def traits(self, shown: str) -> Traits:
        """Return what holds of the class of names that shows as `shown`."""
        if shown in self._traits:
            return self._traits[shown]
        self.folded(shown)
        members = {n: f for n, f in sorted(self._folded.items()) if f.name == shown}
        said: list[tuple[Place, str, Instant, str]] = []
        symmetric: tuple[Place, bool] | None = None
        excluded: dict[str, Instant] = {}
        for member, (_, flipped, member_since) in members.items():
            for ruling, recorded in self._aspects.get((member, "cardinality"), ()):
                value = as_flipped(ruling.value) if flipped else ruling.value
                said.append(((ruling.sequence, ruling.ordinal), value, recorded, ruling.judge))
            for ruling, _ in self._aspects.get((member, "symmetric"), ())[-1:]:
                saying = ((ruling.sequence, ruling.ordinal), ruling.value == "yes")
                symmetric = max(symmetric, saying) if symmetric else saying
            for other, (value, recorded) in self._links.get(member, {}).items():
                rival, _, folded = self.folded(other)
                if value == "excludes" and rival != shown:
                    needed = max(recorded, folded, member_since)
                    excluded[rival] = min(needed, excluded.get(rival, needed))
        newest: str | None = None
        judge: str | None = None
        since = 0
        said.sort()
        if said and said[-1][1] != UNKNOWN:
            # One that repeats the one in force changes nothing, so the earlier counts as needed (R2).
            _, newest, _, judge = said[-1]
            same = itertools.takewhile(lambda one: one[1] == newest, reversed(said))
            since = min(recorded for _, _, recorded, _ in same)
        traits = Traits(newest, since, judge, bool(symmetric and symmetric[1]), excluded)
        self._traits[shown] = traits
        return traits

    def _forget(self, name: str) -> None:
        """Drop the cached results of `name`; all of them where it is tied to other names."""
        if any(value != "independent" for value, _ in self._links.get(name, {}).values()):
            self._folded.clear()
            self._traits.clear()
        else:
            self._folded.pop(name, None)
            self._traits.pop(name, None)


def as_flipped(cardinality: str) -> str:
    """Return what a cardinality says of the inverse relation."""
    return _FLIPPED.get(cardinality, cardinality)
