"""Factories of drafts and episodes: each has defaults for the fields that a test does not speak of."""

from __future__ import annotations

from typing import Any

from kgray.domain.records import Draft, Episode


def draft(
    text: str = "",
    speaker: str | None = None,
    kind: str | None = None,
    *,
    at: int | None = None,
    **fields: Any,
) -> Draft:
    """Return a draft of group g. kind: a message if it has a speaker, else a text; at: an instant."""
    return Draft(**{**_written(text, speaker, kind), "reference_time": at, **fields})


def episode(
    text: str = "",
    speaker: str | None = None,
    kind: str | None = None,
    *,
    at: int = 0,
    sequence: int = 1,
    **fields: Any,
) -> Episode:
    """Return an episode of group g, as `draft` does; its id is e1 for sequence 1."""
    stored = {"sequence": sequence, "id": f"e{sequence}", "reference_time": at, "content_sha256": ""}
    return Episode(**{**_written(text, speaker, kind), **stored, **fields})


def accepted(draft: Draft, sequence: int = 1) -> Episode:
    """Return a draft as the episode that it becomes."""
    return Episode(
        group=draft.group,
        sequence=sequence,
        id=draft.id,
        source=draft.source,
        kind=draft.kind,
        text=draft.text,
        reference_time=draft.reference_time or 0,
        content_sha256=draft.content_sha256,
        speaker=draft.speaker,
        client_id=draft.client_id,
    )


def _written(text: str, speaker: str | None, kind: str | None) -> dict[str, Any]:
    default = "message" if speaker else "text"
    return {"group": "g", "source": "s", "kind": kind or default, "text": text, "speaker": speaker}
