"""The facts beside hits: the participants of hyper-edges, and messages whose facts have all ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kgray.graph import Fact
from kgray.records import Episode
from kgray.search.query import FoundRow
from kgray.search.ranking import SearchRun
from kgray.times import Instant, now

_SUPPORTERS = 4  # episodes of a fact that are looked at for its hyper-edge


@dataclass(frozen=True, slots=True)
class Around:
    """Fact id -> the participants of its hyper-edge; ids of episodes whose facts have all ended."""

    participants: Mapping[str, tuple[str, ...]]
    outdated: frozenset[str]

    @classmethod
    def of(cls, run: SearchRun, rows: Sequence[FoundRow]) -> Around:
        """Read the evidence of hits, once for all."""
        facts = [row for row in rows if isinstance(row, Fact)]
        episodes = [row for row in rows if isinstance(row, Episode)]
        told_in = run.evidence.told_in([fact.statement for fact in facts], _SUPPORTERS)
        sequences = dict.fromkeys(
            s for told in (*told_in.values(), [e.sequence for e in episodes]) for s in told
        )
        places = run.evidence.at(sequences)
        told: dict[int, dict[str, Fact]] = {}
        for (sequence, _), found in zip(places, run.view.facts_of_evidence(places, None), strict=True):
            told.setdefault(sequence, {}).update((fact.id, fact) for fact in found)
        at = run.moment if run.moment is not None else now()
        groups: dict[str, list[str]] = {}
        for fact in facts:
            beside = (told.get(sequence, {}).values() for sequence in told_in[fact.statement])
            same = [
                f for found in beside for f in found if (f.relation, f.text) == (fact.relation, fact.text)
            ]
            ends = list(dict.fromkeys(end for f in (fact, *same) for end in f.ends))
            if len(ends) > 2 and len({f.statement for f in same}) > 1:
                groups[fact.id] = ends
        named = run.view.entities(list(dict.fromkeys(end for ends in groups.values() for end in ends)))
        names = {entity.id: entity.name for entity in named}
        participants = {
            id_: tuple(names[end] for end in ends if end in names) for id_, ends in groups.items()
        }
        ended = (e.id for e in episodes if _has_ended(told.get(e.sequence, {}).values(), at))
        return cls(participants, frozenset(ended))


def _has_ended(facts: Collection[Fact], at: Instant) -> bool:
    """Whether facts were told, and all of them have ended."""
    return bool(facts) and all(fact.invalid_at is not None and fact.invalid_at <= at for fact in facts)


NOTHING_AROUND = Around({}, frozenset())
