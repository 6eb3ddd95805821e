"""A model's text to a JSON object: fences, reasoning, words around it, raw control characters, a cut end."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any, Never

_REASONING = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.DOTALL)
_REASONED = re.compile(r"^.*</(?:think|thinking|reasoning)>", re.DOTALL)  # its start was in the chat template
_CLOSERS = {"{": "}", "[": "]"}
_KEPT = "\t\n"
_MOST_CANDIDATES = 16  # objects that are tried; a text of brackets must not cost quadratic time


def read_object(text: str, wanted: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the last outermost object that has the wanted keys, else the first object; None for none.

    The last, because a model that drafts ends with its answer.
    """
    first: dict[str, Any] | None = None
    found: dict[str, Any] | None = None
    for piece in _outermost(_bare(text)):
        value = _loaded(piece)
        if isinstance(value, dict):
            first = value if first is None else first
            found = value if all(key in value for key in wanted) else found
    return found if found is not None else first


def salvage(text: str, wanted: tuple[str, ...]) -> dict[str, Any] | None:
    """Return what a cut text holds in complete list items; None where not even one is complete.

    A wanted list that the cut left out is empty.
    """
    bare = _bare(text)
    start = bare.find("{")
    if start < 0:
        return None
    kept, stack, items = "", [], 0
    for at, sign in _signs(bare, start):
        if sign in _CLOSERS:
            stack.append(_CLOSERS[sign])
            continue
        if not stack or sign != stack.pop():
            break
        # An item is an object of a list of the outermost object; what follows the last one is cut off.
        items += stack == ["}", "]"]
        if stack in (["}", "]"], ["}"]) and items:
            kept = bare[start : at + 1] + "".join(reversed(stack))
        if not stack:
            break
    value = _loaded(kept) if kept else None
    if not isinstance(value, dict):
        return None
    return {key: [] for key in wanted} | value


def breaks_off(text: str) -> bool:
    """Whether the first object never ends."""
    bare = _bare(text)
    start = bare.find("{")
    return start >= 0 and _end_of(bare, start) is None


def _bare(text: str) -> str:
    """Return the text without reasoning blocks; one that never closes may hold the answer."""
    return _REASONED.sub("", _REASONING.sub("", text))


def _outermost(text: str) -> Iterator[str]:
    """Yield each balanced {...} that stands in no other."""
    start, tried = text.find("{"), 0
    while start >= 0 and tried < _MOST_CANDIDATES:
        tried += 1
        end = _end_of(text, start)
        if end is None:
            start = text.find("{", start + 1)
        else:
            yield text[start:end]
            start = text.find("{", end)


def _end_of(text: str, start: int) -> int | None:
    """Return where the object that starts here ends; None where it does not."""
    stack: list[str] = []
    for at, sign in _signs(text, start):
        if sign in _CLOSERS:
            stack.append(_CLOSERS[sign])
        elif not stack or stack.pop() != sign:
            return None
        if not stack:
            return at + 1
    return None


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)


def _signs(text: str, start: int) -> Iterator[tuple[int, str]]:
    """Yield the brackets that stand outside of strings, with their places."""
    for match in _TOKEN.finditer(text, start):
        if match[0][0] != '"':
            yield match.start(), match[0]


def _loaded(text: str) -> object:
    try:
        return _clean(json.loads(text, strict=False, parse_constant=_no_number))
    except (ValueError, RecursionError):
        return None


def _no_number(constant: str) -> Never:
    raise ValueError(f"{constant} is no JSON")


def _clean(value: object) -> object:
    """Return the value with texts that can be stored: no control characters, no half of a surrogate pair."""
    if isinstance(value, str):
        if value.isprintable():
            return value
        return "".join(c for c in value if c in _KEPT or unicodedata.category(c) not in ("Cc", "Cs"))
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {str(_clean(key)): _clean(item) for key, item in value.items()}
    return value
