"""What callers see of a group's communities: lists, and one with its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kgray.communities.export import Listed, Snapshot, listed, snapshot
from kgray.communities.found import placed
from kgray.derivation.stored import view_now
from kgray.errors import Ambiguous, NotFound
from kgray.graph import Community
from kgray.ports import GraphView, Store, at_one_moment
from kgray.search.summaries import communities_at, run_at
from kgray.times import Instant, to_datetime

BLANK = "(its text is gone with what was removed: refresh the communities)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldCommunity:
    """A community as it shows now: the run's, with the entities that have come since.

    name, summary   "" where a removal took them; the next refresh writes others
    size            entities in it
    stale           facts of its members have changed since the run
    """

    id: str
    level: int
    name: str
    summary: str
    size: int
    parent: str | None
    stale: bool = False
    report: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the form of a row of `kgray communities list --json`."""
        names = ("id", "level", "name", "size", "parent", "stale")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCommunity:
    """A community with what is in it. members: (entity id, name); children: below it; as_of: of its run."""

    community: ToldCommunity
    members: Sequence[tuple[str, str]]
    children: Sequence[ToldCommunity]
    as_of: datetime

    def as_dict(self) -> dict[str, Any]:
        """Return the form of `kgray communities show --json`."""
        return self.community.as_dict() | {
            "summary": self.community.summary,
            "report": dict(self.community.report),
            "children": [child.id for child in self.children],
            "members": [{"id": id_, "name": name} for id_, name in self.members],
        }


@dataclass(frozen=True, slots=True)
class _Standing:
    """The communities of a run, and who is in them."""

    told: Mapping[str, ToldCommunity]
    owner: Mapping[str, str]  # entity -> community of level 0
    recorded_at: Instant


def list_of(store: Store, group: str, level: int | None, known_at: Instant | None) -> list[ToldCommunity]:
    """Return the communities of a level, or of all, the largest first; none before the first run."""
    found = at_one_moment(store, lambda: _standing(store, group, known_at))
    told = [] if found is None else [one for one in found.told.values() if level in (None, one.level)]
    return sorted(told, key=lambda one: (one.level, -one.size, one.id))


def one_of(
    store: Store, group: str, asked: str, known_at: Instant | None, view: GraphView | None = None
) -> ShownCommunity:
    """Return the community with an id, or the beginning of one. Raises NotFound, Ambiguous."""

    def read() -> ShownCommunity:
        found = _standing(store, group, known_at)
        told = {} if found is None else found.told
        near = [id_ for id_ in told if id_.startswith(asked)] if len(asked) > 3 else []
        if len(near) > 1:
            raise Ambiguous(f"{asked!r} begins several communities: {', '.join(sorted(near))}")
        if found is None or not near:
            why = "none is known: `kgray communities refresh` finds them" if not told else "see `list`"
            raise NotFound(f"group {group} has no community {asked!r}; {why}")
        (id_,) = near
        inside = {m for m, owner in found.owner.items() if id_ in _upwards(told, owner)}
        shown = (view_now(store, group) if view is None else view).entities(sorted(inside))
        return ShownCommunity(
            community=told[id_],
            members=sorted(
                ((entity.id, entity.name) for entity in shown), key=lambda pair: (pair[1], pair[0])
            ),
            children=[one for one in told.values() if one.parent == id_],
            as_of=to_datetime(found.recorded_at),
        )

    return at_one_moment(store, read)


def _standing(store: Store, group: str, known_at: Instant | None) -> _Standing | None:
    known = run_at(store, group, known_at)
    if known is None:
        return None
    run, recorded_at = known
    there = {one.id: one for one in listed(store, group, run)}
    owner = {member: one.id for one in there.values() if not one.level for member in one.members}
    stale: set[str] = set()
    if known_at is None and store.heads([group])[group].last_recorded > recorded_at:
        now = snapshot(store, group, texts=False)
        owner, stale = _as_of_now(now, owner)
    texts = {one.id: one for one in communities_at(store, group, run, there)}
    return _Standing(_told(there, owner, texts, stale), owner, recorded_at)


def _as_of_now(now: Snapshot, then: Mapping[str, str]) -> tuple[dict[str, str], set[str]]:
    """Return where entities are now, and the communities of level 0 about which something was learned."""
    owner = placed(now)
    assert now.parent is not None  # noqa: S101 - a run is known
    news = now.touched(now.parent.recorded_at)
    stale = {owner[entity] for entity in news if entity in owner}
    moved = {entity for entity in owner.keys() | then.keys() if owner.get(entity) != then.get(entity)}
    return owner, stale | {where[e] for e in moved for where in (owner, then) if e in where}


def _told(
    there: Mapping[str, Listed],
    owner: Mapping[str, str],
    texts: Mapping[str, Community],
    stale: set[str],
) -> dict[str, ToldCommunity]:
    sizes: dict[str, int] = dict.fromkeys(there, 0)
    touched: set[str] = set()
    for entity_owner in owner.values():
        for id_ in _upwards(there, entity_owner):
            sizes[id_] += 1
    for id_ in stale:
        touched.update(_upwards(there, id_))
    return {
        id_: ToldCommunity(
            id=id_,
            level=one.level,
            name=texts[id_].name if id_ in texts else "",
            summary=texts[id_].summary if id_ in texts else "",
            size=sizes[id_],
            parent=one.parent,
            stale=id_ in touched or id_ not in texts,
            report=texts[id_].report if id_ in texts else {},
        )
        for id_, one in there.items()
    }


def _upwards(there: Mapping[str, Listed] | Mapping[str, ToldCommunity], id_: str) -> list[str]:
    """Return a community and those above it."""
    found: list[str] = []
    at: str | None = id_
    while at is not None and at in there:
        found.append(at)
        at = there[at].parent
    return found
