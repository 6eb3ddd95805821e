"""The view for deciding ahead: what is committed, and what earlier uncommitted episodes will probably add.

An episode's view reads the rows of smaller sequences, and notes which keys were read, so that a change
repeats only the tries that it affects (1.8 tries an episode). It may be wrong, and lack rows: it only serves
to find questions early; the commit decides on the true state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kgray.derivation.group import GroupGraph
from kgray.derivation.names import EntityNote, Relations
from kgray.derivation.statements import Statement
from kgray.ingest.candidates import NameLookUp, Nearest, Prepared, blocking_keys
from kgray.ingest.decide import Decision
from kgray.ingest.state import GroupState
from kgray.ports import Vector
from kgray.records import Place, Ruling

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
ReadKey = tuple[str, Hashable]  # (table, key within it)
_LATER = 1 << 62


class AheadRows:
    """The rows of a group's uncommitted episodes, by the sequence that would add them and by key."""

    def __init__(self, dimensions: int) -> None:
        """Start with no row; dimensions: of the vectors."""
        self._prepare = Nearest(dimensions).prepared
        self.of: dict[int, dict[ReadKey, list[Any]]] = {}  # by sequence
        self._adding: defaultdict[ReadKey, set[int]] = defaultdict(set)  # the sequences with rows under a key
        self._read: dict[int, set[ReadKey]] = {}

    def put(self, sequence: int, attempt: Decision | None) -> set[int]:
        """Replace an episode's rows (None: remove); return the later sequences that read a change."""
        rows: dict[ReadKey, list[Any]] = {}
        for key, item in () if attempt is None else _rows_of(attempt, self._prepare):
            rows.setdefault(key, []).append(item)
        before = self.of.pop(sequence, {})
        for key in before.keys() - rows.keys():
            self._adding[key].discard(sequence)
            if not self._adding[key]:
                del self._adding[key]
        for key in rows:
            self._adding[key].add(sequence)
        if rows:
            self.of[sequence] = rows
        changed = {k for k in before.keys() | rows.keys() if not _alike(before.get(k), rows.get(k))}
        later = ((reader, keys) for reader, keys in self._read.items() if reader > sequence)
        return {reader for reader, keys in later if not changed.isdisjoint(keys)}

    @property
    def is_read(self) -> bool:
        """Whether a try of any episode has read keys."""
        return bool(self._read)

    def reads(self, sequence: int, keys: set[ReadKey]) -> None:
        """Note which keys an episode's last try read; none: it is committed."""
        self._read[sequence] = keys
        if not keys:
            del self._read[sequence]

    def below(self, table: str, key: Hashable, sequence: int) -> list[Any]:
        """Return the items under a key of the episodes before `sequence`, in order."""
        place = (table, key)
        if not (adding := self._adding.get(place)):  # of most keys nobody adds a row
            return []
        return [item for earlier in sorted(adding) if earlier < sequence for item in self.of[earlier][place]]


@dataclass(frozen=True, slots=True)
class _NameRow:
    """A new name's vector. Two are equal if the entity is the same, because readers see no more of it."""

    entity: str
    prepared: Prepared = field(compare=False)


def _rows_of(attempt: Decision, prepare: Callable[[Vector], Prepared]) -> Iterator[tuple[ReadKey, object]]:
    """Yield, by key, what later episodes would find if this one were committed as decided now."""
    change = attempt.change
    if change is None:
        return
    yield from _made(attempt)
    for mention, vector in change.name_vectors:
        yield ("vectors", ""), _NameRow(mention.entity, prepare(vector))
    first = {e.relation: (e.sequence, e.ordinal) for e in reversed(change.evidence)}
    for use in reversed(first.items()):
        yield ("uses", ""), use
    for verdict in change.verdicts:
        yield ("verdict", (verdict.a, verdict.b)), verdict.exclusive
    for ruling in change.rulings:
        yield ("rulings", ""), ruling
        for name in filter(None, (ruling.name, ruling.other)):
            yield ("ruling", name), ruling


def _made(attempt: Decision) -> Iterator[tuple[ReadKey, object]]:
    """Yield the rows of the entities and statements that an episode makes, and of names that it adds."""
    for note in attempt.entities:
        yield ("entity", note.id), note
    for guessed in attempt.guessed:
        yield ("guess", guessed), True
    borne = [(note.id, surface) for note in attempt.entities for surface in note.surfaces]
    for entity, surface in (*borne, *attempt.aliases):
        for key in blocking_keys(surface):
            yield ("name", key), entity
    for statement in attempt.statements:
        subject, relation, made = statement.subject, statement.relation, statement.id
        yield ("statement", made), statement
        yield ("bucket", statement.key), made
        yield ("slot", ("s", subject, relation)), made
        yield ("ends", (subject, statement.key[2])), made
        yield ("relation", relation), made


