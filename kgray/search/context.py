"""The context block: what a search found as text for a prompt, within a budget of tokens.

Hits of all scopes are chosen by their scores, not by score per token: short lines hold less evidence. What is
chosen is shown in an order that does not depend on scores, so the same hits give the same text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any

from kgray.derivation.stored import view_now
from kgray.errors import InputError
from kgray.graph import Hit, Scope, named
from kgray.ports import at_one_moment
from kgray.prompting.tokens import Counter, count_tokens
from kgray.search.excerpts import dates, day_of, excerpt, pattern, safe
from kgray.search.query import MAX_LIMIT, Query
from kgray.search.searcher import Searcher, ViewAt
from kgray.search.texts import profiles, who
from kgray.times import to_datetime

MIN_TOKENS = 64  # room for the longest fixed answer, which holds no hit
CONTEXT_HITS = 60  # Zep's paper takes 20 facts and 20 entities; here the budget decides how many are used
_LINE_TOKENS = 10  # most lines have more: no budget is left unused for want of hits
_ENTITY = 0.2  # what a name with aliases and types adds, measured by its score
_NOTHING = "Nothing that this memory holds bears on the question."
_NO_ROOM = "What this memory holds on the question does not fit here."
_HEADS: Mapping[Scope, tuple[str, str]] = {
    "fact": ("FACTS", "What memory holds, and when it held or happened: [n] FACT (Date range: from - to)"),
    "entity": ("ENTITIES", "Who and what it is about: NAME (kind; also known as ...): what else is known"),
    "community": ("COMMUNITIES", "What belongs together: NAMES: SUMMARY (as of DATE)"),
    "episode": ("EPISODES", "What was said, by day: n SPEAKER: TEXT (indented: right after)"),
}
_CITED: frozenset[Scope] = frozenset({"fact", "episode"})
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_DAYS = "Mon Tue Wed Thu Fri Sat Sun".split()  # begins no line with a number, as lines to cite do
_START = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A text for a prompt."""

    text: str
    tokens: int  # by the counter that was used; never above the budget
    hits: tuple[Hit, ...]  # those that the text contains, in its order
    numbered: frozenset[Scope] = _CITED  # the scopes whose hits have a number

    @property
    def lines(self) -> list[str]:
        """The lines of the text that are no tags."""
        return [line for line in self.text.split("\n") if not line.startswith("<")]

    @property
    def cited(self) -> tuple[Hit, ...]:
        """The hits that have a number in the text: the first is [1]. Entities and communities have none."""
        return tuple(hit for hit in self.hits if hit.scope in self.numbered)

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

    limit   hits that are looked at, at most 1,000; None = one for every 10 tokens, at least 60
    count   tokens of a text, where the caller's model counts otherwise than `count_tokens` estimates
    Raises InputError for a budget below 64 tokens, and what `search` raises. Source of the template: Zep,
    arXiv 2501.13956, section 3.
    """
    if isinstance(tokens, bool) or tokens < MIN_TOKENS:
        raise InputError(f"tokens is {tokens!r}: a context needs at least {MIN_TOKENS}", field="tokens")
    wanted = min(MAX_LIMIT, max(CONTEXT_HITS, tokens // _LINE_TOKENS)) if limit is None else limit
    ways = query.ways
    # What repeats is left out here, where the words are seen; how much fits, the budget says.
    both = replace(ways, once=False, weights=replace(ways.weights, tail=-1.0))
    found = await searcher.search(replace(query, limit=wanted, recipe=both), view=view)
    # The facts of an episode of triples say it in words, where facts are asked for.
    hits = [hit for hit in found if hit.kind != "triples" or "fact" not in ways.scopes]
    told = _profiles(searcher, query, view, hits)
    hits = [replace(hit, profile=told[hit.id]) if hit.entity is not None else hit for hit in hits]
    then = {"as of": query.as_of, "as known on": query.known_at}
    moments = {word: to_datetime(moment) for word, moment in then.items() if moment is not None}
    return write(hits, tokens, query=query.text, count=count, moments=moments)


def _profiles(searcher: Searcher, query: Query, view: ViewAt | None, hits: Sequence[Hit]) -> dict[str, str]:
    """Return entity id -> what its line says of it; facts that are hits themselves are left out."""
    entities, facts = [hit.id for hit in hits if hit.entity is not None], {hit.id for hit in hits if hit.fact}

    def read() -> dict[str, str]:
        shown = view_now(searcher.store, query.group) if view is None else view()
        return profiles(
            searcher.store, shown, entities, as_of=query.as_of, known_at=query.known_at, most=2, besides=facts
        )

    return at_one_moment(searcher.store, read) if entities else {}


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """A hit as a line."""

    hit: Hit
    body: str  # what stands behind its number
    cost: int  # tokens without its day
    worth: float


def write(
    hits: Sequence[Hit],
    tokens: int,
    *,
    query: str = "",
    count: Counter = count_tokens,
    moments: Mapping[str, datetime] = MappingProxyType({}),
) -> Context:
    """Write hits within `tokens` (at least 64); in any order: their scores are compared over all scopes.

    query   long messages are cut around its words; moments: "as of", "as known on"
    A line that does not fit is left out, and a later one may fit. Empty sections are left out. No stored text
    can end its line or its section, because `safe` removes line breaks and tags.
    """
    lines = _lines(hits, pattern(query), count)
    told = ", ".join(f"{word} {day_of(moment)}" for word, moment in moments.items())
    text = state = f"This is the state {told}." if told else ""
    prices = _prices(lines, count)
    chosen: list[_Line] = []
    guess = {line.hit.id for line in _fitting(lines, chosen, tokens - count(text), prices)}
    lines.sort(key=lambda line: _is_said(line, guess))
    while more := _fitting(lines, chosen, tokens - count(text), prices):
        chosen += more  # lines that are counted one by one are rounded up, so the next time there is room
        text = _text(state, chosen)
    while chosen and count(text) > tokens:  # a caller's counter may find more in the whole
        chosen.pop()
        text = _text(state, chosen)
    if not chosen:
        text = _NO_ROOM if hits else _NOTHING
    shown = sorted((line.hit for line in chosen), key=_order)
    return Context(text=text, tokens=count(text), hits=tuple(shown))


def _lines(hits: Sequence[Hit], asked: re.Pattern[str] | None, count: Counter) -> list[_Line]:
    """Return the lines of the hits, the worthiest first; a bare name only where nothing else was found."""
    telling = [hit for hit in hits if hit.entity is None or hit.entity.labels or hit.entity.aliases] or hits
    found = []
    for hit in sorted(telling, key=_order):
        body, worth = _body(hit, asked), hit.score * (_ENTITY if hit.scope == "entity" else 1)
        mark = "" if hit.scope == "episode" else "[]"
        found.append(_Line(hit, body, count(f"{mark}{len(hits)}{body}\n"), worth))
    return sorted(found, key=lambda line: -line.worth)


def _is_said(line: _Line, shown: Collection[str]) -> bool:
    """Whether a line adds least: a fact without an end whose messages are shown."""
    fact = line.hit.fact
    told = fact.episodes if fact is not None and fact.invalid_at is None else ()
    return bool(told) and all(episode in shown for episode, _ in told)


def _prices(lines: Sequence[_Line], count: Counter) -> dict[object, int]:
    """Return the tokens of what is written once for several lines: a section's frame, a day in a source."""
    frames: dict[object, int] = {
        scope: count(f"{head}\n<{tag}>\n</{tag}>\n") for scope, (tag, head) in _HEADS.items()
    }
    return frames | {_day(line.hit): count(f"{_dated(line.hit, None)}\n") for line in lines}


