"""An episode's extraction: stored, read off its triples, or asked of the model (R22, R24)."""

from __future__ import annotations

from kgray import rows
from kgray.ingest import changes
from kgray.ingest.outbox import Outbox, off_the_loop
from kgray.ingest.parts import Parts
from kgray.intake import triples
from kgray.kinds import EXTRACTIONS_AT
from kgray.ledger import previous
from kgray.ports import ExtractionRequest
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
    store, asked = parts.store, [episode.sequence]
    found = await off_the_loop(store, lambda: list(store.rows(EXTRACTIONS_AT, episode.group, asked)))
    return rows.extraction(found[0]) if found else None


def keep(outbox: Outbox, episode: Episode, found: Extraction) -> Extraction:
    """Post an extraction to the journal; return it as the journal gives it back."""
    row, kept = changes.extraction_as_kept(episode, found)
    outbox.post(changes.extracted(episode, row))
    return kept


async def read_episode(parts: Parts, episode: Episode) -> Extraction:
    """Return what the episode says, the speaker first; nothing is stored."""
    if episode.kind == "triples":
        # Triples are never sent to a model (cli.md, Input).
        return triples.to_extraction(episode.text, episode.reference_time)
    limit = parts.pipeline.previous_episodes
    said = await off_the_loop(parts.store, lambda: previous(parts.store, episode, limit))
    request = ExtractionRequest(episode=episode, previous=tuple(said))
    return speaker_first(await parts.extractor.extract(request), episode)
