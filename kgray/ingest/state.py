"""Input and output of decisions: an episode, the state of its group, answers so far, and open questions.

Decisions read a group as a `KnownState`. A `GroupState` is the true state, updated by commits, and equal to a
state that is loaded from the store. An `AheadState` also shows the probable additions of earlier uncommitted
episodes. It may be wrong, and lack rows: it only serves to find questions early. It reads the `AheadRows` of
smaller sequences, and notes the keys of its reads, so that a change repeats only the tries that it affects.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgray.domain.ontology import Ontology
from kgray.domain.records import (
    Declaration,
    Episode,
    Evidence,
    ExtractedFact,
    Extraction,
    GroupRecords,
    Place,
)
from kgray.domain.times import Instant
from kgray.errors import damaged
from kgray.graph.change import Difference, EpisodeChange
from kgray.graph.group import GroupGraph
from kgray.graph.names import EntityNote
from kgray.graph.statements import Statement
from kgray.graph.stored import stored_names, stored_records
from kgray.ingest.candidates import (
    NameIndex,
    NameLookUp,
    Nearest,
    Prepared,
    ToldNames,
    blocking_keys,
    cosines,
    prepared,
    quantised,
)
from kgray.ports import Answer, Embedding, Question, Store, Vector
from kgray.schema import rows
from kgray.schema.record_rows import NameVector
from kgray.system.garbage import garbage_not_collected, let_go

KnownState: TypeAlias = "GroupState | AheadState"
# Measured: a group of 24,900 statements and 35,577 names took 327 MB; the split between them is an estimate.
BYTES_A_STATEMENT, BYTES_A_NAME = 8_000, 3_500
BYTES_A_VECTOR = 300  # besides a byte for each dimension
_LARGE_BYTES = 16 << 20
LATER = 1 << 62
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
ReadKey = tuple[str, Hashable]  # (table, key within it)
Quantised: TypeAlias = NDArray[np.int8]  # (dimensions,), as `candidates.quantised` gives it


@dataclass(slots=True, kw_only=True)
class ReadEpisode:
    """An episode with its extraction.

    text_names  the same in the shape of the ontology, with the names of the text; set by the first try
    """

    episode: Episode
    extraction: Extraction
    text_names: ToldNames | None = None


@dataclass(slots=True)
class Answers:
    """The results of an episode's earlier rounds (R21).

    vectors             by text
    by_question         answers
    statement_vectors   quantised vectors of stored statements by id; None: the store has none
    """

    vectors: dict[str, Embedding] = field(default_factory=dict)
    by_question: dict[Question, Answer] = field(default_factory=dict)
    statement_vectors: dict[str, Quantised | None] = field(default_factory=dict)


@dataclass(slots=True)
class Questions:
    """The missing input of a decision on an episode.

    texts               to embed
    statement_vectors   ids of stored statements whose vectors must be read before the questions are final
    open                questions to a model
    rests_on_guess      on a view: they depend on a guess, and may change with its answer
    """

    texts: list[str] = field(default_factory=list)
    statement_vectors: list[str] = field(default_factory=list)
    open: list[Question] = field(default_factory=list)
    rests_on_guess: bool = False

    def __bool__(self) -> bool:
        return bool(self.texts or self.statement_vectors or self.open)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings that decisions depend on; fixed for a run."""

    ontology: Ontology
    judge: str  # identity of the judge, recorded with its verdicts
    statement_floor: float = 1.0  # minimum cosine of statements about one entity for a comparison (R17a)


