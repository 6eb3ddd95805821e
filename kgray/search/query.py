"""What is asked: a query with its recipe, weights and filters, and which rows these pass; what its text says.

To read a question is a pure function of it, the speakers and the clock. The words of one language are not
left out of another: "die" is what an English question asks about. stopwords.txt has them, and their sources.
"""

from __future__ import annotations

import re
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from kgray.dates import mentioned
from kgray.errors import InputError
from kgray.graph import Community, Entity, Fact
from kgray.ledger import sequences_of
from kgray.ports import GraphView, SearchScope, Store
from kgray.records import Episode, check_group
from kgray.rows import folded
from kgray.search.recipes import (
    MAX_DEPTH,
    MAX_RECENT,
    METHODS,
    RECIPES,
    RERANKERS,
    SCOPES,
    Method,
    Recipe,
    Reranker,
)
from kgray.times import Instant, from_datetime
from kgray.words import MAX_QUERY_CHARACTERS, MAX_QUERY_WORDS, plain_words, stem

MAX_LIMIT = 1000
MAX_SEEDS = 64
Moment = Instant | datetime  # without a zone: UTC; or microseconds since 1970
Range = tuple[Moment | None, Moment | None]  # [from, to); None = open on that side
FoundRow = Fact | Entity | Episode | Community
_CLOCKS = ("valid_at", "invalid_at", "created_at")  # of facts, and the ranges that filter them


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What hits are restricted to; () or None = no restriction. Scopes that a line does not name pass it."""

    relations: tuple[str, ...] = ()  # facts: one of these names, as the graph shows them (folded, R17)
    labels: tuple[str, ...] = ()  # entities: has one of these; facts: an endpoint does
    sources: tuple[str, ...] = ()  # episodes: of one of these; facts: supported by an episode of one of these
    speakers: tuple[str, ...] = ()  # the same of who said it, ignoring case and spacing
    said: Range | None = None  # episodes: the reference time lies in the range
    valid_at: Range | None = None  # facts: the instant lies in it; an unknown one lies in none
    invalid_at: Range | None = None
    created_at: Range | None = None

    def __post_init__(self) -> None:
        """Refuse empty ranges."""
        for name in ("said", *_CLOCKS):
            start, end = map(_instant, getattr(self, name) or (None, None))
            if start is not None and end is not None and start >= end:
                raise InputError(
                    f"the range of {name} is empty: its end must lie after its start", field=name
                )

    @property
    def narrows(self) -> bool:
        """Whether anything is filtered at all."""
        return self != Filters()

    def keep(self, rows: Sequence[FoundRow], store: Store, view: GraphView) -> list[FoundRow]:
        """Return the rows of one scope that pass, in their order."""
        if not self.narrows:
            return [*rows]
        kept = [row for row in rows if self._passes(row)]
        facts = [row for row in kept if isinstance(row, Fact)]
        if not facts:
            return kept
        if self.labels:
            entities = view.entities(list(dict.fromkeys(end for fact in facts for end in fact.ends)))
            labelled = {entity.id for entity in entities if self._passes(entity)}
            facts = [fact for fact in facts if labelled.intersection(fact.ends)]
        if self.sources or self.speakers:
            ids = sorted({episode for fact in facts for episode in fact.episodes})
            episodes = view.episodes(sequences_of(store, view.group, ids=ids))
            told = {episode.id for episode in episodes if self._tells(episode)}
            facts = [fact for fact in facts if told.intersection(fact.episodes)]
        return [*facts]

    def _passes(self, row: FoundRow) -> bool:
        """Whether a row passes what can be seen of it alone."""
        if isinstance(row, Entity):
            return not self.labels or not set(self.labels).isdisjoint(row.labels)
        if isinstance(row, Episode):
            return self._tells(row) and within(row.reference_time, self.said)
        if isinstance(row, Community):
            return True
        inside = (within(getattr(row, name), getattr(self, name)) for name in _CLOCKS)
        return all(inside) and (not self.relations or row.relation in self.relations)

    def _tells(self, episode: Episode) -> bool:
        said_by = folded(episode.speaker or "") in set(map(folded, self.speakers)) or not self.speakers
        return said_by and (not self.sources or episode.source in self.sources)


def _instant(moment: Moment | None) -> Instant | None:
    return from_datetime(moment) if isinstance(moment, datetime) else moment


def within(instant: Instant | None, span: Range | None) -> bool:
    """Whether an instant lies in a range; an unknown one lies in none."""
    if span is None:
        return True
    start, end = map(_instant, span)
    return instant is not None and (start is None or start <= instant) and (end is None or instant < end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A question to one group; a value, checked when it is made (InputError)."""

    text: str  # any text that is not blank; never read as a query language
    group: str
    as_of: Instant | None = None  # the moment the facts hold at; None = now (R5)
    known_at: Instant | None = None  # None = now; else the caller passes a view as of then
    any_time: bool = False  # facts of any span, past, present or future; excludes as_of
    scopes: tuple[SearchScope, ...] = ()  # () = those of the recipe
    limit: int = 10  # length of the whole list, all scopes together, 1 to 1000
    recipe: str | Recipe = "hybrid"  # a name in RECIPES, or a recipe; the next two override it
    methods: tuple[Method, ...] | None = None
    reranker: Reranker | None = None
    centre: str | None = (
        None  # an entity, by id or name: distances are measured from it, and graph steps start there
    )
    seeds: tuple[str, ...] = ()  # entities by id or name, episodes by id or client id: steps start there, too
    recent: int | None = None  # the newest episodes that steps start from, too; None = the recipe's
    depth: int | None = None  # graph steps, 1 to 4; None = the recipe's
    mmr_lambda: float | None = None  # of mmr, 0 to 1; None = the recipe's
    filters: Filters = field(default_factory=Filters)

    def __post_init__(self) -> None:
        """Check every field; the error names the faulty one."""
        if not self.text.strip():
            raise InputError("the query is empty: say what to search for", field="query")
        check_group(self.group)
        if isinstance(self.limit, bool) or not 1 <= self.limit <= MAX_LIMIT:
            raise InputError(f"limit is {self.limit!r}: use 1 to {MAX_LIMIT}", field="limit")
        if self.any_time and self.as_of is not None:
            raise InputError("as_of and any_time exclude each other: give one", field="as_of")
        if len(self.seeds) > MAX_SEEDS:
            raise InputError(f"{len(self.seeds)} seeds: give at most {MAX_SEEDS}", field="seeds")
        self._check_numbers()
        self._check_names()
        ways = self.ways
        if ways.reranker == "node_distance" and self.centre is None:
            raise InputError(
                "reranker node_distance needs a centre: the id or name of an entity", field="centre"
            )
        if ways.methods == ("bfs",) and self.centre is None and not self.seeds and not ways.recent:
            raise InputError(
                "graph steps alone have no start: give a centre, seeds or recent episodes", field="centre"
            )

    @property
    def ways(self) -> Recipe:
        """The recipe, with what the query sets itself."""
        recipe = self.recipe if isinstance(self.recipe, Recipe) else RECIPES[self.recipe]
        ways = replace(
            recipe,
            scopes=self.scopes or recipe.scopes,
            methods=self.methods or recipe.methods,
            reranker=self.reranker or recipe.reranker,
            recent=recipe.recent if self.recent is None else self.recent,
            depth=self.depth or recipe.depth,
            mmr_lambda=recipe.mmr_lambda if self.mmr_lambda is None else self.mmr_lambda,
        )
        if ways.reranker == "rrf":  # the order of the fusion by rank is the order of the hits
            ways = replace(ways, fusion="rrf", reranker="none")
        if self.scopes and ways.start:  # of scopes that are left out nothing is searched
            start = tuple(scope for scope in ways.start if scope in self.scopes) or self.scopes
            ways = replace(ways, start=start)
        if "community" in self.scopes:
            return replace(ways, places={name: n for name, n in ways.places.items() if name != "community"})
        # A summary tells of the run's own time.
        asked_for = ways.scopes == ("community",) or ways.start == ("community",)
        if self.as_of is not None and not asked_for:
            ways = replace(ways, scopes=tuple(scope for scope in ways.scopes if scope != "community"))
        return ways

    def _check_numbers(self) -> None:
        """Refuse numbers outside their ranges."""
        for field_name, value, least, most in (
            ("recent", self.recent, 0, MAX_RECENT),
            ("depth", self.depth, 1, MAX_DEPTH),
            ("mmr_lambda", self.mmr_lambda, 0, 1),
        ):
            if value is not None and (isinstance(value, bool) or not least <= value <= most):
                raise InputError(f"{field_name} is {value!r}: use {least} to {most}", field=field_name)

    def _check_names(self) -> None:
        given = self.recipe if isinstance(self.recipe, str) else "hybrid"
        for noun, named, names, known in (
            ("scope", "scope", self.scopes, SCOPES),
            ("recipe", "recipe", (given,), tuple(RECIPES)),
            ("method", "methods", self.methods or (), METHODS),
            ("reranker", "reranker", (self.reranker or "none",), RERANKERS),
        ):
            for name in names:
                if name not in known:
                    raise InputError(f"{noun} {name!r} is unknown: use {', '.join(known)}", field=named)


