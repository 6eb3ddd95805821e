"""What is known of entities and communities in short: from facts when it is read, or as a run wrote it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kgray import kinds, rows, times
from kgray.graph import PROFILE, Community, Entity, Fact
from kgray.ports import GraphView, Store
from kgray.search.excerpts import dates, safe
from kgray.search.index import Vectors, Words
from kgray.times import Instant, to_datetime
from kgray.words import packed

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


_DONE = kinds.SINCE[1]  # operations that were carried out, or begun


class Texts:
    """The words and vectors of texts, in memory."""

    def __init__(self, dimensions: int, found: Sequence[Community]) -> None:
        self.words, self.vectors = Words(), Vectors(dimensions)
        self.ids = [one.id for one in found]
        self.words.add([packed(one.text) for one in found])
        numbers: dict[object, int] = {id_: number for number, id_ in enumerate(self.ids)}
        near = {one.id: one.vector for one in found if one.vector}  # an earlier version gave profiles none
        self.vectors.add([*near], [*near.values()], numbers, signs=False)


class Profiled(str):
    """The id of an entity that was found by what a model wrote of it."""

    __slots__ = ()


class Summaries:
    """The texts of one run: of communities, and what a model wrote of entities."""

    def __init__(self, store: Store, group: str, known_at: Instant | None, dimensions: int) -> None:
        """Read the run that was known then; to be called at one moment."""
        self.run, self.recorded_at = run_at(store, group, known_at) or (0, 0)  # it may be gone by now
        self._read_at = store.heads([group])[group].last_recorded
        communities, profiles = texts_of(store, group, self.run)
        self.communities = Texts(dimensions, communities)
        self.profiles = Texts(dimensions, [*profiles.values()])

    def stand(self, store: Store, group: str, known: tuple[int, Instant]) -> bool:
        """Whether they are the texts of this run still; a group begun anew counts from 1 again.

        No episode takes a text away: what does (R25) is an operation, recorded after they were read.
        """
        done = store.rows(_DONE, group, [self._read_at + 1])
        return (self.run, self.recorded_at) == known and not any(done)


def run_at(store: Store, group: str, known_at: Instant | None) -> tuple[int, Instant] | None:
    """Return the newest kept run that rests on nothing recorded later, and its record time."""
    known = [(row[0], row[2]) for row in store.rows(kinds.ALL["community_runs"], group)]
    return next((run for run in reversed(known) if known_at is None or run[1] <= known_at), None)


def texts_of(
    store: Store, group: str, run: int, ids: Iterable[str] | None = None
) -> tuple[list[Community], dict[str, Community]]:
    """Return the communities of a run, and entity id -> what a model wrote of it; of all, or of these ids."""
    read = kinds.COMMUNITIES_OF_RUN if ids is None else kinds.COMMUNITIES_AT
    keys: list[object] = [run] if ids is None else [(run, id_) for id_ in ids]
    texts = [rows.community(row) for row in store.rows(read, group, keys)] if keys else []
    return [t for t in texts if t.level != PROFILE], {t.id: t for t in texts if t.level == PROFILE}
