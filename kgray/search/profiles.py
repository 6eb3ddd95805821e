"""What is known of entities in short: from their facts when it is read, or as a model has written it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kgray import times
from kgray.graph import Community, Entity, Fact
from kgray.ports import GraphView, Store
from kgray.search.excerpts import dates, safe
from kgray.search.summaries import profiles_of, run_at
from kgray.times import Instant, to_datetime

TOLD = 5  # facts of a profile that no model wrote
_READ = 50  # facts an entity, the newest: an entity with very many does not hold up a read
_ALIASES = 5


def who(entity: Entity) -> str:
    """Return `NAME (type; also known as ...)`."""
    said = [", ".join(map(safe, entity.labels))] if entity.labels else []
    if entity.aliases:
        more = ", ..." if len(entity.aliases) > _ALIASES else ""
        said.append(f"also known as {', '.join(map(safe, entity.aliases[:_ALIASES]))}{more}")
    return safe(entity.name) + (f" ({'; '.join(said)})" if said else "")


def told(fact: Fact) -> str:
    """Return a fact with its dates, as one line without a full stop."""
    text = safe(fact.text).rstrip(".")
    start, end = (None if at is None else to_datetime(at) for at in (fact.valid_at, fact.invalid_at))
    return text if fact.event else f"{text} ({dates(start, end)})"


def best(facts: Collection[Fact], at: Instant) -> list[Fact]:
    """Return those of the facts that hold then, the best supported first, then the newest."""
    holding = [fact for fact in facts if fact.holds_at(at)]
    return sorted(holding, key=lambda f: (-len(f.episodes), -(f.valid_at or 0), f.id))


def profiles(
    store: Store,
    view: GraphView,
    entities: Sequence[str],
    *,
    as_of: Instant | None = None,
    known_at: Instant | None = None,
    most: int = TOLD,
    besides: Collection[str] = (),
) -> dict[str, str]:
    """Return entity id -> its profile: what a model wrote of it, else the best supported facts that hold.

    A model's text says what held at its run: it is used where no moment is asked for, and nothing was learned
    of the entity since. view: as known at `known_at`; besides: ids of facts that are shown already.
    """
    of: dict[str, list[Fact]] = {id_: [] for id_ in entities}
    for fact in view.facts_at(entities, None, _READ * len(entities)):
        for end in set(fact.ends) & of.keys():
            of[end].append(fact)
    known = run_at(store, view.group, known_at) if as_of is None else None
    run, since = known or (0, 0)
    written: Mapping[str, Community] = profiles_of(store, view.group, run, entities) if run else {}
    at = next((moment for moment in (as_of, known_at) if moment is not None), times.now())
    found = {}
    for id_, facts in of.items():
        news = any(fact.created_at > since or (fact.expired_at or 0) > since for fact in facts)
        if id_ in written and not news:
            found[id_] = safe(written[id_].summary)
        else:
            shown = [fact for fact in best(facts, at) if fact.id not in besides][:most]
            found[id_] = " ".join(f"{told(fact)}." for fact in shown)
    return found