def _fitting(
    ranked: Iterable[_Line], chosen: Sequence[_Line], left: int, prices: Mapping[object, int]
) -> list[_Line]:
    """Return the lines that fit beside those that are chosen, in order, within the tokens that are left."""
    paid = {key for line in chosen for key in (line.hit.scope, _day(line.hit))}
    found = []
    for line in ranked:
        new = {line.hit.scope, _day(line.hit)} - paid
        cost = line.cost + sum(prices[key] for key in new)
        if cost <= left and line not in chosen:
            found.append(line)
            left -= cost
            paid |= new
    return found


def _text(state: str, chosen: Sequence[_Line]) -> str:
    """Return the text: the sections, each in the order of `_order`."""
    written, number = [state] if state else [], 0
    ordered = sorted(chosen, key=lambda line: _order(line.hit))
    for scope, (tag, head) in _HEADS.items():
        before: Hit | None = None
        for line in (line for line in ordered if line.hit.scope == scope):
            hit, number = line.hit, number + (scope in _CITED)
            written += [] if before else [head, f"<{tag}>"]
            written += [day] if (day := _dated(hit, before)) else []
            if scope == "episode":  # bare: a short message costs 14 tokens, brackets would be two more
                mark = f"{' ' if _follows(before, hit) else ''}{number}"
            else:
                mark = f"- [{number}]" if scope in _CITED else "-"
            written.append(f"{mark}{line.body}".rstrip())
            before = hit
        written += [f"</{tag}>"] if before else []
    return "\n".join(written)


