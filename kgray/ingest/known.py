"""What deciding reads of a group: one protocol for the true state and a view ahead of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Protocol, TypeVar

from kgray.derivation.entities import EntityNote
from kgray.derivation.fold import Fold
from kgray.derivation.group import CliqueKey
from kgray.derivation.relations import Relations
from kgray.derivation.statements import Statement, StatementKey
from kgray.ingest.lookup import NameLookUp
from kgray.ingest.nearest import Nearest
from kgray.ports import Vector
from kgray.records import Place, Value

K = TypeVar("K", bound=Hashable)
V_co = TypeVar("V_co", covariant=True)


class LookUp(Protocol[K, V_co]):
    """What a dict and a look-up that is layered over one have in common. It has no length."""

    def get(self, key: K, /) -> V_co | None:
        """Return what stands under a key; None = nothing."""
        ...

    def __getitem__(self, key: K, /) -> V_co:
        """Return what stands under a key; KeyError where nothing does."""
        ...

    def __contains__(self, key: object, /) -> bool:
        """Whether anything stands under a key."""
        ...

    def __iter__(self) -> Iterator[K]:
        """Yield the keys that are stored; a view's own are left out."""
        ...


class KnownGraph(Protocol):
    """The part of a `GroupGraph` that deciding reads."""

    @property
    def fold(self) -> Fold: ...  # noqa: D102 - each as in GroupGraph
    @property
    def births(self) -> LookUp[str, Place]: ...  # noqa: D102
    @property
    def entities(self) -> LookUp[str, EntityNote]: ...  # noqa: D102
    @property
    def statements(self) -> LookUp[str, Statement]: ...  # noqa: D102
    @property
    def buckets(self) -> LookUp[StatementKey, list[str]]: ...  # noqa: D102
    @property
    def slots(self) -> LookUp[CliqueKey, list[str]]: ...  # noqa: D102
    @property
    def by_relation(self) -> LookUp[str, list[str]]: ...  # noqa: D102
    @property
    def by_ends(self) -> LookUp[tuple[str, str | Value], list[str]]: ...  # noqa: D102
    @property
    def relations(self) -> Relations: ...  # noqa: D102

    def verdict(self, a: str, b: str) -> bool | None:
        """Return whether two statements were found exclusive; None = never judged."""
        ...


class KnownState(Protocol):
    """The part of a `GroupState` that deciding reads. ontology_settled: its rulings are those of this run."""

    @property
    def graph(self) -> KnownGraph: ...  # noqa: D102
    @property
    def names(self) -> NameLookUp: ...  # noqa: D102
    @property
    def nearest(self) -> Nearest: ...  # noqa: D102
    @property
    def ontology_settled(self) -> bool: ...  # noqa: D102
    @property
    def statement_vectors(self) -> Mapping[str, Vector]: ...  # noqa: D102

    def is_guess(self, entity: str) -> bool:
        """Whether an entity stands for a question that is still open; never, on the true state."""
        ...

    def near_scored(self, vector: Vector, floor: float, limit: int) -> list[tuple[float, str]]:
        """Return (cosine, shown entity) of the names that are near, nearest first."""
        ...
