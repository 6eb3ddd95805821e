"""Reads the contents of a search index: the searched columns of entries, and their vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgray.domain.graph import PROFILE, Community
from kgray.domain.records import Place
from kgray.domain.times import Instant
from kgray.ports import Store
from kgray.schema import kinds, reads
from kgray.schema.kinds import R, Read
from kgray.schema.reads import MessageRow
from kgray.schema.record_rows import SearchColumns, name_vectors, vector_at
from kgray.schema.rows import community

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
