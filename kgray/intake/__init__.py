"""Input files to drafts: one row at a time, never a whole file in memory, never an exception for a row.

files     which format, from where (a path, standard input spooled to a file)
formats   JSON Lines, a JSON array, CSV, Parquet -> rows with their line numbers
texts     a .txt or .md file -> ordered pieces at paragraph borders
rows      a row -> Draft, or the field and the reason why not
"""

from __future__ import annotations

from kgray.intake.files import EXTENSIONS, Position, Submitted, read_file, spooled
from kgray.intake.rows import FIELDS, Defaults, Refusal, draft_from

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
