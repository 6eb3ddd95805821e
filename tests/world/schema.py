"""The relations of a world: their ends, how many objects each takes, and the words that tell them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from kgray.domain.records import Value

ThingKind = Literal["Person", "Organization", "Place", "Product", "Project"]
RelationShape = Literal["single", "many", "event"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One relation of the world.

    shape    single: one object at a time · many: any number · event: happens at a time, and stays true
    objects  the kind of its objects; () = values
    weight   how often it is spoken of
    words    base, third person, past, participle: "work at", "works at", "worked at", "worked at"
    symmetric  it can be told from either end; its subject is a person whom `leads` names
    """

    name: str
    shape: RelationShape
    subject: ThingKind
    object: ThingKind | None
    weight: float
    words: tuple[str, str, str, str]
    symmetric: bool = False


# name, shape, subject, object (- = a value), weight, words.
# SPONSORED_BY is in no shipped ontology: only comparisons show that a project has one sponsor at a time.
_COMMON = """
    WORKS_AT      single  Person   Organization  4    work at, works at, worked at, worked at
    LIVES_IN      single  Person   Place         3    live in, lives in, lived in, lived in
    REPORTS_TO    single  Person   Person        2    report to, reports to, reported to, reported to
    HAS_STATUS    single  Project  -             3    be, is, was, been
    COSTS         single  Product  -             3    cost, costs, cost, cost
    SPONSORED_BY  single  Project  Organization  1    be sponsored by, is sponsored by, \
                                                      was sponsored by, been sponsored by
    LIKES         many    Person   Product       3    like, likes, liked, liked
    KNOWS         many    Person   Person        1.5  know, knows, knew, known
    USES          many    Person   Product       2    use, uses, used, used
    BOUGHT        event   Person   Product       2    buy, buys, bought, bought
    VISITED       event   Person   Place         2    visit, visits, visited, visited
"""
# Relations of a world with free names: "sold" and "divorced" need states that they end.
_ENDABLE = """
    OWNS          many    Person   Product       2    own, owns, owned, owned
    MARRIED_TO    single  Person   Person        2    be married to, is married to, \
                                                      was married to, been married to
"""


def _relation(row: str) -> Relation:
    name, shape, subject, target, weight, words = row.split(maxsplit=5)
    base, third, past, participle = (word.strip() for word in words.split(","))
    return Relation(
        name=name,
        shape=shape,  # type: ignore[arg-type]
        subject=subject,  # type: ignore[arg-type]
        object=None if target == "-" else target,  # type: ignore[arg-type]
        weight=float(weight),
        words=(base, third, past, participle),
        symmetric=name == "MARRIED_TO",
    )


def _relations(rows: str) -> dict[str, Relation]:
    return {relation.name: relation for relation in map(_relation, rows.strip().splitlines())}


COMMON_RELATIONS: Mapping[str, Relation] = MappingProxyType(_relations(_COMMON))  # of every world
RELATIONS: Mapping[str, Relation] = MappingProxyType({**COMMON_RELATIONS, **_relations(_ENDABLE)})
STATUSES = ("planned", "on track", "delayed", "blocked", "in review", "approved", "cancelled", "complete")


def values_of(relation: Relation, number: int) -> Value:
    """Return one of the values that the relation can take, by number."""
    if relation.name == "COSTS":
        return Value("number", str(20 + 5 * (number % 400)), "EUR")
    return Value("text", STATUSES[number % len(STATUSES)])


# Every fourth person is the subject of symmetric relations, with the persons behind it as objects: no
# person is another person's object, so that a marriage never ends a marriage of its object.
_CIRCLE = 4


def leads(person: str) -> bool:
    """Return whether a person, by id, is the subject of symmetric relations."""
    return int(person.rpartition("-")[2]) % _CIRCLE == 0


def follows(person: str, leader: str) -> bool:
    """Return whether a person can be the object of a leader's symmetric relations; both by id."""
    return 0 < int(person.rpartition("-")[2]) - int(leader.rpartition("-")[2]) < _CIRCLE
