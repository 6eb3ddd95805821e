"""The changes of a batch merged, so that each row is written once: a later change replaces an earlier one.

Rows are written in the order drops, patches, puts. So a patch that follows a put of the same row is merged
into the put, and a drop or a put discards whatever came before it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from kgray import kinds
from kgray.errors import StoreError
from kgray.kinds import Key, Kind, Row
from kgray.ports.store import Patch, RowChanges
from kgray.stores.neo4j.mapping import place_of
from kgray.stores.neo4j.statements import PATCH
from kgray.times import Instant

RowName = tuple[str, Key]  # group, key


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRow:
    """A row that is put.

    sequence, ordinal   of the entry that put it, and its place among the rows of its kind
    at                  the entry's record time
    facts               of an episode: the ids of the facts that came with it, for Graphiti's `entity_edges`
    """

    row: Row
    sequence: int
    ordinal: int = 0
    at: Instant = 0
    facts: tuple[str, ...] = ()


def _by_kind() -> defaultdict[Kind, dict[RowName, Any]]:
    return defaultdict(dict)


@dataclass(slots=True)
class FoldedBatch:
    """Rows by kind, each once."""

    drops: defaultdict[Kind, dict[RowName, None]] = field(default_factory=_by_kind)
    puts: defaultdict[Kind, dict[RowName, PutRow]] = field(default_factory=_by_kind)
    patches: defaultdict[Kind, dict[RowName, dict[str, Any]]] = field(default_factory=_by_kind)

    def add(self, change: RowChanges) -> None:
        """Add what a change drops, puts and patches."""
        for kind, keys in change.drops.items():
            for key in keys:
                self.drop(change.group, kind, tuple(key))
        at = change.recorded_at or 0
        for kind, rows in change.puts.items():
            for ordinal, row in enumerate(rows):
                facts = _facts_of(change, row) if kind is kinds.EPISODES else ()
                put = PutRow(row=row, sequence=change.sequence, ordinal=ordinal, at=at, facts=facts)
                self.put(change.group, kind, put)
        for patch in change.patches:
            self.patch(change.group, patch)

    def drop(self, group: str, kind: Kind, key: Key) -> None:
        """Add the drop of a row."""
        self.puts[kind].pop((group, key), None)
        self.patches[kind].pop((group, key), None)
        self.drops[kind][group, key] = None

    def put(self, group: str, kind: Kind, put: PutRow) -> None:
        """Add the put of a row."""
        name = (group, kind.key_of(put.row))
        if kind.first_wins:
            self.puts[kind].setdefault(name, put)
            return
        # A row that is replaced is not dropped first: its relationships stay.
        self.drops[kind].pop(name, None)
        self.patches[kind].pop(name, None)
        self.puts[kind][name] = put

    def patch(self, group: str, patch: Patch) -> None:
        """Add a patch. Raises StoreError for kinds whose rows can only be put whole."""
        kind, width = patch.kind, len(patch.kind.key)
        if kind not in PATCH:
            raise StoreError(f"rows of {kind.name} are put whole, and {', '.join(patch.columns)} was patched")
        for row in patch.rows:
            name, new = (group, row[:width]), dict(zip(patch.columns, row[width:], strict=True))
            put = self.puts[kind].get(name)
            if put is None or kind.first_wins:
                self.patches[kind].setdefault(name, {}).update(new)
            if put is not None:
                changed = list(put.row)
                for column, value in new.items():
                    changed[place_of(kind, column)] = value
                self.puts[kind][name] = replace(put, row=tuple(changed))


def _facts_of(change: RowChanges, episode: Row) -> tuple[str, ...]:
    """Return the ids of the facts that a change puts and that name this episode."""
    id_, place = episode[place_of(kinds.EPISODES, "id")], place_of(kinds.FACTS, "episodes")
    return tuple(row[0] for row in change.puts.get(kinds.FACTS, ()) if id_ in row[place])
