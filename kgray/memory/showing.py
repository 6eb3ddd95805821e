"""One episode, entity or fact with all that belongs to it: texts with the words of their facts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kgray import kinds, rows
from kgray.derivation.dump import DumpRow
from kgray.derivation.stored import view_now
from kgray.graph import Entity, FactSpan
from kgray.kinds import Read
from kgray.ports import Store
from kgray.search import spans_of
from kgray.search.profiles import profiles
from kgray.times import to_datetime

KEPT = ("id", "client_id", "sequence", "source", "kind", "speaker", "text", "state")  # an episode's own
_ENDED_AT = kinds.EPISODES.names.index("ended_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Words of a text, [start, end) in characters, from which evidence about a statement was read."""

    start: int
    end: int
    statement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldEpisode:
    """An episode with both clocks.

    reference_time  when it was said
    recorded_at     when it was committed, or failed; None = it is pending
    marks           the words that facts were read from, by their start; () where the text has none of them
    """

    id: str
    client_id: str | None
    sequence: int
    source: str
    kind: str
    speaker: str | None
    text: str
    state: str
    reference_time: datetime
    recorded_at: datetime | None
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What has an id or a name, and what belongs to it.

    records     the dump rows
    names       entity id -> name
    clients     episode id -> the client's id
    profile     what is known of it, in short, where it is an entity
    """

    id: str
    records: list[DumpRow]
    episodes: tuple[ToldEpisode, ...]
    entities: tuple[Entity, ...]
    facts: tuple[FactSpan, ...]
    names: Mapping[str, str]
    clients: Mapping[str, str | None]
    profile: str = ""


def described(store: Store, group: str, identifier: str, records: list[DumpRow]) -> Shown:
    """Return the texts, names and facts that dump rows speak of; to be called within one snapshot."""
    view = view_now(store, group)
    of: dict[str, list[DumpRow]] = defaultdict(list)
    for record in records:
        of[record["type"]].append(record)
    entities = tuple(view.entities([record["id"] for record in of["entity"]]))
    facts = view.facts([record["id"] for record in of["fact"]])
    facts.sort(key=lambda f: (f.valid_at is not None, f.valid_at or 0, f.id))
    spans, clients = spans_of(view, facts)
    told = {entity.id for entity in entities}
    sequences = sorted(record["sequence"] for record in of["episode"])
    evidence = {(record["episode"], record["ordinal"]) for record in of["evidence"]}
    return Shown(
        id=identifier,
        records=records,
        episodes=tuple(told_episodes(store, group, sequences, evidence)),
        entities=entities,
        facts=tuple(spans.values()),
        names={entity.id: entity.name for entity in entities},
        clients=clients,
        profile=profiles(store, view, [identifier])[identifier] if identifier in told else "",
    )


def told_episodes(
    store: Store, group: str, sequences: Sequence[int], evidence: set[tuple[str, int]]
) -> Iterator[ToldEpisode]:
    """Yield the episodes with these sequences. evidence: (episode id, ordinal) of what is marked."""
    mentioned = _columns(store, kinds.MENTIONS_IN, group, sequences)
    mentions = {(mention["sequence"], mention["ordinal"]): mention for mention in mentioned}
    told = list(_columns(store, kinds.EVIDENCE_IN, group, sequences))
    for row in store.rows(kinds.EPISODES_AT, group, sequences):
        episode, recorded_at = rows.episode(group, row), row[_ENDED_AT]
        marks = [
            mark
            for piece in told
            if piece["sequence"] == episode.sequence and (episode.id, piece["ordinal"]) in evidence
            for mark in _marks(episode.text, piece, mentions)
        ]
        yield ToldEpisode(
            **{name: getattr(episode, name) for name in KEPT},
            reference_time=to_datetime(episode.reference_time),
            recorded_at=None if recorded_at is None else to_datetime(recorded_at),
            marks=tuple(sorted(set(marks), key=lambda mark: (mark.start, mark.end, mark.statement))),
        )


def _columns(store: Store, read: Read, group: str, sequences: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a declared read with the names of their columns."""
    return (dict(zip(read.chosen, row, strict=True)) for row in store.rows(read, group, sequences))


def _marks(
    text: str, piece: Mapping[str, Any], mentions: Mapping[tuple[int, int], Mapping[str, Any]]
) -> Iterator[Mark]:
    """Yield the words of a text from which a piece of evidence was read: its sentence, else its names."""
    statement: str | None = piece["shown"]
    if statement is None:  # a loop, which derives nothing (R16)
        return
    at = text.find(piece["text"])
    if at >= 0:
        yield Mark(start=at, end=at + len(piece["text"]), statement=statement)
        return
    for ordinal in (piece["subject"], piece["object"]):
        if (mention := mentions.get((piece["sequence"], ordinal))) is None:
            continue
        start, end = mention["span_from"], mention["span_to"]
        if start is None:
            start = text.find(mention["surface"])
            end = start + len(mention["surface"])
        if start >= 0:
            yield Mark(start=start, end=end, statement=statement)
