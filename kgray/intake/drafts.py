"""A row of input to a Draft. All input formats have the same fields."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from kgray import times
from kgray.errors import InputError
from kgray.intake import triples
from kgray.records import (
    EPISODE_KINDS,
    MAX_CLIENT_ID,
    Draft,
    EpisodeKind,
    canonical,
    check_group,
    clean_text,
    is_storable,
)
from kgray.times import Instant

MAX_DEPTH = 64  # of nested JSON: deeper than any record, and far from Python's limit of recursion
MAX_DIGITS = 400  # of an integer: a double has at most 309
MAX_SOURCE = 256
# The names of each field. The first present name is used; others are then metadata, like any other key.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "text": ("text", "content"),
    "at": ("at", "timestamp"),
    "speaker": ("speaker", "role"),
    "id": ("id",),
    "group": ("group",),
    "source": ("source",),
    "kind": ("kind",),
    "triples": ("triples",),
}
# A record's times of change, used without `at` if they can be read.
_CHANGED = "updated_at modified_at last_modified last_updated updated_on modified_on updated modified".split()
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")  # Unicode's category Cc
_SHOWN_REASONS = 20
_PARTICULARS = re.compile(r"'[^']*'|\"[^\"]*\"|\b[0-9a-f]{32,}\b|\d+")
FIELDS = frozenset(name for names in _NAMES.values() for name in names)
TEXTS = frozenset({*_NAMES["text"], "triples"})  # a row with such a field is no record


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A refused row. line: 1-based (a row's number in Parquet); None = the file itself."""

    file: str
    line: int | None
    field: str | None
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object of `kgray add --json`."""
        return asdict(self)


def reasons(refused: Iterable[tuple[str | None, str]]) -> dict[str, int]:
    """Return the counts of refusals by reason; numbers and quotes in reasons are ignored."""
    counted: Counter[str] = Counter()
    first: dict[str, str] = {}
    for field, reason in refused:
        message = f"{field}: {reason}" if field and not reason.startswith(field) else reason
        kind = _PARTICULARS.sub("", message)
        first.setdefault(kind, message)
        counted[kind] += 1
    return {first[kind]: number for kind, number in counted.most_common(_SHOWN_REASONS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The values of fields that a row leaves out; None = none."""

    group: str | None = None
    source: str | None = None
    kind: EpisodeKind | None = None
    at: Instant | None = None


def draft_from(
    row: object, defaults: Defaults | None = None, *, record: bool = False, table: str = ""
) -> Draft:
    """Return the draft of a row. Raises InputError with the field and the reason.

    record  read the row itself, for a table without a column of texts; also if its kind is "json" and it has
            no text
    table   the table of a record; "" = it has no name
    """
    defaults = defaults or Defaults()
    if not isinstance(row, Mapping):
        raise InputError(f"not an object but {_kind_of(row)}")
    is_json = row.get("kind", defaults.kind) == "json"
    if record or (is_json and row.keys() - FIELDS and all(row.get(name) is None for name in TEXTS)):
        return _record(row, defaults, table)
    values: dict[str, Any] = dict.fromkeys(_NAMES)
    spelled: dict[str, str] = {}
    for field, names in _NAMES.items():
        for name in names:
            if (value := row.get(name)) is not None:
                values[field], spelled[field] = value, name
                break
    if (speaker := values["speaker"]) is not None:
        speaker = clean_text(_line(speaker, spelled["speaker"], triples.MAX_NAME))
    kind = _kind(values, speaker, defaults)
    at = _time(values["at"], spelled.get("at", "at"), defaults.at)
    source = (defaults.source or "default") if values["source"] is None else values["source"]
    used = {name for field, name in spelled.items() if field != "text" or kind != "triples"}
    return Draft(
        group=_group(values["group"], defaults.group),
        source=_line(source, "source", MAX_SOURCE),
        kind=kind,
        text=_content(kind, values, spelled.get("text", "text"), at),
        speaker=speaker,
        reference_time=at,
        client_id=_client_id(values["id"]),
        metadata=_metadata(row, used),
    )


