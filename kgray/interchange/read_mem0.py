"""Reads memories of Mem0: the JSON of `get_all`, or its Markdown files. They are texts that a model reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kgray.errors import InputError
from kgray.interchange.importing import Import, known_moment, text_of
from kgray.interchange.lines import read_json
from kgray.records import MAX_CLIENT_ID, Draft, canonical, make_id

_LISTS = ("results", "memories", "items")
_TEXTS = ("memory", "text", "data", "content")
_FRONT = re.compile(r"---\n(.*?)\n---\n(.*)", re.DOTALL)


def units(path: Path, importing: Import) -> Iterator[Draft]:
    """Yield a text for each memory. An expiration date is no end of a fact, and stays metadata."""
    if path.is_dir():
        files = sorted(path.glob("*.md"))
        if not files:
            raise InputError(f"{path} has no .md file of Mem0's plug-in")
        rows = [_front(file) for file in files]
    elif path.suffix == ".md":
        rows = [_front(path)]
    else:
        rows = _items(read_json(path), path)
    for row in rows:
        text = next((text for name in _TEXTS if (text := text_of(row.get(name)).strip())), "")
        if not text:
            importing.omitted["memories without a text"] += 1
            continue
        if (at := known_moment(row.get("created_at"))) is None:
            importing.changed["texts without a time: they get the time of the import"] += 1
        owner = next((text_of(row[name]) for name in ("user_id", "agent_id", "run_id") if row.get(name)), "")
        about = {name: value for name, value in row.items() if name not in _TEXTS}
        id_ = text_of(row.get("id")) or make_id("mem0", text, text_of(row.get("created_at")))
        yield Draft(
            group=importing.group, source=owner[:256] or "mem0", kind="text", text=text, reference_time=at,
            client_id=id_[:MAX_CLIENT_ID], metadata=canonical({"mem0": about}),
        )  # fmt: skip


def _items(document: object, path: Path) -> list[Mapping[str, Any]]:
    rows: object = document
    if isinstance(document, dict):
        rows = next((document[name] for name in _LISTS if isinstance(document.get(name), list)), None)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(
            f"{path} has no list of memories ({', '.join(_LISTS)}): the export that fills a schema is no dump"
        )
    return rows


def _front(path: Path) -> Mapping[str, Any]:
    """Return the front matter of a Markdown file, each value a text, with the text behind it."""
    try:
        text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error})") from None
    if (parts := _FRONT.fullmatch(text)) is None:
        return {"id": path.stem, "memory": text}
    pairs = (line.partition(":") for line in parts[1].splitlines() if ":" in line)
    return {key.strip(): value.strip().strip("\"'") for key, _, value in pairs} | {"memory": parts[2]}
