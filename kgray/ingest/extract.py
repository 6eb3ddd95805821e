"""An episode's extraction: stored, read off its triples, or asked of the model (R22, R24)."""

from __future__ import annotations

from dataclasses import replace

from kgray.ingest.aside import aside
from kgray.ingest.outbox import Outbox
from kgray.ingest.parts import Parts
from kgray.intake import triples
from kgray.ports import Extracted, ExtractionRequest
from kgray.prompting.replies import speaker_first
from kgray.records import Episode, Extraction


async def extract(parts: Parts, outbox: Outbox, episode: Episode) -> Extraction:
    """Return the episode's extraction, posted to the journal as it arrives: accepted -> extracted.

    It reads the episode and its previous context, no graph state. An episode that is extracted already
    is not asked about again, whatever the model setting says now (R21).
    Raises Refused, InvalidAnswer, Unavailable as the extractor does.
    """
    stored = await stored_extraction(parts, episode)
    return keep(outbox, episode, await read_episode(parts, episode)) if stored is None else stored


async def stored_extraction(parts: Parts, episode: Episode) -> Extraction | None:
    """Return the extraction that the journal holds."""
    if episode.state != "extracted":
        return None
    return await aside(parts.store, lambda: parts.store.extraction(episode.group, episode.sequence))


def keep(outbox: Outbox, episode: Episode, found: Extraction) -> Extraction:
    """Post an extraction to the journal; return it as the journal gives it back."""
    stored = as_stored(found)
    outbox.post(Extracted(group=episode.group, sequence=episode.sequence, extraction=stored))
    return stored


async def read_episode(parts: Parts, episode: Episode) -> Extraction:
    """Return what the episode says, the speaker first; nothing is stored."""
    if episode.kind == "triples":
        # Triples are never sent to a model (cli.md, Input).
        return triples.to_extraction(episode.text, episode.reference_time)
    previous = await aside(
        parts.store, lambda: parts.store.previous(episode, parts.pipeline.previous_episodes)
    )
    request = ExtractionRequest(episode=episode, previous=tuple(previous))
    return speaker_first(await parts.extractor.extract(request), episode)


def as_stored(found: Extraction) -> Extraction:
    """Return an extraction as a journal gives it back, valid Unicode: a replay decides on the same."""
    entities = tuple(replace(e, name=_valid(e.name), type=_valid(e.type)) for e in found.entities)
    facts = tuple(
        replace(
            fact,
            text=_valid(fact.text),
            value=fact.value and replace(fact.value, value=_valid(fact.value.value)),
        )
        for fact in found.facts
    )
    return replace(found, entities=entities, facts=facts, dropped=tuple(map(_valid, found.dropped)))


def _valid(text: str) -> str:
    """Return a model's text as valid Unicode: a lone surrogate becomes a question mark."""
    return text if text.isascii() else text.encode(errors="replace").decode()
