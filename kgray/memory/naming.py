"""What people call an entity or another thing: a name as it is shown, an id, or the beginning of an id."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from kgray import kinds, rows
from kgray.derivation.stored import StoredView, View, view_now
from kgray.errors import Ambiguous, NotFound
from kgray.graph import Entity
from kgray.ledger import find
from kgray.ports import GraphView, Store, at_one_moment
from kgray.records import is_storable
from kgray.search import Filters

_BEGINNING = re.compile(r"[0-9a-f]{4}[0-9a-f-]*")  # at least 4 digits of an id
_SUGGESTED = 3
_LISTED = 10  # ids that an error lists


def entity_called(store: Store, view: GraphView, asked: str) -> Entity:
    """Return the entity that has this id, name or alias (ignoring case and spacing), or beginning of an id.

    Raises NotFound with what may have been meant, and Ambiguous with the ids where several are called so.
    """
    then = " as known then" if isinstance(view, View) else ""
    nothing = f"group {view.group} has no entity {asked!r}{then}"
    if is_storable(asked) and (exact := view.entities([asked])):
        # A split entity shows as several: the part that kept the id is meant.
        return next((entity for entity in exact if entity.id == asked), exact[0])
    id_ = _called(store, view, asked, nothing)
    return next(entity for entity in view.entities([id_]) if entity.id == id_)


def entity_ids(store: Store, group: str, called: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of entities that are called so now; an id stays itself. Raises as `entity_called`."""

    def read() -> tuple[str, ...]:
        view = view_now(store, group)
        found = [(asked, entity_called(store, view, asked).id) for asked in called]
        return tuple(asked if find(store, group, asked).entity else id_ for asked, id_ in found)

    return at_one_moment(store, read)


def id_called(store: Store, group: str, asked: str) -> str:
    """Return the id of what is called so; a client's id stays itself. Raises as `entity_called`."""
    if find(store, group, asked):
        return asked
    nothing = f"group {group} has no episode, entity or fact {asked!r}"
    return _called(store, view_now(store, group), asked, nothing, of_all=True)


def _called(store: Store, view: GraphView, asked: str, nothing: str, *, of_all: bool = False) -> str:
    """Return the id of the one entity that has a name, or begins so; of_all: of other things too."""
    if not is_storable(asked):
        raise NotFound(nothing)
    group, found = view.group, {entity.id: entity.name for entity in _named(store, view, asked)}
    if not found:
        everyone = entities_of(store, view)
        heads = [row for row in store.rows(kinds.EPISODE_HEADS, group) if row[7] is None] if of_all else []
        there = {row[1]: row[2] or "episode" for row in heads}
        for fact, statement, _, _ in store.rows(kinds.FACT_ENDS, group) if of_all else ():
            there |= {statement: "statement", fact: "fact"}
        there |= {entity.id: entity.name for entity in everyone}
        if _BEGINNING.fullmatch(begin := asked.lower()):
            found = {id_: what for id_, what in there.items() if id_.startswith(begin)}
        if not found:
            like = suggestion(asked, [*(row[2] for row in heads if row[2]), *_names(everyone)])
            raise NotFound(no_group(store, group) or f"{nothing}{like}")
    if len(found) == 1:
        return next(iter(found))
    ids = ", ".join(f"{id_} ({name})" for id_, name in list(found.items())[:_LISTED])
    more = f", and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    is_name = any(rows.folded(asked) == rows.folded(name) for name in found.values())
    what = "is the name of" if is_name else "is what begins the ids, or an alias, of"
    raise Ambiguous(f"{asked!r} {what} {len(found)} of the group; say which id: {ids}{more}")


def entities_of(store: Store, view: GraphView) -> list[Entity]:
    """Return all entities that a view shows, oldest first."""
    if isinstance(view, View):
        found = view.all_entities()
    else:
        found = [rows.entity(row) for row in store.rows(kinds.ALL["entities"], view.group)]
    return sorted(found, key=lambda entity: (entity.born, entity.id))


def no_group(store: Store, group: str) -> str:
    """Return that there is no such group, and which may have been meant; "" where it is there."""
    if store.heads([group])[group].named:
        return ""
    return f"there is no group {group}{suggestion(group, store.heads())}"


def suggestion(asked: str, names: Iterable[str]) -> str:
    """Return `: did you mean 'Alice Nguyen'?` for the names that are like what was asked; "" for none."""
    known: dict[str, str] = {}
    for name in names:
        known.setdefault(rows.folded(name), name)
    wanted = rows.folded(asked)
    within = [name for name in known if wanted and wanted in name.split()]
    near = difflib.get_close_matches(wanted, known, n=_SUGGESTED, cutoff=0.7)
    found = [repr(known[name]) for name in dict.fromkeys([*near, *within])][:_SUGGESTED]
    return f": did you mean {' or '.join(found)}?" if found else ""


def unmet(store: Store, group: str, filters: Filters) -> list[str]:
    """Return a line for each value of a filter that nothing in the group has; it scans the group."""
    episodes = list(store.rows(kinds.ALL["episodes"], group)) if filters.sources or filters.speakers else []
    there = {
        "relation": {row[3] for row in store.rows(kinds.ALL["facts"], group)} if filters.relations else (),
        "type": {label for one in entities_of(store, view_now(store, group)) for label in one.labels}
        if filters.labels
        else (),
        "source": {row[2] for row in episodes},
        "speaker": {row[7] for row in episodes if row[7]},
    }
    asked = zip(there, (filters.relations, filters.labels, filters.sources, filters.speakers), strict=True)
    return [
        f"group {group} has no {what} {value!r}{suggestion(value, sorted(there[what]))}"
        for what, values in asked
        for value in values
        if value not in there[what]
        and (what != "speaker" or rows.folded(value) not in map(rows.folded, there[what]))
    ]


def _named(store: Store, view: GraphView, name: str) -> list[Entity]:
    """Return the entities that show with this name or alias, ignoring case and spacing, oldest first."""
    if isinstance(view, StoredView):
        return view.entities_named(name)
    folded = rows.folded(name)
    return [entity for entity in entities_of(store, view) if folded in map(rows.folded, _names([entity]))]


def _names(entities: Iterable[Entity]) -> list[str]:
    return [name for entity in entities for name in (entity.name, *entity.aliases)]
