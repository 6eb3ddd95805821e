"""Values to the rows of `kgray.kinds`, and back; the only code that writes and reads columns of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, fields, replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgray import kinds, records
from kgray.graph import AS_OF, Community, Entity, Fact
from kgray.kinds import (
    COMMUNITIES,
    EPISODES,
    FACTS,
    AnswerRow,
    CommunityRow,
    EntityRow,
    EpisodeRow,
    ExtractionRow,
    FactRow,
    OperationRow,
)
from kgray.records import Episode, Extraction, Operation, Value
from kgray.times import Instant

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
_FACT, _FACT_DATES = _Fields(FACTS.names[:7]), _Fields(FACTS.names[10:15])
_FACT_NAMES = (*_FACT.names, *_FACT_DATES.names)
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


def as_vector(column: bytes) -> NDArray[np.float32]:
    """Return the vector that `vector_bytes` wrote; read-only."""
    return np.frombuffer(column, "<f4")


def weight_bytes(tokens: NDArray[np.uint32], weights: NDArray[np.float32]) -> bytes:
    """Return the weights of a text's tokens as they are stored: ascending ids as uint32, then float16.

    A repeated token gets its largest weight. Weights that are 0 in half precision are omitted.
    """
    half = weights.astype("<f2")
    order = np.lexsort((half, tokens))
    last = np.ones(len(order), bool)  # the largest of each token
    last[:-1] = tokens[order][1:] != tokens[order][:-1]
    places = order[last & (half[order] > 0)]
    return tokens[places].astype("<u4").tobytes() + half[places].tobytes()


def as_weights(column: bytes) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Return the ascending tokens and their weights that `weight_bytes` wrote."""
    count = len(column) // 6
    halves = np.frombuffer(column, "<f2", offset=4 * count)
    return np.frombuffer(column, "<u4", count), halves.astype(np.float32)


