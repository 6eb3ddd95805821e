"""What a language model is told and what it replies.

prompts    the files of `prompts/`: loaded, given the settings' words, filled with data, hashed
schemas    what a reply may look like on the wire, for decoders that are held to a schema
replies    replies to records, each item checked by itself
estimate   what a language model would have to do for a file, before anything is sent
"""

from __future__ import annotations

from kgray.prompting.prompts import (
    REPAIR_LINE,
    TASKS,
    Prompt,
    Prompts,
    dating_data,
    extraction_data,
    folder,
    load,
    questions_data,
    repair_data,
    section,
    sections,
    tokens,
)

__all__ = [
    "REPAIR_LINE",
    "TASKS",
    "Prompt",
    "Prompts",
    "dating_data",
    "extraction_data",
    "folder",
    "load",
    "questions_data",
    "repair_data",
    "section",
    "sections",
    "tokens",
]
