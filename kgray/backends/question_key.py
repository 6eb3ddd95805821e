"""The key under which the journal keeps an answer of a judge without prompts (R21)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict

from kgray.ports import Question
from kgray.records import canonical


def questions_key(identity: str, questions: Iterable[Question]) -> str:
    """Return the hash of the judge's version and the canonical JSON of the questions, 64 hex digits."""
    content = canonical([identity, [asdict(question) for question in questions]])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
