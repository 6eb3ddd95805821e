"""Values to the rows of `kgray.kinds`, and back; the only code that writes and reads columns of JSON."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgray import kinds, records
from kgray.errors import StoreError
from kgray.graph import AS_OF, Community, Entity, Fact
from kgray.kinds import COMMUNITIES, DECLARATIONS, EPISODES, EVIDENCE, FACTS, MENTIONS, VERDICTS, Kind, Row
from kgray.records import Episode, Evidence, Extraction, Mention, Operation, Value
from kgray.times import Instant
from kgray.words import packed

_Built = TypeVar("_Built", Mention, Evidence)
# Made once: a commit packs many texts. A `Value` becomes the list of its fields.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=astuple)
STATES: tuple[records.State, ...] = ("accepted", "extracted", "committed", "failed", "withdrawn")
_NAMED = [field for field in fields(Operation) if field.name not in {"group", "sequence", "kind"}]


class _Fields:
    """Fields of a value that are stored as columns, or as items of a JSON list, by the same names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.of = attrgetter(*self.names)  # value -> tuple

    def named(self, columns: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.names, columns, strict=True))


_EPISODE = _Fields(EPISODES.names[:10])
_MENTION = _Fields(MENTIONS.names[:8])
_EVIDENCE, _EVIDENCE_DATES = _Fields(EVIDENCE.names[:9]), _Fields(EVIDENCE.names[12:21])
_DECLARATION = _Fields(DECLARATIONS.names[:6])
_VERDICT = _Fields(VERDICTS.names[:7])
_FACT, _FACT_DATES = _Fields(FACTS.names[:7]), _Fields(FACTS.names[10:15])
_EXTRACTED_FACT = _Fields(field.name for field in fields(records.ExtractedFact))