@dataclass(frozen=True, slots=True)
class Case:
    """The input of the decision steps for one episode.

    extraction     in the shape of the ontology, with the names that the text gives
    same_entities  ordinal of an entity -> ordinals of the entities that the text declares to be the same
    questions      collects the open questions
    """

    episode: Episode
    extraction: Extraction
    same_entities: Mapping[int, Sequence[int]]
    state: KnownState
    answers: Answers
    rules: Rules
    questions: Questions

    def answer(self, question: Question) -> Answer | None:
        """Return the answer to a question; without an answer note the question as open and return None."""
        answer = self.answers.by_question.get(question)
        if answer is None and question not in self.questions.open:
            self.questions.open.append(question)
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The result of one pass over an episode: its open questions, and the change.

    change     for an open question about an entity it assumes the only candidate, or a new entity if there
               are several; for an open comparison, a new statement. None only while texts have no vector yet
    entities   the new entities of this episode
    guessed    ids of the new entities that only represent an open question
    aliases    (shown entity, surface) for each surface that is new to a stored entity
    """

    questions: Questions
    change: EpisodeChange | None = None
    entities: tuple[EntityNote, ...] = ()
    guessed: frozenset[str] = frozenset()
    statements: tuple[Statement, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()


class GroupState:
    """One group's graph with the look-ups that resolution needs. Has one owner; not thread-safe."""

    def __init__(
        self,
        records: GroupRecords,
        names: Iterable[NameVector],
        dimensions: int,
        vector_places: dict[str, Place] | None = None,
    ) -> None:
        """Build everything from the group's live records and the vectors of its names, in order of place.

        vector_places: the places of the stored vectors of statements (`StoredRecords.vectors`)
        """
        self.group = records.group
        self.graph = GroupGraph.build(records)
        self.names = NameIndex()
        self.nearest = Nearest(dimensions, sum(len(note.surfaces) for note in self.graph.entities.values()))
        self.last_recorded = records.last_recorded
        self.ontology_settled = False
        self.statement_vectors: dict[str, Quantised] = {}  # of statements that were made or compared
        self.vector_places = vector_places or {}
        self._owners: list[tuple[str, str]] = []  # row of `nearest` -> (recorded entity, surface)
        self._dimensions = dimensions
        for note in sorted(self.graph.entities.values(), key=lambda n: (n.born, n.id)):
            self.names.add(note.id, note.surfaces, new=True)
        while part := list(islice(names, 128)):
            self._owners += ((name.entity, name.surface) for name in part)
            matrix = rows.as_vector(b"".join([name.vector for name in part])).reshape(len(part), -1)
            self.nearest.extend(matrix, sort=False)
        self.nearest.sort()
        self._owned = set(self._owners)

    @classmethod
    def load(cls, store: Store, group: str, dimensions: int) -> GroupState:
        """Read the group from the store."""
        with garbage_not_collected():
            stored = stored_records(store, group)
            records = stored.live
            try:
                names = stored_names(store, group, stored.saved_at)
                state = cls(records, names, dimensions, stored.vectors)
            except (LookupError, ValueError, TypeError, AttributeError) as fault:  # a row that cannot be read
                raise damaged(group, fault) from fault
            let_go(stored.heads, records.heads, records.mentions, records.evidence)
            if state.is_large:
                gc.freeze()  # else the collector looks at all of it at once, and the loop waits
        return state

    def size(self) -> int:
        """Return about how many bytes the state takes."""
        vectors = len(self.statement_vectors) * (self._dimensions + BYTES_A_VECTOR)
        return len(self.graph.statements) * BYTES_A_STATEMENT + len(self._owners) * BYTES_A_NAME + vectors

    @property
    def is_large(self) -> bool:
        """Return whether freeing it at once, or collecting garbage in it, would keep the loop waiting."""
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
        scored = []
        for cosine, row in self.nearest.near(vector, floor, limit):
            recorded, surface = self._owners[row]
            shown_id, _ = self.graph.fold.shown(recorded, surface, 0)
            note = self.graph.entities.get(shown_id)
            if note is not None and surface in note.surfaces:
                scored.append((cosine, shown_id))
        return scored

    def commit(self, change: EpisodeChange, recorded_at: Instant) -> Difference | None:
        """Apply a decided change; return None if the state must be loaded again instead.

        This is the case if the change folds stored relation names, or gives a stored statement the ontology's
        name (R17c), or if an end without a variant now belongs to another variant (R13), because that began
        earlier, or is the first variant with evidence of its own.
        """
        graph, statements = self.graph, self.graph.statements
        if graph.relations.refolded(change.declarations, recorded_at):
            return None
        relations = graph.relations.copy() if change.declarations else graph.relations
        for declaration in change.declarations:
            relations.declare(declaration, recorded_at)
        if graph.renames(change, relations):
            return None
        difference = graph.absorb(change, recorded_at)
        about = (statements[e.statement].key for e in change.evidence if e.statement in statements)
        for key in {key for key in about if key in graph.ends_without_variant}:
            best = min(graph.with_key(key), key=lambda s: statements[s].end_rank)
            if any(claim.statement != best for claim in graph.ends_without_variant[key]):
                return None
        for mention in change.mentions:
            shown_id, _ = graph.fold.shown(mention.entity, mention.surface, mention.sequence)
            self.names.add(shown_id, [mention.surface])
        for mention, vector in change.name_vectors:
            # The row of a surface that only retracted mentions had is still there, as in the store.
            owner = (mention.entity, mention.surface)
            if owner not in self._owned:
                self._owners.append(owner)
                self._owned.add(owner)
                self.nearest.extend(vector[None])
        for id_, embedding in change.statement_vectors:
            self.statement_vectors[id_] = quantised(embedding.vector)
        self.ontology_settled = True
        self.last_recorded = recorded_at
        return difference

    def statement_vector(self, statement: str) -> Quantised | None:
        """Return the quantised vector of a statement, if it is in memory."""
        return self.statement_vectors.get(statement)

    def spans(self, statement: str) -> list[tuple[Instant | None, Instant | None]]:
        """Return the (start, end) of a statement's spans as derived now; None = unknown, or still."""
        return [(span.start, span.end) for span in self.graph.spans_now(statement)]

    def clear(self) -> None:
        """Empty a state that is not used any more."""
        let_go(*vars(self.graph).values(), *vars(self).values(), self.names.postings)


