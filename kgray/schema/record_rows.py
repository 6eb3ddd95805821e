"""The record row of an entry: its records, packed into a few columns, and read back.

Each column except `vectors` is one MessagePack value: lists by position, with the number of the layout first,
so that a later version knows which layout it reads.

    packed   [layout, record time, mentions, evidence, ids of the statements that have a vector here]
    judged   [layout, declarations, verdicts], each with its own place and record time: a removal keeps what
             must survive of a removed episode in the row of its own sequence
    search   [layout, record time, evidence, names, statements, episode], with words, sign bits of vectors
             ("signs") and token weights
    names    [layout, [entity, surface, sequence, ordinal, vector], ...]
    vectors  the float32 vectors of the statements, then that of the episode, one after another

Each mention has the birth place of its recorded entity beside it, each piece of evidence that of its
statement. So an episode is read by itself, and a birth survives the removal of the episode that made it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, islice, repeat
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, get_args

import msgpack
import numpy as np

from kgray.domain.records import Declaration, Evidence, EvidenceKind, Mention, Place, Value, Verdict
from kgray.domain.times import Instant
from kgray.language.words import packed as packed_words
from kgray.schema.kinds import RecordRow
from kgray.schema.reads import PackedRow
from kgray.schema.rows import sign_bits

LAYOUT = 1  # of every packed column
_CHUNK = 100  # rows that are unpacked together: they fit the processor cache, and loops in C are short
_Built = TypeVar("_Built", Mention, Evidence)
_MENTION = ("ordinal", "surface", "entity", "type", "sentence", "key", "resolved_by")
_EVIDENCE = (
    "ordinal", "statement", "variant", "kind", "relation", "text", "subject", "object",
)  # fmt: skip
_DATES = (
    "valid_from", "valid_to", "from_precision", "to_precision", "inferred", "fact_group", "every_variant",
    "is_reversed", "is_field",
)  # fmt: skip
_DECLARATION = tuple(field.name for field in fields(Declaration))
_VERDICT = tuple(field.name for field in fields(Verdict))
_mention_of, _evidence_of, _dates_of = (attrgetter(*names) for names in (_MENTION, _EVIDENCE, _DATES))
_declaration_of, _verdict_of = attrgetter(*_DECLARATION), attrgetter(*_VERDICT)


class NameVector(NamedTuple):
    """The vector (float32) of a surface of an entity, with the place of the first mention of that surface."""

    entity: str
    surface: str
    sequence: int
    ordinal: int
    vector: bytes


class TextVector(NamedTuple):
    """The vector (float32) of a text, and the weights of its tokens where the embedder weighs them."""

    vector: bytes
    weights: bytes | None = None


class Judgements(NamedTuple):
    """Declarations and verdicts, each with its record time."""

    declarations: list[tuple[Declaration, Instant]]
    verdicts: list[tuple[Verdict, Instant]]


@dataclass(slots=True, kw_only=True)
class EntryRecords:
    """The records of one entry of the log, before they are packed.

    births      the birth places of the recorded entities and statements in the records
    statements  the vectors of statements, by id
    text        the text whose words a search matches; None: the entry is no episode
    """

    sequence: int
    recorded_at: Instant
    mentions: Sequence[Mention] = ()
    evidence: Sequence[Evidence] = ()
    births: Mapping[str, Place] = field(default_factory=dict)
    judgements: Judgements = field(default_factory=lambda: Judgements([], []))
    names: Sequence[NameVector] = ()
    statements: Mapping[str, TextVector] = field(default_factory=dict)
    text: str | None = None
    vector: TextVector | None = None

    def __bool__(self) -> bool:
        """Return whether the entry has any record."""
        return any((self.mentions, self.evidence, self.names, self.statements, self.text, *self.judgements))

    def row(self) -> RecordRow:
        """Return the row."""
        vectors = [*self.statements.values(), *([self.vector] if self.vector else [])]
        packed = [
            LAYOUT,
            self.recorded_at,
            [self._mention(mention) for mention in self.mentions],
            [self._evidence(item) for item in self.evidence],
            list(self.statements),
        ]
        return RecordRow(
            sequence=self.sequence,
            timed=self.recorded_at if any(self.judgements) else None,
            statements=tuple(f"{item.ordinal} {item.statement}" for item in self.evidence),
            packed=_pack(packed),
            judged=judged_column(self.judgements),
            search=self._search(vectors),
            names=_pack([LAYOUT, *self.names]) if self.names else None,
            vectors=b"".join(text.vector for text in vectors) or None,
        )

    def _mention(self, mention: Mention) -> tuple[Any, ...]:
        return (*_mention_of(mention), *(mention.span or (None, None)), *self.births[mention.entity])

    def _evidence(self, item: Evidence) -> tuple[Any, ...]:
        value = item.value
        columns = (None, None, None) if value is None else (value.type, value.value, value.unit)
        return (*_evidence_of(item), *columns, *_dates_of(item), *self.births[item.statement])

    def _search(self, vectors: Sequence[TextVector]) -> bytes:
        signs = _signs([*(name.vector for name in self.names), *(text.vector for text in vectors)])
        name_signs, text_signs = signs[: len(self.names)], signs[len(self.names) :]
        # The relation's words too: "where does she live" meets "moved to Lyon" in LIVES_IN.
        evidence = [
            (item.ordinal, item.statement, packed_words(f"{item.text} {item.relation.replace('_', ' ')}"))
            for item in self.evidence
        ]
        names = [
            (name.sequence, name.ordinal, name.entity, name.surface, packed_words(name.surface), bits)
            for name, bits in zip(self.names, name_signs, strict=True)
        ]
        statements = [
            (id_, text.weights, bits)
            for (id_, text), bits in zip(self.statements.items(), text_signs, strict=False)
        ]
        episode = None
        if self.text is not None:
            weights, bits = (self.vector.weights, text_signs[-1]) if self.vector else (None, None)
            episode = (packed_words(self.text), weights, bits)
        return _pack([LAYOUT, self.recorded_at, evidence, names, statements, episode])


def _pack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, unicode_errors="strict")
    return packed


def unpack(column: bytes) -> list[Any]:
    """Return the values of a column after its layout number. Raises ValueError for an unknown layout."""
    values: list[Any]
    layout, *values = msgpack.unpackb(column, strict_map_key=False)
    if layout != LAYOUT:
        raise ValueError(f"a record of layout {layout}: this version reads {LAYOUT}")
    return values


def _signs(vectors: Sequence[bytes]) -> list[bytes]:
    """Return the sign bits of vectors of one width."""
    if not vectors:
        return []
    matrix = np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), -1)
    return [row.tobytes() for row in sign_bits(matrix)]


def judged_column(judgements: Judgements) -> bytes | None:
    """Return the column `judged`; None without declarations and verdicts."""
    if not any(judgements):
        return None
    declarations = [(*_declaration_of(declaration), at) for declaration, at in judgements.declarations]
    verdicts = [(*_verdict_of(verdict), at) for verdict, at in judgements.verdicts]
    return _pack([LAYOUT, declarations, verdicts])


def judgements(column: bytes | None) -> Judgements:
    """Return the declarations and verdicts of a column `judged`."""
    if column is None:
        return Judgements([], [])
    declarations, verdicts = unpack(column)
    return Judgements(
        [(Declaration(**dict(zip(_DECLARATION, columns, strict=True))), at) for *columns, at in declarations],
        [(_verdict(columns), at) for *columns, at in verdicts],
    )


def _verdict(columns: Sequence[Any]) -> Verdict:
    named = dict(zip(_VERDICT, columns, strict=True))
    return Verdict(**named | {"subjects": tuple(named["subjects"])})


@dataclass(slots=True)
class UnpackedRecords:
    """The mentions and evidence of many entries, in order of place.

    births      the birth places of the recorded ids in them
    vectors     for each entry whose row has vectors of statements: record time, sequence, ids of these
    """

    mentions: list[Mention] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    births: dict[str, Place] = field(default_factory=dict)
    vectors: list[tuple[Instant, int, list[str]]] = field(default_factory=list)

    def take(self, rows: Iterable[PackedRow], strings: dict[str, str]) -> None:
        """Add rows in order of sequence; `strings` keeps one object for each repeated string."""
        source = iter(rows)
        while part := list(islice(source, _CHUNK)):
            unpacked = [(row.sequence, *unpack(row.packed)) for row in part]
            self.mentions += _mentions([(entry[0], entry[2]) for entry in unpacked], strings, self.births)
            self.evidence += _evidence([(entry[0], entry[3]) for entry in unpacked], strings, self.births)
            self.vectors += [(at, sequence, ids) for sequence, at, _, _, ids in unpacked if ids]


def newest_vectors(entries: Iterable[tuple[Instant, int, list[str]]]) -> dict[str, Place]:
    """Return statement -> (sequence, position) of its newest vector; entries: `UnpackedRecords.vectors`."""
    return {
        id_: (sequence, position) for _, sequence, ids in sorted(entries) for position, id_ in enumerate(ids)
    }


def _mentions(
    packed: Sequence[tuple[int, list[Any]]], strings: dict[str, str], births: dict[str, Place]
) -> list[Mention]:
    names = (*_MENTION, "start", "end", "born", "born_ordinal")
    columns = _columns(names, packed)
    if not columns:
        return []
    for name in ("surface", "entity", "type", "resolved_by"):
        columns[name] = list(map(strings.setdefault, columns[name], columns[name]))
    births.update(
        zip(columns["entity"], zip(columns["born"], columns["born_ordinal"], strict=True), strict=True)
    )
    columns["span"] = [
        None if start is None else (start, end)
        for start, end in zip(columns["start"], columns["end"], strict=True)
    ]
    return _built(Mention, columns)


def _evidence(
    packed: Sequence[tuple[int, list[Any]]], strings: dict[str, str], births: dict[str, Place]
) -> list[Evidence]:
    names = (*_EVIDENCE, "value_type", "value", "unit", *_DATES, "born", "born_ordinal")
    columns = _columns(names, packed)
    if not columns:
        return []
    for name in ("statement", "kind", "relation"):
        columns[name] = list(map(strings.setdefault, columns[name], columns[name]))
    births.update(
        zip(columns["statement"], zip(columns["born"], columns["born_ordinal"], strict=True), strict=True)
    )
    columns["value"] = [
        None if type_ is None else Value(strings.setdefault(type_, type_), value, unit)  # type: ignore[arg-type]
        for type_, value, unit in zip(columns["value_type"], columns["value"], columns["unit"], strict=True)
    ]
    return _built(Evidence, columns)


def _columns(names: Sequence[str], packed: Sequence[tuple[int, list[Any]]]) -> dict[str, Any]:
    """Return the columns of rows, with a column of their sequences; {} without rows."""
    rows = chain.from_iterable(rows for _, rows in packed)
    columns: dict[str, Any] = dict(zip(names, zip(*rows, strict=True), strict=False))
    if columns:
        if len(columns) != len(names):
            raise ValueError(f"a packed record of {len(columns)} columns, not {len(names)}")
        columns["sequence"] = chain.from_iterable(repeat(sequence, len(rows)) for sequence, rows in packed)
    return columns


def _built(row_class: type[_Built], columns: Mapping[str, Iterable[object]]) -> list[_Built]:
    """Return named tuples from their columns, by loops in C: a call of the class takes 4 times as long."""
    values = zip(*(columns[name] for name in row_class._fields), strict=True)
    return list(map(tuple.__new__, repeat(row_class), values))


def statement_texts(rows: Iterable[PackedRow]) -> dict[Place, str]:
    """Return the sentences of the evidence in packed records, by place."""
    records = UnpackedRecords()
    records.take(rows, {})
    return {(item.sequence, item.ordinal): item.text for item in records.evidence}


def name_vectors(column: bytes | None) -> Iterator[NameVector]:
    """Yield the vectors of a column `names`."""
    return map(NameVector._make, unpack(column)) if column is not None else iter(())


def vector_at(column: bytes | None, position: int, dimensions: int) -> bytes:
    """Return one vector of a column `vectors`."""
    width = 4 * dimensions
    return (column or b"")[position * width : (position + 1) * width]


class SearchColumns(NamedTuple):
    """The content of a column `search`.

    evidence    [ordinal, statement, words]
    names       [sequence, ordinal, entity, surface, words, signs]
    statements  [id, weights, signs], in the order of their vectors
    episode     (words, weights, signs), None for the row of a removal
    """

    recorded_at: Instant
    evidence: list[tuple[int, str, bytes]]
    names: list[tuple[int, int, str, str, bytes, bytes]]
    statements: list[tuple[str, bytes | None, bytes]]
    episode: tuple[bytes, bytes | None, bytes | None] | None


def search_columns(column: bytes) -> SearchColumns:
    """Return the content of a column `search`."""
    return SearchColumns(*unpack(column))


def with_statement_vectors(row: RecordRow, added: Mapping[str, TextVector]) -> RecordRow:
    """Return the row of a removal with the vectors of more statements."""
    recorded_at, *_, ids = unpack(row.packed)
    columns = search_columns(row.search)
    signs = _signs([text.vector for text in added.values()])
    statements = [
        *columns.statements,
        *((id_, text.weights, bits) for (id_, text), bits in zip(added.items(), signs, strict=True)),
    ]
    return row._replace(
        packed=_pack([LAYOUT, recorded_at, [], [], [*ids, *added]]),
        search=_pack([LAYOUT, *columns._replace(statements=statements)]),
        vectors=b"".join((row.vectors or b"", *(text.vector for text in added.values()))) or None,
    )


def faults_of(row: RecordRow) -> dict[int, str]:
    """Return the pieces of evidence that derivation cannot use: ordinal -> the reason.

    Raises ValueError, TypeError or LookupError if a column of the row cannot be read.
    """
    judgements(row.judged)
    search_columns(row.search)
    deque(name_vectors(row.names), maxlen=0)
    _, mentions, evidence, _ = unpack(row.packed)
    ordinals = {mention[0] for mention in mentions}
    kinds = frozenset(get_args(EvidenceKind))
    faults = {}
    for item in evidence:
        columns = dict(zip((*_EVIDENCE, "value_type"), item, strict=False))
        if not ordinals.issuperset({columns["subject"], columns["object"]} - {None}):
            faults[columns["ordinal"]] = "a mention that it names is not stored"
        elif columns["kind"] not in kinds or (columns["object"] is None and columns["value_type"] is None):
            faults[columns["ordinal"]] = "its kind is unknown, or it has neither an object nor a value"
    return faults


def without_evidence(row: RecordRow, ordinals: Collection[int]) -> RecordRow:
    """Return a row without some of its evidence."""
    recorded_at, mentions, evidence, ids = unpack(row.packed)
    columns = search_columns(row.search)
    packed = [LAYOUT, recorded_at, mentions, [item for item in evidence if item[0] not in ordinals], ids]
    searched = [item for item in columns.evidence if item[0] not in ordinals]
    return row._replace(
        statements=tuple(s for s in row.statements if int(s.partition(" ")[0]) not in ordinals),
        packed=_pack(packed),
        search=_pack([LAYOUT, *columns._replace(evidence=searched)]),
    )
