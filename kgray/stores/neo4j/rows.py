"""Values to the rows that statements take, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any

from kgray import times
from kgray.graph import Entity, Fact
from kgray.records import (
    Draft,
    Episode,
    EpisodeKind,
    Evidence,
    EvidenceKind,
    Mention,
    Operation,
    Ruling,
    State,
    Value,
    Verdict,
)
from kgray.stores import packing
from kgray.stores.neo4j.connection import Row
from kgray.stores.words import folded
from kgray.times import Instant, Precision

Values = dict[str, Any]  # one row of an UNWIND

STATES: tuple[State, ...] = ("accepted", "extracted", "committed", "failed")
ACCEPTED, EXTRACTED, COMMITTED, FAILED = range(4)
PENDING, DONE, REFUSED = range(3)  # operations
# Stored by their index: append, never reorder.
KINDS: tuple[EvidenceKind, ...] = ("holds", "ended", "denied")
PRECISIONS: tuple[Precision, ...] = ("instant", "day", "month", "year")
# What Graphiti knows an episode's content as; our own kind stands beside it.
_THEIR_KINDS: Mapping[EpisodeKind, str] = {
    "message": "message",
    "text": "text",
    "json": "json",
    "triples": "json",
}
_ORDINALS = 20  # bits of a place number that are the ordinal's
MAX_ROWS = 1_000  # an UNWIND: with vectors 9 MB


def place_number(sequence: int, ordinal: int) -> int:
    """Return a place as one number, in the same order."""
    return sequence << _ORDINALS | ordinal


def digest(text: str) -> str:
    """Return a key for a text of any length: an index takes 8 KB at most."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def portions(values: Iterable[Values]) -> Iterator[list[Values]]:
    """Yield the rows in portions of MAX_ROWS, in order."""
    rest = iter(values)
    while portion := list(islice(rest, MAX_ROWS)):
        yield portion


@lru_cache(maxsize=4096)
def mark(group: str) -> int:
    """Return the number that a group's words bear (`words.marked`): 63 bits of its name's digest."""
    return int(digest(group)[:16], 16) >> 1


def is_text(text: str) -> bool:
    """Whether the text can be stored at all: one with a lone surrogate cannot, so nothing bears it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# ------------------------------------------------------------------------------------- the log

# The columns of `EPISODE` in statements.py, in this order.


def new_episode(draft: Draft, sequence: int, time: Instant, *, bulk: bool, call: str) -> Values:
    """Return the properties of an accepted episode."""
    return {
        "group_id": draft.group,
        "sequence": sequence,
        "uuid": draft.id,
        "source_description": draft.source,
        "kind": draft.kind,
        "content": draft.text,
        "said": time,
        "content_sha256": draft.content_sha256,
        "speaker": draft.speaker,
        "client_id": draft.client_id,
        "metadata": draft.metadata,
        "state": ACCEPTED,
        "bulk": bulk,
        "call": call,
    }


def episode(group: str, row: Sequence[Any]) -> Episode:
    """Read the columns of EPISODE."""
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
    )


def operation(group: str, row: Sequence[Any]) -> Operation:
    """Read (sequence, kind, payload)."""
    return packing.operation(group, row[0], row[1], row[2])


def shown_episode(kind: EpisodeKind, client_id: str | None, id_: str, said: Instant) -> Values:
    """Return what Graphiti's readers expect of an `Episodic`, but its record time."""
    return {"name": client_id or id_, "source": _THEIR_KINDS[kind], "valid_at": times.to_datetime(said)}


# --------------------------------------------------------------------------------- the records


def mention_row(group: str, mention: Mention) -> Values:
    """Return the properties of a mention."""
    start, end = mention.span or (None, None)
    return {
        "group_id": group,
        "sequence": mention.sequence,
        "ordinal": mention.ordinal,
        "surface": mention.surface,
        "entity": mention.entity,
        "type": mention.type,
        "sentence": mention.sentence,
        "span_from": start,
        "span_to": end,
    }


def mention(row: Row) -> Mention:
    """Read the columns of MENTIONS."""
    sequence, ordinal, surface, entity_, type_, sentence, start, end = row
    return Mention(
        sequence=sequence,
        ordinal=ordinal,
        surface=surface,
        entity=entity_,
        type=type_,
        sentence=sentence,
        span=None if start is None else (start, end),
    )


def evidence_row(group: str, item: Evidence, shown: str | None) -> Values:
    """Return the properties of a piece of evidence; its words are added by the writer."""
    value = item.value
    return {
        "group_id": group,
        "sequence": item.sequence,
        "ordinal": item.ordinal,
        "statement": item.statement,
        "variant": item.variant,
        "kind": KINDS.index(item.kind),
        "relation": item.relation,
        "text": item.text,
        "subject": item.subject,
        "object": item.object,
        "value_type": value and value.type,
        "value": value and value.value,
        "unit": value and value.unit,
        "valid_from": item.valid_from,
        "valid_to": item.valid_to,
        "from_precision": _precision_number(item.from_precision),
        "to_precision": _precision_number(item.to_precision),
        "inferred": item.inferred,
        "fact_group": item.fact_group,
        "shown": shown,
    }


