"""Input files to drafts, one row at a time: no whole file in memory, and no exception for a bad row."""

from __future__ import annotations

from kgray.intake.drafts import FIELDS, Defaults, Refusal, draft_from
from kgray.intake.files import EXTENSIONS, Submitted, read_file, spooled
from kgray.intake.formats import Position

__all__ = [
    "EXTENSIONS",
    "FIELDS",
    "Defaults",
    "Position",
    "Refusal",
    "Submitted",
    "draft_from",
    "read_file",
    "spooled",
]
