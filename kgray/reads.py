"""The declared reads of the record table (`kgray.kinds`), each with the class of the rows that it returns."""

from __future__ import annotations

from typing import Any, NamedTuple

from kgray.kinds import (
    ANSWERS,
    COMMUNITIES,
    ENTITIES,
    EPISODES,
    EXTRACTIONS,
    FACTS,
    HOLDS,
    KINDS,
    MENTIONS,
    OPERATIONS,
    RECORDS,
    SHOWN_ENTITIES,
    SHOWN_EVIDENCE,
    AnswerRow,
    CommunityRow,
    EntityRow,
    EpisodeRow,
    ExtractionRow,
    FactRow,
    MentionRow,
    OperationRow,
    Read,
    RecordRow,
    ShownEntityRow,
    ShownEvidenceRow,
)


class EpisodeHeadRow(NamedTuple):
    """The place of an episode on both clocks, and its names; no text."""

    sequence: int
    id: str
    client_id: str | None
    source: str
    reference_time: int
    state: int
    ended_at: int | None
    retired_at: int | None
    kind: str


class TakenRow(NamedTuple):
    """The ids and the content that a draft may meet; no text."""

    sequence: int
    id: str
    client_id: str | None
    source: str
    content_sha256: str
    retired_at: int | None
    state: int


class SupporterRow(NamedTuple):
    """The two ids of an episode."""

    id: str
    client_id: str | None


class ReferenceTimeRow(NamedTuple):
    """The reference time of an episode."""

    id: str
    reference_time: int


class MessageRow(NamedTuple):
    """The speaker, source and time of a message, for the index of a search."""

    sequence: int
    source: str
    speaker: str | None
    reference_time: int
    state: int


EPISODE_HEADS = Read("episode heads", EPISODES, EpisodeHeadRow)
EPISODE_HEADS_AT = Read("episode heads at sequences", EPISODES, EpisodeHeadRow, by="sequence")
EPISODES_AT = Read("episodes at sequences", EPISODES, EpisodeRow, by="sequence")
EPISODES_IN_STATE = Read("episodes in states", EPISODES, EpisodeRow, by="state")
MESSAGES = Read("messages", EPISODES, MessageRow)
MESSAGES_AT = Read("messages at sequences", EPISODES, MessageRow, by="sequence")
TAKEN = Read("taken", EPISODES, TakenRow)
TAKEN_IDS = Read("taken ids", EPISODES, TakenRow, by="id")
TAKEN_CLIENT_IDS = Read("taken client ids", EPISODES, TakenRow, by="client_id")
TAKEN_IN_SOURCES = Read("taken in sources", EPISODES, TakenRow, by="source")
SUPPORTERS = Read("supporters", EPISODES, SupporterRow, by="id")
REFERENCE_TIMES = Read("reference times", EPISODES, ReferenceTimeRow, by="id")
OPERATIONS_AT = Read("operations at sequences", OPERATIONS, OperationRow, by="sequence")
OPERATIONS_IN_STATE = Read("operations in states", OPERATIONS, OperationRow, by="state")
EXTRACTIONS_AT = Read("extractions at sequences", EXTRACTIONS, ExtractionRow, by="sequence")


class AnswerSourceRow(NamedTuple):
    """The episodes whose words an answer uses; `sequence` is the first of them."""

    sequence: int
    request: str
    sources: bytes


class RequestRow(NamedTuple):
    """The key of a request that an episode has answers to."""

    sequence: int
    request: str


REQUESTS = Read("requests", ANSWERS, RequestRow)
ANSWERS_TO = Read("answers to requests", ANSWERS, AnswerRow, by="request")
ANSWER_SOURCES = Read("sources of answers", ANSWERS, AnswerSourceRow)


class PackedRow(NamedTuple):
    """The mentions and the evidence of an episode."""

    sequence: int
    packed: bytes


class JudgedRow(NamedTuple):
    """The declarations and verdicts of an entry."""

    timed: int
    sequence: int
    judged: bytes


class StatementsRow(NamedTuple):
    """The statements that the evidence of an episode was recorded with."""

    sequence: int
    statements: tuple[str, ...]


class SearchRow(NamedTuple):
    """The input of a search index."""

    sequence: int
    search: bytes


class TextVectorsRow(NamedTuple):
    """The vectors of an episode's texts; `search` has their owners."""

    sequence: int
    search: bytes
    vectors: bytes | None


class VectorsRow(NamedTuple):
    """The vectors of an entry's texts."""

    sequence: int
    vectors: bytes | None


class NameVectorsRow(NamedTuple):
    """The vectors of the names that an episode made known."""

    sequence: int
    names: bytes | None