def evidence(row: Row) -> Evidence:
    """Read the columns of EVIDENCE."""
    (
        sequence, ordinal, statement, variant, kind, relation, text, subject, object_, value_type, value,
        unit, valid_from, valid_to, from_precision, to_precision, inferred, fact_group,
    ) = row  # fmt: skip
    return Evidence(
        sequence=sequence,
        ordinal=ordinal,
        statement=statement,
        variant=variant,
        kind=KINDS[kind],
        relation=relation,
        text=text,
        subject=subject,
        object=object_,
        value=None if value_type is None else Value(value_type, value, unit),
        valid_from=valid_from,
        valid_to=valid_to,
        from_precision=None if from_precision is None else PRECISIONS[from_precision],
        to_precision=None if to_precision is None else PRECISIONS[to_precision],
        inferred=inferred,
        fact_group=fact_group,
    )


def _precision_number(precision: Precision | None) -> int | None:
    return None if precision is None else PRECISIONS.index(precision)


def ruling_row(group: str, ruling: Ruling, recorded_at: Instant) -> Values:
    """Return the properties of a ruling."""
    return {
        "group_id": group,
        "sequence": ruling.sequence,
        "ordinal": ruling.ordinal,
        "name": ruling.name,
        "aspect": ruling.aspect,
        "value": ruling.value,
        "judge": ruling.judge,
        "other": ruling.other,
        "reason": ruling.reason,
        "recorded_at": recorded_at,
    }


def ruling(row: Row) -> Ruling:
    """Read the first eight columns of RULINGS."""
    sequence, ordinal, name, aspect, value, judge, other, reason = row
    return Ruling(
        sequence=sequence, ordinal=ordinal, name=name, aspect=aspect, value=value, judge=judge,
        other=other, reason=reason,
    )  # fmt: skip


def verdict_row(group: str, verdict: Verdict, recorded_at: Instant) -> Values:
    """Return the properties of a verdict."""
    return {
        "group_id": group,
        "sequence": verdict.sequence,
        "ordinal": verdict.ordinal,
        "a": verdict.a,
        "b": verdict.b,
        "exclusive": verdict.exclusive,
        "judge": verdict.judge,
        "reason": verdict.reason,
        "recorded_at": recorded_at,
    }


def verdict(row: Row) -> Verdict:
    """Read the first seven columns of VERDICTS."""
    sequence, ordinal, a, b, exclusive, judge, reason = row
    return Verdict(
        sequence=sequence, ordinal=ordinal, a=a, b=b, exclusive=exclusive, judge=judge, reason=reason
    )


# --------------------------------------------------------------------------- the derived graph


def entity_row(group: str, entity_: Entity) -> Values:
    """Return the properties of a derived entity, but its embedding and its record time."""
    return {
        "group_id": group,
        "uuid": entity_.id,
        "name": entity_.name,
        "folded": digest(folded(entity_.name)),
        "summary": "",
        "labels": list(entity_.labels),
        "aliases": list(entity_.aliases),
        "born_sequence": entity_.born[0],
        "born_ordinal": entity_.born[1],
    }


def entity(row: Sequence[Any]) -> Entity:
    """Read the columns of ENTITY: uuid, name, aliases, labels, born_sequence, born_ordinal."""
    return Entity(id=row[0], name=row[1], aliases=tuple(row[2]), labels=tuple(row[3]), born=(row[4], row[5]))


def fact_row(group: str, fact_: Fact) -> Values:
    """Return the properties of a fact, but its embedding."""
    value = fact_.value
    episode_id, ordinal = fact_.ended_by or (None, None)
    return {
        "group_id": group,
        "uuid": fact_.id,
        "name": fact_.relation,
        "fact": fact_.text,
        "episodes": list(fact_.episodes),
        "statement": fact_.statement,
        "source": fact_.source,
        "target": fact_.target,
        "value_type": value and value.type,
        "value": value and value.value,
        "unit": value and value.unit,
        "ended_episode": episode_id,
        "ended_ordinal": ordinal,
        "created": fact_.created_at,
        "valid": fact_.valid_at,
        "invalid": fact_.invalid_at,
        "expired": fact_.expired_at,
        "created_at": times.to_datetime(fact_.created_at),
        "valid_at": moment(fact_.valid_at),
        "invalid_at": moment(fact_.invalid_at),
        "expired_at": moment(fact_.expired_at),
    }


def fact(row: Sequence[Any]) -> Fact:
    """Read the columns of FACT.

    uuid, statement, source, name, fact, created, target, value_type, value, unit, valid, invalid,
    expired, episodes, ended_episode, ended_ordinal.
    """
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
        episodes=tuple(episodes),
        ended_by=None if ended_episode is None else (ended_episode, ended_ordinal),
    )


def moment(instant: Instant | None) -> datetime | None:
    """Return the aware UTC datetime of an instant, for Graphiti's readers."""
    return None if instant is None else times.to_datetime(instant)


def parsed(body: str) -> Any:  # noqa: ANN401 - any JSON value
    """Read a stored JSON text."""
    return json.loads(body)
