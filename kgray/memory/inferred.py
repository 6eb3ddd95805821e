"""The dates of facts that no message states: a date equal to the time of the message itself (R3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from kgray.domain.graph import Fact
from kgray.domain.times import Instant
from kgray.ports import Store
from kgray.schema import reads


def inferred_dates(store: Store, group: str, facts: Iterable[Fact]) -> Mapping[str, list[str]]:
    """Return by fact which of "valid_at" and "invalid_at" are inferred; facts with neither are left out.

    A start is inferred where it is the reference time of a supporting episode; a stated start that equals it
    counts as inferred (R3). An end is inferred where it is that of the episode that ended the fact.
    """
    dated = [fact for fact in facts if fact.valid_at is not None or fact.invalid_at is not None]
    supporters = {id_ for fact in dated for id_ in fact.episodes}
    ids = sorted(supporters | {fact.ended_by[0] for fact in dated if fact.ended_by})
    reference_times: dict[str, set[Instant]] = defaultdict(set)
    for row in store.rows(reads.REFERENCE_TIMES, group, ids) if ids else ():
        reference_times[row.id].add(row.reference_time)
    inferred: dict[str, list[str]] = {}
    for fact in dated:
        dates = [("valid_at", fact.valid_at, id_) for id_ in fact.episodes]
        dates += [("invalid_at", fact.invalid_at, fact.ended_by[0])] if fact.ended_by else []
        if names := dict.fromkeys(
            name for name, at, id_ in dates if at is not None and at in reference_times[id_]
        ):
            inferred[fact.id] = [*names]
    return inferred
