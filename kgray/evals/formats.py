"""Data sets that a user brings, read from their files."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from kgray.errors import InputError
from kgray.evals.dataset import Conversation, Message, Question


def read_dataset(path: Path) -> list[Conversation]:
    """Return the conversations of a file. Raises InputError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8") from None
    return _lines(path, text)


def _lines(path: Path, text: str) -> list[Conversation]:
    """Read JSON lines: messages as `kgray add` takes them, and questions.

    {"id", "text", "speaker", "at", "session", "group"}; {"question", "type", "evidence": [ids], "answer", "group"}
    """
    messages: dict[str, list[Message]] = defaultdict(list)
    questions: dict[str, list[Question]] = defaultdict(list)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        row = json.loads(line)
        group = row.get("group") or path.stem
        if "question" in row:
            questions[group].append(
                Question(
                    id=row.get("id") or f"{group}-{number}",
                    text=row["question"],
                    type=row.get("type") or "any",
                    evidence=tuple(row.get("evidence") or ()),
                    answer=row.get("answer") or "",
                    at=row.get("at"),
                )
            )
        else:
            messages[group].append(
                Message(
                    id=row["id"],
                    text=row["text"],
                    speaker=row.get("speaker"),
                    at=row.get("at"),
                    session=row.get("session", ""),
                )
            )
    return [
        Conversation(name=group, messages=tuple(rows), questions=tuple(questions[group]))
        for group, rows in messages.items()
    ]
