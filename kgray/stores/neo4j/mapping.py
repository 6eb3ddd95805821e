"""How each kind of `kgray.kinds` is stored in the database: its label and properties.

The rows of every kind are nodes, except FACTS, whose rows are relationships. Labels and properties that
Graphiti has too are named as in Graphiti. Each node and relationship has `group_id`, and each statement
matches it: the group's name, of OPERATIONS its digest, because a removal outlives the name. schema.py and
statements.py are generated from this table.

Computed columns (`kind.computed`) are properties too. `<name>_key`, which is no column, is the SHA-256 of the
text column <name>: an index takes 8 KB, and a name may be longer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from kgray import kinds
from kgray.kinds import Key, Kind, Row
from kgray.rows import computed


@dataclass(frozen=True, slots=True)
class StoredKind:
    """One kind in the database."""

    kind: Kind
    label: str  # of its nodes; of FACTS the relationships' type
    edge: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)  # column -> property, where the names differ
    digested: tuple[str, ...] = ()  # text columns that are looked up by their digest
    indexes: tuple[tuple[str, ...], ...] = ()  # of the range indexes, where not those that the kind declares

    @property
    def pattern(self) -> str:
        return f"()-[n:{self.label}]->()" if self.edge else f"(n:{self.label})"

    @property
    def group(self) -> str:
        """The parameter of a read that has the `group_id` of its rows."""
        return "$group_key" if self.kind is kinds.OPERATIONS else "$group"

    def group_id(self, group: str) -> str:
        return group_key(group) if self.kind is kinds.OPERATIONS else group

    @property
    def key(self) -> tuple[str, ...]:
        return self.lookups(self.kind.key)

    def property_of(self, column: str) -> str:
        return self.renamed.get(column, column)

    def lookups(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the properties by which these columns are looked up."""
        return tuple(f"{c}_key" if c in self.digested else self.property_of(c) for c in columns)

    def key_values(self, group: str, key: Key) -> dict[str, Any]:
        """Return the properties by which a row is matched."""
        return {"group_id": self.group_id(group)} | {
            prop: digest(value) if column in self.digested else value
            for column, prop, value in zip(self.kind.key, self.key, key, strict=True)
        }

    def row_values(self, group: str, row: Row, dimensions: int) -> dict[str, Any]:
        """Return all properties of a row, computed ones too; dimensions: numbers a vector."""
        made = {"group_id": self.group_id(group)}
        for column, value in zip(self.kind.names, row, strict=True):
            made[self.property_of(column)] = value
            if column in self.digested:
                made[f"{column}_key"] = digest(value)
        if self.kind.computed:
            names = (column.name for column in self.kind.computed)
            made.update(zip(names, computed(self.kind, row, dimensions), strict=True))
        return made

    def range_indexes(self) -> dict[str, tuple[str, ...]]:
        """Return the range indexes by name: their properties after `group_id`."""
        return {
            f"kgray_{self.kind.name}_{columns[0]}": self.lookups(columns)
            for columns in self.indexes or self.kind.indexes
            if columns != self.kind.key[: len(columns)]  # the key's own index begins with these
        }

    def serving(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the properties, after `group_id`, of the index that begins with these columns."""
        wanted = self.lookups(columns)
        for properties in (self.key, *self.range_indexes().values()):
            if properties[: len(wanted)] == wanted:
                return properties
        raise ValueError(f"no index of {self.kind.name} begins with {', '.join(columns)}")


_OF_THEIR_OWN = (
    StoredKind(
        kinds.EPISODES,
        "KgrayEpisode",
        renamed={
            "id": "uuid", "source": "source_description", "text": "content", "reference_time": "said",
        },
    ),
    StoredKind(kinds.ANSWER_USES, "KgrayUse"),
    StoredKind(kinds.NAMES, "KgrayName", digested=("surface", "folded")),
    StoredKind(kinds.NAME_VECTORS, "KgrayNameVector", digested=("surface",)),
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
# All others: the kind name_vectors has nodes KgrayNameVector.
STORED: Mapping[Kind, StoredKind] = {
    kind: StoredKind(kind, "Kgray" + kind.name.removesuffix("s").title().replace("_", ""))
    for kind in kinds.KINDS
} | {stored.kind: stored for stored in _OF_THEIR_OWN}


def digest(text: str) -> str:
    """Return a key for a text of any length."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


@lru_cache(maxsize=4096)
def group_key(group: str) -> str:
    """Return the id of a group's node: a digest of its name, which is all that stays after a removal."""
    return digest(group)


def named_group(group: str, copy: str = "") -> dict[str, str]:
    """Return a group as `statements.OPEN` takes it; copy: the token of this process's own copy into it."""
    return {"group": group, "group_key": group_key(group), "copy": copy}
