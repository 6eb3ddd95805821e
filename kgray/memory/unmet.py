"""Values of filters that nothing in a group has: mistyped ones are told what they are like."""

from __future__ import annotations

from kgray import kinds, rows
from kgray.derivation.stored import view_now
from kgray.memory.naming import entities_of, suggestion
from kgray.ports import Store
from kgray.search import Filters


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
