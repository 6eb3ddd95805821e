"""Reads of a search: the contents of its index, and the facts and messages around its hits.

Around hits: the participants of hyper-edges, the last message of each fact, and which messages have only
facts that have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgray.domain.graph import PROFILE, Community, EpisodeRef, Fact, FactSpan, SourceMessage
from kgray.domain.records import Episode, Place
from kgray.domain.times import Instant, now, to_datetime
from kgray.ports import GraphView, Store
from kgray.schema import kinds, reads
from kgray.schema.kinds import R, Read
from kgray.schema.reads import MessageRow
from kgray.schema.record_rows import SearchColumns, name_vectors, vector_at
from kgray.schema.rows import community
from kgray.search.query import FoundRow

# (name, place of its vector) -> (name, vector)
Exact = Callable[[list[tuple[object, Place]]], Iterable[tuple[object, bytes]]]


def read_text_vectors(store: Store, group: str) -> Exact:
    """Return a function that reads vectors of a group's messages and statements."""

    def read(targets: list[tuple[object, Place]]) -> Iterable[tuple[object, bytes]]:
        sequences = list(dict.fromkeys(sequence for _, (sequence, _) in targets))
        columns = {row.sequence: row.vectors for row in store.rows(reads.VECTORS_AT, group, sequences)}
        return [
            (name, vector_at(columns[sequence], position, store.dimensions))
            for name, (sequence, position) in targets
            if sequence in columns
        ]

    return read


def read_name_vectors(store: Store, group: str) -> Exact:
    """Return a function that reads vectors of a group's names."""

    def read(targets: list[tuple[object, Place]]) -> Iterable[tuple[object, bytes]]:
        names = {name for name, _ in targets}
        sequences = list(dict.fromkeys(sequence for _, (sequence, _) in targets))
        rows = store.rows(reads.NAME_VECTORS_AT, group, sequences)
        stored = (vector for row in rows for vector in name_vectors(row.names))
        return [(name, v.vector) for v in stored if (name := (v.entity, v.surface)) in names]

    return read


def scanned(
    store: Store, group: str, scan: Read[R], look_up: Read[R], sequences: Sequence[int] | None
) -> Iterator[R]:
    """Return the rows of these sequences, or all rows if None."""
    return store.rows(scan, group) if sequences is None else store.rows(look_up, group, sequences)


class EvidencePlaces(NamedTuple):
    """The places of a group's evidence, by sequence; arrays that no extension of an index changes."""

    sequences: NDArray[np.int64]
    ordinals: NDArray[np.int64]
    number_of: NDArray[np.int64]  # row -> number of its statement
    numbers: Mapping[object, int]  # statement -> number

    def supporters(self, statements: Sequence[str], limit: int) -> dict[str, list[int]]:
        """Return statement -> the first `limit` sequences of its evidence."""
        by_number = {self.numbers[text]: text for text in statements if text in self.numbers}
        rows = np.flatnonzero(np.isin(self.number_of, [*by_number])) if by_number else ()
        sequences: dict[str, list[int]] = {text: [] for text in statements}
        for row in rows:
            supporting = sequences[by_number[int(self.number_of[row])]]
            if len(supporting) < limit:
                supporting.append(int(self.sequences[row]))
        return sequences

    def at(self, sequences: Iterable[int]) -> list[Place]:
        """Return the places of evidence at these sequences."""
        places: list[Place] = []
        for sequence in sequences:
            first, last = (int(self.sequences.searchsorted(sequence, side)) for side in ("left", "right"))
            places += [(sequence, int(ordinal)) for ordinal in self.ordinals[first:last]]
        return places


class LoadedPiece(NamedTuple):
    """A piece of evidence."""

    sequence: int
    ordinal: int
    statement: str
    words: bytes


class LoadedVector(NamedTuple):
    """A stored vector: its owner, the place of the vector, and its columns for a search."""

    name: object
    place: Place
    weights: bytes | None
    signs: bytes


