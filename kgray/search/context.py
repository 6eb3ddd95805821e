"""The context block: what a search found as text for a prompt, within a budget of tokens.

The token counter needs no model's vocabulary, and is rather too high than too low.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kgray.errors import InputError
from kgray.graph import Entity, Hit, Scope
from kgray.search.query import Query
from kgray.search.searcher import Searcher, ViewAt
from kgray.times import to_datetime

MIN_TOKENS = 64  # room for the longest fixed answer, which holds no hit
CONTEXT_HITS = 60  # Zep's paper takes 20 facts and 20 entities; here the budget decides how many are used
EXCERPT = 400  # characters of a raw episode
_ALIASES = 5
_LINE = 2000  # characters of a stored text that are used: a longer line does not help a prompt
_HIDDEN = {"Cc", "Cs"}  # control characters, lone surrogates
_NOTHING = "Nothing that this memory holds bears on the question."
_NO_ROOM = "What this memory holds on the question does not fit here."
_HEADS: tuple[tuple[Scope, str, str], ...] = (
    (
        "fact",
        "FACTS",
        "What memory holds on the question, and when it held or happened: FACT (Date range: from - to)",
    ),
    ("entity", "ENTITIES", "Who and what it is about: NAME (kind; also known as ...)"),
    ("episode", "EPISODES", "What was said, word for word: [date] SPEAKER: TEXT"),
)
# A character that a model could read as the "<" of a tag: "<" or one that looks like it, then a letter, with
# blanks, slashes and invisible characters allowed between the two.
_TAG_OPENS = re.compile(
    r"[<\uff1c\ufe64\u2039\u3008]"
    r"(?=[\s/\\\uff0f\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]*"
    r"[A-Za-z\uff21-\uff5a])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A text for a prompt.

    tokens  count_tokens(text), never above the budget
    hits    the hits that the text contains, in its order
    """

    text: str
    tokens: int
    hits: tuple[Hit, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray context --json` prints."""
        return {"text": self.text, "tokens": self.tokens, "hits": [hit.as_dict() for hit in self.hits]}


async def context(
    searcher: Searcher, query: Query, *, tokens: int = 1500, view: ViewAt | None = None
) -> Context:
    """Search and return what was found as text: facts, then entities, then excerpts of raw episodes.

    Looks at max(query.limit, 60) hits. Raises InputError for a budget below 64 tokens, and what
    `search` raises. Source of the template: Zep, arXiv 2501.13956, section 3.
    """
    if isinstance(tokens, bool) or tokens < MIN_TOKENS:
        raise InputError(f"tokens is {tokens!r}: a context needs at least {MIN_TOKENS}", field="tokens")
    wide = replace(query, limit=max(query.limit, CONTEXT_HITS))
    hits = await searcher.search(wide, view=view)
    as_of, known_at = (
        None if moment is None else to_datetime(moment) for moment in (query.as_of, query.known_at)
    )
    return write(hits, tokens, as_of=as_of, known_at=known_at)


def write(
    hits: Sequence[Hit], tokens: int, *, as_of: datetime | None = None, known_at: datetime | None = None
) -> Context:
    """Write hits, best first, within `tokens` (at least 64).

    A line that does not fit is left out, and a later one may fit.
    Sections follow in the order facts, entities, episodes; empty ones are left out. No stored text can
    end its line or its section, because `safe` removes line breaks and tags.
    """
    left = tokens
    parts: list[str] = []
    used: list[Hit] = []
    moments = _moments(as_of, known_at)
    for scope, tag, head in _HEADS:
        frame = [*([] if parts else moments), head, f"<{tag}>", f"</{tag}>"]
        room = left - sum(count_tokens(line) + 1 for line in frame)
        lines: list[str] = []
        for hit in hits:
            if hit.scope != scope:
                continue
            line = _line(hit)
            cost = count_tokens(f"{line}\n")  # together: a line of an empty text ends with a space
            if cost <= room:
                room -= cost
                lines.append(line)
                used.append(hit)
        if lines:
            left = room
            parts += [*frame[:-1], *lines, frame[-1]]
    text = "\n".join(parts) if parts else _NO_ROOM if hits else _NOTHING
    return Context(text=text, tokens=count_tokens(text), hits=tuple(used))


def safe(text: str) -> str:
    """Return stored text as one line that holds no tag and no control character."""
    shown = "".join(" " if unicodedata.category(sign) in _HIDDEN else sign for sign in _cut(text, _LINE))
    return _TAG_OPENS.sub("&lt;", " ".join(shown.split()))


def dates(valid_at: datetime | None, invalid_at: datetime | None) -> str:
    """Return `from - to`: days, or minutes where a span begins and ends on one day."""
    same_day = valid_at is not None and invalid_at is not None and valid_at.date() == invalid_at.date()
    start = "unknown" if valid_at is None else _shown(valid_at, minutes=same_day)
    return f"{start} - {'present' if invalid_at is None else _shown(invalid_at, minutes=same_day)}"


def _shown(moment: datetime, *, minutes: bool = False) -> str:
    return moment.isoformat(" ")[: len("2026-03-01 09:30") if minutes else len("2026-03-01")]


def _moments(as_of: datetime | None, known_at: datetime | None) -> list[str]:
    said = []
    if as_of is not None:
        said.append(f"as of {_shown(as_of)}")
    if known_at is not None:
        said.append(f"as known on {_shown(known_at)}")
    return [f"This is the state {', '.join(said)}."] if said else []


def _line(hit: Hit) -> str:
    if hit.fact is not None:
        if hit.fact.event:  # its text says its date
            return f"- {safe(hit.text)}"
        return f"- {safe(hit.text)} (Date range: {dates(hit.fact.valid_at, hit.fact.invalid_at)})"
    if hit.entity is not None:
        return f"- {safe(hit.entity.name)}{_about(hit.entity)}"
    said = f"[{_shown(hit.reference_time)}] " if hit.reference_time is not None else ""
    who = f"{safe(hit.speaker)}: " if hit.speaker else ""
    return f"- {said}{who}{_cut(safe(hit.text), EXCERPT)}"


def _about(entity: Entity) -> str:
    said = list(_described(entity))
    return f" ({'; '.join(said)})" if said else ""


def _described(entity: Entity) -> Iterator[str]:
    if entity.labels:
        yield ", ".join(safe(label) for label in entity.labels)
    if entity.aliases:
        more = ", ..." if len(entity.aliases) > _ALIASES else ""
        yield "also known as " + ", ".join(safe(alias) for alias in entity.aliases[:_ALIASES]) + more


def _cut(text: str, length: int) -> str:
    """Return the beginning, cut at a space where there is one."""
    if len(text) <= length:
        return text
    cut = text[:length]
    return f"{cut[: cut.rfind(' ')] if ' ' in cut else cut} ..."


# ----------------------------------------------------------------------------------------- the token counter

_PIECES = re.compile(r"[A-Za-z]+|\s+|[^A-Za-z\s]")
_LETTERS_A_TOKEN = 4
_WIDE = ("W", "F")


def count_tokens(text: str) -> int:
    """Return how many tokens `text` takes, by this fixed rule.

    ASCII letters   one for each 4 of a run, begun ones counted: "the" 1, "works" 2
    spaces          a single space: none, it belongs to the next word; any other run: one a character
    CJK             one a character (full-width signs too; emoji: 3)
    anything else   one for each byte but the last of its UTF-8 form, at least one: digits and
                    punctuation 1, accented and Cyrillic letters 1, Thai and Devanagari 2, beyond the BMP 3

    English prose counts about a third more than the vocabularies of current models make of it, so a
    block within a budget here is within it there; old vocabularies may need more for Chinese.
    Texts joined by a newline cost their sum and one, if neither starts or ends with a space.
    """
    return sum(map(_cost, _PIECES.findall(text)))


def _cost(piece: str) -> int:
    first = piece[0]
    if "A" <= first <= "Z" or "a" <= first <= "z":
        return -(-len(piece) // _LETTERS_A_TOKEN)
    if first.isspace():
        return 0 if piece == " " else len(piece)
    point = ord(first)
    if point < 0x800:
        return 1
    if point < 0x10000:
        return 1 if unicodedata.east_asian_width(first) in _WIDE else 2
    return 1 if 0x20000 <= point < 0x40000 else 3  # the supplementary ideographs are CJK too
