"""The context block: what a search found as text for a prompt, within a budget of tokens; stored text, safe.

Hits of all scopes are chosen by their scores, not by score per token: short lines hold less evidence. What is
chosen is shown in an order that does not depend on scores, so the same hits give the same text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any

import numpy as np

from kgray import kinds, reads, times
from kgray.derivation.stored import view_now
from kgray.errors import InputError
from kgray.graph import Community, Entity, Fact, Hit, Scope, named
from kgray.ports import GraphView, Store, at_one_moment
from kgray.prompting import tokens as counting
from kgray.search.loading import run_at, texts_of
from kgray.search.query import MAX_LIMIT, Query
from kgray.search.recipes import TEMPLATES, Template
from kgray.search.searcher import Searcher, ViewAt
from kgray.search.templates import CITED, FORMS, Form
from kgray.times import Instant, to_datetime

MIN_TOKENS = 64  # room for the longest fixed answer, which holds no hit
CONTEXT_HITS = 60  # Zep's paper takes 20 facts and 20 entities; here the budget decides how many are used
_LINE_TOKENS = 10  # most lines have more: no budget is left unused for want of hits
_ENTITY = 0.2  # what a name with aliases and types adds, measured by its score
_NOTHING = "Nothing that this memory holds bears on the question."
_NO_ROOM = "What this memory holds on the question does not fit here."
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_DAYS = "Mon Tue Wed Thu Fri Sat Sun".split()  # begins no line with a number, as lines to cite do
_START = datetime.min.replace(tzinfo=UTC)
TOLD = 5  # facts of an entity from which on a model may write of it
_BESIDE = 2  # facts beside a name, where no model wrote of it
_READ = 50  # facts an entity, the newest: an entity with very many does not hold up a read
_ALIASES = 5
_CORRECTIONS = frozenset({"merge", "split", "undo"})
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A text for a prompt."""

    text: str
    tokens: int  # by the counter that was used; never above the budget
    hits: tuple[Hit, ...]  # those that the text contains, in its order
    numbered: frozenset[Scope] = CITED  # the scopes whose hits have a number

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
    count: counting.Counter = counting.count_tokens,
    template: Template = "kgray",
    view: ViewAt | None = None,
) -> Context:
    """Search, and return what was found as text: facts, entities, excerpts of raw episodes.

    limit   hits that are looked at, at most 1,000; None = one for every 10 tokens, at least 60
    count   tokens of a text, where the caller's model counts otherwise than `count_tokens` estimates
    template    kgray, or paper: facts and entities alone, as in Zep's paper
    Raises InputError for a budget below 64 tokens, and what `search` raises. Source of the template: Zep,
    arXiv 2501.13956, section 3.
    """
    if isinstance(tokens, bool) or tokens < MIN_TOKENS:
        raise InputError(f"tokens is {tokens!r}: a context needs at least {MIN_TOKENS}", field="tokens")
    if template not in TEMPLATES:
        raise InputError(f"template {template!r} is unknown: use {', '.join(TEMPLATES)}", field="template")
    wanted = min(MAX_LIMIT, max(CONTEXT_HITS, tokens // _LINE_TOKENS)) if limit is None else limit
    ways = query.ways
    # What repeats is left out here, where the words are seen; how much fits, the budget says.
    both = replace(ways, once=False, weights=replace(ways.weights, tail=-1.0))
    found = await searcher.search(replace(query, limit=wanted, recipe=both), view=view)
    # The facts of an episode of triples say it in words, where facts are asked for.
    hits = [hit for hit in found if hit.kind != "triples" or "fact" not in ways.scopes]
    entities, store = [hit.id for hit in hits if hit.entity is not None], searcher.store
    facts = {hit.id for hit in hits if hit.fact}  # the line of an entity says what else is so

    def read() -> dict[str, str]:
        shown, at = view_now(store, query.group) if view is None else view(), query.as_of
        return descriptions(store, shown, entities, as_of=at, known_at=query.known_at, besides=facts)

    told = at_one_moment(store, read) if entities else {}
    hits = [replace(hit, profile=told[hit.id]) if hit.entity is not None else hit for hit in hits]
    then = {"as of": query.as_of, "as known on": query.known_at}
    moments = {word: to_datetime(moment) for word, moment in then.items() if moment is not None}
    how: dict[str, Any] = {"moments": moments, "template": template, "shares": ways.shares}
    return write(hits, tokens, query=query.text, count=count, **how)


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
    count: counting.Counter = counting.count_tokens,
    moments: Mapping[str, datetime] = MappingProxyType({}),
    template: Template = "kgray",
    shares: Mapping[Scope, float] = MappingProxyType({}),
) -> Context:
    """Write hits within `tokens` (at least 64); in any order: their scores are compared over all scopes.

    query   long messages are cut around its words; moments: "as of", "as known on"
    shares  of the tokens, the most that the lines of a scope take
    A line that does not fit is left out, and a later one may fit. Empty sections are left out. No stored text
    can end its line or its section, because `safe` removes line breaks and tags.
    """
    form = FORMS[template]
    hits = [hit for hit in hits if hit.scope in form.heads]
    lines = _lines(hits, query, count)
    told = ", ".join(f"{word} {day_of(moment)}" for word, moment in moments.items())
    text = state = "\n".join(filter(None, (form.intro, f"This is the state {told}." if told else "")))
    # What is written once for several lines: a section's frame, a day in a source.
    frames = {key: count(f"{head}\n<{tag}>\n</{tag}>\n") for key, (tag, head) in form.heads.items()}
    prices: dict[object, int] = {**frames} | {
        _day(line.hit): count(f"{_dated(line.hit, None)}\n") for line in lines
    }
    chosen: list[_Line] = []
    most = {scope: int(share * tokens) for scope, share in shares.items()}
    guess = {line.hit.id for line in _fitting(lines, chosen, tokens - count(text), prices, most)}

    def is_said(line: _Line) -> bool:  # it adds least: a fact without an end whose messages are shown
        fact = line.hit.fact
        if fact is None or fact.invalid_at is not None or _answers(line.hit):
            return False
        return bool(fact.episodes) and all(episode in guess for episode, _ in fact.episodes)

    lines.sort(key=is_said)
    while more := _fitting(lines, chosen, tokens - count(text), prices, most):
        chosen += more  # lines that are counted one by one are rounded up, so the next time there is room
        text = _text(state, chosen, form)
    while chosen and count(text) > tokens:  # a caller's counter may find more in the whole
        chosen.pop()
        text = _text(state, chosen, form)
    if not chosen:
        text = _NO_ROOM if hits else _NOTHING
    shown = sorted((line.hit for line in chosen), key=_order)
    return Context(text=text, tokens=count(text), hits=tuple(shown), numbered=form.cited)


def _lines(hits: Sequence[Hit], query: str, count: counting.Counter) -> list[_Line]:
    """Return the lines of hits, the worthiest first; a bare name only where nothing else was found."""
    telling = [hit for hit in hits if hit.entity is None or hit.entity.labels or hit.entity.aliases] or hits
    asked, lines = pattern(query), []
    for hit in sorted(telling, key=_order):
        body, worth = _body(hit, asked), hit.score * (_ENTITY if hit.scope == "entity" else 1)
        mark = "" if hit.scope == "episode" else "[]"
        lines.append(_Line(hit, body, count(f"{mark}{len(hits)}{body}\n"), worth))
    return sorted(lines, key=lambda line: -line.worth)


def _answers(hit: Hit) -> bool:
    """Whether a hit is a fact that answers the question (`matching`)."""
    return hit.fact is not None and "answers" in hit.signals


def _fitting(
    ranked: Iterable[_Line],
    chosen: Sequence[_Line],
    left: int,
    prices: Mapping[object, int],
    most: Mapping[Scope, int],
) -> list[_Line]:
    """Return the lines that fit beside those that are chosen, in order, within the tokens that are left.

    most: tokens that the lines of a scope take together
    """
    spent: dict[Scope, int] = defaultdict(int)
    for line in chosen:
        spent[line.hit.scope] += line.cost
    paid = {key for line in chosen for key in (line.hit.scope, _day(line.hit))}
    found = []
    for line in ranked:
        new = {line.hit.scope, _day(line.hit)} - paid
        cost = line.cost + sum(prices[key] for key in new)
        if (scope := line.hit.scope) in most and spent[scope] + line.cost > most[scope]:
            continue
        if cost <= left and line not in chosen:
            spent[scope] += line.cost
            found.append(line)
            left -= cost
            paid |= new
    return found


def _text(state: str, chosen: Sequence[_Line], form: Form) -> str:
    """Return the text: the sections, each in the order of `_order`."""
    written, number = [state] if state else [], 0
    ordered = sorted(chosen, key=lambda line: _order(line.hit))
    for scope, (tag, head) in form.heads.items():
        before: Hit | None = None
        after: tuple[object, int] | None = None
        for line in (line for line in ordered if line.hit.scope == scope):
            hit, number = line.hit, number + (scope in form.cited)
            written += [] if before else [head, f"<{tag}>"]
            written += [day] if (day := _dated(hit, before)) else []
            if scope == "episode":  # bare: a short message costs 14 tokens, brackets would be two more
                mark = f"{' ' if (_day(hit), hit.sequence) == after else ''}{number}"
            else:
                mark = f"- [{number}]" if scope in form.cited else "-"
            written.append(f"{mark}{line.body}".rstrip())
            before, after = hit, (_day(hit), (hit.sequence or -1) + 1)  # what comes next in its source
        written += [f"</{tag}>"] if before else []
    return "\n".join(written)


def _order(hit: Hit) -> tuple[Any, ...]:
    """Return the key of the order in which hits are shown: facts that answer, then by time; names by name."""
    if hit.fact is not None:
        return 0, -hit.signals.get("answers", 0.0), hit.fact.valid_at or _START, hit.id, hit.text
    if hit.entity is not None:
        return 1, hit.text, hit.id
    if hit.community is not None:
        return 2, hit.community.level, hit.text, hit.id
    said = hit.reference_time or _START
    return 3, said.date(), hit.told_in or "", said, hit.sequence or 0, hit.id, hit.text, hit.speaker or ""


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
        span = f" (Date range: {dates(hit.fact.valid_at, hit.fact.invalid_at)})"
        return (
            f" {safe(hit.text)}{_participants(hit)}{'' if hit.fact.event else span}"  # an event's text has it
        )
    if hit.entity is not None:
        return f" {who(hit.entity)}" + (f": {hit.profile}" if hit.profile else "")
    if hit.community is not None:
        return f" {safe(hit.text)} (as of {day_of(hit.known_at or _START)})"
    speaker = safe(hit.speaker or "")
    part = f": {speaker}" if speaker[:1].isnumeric() else f" {speaker}" if speaker else ""
    return f"{part}{' (outdated)' if hit.outdated else ''}: {safe(excerpt(hit.text, asked))}"


def _participants(hit: Hit) -> str:
    """Return the participants of a hyper-edge whom its sentence does not name."""
    more = [name for name in hit.participants if name.casefold() not in hit.text.casefold()]
    return f" (participants: {', '.join(map(safe, hit.participants))})" if more else ""


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


def who(entity: Entity) -> str:
    """Return `NAME (type; also known as ...)`."""
    said = [", ".join(map(safe, entity.labels))] if entity.labels else []
    if entity.aliases:
        more = ", ..." if len(entity.aliases) > _ALIASES else ""
        said.append(f"also known as {', '.join(map(safe, entity.aliases[:_ALIASES]))}{more}")
    return safe(entity.name) + (f" ({'; '.join(said)})" if said else "")


def told(fact: Fact) -> str:
    """Return a fact with its dates, as one line without a full stop."""
    text = safe(fact.text).rstrip(".")
    start, end = (None if at is None else to_datetime(at) for at in (fact.valid_at, fact.invalid_at))
    return text if fact.event else f"{text} ({dates(start, end)})"


def best(facts: Collection[Fact], at: Instant) -> list[Fact]:
    """Return those of the facts that hold then, the best supported first, then the newest."""
    holding = [fact for fact in facts if fact.holds_at(at)]
    return sorted(holding, key=lambda f: (-len(f.episodes), -(f.valid_at or 0), f.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a model wrote of an entity; sources: (id, the client's id) of the episodes that it rests on."""

    text: str
    sources: tuple[tuple[str, str | None], ...]


def profile_of(
    store: Store,
    view: GraphView,
    entity: str,
    *,
    as_of: Instant | None = None,
    known_at: Instant | None = None,
) -> Profile | None:
    """Return what a model wrote of an entity; None where none did, or the text may not be so any more.

    It says what held at its run: it is used where no moment is asked for, and nothing was learned of the
    entity since. view: as known at `known_at`.
    """
    found = _written(store, view, [entity], known_at).get(entity) if as_of is None else None
    if found is None:
        return None
    sequences = np.frombuffer(found.sources, "<u4").tolist()
    heads = store.rows(reads.EPISODE_HEADS_AT, view.group, sequences) if sequences else ()
    return Profile(text=safe(found.summary), sources=tuple((row.id, row.client_id) for row in heads))


def profile_texts(store: Store, view: GraphView, entities: Sequence[str]) -> dict[str, str]:
    """Return entity id -> the text of its profile as of now (`profile_of`), of those that have one."""
    return {id_: safe(one.summary) for id_, one in _written(store, view, entities, None).items()}


def descriptions(
    store: Store,
    view: GraphView,
    entities: Sequence[str],
    *,
    as_of: Instant | None = None,
    known_at: Instant | None = None,
    besides: Collection[str] = (),
) -> dict[str, str]:
    """Return entity id -> what stands beside its name: its profile, else its best supported facts that hold.

    besides: ids of facts that are shown already; other arguments as of `profile_of`.
    """
    at = times.now() if as_of is None else as_of
    texts = _written(store, view, entities, known_at) if as_of is None else {}
    found = {id_: safe(one.summary) for id_, one in texts.items()}
    for id_ in entities:
        if id_ not in found:
            facts = view.facts_at([id_], at, _READ)
            shown = [fact for fact in best(facts, at) if fact.id not in besides][:_BESIDE]
            found[id_] = " ".join(f"{told(fact)}." for fact in shown)
    return found


def _written(
    store: Store, view: GraphView, entities: Sequence[str], known_at: Instant | None
) -> dict[str, Community]:
    """Return entity id -> what a model wrote of it, of those of which nothing was learned since."""
    known = run_at(store, view.group, known_at)
    if known is None:
        return {}
    run, since = known
    texts = texts_of(store, view.group, run, entities)[1]
    if not texts or store.heads([view.group])[view.group].last_recorded <= since:
        return texts
    for row in store.rows(kinds.OPERATIONS.all, view.group):
        if row.kind in _CORRECTIONS and row.recorded_at is not None and row.recorded_at > since:
            return {}  # a merge or split: whose facts a text tells is not known

    def is_so(id_: str) -> bool:
        facts = view.facts_at([id_], None, _READ)
        news = any(fact.created_at > since or (fact.expired_at or 0) > since for fact in facts)
        return not news and len(facts) < _READ  # one that is older than all of these may have ended

    return {id_: text for id_, text in texts.items() if is_so(id_)}
