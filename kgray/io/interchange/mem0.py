"""Reads memories of Mem0: the JSON of `get_all`, or its Markdown files. They are texts that a model reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kgray.domain.records import MAX_CLIENT_ID, Draft, canonical, make_id
from kgray.errors import InputError
from kgray.io.interchange.importing import Import, known_moment, storable, text_of
from kgray.io.interchange.lines import read_members

_LISTS = ("results", "memories", "items")
_TEXTS = ("memory", "text", "data", "content")
_FRONT = re.compile(r"---\n(.*?)\n---\n(.*)", re.DOTALL)


def units(path: Path, importing: Import) -> Iterator[Draft]:
    """Yield a text for each memory. An expiration date is no end of a fact, and stays metadata."""
    if path.is_dir():
        files = sorted(path.glob("mem0-export-*.md"))
        if not files:
            raise InputError(f"{path} has no mem0-export-*.md of Mem0's plug-in")
        rows: Iterable[Mapping[str, Any]] = map(_front, files)
    elif path.suffix == ".md":
        rows = [_front(path)]
    else:
        rows = _items(path, importing)
    for row in rows:
        text = next((text for name in _TEXTS if (text := text_of(row.get(name)).strip())), "")
        if not text:
            importing.omitted["memories without a text"] += 1
            continue
        if (at := known_moment(row.get("created_at"))) is None:
            importing.changed["texts without a time: they get the time of the import"] += 1
        owner = next((text_of(row[name]) for name in ("user_id", "agent_id", "run_id") if row.get(name)), "")
        about = {name: value for name, value in row.items() if name not in _TEXTS}
        id_ = text_of(row.get("id")) or make_id(
            "mem0", storable(text), storable(text_of(row.get("created_at")))
        )
        yield Draft(
            group=importing.group, source=owner[:256] or "mem0", kind="text", text=text, reference_time=at,
            client_id=id_[:MAX_CLIENT_ID], metadata=canonical({"mem0": about}),
        )  # fmt: skip


def _items(path: Path, importing: Import) -> Iterator[Mapping[str, Any]]:
    """Yield the memories of the first list that has some, after the whole file was read once."""
    filled, is_list, is_faulty = set[str](), False, False
    for key, row, is_item in read_members(path):
        if key in _LISTS or not key:
            is_list = True
            is_faulty = is_faulty or not (isinstance(row, dict) if is_item else row == [])
            filled.update([key] * is_item)
    if is_faulty or not is_list:
        raise InputError(
            f"{path} has no list of memories ({', '.join(_LISTS)}): the export that fills a schema is no dump"
        )
    for key, row, is_item in read_members(path):
        if key == "next" and row:
            importing.omitted["further pages, which are not in the file"] += 1
        if is_item and key == next((name for name in _LISTS if name in filled), ""):
            yield row


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
