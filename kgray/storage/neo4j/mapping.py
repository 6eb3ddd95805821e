"""The storage of each kind of `kgray.schema.kinds` in the database: its label and properties.

The rows of FACTS and MENTIONS are relationships; the rows of every other kind are nodes. Labels and
properties that Graphiti also has bear Graphiti's names. Each node and relationship has `group_id`, and each
statement matches it: the group's name, but for OPERATIONS its digest, because a removal outlives the name.
schema.py and statements.py are generated from this table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from kgray.schema import kinds
from kgray.schema.kinds import Key, Kind, Row


@dataclass(frozen=True)
class StoredKind:
    """One kind in the database."""

    kind: Kind[Any]
    label: str  # of its nodes, or the type of its relationships
    edge: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)  # column -> property, where the names differ
    indexes: tuple[tuple[str, ...], ...] = ()  # of the range indexes, where not those that the kind declares

    @property
    def pattern(self) -> str:
        return f"()-[n:{self.label}]->()" if self.edge else f"(n:{self.label})"

    def keyed(self, row: str = "row") -> str:
        """Return the pattern of the row whose key is in a map; of a relationship with its end `o`."""
        matched = ", ".join(f"{p}: {row}.{p}" for p in ("group_id", *self.key))
        return f"()-[n:{self.label} {{{matched}}}]->(o)" if self.edge else f"(n:{self.label} {{{matched}}})"

    @property
    def group(self) -> str:
        """The parameter of a read that has the `group_id` of its rows."""
        return "$group_key" if self.kind is kinds.OPERATIONS else "$group"

    def group_id(self, group: str) -> str:
        return group_key(group) if self.kind is kinds.OPERATIONS else group

    @cached_property
    def key(self) -> tuple[str, ...]:
        return self.properties(self.kind.key)

    @cached_property
    def all(self) -> tuple[str, ...]:
        """The properties of all columns."""
        return self.properties(self.kind.names)

    def property_of(self, column: str) -> str:
        return self.renamed.get(column, column)

    def properties(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(self.property_of, columns))

    def key_values(self, group: str, key: Key) -> dict[str, Any]:
        """Return the properties that identify a row."""
        return {"group_id": self.group_id(group), **dict(zip(self.key, key, strict=True))}

    def row_values(self, group: str, row: Row) -> dict[str, Any]:
        """Return all properties of a row."""
        return {"group_id": self.group_id(group), **dict(zip(self.all, row, strict=True))}

    def range_indexes(self) -> dict[str, tuple[str, ...]]:
        """Return the range indexes by name: their properties after `group_id`."""
        return {
            f"kgray_{self.kind.name}_{columns[0]}": self.properties(columns)
            for columns in self.indexes or self.kind.indexes
            if columns != self.kind.key[: len(columns)]  # the key's own index begins with these
        }

    def serving(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the properties, after `group_id`, of the index that begins with these columns."""
        prefix = self.properties(columns)
        for properties in (self.key, *self.range_indexes().values()):
            if properties[: len(prefix)] == prefix:
                return properties
        raise ValueError(f"no index of {self.kind.name} begins with {', '.join(columns)}")


# Properties that Graphiti's readers take as datetimes; ours beside them, without `_at`, are integers.
FACT_TIMES = ("created_at", "valid_at", "invalid_at", "expired_at")
EPISODE_TIMES = ("created_at", "valid_at")
_OF_THEIR_OWN = (
    StoredKind(
        kinds.EPISODES,
        "KgrayEpisode",
        renamed={
            "id": "uuid", "source": "source_description", "text": "content", "reference_time": "said",
        },
    ),
    StoredKind(kinds.MENTIONS, "MENTIONS", edge=True),
    StoredKind(kinds.ENTITIES, "Entity", renamed={"id": "uuid"}),
    StoredKind(kinds.SHOWN_ENTITIES, "KgrayShown"),
    StoredKind(
        kinds.FACTS,
        "RELATES_TO",
        edge=True,
        # The plain names hold datetimes, for Graphiti's readers.
        renamed={
            "id": "uuid", "relation": "name", "text": "fact", "created_at": "created",
            "valid_at": "valid", "invalid_at": "invalid", "expired_at": "expired",
        },
        # Not by id: newest first, then by id, is no order of an index.
        indexes=(
            ("statement",), ("source", "created_at"), ("target", "created_at"), ("created_at", "id"),
            ("expired_at", "id"),
        ),
    ),
    StoredKind(kinds.COMMUNITIES, "Community", renamed={"id": "uuid"}),
)  # fmt: skip
# All others: the kind community_runs has nodes KgrayCommunityRun.
STORED: Mapping[Kind[Any], StoredKind] = {
    kind: StoredKind(kind, "Kgray" + kind.name.removesuffix("s").title().replace("_", ""))
    for kind in kinds.KINDS
} | {stored.kind: stored for stored in _OF_THEIR_OWN}


@lru_cache(maxsize=4096)
def group_key(group: str) -> str:
    """Return the id of a group's node: a digest of its name, which is all that stays after a removal."""
    return hashlib.sha256(group.encode(errors="surrogatepass")).hexdigest()


def named_group(group: str, copy: str = "") -> dict[str, str]:
    """Return a group as `statements.OPEN` takes it; copy: the token of this process's own copy into it."""
    return {"group": group, "group_key": group_key(group), "copy": copy}