class LoadedName(NamedTuple):
    """A surface of an entity, with the place of its first mention."""

    place: Place
    name: tuple[str, str]
    words: bytes
    vector: LoadedVector


class LoadedEntries:
    """The searched columns of many entries, in order of sequence."""

    def __init__(self) -> None:
        self.messages: list[MessageRow] = []
        self.words: list[bytes] = []
        self.pieces: list[LoadedPiece] = []
        self.names: list[LoadedName] = []
        self.message_vectors: list[LoadedVector] = []
        self.statement_vectors: dict[str, LoadedVector] = {}
        self._recorded_at: dict[str, Instant] = {}  # statement -> time of its newest vector, which is valid

    def take(self, sequence: int, columns: SearchColumns, message: MessageRow | None) -> None:
        """Add the columns of an entry; message: None for the row of a removal."""
        for at, (begun, ordinal, entity, surface, words, signs) in enumerate(columns.names):
            vector = LoadedVector((entity, surface), (sequence, at), None, signs)
            self.names.append(LoadedName((begun, ordinal), (entity, surface), words, vector))
        for at, (statement, weights, signs) in enumerate(columns.statements):
            if columns.recorded_at >= self._recorded_at.get(statement, columns.recorded_at):
                self._recorded_at[statement] = columns.recorded_at
                self.statement_vectors[statement] = LoadedVector(statement, (sequence, at), weights, signs)
        if message is None or columns.episode is None:
            return
        words, episode_weights, episode_signs = columns.episode
        self.messages.append(message)
        self.words.append(words)
        self.pieces += (LoadedPiece(sequence, *columns_of) for columns_of in columns.evidence)
        if episode_signs is not None:
            place = (sequence, len(columns.statements))
            self.message_vectors.append(LoadedVector(sequence, place, episode_weights, episode_signs))


def run_at(store: Store, group: str, known_at: Instant | None) -> tuple[int, Instant] | None:
    """Return (number, record time) of the newest stored run of communities recorded up to `known_at`."""
    runs = [(row.run, row.recorded_at) for row in store.rows(kinds.COMMUNITY_RUNS.all, group)]
    return next((run for run in reversed(runs) if known_at is None or run[1] <= known_at), None)


def texts_of(
    store: Store, group: str, run: int, ids: Iterable[str] | None = None
) -> tuple[list[Community], dict[str, Community]]:
    """Return the communities of a run, and entity id -> its profile; all of them, or only these ids."""
    read = reads.COMMUNITIES_OF_RUN if ids is None else reads.COMMUNITIES_AT
    texts = [*map(community, store.rows(read, group, [run] if ids is None else [(run, id_) for id_ in ids]))]
    return [t for t in texts if t.level != PROFILE], {t.id: t for t in texts if t.level == PROFILE}


_SUPPORTERS = 4  # episodes of a fact that are searched for its hyper-edge


