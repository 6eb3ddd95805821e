"""An episode's extraction: stored, read off its triples, or asked of the model (R22, R24)."""

from __future__ import annotations

from kgray import triples
from kgray.ports import ExtractionRequest, Extractor, Store
from kgray.records import Episode, Extraction
from kgray.replies import speaker_first


async def extract(store: Store, extractor: Extractor, episode: Episode, previous_episodes: int) -> Extraction:
    """Return the episode's extraction, stored before it is used: accepted -> extracted.

    It reads the episode and its previous context, no graph state. An episode that is extracted already
    is not asked about again, whatever the model setting says now (R21).
    Raises Refused, InvalidAnswer, Unavailable as the extractor does.
    """
    if episode.state == "extracted":
        stored = store.extraction(episode.group, episode.sequence)
        if stored is not None:
            return stored
    found = await read_episode(store, extractor, episode, previous_episodes)
    store.keep_extraction(episode.group, episode.sequence, found)
    return store.extraction(episode.group, episode.sequence) or found


async def read_episode(
    store: Store, extractor: Extractor, episode: Episode, previous_episodes: int
) -> Extraction:
    """Return what the episode says, the speaker first; nothing is stored."""
    if episode.kind == "triples":
        # Triples are never sent to a model (cli.md, Input).
        return triples.to_extraction(episode.text, episode.reference_time)
    previous = tuple(store.previous(episode, previous_episodes))
    return speaker_first(
        await extractor.extract(ExtractionRequest(episode=episode, previous=previous)), episode
    )
