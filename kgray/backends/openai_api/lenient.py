"""A model's text to a JSON object: fences, reasoning, words around it, raw control characters, a cut end."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from itertools import islice
from typing import Any, Never

_REASONING = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.DOTALL)
_REASONED = re.compile(r"^.*</(?:think|thinking|reasoning)>", re.DOTALL)  # its start was in the chat template
_KEPT = "\t\n"
_MOST_CANDIDATES = 16  # objects that are tried: a text of brackets must not cost quadratic time
_MOST_ENDS = 64  # brackets at which a cut text is tried to end


def read_object(text: str, wanted: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the last outermost object that has the wanted keys, else the first object; None for none.

    The last, because a model that drafts ends with its answer.
    """
    found = list(islice(_objects(_bare(text)), _MOST_CANDIDATES))
    whole = [value for value in found if all(key in value for key in wanted)]
    return whole[-1] if whole else found[0] if found else None


def salvage(text: str, wanted: tuple[str, ...]) -> dict[str, Any] | None:
    """Return what a cut text holds in complete list items; None where not even one is complete.

    A wanted list that the cut left out is empty.
    """
    bare = _bare(text)
    start = bare.find("{")
    if start < 0:
        return None
    ends = [match.end() for match in re.finditer(r"[]}]", bare)]
    for end in ends[: -_MOST_ENDS - 1 : -1]:
        for closing in ("]}", "}"):  # the end of an item, of a list
            value = _parsed(bare[start:end] + closing)
            if isinstance(value, dict) and any(value.values()):
                return {key: [] for key in wanted} | value
    return None


def breaks_off(text: str) -> bool:
    """Whether the text ends inside its first object."""
    bare = _bare(text)
    start = bare.find("{")
    if start < 0:
        return False
    try:
        _DECODER.raw_decode(bare, start)
    except json.JSONDecodeError as error:
        # At the end, in a text, or in a word such as `null`.
        return "Unterminated" in error.msg or bool(re.fullmatch(r"[a-z]*\s*", bare[error.pos :]))
    except (ValueError, RecursionError):
        pass
    return False


def _bare(text: str) -> str:
    """Return the text without reasoning blocks; one that never closes may hold the answer."""
    return _REASONED.sub("", _REASONING.sub("", text))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield each object that stands in no other."""
    start = text.find("{")
    for _ in range(_MOST_CANDIDATES):
        if start < 0:
            return
        try:
            value, end = _DECODER.raw_decode(text, start)
            yield _clean(value)
        except (ValueError, RecursionError):
            end = start + 1
        start = text.find("{", end)


def _parsed(text: str) -> object:
    try:
        return _clean(_DECODER.decode(text))
    except (ValueError, RecursionError):
        return None


def _no_number(constant: str) -> Never:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_number)


def _clean(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the value with texts that can be stored: no control characters, no half of a surrogate pair."""
    if isinstance(value, str):
        if value.isprintable():
            return value
        return "".join(c for c in value if c in _KEPT or unicodedata.category(c) not in ("Cc", "Cs"))
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value