def pack(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return compact JSON."""
    return _ENCODER.encode(value)


def storable(text: str) -> str:
    """Return a model's output as valid UTF-8: a lone surrogate becomes a question mark."""
    return text.encode(errors="replace").decode()


def folded(name: str) -> str:
    """Return a name in the form for look-ups, ignoring case and spacing."""
    return records.clean_text(records.clean_text(name).casefold())


def vector_bytes(vector: NDArray[np.float32]) -> bytes:
    """Return a vector as it is stored: float32, little-endian."""
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


def as_vector(kept: bytes) -> NDArray[np.float32]:
    """Return the vector that `vector_bytes` wrote; read-only."""
    return np.frombuffer(kept, "<f4")


def weight_bytes(tokens: NDArray[np.uint32], weights: NDArray[np.float32]) -> bytes:
    """Return the weights of a text's tokens as they are stored: ids, rising, as uint32, then float16.

    Of a token that is there several times the largest counts. What half precision has as 0 is left out.
    """
    half = weights.astype("<f2")
    order = np.lexsort((half, tokens))
    last = np.ones(len(order), bool)  # the largest of each token
    last[:-1] = tokens[order][1:] != tokens[order][:-1]
    kept = order[last & (half[order] > 0)]
    return tokens[kept].astype("<u4").tobytes() + half[kept].tobytes()


def as_weights(kept: bytes) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Return the tokens, rising, and their weights that `weight_bytes` wrote."""
    count = len(kept) // 6
    return np.frombuffer(kept, "<u4", count), np.frombuffer(kept, "<f2", offset=4 * count).astype(np.float32)


def sign_bits(matrix: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return (n, bytes): the signs of (n, d), padded with zero bits to whole words of 64.

    Near vectors are near in bits: the share of differing signs is angle / pi (Charikar, STOC 2002).
    """
    bits = np.packbits(matrix > 0, axis=1)
    missing = -bits.shape[1] % 8
    return np.pad(bits, ((0, 0), (0, missing))) if missing else bits


def computed(kind: Kind, row: Row, dimensions: int) -> Row:
    """Return the values of `kind.computed`: words (of no text: b"") and signs. Raises StoreError."""
    found = []
    if kind.text is not None:
        text = kind.text(row)
        found.append(b"" if text is None else packed(text))
    if kind.columns[-1].type == "vector":
        vector = as_vector(row[-1])
        if len(vector) != dimensions:
            raise StoreError(
                f"a vector of {len(vector)} numbers in a store of {dimensions} numbers a vector: nothing was "
                f"changed"
            )
        found.append(sign_bits(vector[None]).tobytes())
    return tuple(found)


def new_episode_row(
    draft: records.Draft, *, id_: str, content_sha256: str, sequence: int, now: Instant, bulk: bool
) -> Row:
    """Return the row of an accepted draft; id_, content_sha256: the draft's, which cost a hash each time."""
    time = now if draft.reference_time is None else draft.reference_time
    return (
        sequence, id_, draft.source, draft.kind, draft.text, time, content_sha256, draft.speaker,
        draft.client_id, draft.metadata, kinds.ACCEPTED, bulk, 0, None, None, None, None, None,
    )  # fmt: skip


def accepted_again(row: Row, sequence: int) -> Row:
    """Return the row that retries a failed episode; its attempts include those so far."""
    return (sequence, *row[1:10], kinds.ACCEPTED, *row[11:13], None, None, None, None, None)


def committed_row(episode: Episode, recorded_at: Instant) -> Row:
    """Return the row of an episode once it is committed."""
    state = (kinds.COMMITTED, episode.bulk, episode.attempts)
    return (*_EPISODE.of(episode), *state, recorded_at, *[None] * 4)


def failed_row(episode: Episode, recorded_at: Instant, kind: str, message: str, raw: str) -> Row:
    """Return the row of an episode that failed by its own content (R24), one attempt more."""
    return (
        *_EPISODE.of(episode), kinds.FAILED, episode.bulk, episode.attempts + 1, recorded_at, None, kind,
        storable(message), storable(raw),
    )  # fmt: skip


def episode(group: str, row: Row) -> Episode:
    """Read a row of `kinds.EPISODES`."""
    state, bulk, attempts = row[10:13]
    named = _EPISODE.named(row[:10])
    return Episode(group=group, state=STATES[state], bulk=bulk, attempts=attempts, **named)


def operation_row(
    operation: Operation,
    state: int = kinds.PENDING,
    recorded_at: Instant | None = None,
    result: Mapping[str, Any] | None = None,
) -> Row:
    """Return the row of an operation; once a withdrawal has ended, or any was refused, without what it named.

    A client's ids may contain personal text, and no removal would look for it here (R25).
    """
    forgets = state == kinds.REFUSED or (state == kinds.DONE and operation.withdraws)
    payload = "{}" if forgets else operation_payload(operation)
    kept = None if result is None else storable(pack(dict(result)))
    return (operation.sequence, operation.kind, payload, state, recorded_at, kept)


def operation_payload(operation: Operation) -> str:
    """Return what an operation names, without what is empty."""
    named = ((field.name, getattr(operation, field.name)) for field in _NAMED)
    return pack({name: value for name, value in named if value not in ((), "", None, False)})


def operation(group: str, row: Row) -> Operation:
    """Read a row of `kinds.OPERATIONS`."""
    sequence, kind, payload = row[:3]
    named: dict[str, Any] = {
        n: tuple(v) if isinstance(v, list) else v for n, v in json.loads(payload).items()
    }
    return Operation(group=group, sequence=sequence, kind=kind, **named)


def extraction_row(sequence: int, extraction: Extraction) -> Row:
    """Return the row of an extraction: what it cost, and the rest as JSON, fields by position."""
    body = {
        "entities": [(e.name, e.type, e.span, e.key_of, e.in_context) for e in extraction.entities],
        "facts": [_EXTRACTED_FACT.of(fact_) for fact_ in extraction.facts],
        "dropped": extraction.dropped,
        "model": extraction.model,
        "prompts": extraction.prompts,
    }
    cost = (extraction.calls, extraction.prompt_tokens, extraction.completion_tokens)
    return (sequence, *cost, storable(pack(body)))


def extraction(row: Row) -> Extraction:
    """Read a row of `kinds.EXTRACTIONS`."""
    _, calls, prompt_tokens, completion_tokens, text = row
    body = json.loads(text)
    return Extraction(
        entities=tuple(
            records.ExtractedEntity(
                name=name, type=type_, span=span and (span[0], span[1]), key_of=key_of, in_context=context
            )
            for name, type_, span, key_of, context in body["entities"]
        ),
        facts=tuple(
            records.ExtractedFact(**named | {"value": named["value"] and Value(*named["value"])})
            for named in map(_EXTRACTED_FACT.named, body["facts"])
        ),
        dropped=tuple(body["dropped"]),
        model=body["model"],
        prompts=tuple(body["prompts"]),
        calls=calls,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )


def answers_row(
    key: str, answers: Sequence[Mapping[str, Any]], calls: int, prompt_tokens: int, completion_tokens: int
) -> Row:
    """Return the row of a request's answers and of what they cost."""
    body = storable(pack([dict(answer) for answer in answers]))
    return (key, calls, prompt_tokens, completion_tokens, body)


def answers(row: Row) -> tuple[Mapping[str, Any], ...]:
    """Read the answers in a row of `kinds.ANSWERS`."""
    return tuple(json.loads(row[4]))


def mention_row(mention: Mention) -> Row:
    """Return the row of a mention."""
    return (*_MENTION.of(mention), *(mention.span or (None, None)))


def mentions(found: Iterable[Row], strings: dict[str, str]) -> list[Mention]:
    """Read rows of `kinds.MENTIONS`; `strings` keeps one object a repeated string (100k of them at load)."""
    made: list[Mention] = []
    for columns in _columns(MENTIONS, found):
        for name in ("surface", "entity", "type", "resolved_by"):
            columns[name] = map(strings.setdefault, columns[name], columns[name])
        spans = zip(columns.pop("span_from"), columns.pop("span_to"), strict=True)
        columns["span"] = [None if start is None else (start, end) for start, end in spans]
        made += _built(Mention, columns)
    return made


def evidence_row(item: Evidence, shown: str | None) -> Row:
    """Return the row of a piece of evidence; shown: the derived statement that it is about now."""
    return (*_EVIDENCE.of(item), *_value_columns(item.value), *_EVIDENCE_DATES.of(item), shown)


def evidence(found: Iterable[Row], strings: dict[str, str]) -> list[Evidence]:
    """Read rows of `kinds.EVIDENCE`; `strings` as in `mentions`."""
    made: list[Evidence] = []
    for columns in _columns(EVIDENCE, found):
        del columns["shown"]
        for name in ("statement", "kind", "relation"):
            columns[name] = map(strings.setdefault, columns[name], columns[name])
        values = zip(columns.pop("value_type"), columns["value"], columns.pop("unit"), strict=True)
        columns["value"] = [
            None if typed is None else Value(strings.setdefault(typed, typed), held, of)  # type: ignore[arg-type]
            for typed, held, of in values
        ]
        made += _built(Evidence, columns)
    return made


def _columns(kind: Kind, found: Iterable[Row]) -> Iterator[dict[str, Iterable[Any]]]:
    """Yield the columns of a few rows at a time: loops in C let no other thread run meanwhile."""
    source = iter(found)
    while part := list(islice(source, 2_000)):
        yield dict(zip(kind.names, zip(*part, strict=True), strict=True))


def _value_columns(value: Value | None) -> Row:
    return (None, None, None) if value is None else (value.type, value.value, value.unit)


def _built(made_as: type[_Built], columns: Mapping[str, Iterable[object]]) -> list[_Built]:
    """Return slotted values from their columns, field by field; that of sequences is a tuple.

    It takes a third of the time of calling the class 300,000 times, because the loops run in C.
    """
    made = [object.__new__(made_as) for _ in columns["sequence"]]
    for name, column in columns.items():
        deque(map(getattr(made_as, name).__set__, made, column), maxlen=0)
    return made


def declaration_row(declaration_: records.Declaration, recorded_at: Instant) -> Row:
    """Return the row of a declaration of the ontology."""
    return (*_DECLARATION.of(declaration_), recorded_at, None)


def declaration(row: Row) -> records.Declaration:
    """Read a row of `kinds.DECLARATIONS`."""
    return records.Declaration(**_DECLARATION.named(row[:6]))


def verdict_row(verdict: records.Verdict, recorded_at: Instant) -> Row:
    """Return the row of a verdict."""
    return (*_VERDICT.of(verdict), recorded_at, None)


def verdict(row: Row) -> records.Verdict:
    """Read a row of `kinds.VERDICTS`."""
    return records.Verdict(**_VERDICT.named(row[:7]))


def name_row(mention: Mention) -> Row:
    """Return the row of a surface of the entity that a mention was resolved to."""
    return (mention.entity, mention.surface, folded(mention.surface), mention.sequence, mention.ordinal)


def name_vector_row(mention: Mention, vector: NDArray[np.float32]) -> Row:
    """Return the row of a surface's vector."""
    return (mention.entity, mention.surface, mention.sequence, mention.ordinal, vector_bytes(vector))


def vector_row(named: str | int, vector: NDArray[np.float32], weights: bytes | None = None) -> Row:
    """Return the row of what an embedder said of a statement's or an episode's text."""
    return (named, weights, vector_bytes(vector))


def entity_row(entity_: Entity) -> Row:
    """Return the row of an entity."""
    return (entity_.id, entity_.name, entity_.aliases, entity_.labels, *entity_.born, entity_.summary)


def entity(row: Row) -> Entity:
    """Read a row of `kinds.ENTITIES`."""
    id_, name, aliases, labels, sequence, ordinal, summary = row
    return Entity(
        id=id_, name=name, aliases=aliases, labels=labels, born=(sequence, ordinal), summary=summary
    )


def fact_row(fact_: Fact) -> Row:
    """Return the row of a fact."""
    ended_by = fact_.ended_by or (None, None)
    return (*_FACT.of(fact_), *_value_columns(fact_.value), *_FACT_DATES.of(fact_), *ended_by)


def fact(row: Row) -> Fact:
    """Read a row of `kinds.FACTS`."""
    value_type, value, unit = row[7:10]
    ended_by = None if row[15] is None else (row[15], row[16])
    held = value_type and Value(value_type, value, unit)
    named = {**_FACT.named(row[:7]), **_FACT_DATES.named(row[10:15])}
    return Fact(value=held, ended_by=ended_by, **named)


def community_row(one: Community) -> Row:
    """Return the row of a community."""
    named = {name: getattr(one, name) for name in COMMUNITIES.names}
    return tuple((named | {"report": pack(dict(one.report)) if one.report else ""}).values())


def community(row: Row) -> Community:
    """Read a row of `kinds.COMMUNITIES`."""
    report = json.loads(row[7]) if row[7] else {}
    named = dict(zip(COMMUNITIES.names, row, strict=True))
    return Community(**named | {"report": report, "members": tuple(row[10])}, stale=AS_OF in report)
