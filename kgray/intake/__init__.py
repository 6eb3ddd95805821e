"""Input files to drafts, one row at a time: no whole file in memory, and no exception for a bad row.

files     which format a file is in, and its rows as drafts; standard input spooled to a file
formats   JSON Lines, a JSON array, CSV, Parquet -> rows with their line numbers
texts     a .txt or .md file -> ordered pieces at paragraph borders
drafts    a row -> Draft, or the wrong field with the reason
triples   a list of triples -> canonical JSON -> Extraction
"""

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
