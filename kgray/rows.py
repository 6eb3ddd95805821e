"""Values to the rows of `kgray.kinds`, and back; the only code that writes and reads columns of JSON."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import repeat
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgray.graph import Entity, Fact
from kgray.kinds import ACCEPTED, COMMITTED, DONE, FAILED, PENDING, REFUSED, Row
from kgray.records import (
    Draft,
    Episode,
    Evidence,
    ExtractedEntity,
    ExtractedFact,
    Extraction,
    Mention,
    Operation,
    OperationKind,
    Ruling,
    State,
    Value,
    Verdict,
    clean_text,
)
from kgray.times import Instant

_Built = TypeVar("_Built", Mention, Evidence)
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)  # made once: a commit packs many texts
STATES: tuple[State, ...] = ("accepted", "extracted", "committed", "failed")
NOTHING_NAMED = "{}"  # the payload of an operation whose names are not kept
_NAMED = [field for field in fields(Operation) if field.name not in {"group", "sequence", "kind"}]


def pack(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return compact JSON."""
    return _ENCODER.encode(value)


def storable(text: str) -> str:
    """Return a model's output as valid UTF-8: a lone surrogate becomes a question mark."""
    return text.encode(errors="replace").decode()


def folded(name: str) -> str:
    """Return a name in the form for look-ups, ignoring case and spacing."""
    return clean_text(clean_text(name).casefold())


def vector_bytes(vector: NDArray[np.float32]) -> bytes:
    """Return a vector as it is stored: float32, little-endian."""
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


def as_vector(kept: bytes) -> NDArray[np.float32]:
    """Return the vector that `vector_bytes` wrote; read-only."""
    return np.frombuffer(kept, "<f4")


# ------------------------------------------------------------------------------------- the log


def new_episode_row(
    draft: Draft,
    *,
    id: str,  # noqa: A002 - the column's name
    content_sha256: str,
    sequence: int,
    time: Instant,
    bulk: bool,
) -> Row:
    """Return the row of an accepted draft; id, content_sha256: the draft's, which cost a hash each time."""
    return (
        sequence, id, draft.source, draft.kind, draft.text, time, content_sha256, draft.speaker,
        draft.client_id, draft.metadata, ACCEPTED, bulk, 0, None, None, None, None, None,
    )  # fmt: skip


def accepted_again(row: Row, sequence: int) -> Row:
    """Return the row that retries a failed episode; its attempts include those so far."""
    return (sequence, *row[1:10], ACCEPTED, *row[11:13], None, None, None, None, None)


def committed_row(episode: Episode, recorded_at: Instant) -> Row:
    """Return the row of an episode once it is committed."""
    return (*_episode_columns(episode), COMMITTED, episode.bulk, episode.attempts, recorded_at, *[None] * 4)


def failed_row(episode: Episode, recorded_at: Instant, kind: str, message: str, raw: str) -> Row:
    """Return the row of an episode that failed by its own content (R24), one attempt more."""
    return (
        *_episode_columns(episode), FAILED, episode.bulk, episode.attempts + 1, recorded_at, None, kind,
        storable(message), storable(raw),
    )  # fmt: skip


def _episode_columns(episode: Episode) -> Row:
    return (
        episode.sequence, episode.id, episode.source, episode.kind, episode.text, episode.reference_time,
        episode.content_sha256, episode.speaker, episode.client_id, episode.metadata,
    )  # fmt: skip


def episode(group: str, row: Row) -> Episode:
    """Read a row of `kinds.EPISODES`."""
    return Episode(
        group=group,
        sequence=row[0],
        id=row[1],
        source=row[2],
        kind=row[3],
        text=row[4],
        reference_time=row[5],
        content_sha256=row[6],
        speaker=row[7],
        client_id=row[8],
        metadata=row[9],
        state=STATES[row[10]],
        bulk=row[11],
        attempts=row[12],
    )


def operation_row(
    operation: Operation,
    state: int = PENDING,
    recorded_at: Instant | None = None,
    result: Mapping[str, Any] | None = None,
) -> Row:
    """Return the row of an operation.

    Once a retraction or removal has ended, what it named is not stored: a client's ids may contain personal
    text. Nor is what a refused operation named, because no removal would look for it here (R25).
    """
    forgets = state == REFUSED or (state == DONE and operation.kind in {"retract", "remove"})
    payload = NOTHING_NAMED if forgets else operation_payload(operation)
    kept = None if result is None else storable(pack(dict(result)))
    return (operation.sequence, operation.kind, payload, state, recorded_at, kept)


def operation_payload(operation: Operation) -> str:
    """Return what an operation names, without what is empty."""
    named = {field.name: getattr(operation, field.name) for field in _NAMED}
    return pack({name: value for name, value in named.items() if value not in ((), "", None, False)})


