"""The context block: what a search found as text for a prompt, within a budget of tokens.

Hits of all scopes are chosen by their scores. To divide a score by the line's tokens loses evidence: of
LoCoMo's turns, ranked by words and neighbours, 950 tokens of the best hold .820 of the evidence; by score /
tokens .520, by score / root of tokens .737. What is chosen is shown in an order that does not depend on
scores, so the same hits give the same text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter as Counts
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from kgray.errors import InputError
from kgray.graph import Entity, Hit, Scope, named
from kgray.prompting.tokens import Counter, count_tokens
from kgray.search.excerpts import beginning, excerpt, pattern
from kgray.search.query import MAX_LIMIT, Query
from kgray.search.searcher import Searcher, ViewAt
from kgray.times import to_datetime

MIN_TOKENS = 64  # room for the longest fixed answer, which holds no hit
CONTEXT_HITS = 60  # Zep's paper takes 20 facts and 20 entities; here the budget decides how many are used
_LINE_TOKENS = 20  # most lines have more: no budget is left unused for want of hits
_SHORT = 30  # tokens of a message that is shown because those on both sides of it are
_ENTITY = 0.2  # what a name with aliases and types adds, measured by its score
_ALIASES = 5
_LINE = 2000  # characters of a stored text that are used: a longer line does not help a prompt
_HIDDEN = {"Cc", "Cs"}  # control characters, lone surrogates
_NOTHING = "Nothing that this memory holds bears on the question."
_NO_ROOM = "What this memory holds on the question does not fit here."
_HEADS: Mapping[Scope, tuple[str, str]] = {
    "fact": ("FACTS", "What memory holds, and when it held or happened: [n] FACT (Date range: from - to)"),
    "entity": ("ENTITIES", "Who and what it is about: NAME (kind; also known as ...)"),
    "episode": ("EPISODES", "What was said, word for word: [n] DATE SPEAKER: TEXT; no date: the same day"),
}
_START = datetime.min.replace(tzinfo=UTC)
# A character that a model could read as the "<" of a tag: "<" or one that looks like it, then a letter, with
# blanks, slashes and invisible characters allowed between the two; or of a chat turn's mark ("<|im_end|>").
_TAG_OPENS = re.compile(
    r"[<\uff1c\ufe64\u2039\u3008]"
    r"(?=[\s/\\\uff0f\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]*"
    r"[A-Za-z\uff21-\uff5a|\uff5c])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A text for a prompt.

    tokens  of the text, by the counter that was used; never above the budget
    hits    the hits that the text contains, in its order
    """

    text: str
    tokens: int
    hits: tuple[Hit, ...]

    @property
    def cited(self) -> tuple[Hit, ...]:
        """The hits that have a number in the text: the first is [1]. Entities have none."""
        return tuple(hit for hit in self.hits if hit.scope != "entity")

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray context --json` prints."""
        citations = [
            {"number": number, "scope": hit.scope, "id": hit.id, "episodes": named(hit.told_by)}
            for number, hit in enumerate(self.cited, 1)
        ]
        hits = [hit.as_dict() for hit in self.hits]
        return {"text": self.text, "tokens": self.tokens, "hits": hits, "citations": citations}


async def context(
    searcher: Searcher,
    query: Query,
    *,
    tokens: int = 1500,
    limit: int | None = None,
    count: Counter = count_tokens,
    view: ViewAt | None = None,
) -> Context:
    """Search, and return what was found as text: facts, entities, excerpts of raw episodes.

    limit   hits that are looked at; None = one for every 20 tokens, at least 60
    count   tokens of a text, where the caller's model counts otherwise than `count_tokens` estimates
    Raises InputError for a budget below 64 tokens, and what `search` raises. Source of the template: Zep,
    arXiv 2501.13956, section 3.
    """
    if isinstance(tokens, bool) or tokens < MIN_TOKENS:
        raise InputError(f"tokens is {tokens!r}: a context needs at least {MIN_TOKENS}", field="tokens")
    wanted = min(MAX_LIMIT, max(CONTEXT_HITS, tokens // _LINE_TOKENS)) if limit is None else limit
    both = replace(query.ways, once=False)  # what repeats is left out here, where the words are seen
    hits = await searcher.search(replace(query, limit=wanted, recipe=both), view=view)
    as_of, known_at = (
        None if moment is None else to_datetime(moment) for moment in (query.as_of, query.known_at)
    )
    return write(hits, tokens, query=query.text, count=count, as_of=as_of, known_at=known_at)


def write(
    hits: Sequence[Hit],
    tokens: int,
    *,
    query: str = "",
    count: Counter = count_tokens,
    as_of: datetime | None = None,
    known_at: datetime | None = None,
) -> Context:
    """Write hits within `tokens` (at least 64); in any order: their scores are compared over all scopes.

    query   long messages are cut around its words
    A line that does not fit is left out, and a later one may fit. Empty sections are left out. No stored text
    can end its line or its section, because `safe` removes line breaks and tags.
    """
    asked = pattern(query)
    moments = _moments(as_of, known_at)
    choice = _Choice(hits, [_body(hit, asked) for hit in hits], count)

    def shown(places: Sequence[int]) -> tuple[str, list[int]]:
        ordered = sorted(places, key=lambda place: _order(hits[place]))
        return "\n".join([*moments, *choice.lines(ordered)]), ordered

    left, before = tokens - sum(count(f"{line}\n") for line in moments), -1
    chosen: list[int] = []
    while left > 0 and len(chosen) > before:  # lines that are counted one by one are rounded up: room is left
        before = len(chosen)
        chosen = choice.within(left)
        left = tokens - count(shown(chosen)[0])
    while chosen and count(shown(chosen)[0]) > tokens:  # a caller's counter may find more in the whole
        chosen.pop()
    text, ordered = shown(chosen)
    if not chosen:
        text = _NO_ROOM if hits else _NOTHING
    return Context(text=text, tokens=count(text), hits=tuple(hits[place] for place in ordered))


class _Choice:
    """Which hits to show; a hit is meant by its place in the list.

    Where all messages that support a fact are shown, it adds only an end: without one, it comes last. A name
    comes only with an alias or a type, unless nothing but names was found. A short message between two that
    are shown comes with them, which costs no evidence that could be measured.
    """

    def __init__(self, hits: Sequence[Hit], bodies: Sequence[str], count: Counter) -> None:
        self._hits, self._bodies = hits, bodies
        mark = f"- [{len(hits)}] "
        self._costs = [count(f"{mark}{body}\n") for body in bodies]
        self._frames = {
            scope: count(f"{head}\n<{tag}>\n</{tag}>\n") for scope, (tag, head) in _HEADS.items()
        }
        self._day = count(f" {_shown(_START)} ")
        self._at = {_heard(hit): place for place, hit in enumerate(hits) if hit.sequence is not None}
        self._facts: dict[str, list[int]] = {}  # episode id -> facts that it supports
        for place, hit in enumerate(hits):
            for episode, _ in hit.fact.episodes if hit.fact else ():
                self._facts.setdefault(episode, []).append(place)
        self._chosen: dict[int, None] = {}
        self._heard: set[str] = set()  # ids of the messages that are chosen
        self._paid: Counts[object] = Counts()  # how many lines stand under a frame or a day

    def within(self, room: int) -> list[int]:
        """Choose more, as long as it fits; return the places of all that is chosen, first chosen first."""
        self._left = room
        later: list[int] = []
        for place in sorted(self._wanted(), key=lambda place: self._worth(self._hits[place])):
            if place in self._chosen:
                continue
            if self._is_said(place):
                later.append(place)
            elif self._add(place) and self._hits[place].scope == "episode":
                for said in self._facts.get(self._hits[place].id, ()):
                    if said in self._chosen and self._is_said(said):
                        self._drop(said)
                        later.append(said)
                for between in self._between(place):
                    self._add(between)
        for place in later:
            self._add(place)
        return list(self._chosen)

    def lines(self, ordered: Sequence[int]) -> Iterator[str]:
        """Yield the lines of the sections; ordered: as `_order` has them."""
        number = 0
        for scope, (tag, head) in _HEADS.items():
            before: Hit | None = None
            places = [place for place in ordered if self._hits[place].scope == scope]
            if places:
                yield from (head, f"<{tag}>")
            for place in places:
                hit, number = self._hits[place], number + (scope != "entity")
                follows = before is not None and _follows(before, hit)
                mark = ("" if follows else "- ") + ("" if scope == "entity" else f"[{number}] ")
                day = f"{_day(hit)[0]} ".lstrip() if _day(hit) != _day(before) else ""
                yield f"{mark}{day}{self._bodies[place]}".rstrip()
                before = hit
            if places:
                yield f"</{tag}>"

    def _wanted(self) -> list[int]:
        names_alone = all(hit.scope == "entity" for hit in self._hits)
        return [
            place
            for place, hit in enumerate(self._hits)
            if hit.entity is None or names_alone or hit.entity.labels or hit.entity.aliases
        ]

    @staticmethod
    def _worth(hit: Hit) -> tuple[Any, ...]:
        return (-hit.score * (_ENTITY if hit.scope == "entity" else 1), *_order(hit))

    def _is_said(self, place: int) -> bool:
        """Whether the messages that are shown say all that this fact says."""
        fact = self._hits[place].fact
        if fact is None or fact.invalid_at is not None or not fact.episodes:
            return False
        return all(episode in self._heard for episode, _ in fact.episodes)

    def _between(self, place: int) -> Iterator[int]:
        """Yield the short messages that stand alone between this one and another that is shown."""
        source, sequence = _heard(self._hits[place])
        for step in (-1, 1):
            between = self._at.get((source, sequence + step), place)
            beyond = self._at.get((source, sequence + 2 * step))
            if between not in self._chosen and beyond in self._chosen and self._costs[between] <= _SHORT:
                yield between

    def _add(self, place: int) -> bool:
        """Choose a hit, if there is room for its line, its section's frame and its day, which come once."""
        extras = self._extras(place)
        cost = self._costs[place] + sum(price for key, price in extras.items() if not self._paid[key])
        if cost > self._left:
            return False
        self._left -= cost
        self._paid.update(extras.keys())
        self._chosen[place] = None
        if self._hits[place].scope == "episode":
            self._heard.add(self._hits[place].id)
        return True

    def _drop(self, place: int) -> None:
        """Take a fact back."""
        del self._chosen[place]
        extras = self._extras(place)
        self._paid.subtract(extras.keys())
        self._left += self._costs[place] + sum(price for key, price in extras.items() if not self._paid[key])

    def _extras(self, place: int) -> dict[object, int]:
        hit = self._hits[place]
        return {hit.scope: self._frames[hit.scope]} | ({_day(hit): self._day} if _day(hit)[0] else {})


def _order(hit: Hit) -> tuple[Any, ...]:
    """Return the key of the order in which hits are shown: by time, names by name."""
    if hit.fact is not None:
        return 0, hit.fact.valid_at or _START, hit.id, hit.text
    if hit.entity is not None:
        return 1, hit.text, hit.id
    said = hit.reference_time or _START
    return 2, said.date(), hit.told_in or "", hit.sequence or 0, said, hit.id, hit.text, hit.speaker or ""


def _heard(hit: Hit) -> tuple[str | None, int]:
    return hit.told_in, hit.sequence or 0


def _follows(before: Hit, hit: Hit) -> bool:
    """Whether a message comes next after another in its source, on the same day."""
    if hit.sequence is None or _day(before) != _day(hit):
        return False
    return _heard(before) == (hit.told_in, hit.sequence - 1)


def _day(hit: Hit | None) -> tuple[str, str | None]:
    """Return what an excerpt is dated with once: the day of a message, and its source."""
    if hit is None or hit.reference_time is None:
        return "", None
    return _shown(hit.reference_time), hit.told_in


def safe(text: str) -> str:
    """Return stored text as one line that holds no tag and no control character."""
    shown = "".join(" " if unicodedata.category(sign) in _HIDDEN else sign for sign in beginning(text, _LINE))
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


def _body(hit: Hit, asked: re.Pattern[str] | None) -> str:
    """Return what a hit's line says after its mark and its day."""
    if hit.fact is not None:
        if hit.fact.event:  # its text says its date
            return safe(hit.text)
        return f"{safe(hit.text)} (Date range: {dates(hit.fact.valid_at, hit.fact.invalid_at)})"
    if hit.entity is not None:
        return f"{safe(hit.entity.name)}{_about(hit.entity)}"
    who = f"{safe(hit.speaker)}: " if hit.speaker else ""
    return f"{who}{safe(excerpt(hit.text, asked))}"


def _about(entity: Entity) -> str:
    said = list(_described(entity))
    return f" ({'; '.join(said)})" if said else ""


def _described(entity: Entity) -> Iterator[str]:
    if entity.labels:
        yield ", ".join(safe(label) for label in entity.labels)
    if entity.aliases:
        more = ", ..." if len(entity.aliases) > _ALIASES else ""
        yield "also known as " + ", ".join(safe(alias) for alias in entity.aliases[:_ALIASES]) + more