@dataclass(frozen=True, slots=True)
class Around:
    """The facts and messages around hits.

    participants: fact id -> names in its hyper-edge; messages: fact id -> its last message
    outdated: ids of episodes whose facts have all ended
    """

    participants: Mapping[str, tuple[str, ...]]
    messages: Mapping[str, SourceMessage]
    outdated: frozenset[str]

    @classmethod
    def read(
        cls, view: GraphView, evidence: EvidencePlaces, moment: Instant | None, rows: Sequence[FoundRow]
    ) -> Around:
        """Read the evidence of all hits together. moment: facts end before it; None = now."""
        facts = [row for row in rows if isinstance(row, Fact)]
        episodes = [row for row in rows if isinstance(row, Episode)]
        supporters = evidence.supporters([fact.statement for fact in facts], _SUPPORTERS)
        sequences = dict.fromkeys(
            s for group in (*supporters.values(), [e.sequence for e in episodes]) for s in group
        )
        places = evidence.at(sequences)
        by_sequence: dict[int, dict[str, Fact]] = {}
        for (sequence, _), facts_there in zip(places, view.facts_of_evidence(places, None), strict=True):
            by_sequence.setdefault(sequence, {}).update((fact.id, fact) for fact in facts_there)
        at = now() if moment is None else moment
        groups: dict[str, list[str]] = {}
        for fact in facts:
            neighbours = (by_sequence.get(sequence, {}).values() for sequence in supporters[fact.statement])
            siblings = [
                f
                for facts_there in neighbours
                for f in facts_there
                if (f.relation, f.text) == (fact.relation, fact.text)
            ]
            ends = list(dict.fromkeys(end for f in (fact, *siblings) for end in f.ends))
            if len(ends) > 2 and len({f.statement for f in siblings}) > 1:
                groups[fact.id] = ends
        named = view.entities(list(dict.fromkeys(end for ends in groups.values() for end in ends)))
        names = {entity.id: entity.name for entity in named}
        participants = {
            id_: tuple(names[end] for end in ends if end in names) for id_, ends in groups.items()
        }
        ended = (e.id for e in episodes if _has_ended(by_sequence.get(e.sequence, {}).values(), at))
        last = {fact.id: supporters[fact.statement][-1] for fact in facts if supporters[fact.statement]}
        sources = {row.sequence: row for row in view.episodes(list(dict.fromkeys(last.values())))}
        messages = {id_: _source(sources[sequence]) for id_, sequence in last.items() if sequence in sources}
        return cls(participants, messages, frozenset(ended))


def _source(episode: Episode) -> SourceMessage:
    names = ("id", "client_id", "speaker", "text")
    fields: dict[str, Any] = {name: getattr(episode, name) for name in names}
    return SourceMessage(**fields, reference_time=to_datetime(episode.reference_time))


def _has_ended(facts: Collection[Fact], at: Instant) -> bool:
    """Return whether there is a fact, and all facts have ended."""
    return bool(facts) and all(fact.invalid_at is not None and fact.invalid_at <= at for fact in facts)


def spans_of(
    view: GraphView, facts: Sequence[Fact], inferred: Mapping[str, Sequence[str]] | None = None
) -> tuple[dict[str, FactSpan], Mapping[str, str | None]]:
    """Return fact id -> its public form, and episode id -> client's id for all episodes in them.

    inferred    fact id -> `FactSpan.inferred`; None = not looked up
    """
    if not facts:
        return {}, {}
    ends = list(dict.fromkeys(end for fact in facts for end in fact.ends))
    names = {entity.id: entity.name for entity in view.entities(ends)}
    supporters = {episode for fact in facts for episode in fact.episodes}
    supporters |= {fact.ended_by[0] for fact in facts if fact.ended_by is not None}
    clients = view.supporters(sorted(supporters))
    instants = {at for f in facts for at in (f.valid_at, f.invalid_at, f.created_at, f.expired_at)}
    # Many facts share their moments.
    moments: dict[int | None, datetime] = {at: to_datetime(at) for at in instants if at is not None}
    spans = {
        fact.id: FactSpan(
            id=fact.id,
            statement=fact.statement,
            text=fact.text,
            subject_id=fact.source,
            subject=names.get(fact.source),
            relation=fact.relation,
            object_id=fact.target,
            object=names.get(fact.target or "") if fact.value is None else fact.value.shown(),
            valid_at=moments.get(fact.valid_at),
            invalid_at=moments.get(fact.invalid_at),
            event=fact.event,
            created_at=moments[fact.created_at],
            expired_at=moments.get(fact.expired_at),
            episodes=tuple(EpisodeRef(id_, clients.get(id_)) for id_ in fact.episodes),
            ended_by=fact.ended_by,
            inferred=None if inferred is None else tuple(inferred.get(fact.id, ())),
        )
        for fact in facts
    }
    return spans, clients
