"""The names of relations in readings: the world's names, synonyms, the other direction, named ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kgray.domain.records import EvidenceKind, Value
from tests.world.dice import Dice
from tests.world.history import Act
from tests.world.plan import RelationNames
from tests.world.schema import RELATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationName:
    """One name of a relation.

    name      UPPER_SNAKE, as extractors write it
    relation  the world's relation that it is about
    words     base, third person, past, participle, as in schema.Relation
    reversed  the object of the world's relation comes first: EMPLOYS
    ends      it says that the relation is over: LEFT
    """

    name: str
    relation: str
    words: tuple[str, str, str, str]
    reversed: bool = False
    ends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """How a reader names one fact.

    swapped  the object of the world's relation comes first, by the name or because the relation is symmetric
    kind     the evidence that a named end is reported as; None = the kind of the act
    """

    name: RelationName
    swapped: bool = False
    kind: EvidenceKind | None = None


# relation, name, direction (> as the world's, < the object first, x the end of it), words.
_FREE = """
    WORKS_AT      WORKS_FOR            >  work for, works for, worked for, worked for
    WORKS_AT      IS_EMPLOYED_AT       >  be employed at, is employed at, was employed at, been employed at
    WORKS_AT      HAS_A_JOB_AT         >  have a job at, has a job at, had a job at, had a job at
    WORKS_AT      EMPLOYS              <  employ, employs, employed, employed
    WORKS_AT      GIVES_WORK_TO        <  give work to, gives work to, gave work to, given work to
    WORKS_AT      LEFT                 x  leave, leaves, left, left
    WORKS_AT      QUIT                 x  quit, quits, quit, quit
    WORKS_AT      RETIRED_FROM         x  retire from, retires from, retired from, retired from
    LIVES_IN      RESIDES_IN           >  reside in, resides in, resided in, resided in
    LIVES_IN      BASED_IN             >  be based in, is based in, was based in, been based in
    LIVES_IN      HAS_A_FLAT_IN        >  have a flat in, has a flat in, had a flat in, had a flat in
    LIVES_IN      IS_HOME_TO           <  be home to, is home to, was home to, been home to
    LIVES_IN      MOVED_FROM           x  move from, moves from, moved from, moved from
    LIVES_IN      MOVED_AWAY_FROM      x  move away from, moves away from, moved away from, moved away from
    REPORTS_TO    ANSWERS_TO           >  answer to, answers to, answered to, answered to
    REPORTS_TO    MANAGES              <  manage, manages, managed, managed
    REPORTS_TO    IS_IN_CHARGE_OF      <  be in charge of, is in charge of, was in charge of, \
                                          been in charge of
    HAS_STATUS    IS_MARKED_AS         >  be marked as, is marked as, was marked as, been marked as
    COSTS         HAS_PRICE            >  have the price, has the price, had the price, had the price
    COSTS         SELLS_FOR            >  sell for, sells for, sold for, sold for
    SPONSORED_BY  FUNDED_BY            >  be funded by, is funded by, was funded by, been funded by
    SPONSORED_BY  PAYS_FOR             <  pay for, pays for, paid for, paid for
    LIKES         ENJOYS               >  enjoy, enjoys, enjoyed, enjoyed
    LIKES         IS_FOND_OF           >  be fond of, is fond of, was fond of, been fond of
    KNOWS         IS_ACQUAINTED_WITH   >  be acquainted with, is acquainted with, was acquainted with, \
                                          been acquainted with
    USES          RELIES_ON            >  rely on, relies on, relied on, relied on
    USES          IS_USED_BY           <  be used by, is used by, was used by, been used by
    USES          STOPPED_USING        x  stop using, stops using, stopped using, stopped using
    BOUGHT        PURCHASED            >  purchase, purchases, purchased, purchased
    VISITED       TRAVELLED_TO         >  travel to, travels to, travelled to, travelled to
    OWNS          POSSESSES            >  possess, possesses, possessed, possessed
    OWNS          IS_THE_OWNER_OF      >  be the owner of, is the owner of, was the owner of, \
                                          been the owner of
    OWNS          OWNED_BY             <  be owned by, is owned by, was owned by, been owned by
    OWNS          BELONGS_TO           <  belong to, belongs to, belonged to, belonged to
    OWNS          SOLD                 x  sell, sells, sold, sold
    OWNS          GAVE_AWAY            x  give away, gives away, gave away, given away
    MARRIED_TO    SPOUSE_OF            >  be the spouse of, is the spouse of, was the spouse of, \
                                          been the spouse of
    MARRIED_TO    IS_WED_TO            >  be wed to, is wed to, was wed to, been wed to
    MARRIED_TO    DIVORCED             x  divorce, divorces, divorced, divorced
    MARRIED_TO    SEPARATED_FROM       x  separate from, separates from, separated from, separated from
"""
_END_RATE = 0.75  # of the ends that have a name of their own: by that name, not by "no longer works at"
# The relation of a named end in a language model's reply.
_END_KINDS: Mapping[EvidenceKind | None, float] = {"happened": 0.5, "ended": 0.35, "holds": 0.15}


def _free(row: str) -> RelationName:
    relation, name, direction, words = row.split(maxsplit=3)
    base, third, past, participle = (word.strip() for word in words.split(","))
    return RelationName(
        name=name,
        relation=relation,
        words=(base, third, past, participle),
        reversed=direction == "<",
        ends=direction == "x",
    )


NAMES: Mapping[str, RelationName] = MappingProxyType(
    {
        name.name: name
        for name in (
            *(RelationName(name=r.name, relation=r.name, words=r.words) for r in RELATIONS.values()),
            *map(_free, _FREE.strip().splitlines()),
        )
    }
)
_STATE_NAMES = {
    relation: [name for name in NAMES.values() if name.relation == relation and not name.ends]
    for relation in RELATIONS
}
_END_NAMES = {
    relation: [name for name in NAMES.values() if name.relation == relation and name.ends]
    for relation in RELATIONS
}
_State = tuple[str, str, str | Value]  # subject, relation, object


class Namer:
    """Names the facts of one group, one after another."""

    def __init__(self, seed: int, group: str, relations: RelationNames) -> None:
        """Start without any mentioned name."""
        self._seed, self._group, self._free = seed, group, relations == "free"
        self._open: set[_State] = set()  # stated states without a stated end

    def name(self, act: Act, episode: int, place: int) -> Naming:
        """Return how the fact at this place of an episode is named; call it once a fact, in order."""
        if not self._free:
            return Naming(name=NAMES[act.relation.name])
        dice = Dice(self._seed, "relation name", self._group, episode, place)
        target = act.object if isinstance(act.object, Value) else act.object.id
        state = (act.subject.id, act.relation.name, target)
        ends = _END_NAMES[act.relation.name]
        over = act.form in ("ended", "denied")
        # Nobody can tell from "Alice left Acme" alone since when she was there, or that she is not known to
        # have been there: only the end of a state that was told has a name of its own.
        named_end = act.form == "ended" and state in self._open and ends and dice.flip(_END_RATE)
        if over:
            self._open.discard(state)
        else:
            self._open.add(state)
        name = dice.pick(ends if named_end else _STATE_NAMES[act.relation.name])
        return Naming(
            name=name,
            swapped=dice.flip(0.5) if act.relation.symmetric else name.reversed,
            kind=dice.weighted(_END_KINDS) if named_end else None,
        )
