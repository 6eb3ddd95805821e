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
EXTENSIONS = frozenset(_EXTENSIONS) | {".json"}  # what a folder is searched for
_BLOCK = 1 << 16  # bytes
# Words of a file's name that do not say what its records are: "products-export-2026-03.csv".
_NO_TABLE = frozenset("backup copy data dump export exported exports final full latest new old".split())
PIECE = 1_500  # characters: short enough for one extraction to read well, and few calls a page
MAX_PARAGRAPH = 8_000  # a longer paragraph is cut at the end of a sentence
_BORDER = re.compile(r"(?:\r?\n[ \t]*){2,}")
_SENTENCE = re.compile(r"[.!?。！？][\"')\]]*\s+|\s*\r?\n\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A draft and its place. whole: the file is one source, and --replace retracts what it has no more."""

    draft: Draft
    file: str = ""
    line: int | None = None
    whole: bool = False


def read_file(
    path: Path | RemoteFile, defaults: Defaults, *,
    name: str | None = None, skip: int = 0, position: Position | None = None,
) -> Iterator[Submitted | Refusal]:  # fmt: skip
    """Yield each row of a file in order, as a draft or a refusal; never raises for what the file contains.

    name      what refusals and text sources call the file; its path unless said
    skip      how many rows to leave out at the start, because an earlier reading yielded them
    position  is updated with how much was read
    Raises Unavailable where a file at a URL cannot be read now.
    """
    shown = name or (str(path) if isinstance(path, Path) else path.name)
    position = position or Position()
    try:
        form = _format(path)
        if form == "text":
            yield from _text(path, defaults, shown, skip, position)
        elif form == "parquet":
            yield from _drafts(parquet_rows(path, skip, position), defaults, shown, position, form)
        else:
            with path.open("rb") as file:
                position.follow(file)
                if form == "lines":
                    rows = json_lines(file, skip=skip)
                elif form in {"csv", "tsv"}:
                    rows = islice(csv_rows(file, "," if form == "csv" else "\t", position), skip, None)
                else:
                    rows = islice(json_values(file), skip, None)
                yield from _drafts(rows, defaults, shown, position, form)
    except OSError as error:
        yield Refusal(file=shown, line=None, field=None, reason=f"cannot be read: {error.strerror or error}")


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
    if known := _EXTENSIONS.get(path.suffix.lower()):
        return known
    with path.open("rb") as file:
        first = file.read(4)
        if first == b"PAR1":
            return "parquet"
        file.seek(0)
        while block := file.read(_BLOCK).removeprefix(b"\xef\xbb\xbf"):
            if start := block.lstrip():
                if start.startswith(b"["):
                    return "array"
                # A first line that does not end a value: that is written over several lines.
                is_open = start.split(b"\n", 1)[0].rstrip().endswith((b"{", b"[", b",", b":"))
                return "objects" if is_open else "lines"
    return "lines"


def _drafts(
    rows: Iterator[NumberedRow], defaults: Defaults, shown: str, position: Position, form: Format
) -> Iterator[Submitted | Refusal]:
    """Yield the drafts of rows: of a table without a column of texts, and of whole objects, as records."""
    # What the records are, by the file's name: "products" of "products-2026-03.csv"; "" = not known.
    words = map(str.lower, re.findall("[A-Za-z]+", Path(shown).stem))
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
            yield Refusal(file=shown, line=line, field=error.field, reason=str(error))
        else:
            yield Submitted(draft=draft, file=shown, line=line)


def _text(
    path: Path | RemoteFile, defaults: Defaults, shown: str, skip: int, position: Position
) -> Iterator[Submitted | Refusal]:
    base = Path(shown).name  # a piece's id is the file's and its number: an edited one is a conflict
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
                yield Submitted(draft=draft, file=shown, line=line, whole=True)
    except InputError as error:
        if number >= skip:  # otherwise an earlier reading has yielded it, after the last piece
            yield Refusal(file=shown, line=line, field=error.field, reason=str(error))
        return
    if not number and not skip:
        yield Refusal(file=shown, line=None, field="text", reason="the file holds no text")


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive paragraphs. start, end: characters [start, end) of the file; line: 1-based."""

    text: str
    start: int
    end: int
    line: int


def pieces(file: BinaryIO) -> Iterator[Piece]:
    """Yield a text in order, paragraphs put together up to PIECE characters. Raises InputError: no UTF-8."""
    held: Piece | None = None
    for paragraph in _paragraphs(file):
        if held is not None and paragraph.end - held.start <= PIECE:
            joint = "\n\n" if paragraph.start - held.end > 1 else "\n"
            held = Piece(held.text + joint + paragraph.text, held.start, paragraph.end, held.line)
            continue
        if held is not None:
            yield held
        held = paragraph
    if held is not None:
        yield held


def _paragraphs(file: BinaryIO) -> Iterator[Piece]:
    """Yield stripped paragraphs; at most MAX_PARAGRAPH characters and one block are held."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, start, line, ended = "", 0, 1, False
    while not ended:
        block = file.read(_BLOCK)
        ended = not block
        try:
            more = decoder.decode(block, ended)
        except UnicodeDecodeError:
            raise InputError(f"not valid UTF-8 after line {line + text.count(chr(10))}") from None
        text += more.removeprefix("\ufeff") if start == 0 and not text else more
        while end := _next_border(text, ended=ended):
            raw = text[:end]
            if stripped := raw.strip():
                before = len(raw) - len(raw.lstrip())
                first = start + before
                yield Piece(stripped, first, first + len(stripped), line + raw.count("\n", 0, before))
            line += text.count("\n", 0, end)
            text, start = text[end:], start + end


def _next_border(text: str, *, ended: bool) -> int:
    """Return where the first paragraph ends, its border included; 0 = more must be read first."""
    border = _BORDER.search(text, 0, MAX_PARAGRAPH + 1)
    if border and (border.end() < len(text) or ended):
        return border.end()
    if len(text) <= MAX_PARAGRAPH:
        return len(text) if ended else 0
    cuts = [match.end() for match in _SENTENCE.finditer(text, 0, MAX_PARAGRAPH)]
    if cuts and cuts[-1] > PIECE:
        return cuts[-1]
    return text.rfind(" ", PIECE, MAX_PARAGRAPH) + 1 or MAX_PARAGRAPH
