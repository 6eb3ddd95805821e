"""Stored text as it is shown: the part of a long one that a query asks for, as one line that is no markup."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from datetime import datetime

_LINE = 2000  # characters of a stored text that are used: a longer line does not help a prompt
_HIDDEN = {"Cc", "Cs"}  # control characters, lone surrogates
# A character that a model could read as the "<" of a tag: "<" or one that looks like it, then a letter, with
# blanks, slashes and invisible characters allowed between the two; or of a chat turn's mark ("<|im_end|>").
_TAG_OPENS = re.compile(
    r"[<\uff1c\ufe64\u2039\u3008]"
    r"(?=[\s/\\\uff0f\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]*"
    r"[A-Za-z\uff21-\uff5a|\uff5c])"
)
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


def safe(text: str) -> str:
    """Return stored text as one line that holds no tag and no control character."""
    shown = "".join(" " if unicodedata.category(sign) in _HIDDEN else sign for sign in beginning(text, _LINE))
    return _TAG_OPENS.sub("&lt;", " ".join(shown.split()))


def dates(valid_at: datetime | None, invalid_at: datetime | None) -> str:
    """Return `from - to`: days, or minutes where a span begins and ends on one day."""
    same_day = valid_at is not None and invalid_at is not None and valid_at.date() == invalid_at.date()
    start = "unknown" if valid_at is None else day_of(valid_at, minutes=same_day)
    return f"{start} - {'present' if invalid_at is None else day_of(invalid_at, minutes=same_day)}"


def day_of(moment: datetime, *, minutes: bool = False) -> str:
    """Return a moment as a day, or to the minute."""
    return moment.isoformat(" ")[: len("2026-03-01 09:30") if minutes else len("2026-03-01")]
