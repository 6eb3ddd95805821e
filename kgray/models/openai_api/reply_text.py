"""Reads the JSON object of a model's reply, with text around it or cut."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from typing import Any, Never

from kgray.errors import InvalidAnswer

RAW_KEPT = 4000  # characters of a bad reply that a repair quotes, and a failure keeps


def read_reply(text: str, keys: tuple[str, ...], *, cut: bool, last: bool) -> tuple[Mapping[str, Any], bool]:
    """Return the reply's object and whether it was cut. Raises InvalidAnswer.

    If a reply breaks off although the server reports no cut, only that of the last call is salvaged.
    """
    reply = read_object(text, keys)
    if reply is not None and all(key in reply for key in keys):
        return reply, False
    if cut or (last and breaks_off(text)):
        complete = salvage(text, keys)
        if complete is not None:
            return complete, True
    if cut:
        why = "the reply was cut before its first complete item"
    elif reply is not None:
        why = f"the reply has no {', '.join(repr(key) for key in keys if key not in reply)}"
    else:
        why = "the reply holds no JSON object" if text.strip() else "the reply is empty"
    raise InvalidAnswer(why, raw=text[:RAW_KEPT])


_REASONING = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.DOTALL)
_REASONED = re.compile(
    r"^.*</(?:think|thinking|reasoning)>", re.DOTALL
)  # the opening tag was in the chat template


def read_object(text: str, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the last outermost object with these keys, else the first object; None if there is no object.

    A model may write drafts, and ends with its answer; so the last complete object counts.
    """
    objects: list[dict[str, Any]] = []
    bare, end = _bare(text), 0
    for _ in range(16):  # a text of brackets must not cost quadratic time
        if (start := bare.find("{", end)) < 0:
            break
        try:
            value, end = _DECODER.raw_decode(bare, start)
            objects.append(_clean(value))
        except (ValueError, RecursionError):
            end = start + 1
    complete = [value for value in objects if all(key in value for key in keys)]
    return complete[-1] if complete else objects[0] if objects else None


def salvage(text: str, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the complete list items of a cut text; None if no item is complete.

    The list of a missing key is empty.
    """
    bare = _bare(text)
    ends = [match.end() for match in re.finditer(r"[]}]", bare)]
    for end, closing in product(ends[:-65:-1], ("]}", "}")):  # of an item, of a list
        with suppress(ValueError, RecursionError):
            value = _clean(_DECODER.decode(bare[:end] + closing))
            if isinstance(value, dict) and any(value.values()):
                return {key: [] for key in keys} | value
    return None


def breaks_off(text: str) -> bool:
    """Return whether the text ends inside its first object."""
    bare = _bare(text)
    try:
        _DECODER.raw_decode(bare)
    except json.JSONDecodeError as error:
        # The fault is at the end, in an unfinished string, or in an unfinished word such as `null`.
        ends = "Unterminated" in error.msg or re.fullmatch(r"[a-z]*\s*", bare[error.pos :])
        return bool(bare and ends)
    except (ValueError, RecursionError):
        pass
    return False


def _bare(text: str) -> str:
    """Return the text from its first brace, without closed reasoning; open reasoning may be an answer."""
    return "".join(_REASONED.sub("", _REASONING.sub("", text)).partition("{")[1:])


def _no_number(constant: str) -> Never:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_number)


def _clean(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the value with texts that can be stored: no control characters, no half of a surrogate pair."""
    if isinstance(value, str):
        if value.isprintable():
            return value
        return "".join(c for c in value if c in "\t\n" or unicodedata.category(c) not in ("Cc", "Cs"))
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value