def _record(row: Mapping[Any, Any], defaults: Defaults, table: str) -> Draft:
    """Return the `json` episode of a record; its `id` is the object's: an update is a new episode."""
    content = {
        key: value for key, value in row.items() if key != "group" and (key, value) != ("kind", "json")
    }
    group = _group(row.get("group"), defaults.group)
    source = _line(defaults.source or "default", "source", MAX_SOURCE)
    text, at = _json(content, "the record"), defaults.at
    for name in (name for name in (*_NAMES["at"], *_CHANGED) if row.get(name) is not None):
        try:
            at = _time(row[name], name, None)
            break
        except InputError:
            if name not in _CHANGED:  # "last week" is no time, but the record is valid
                raise
    metadata = canonical({"table": table}) if table else "{}"
    return Draft(group=group, source=source, kind="json", text=text, reference_time=at, metadata=metadata)


def _kind_of(value: object) -> str:
    names = {type(None): "null", bool: "true or false", str: "a text", list: "a list"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def _kind(values: Mapping[str, Any], speaker: str | None, defaults: Defaults) -> EpisodeKind:
    kind = values["kind"]
    if kind is None and values["triples"] is not None and values["text"] is None:
        kind = "triples"
    if kind is None:
        kind = defaults.kind or ("message" if speaker is not None else "text")
    if not isinstance(kind, str) or kind not in EPISODE_KINDS:
        raise InputError(f"kind {_cut(kind)} is none of {', '.join(EPISODE_KINDS)}", field="kind")
    if values["triples"] is not None and kind != "triples":
        raise InputError(f'triples are for kind "triples", and this is a {kind}', field="triples")
    return kind


def _content(kind: EpisodeKind, values: Mapping[str, Any], field: str, at: Instant | None) -> str:
    if kind == "triples":
        if (items := values["triples"]) is None:
            raise InputError("triples are missing", field="triples")
        # A text is a cell of a table: JSON.
        read = _parsed(items, "triples") if isinstance(items, str) else items
        return triples.normalise(plain(read, "triples"), at)
    text = values["text"]
    if text is None:
        raise InputError('text is missing; if the row is a record, set kind to "json"', field="text")
    if kind == "json":
        return _json(text, field)
    if not isinstance(text, str):
        raise InputError(
            f'{field} must be a text, not {_kind_of(text)}; for JSON set kind to "json"', field=field
        )
    _check_text(text, field)
    return text


def _json(value: object, field: str) -> str:
    """Return canonical JSON; a text that is a JSON object or list is parsed."""
    if isinstance(value, str):
        _check_text(value, field)
        if value.lstrip()[:1] in ("{", "["):
            value = _parsed(value, field)
    value = plain(value, field)
    if value in ({}, []):
        raise InputError(f"{field} is empty", field=field)
    return canonical(value)


def _check_text(text: str, field: str) -> None:
    if not text.strip():
        raise InputError(f"{field} is empty", field=field)
    _check_signs(text, field)


def _check_signs(text: str, field: str) -> None:
    if "\0" in text:
        raise InputError(f"{field} contains U+0000", field=field)
    if not is_storable(text):
        raise InputError(f"{field} is not valid Unicode: it contains half of a surrogate pair", field=field)


def _line(value: object, field: str, limit: int) -> str:
    """Return a text of a single line: no control character, not empty, at most `limit` characters."""
    if not isinstance(value, str):
        raise InputError(f"{field} must be a text, not {_kind_of(value)}", field=field)
    if not value.strip():
        raise InputError(f"{field} is empty", field=field)
    if len(value) > limit:
        raise InputError(f"{field} has {len(value)} characters: at most {limit}", field=field)
    if _CONTROL.search(value):
        raise InputError(f"{field} contains a control character", field=field)
    _check_signs(value, field)
    return value


def _client_id(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):  # 17 and "17" are the same id, in every format
        value = str(plain(value, "id"))
    return None if value is None else _line(value, "id", MAX_CLIENT_ID)


def _group(value: object, default: str | None) -> str:
    value = default if value is None else value
    if value is None:
        raise InputError("no group: name it in the row, or for all rows", field="group")
    if not isinstance(value, str):
        raise InputError(f"group must be a text, not {_kind_of(value)}", field="group")
    return check_group(value)


def _time(value: object, field: str, default: Instant | None) -> Instant | None:
    if value is None:
        return default
    if isinstance(value, datetime):
        try:
            times.to_datetime(instant := times.from_datetime(value))
        except OverflowError:
            raise InputError(f"{field} lies outside the years 1 to 9999", field=field) from None
        return instant
    if isinstance(value, date):
        value = value.isoformat()
    if isinstance(value, Decimal):
        value = float(value)
    return times.given(value, field)[0]


def _cut(value: object) -> str:
    text = value if isinstance(value, str) else _kind_of(value)
    return ascii(text[:80]) + "..." * (len(text) > 80)


def _metadata(row: Mapping[Any, Any], used: set[str]) -> str:
    tree: dict[str, Any] = {}
    for key, value in row.items():
        if key in used or (value is None and key in FIELDS):
            continue
        if not isinstance(key, str):
            raise InputError("a field's name must be a text")
        key_text = _cut(key)[1:-1]
        tree[plain(key, key_text)] = plain(value, key_text)
    return canonical(tree) if tree else "{}"


def _parsed(text: str, field: str) -> object:
    try:
        return parse_json(text)
    except InputError as error:
        raise InputError(f"{field} is not usable JSON: {error}", field=field) from None


def plain(value: object, field: str, depth: int = 0) -> Any:  # noqa: ANN401 - any JSON
    """Return a value in the types of JSON: dates as ISO 8601, decimals as text. Raises InputError."""
    if depth > MAX_DEPTH:
        raise InputError(f"{field} is nested more than {MAX_DEPTH} deep", field=field)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InputError(f"{field} holds a name that is no text", field=field)
            _check_signs(key, field)
        return {key: plain(inner, field, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, field, depth + 1) for inner in value]
    return _scalar(value, field)


def _scalar(value: object, field: str) -> Any:  # noqa: ANN401 - a text, number, boolean or None
    if isinstance(value, str):
        _check_signs(value, field)
    elif isinstance(value, int):
        if value.bit_length() > MAX_DIGITS * 10 // 3:
            raise InputError(f"{field} holds a number of more than {MAX_DIGITS} digits", field=field)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{field} holds {value}, which is no number", field=field)
    elif isinstance(value, datetime | date | time):
        return value.isoformat()
    elif isinstance(value, timedelta):
        return value.total_seconds()
    elif isinstance(value, Decimal):
        return str(value)
    elif value is not None:
        raise InputError(f"{field} holds {type(value).__name__}, which JSON cannot say", field=field)
    return value


def parse_json(text: str) -> Any:  # noqa: ANN401 - any JSON
    """Return the value of a JSON text, strictly. Raises InputError with a reason for one line."""
    try:
        return STRICT.decode(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise InputError("nested too deep") from None


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"the name {_cut(twice)} stands twice in one object", field=ascii(twice[:80])[1:-1])
    return row


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InputError(f"a number of more than {MAX_DIGITS} digits")
    return int(digits)


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise InputError(f"the number {text[:40]} is too large")
    return number


def _constant(name: str) -> float:
    raise InputError(f"{name} is not JSON")


STRICT = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_int=_integer, parse_float=_float, parse_constant=_constant
)
# Only finds the end of a value: the parsed numbers are not used.
LENIENT = json.JSONDecoder(parse_int=len, parse_float=len)
