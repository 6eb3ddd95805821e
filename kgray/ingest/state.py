"""What deciding works with: an episode, what is known of its group, answers so far, and open questions.

`KnownState` is what deciding reads of a group. A `GroupState` is the true one, kept current by commits, and
equal to one that is loaded from the store. An `AheadState` shows what earlier uncommitted episodes will
probably add too. It may be wrong, and lack rows: it only serves to find questions early. It reads the
`AheadRows` of smaller sequences, and notes which keys were read, so that a change repeats only the tries that
it affects (1.8 tries an episode).
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

from kgray import rows
from kgray.derivation.change import Difference, EpisodeChange
from kgray.derivation.group import GroupGraph
from kgray.derivation.names import EntityNote
from kgray.derivation.statements import Statement
from kgray.derivation.stored import garbage_not_collected, let_go, records_of
from kgray.ingest.candidates import NameIndex, NameLookUp, Nearest, Prepared, blocking_keys, cosines, prepared
from kgray.ingest.extract import ToldNames
from kgray.kinds import ALL, Row
from kgray.ontology import Ontology
from kgray.ports import Answer, Embedding, Question, Store, Vector
from kgray.records import Episode, Extraction, GroupRecords, Place, Ruling
from kgray.times import Instant

KnownState: TypeAlias = "GroupState | AheadState"
# Measured: loading a generated group of 24,900 statements and 35,577 names took 327 MB of resident memory.
# How that divides between the two is an estimate.
BYTES_A_STATEMENT = 8_000
BYTES_A_NAME = 3_500
_LARGE_BYTES = 16 << 20
# gc.set_threshold: new objects per collection, and collections of one generation per one of the next.
_RARE = (100_000, 50, 1_000)
LATER = 1 << 62
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
ReadKey = tuple[str, Hashable]  # (table, key within it)


@contextmanager
def garbage_collected_rarely() -> Iterator[None]:
    """Let Python's cyclic garbage collector run rarely inside the block.

    It would scan the millions of objects of a group of 100,000 facts for every few hundred new ones.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_RARE)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def collect_garbage_rarely() -> None:
    """Do the same from now on, and leave alone what is there: for a worker or writer, 7 % of its time."""
    gc.freeze()
    gc.set_threshold(*_RARE)


@dataclass(slots=True, kw_only=True)
class ReadEpisode:
    """An episode with what its text says; `told`: the same under the run's ontology, once it was tried."""

    episode: Episode
    extraction: Extraction
    told: ToldNames | None = None


@dataclass(slots=True)
class Answers:
    """What an episode's earlier rounds gave: vectors by text, answers by question (R21)."""

    vectors: dict[str, Embedding] = field(default_factory=dict)
    said: dict[Question, Answer] = field(default_factory=dict)


