"""A conversation's history: its form, the newest part that fits into a budget, and its file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kgray.errors import InputError
from kgray.models.prompting.tokens import count_tokens
from kgray.search.answering import without_citations

ROLES = ("user", "assistant")
Turn = Mapping[str, str]  # role: user or assistant; content
_SEARCHED = 2  # earlier questions that a search includes


def turns_of(rows: Iterable[Any], place: str = "history") -> tuple[Turn, ...]:
    """Return the turns of a conversation, oldest first. Raises InputError that names the wrong row."""
    turns = []
    for number, row in enumerate(rows, 1):
        fields = row if isinstance(row, Mapping) else {}
        role, content = fields.get("role"), fields.get("content")
        if role not in ROLES or not isinstance(content, str):
            raise InputError(
                f'{place}, turn {number}: use {{"role": "user" or "assistant", "content": text}}',
                field="history",
            )
        turns.append({"role": role, "content": without_citations(content)})
    return tuple(turns)


def newest(turns: Sequence[Turn], tokens: int) -> list[Turn]:
    """Return the newest turns that fit into the tokens together, oldest first."""
    chosen: list[Turn] = []
    remaining = tokens
    for turn in reversed(turns):
        remaining -= count_tokens(turn["content"]) + count_tokens(turn["role"])
        if remaining < 0:
            break
        chosen.insert(0, turn)
    return chosen


def query_of(question: str, turns: Sequence[Turn]) -> str:
    """Return the text to search: the question and the two before it, which name its subject."""
    earlier = [turn["content"] for turn in turns if turn["role"] == "user"]
    return "\n".join([question, *reversed(earlier[-_SEARCHED:])])


def read_turns(path: Path) -> tuple[Turn, ...]:
    """Return the turns of a file of JSON lines; none where there is no such file. Raises InputError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return turns_of([json.loads(line) for line in lines if line.strip()], str(path))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", field="history") from None
    except ValueError:
        raise InputError(f"{path} is no file of JSON lines in UTF-8", field="history") from None


def add_turns(path: Path, question: str, answer: str) -> None:
    """Add a question and its answer to the file of a conversation. Raises InputError."""
    rows = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", field="history") from None
