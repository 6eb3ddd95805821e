"""The relations of a world: their ends, how many objects each takes, and the words that tell them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from kgray.records import Value

Kind = Literal["Person", "Organization", "Place", "Product", "Project"]
Shape = Literal["single", "many", "event"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One relation of the world.

    shape    single: one object at a time · many: any number · event: happens at a time, and stays true
    objects  the kind of its objects; () = values
    weight   how often it is spoken of
    words    base, third person, past, participle: "work at", "works at", "worked at", "worked at"
    """

    name: str
    shape: Shape
    subject: Kind
    object: Kind | None
    weight: float
    words: tuple[str, str, str, str]

    @property
    def cardinality(self) -> str:
        """What a reader of the world rules on it (R17)."""
        return "single" if self.shape == "single" else "many"


def _relation(name: str, shape: Shape, ends: tuple[Kind, Kind | None], weight: float, words: str) -> Relation:
    base, third, past, participle = words.split(" | ")
    return Relation(
        name=name,
        shape=shape,
        subject=ends[0],
        object=ends[1],
        weight=weight,
        words=(base, third, past, participle),
    )


# SPONSORED_BY and BOUGHT are in no shipped ontology: what they are must be asked (R17).
RELATIONS: Mapping[str, Relation] = MappingProxyType(
    {
        relation.name: relation
        for relation in (
            _relation(
                "WORKS_AT",
                "single",
                ("Person", "Organization"),
                4,
                "work at | works at | worked at | worked at",
            ),
            _relation(
                "LIVES_IN", "single", ("Person", "Place"), 3, "live in | lives in | lived in | lived in"
            ),
            _relation(
                "REPORTS_TO",
                "single",
                ("Person", "Person"),
                2,
                "report to | reports to | reported to | reported to",
            ),
            _relation("HAS_STATUS", "single", ("Project", None), 3, "be | is | was | been"),
            _relation("COSTS", "single", ("Product", None), 3, "cost | costs | cost | cost"),
            _relation(
                "SPONSORED_BY",
                "single",
                ("Project", "Organization"),
                1,
                "be sponsored by | is sponsored by | was sponsored by | been sponsored by",
            ),
            _relation("LIKES", "many", ("Person", "Product"), 3, "like | likes | liked | liked"),
            _relation("KNOWS", "many", ("Person", "Person"), 1.5, "know | knows | knew | known"),
            _relation("USES", "many", ("Person", "Product"), 2, "use | uses | used | used"),
            _relation("BOUGHT", "event", ("Person", "Product"), 2, "buy | buys | bought | bought"),
            _relation("VISITED", "event", ("Person", "Place"), 2, "visit | visits | visited | visited"),
        )
    }
)

STATUSES = ("planned", "on track", "delayed", "blocked", "in review", "approved", "cancelled", "complete")


def values_of(relation: Relation, number: int) -> Value:
    """Return one of the values that the relation can take, by number."""
    if relation.name == "COSTS":
        return Value("number", str(20 + 5 * (number % 400)), "EUR")
    return Value("text", STATUSES[number % len(STATUSES)])
