"""The part of a long text that is shown for a query."""

from __future__ import annotations

import re
from collections import Counter

EXCERPT = 400  # characters of a raw episode
_QUERY = 2000  # characters of a query that are looked for
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7ff"
_WORDS = re.compile(rf"[^\W{_UNSPACED}]+|[{_UNSPACED}]")


def pattern(query: str) -> re.Pattern[str] | None:
    """Return what finds the words of a query in a text, by their beginnings: "works" finds "working"."""
    words = dict.fromkeys(_WORDS.findall(query[:_QUERY].casefold()))
    begun = [re.escape(word[: max(4, len(word) - 3)]) for word in words]
    found = [word if re.match(f"[{_UNSPACED}]", word) else rf"(?<!\w){word}" for word in begun]
    return re.compile("|".join(found), re.IGNORECASE) if found else None


def excerpt(text: str, asked: re.Pattern[str] | None) -> str:
    """Return about EXCERPT characters of a text, around most of what is asked; else its beginning.

    A word counts the less, the more often the text has it. Cost: O(length).
    """
    if len(text) <= EXCERPT or asked is None:
        return beginning(text, EXCERPT)
    found = [(match.start(), match[0].casefold()) for match in asked.finditer(text)]
    often, inside = Counter(word for _, word in found), Counter[str]()
    best = worth = 0.0
    first, start, end = 0, 0, 0
    for place, word in found:
        inside[word] += 1
        worth += (inside[word] == 1) / often[word]
        while found[first][0] < place - EXCERPT // 2:
            left = found[first][1]
            inside[left] -= 1
            worth -= (inside[left] == 0) / often[left]
            first += 1
        if worth > best + 1e-9:
            best, start, end = worth, found[first][0], place
    begin = max(0, min(start - (EXCERPT - (end - start)) // 2, len(text) - EXCERPT))
    begin = max(begin, 1 + text.find(" ", begin, start)) if begin else 0
    shown = beginning(text[begin:], EXCERPT)
    return f"... {shown}" if begin else shown


def beginning(text: str, length: int) -> str:
    """Return the beginning, cut at a space where there is one."""
    if len(text) <= length:
        return text
    cut = text[:length]
    return f"{cut[: cut.rfind(' ')] if ' ' in cut else cut} ..."
