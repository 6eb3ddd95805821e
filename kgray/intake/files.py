"""The format of a file, and its rows as drafts."""

from __future__ import annotations

import codecs
import hashlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

from kgray.errors import InputError
from kgray.intake.drafts import TEXTS, Defaults, Refusal, draft_from
from kgray.intake.formats import NumberedRow, Position, csv_rows, json_lines, json_values, parquet_rows
from kgray.intake.remote import RemoteFile
from kgray.records import MAX_CLIENT_ID, Draft

Format = Literal["lines", "array", "objects", "csv", "tsv", "parquet", "text"]
_EXTENSIONS: dict[str, Format] = {
    ".jsonl": "lines", ".ndjson": "lines", ".csv": "csv", ".tsv": "tsv",
    ".parquet": "parquet", ".pq": "parquet", ".txt": "text", ".md": "text",
}  # fmt: skip
EXTENSIONS = frozenset(_EXTENSIONS) | {".json"}  # a folder is searched for these
_BLOCK = 1 << 16  # bytes
# Words of a file's name that do not describe its records: "products-export-2026-03.csv".
_NO_TABLE = frozenset("backup copy data dump export exported exports final full latest new old".split())
PIECE = 1_500  # characters: short enough for one extraction to read well, and few calls a page
MAX_PARAGRAPH = 8_000  # a longer paragraph is cut at the end of a sentence
_BORDER = re.compile(r"(?:\r?\n[ \t]*){2,}")
_SENTENCE = re.compile(r"[.!?。！？][\"')\]]*\s+|\s*\r?\n\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A draft and its place. whole: the file is a source, and --replace retracts its removed texts."""

    draft: Draft
    file: str = ""
    line: int | None = None
    whole: bool = False


def read_file(
    path: Path | RemoteFile, defaults: Defaults, *,
    name: str | None = None, skip: int = 0, position: Position | None = None,
) -> Iterator[Submitted | Refusal]:  # fmt: skip
    """Yield each row of a file in order, as a draft or a refusal; never raises for the file's content.

    name      the file's name in refusals and text sources; default: its path
    skip      number of rows to skip at the start, because an earlier reading yielded them
    position  is updated with the position in the file
    Raises Unavailable where a file at a URL cannot be read now.
    """
    display_name = name or (str(path) if isinstance(path, Path) else path.name)
    position = position or Position()
    try:
        form = _format(path)
        if form == "text":
            yield from _text(path, defaults, display_name, skip, position)
        elif form == "parquet":
            yield from _drafts(parquet_rows(path, skip, position), defaults, display_name, position, form)
        else:
            with path.open("rb") as file:
                position.follow(file)
                if form == "lines":
                    rows = json_lines(file, skip=skip)
                elif form in {"csv", "tsv"}:
                    rows = islice(csv_rows(file, "," if form == "csv" else "\t", position), skip, None)
                else:
                    rows = islice(json_values(file), skip, None)
                yield from _drafts(rows, defaults, display_name, position, form)
    except OSError as error:
        yield Refusal(
            file=display_name, line=None, field=None, reason=f"cannot be read: {error.strerror or error}"
        )


@contextmanager
def spooled(stream: BinaryIO | None = None, *, suffix: str = "") -> Iterator[Path]:
    """Copy standard input (or a stream) to a temporary file and yield its path; the file is deleted after."""
    if stream is None:
        if sys.stdin is None:
            raise InputError("- is standard input, and that is closed")
        stream = sys.stdin.buffer
    with tempfile.NamedTemporaryFile(prefix="kgray-", suffix=suffix) as file:
        try:
            shutil.copyfileobj(stream, file)
            file.flush()
        except OSError as error:
            raise InputError(f"the input cannot be kept in {file.name}: {error.strerror or error}") from None
        yield Path(file.name)


def _format(path: Path | RemoteFile) -> Format:
    """Return the format by the extension, else by the first byte that is not blank."""
    if format_of_extension := _EXTENSIONS.get(path.suffix.lower()):
        return format_of_extension
    with path.open("rb") as file:
        first = file.read(4)
        if first == b"PAR1":
            return "parquet"
        file.seek(0)
        while block := file.read(_BLOCK).removeprefix(b"\xef\xbb\xbf"):
            if start := block.lstrip():
                if start.startswith(b"["):
                    return "array"
                # The first line does not end a value: a value has several lines.
                is_open = start.split(b"\n", 1)[0].rstrip().endswith((b"{", b"[", b",", b":"))
                return "objects" if is_open else "lines"
    return "lines"


def _drafts(
    rows: Iterator[NumberedRow], defaults: Defaults, display_name: str, position: Position, form: Format
) -> Iterator[Submitted | Refusal]:
    """Yield the drafts of rows; rows of a table without a column of texts, and whole objects, are records."""
    # The records' table, from the file's name: "products" of "products-2026-03.csv"; "" = not known.
    words = map(str.lower, re.findall("[A-Za-z]+", Path(display_name).stem))
    table = "_".join(word for word in words if word not in _NO_TABLE)
    for line, row in rows:
        named: Iterable[str] = position.columns or TEXTS
        if form == "objects" and isinstance(row, Mapping):
            named = row
        try:
            if isinstance(row, InputError):
                raise row
            draft = draft_from(row, defaults, record=TEXTS.isdisjoint(named), table=table)
        except InputError as error:
            yield Refusal(file=display_name, line=line, field=error.field, reason=str(error))
        else:
            yield Submitted(draft=draft, file=display_name, line=line)


def _text(
    path: Path | RemoteFile, defaults: Defaults, display_name: str, skip: int, position: Position
) -> Iterator[Submitted | Refusal]:
    base = Path(
        display_name
    ).name  # a piece's id is the file's name and its number: an edited piece is a conflict
    source = defaults.source or base
    prefix = base if source == base else f"{source}/{base}"
    if len(prefix) > MAX_CLIENT_ID - 12:
        prefix = prefix[:100] + "~" + hashlib.sha256(prefix.encode(errors="replace")).hexdigest()[:32]
    line, number = None, 0
    try:
        with path.open("rb") as file:
            position.follow(file)
            for number, piece in enumerate(pieces(file), 1):
                line = piece.line
                if number <= skip:
                    continue
                row: dict[str, Any] = {"id": f"{prefix}#{number}", "source": source, "kind": "text"}
                row |= {"text": piece.text, "part": number, "characters": [piece.start, piece.end]}
                draft = draft_from(row, Defaults(group=defaults.group, at=defaults.at))
                yield Submitted(draft=draft, file=display_name, line=line, whole=True)
    except InputError as error:
        if number >= skip:  # otherwise an earlier reading has yielded it, after the last piece
            yield Refusal(file=display_name, line=line, field=error.field, reason=str(error))
        return
    if not number and not skip:
        yield Refusal(file=display_name, line=None, field="text", reason="the file holds no text")


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive paragraphs. start, end: characters [start, end) of the file; line: 1-based."""

    text: str
    start: int
    end: int
    line: int


def pieces(file: BinaryIO) -> Iterator[Piece]:
    """Yield a text in order, paragraphs joined up to PIECE characters. Raises InputError: no UTF-8."""
    pending: Piece | None = None
    for paragraph in _paragraphs(file):
        if pending is not None and paragraph.end - pending.start <= PIECE:
            joint = "\n\n" if paragraph.start - pending.end > 1 else "\n"
            pending = Piece(pending.text + joint + paragraph.text, pending.start, paragraph.end, pending.line)
            continue
        if pending is not None:
            yield pending
        pending = paragraph
    if pending is not None:
        yield pending


def _paragraphs(file: BinaryIO) -> Iterator[Piece]:
    """Yield stripped paragraphs; at most MAX_PARAGRAPH characters and a block are in memory."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, start, line, ended = "", 0, 1, False
    while not ended:
        block = file.read(_BLOCK)
        ended = not block
        try:
            decoded = decoder.decode(block, ended)
        except UnicodeDecodeError:
            raise InputError(f"not valid UTF-8 after line {line + text.count(chr(10))}") from None
        text += decoded.removeprefix("\ufeff") if start == 0 and not text else decoded
        while end := _next_border(text, ended=ended):
            raw = text[:end]
            if stripped := raw.strip():
                indent = len(raw) - len(raw.lstrip())
                first = start + indent
                yield Piece(stripped, first, first + len(stripped), line + raw.count("\n", 0, indent))
            line += text.count("\n", 0, end)
            text, start = text[end:], start + end


def _next_border(text: str, *, ended: bool) -> int:
    """Return the end of the first paragraph, with its border; 0 = more must be read first."""
    border = _BORDER.search(text, 0, MAX_PARAGRAPH + 1)
    if border and (border.end() < len(text) or ended):
        return border.end()
    if len(text) <= MAX_PARAGRAPH:
        return len(text) if ended else 0
    cuts = [match.end() for match in _SENTENCE.finditer(text, 0, MAX_PARAGRAPH)]
    if cuts and cuts[-1] > PIECE:
        return cuts[-1]
    return text.rfind(" ", PIECE, MAX_PARAGRAPH) + 1 or MAX_PARAGRAPH