def is_scored(ways: Recipe) -> bool:
    """Whether hits have the weighted score, or a cross-encoder's, of which both compare over scopes."""
    return ways.fusion == "weighted" and ways.reranker in {"none", "cross_encoder"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a query says."""

    text: str  # as asked
    words: tuple[str, ...]  # distinct content words, stems; stop words only where nothing else is left
    # What stands in quotation marks, as words in order, two or more; Chinese, Japanese, Korean by characters.
    phrases: tuple[tuple[str, ...], ...]
    codes: tuple[str, ...]  # those of `words` that hold a digit, or are written in capitals
    speakers: tuple[str, ...]  # the known speakers that it names, as they are given
    of_somebody: bool  # one of them is no role, and written as a name: "Bill", not "the bill", nor "user"
    # The text to embed: without the names of known speakers, unless only stop words are left; roles such as
    # "user" stay. With the names in it, what lies near is what speaks of them.
    topic: str
    spans: tuple[tuple[Instant, Instant], ...]  # [from, to) of the dates that it mentions (`dates.mentioned`)


class Language(NamedTuple):
    """Words of one language, plain (`kgray.words.plain_words`)."""

    stops: frozenset[str]
    dates: frozenset[str]  # what tells that a date may be mentioned: names of months, "week", "yesterday"


_Words = tuple[str, ...]  # folded
_Spread = list[tuple[str, int, int]]  # the words of a text, folded and undivided, each with its place
_CAPITALS = re.compile(r"[^\W\d_]{2,}")
_POSSESSIVE = re.compile(r"['’´`]s?(?!\w)", re.IGNORECASE)
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3]+")
_WORD = re.compile(rf"{_UNSPACED.pattern}|(?:(?!{_UNSPACED.pattern})[^\W_]|(?<=\w)\u0301)+")
_QUOTES = tuple(zip("“„„«»‹「『《”", "”“”»«›」』》”", strict=True))
_QUOTED = re.compile(
    r'(?<!\w)"([^"]+)"(?!\w)|' + "|".join(f"{first}([^{first}{last}]+){last}" for first, last in _QUOTES)
)
_BETWEEN_NAMES = re.compile(r"[\s_@.,]+")
_ROLES = frozenset("user assistant system human ai bot agent tool model".split())
_TITLES = frozenset("mr mrs ms miss dr prof sir herr frau monsieur madame mme senor senora the".split())
_GENITIVES = frozenset({"de", "nl", "sv", "da", "nb"})  # "Annas Hund": names take an s without an apostrophe
_ALSO_NAMES = frozenset({"will", "may"})  # stop words of English that are names where they have a capital


def read_question(text: str, *, speakers: Speakers, now: Instant) -> Question:
    """Read a question; any text, never an error.

    now     what "yesterday" and "last week" count from: the clock, or the last message's time
    """
    start = text[:MAX_QUERY_CHARACTERS]
    plain = plain_words(start)
    code = language_of(plain)
    language = languages()[code]
    found, places, of_somebody = _named(start, speakers, code)
    capitals: set[str] = set()  # what is written in capitals ("RR-NG", "the WHO"), and "May" within a text
    for match in () if start.isupper() else _CAPITALS.finditer(start):
        inside = match[0].istitle() and start[: match.start()].strip() != ""
        if match[0].isupper() or (inside and match[0].lower() in _ALSO_NAMES):
            capitals.update(plain_words(match[0]))
    kept = [word for word in plain if word not in language.stops or word in capitals]
    words = tuple(dict.fromkeys([stem(word) for word in kept or plain]))[:MAX_QUERY_WORDS]
    codes = {stem(word) for word in capitals - _ALSO_NAMES} | {word for word in words if _has_digit(word)}
    unspaced = code in {"zh", "ja", "ko"} and any(word in start for word in language.dates)
    # In another language than English it costs 1 ms to know what date is meant.
    dated = code == "en" or any(map(_has_digit, plain)) or not language.dates.isdisjoint(plain) or unspaced
    pieces, end = [], 0
    for begin, after in places:
        if begin >= end:
            pieces.append(text[end:begin])
            end = after
    topic = re.sub(r"\s+([?!.,;:])", r"\1", " ".join("".join([*pieces, text[end:]]).split()))
    quoted = (plain_words(match[match.lastindex or 0]) for match in _QUOTED.finditer(start))
    # A phrase of Chinese is found by its characters; pairs stand after them in a text's words.
    phrases = [
        tuple(stem(word) for word in phrase if len(word) == 1 or not _UNSPACED.match(word))
        for phrase in quoted
    ]
    return Question(
        text=text,
        words=words,
        phrases=tuple(phrase for phrase in phrases if len(phrase) > 1),
        codes=tuple(word for word in words if word in codes),
        speakers=found,
        of_somebody=of_somebody,
        topic=topic if places and set(plain_words(topic)) - language.stops else text,
        spans=tuple(mentioned(start, now, code)) if dated else (),
    )


def _has_digit(word: str) -> bool:
    return any(map(str.isdigit, word))


class Speakers:
    """Who has spoken, and whom a name calls: a whole name, or the first name of one of them alone."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._whole: dict[_Words, list[str]] = {}  # a name's words -> those who have it, in order
        self._firsts: dict[_Words, set[_Words]] = {}  # a first name -> the whole names that begin with it
        self.longest = 0  # words of a name
        self.unspaced: list[str] = []  # whose names stand in writing that has no spaces, in order
        for name in names:
            self.add(name)

    def add(self, speaker: str) -> None:
        """Take in one who is not there."""
        spread = [_spread(part) for part in _BETWEEN_NAMES.split(speaker)]
        parts = [tuple([word for word, _, _ in part]) for part in spread if part]
        parts = [part for part in parts if part[0] not in _TITLES] or parts
        if name := tuple(chain.from_iterable(parts)):
            insort(self._whole.setdefault(name, []), speaker)
            self._firsts.setdefault(parts[0], set()).add(name)
            self.longest = max(self.longest, len(name))
        if len(speaker) > 1 and _UNSPACED.match(speaker):
            insort(self.unspaced, speaker)

    def called(self, words: _Words) -> Sequence[str]:
        """Return those whom these words call."""
        if words in self._whole:
            return self._whole[words]
        names = self._firsts.get(words, ())
        if len(names) != 1 or len(words[0]) < 2 or words[0] in _ROLES | languages()["en"].stops:
            return ()
        return self._whole[next(iter(names))]


def _spread(text: str) -> _Spread:
    places = []
    for match in _WORD.finditer(text):
        folded = match[0] if _UNSPACED.search(match[0]) else "".join(plain_words(match[0]))
        places.append((folded, match.start(), match.end()))
    return places


def _named(text: str, known: Speakers, code: str) -> tuple[tuple[str, ...], list[tuple[int, int]], bool]:
    """Return the speakers that a text names; where, with what makes a name possessive; `of_somebody`."""
    spread = _spread(text)
    found: dict[str, None] = {}
    spans: list[tuple[int, int]] = []
    at, of_somebody = 0, False
    while at < len(spread):
        size, speakers = _name_at(text, spread, at, known, code)
        found.update(dict.fromkeys(speakers))
        if speakers and spread[at][0] not in _ROLES:
            start, end = spread[at][1], spread[at + size - 1][2]
            possessive = _POSSESSIVE.match(text, end)
            spans.append((start, possessive.end() if possessive else end))
            of_somebody |= text[start].isupper() or not any(name[:1].isupper() for name in speakers)
        at += size
    for name in known.unspaced:
        place = text.find(name)
        if place >= 0 and name not in found:
            found[name] = None
            spans.append((place, place + len(name)))
            of_somebody = True
    return tuple(found), sorted(spans), of_somebody


def _name_at(text: str, spread: _Spread, at: int, known: Speakers, code: str) -> tuple[int, Sequence[str]]:
    """Return how many words the longest name takes that stands here, and whom it calls; 1 and () for none."""
    word, start, _ = spread[at]
    if word in languages()[code].stops and not (text[start].isupper() and start):
        return 1, ()  # "will" and "a" are no names
    for size in range(min(known.longest, len(spread) - at), 0, -1):
        words = tuple([folded for folded, _, _ in spread[at : at + size]])
        last, place, _ = spread[at + size - 1]
        calls = [words]
        if code in _GENITIVES and text[place].isupper() and len(last) > 3 and last.endswith("s"):
            calls.append((*words[:-1], last[:-1]))
        for call in calls:
            if speakers := known.called(call):
                return size, speakers
    return 1, ()


@cache
def languages() -> dict[str, Language]:
    """Return the languages that questions are read in, by their codes, English first."""
    lines = Path(__file__).with_name("stopwords.txt").read_text(encoding="utf-8").splitlines()
    told = [line.partition(":") for line in lines if not line.startswith("#")]
    return {code: Language(*(frozenset(part.split()) for part in rest.split("|"))) for code, _, rest in told}


@cache
def _tells() -> dict[str, list[str]]:
    """Return the languages that each word speaks for."""
    told: dict[str, list[str]] = {}
    for code, language in languages().items():
        for word in language.stops | language.dates:
            told.setdefault(word, []).append(code)
    return told


def language_of(plain: list[str]) -> str:
    """Return the code of the language that covers most of the words; English on a tie."""
    told = _tells()
    covered = Counter(chain.from_iterable(told.get(word, ()) for word in set(plain)))
    return max(languages(), key=covered.__getitem__)
