"""kgray as a reader of labelled messages: `Memory.add` message by message, then its stored results."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import add, sub
from pathlib import Path
from typing import Any

from bench.engine import opened, settings_of
from bench.labelled_set.facts import ReadFact, end_name
from bench.labelled_set.graphs import GraphFact, Identities, ResolvedMention, identities
from bench.labelled_set.labels import Conversation, LabelledMessage
from bench.labelled_set.spelling import normal_name
from bench.reading import ShownGraph, graph_of
from kgray.domain import times
from kgray.domain.records import ExtractedFact, Extraction
from kgray.errors import Cost, KgrayError
from kgray.memory import Memory
from kgray.schema.kinds import EXTRACTIONS
from kgray.schema.rows import extraction
from kgray.storage.ledger import dumped_episodes, failures

_STATUSES = {"holds": "current", "ended": "ended", "denied": "denied", "happened": "event"}
_TIMEOUT_S = 600  # a small model on a busy processor takes minutes for a long reply


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCost:
    """The cost of one message.

    extraction  the calls of the extraction that is stored; of a failed message, all its extraction calls
    questions   the calls that answered questions about entities, relations and contradictions
    repeated    further extraction calls: the engine sends a late extraction a second time
    """

    extraction: Cost
    questions: Cost
    repeated: Cost
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """The stored results of one conversation.

    facts      by message id, as extracted; a failed message has none
    notes      by message id, the parts of a reply that were not used
    faults     by message id, why it failed
    """

    facts: Mapping[str, Sequence[ReadFact]]
    notes: Mapping[str, Sequence[str]]
    faults: Mapping[str, str]
    graph: Sequence[GraphFact]
    identities: Identities


class EngineReader:
    """kgray with the backend `openai` and a store in a folder; each conversation is a group."""

    def __init__(self, folder: Path, base_url: str, model: str, pipeline: Mapping[str, str]) -> None:
        """pipeline: settings by key, such as extraction and resolution. Raises SettingsError."""
        values: dict[str, Any] = {
            "model_backend": "openai",
            "model_base_url": base_url,
            "model_name": model,
            "model_timeout_s": _TIMEOUT_S,
            "embedder_backend": "hashing",
            **{f"pipeline_{name}": value for name, value in pipeline.items()},
        }
        if key := os.environ.get("KGRAY_MODEL_API_KEY"):
            values["model_api_key"] = key
        self._spent: dict[str, Cost] = {}
        self._memory = opened(settings_of(values), folder)
        self._memory.on_call = self._note
        self._blocking = Memory(self._memory)

    def close(self) -> None:
        """Close the memory."""
        self._memory.close()

    def add(self, group: str, message: LabelledMessage) -> EngineCost:
        """Ingest one message, and return its cost. Raises KgrayError where the model is out of reach."""
        self._spent = {"extract": Cost(), "judge": Cost()}
        start = time.perf_counter()
        report = self._blocking.add(
            message.text,
            group=group,
            speaker=message.speaker,
            at=message.at,
            kind=message.kind,
            id=message.id,
        )
        seconds = time.perf_counter() - start
        if report.stopped or report.held:
            raise KgrayError(f"{message.id} was not ingested: {report.reason or dict(report.held)}")
        stored = self._extractions(group).get(message.id)
        total = self._spent["extract"]
        extraction = total if stored is None else stored.cost
        return EngineCost(
            extraction=extraction,
            questions=self._spent["judge"],
            repeated=Cost(*map(sub, total, extraction)),
            seconds=seconds,
        )

    def result(self, conversation: Conversation) -> EngineReading:
        """Return the stored results of a conversation that was ingested."""
        store, group = self._memory.store, conversation.id
        extractions = self._extractions(group)
        graph = graph_of(store, group)
        return EngineReading(
            facts={
                message.id: read_facts(extractions[message.id], message.speaker)
                for message in conversation.messages
                if message.id in extractions
            },
            notes={name: read.dropped for name, read in extractions.items() if read.dropped},
            faults={row.episode.client_id or "": row.failure.message for row in failures(store, group)},
            graph=graph_facts(graph, conversation.messages[-1].at),
            identities=resolved_identities(conversation, graph),
        )

    def _note(self, task: str, outcome: str, cost: Cost) -> None:  # noqa: ARG002 - the engine's callback
        """Add the cost of one request; task: extract or judge."""
        self._spent[task] = Cost(*map(add, self._spent[task], cost))

    def _extractions(self, group: str) -> dict[str, Extraction]:
        store = self._memory.store
        clients = {episode.sequence: episode.client_id or "" for episode in dumped_episodes(store, group)}
        rows = store.rows(EXTRACTIONS.all, group)
        return {clients[row.sequence]: extraction(row) for row in rows if row.sequence in clients}


def read_facts(read: Extraction, speaker: str | None) -> list[ReadFact]:
    """Return the facts of a stored extraction."""

    def converted(fact: ExtractedFact) -> ReadFact:
        value = fact.value.shown() if fact.value is not None else ""
        target = value if fact.target is None else read.entities[fact.target].name
        start = fact.valid_from and times.show_as(fact.valid_from, fact.from_precision or "instant")
        end = fact.valid_to and times.show_as(fact.valid_to, fact.to_precision or "instant")
        return ReadFact(
            subject=end_name(read.entities[fact.source].name, speaker),
            object=end_name(target, speaker),
            relation=fact.relation,
            text=fact.text,
            status=_STATUSES[fact.kind],
            start=start or None,
            end=end or None,
        )

    return [converted(fact) for fact in read.facts]


def graph_facts(graph: ShownGraph, at: str) -> list[GraphFact]:
    """Return the spans of a graph at an instant in ISO form."""
    moment = times.from_datetime(datetime.fromisoformat(at))

    def names_of(entity: str) -> tuple[str, ...]:
        return tuple(graph.names.get(entity, ()))

    spans = []
    for fact in graph.facts:
        has_ended = fact.invalid_at is not None and fact.invalid_at <= moment
        value = (fact.value.shown(),) if fact.value is not None else ()
        spans.append(
            GraphFact(
                subject=names_of(fact.source),
                object=value if fact.target is None else names_of(fact.target),
                relation=fact.relation,
                text=fact.text,
                state="event" if fact.event else "ended" if has_ended else "holds",
            )
        )
    return spans


def resolved_identities(conversation: Conversation, graph: ShownGraph) -> Identities:
    """Compare the entities that a graph's mentions were resolved to with the labels."""
    names = {
        message.id: {id_: conversation.entities[id_].accepted for id_ in message.mentions}
        for message in conversation.messages
    }
    matched: list[ResolvedMention] = []
    covered = set()
    for client, surface, entity in graph.mentions:
        name = normal_name(surface)
        for id_, accepted in names.get(client, {}).items():
            if name in accepted:
                matched.append(ResolvedMention(name, id_, entity))
                covered.add((client, id_))
                break
    return identities(matched, sum(map(len, names.values())), len(covered))
