"""What is known of entities in short: from their facts when it is read, or as a model has written it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kgray import kinds, times
from kgray.graph import Entity, Fact
from kgray.ports import GraphView, Store
from kgray.search.excerpts import dates, safe
from kgray.search.summaries import run_at, texts_of
from kgray.times import Instant, to_datetime

TOLD = 5  # facts of a profile that no model wrote
_READ = 50  # facts an entity, the newest: an entity with very many does not hold up a read
_ALIASES = 5
_CORRECTIONS = frozenset({"merge", "split", "undo"})


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
    at = times.now() if as_of is None else as_of
    found = _written(store, view, entities, known_at) if as_of is None else {}
    for id_ in entities:
        if id_ not in found:
            facts = view.facts_at([id_], at, _READ)
            shown = [fact for fact in best(facts, at) if fact.id not in besides][:most]
            found[id_] = " ".join(f"{told(fact)}." for fact in shown)
    return found


def _written(
    store: Store, view: GraphView, entities: Sequence[str], known_at: Instant | None
) -> dict[str, str]:
    """Return entity id -> what a model wrote of it, of those of which nothing was learned since."""
    known = run_at(store, view.group, known_at)
    if known is None:
        return {}
    run, since = known
    texts = {id_: safe(one.summary) for id_, one in texts_of(store, view.group, run, entities)[1].items()}
    if not texts or store.heads([view.group])[view.group].last_recorded <= since:
        return texts
    for row in store.rows(kinds.ALL["operations"], view.group):
        if row[1] in _CORRECTIONS and row[4] is not None and row[4] > since:
            return {}  # a merge or split: whose facts a text tells is not known

    def is_so(id_: str) -> bool:
        facts = view.facts_at([id_], None, _READ)
        news = any(fact.created_at > since or (fact.expired_at or 0) > since for fact in facts)
        return not news and len(facts) < _READ  # one that is older than all of these may have ended

    return {id_: text for id_, text in texts.items() if is_so(id_)}