def span_of(claim: Evidence | ExtractedFact) -> tuple[Instant | None, Instant | None]:
    """Return (start, end) of the span that a piece of evidence claims by itself."""
    if claim.kind in ("ended", "denied"):
        return claim.valid_to, claim.valid_to
    return claim.valid_from, claim.valid_to


class AheadRows:
    """The predicted additions (not rows of the store) of uncommitted episodes, by sequence and key."""

    def __init__(self) -> None:
        self.by_sequence: dict[int, dict[ReadKey, list[Any]]] = {}
        self.keys_read: dict[int, set[ReadKey]] = {}  # the keys that an episode's last try read
        self._sequences_by_key: defaultdict[ReadKey, set[int]] = defaultdict(set)

    def put(self, sequence: int, attempt: Decision | None) -> set[int]:
        """Replace an episode's rows (None: remove); return the later sequences that read a change."""
        rows: dict[ReadKey, list[Any]] = {}
        for key, item in () if attempt is None else _rows_of(attempt):
            rows.setdefault(key, []).append(item)
        former_rows = self.by_sequence.pop(sequence, {})
        for key in former_rows.keys() - rows.keys():
            self._sequences_by_key[key].discard(sequence)
            if not self._sequences_by_key[key]:
                del self._sequences_by_key[key]
        for key in rows:
            self._sequences_by_key[key].add(sequence)
        if rows:
            self.by_sequence[sequence] = rows
        both = former_rows.keys() & rows.keys()
        changed = former_rows.keys() ^ rows.keys()
        changed |= {k for k in both if list(map(_as_read, former_rows[k])) != list(map(_as_read, rows[k]))}
        later = ((reader, keys) for reader, keys in self.keys_read.items() if reader > sequence)
        return {reader for reader, keys in later if not changed.isdisjoint(keys)}

    def rows_before(self, table: str, key: Hashable, sequence: int) -> list[Any]:
        """Return the items under a key of the episodes before `sequence`, in order."""
        place = (table, key)
        if not (adding := self._sequences_by_key.get(place)):  # of most keys nobody adds a row
            return []
        return [
            item
            for earlier in sorted(adding)
            if earlier < sequence
            for item in self.by_sequence[earlier][place]
        ]


@dataclass(frozen=True, slots=True)
class _VectorRow:
    """The vector of a new statement; readers see nothing else of it."""

    vector: Quantised = field(compare=False)


@dataclass(frozen=True, slots=True)
class _NameRow:
    """A new name's vector. Rows of one entity are equal, because readers see no more of them."""

    entity: str
    prepared: Prepared = field(compare=False)


def _rows_of(attempt: Decision) -> Iterator[tuple[ReadKey, object]]:
    """Yield (key, item) for all that later episodes would read after a commit of this decision."""
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
        subject, relation, new_id = statement.subject, statement.relation, statement.id
        yield ("statement", new_id), statement
        yield ("slot", ("s", subject, relation)), new_id
        yield ("ends", (subject, statement.key[2])), new_id
        yield from ((("about", end), new_id) for end in {subject, statement.object or subject})
    for mention, vector in change.name_vectors:
        yield ("vectors", ""), _NameRow(mention.entity, prepared(vector))
    for id_, embedding in change.statement_vectors:
        yield ("vector", id_), _VectorRow(quantised(embedding.vector))
    for verdict in change.verdicts:
        yield ("verdict", (verdict.a, verdict.b)), verdict.exclusive
    for declaration in change.declarations:
        yield ("declarations", ""), declaration
        names = filter(None, (declaration.name, declaration.other))
        yield from ((("declaration", name), declaration) for name in names)


def _as_read(item: object) -> object:
    """Return the part of an item that readers depend on."""
    if isinstance(item, EntityNote):
        return item.id, tuple(item.surfaces), item.card, item.labels
    if isinstance(item, Statement):
        return item.id, item.key, item.wording, item.variant
    return item