@dataclass(slots=True)
class Questions:
    """What is missing before an episode can be decided: questions, and texts to embed."""

    texts: list[str] = field(default_factory=list)
    open: list[Question] = field(default_factory=list)
    early: bool = False  # on a view: they depend on a guess, and may change with its answer

    def __bool__(self) -> bool:
        return bool(self.texts or self.open)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings that deciding depends on; fixed for a run."""

    ontology: Ontology
    judge: str  # identity of the judge, recorded with its rulings and verdicts
    judging: str = "relation"  # or "statement": every compared pair is asked about


@dataclass(frozen=True, slots=True)
class Case:
    """One episode's input to the steps of deciding.

    extraction  as shaped to the ontology, with the names that the text gives
    others      ordinal of an entity -> those that the text tells to be the same
    asked       collects the open questions
    """

    episode: Episode
    extraction: Extraction
    others: Mapping[int, Sequence[int]]
    state: KnownState
    answers: Answers
    rules: Rules
    asked: Questions

    def answer(self, question: Question) -> Answer | None:
        """Return the answer to a question; where there is none yet, note it as open and return None."""
        answer = self.answers.said.get(question)
        if answer is None and question not in self.asked.open:
            self.asked.open.append(question)
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one pass over an episode found: what is open, and the change if every open answer were "new".

    change     None only while texts have no vector yet: without them nothing can be tried
    entities   those that this episode makes; guessed: ids of those that only stand for an open question
    aliases    (shown entity, surface) of each surface that a stored entity did not bear
    """

    asked: Questions
    change: EpisodeChange | None = None
    entities: tuple[EntityNote, ...] = ()
    guessed: frozenset[str] = frozenset()
    statements: tuple[Statement, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()


class GroupState:
    """One group's graph with the look-ups that resolution needs. Has one owner; not thread-safe."""

    def __init__(self, records: GroupRecords, vectors: Iterable[Row], dimensions: int) -> None:
        """Build everything from the group's live records and its rows of `name_vectors`."""
        self.group = records.group
        self.graph = GroupGraph.build(records)
        self.names = NameIndex()
        self.nearest = Nearest(dimensions)
        self.last_recorded = records.last_recorded
        self.ontology_settled = False
        self.statement_vectors: dict[str, Vector] = {}
        self._owners: list[tuple[str, str]] = []  # row of `nearest` -> (recorded entity, surface)
        self._rulings = 0  # commits with rulings: each may change which statements are compared
        self._vectors_for: tuple[str, int] = ("relation", 0 if not records.rulings else -1)
        for note in sorted(self.graph.entities.values(), key=lambda n: (n.born, n.id)):
            self.names.add(note.id, note.surfaces, new=True)
        left = iter(vectors)
        while part := list(islice(left, 1024)):
            self._owners += map(itemgetter(0, 1), part)
            matrix = rows.as_vector(b"".join([row[-1] for row in part])).reshape(len(part), -1)
            self.nearest.extend(matrix, sort=False)
        self.nearest.sort()
        self._owned = set(self._owners)

    @classmethod
    def load(cls, store: Store, group: str, dimensions: int) -> GroupState:
        """Read the group from the store."""
        with garbage_not_collected():
            records = records_of(store, group)
            state = cls(records, store.rows(ALL["name_vectors"], group), dimensions)
            let_go(records.heads, records.mentions, records.evidence)
            if state.is_large:
                gc.freeze()  # else the collector looks at all of it at once, and the loop waits
        return state

    def size(self) -> int:
        """Return about how many bytes the state takes."""
        return len(self.graph.statements) * BYTES_A_STATEMENT + len(self._owners) * BYTES_A_NAME

    @property
    def is_large(self) -> bool:
        """Whether freeing it at once, or collecting garbage in it, would keep the loop waiting."""
        return self.size() > _LARGE_BYTES

    def is_guess(self, entity: str) -> bool:  # noqa: ARG002 - a view's answer depends on it
        """Return False: only a view has guesses."""
        return False

    def mention_count(self, entity: str) -> int:
        """Return the number of mentions of an entity so far."""
        note = self.graph.entities.get(entity)
        return 0 if note is None else note.count

    def near_scored(self, vector: Vector, floor: float, limit: int) -> list[tuple[float, str]]:
        """Return (cosine, shown entity) of at most `limit` near names, nearest first."""
        found = []
        for cosine, row in self.nearest.near(vector, floor, limit):
            recorded, surface = self._owners[row]
            shown, _ = self.graph.fold.shown(recorded, surface, 0)
            note = self.graph.entities.get(shown)
            if note is not None and surface in note.surfaces:
                found.append((cosine, shown))
        return found

    def commit(self, change: EpisodeChange, recorded_at: Instant) -> Difference | None:
        """Apply a decided change; None = the state must be built anew.

        Where it folds stored relation names; or where ends of every variant bear on another variant than
        before (R13), because it began earlier, or is the first that was told of.
        """
        graph, statements = self.graph, self.graph.statements
        if graph.relations.refolded(change.rulings, recorded_at):
            return None
        difference = graph.absorb(change, recorded_at)
        about = (statements[e.statement].key for e in change.evidence if e.statement in statements)
        for key in {key for key in about if key in graph.general}:
            best = min(graph.buckets[key], key=lambda s: statements[s].standing)
            if any(claim.statement != best for claim in graph.general[key]):
                return None
        for mention in change.mentions:
            shown, _ = graph.fold.shown(mention.entity, mention.surface, mention.sequence)
            self.names.add(shown, [mention.surface])
        for mention, vector in change.name_vectors:
            # The row of a surface that only retracted mentions had is still there, as in the store.
            owner = (mention.entity, mention.surface)
            if owner not in self._owned:
                self._owners.append(owner)
                self._owned.add(owner)
                self.nearest.extend(vector[None])
        for id_, found in change.statement_vectors:
            if (made := statements.get(id_)) and self._compares(made.relation, self._vectors_for[0]):
                self.statement_vectors[id_] = found.vector
        self._rulings += bool(change.rulings)
        self.ontology_settled = True
        self.last_recorded = recorded_at
        return difference

    def _compares(self, relation: str, judging: str) -> bool:
        """Whether statements of a relation are compared by similarity."""
        return judging == "statement" or self.graph.relations.traits(relation).cardinality == "depends"

    def wanted_vectors(self, judging: str) -> tuple[int, list[str]] | None:
        """Return which statements' vectors are to be read before deciding; None = nothing new to read.

        judging: as in `Rules`. The number tells `take_wanted` as of which ruling; nothing is read twice.
        """
        if self._vectors_for == (judging, self._rulings):
            return None
        there = self.graph.by_relation.items()
        meant = (those for relation, those in there if self._compares(relation, judging))
        return self._rulings, [id_ for those in meant for id_ in those if id_ not in self.statement_vectors]

    def take_wanted(self, wanted: tuple[int, list[str]], judging: str, found: Iterable[Row]) -> None:
        """Take the rows of the vectors that `wanted_vectors` asked for."""
        self.statement_vectors.update((row[0], rows.as_vector(row[-1])) for row in found)
        self._vectors_for = (judging, wanted[0])

    def clear(self) -> None:
        """Empty a state that is not used any more."""
        let_go(*vars(self.graph).values(), *vars(self).values(), self.names.postings)


class AheadRows:
    """The rows of a group's uncommitted episodes, by the sequence that would add them and by key."""

    def __init__(self) -> None:
        self.of: dict[int, dict[ReadKey, list[Any]]] = {}  # by sequence
        self.read: dict[int, set[ReadKey]] = {}  # which keys an episode's last try read
        self._adding: defaultdict[ReadKey, set[int]] = defaultdict(set)  # the sequences with rows under a key

    def put(self, sequence: int, attempt: Decision | None) -> set[int]:
        """Replace an episode's rows (None: remove); return the later sequences that read a change."""
        now: dict[ReadKey, list[Any]] = {}
        for key, item in () if attempt is None else _rows_of(attempt):
            now.setdefault(key, []).append(item)
        before = self.of.pop(sequence, {})
        for key in before.keys() - now.keys():
            self._adding[key].discard(sequence)
            if not self._adding[key]:
                del self._adding[key]
        for key in now:
            self._adding[key].add(sequence)
        if now:
            self.of[sequence] = now
        both = before.keys() & now.keys()
        changed = before.keys() ^ now.keys()
        changed |= {k for k in both if list(map(_as_read, before[k])) != list(map(_as_read, now[k]))}
        later = ((reader, keys) for reader, keys in self.read.items() if reader > sequence)
        return {reader for reader, keys in later if not changed.isdisjoint(keys)}

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


def _rows_of(attempt: Decision) -> Iterator[tuple[ReadKey, object]]:
    """Yield, by key, what later episodes would find if this one were committed as decided now."""
    change = attempt.change
    if change is None:
        return
    for note in attempt.entities:
        yield ("entity", note.id), note
    yield from ((("guess", guessed), True) for guessed in attempt.guessed)
    yield from ((("mention", mention.entity), True) for mention in change.mentions)
    borne = [(note.id, surface) for note in attempt.entities for surface in note.surfaces]
    for entity, surface in (*borne, *attempt.aliases):
        yield from ((("name", key), entity) for key in blocking_keys(surface))
    for statement in attempt.statements:
        subject, relation, made = statement.subject, statement.relation, statement.id
        yield ("statement", made), statement
        yield ("bucket", statement.key), made
        yield ("slot", ("s", subject, relation)), made
        yield ("ends", (subject, statement.key[2])), made
        yield ("relation", relation), made
    for mention, vector in change.name_vectors:
        yield ("vectors", ""), _NameRow(mention.entity, prepared(vector))
    first = {e.relation: (e.sequence, e.ordinal) for e in reversed(change.evidence)}
    yield from ((("uses", ""), use) for use in reversed(first.items()))
    for verdict in change.verdicts:
        yield ("verdict", (verdict.a, verdict.b)), verdict.exclusive
    for ruling in change.rulings:
        yield ("rulings", ""), ruling
        yield from ((("ruling", name), ruling) for name in (ruling.name, ruling.other) if name)


def _as_read(item: object) -> object:
    if isinstance(item, EntityNote):
        return item.id, tuple(item.surfaces), item.card, item.labels
    if isinstance(item, Statement):
        return item.id, item.key, item.wording, item.variant
    return item


class AheadState:
    """A group's state as an uncommitted episode will probably find it: a true state and the rows below it."""

    def __init__(self, base: GroupState, rows: AheadRows, sequence: int) -> None:
        self._base, self._rows, self._sequence = base, rows, sequence
        self.read_keys: set[ReadKey] = set()  # looked up among uncommitted rows so far
        self.names = NameLookUp(_Lists(base.names.postings, self, "name"))
        # All uses share one key, and all rulings: these are rare, and one may fold any name.
        self.graph = AheadGraph(
            base.graph, self, rows.below("uses", "", sequence), rows.below("rulings", "", sequence)
        )
        self.ontology_settled = base.ontology_settled or min(rows.of, default=sequence) < sequence
        self.statement_vectors = base.statement_vectors

    def below(self, table: str, key: Hashable) -> list[Any]:
        """Return the uncommitted items under a key, and note that it was read."""
        self.read_keys.add((table, key))
        return self._rows.below(table, key, self._sequence)

    def is_guess(self, entity: str) -> bool:
        """Whether an uncommitted episode made the entity while a question about it is open."""
        return bool(self.below("guess", entity))

    def mention_count(self, entity: str) -> int:
        """Return the number of mentions of an entity so far, with those in uncommitted episodes."""
        return self._base.mention_count(entity) + len(self.below("mention", entity))

    def near_scored(self, vector: Vector, floor: float, limit: int) -> list[tuple[float, str]]:
        """Return (cosine, shown entity) of near names, nearest first, uncommitted ones included."""
        found = self._base.near_scored(vector, floor, limit)
        # Not noted as read: every episode adds names, and each would make all later ones try again.
        fresh: list[_NameRow] = self._rows.below("vectors", "", self._sequence)
        scores = cosines(vector, [row.prepared for row in fresh])
        found += [(float(scores[n]), row.entity) for n, row in enumerate(fresh) if scores[n] >= floor]
        found.sort(key=lambda pair: -pair[0])
        return found[:limit]


class _Items(Mapping[K, V]):
    """Items by key: the stored one, else the first uncommitted one. It yields and counts the stored keys."""

    def __init__(self, stored: Mapping[K, V], view: AheadState, table: str) -> None:
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

    def __init__(
        self, base: GroupGraph, view: AheadState, uses: list[tuple[str, Place]], rulings: list[Ruling]
    ) -> None:
        self._base, self._view = base, view
        self.fold = base.fold
        self.entities = _Items(base.entities, view, "entity")
        self.statements = _Items(base.statements, view, "statement")
        self.buckets = _Lists(base.buckets, view, "bucket")
        self.slots = _Lists(base.slots, view, "slot")
        self.by_relation = _Lists(base.by_relation, view, "relation")
        self.by_ends = _Lists(base.by_ends, view, "ends")
        self.relations = base.relations
        fresh = [(name, place) for name, place in uses if not base.relations.in_use(name)]
        if rulings or fresh:
            self.relations = base.relations.copy()
            for name, place in fresh:
                self.relations.use(name, place)
            for ruling in rulings:
                self.relations.rule(ruling, LATER)

    def verdict(self, a: str, b: str) -> bool | None:
        """Return whether two statements were found exclusive, here or uncommitted; None = never judged."""
        known = self._base.verdict(a, b)
        if known is None and (found := self._view.below("verdict", (min(a, b), max(a, b)))):
            known = bool(found[-1])
        return known
