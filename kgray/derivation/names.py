"""Names, and the entities that bear them, through merges and splits (R15, R16, R21).

An operation names entities as they showed when it was recorded. A mention keeps the id that it was resolved
to; the entity it shows as follows by applying the operations in force, in order. So undoing one gives its
mentions back, later ones of the same surface included, and no id ever changes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from kgray.errors import InputError
from kgray.graph import Entity
from kgray.records import Mention, Operation, Place
from kgray.times import Instant

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


def strictly_expands(new: str, old: str) -> bool:
    """Whether each token of `old` equals or begins one of `new`, in order, and that has more letters (R16).

    "M. Webb" -> "Marcus Webb", never "Aero phone" -> "phone from Aero".
    """
    if _letters(new) <= _letters(old):
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


def _letters(surface: str) -> int:
    return sum(c.isalpha() for c in surface)


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
            elif not mention.key and (self.name in self.keys or strictly_expands(mention.surface, self.name)):
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
        self._apart = {
            frozenset(self._since(i, step.sequence) for i in step.entities): step.sequence
            for step in self.in_force
            if step.kind == "distinct"
        }
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

    def _since(self, entity: str, sequence: int) -> str:
        """Return what an entity that showed at `sequence` shows as now."""
        for step in self.in_force:
            if step.kind == "merge" and step.sequence > sequence and entity in step.entities:
                entity = self.first_born(step.entities)
        return entity

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
        """Return the operation with sequence `target`, if it can be undone now.

        Raises InputError where no such operation is in force, or a later one depends on it.
        """
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
