"""What callers see of a group's communities: lists, and one with its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kgray.communities.found import placed, snapshot
from kgray.derivation.stored import view_now
from kgray.errors import Ambiguous, NotFound
from kgray.graph import Community
from kgray.ports import GraphView, Store, at_one_moment
from kgray.search.loading import run_at, texts_of
from kgray.times import Instant, to_datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCommunity:
    """A community with what is in it. members: (entity id, name); as_of: when its text was so."""

    community: Community
    members: Sequence[tuple[str, str]]
    children: Sequence[Community]
    as_of: datetime

    def as_dict(self) -> dict[str, Any]:
        """Return the form of `kgray communities show --json`."""
        one = self.community
        return one.as_dict() | {
            "summary": one.summary,
            "report": dict(one.report),
            "children": [child.id for child in self.children],
            "members": [{"id": id_, "name": name} for id_, name in self.members],
        }


@dataclass(frozen=True, slots=True)
class _Standing:
    """The communities of a run as they stand, and the one of level 0 in which each entity is."""

    found: Mapping[str, Community]
    owner: Mapping[str, str]
    recorded_at: Instant

    def upwards(self, id_: str | None) -> list[str]:
        """Return a community and those above it."""
        return [id_, *self.upwards(self.found[id_].parent)] if id_ is not None and id_ in self.found else []


def list_of(store: Store, group: str, level: int | None, known_at: Instant | None) -> list[Community]:
    """Return the communities of a level, or of all, the largest first; none before the first run."""
    found = at_one_moment(store, lambda: _standing(store, group, known_at)).found.values()
    chosen = (one for one in found if level in (None, one.level))
    return sorted(chosen, key=lambda one: (one.level, -one.size, one.id))


def owners_of(store: Store, group: str, level: int, known_at: Instant | None) -> dict[str, str]:
    """Return the community of a level in which each entity is; entities outside of all are left out."""
    standing = at_one_moment(store, lambda: _standing(store, group, known_at))
    above = {id_: standing.upwards(id_) for id_ in set(standing.owner.values())}
    return {
        entity: above[owner][level] for entity, owner in standing.owner.items() if level < len(above[owner])
    }


def members_of(store: Store, group: str, asked: str, known_at: Instant | None) -> list[str]:
    """Return the ids of the entities in a community. Raises NotFound, Ambiguous."""
    return [id_ for id_, _ in one_of(store, group, asked, known_at).members]


def one_of(
    store: Store, group: str, asked: str, known_at: Instant | None, view: GraphView | None = None
) -> ShownCommunity:
    """Return the community with an id, or the beginning of one. Raises NotFound, Ambiguous."""

    def read() -> ShownCommunity:
        standing = _standing(store, group, known_at)
        found = standing.found
        near = [id_ for id_ in found if id_.startswith(asked)] if len(asked) > 3 else []
        if len(near) > 1:
            raise Ambiguous(f"{asked!r} begins several communities: {', '.join(sorted(near))}")
        if not near:
            why = "list` has their ids" if found else "refresh` finds some"
            raise NotFound(f"group {group} has no community {asked!r}: `kgray communities {why}")
        inside = sorted(e for e, owner in standing.owner.items() if near[0] in standing.upwards(owner))
        shown = (view_now(store, group) if view is None else view).entities(inside)
        return ShownCommunity(
            community=found[near[0]],
            members=sorted(((e.id, e.name) for e in shown), key=lambda pair: (pair[1], pair[0])),
            children=[one for one in found.values() if one.parent == near[0]],
            as_of=found[near[0]].told_at(to_datetime(standing.recorded_at)),
        )

    return at_one_moment(store, read)


def _standing(store: Store, group: str, known_at: Instant | None) -> _Standing:
    """Return the run known then; as of now with who has come since, and what is stale."""
    known = run_at(store, group, known_at)
    if known is None:
        return _Standing({}, {}, 0)
    run, recorded_at = known
    there = {one.id: one for one in texts_of(store, group, run)[0]}
    then = {member: one.id for one in there.values() if not one.level for member in one.members}
    if known_at is not None or store.heads([group])[group].last_recorded <= recorded_at:
        return _Standing(there, then, recorded_at)
    now = snapshot(store, group, texts=False)
    standing = _Standing(there, placed(now), recorded_at)
    owner = standing.owner
    moved = {entity for entity in owner.keys() | then.keys() if owner.get(entity) != then.get(entity)}
    news = [where.get(e) for e in moved | now.touched(recorded_at) for where in (owner, then)]
    stale = {id_ for news_of in news for id_ in standing.upwards(news_of)}
    sizes = dict.fromkeys(there, 0)
    for id_ in (id_ for lowest in owner.values() for id_ in standing.upwards(lowest)):
        sizes[id_] += 1
    as_now = (replace(one, size=sizes[id_], stale=one.stale or id_ in stale) for id_, one in there.items())
    return _Standing({one.id: one for one in as_now}, owner, recorded_at)