class AheadState:
    """A group's probable state for an uncommitted episode: a true state and the rows of earlier episodes."""

    def __init__(self, base: GroupState, rows: AheadRows, sequence: int) -> None:
        self._base, self._rows, self._sequence = base, rows, sequence
        self.read_keys: set[ReadKey] = set()  # looked up among uncommitted rows so far
        self.names = NameLookUp(_Lists(base.names.postings, self, "name"))
        # All declarations share one key: they are rare, and one may fold any name.
        self.graph = AheadGraph(base.graph, self, rows.rows_before("declarations", "", sequence))
        self.ontology_settled = base.ontology_settled or min(rows.by_sequence, default=sequence) < sequence

    def rows_before(self, table: str, key: Hashable) -> list[Any]:
        """Return the uncommitted items under a key, and note that it was read."""
        self.read_keys.add((table, key))
        return self._rows.rows_before(table, key, self._sequence)

    def is_guess(self, entity: str) -> bool:
        """Return whether an uncommitted episode made the entity while a question about it is open."""
        return bool(self.rows_before("guess", entity))

    def mention_count(self, entity: str) -> int:
        """Return the number of mentions of an entity so far, with those in uncommitted episodes."""
        return self._base.mention_count(entity) + len(self.rows_before("mention", entity))

    def statement_vector(self, statement: str) -> Quantised | None:
        """Return the quantised vector of a statement, if it is in memory, or of an uncommitted one."""
        stored = self._base.statement_vector(statement)
        if stored is None and (fresh := self.rows_before("vector", statement)):
            stored = fresh[0].vector
        return stored

    def spans(self, statement: str) -> list[tuple[Instant | None, Instant | None]]:
        """Return the spans of a statement; of an uncommitted one the span of its first evidence alone."""
        if statement in self._base.graph.statements:
            return self._base.spans(statement)
        return [span_of(self.graph.statements[statement].first)]

    def near_scored(self, vector: Vector, floor: float, limit: int) -> list[tuple[float, str]]:
        """Return (cosine, shown entity) of near names, nearest first, uncommitted ones included."""
        scored = self._base.near_scored(vector, floor, limit)
        # The read is not noted: every episode adds names, and each would make all later episodes try again.
        fresh: list[_NameRow] = self._rows.rows_before("vectors", "", self._sequence)
        scores = cosines(vector, [row.prepared for row in fresh])
        scored += [(float(scores[n]), row.entity) for n, row in enumerate(fresh) if scores[n] >= floor]
        scored.sort(key=lambda pair: -pair[0])
        return scored[:limit]


class _Items(Mapping[K, V]):
    """Items by key: the stored one, else the first uncommitted one. Yields and counts stored keys only."""

    def __init__(self, stored: Mapping[K, V], view: AheadState, table: str) -> None:
        self._stored, self._view, self._table = stored, view, table

    def get(self, key: K, default: Any = None, /) -> Any:  # noqa: ANN401 - as Mapping has it
        stored = self._stored.get(key)
        return stored if stored is not None else next(iter(self._view.rows_before(self._table, key)), default)

    def __getitem__(self, key: K, /) -> V:
        item: V | None = self.get(key)
        if item is None:
            raise KeyError(key)
        return item

    def __iter__(self) -> Iterator[K]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


class _Lists(_Items[K, list[str]]):
    """Lists by key: the stored items, then those of uncommitted rows."""

    def get(self, key: K, default: Any = None, /) -> Any:  # noqa: ANN401 - as Mapping has it
        uncommitted = self._view.rows_before(self._table, key)
        stored = self._stored.get(key, default)
        return [*(stored or ()), *uncommitted] if uncommitted else stored


class AheadGraph:
    """The group's graph with the statements, names and declarations of uncommitted episodes."""

    def __init__(self, base: GroupGraph, view: AheadState, declarations: list[Declaration]) -> None:
        self._base, self._view = base, view
        self.fold = base.fold
        self.entities = _Items(base.entities, view, "entity")
        self.statements = _Items(base.statements, view, "statement")
        self.attached = base.attached
        self.slots = _Lists(base.slots, view, "slot")
        self.about = _Lists(base.about, view, "about")
        self.by_ends = _Lists(base.by_ends, view, "ends")
        self.relations = base.relations.copy() if declarations else base.relations
        for declaration in declarations:
            self.relations.declare(declaration, LATER)

    def sentence(self, statement: Statement) -> str:
        """Return the sentence that represents a statement in comparisons."""
        return self._base.sentence(statement)

    def verdict(self, a: str, b: str) -> bool | None:
        """Return whether two statements were found exclusive, here or uncommitted; None = never judged."""
        is_exclusive = self._base.verdict(a, b)
        if is_exclusive is None and (verdicts := self._view.rows_before("verdict", (min(a, b), max(a, b)))):
            is_exclusive = bool(verdicts[-1])
        return is_exclusive