def sign_bits(matrix: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return (n, bytes): the signs of (n, d), padded with zero bits to whole words of 64.

    Near vectors are near in bits: the share of differing signs is angle / pi (Charikar, STOC 2002).
    """
    bits = np.packbits(matrix > 0, axis=1)
    missing = -bits.shape[1] % 8
    return np.pad(bits, ((0, 0), (0, missing))) if missing else bits


def new_episode_row(
    draft: records.Draft, *, id_: str, content_sha256: str, sequence: int, now: Instant, bulk: bool
) -> EpisodeRow:
    """Return the row of an accepted draft; id_, content_sha256: the draft's, which cost a hash each time."""
    time = now if draft.reference_time is None else draft.reference_time
    return EpisodeRow(
        sequence, id_, draft.source, draft.kind, draft.text, time, content_sha256, draft.speaker,
        draft.client_id, draft.metadata, kinds.ACCEPTED, bulk, 0, None, None, None, None, None,
    )  # fmt: skip


def accepted_again(row: EpisodeRow, sequence: int) -> EpisodeRow:
    """Return the row that retries a failed episode; its attempts include those so far."""
    return row._replace(
        sequence=sequence,
        state=kinds.ACCEPTED,
        ended_at=None,
        retired_at=None,
        failure_kind=None,
        failure_message=None,
        failure_raw=None,
    )


def committed_row(episode: Episode, recorded_at: Instant) -> EpisodeRow:
    """Return the row of an episode once it is committed."""
    state = (kinds.COMMITTED, episode.bulk, episode.attempts)
    return EpisodeRow._make((*_EPISODE.of(episode), *state, recorded_at, *[None] * 4))


def failed_row(episode: Episode, recorded_at: Instant, kind: str, message: str, raw: str) -> EpisodeRow:
    """Return the row of an episode that failed by its own content (R24), one attempt more."""
    state = (kinds.FAILED, episode.bulk, episode.attempts + 1, recorded_at, None)
    return EpisodeRow._make((*_EPISODE.of(episode), *state, kind, storable(message), storable(raw)))


def episode(group: str, row: EpisodeRow) -> Episode:
    """Read a row of `kinds.EPISODES`."""
    named = _EPISODE.named(row[:10])
    return Episode(group=group, state=STATES[row.state], bulk=row.bulk, attempts=row.attempts, **named)


def operation_row(
    operation: Operation,
    state: int = kinds.PENDING,
    recorded_at: Instant | None = None,
    result: Mapping[str, Any] | None = None,
) -> OperationRow:
    """Return the row of an operation; once a withdrawal has ended, or any was refused, without its names.

    A client's ids may contain personal text, and no removal would look for it here (R25).
    """
    if state == kinds.REFUSED or (state == kinds.DONE and operation.withdraws):
        operation = replace(
            operation, entities=(), surfaces=(), moved=(), made="", minted=False, target=None, episodes=(),
            source=None, everything=False, replaces=False, births=(),
        )  # fmt: skip
    text = None if result is None else storable(pack(dict(result)))
    payload = operation_payload(operation)
    return OperationRow(operation.sequence, operation.kind, payload, state, recorded_at, text)


def operation_payload(operation: Operation) -> str:
    """Return the names in an operation, without the fields that are empty."""
    named = ((field.name, getattr(operation, field.name)) for field in _NAMED)
    return pack({name: value for name, value in named if value not in ((), "", None, False)})


def operation(group: str, row: OperationRow) -> Operation:
    """Read a row of `kinds.OPERATIONS`."""
    named: dict[str, Any] = {name: _as_tuples(value) for name, value in json.loads(row.payload).items()}
    kind: Any = row.kind
    return Operation(group=group, sequence=row.sequence, kind=kind, **named)


def _as_tuples(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def extraction_row(sequence: int, extraction: Extraction) -> ExtractionRow:
    """Return the row of an extraction: its cost, and the rest as JSON, fields by position."""
    body = {
        "entities": [(e.name, e.type, e.span, e.key_of, e.in_context) for e in extraction.entities],
        "facts": [_EXTRACTED_FACT.of(fact_) for fact_ in extraction.facts],
        "dropped": extraction.dropped,
        "model": extraction.model,
        "prompts": extraction.prompts,
    }
    cost = (extraction.calls, extraction.prompt_tokens, extraction.completion_tokens)
    return ExtractionRow(sequence, *cost, storable(pack(body)))


def extraction(row: ExtractionRow) -> Extraction:
    """Read a row of `kinds.EXTRACTIONS`."""
    body = json.loads(row.body)
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
        calls=row.calls,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
    )


def answers_row(
    sequence: int,
    key: str,
    answers: Sequence[Mapping[str, Any]],
    calls: int,
    prompt_tokens: int,
    completion_tokens: int,
    sources: bytes = b"",
) -> AnswerRow:
    """Return the row of a request's answers and of their cost; sources: as in `kinds.AnswerRow`."""
    body = storable(pack([dict(answer) for answer in answers]))
    return AnswerRow(sequence, key, calls, prompt_tokens, completion_tokens, body, sources)


def answers(row: AnswerRow) -> tuple[Mapping[str, Any], ...]:
    """Read the answers in a row of `kinds.ANSWERS`."""
    return tuple(json.loads(row.body))


def entity_row(entity_: Entity) -> EntityRow:
    """Return the row of an entity."""
    return EntityRow(
        entity_.id, entity_.name, entity_.aliases, entity_.labels, *entity_.born, entity_.summary
    )


def entity(row: EntityRow) -> Entity:
    """Read a row of `kinds.ENTITIES`."""
    born = (row.born_sequence, row.born_ordinal)
    return Entity(
        id=row.id, name=row.name, aliases=row.aliases, labels=row.labels, born=born, summary=row.summary
    )


def fact_row(fact_: Fact) -> FactRow:
    """Return the row of a fact."""
    value = fact_.value
    columns = (None, None, None) if value is None else (value.type, value.value, value.unit)
    return FactRow(*_FACT.of(fact_), *columns, *_FACT_DATES.of(fact_), *(fact_.ended_by or (None, None)))


def fact(row: FactRow) -> Fact:
    """Read a row of `kinds.FACTS`."""
    ended_by = None if row.ended_episode is None else (row.ended_episode, row.ended_ordinal)
    value: Any = row.value_type and Value(row.value_type, row.value, row.unit)  # type: ignore[arg-type]
    named: dict[str, Any] = dict(zip(_FACT_NAMES, (*row[:7], *row[10:15]), strict=True))
    return Fact(value=value, ended_by=ended_by, **named)  # type: ignore[arg-type]


def community_row(item: Community) -> CommunityRow:
    """Return the row of a community."""
    columns = {name: getattr(item, name) for name in COMMUNITIES.names}
    return CommunityRow(**columns | {"report": pack(dict(item.report)) if item.report else ""})


def community(row: CommunityRow) -> Community:
    """Read a row of `kinds.COMMUNITIES`."""
    report = json.loads(row.report) if row.report else {}
    named = row._asdict() | {"report": report, "members": tuple(row.members)}
    return Community(**named, stale=AS_OF in report)