def _alike(before: list[Any] | None, after: list[Any] | None) -> bool:
    """Whether a key's items look the same to a reader; notes and statements by what readers use."""
    if before is None or after is None:
        return before is after
    return [_as_read(i) for i in before] == [_as_read(i) for i in after]


def _as_read(item: object) -> object:
    if isinstance(item, EntityNote):
        return item.id, tuple(item.surfaces), item.card, item.labels
    if isinstance(item, Statement):
        return item.id, item.key, item.wording, item.variant
    return item


class _EarlierRows:
    """The uncommitted rows below one episode's sequence; notes the keys that are read."""

    def __init__(self, rows: AheadRows, sequence: int) -> None:
        self.rows, self.sequence = rows, sequence
        self.keys: set[ReadKey] = set()

    def below(self, table: str, key: Hashable) -> list[Any]:
        self.keys.add((table, key))
        return self.rows.below(table, key, self.sequence)


class _Items(Mapping[K, V]):
    """Items by key: the stored one, else the first uncommitted one. It yields and counts the stored keys."""

    def __init__(self, stored: Mapping[K, V], view: _EarlierRows, table: str) -> None:
        self._stored, self._view, self._table = stored, view, table

    def get(self, key: K, default: Any = None, /) -> Any:  # noqa: ANN401 - as Mapping has it
        stored = self._stored.get(key)
        return stored if stored is not None else next(iter(self._view.below(self._table, key)), default)

    def __getitem__(self, key: K, /) -> V:
        found: V | None = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[K]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


class _Lists(_Items[K, list[str]]):
    """Lists by key: the stored items, then those of uncommitted rows."""

    def get(self, key: K, default: Any = None, /) -> Any:  # noqa: ANN401 - as Mapping has it
        found = self._view.below(self._table, key)
        stored = self._stored.get(key, default)
        return [*(stored or ()), *found] if found else stored


class AheadGraph:
    """The group's graph with the statements, names and rulings of uncommitted episodes."""

    def __init__(self, base: GroupGraph, view: _EarlierRows) -> None:
        self._base, self._view = base, view
        self.fold = base.fold
        self.entities = _Items(base.entities, view, "entity")
        self.statements = _Items(base.statements, view, "statement")
        self.buckets = _Lists(base.buckets, view, "bucket")
        self.slots = _Lists(base.slots, view, "slot")
        self.by_relation = _Lists(base.by_relation, view, "relation")
        self.by_ends = _Lists(base.by_ends, view, "ends")
        self.relations = self._seen_relations()

    def verdict(self, a: str, b: str) -> bool | None:
        """Return whether two statements were found exclusive, here or uncommitted; None = never judged."""
        known = self._base.verdict(a, b)
        if known is not None:
            return known
        found = self._view.below("verdict", (min(a, b), max(a, b)))
        return bool(found[-1]) if found else None

    def _seen_relations(self) -> Relations:
        base, rows, sequence = self._base.relations, self._view.rows, self._view.sequence
        # All uses share one key, and all rulings: these are rare, and one may fold any name.
        rulings: list[Ruling] = rows.below("rulings", "", sequence)
        uses: list[tuple[str, Place]] = rows.below("uses", "", sequence)
        fresh = [(name, place) for name, place in uses if not base.in_use(name)]
        if not rulings and not fresh:
            return base
        relations = base.copy()
        for name, place in fresh:
            relations.use(name, place)
        for ruling in rulings:
            relations.rule(ruling, _LATER)
        return relations


class AheadState:
    """A group's state as an uncommitted episode will probably find it."""

    def __init__(self, base: GroupState, rows: AheadRows, sequence: int) -> None:
        """Put the rows below `sequence` over a true state; `read_keys` holds what is read."""
        self._base, self._view = base, _EarlierRows(rows, sequence)
        self.names = NameLookUp(_Lists(base.names.postings, self._view, "name"))
        self.graph = AheadGraph(base.graph, self._view)
        self.nearest = base.nearest
        self.ontology_settled = base.ontology_settled or min(rows.of, default=sequence) < sequence
        self.statement_vectors = base.statement_vectors

    @property
    def read_keys(self) -> set[ReadKey]:
        """The keys looked up among uncommitted rows so far."""
        return self._view.keys

    def is_guess(self, entity: str) -> bool:
        """Whether an uncommitted episode made the entity while a question about it is open."""
        return bool(self._view.below("guess", entity))

    def near_scored(self, vector: Vector, floor: float, limit: int) -> list[tuple[float, str]]:
        """Return (cosine, shown entity) of near names, nearest first, uncommitted ones included."""
        found = self._base.near_scored(vector, floor, limit)
        # Not noted as read: every episode adds names, and each would make all later ones try again.
        rows: list[_NameRow] = self._view.rows.below("vectors", "", self._view.sequence)
        cosines = self.nearest.cosines(vector, [row.prepared for row in rows])
        found += [(float(cosines[n]), row.entity) for n, row in enumerate(rows) if cosines[n] >= floor]
        found.sort(key=lambda pair: -pair[0])
        return found[:limit]