def operation(group: str, row: Row) -> Operation:
    """Read a row of `kinds.OPERATIONS`."""
    sequence, kind, payload = row[:3]
    named: Mapping[str, Any] = json.loads(payload)
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in named.items()}
    asked: OperationKind = kind
    return Operation(group=group, sequence=sequence, kind=asked, **values)


def extraction_row(sequence: int, extraction: Extraction) -> Row:
    """Return the row of an extraction: what it cost, and the rest as JSON, fields by position."""
    body = {
        "entities": [(e.name, e.type, e.span) for e in extraction.entities],
        "facts": [
            (
                f.source, f.relation, f.text, f.kind, f.target,
                f.value and (f.value.type, f.value.value, f.value.unit),
                f.valid_from, f.valid_to, f.from_precision, f.to_precision, f.inferred,
            )
            for f in extraction.facts
        ],
        "dropped": extraction.dropped,
        "model": extraction.model,
        "prompts": extraction.prompts,
    }  # fmt: skip
    cost = (extraction.calls, extraction.prompt_tokens, extraction.completion_tokens)
    return (sequence, *cost, storable(pack(body)))


def extraction(row: Row) -> Extraction:
    """Read a row of `kinds.EXTRACTIONS`."""
    _, calls, prompt_tokens, completion_tokens, text = row
    body = json.loads(text)
    return Extraction(
        entities=tuple(
            ExtractedEntity(name=name, type=type_, span=span and (span[0], span[1]))
            for name, type_, span in body["entities"]
        ),
        facts=tuple(
            ExtractedFact(
                source=source, relation=relation, text=text, kind=kind, target=target,
                value=value and Value(*value), valid_from=valid_from, valid_to=valid_to,
                from_precision=from_precision, to_precision=to_precision, inferred=inferred,
            )
            for source, relation, text, kind, target, value, valid_from, valid_to, from_precision,
            to_precision, inferred in body["facts"]
        ),
        dropped=tuple(body["dropped"]),
        model=body["model"],
        prompts=tuple(body["prompts"]),
        calls=calls,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )  # fmt: skip


def answers_row(
    key: str, answers: Sequence[Mapping[str, Any]], calls: int, prompt_tokens: int, completion_tokens: int
) -> Row:
    """Return the row of a request's answers and of what they cost."""
    body = storable(pack([dict(answer) for answer in answers]))
    return (key, calls, prompt_tokens, completion_tokens, body)


def answers(row: Row) -> tuple[Mapping[str, Any], ...]:
    """Read the answers in a row of `kinds.ANSWERS`."""
    return tuple(json.loads(row[4]))


# --------------------------------------------------------------------------------- the records


def mention_row(mention: Mention) -> Row:
    """Return the row of a mention."""
    start, end = mention.span or (None, None)
    return (
        mention.sequence, mention.ordinal, mention.surface, mention.entity, mention.type, mention.sentence,
        start, end,
    )  # fmt: skip


def mentions(found: Sequence[Row], strings: dict[str, str]) -> list[Mention]:
    """Read rows of `kinds.MENTIONS`; `strings` keeps one object a repeated string (100k of them at load)."""
    if not found:
        return []
    sequence, ordinal, surface, entity_, type_, sentence, start, end = zip(*found, strict=True)
    return _built(
        Mention,
        len(found),
        sequence=sequence,
        ordinal=ordinal,
        surface=map(strings.setdefault, surface, surface),
        entity=map(strings.setdefault, entity_, entity_),
        type=map(strings.setdefault, type_, type_),
        sentence=map(strings.setdefault, sentence, sentence),
        span=[None if a is None else (a, b) for a, b in zip(start, end, strict=True)],
    )


def evidence_row(item: Evidence, shown: str | None) -> Row:
    """Return the row of a piece of evidence; shown: the derived statement that it is about now."""
    value = item.value
    return (
        item.sequence, item.ordinal, item.statement, item.variant, item.kind, item.relation, item.text,
        item.subject, item.object, value and value.type, value and value.value, value and value.unit,
        item.valid_from, item.valid_to, item.from_precision, item.to_precision, item.inferred,
        item.fact_group, shown,
    )  # fmt: skip


