"""Reads one text with the shipped rules extractor, and shows the answer as plain tuples."""

from __future__ import annotations

import asyncio

from kgray.domain.ontology import shipped
from kgray.domain.records import Episode, EpisodeKind, ExtractedFact, Extraction
from kgray.domain.times import parse, show
from kgray.models.rules.extractor import RulesExtractor
from kgray.ports import ExtractionRequest
from tests import make

READER = RulesExtractor(shipped())
WEDNESDAY = "2026-03-11T09:30:00Z"
READ_AT = "2026-03-11T09:30:00.000000Z"


def episode(
    text: str,
    speaker: str | None = "Alice Nguyen",
    kind: EpisodeKind = "message",
    at: str = WEDNESDAY,
    sequence: int = 9,
) -> Episode:
    """Return an episode with a reference time."""
    return make.episode(text, speaker, kind, at=parse(at)[0], sequence=sequence, id=str(sequence))


def read(text: str, *, previous: tuple[tuple[str, str], ...] = (), **details: object) -> Extraction:
    """previous: (speaker, text), oldest first."""
    previous_episodes = tuple(
        episode(message, speaker, sequence=i + 1) for i, (speaker, message) in enumerate(previous)
    )
    return asyncio.run(
        READER.extract(ExtractionRequest(episode=episode(text, **details), previous=previous_episodes))
    )


def named(extraction: Extraction, fact: ExtractedFact) -> tuple[str, str, str]:
    """Return (subject, relation, object) with names; a value is in angle brackets."""
    end = f"<{fact.value.shown()}>" if fact.value else extraction.entities[fact.target or 0].name
    return extraction.entities[fact.source].name, fact.relation, end


def triples_in(text: str, **details: object) -> list[tuple[str, str, str, str]]:
    """Return (subject, relation, object, kind) of each fact."""
    extraction = read(text, **details)
    return [(*named(extraction, fact), fact.kind) for fact in extraction.facts]


def timed(text: str, **details: object) -> list[tuple[str, str, str | None, str | None, bool]]:
    """Return (object, kind, from, to, inferred) of each fact; a moment as "2026-03-11 day"."""
    extraction = read(text, **details)
    return [
        (
            named(extraction, fact)[2],
            fact.kind,
            _moment(fact.valid_from, fact.from_precision),
            _moment(fact.valid_to, fact.to_precision),
            fact.inferred,
        )
        for fact in extraction.facts
    ]


def _moment(instant: int | None, precision: str | None) -> str | None:
    output = show(instant)
    return None if output is None else READ_AT if output == READ_AT else f"{output[:10]} {precision}"
