"""The context block: hits of a search as text for a prompt, within a token budget; stored text is made safe.

Hits of all scopes are chosen by score, not by score per token, because short lines have less evidence. The
order of the chosen lines does not depend on scores, so the same hits give the same text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from kgray.domain import times
from kgray.domain.graph import Community, Entity, EpisodeRef, Fact, Hit, Scope
from kgray.domain.json_form import as_json
from kgray.domain.times import Instant, to_datetime
from kgray.errors import InputError
from kgray.graph.stored import view_now
from kgray.models.prompting import tokens as counting
from kgray.ports import GraphView, Store, at_one_moment
from kgray.schema import kinds, reads
from kgray.search.loading import run_at, texts_of
from kgray.search.query import MAX_LIMIT, Query
from kgray.search.recipes import TEMPLATES, Template
from kgray.search.searcher import Searcher, Sentences, ViewAt, repeats

MIN_TOKENS = 64  # room for the longest fixed text, which has no hit
CONTEXT_HITS = 60  # Zep's paper takes 20 facts and 20 entities; here the budget decides
_LINE_TOKENS = 10  # most lines have more tokens, so the hits suffice to use the whole budget
_ENTITY_SHARE = 0.2  # worth of an entity's line (aliases and types) as a share of its score
_NOTHING = "Nothing that this memory holds bears on the question."
_NO_ROOM = "What this memory holds on the question does not fit here."
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_DAYS = "Mon Tue Wed Thu Fri Sat Sun".split()  # so that no day line begins with a number, as cited lines do
_START = datetime.min.replace(tzinfo=UTC)
MIN_PROFILE_FACTS = 5  # valid facts of an entity for which a model writes a profile
_FACTS_OF_NAME = 2  # facts after a name without a profile
ENTITY_FACTS = 50  # newest facts read for an entity, which bounds the read of a hub
_ALIASES = 5
_CORRECTIONS = frozenset({"merge", "split", "undo"})
_MAX_TEXT = 2000  # characters used of a stored text: a longer line does not help a prompt
_HIDDEN = {"Cc", "Cs"}  # control characters, lone surrogates
# A character that a model could read as the start of a tag or of a chat turn's mark ("<|im_end|>"): "<" or a
# lookalike before a letter or "|", with blanks, slashes and invisible characters allowed between the two.
_TAG_OPENS = re.compile(
    r"[<\uff1c\ufe64\u2039\u3008]"
    r"(?=[\s/\\\uff0f\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]*"
    r"[A-Za-z\uff21-\uff5a|\uff5c])"
)
EXCERPT = 400  # characters shown of a raw episode
_QUERY = 2000  # characters of a query that excerpts are chosen by
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7ff"
_WORDS = re.compile(rf"[^\W{_UNSPACED}]+|[{_UNSPACED}]")


class Form(NamedTuple):
    """A template: the first line, the sections with tag and head, and the scopes whose lines have numbers."""

    intro: str
    heads: Mapping[Scope, tuple[str, str]]
    cited: frozenset[Scope]


_HEADS: Mapping[Scope, tuple[str, str]] = {
    "fact": ("FACTS", "What memory holds, and when it held or happened: [n] FACT (Date range: from - to)"),
    "entity": ("ENTITIES", "Who and what it is about: NAME (kind; also known as ...): what else is known"),
    "community": ("COMMUNITIES", "What belongs together: NAMES: SUMMARY (as of DATE)"),
    "episode": ("EPISODES", "What was said, by day: n SPEAKER: TEXT (indented: right after)"),
}
CITED: frozenset[Scope] = frozenset({"fact", "episode"})
_PAPER_FACTS = (
    "# These are the most relevant facts and their valid date ranges. If the fact is about an event, the "
    "event takes place during this time.\n# format: FACT (Date range: from - to)"
)
FORMS: Mapping[Template, Form] = {
    "kgray": Form("", _HEADS, CITED),
    # The constructor of Zep's paper, arXiv 2501.13956, section 3.
    "paper": Form(
        "FACTS and ENTITIES represent relevant context to the current conversation.",
        {
            "fact": ("FACTS", _PAPER_FACTS),
            "entity": ("ENTITIES", "# These are the most relevant entities\n# ENTITY_NAME: entity summary"),
        },
        frozenset(),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A text for a prompt."""

    text: str
    tokens: int  # by the counter in use; never above the budget
    hits: tuple[Hit, ...]  # the hits in the text, in its order
    numbered: frozenset[Scope] = CITED  # the scopes whose hits have a number

    @property
    def lines(self) -> list[str]:
        """The lines of the text without its tags."""
        return [line for line in self.text.split("\n") if not line.startswith("<")]

    @property
    def cited(self) -> tuple[Hit, ...]:
        """The hits with a number in the text, from [1]: not entities, and communities only in mode global."""
        return tuple(hit for hit in self.hits if hit.scope in self.numbered)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray context --json` prints."""
        citations = [
            {"number": number, "scope": hit.scope, "id": hit.id, "episodes": as_json(hit.told_by)}
            for number, hit in enumerate(self.cited, 1)
        ]
        hits = [hit.as_dict() for hit in self.hits]
        return {"text": self.text, "tokens": self.tokens, "hits": hits, "citations": citations}


async def context(
    searcher: Searcher, query: Query, *,
    tokens: int = 1500, limit: int | None = None, count: counting.Counter = counting.count_tokens,
    template: Template = "kgray", view: ViewAt | None = None,
) -> Context:  # fmt: skip
    """Search, and return the hits as text: facts, entities, communities, excerpts of raw episodes.

    limit   candidate hits, at most 1,000; None = one for every 10 tokens, at least 60
    count   returns the tokens of a text, if the caller's model counts differently from `count_tokens`
    template    kgray, or paper: facts and entities alone, as in Zep's paper
    Raises InputError for a budget below 64 tokens, and the errors of `search`. Source of the template: Zep,
    arXiv 2501.13956, section 3.
    """
    if isinstance(tokens, bool) or tokens < MIN_TOKENS:
        raise InputError(f"tokens is {tokens!r}: a context needs at least {MIN_TOKENS}", field="tokens")
    if template not in TEMPLATES:
        raise InputError(f"template {template!r} is unknown: use {', '.join(TEMPLATES)}", field="template")
    hit_limit = min(MAX_LIMIT, max(CONTEXT_HITS, tokens // _LINE_TOKENS)) if limit is None else limit
    recipe = query.effective_recipe
    # The search keeps repeated hits (`once`) and weak hits (`tail`): `write` drops lines by text and budget.
    without_pruning = replace(recipe, once=False, weights=replace(recipe.weights, tail=-1.0))
    ranked = await searcher.search(replace(query, limit=hit_limit, recipe=without_pruning), view=view)
    # An episode of triples repeats its facts, so it is dropped if facts are searched.
    hits = [hit for hit in ranked if hit.kind != "triples" or "fact" not in recipe.scopes]
    entities, store = [hit.id for hit in hits if hit.entity is not None], searcher.store
    facts = {hit.id for hit in hits if hit.fact}  # the line of an entity has other facts than these

    def read() -> dict[str, str]:
        graph, at = view_now(store, query.group) if view is None else view(), query.as_of
        return descriptions(store, graph, entities, as_of=at, known_at=query.known_at, excluded=facts)

    if template == "paper":  # it shows an entity's summary
        texts = {hit.id: safe(hit.entity.summary) for hit in hits if hit.entity is not None}
    else:
        texts = at_one_moment(store, read) if entities else {}
    hits = [replace(hit, profile=texts[hit.id]) if hit.entity is not None else hit for hit in hits]
    instants = {"as of": query.as_of, "as known on": query.known_at}
    moments = {word: to_datetime(moment) for word, moment in instants.items() if moment is not None}
    options: dict[str, Any] = {"moments": moments, "template": template, "shares": recipe.shares}
    return write(hits, tokens, query=query.text, count=count, **options)


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """A hit as a line."""

    hit: Hit
    body: str  # the text after the number
    cost: int  # tokens, without the line of its day
    worth: float


def write(
    hits: Sequence[Hit], tokens: int, *, query: str = "", count: counting.Counter = counting.count_tokens,
    moments: Mapping[str, datetime] = MappingProxyType({}), template: Template = "kgray",
    shares: Mapping[Scope, float] = MappingProxyType({}),
) -> Context:  # fmt: skip
    """Write hits (in any order) within `tokens`, at least 64; scores are compared over all scopes.

    query   long messages are cut around its words; moments: "as of", "as known on"
    shares  scope -> the largest share of the tokens for its lines
    A line that does not fit is left out, though a later line may fit; so are empty sections. No stored text
    can end its line or its section, because `safe` removes line breaks and tags.
    """
    form = FORMS[template]
    hits = [hit for hit in hits if hit.scope in form.heads]
    lines = _lines(hits, query, count, has_all=template == "paper")
    listed = ", ".join(f"{word} {day_of(moment)}" for word, moment in moments.items())
    text = state = "\n".join(filter(None, (form.intro, f"This is the state {listed}." if listed else "")))
    # The prices of text that several lines share: a section's frame, the line of a day.
    frames = {key: count(f"{head}\n<{tag}>\n</{tag}>\n") for key, (tag, head) in form.heads.items()}
    prices: dict[object, int] = {**frames} | {
        _day(line.hit): count(f"{_dated(line.hit, None)}\n") for line in lines
    }
    chosen: list[_Line] = []
    limits = {scope: int(share * tokens) for scope, share in shares.items()}
    guess = {line.hit.id for line in _fitting(lines, chosen, tokens - count(text), prices, limits)}

    def is_said(line: _Line) -> bool:  # a fact without an end adds least if its messages are shown
        fact = line.hit.fact
        if fact is None or fact.invalid_at is not None or _answers(line.hit):
            return False
        return bool(fact.episodes) and all(episode in guess for episode, _ in fact.episodes)

    lines.sort(key=is_said)
    while additions := _fitting(lines, chosen, tokens - count(text), prices, limits):
        chosen += additions  # counts of single lines are rounded up, so the next round may have room
        text = _text(state, chosen, form)
    while chosen and count(text) > tokens:  # a caller's counter may count more in the joined text
        chosen.pop()
        text = _text(state, chosen, form)
    if not chosen:
        text = _NO_ROOM if hits else _NOTHING
    visible = sorted((line.hit for line in chosen), key=_order)
    return Context(text=text, tokens=count(text), hits=tuple(visible), numbered=form.cited)


def _lines(hits: Sequence[Hit], query: str, count: counting.Counter, *, has_all: bool) -> list[_Line]:
    """Return the lines of hits, the greatest worth first.

    A hyper-edge (several facts of a single sentence) has only the line of its first fact.
    has_all: with the names of all entities; else bare names only if there are no other hits
    """
    informative = [hit for hit in hits if hit.entity is None or hit.entity.labels or hit.entity.aliases]
    words, lines = pattern(query), []
    for hit in sorted(hits if has_all else informative or hits, key=_order):
        body, worth = _body(hit, words), hit.score * (_ENTITY_SHARE if hit.scope == "entity" else 1)
        mark = "" if hit.scope == "episode" else "[]"
        lines.append(_Line(hit, body, count(f"{mark}{len(hits)}{body}\n"), worth))
    sentences: Sentences = {}

    def is_repeated(hit: Hit) -> bool:
        return hit.fact is not None and repeats(sentences, hit.fact, [id_ for id_, _ in hit.fact.episodes])

    return [line for line in sorted(lines, key=lambda line: -line.worth) if not is_repeated(line.hit)]


def _answers(hit: Hit) -> bool:
    """Return whether a hit is a fact that answers the question (`matching`)."""
    return hit.fact is not None and "answers" in hit.signals


def _fitting(
    ranked: Iterable[_Line], chosen: Sequence[_Line], room: int, prices: Mapping[object, int],
    limits: Mapping[Scope, int],
) -> list[_Line]:  # fmt: skip
    """Return the lines of `ranked`, in order, that fit in `room` tokens in addition to the chosen lines.

    limits: scope -> the most tokens for all its lines
    """
    spent: dict[Scope, int] = defaultdict(int)
    for line in chosen:
        spent[line.hit.scope] += line.cost
    paid = {key for line in chosen for key in (line.hit.scope, _day(line.hit))}
    fitting = []
    for line in ranked:
        new = {line.hit.scope, _day(line.hit)} - paid
        cost = line.cost + sum(prices[key] for key in new)
        if (scope := line.hit.scope) in limits and spent[scope] + line.cost > limits[scope]:
            continue
        if cost <= room and line not in chosen:
            spent[scope] += line.cost
            fitting.append(line)
            room -= cost
            paid |= new
    return fitting


def _text(state: str, chosen: Sequence[_Line], form: Form) -> str:
    """Return the text: the sections, each in the order of `_order`."""
    written, number = [state] if state else [], 0
    ordered = sorted(chosen, key=lambda line: _order(line.hit))
    for scope, (tag, head) in form.heads.items():
        previous: Hit | None = None
        successor: tuple[object, int] | None = None
        for line in (line for line in ordered if line.hit.scope == scope):
            hit, number = line.hit, number + (scope in form.cited)
            written += [] if previous else [head, f"<{tag}>"]
            written += [day] if (day := _dated(hit, previous)) else []
            if scope == "episode":  # no brackets: they would add two tokens to 14 for a short message
                mark = f"{' ' if (_day(hit), hit.sequence) == successor else ''}{number}"
            else:
                mark = f"- [{number}]" if scope in form.cited else "-"
            written.append(f"{mark}{line.body}".rstrip())
            previous, successor = hit, (_day(hit), (hit.sequence or -1) + 1)
        written += [f"</{tag}>"] if previous else []
    return "\n".join(written)


def _order(hit: Hit) -> tuple[Any, ...]:
    """Return the sort key of a hit's line: answers first.

    Facts by time, entities by name, communities by level and name, messages by day, source and time.
    """
    if hit.fact is not None:
        return 0, -hit.signals.get("answers", 0.0), hit.fact.valid_at or _START, hit.id, hit.text
    if hit.entity is not None:
        return 1, hit.text, hit.id
    if hit.community is not None:
        return 2, hit.community.level, hit.text, hit.id
    time = hit.reference_time or _START
    return 3, time.date(), hit.source or "", time, hit.sequence or 0, hit.id, hit.text, hit.speaker or ""


def _day(hit: Hit | None) -> tuple[date | None, str | None]:
    """Return the day of a message and its source, the key of a day line."""
    if hit is None or hit.reference_time is None:
        return None, None
    return hit.reference_time.date(), hit.source


def _dated(hit: Hit, previous: Hit | None) -> str:
    """Return the line of a day ("Sun 3 May 2026"; "Tue 5 May" in the same year) before a message.

    Return "" if the previous message has the same day and source.
    """
    (day, _), (last, _) = _day(hit), _day(previous)
    if day is None or _day(hit) == _day(previous):
        return ""
    year = "" if last is not None and last.year == day.year else f" {day.year:04}"
    return f"{_DAYS[day.weekday()]} {day.day} {_MONTHS[day.month - 1]}{year}"


def _body(hit: Hit, words: re.Pattern[str] | None) -> str:
    """Return the text of a hit's line after its mark; a colon separates the mark from a speaker like "7"."""
    if hit.fact is not None:
        span = f" (Date range: {dates(hit.fact.valid_at, hit.fact.invalid_at)})"
        # The text of an event has its date.
        return f" {safe(hit.text)}{_participants(hit)}{'' if hit.fact.event else span}"
    if hit.entity is not None:
        return f" {entity_line(hit.entity)}" + (f": {hit.profile}" if hit.profile else "")
    if hit.community is not None:
        return f" {safe(hit.text)} (as of {day_of(hit.known_at or _START)})"
    speaker = safe(hit.speaker or "")
    part = f": {speaker}" if speaker[:1].isnumeric() else f" {speaker}" if speaker else ""
    return f"{part}{' (outdated)' if hit.outdated else ''}: {safe(excerpt(hit.text, words))}"


def _participants(hit: Hit) -> str:
    """Return the participants of a hyper-edge if its sentence does not name all of them."""
    text = hit.text.casefold()
    missing = any(name.casefold() not in text for name in hit.participants)
    return f" (participants: {', '.join(map(safe, hit.participants))})" if missing else ""


def pattern(query: str) -> re.Pattern[str] | None:
    """Return a pattern for the words of a query by their beginnings: "works" matches "working"."""
    words = dict.fromkeys(_WORDS.findall(query[:_QUERY].casefold()))
    begun = [re.escape(word[: max(4, len(word) - 3)]) for word in words]
    patterns = [word if re.match(f"[{_UNSPACED}]", word) else rf"(?<!\w){word}" for word in begun]
    return re.compile("|".join(patterns), re.IGNORECASE) if patterns else None


def excerpt(text: str, words: re.Pattern[str] | None) -> str:
    """Return about EXCERPT characters of a text, around most of the words; without a match its beginning.

    A word counts 1 / its frequency in the text. Cost: O(length).
    """
    if len(text) <= EXCERPT or words is None:
        return beginning(text, EXCERPT)
    matches = [(match.start(), match[0].casefold()) for match in words.finditer(text)]
    counts, window = Counter(word for _, word in matches), Counter[str]()
    best = worth = 0.0
    first, start, end = 0, 0, 0
    for place, word in matches:
        window[word] += 1
        worth += (window[word] == 1) / counts[word]
        while matches[first][0] < place - EXCERPT // 2:
            dropped = matches[first][1]
            window[dropped] -= 1
            worth -= (window[dropped] == 0) / counts[dropped]
            first += 1
        if worth > best + 1e-9:
            best, start, end = worth, matches[first][0], place
    begin = max(0, min(start - (EXCERPT - (end - start)) // 2, len(text) - EXCERPT))
    begin = max(begin, 1 + text.find(" ", begin, start)) if begin else 0
    body = beginning(text[begin:], EXCERPT)
    return f"... {body}" if begin else body


def beginning(text: str, length: int) -> str:
    """Return the beginning, cut at a space if there is one."""
    if len(text) <= length:
        return text
    cut = text[:length]
    return f"{cut[: cut.rfind(' ')] if ' ' in cut else cut} ..."


def safe(text: str) -> str:
    """Return stored text as one line without tags and control characters."""
    used = beginning(text, _MAX_TEXT)
    line = "".join(" " if unicodedata.category(sign) in _HIDDEN else sign for sign in used)
    return _TAG_OPENS.sub("&lt;", " ".join(line.split()))


def dates(valid_at: datetime | None, invalid_at: datetime | None) -> str:
    """Return `from - to`: days, or minutes if a span begins and ends on the same day."""
    same_day = valid_at is not None and invalid_at is not None and valid_at.date() == invalid_at.date()
    start = "unknown" if valid_at is None else day_of(valid_at, minutes=same_day)
    return f"{start} - {'present' if invalid_at is None else day_of(invalid_at, minutes=same_day)}"


def day_of(moment: datetime, *, minutes: bool = False) -> str:
    """Return a moment as a day, or to the minute."""
    return moment.isoformat(" ")[: len("2026-03-01 09:30") if minutes else len("2026-03-01")]


def entity_line(entity: Entity) -> str:
    """Return `NAME (type; also known as ...)`."""
    details = [", ".join(map(safe, entity.labels))] if entity.labels else []
    if entity.aliases:
        ellipsis = ", ..." if len(entity.aliases) > _ALIASES else ""
        details.append(f"also known as {', '.join(map(safe, entity.aliases[:_ALIASES]))}{ellipsis}")
    return safe(entity.name) + (f" ({'; '.join(details)})" if details else "")


def fact_line(fact: Fact) -> str:
    """Return a fact with its dates, as one line without a full stop."""
    text = safe(fact.text).rstrip(".")
    start, end = (None if at is None else to_datetime(at) for at in (fact.valid_at, fact.invalid_at))
    return text if fact.event else f"{text} ({dates(start, end)})"


def best(facts: Collection[Fact], at: Instant) -> list[Fact]:
    """Return the facts that hold at an instant, the best supported first, then the newest."""
    holding = [fact for fact in facts if fact.holds_at(at)]
    return sorted(holding, key=lambda f: (-len(f.episodes), -(f.valid_at or 0), f.id))


def profile_of(
    store: Store, view: GraphView, entity: str, *, as_of: Instant | None = None,
    known_at: Instant | None = None,
) -> tuple[str, tuple[EpisodeRef, ...]]:  # fmt: skip
    """Return a model's text about an entity, and its sources; "" if there is none or it may be out of date.

    The text describes the time of its run, so it is used only without `as_of`, and if no fact of the entity
    was recorded or ended since then. view: the graph as known at `known_at`.
    """
    profile = _current_profiles(store, view, [entity], known_at).get(entity) if as_of is None else None
    if profile is None:
        return "", ()
    sequences = np.frombuffer(profile.sources, "<u4").tolist()
    heads = store.rows(reads.EPISODE_HEADS_AT, view.group, sequences) if sequences else ()
    return safe(profile.summary), tuple(EpisodeRef(row.id, row.client_id) for row in heads)


def profile_texts(store: Store, view: GraphView, entities: Sequence[str]) -> dict[str, str]:
    """Return entity id -> the text of its current profile (`profile_of`), for entities that have one."""
    return {id_: safe(text.summary) for id_, text in _current_profiles(store, view, entities, None).items()}


def descriptions(
    store: Store, view: GraphView, entities: Sequence[str], *,
    as_of: Instant | None = None, known_at: Instant | None = None, excluded: Collection[str] = (),
) -> dict[str, str]:  # fmt: skip
    """Return entity id -> its description: its profile, else its best supported valid facts.

    excluded: ids of facts that other lines show; for the other arguments see `profile_of`.
    """
    at = times.now() if as_of is None else as_of
    texts = _current_profiles(store, view, entities, known_at) if as_of is None else {}
    by_id = {id_: safe(text.summary) for id_, text in texts.items()}
    for id_ in entities:
        if id_ not in by_id:
            facts = view.facts_at([id_], at, ENTITY_FACTS)
            chosen = [fact for fact in best(facts, at) if fact.id not in excluded][:_FACTS_OF_NAME]
            by_id[id_] = " ".join(f"{fact_line(fact)}." for fact in chosen)
    return by_id


def _current_profiles(
    store: Store, view: GraphView, entities: Sequence[str], known_at: Instant | None
) -> dict[str, Community]:
    """Return entity id -> its profile, for entities without newly recorded or ended facts since its run."""
    newest = run_at(store, view.group, known_at)
    if newest is None:
        return {}
    run, recorded_at = newest
    texts = texts_of(store, view.group, run, entities)[1]
    if not texts or store.heads([view.group])[view.group].last_recorded <= recorded_at:
        return texts
    for row in store.rows(kinds.OPERATIONS.all, view.group):
        if row.kind in _CORRECTIONS and row.recorded_at is not None and row.recorded_at > recorded_at:
            return {}  # after a merge or split, a profile may describe another entity's facts

    def is_current(id_: str) -> bool:
        facts = view.facts_at([id_], None, ENTITY_FACTS)
        has_changed = any(f.created_at > recorded_at or (f.expired_at or 0) > recorded_at for f in facts)
        # If more facts exist than were read, an unread fact may have ended.
        return not has_changed and len(facts) < ENTITY_FACTS

    return {id_: text for id_, text in texts.items() if is_current(id_)}