def evidence(found: Sequence[Row], strings: dict[str, str]) -> list[Evidence]:
    """Read rows of `kinds.EVIDENCE`; `strings` as in `mentions`."""
    if not found:
        return []
    (
        sequence, ordinal, statement, variant, kind, relation, text, subject, object_, value_type, value,
        unit, valid_from, valid_to, from_precision, to_precision, inferred, fact_group, _,
    ) = zip(*found, strict=True)  # fmt: skip
    values = zip(value_type, value, unit, strict=True)
    return _built(
        Evidence,
        len(found),
        sequence=sequence,
        ordinal=ordinal,
        statement=map(strings.setdefault, statement, statement),
        variant=variant,
        kind=map(strings.setdefault, kind, kind),
        relation=map(strings.setdefault, relation, relation),
        text=text,
        subject=subject,
        object=object_,
        value=[
            None if typed is None else Value(strings.setdefault(typed, typed), held, of)  # type: ignore[arg-type]
            for typed, held, of in values
        ],
        valid_from=valid_from,
        valid_to=valid_to,
        from_precision=from_precision,
        to_precision=to_precision,
        inferred=inferred,
        fact_group=fact_group,
    )


def _built(made_as: type[_Built], count: int, /, **columns: Iterable[object]) -> list[_Built]:
    """Return `count` slotted values from their columns, field by field.

    A third of the time of calling the class 300,000 times: the loops run in C. It passes by
    `__init__`, which in these classes only assigns; a field left out would fail at first use.
    """
    made = list(map(object.__new__, repeat(made_as, count)))
    for name, column in columns.items():
        deque(map(getattr(made_as, name).__set__, made, column), maxlen=0)
    return made


def ruling_row(ruling: Ruling, recorded_at: Instant) -> Row:
    """Return the row of a ruling."""
    return (
        ruling.sequence, ruling.ordinal, ruling.name, ruling.aspect, ruling.value, ruling.judge, ruling.other,
        ruling.reason, recorded_at, None,
    )  # fmt: skip


def ruling(row: Row) -> Ruling:
    """Read a row of `kinds.RULINGS`."""
    sequence, ordinal, name, aspect, value, judge, other, reason = row[:8]
    return Ruling(
        sequence=sequence, ordinal=ordinal, name=name, aspect=aspect, value=value, judge=judge, other=other,
        reason=reason,
    )  # fmt: skip


def verdict_row(verdict: Verdict, recorded_at: Instant) -> Row:
    """Return the row of a verdict."""
    return (
        verdict.sequence, verdict.ordinal, verdict.a, verdict.b, verdict.exclusive, verdict.judge,
        verdict.reason, recorded_at, None,
    )  # fmt: skip


def verdict(row: Row) -> Verdict:
    """Read a row of `kinds.VERDICTS`."""
    sequence, ordinal, a, b, exclusive, judge, reason = row[:7]
    return Verdict(
        sequence=sequence, ordinal=ordinal, a=a, b=b, exclusive=exclusive, judge=judge, reason=reason
    )


def name_row(mention: Mention) -> Row:
    """Return the row of a surface of the entity that a mention was resolved to."""
    return (mention.entity, mention.surface, folded(mention.surface), mention.sequence, mention.ordinal)


def name_vector_row(mention: Mention, vector: NDArray[np.float32]) -> Row:
    """Return the row of a surface's vector."""
    return (mention.entity, mention.surface, mention.sequence, mention.ordinal, vector_bytes(vector))


# --------------------------------------------------------------------------- the derived graph


def entity_row(entity_: Entity) -> Row:
    """Return the row of an entity."""
    return (entity_.id, entity_.name, entity_.aliases, entity_.labels, *entity_.born)


def entity(row: Row) -> Entity:
    """Read a row of `kinds.ENTITIES`."""
    id_, name, aliases, labels, sequence, ordinal = row
    return Entity(id=id_, name=name, aliases=aliases, labels=labels, born=(sequence, ordinal))


def fact_row(fact_: Fact) -> Row:
    """Return the row of a fact."""
    value = fact_.value
    return (
        fact_.id, fact_.statement, fact_.source, fact_.relation, fact_.text, fact_.created_at, fact_.target,
        value and value.type, value and value.value, value and value.unit, fact_.valid_at, fact_.invalid_at,
        fact_.expired_at, fact_.episodes, *(fact_.ended_by or (None, None)),
    )  # fmt: skip


def fact(row: Row) -> Fact:
    """Read a row of `kinds.FACTS`."""
    (
        id_, statement, source, relation, text, created_at, target, value_type, value, unit, valid_at,
        invalid_at, expired_at, episodes, ended_episode, ended_ordinal,
    ) = row  # fmt: skip
    return Fact(
        id=id_,
        statement=statement,
        source=source,
        relation=relation,
        text=text,
        created_at=created_at,
        target=target,
        value=None if value_type is None else Value(value_type, value, unit),
        valid_at=valid_at,
        invalid_at=invalid_at,
        expired_at=expired_at,
        episodes=episodes,
        ended_by=None if ended_episode is None else (ended_episode, ended_ordinal),
    )
