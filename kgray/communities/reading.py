"""The public view of a group's communities: lists, and a single community with its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kgray.communities.detection import owners_now, snapshot
from kgray.domain.graph import Community
from kgray.domain.json_form import as_json
from kgray.domain.times import Instant, to_datetime
from kgray.errors import Ambiguous, NotFound
from kgray.graph.stored import view_now
from kgray.ports import GraphView, Store, at_one_moment
from kgray.search.loading import run_at, texts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCommunity:
    """A community with its contents. members: (entity id, name); as_of: when its text was accurate.

    Its JSON form has the ids of the children and, as "parts", their rows.
    """

    community: Community
    members: Sequence[tuple[str, str]]
    children: Sequence[Community]
    as_of: datetime

    def as_dict(self) -> dict[str, Any]:
        """Return the form of `kgray communities show --json`."""
        community = self.community
        return community.as_dict() | {
            "summary": community.summary,
            "report": dict(community.report),
            "children": [child.id for child in self.children],
            "members": [{"id": id_, "name": name} for id_, name in self.members],
            "as_of": as_json(self.as_of),
            "parts": [child.as_dict() for child in self.children],
        }


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The communities of a run by id, and the lowest community of each entity."""

    by_id: Mapping[str, Community]
    owner: Mapping[str, str]  # entity -> its community of level 0
    recorded_at: Instant

    def upwards(self, id_: str | None) -> list[str]:
        """Return a community and its ancestors."""
        return [id_, *self.upwards(self.by_id[id_].parent)] if id_ is not None and id_ in self.by_id else []


def list_of(store: Store, group: str, level: int | None, known_at: Instant | None) -> list[Community]:
    """Return the communities of a level, or of all levels, the largest first; [] before the first run."""
    communities = at_one_moment(store, lambda: current_run(store, group, known_at)).by_id.values()
    chosen = (community for community in communities if level in (None, community.level))
    return sorted(chosen, key=lambda community: (community.level, -community.size, community.id))


def owners_of(store: Store, group: str, level: int, known_at: Instant | None) -> dict[str, str]:
    """Return entity id -> id of its community of a level, for the entities in a community of this level."""
    run = at_one_moment(store, lambda: current_run(store, group, known_at))
    paths = {id_: run.upwards(id_) for id_ in set(run.owner.values())}
    return {entity: paths[id_][level] for entity, id_ in run.owner.items() if level < len(paths[id_])}


def one_of(
    store: Store, group: str, prefix: str, known_at: Instant | None, view: GraphView | None = None
) -> ShownCommunity:
    """Return the community whose id begins with `prefix`. Raises NotFound, Ambiguous."""

    def read() -> ShownCommunity:
        run = current_run(store, group, known_at)
        by_id = run.by_id
        matches = [id_ for id_ in by_id if id_.startswith(prefix)] if len(prefix) > 3 else []
        if len(matches) > 1:
            raise Ambiguous(f"{prefix!r} begins several communities: {', '.join(sorted(matches))}")
        if not matches:
            why = "list` has their ids" if by_id else "refresh` finds some"
            raise NotFound(f"group {group} has no community {prefix!r}: `kgray communities {why}")
        entity_ids = sorted(e for e, owner in run.owner.items() if matches[0] in run.upwards(owner))
        entities = (view_now(store, group) if view is None else view).entities(entity_ids)
        return ShownCommunity(
            community=by_id[matches[0]],
            members=sorted(((e.id, e.name) for e in entities), key=lambda pair: (pair[1], pair[0])),
            children=[community for community in by_id.values() if community.parent == matches[0]],
            as_of=by_id[matches[0]].told_at(to_datetime(run.recorded_at)),
        )

    return at_one_moment(store, read)


def current_run(store: Store, group: str, known_at: Instant | None) -> CurrentRun:
    """Return the run that was current at `known_at`.

    None = now: then entities newer than the run are placed in its communities, sizes count them, and
    communities with changes since the run are marked as stale.
    """
    newest = run_at(store, group, known_at)
    if newest is None:
        return CurrentRun({}, {}, 0)
    run, recorded_at = newest
    by_id = {community.id: community for community in texts_of(store, group, run)[0]}
    old_owner = {member: c.id for c in by_id.values() if not c.level for member in c.members}
    if known_at is not None or store.heads([group])[group].last_recorded <= recorded_at:
        return CurrentRun(by_id, old_owner, recorded_at)
    current = snapshot(store, group, texts=False)
    result = CurrentRun(by_id, owners_now(current), recorded_at)
    owner = result.owner
    moved = {e for e in owner.keys() | old_owner.keys() if owner.get(e) != old_owner.get(e)}
    news = [
        owners.get(e) for e in moved | current.changed_entities(recorded_at) for owners in (owner, old_owner)
    ]
    stale = {id_ for news_of in news for id_ in result.upwards(news_of)}
    sizes = dict.fromkeys(by_id, 0)
    for id_ in (id_ for lowest in owner.values() for id_ in result.upwards(lowest)):
        sizes[id_] += 1
    updated = {id_: replace(c, size=sizes[id_], stale=c.stale or id_ in stale) for id_, c in by_id.items()}
    return CurrentRun(updated, owner, recorded_at)