PACKED = Read("packed records", RECORDS, PackedRow)
PACKED_AT = Read("packed records at sequences", RECORDS, PackedRow, by="sequence")
RECORDS_AT = Read("records at sequences", RECORDS, RecordRow, by="sequence")
JUDGED = Read("judged", RECORDS, JudgedRow, since="timed")
STATEMENTS = Read("statements", RECORDS, StatementsRow)
STATEMENTS_AT = Read("statements at sequences", RECORDS, StatementsRow, by="sequence")
SEARCHED = Read("searched", RECORDS, SearchRow)
SEARCHED_AT = Read("searched at sequences", RECORDS, SearchRow, by="sequence")
TEXT_VECTORS_AT = Read("text vectors at sequences", RECORDS, TextVectorsRow, by="sequence")
VECTORS = Read("vectors", RECORDS, VectorsRow)
VECTORS_AT = Read("vectors at sequences", RECORDS, VectorsRow, by="sequence")
NAME_VECTORS = Read("name vectors", RECORDS, NameVectorsRow)
NAME_VECTORS_AT = Read("name vectors at sequences", RECORDS, NameVectorsRow, by="sequence")


class EntityIdRow(NamedTuple):
    """The id of an entity."""

    id: str


class EntityNameRow(NamedTuple):
    """An entity with its names."""

    id: str
    name: str
    aliases: tuple[str, ...]


MENTIONS_OF = Read("mentions of entities", MENTIONS, MentionRow, by="entity")
SHOWN_BY_EVIDENCE = Read("shown by evidence", SHOWN_EVIDENCE, ShownEvidenceRow, by="sequence")
SHOWN_BY_STATEMENTS = Read("shown by statements", SHOWN_EVIDENCE, ShownEvidenceRow, by="statement")
ENTITY_IDS = Read("ids of entities", ENTITIES, EntityIdRow, by="id")
ENTITY_NAMES = Read("names of entities", ENTITIES, EntityNameRow)
ENTITIES_OF = Read("entities by id", ENTITIES, EntityRow, by="id")
SHOWN_OF = Read("shown by entities", SHOWN_ENTITIES, ShownEntityRow, by="recorded")


class FactEndsRow(NamedTuple):
    """The ends of a fact."""

    id: str
    statement: str
    source: str
    target: str | None


class FactOutlineRow(NamedTuple):
    """The ends, the span and the wording of a fact."""

    id: str
    source: str
    target: str | None
    relation: str
    text: str
    created_at: int
    valid_at: int | None
    invalid_at: int | None


class EntityOutlineRow(NamedTuple):
    """The birth and the name of an entity."""

    id: str
    name: str
    born_sequence: int
    born_ordinal: int


FACT_OUTLINES = Read("outlines of facts", FACTS, FactOutlineRow)
ENTITY_OUTLINES = Read("outlines of entities", ENTITIES, EntityOutlineRow)
FACTS_OF = Read("facts by id", FACTS, FactRow, by="id")
FACTS_OF_STATEMENTS = Read("facts of statements", FACTS, FactRow, by="statement")
FACT_ENDS = Read("ends of facts", FACTS, FactEndsRow)


class EndedEpisodeRow(NamedTuple):
    """An episode that was committed or failed."""

    ended_at: int
    state: int
    sequence: int
    id: str
    client_id: str | None


class EndedOperationRow(NamedTuple):
    """A correction that ended."""

    recorded_at: int
    state: int
    sequence: int
    kind: str


class OpenedFactRow(NamedTuple):
    """A fact by its creation."""

    created_at: int
    id: str


class ExpiredFactRow(NamedTuple):
    """A fact by its expiry."""

    expired_at: int
    id: str


# Rows that were committed since a record time, in the order of their record times.
EPISODES_SINCE = Read("episodes since", EPISODES, EndedEpisodeRow, since="ended_at")
OPERATIONS_SINCE = Read("operations since", OPERATIONS, EndedOperationRow, since="recorded_at")
FACTS_OPENED = Read("facts opened since", FACTS, OpenedFactRow, since="created_at")
FACTS_EXPIRED = Read("facts expired since", FACTS, ExpiredFactRow, since="expired_at")


class CommunitySourceRow(NamedTuple):
    """The episodes whose words the texts of a community use."""

    run: int
    id: str
    sources: bytes


COMMUNITIES_OF_RUN = Read("communities of a run", COMMUNITIES, CommunityRow, by="run")
COMMUNITIES_AT = Read("communities by id", COMMUNITIES, CommunityRow, by=("run", "id"))
COMMUNITY_SOURCES = Read("sources of communities", COMMUNITIES, CommunitySourceRow)
READS: tuple[Read[Any], ...] = (
    *(kind.all for kind in KINDS),
    *(read for read in vars().values() if isinstance(read, Read)),
)
# Reads that a store also runs over all groups at once.
EVERYWHERE: tuple[Read[Any], ...] = (HOLDS.all, EPISODES_IN_STATE)
