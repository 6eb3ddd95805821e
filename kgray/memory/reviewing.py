"""Entities that may be one: for a person who says which are (merge) and which are not (distinct) (R16)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from kgray import rows
from kgray.derivation.names import EntityNote
from kgray.derivation.names import digits as digits_of
from kgray.errors import InputError
from kgray.ingest.candidates import Likeness, code_match, likeness
from kgray.ingest.resolve import NAME_FLOOR
from kgray.ingest.state import GroupState
from kgray.kinds import ALL
from kgray.ports import Embedder, Store

_NEAREST = 6  # names near a name by vector: itself, and some others
# What a likeness of names counts for; one of several likenesses, the highest, is told. Where both have the
# same neighbour it counts for more. A cosine counts as it is, below all others that are surer.
_COUNTS: dict[Likeness, tuple[float, str]] = {
    "equal": (0.9, "the same name"),
    "initials": (0.8, "initials or short forms of the same words"),
    "subset": (0.65, "one name holds the other"),
    "acronym": (0.6, "one name is a code for the other"),
    "surname": (0.5, "the same last name"),
}
_SHARED = 0.05  # for each of at most two shared neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyPair:
    """Two entities that may be one. a: born first; score: from 0 to 1, an order and no probability."""

    a: str
    b: str
    names: tuple[str, str]
    why: str
    score: float

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self) | {"names": list(self.names), "score": round(self.score, 3)}


def likely_pairs(store: Store, group: str, embedder: Embedder, limit: int) -> list[LikelyPair]:
    """Return pairs of entities that may be one, the likeliest first; those that are held apart are left out.

    Found by the look-ups that resolve a mention: shared words, initials, codes, near vectors. Names whose
    digits differ are no pair (R15). Costs a look-up for each name of the group.
    """
    if limit < 1:
        raise InputError(f"limit is {limit!r}: use 1 or more", field="limit")
    state = GroupState.load(store, group, embedder.dimensions)
    vectors = {row[:2]: rows.as_vector(row[-1]) for row in store.rows(ALL["name_vectors"], group)}
    neighbours = defaultdict[str, set[str]](set)
    for statement in state.graph.statements.values():
        if statement.object is not None:
            neighbours[statement.subject].add(statement.object)
            neighbours[statement.object].add(statement.subject)
    found: dict[tuple[str, str], LikelyPair] = {}
    for note in state.graph.entities.values():
        for other, score, why in _alike(state, note, vectors):
            first, second = sorted((note, other), key=lambda n: (n.born, n.id))
            if first.id == second.id or state.graph.fold.are_apart(first.id, second.id):
                continue
            shared = sorted(neighbours[first.id] & neighbours[second.id])[:2]
            known = [state.graph.entities[s].name for s in shared if s in state.graph.entities]
            pair = LikelyPair(
                a=first.id,
                b=second.id,
                names=(first.name, second.name),
                why="; ".join([why, *(f"both are tied to {name}" for name in known)]),
                score=min(1.0, score + _SHARED * len(known)),
            )
            before = found.get((pair.a, pair.b))
            if before is None or before.score < pair.score:
                found[pair.a, pair.b] = pair
    return sorted(found.values(), key=lambda pair: (-pair.score, pair.a, pair.b))[:limit]


def _alike(
    state: GroupState, note: EntityNote, vectors: dict[tuple[str, str], Any]
) -> Iterator[tuple[EntityNote, float, str]]:
    """Yield the other entities that are alike, each with a score and the reason."""
    for surface, owner in note.surfaces.items():
        match = code_match(surface)
        for id_ in dict.fromkeys((*state.names.near(surface), *state.names.coded(surface))):
            other = state.graph.entities.get(id_)
            if other is None or other.id == note.id or not _may_be_one(note, other):
                continue
            how = likeness(surface, other.name)
            if how is None and any(match(name) is not None for name in other.surfaces):
                how = "acronym"
            if how is not None and (how != "surname" or "Person" in (*note.labels, *other.labels)):
                yield other, *_COUNTS[how]
        vector = vectors.get((owner, surface))
        if vector is not None:
            for cosine, id_ in state.near_scored(vector, NAME_FLOOR, _NEAREST):
                other = state.graph.entities[id_]
                if other.id != note.id and _may_be_one(note, other):
                    yield other, 0.5 * cosine, f"names of like spelling or meaning (cosine {cosine:.2f})"


def _may_be_one(note: EntityNote, other: EntityNote) -> bool:
    """Whether types and digits do not exclude it."""
    types_agree = not note.labels or not other.labels or not set(note.labels).isdisjoint(other.labels)
    return types_agree and digits_of(note.name) == digits_of(other.name)