def _order(hit: Hit) -> tuple[Any, ...]:
    """Return the key of the order in which hits are shown: by time, names by name."""
    if hit.fact is not None:
        return 0, hit.fact.valid_at or _START, hit.id, hit.text
    if hit.entity is not None:
        return 1, hit.text, hit.id
    if hit.community is not None:
        return 2, hit.community.level, hit.text, hit.id
    said = hit.reference_time or _START
    return 3, said.date(), hit.told_in or "", said, hit.sequence or 0, hit.id, hit.text, hit.speaker or ""


def _follows(before: Hit | None, hit: Hit) -> bool:
    """Whether a message comes next after another in its source, on the same day."""
    if before is None or before.sequence is None or hit.sequence is None:
        return False
    return _day(before) == _day(hit) and before.sequence == hit.sequence - 1


def _day(hit: Hit | None) -> tuple[date | None, str | None]:
    """Return what an excerpt is dated with once: the day of a message, and its source."""
    if hit is None or hit.reference_time is None:
        return None, None
    return hit.reference_time.date(), hit.told_in


def _dated(hit: Hit, before: Hit | None) -> str:
    """Return the line of a message's day; a year only where it is new: "Sun 3 May 2026", "Tue 5 May"."""
    (day, _), (last, _) = _day(hit), _day(before)
    if day is None or _day(hit) == _day(before):
        return ""
    year = "" if last is not None and last.year == day.year else f" {day.year:04}"
    return f"{_DAYS[day.weekday()]} {day.day} {_MONTHS[day.month - 1]}{year}"


def _body(hit: Hit, asked: re.Pattern[str] | None) -> str:
    """Return what a hit's line says after its mark; a colon parts a number from what may begin with one."""
    if hit.fact is not None:
        if hit.fact.event:  # its text says its date
            return f" {safe(hit.text)}"
        return f" {safe(hit.text)} (Date range: {dates(hit.fact.valid_at, hit.fact.invalid_at)})"
    if hit.entity is not None:
        return f" {who(hit.entity)}" + (f": {hit.profile}" if hit.profile else "")
    if hit.community is not None:
        return f" {safe(hit.text)} (as of {day_of(hit.known_at or _START)})"
    speaker = safe(hit.speaker or "")
    part = f": {speaker}" if speaker[:1].isnumeric() else f" {speaker}" if speaker else ""
    return f"{part}: {safe(excerpt(hit.text, asked))}"
