"""A query with its recipe and filters, the reading of its text, and the words of questions.

Reading is a pure function of the text, the speakers and the clock. asking.toml has English words: fillers,
synonyms, irregular forms, and the kinds that questions ask for.
"""

from __future__ import annotations

import re
import tomllib
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

from kgray.domain.graph import Community, Entity, Fact
from kgray.domain.ontology import words_of_matter
from kgray.domain.records import Episode, check_group
from kgray.domain.times import Instant, from_datetime
from kgray.errors import InputError
from kgray.graph.sentences import ENGLISH
from kgray.language.dates import mentioned
from kgray.language.words import (
    MAX_QUERY_CHARACTERS,
    MAX_QUERY_WORDS,
    language_of,
    languages,
    plain_words,
    stem,
)
from kgray.ports import GraphView, SearchScope, Store
from kgray.schema.rows import folded
from kgray.search import recipes
from kgray.search.recipes import RECIPES, SCOPES, Method, Recipe, Reranker
from kgray.storage.ledger import sequences_of

MAX_LIMIT = 1000
MAX_SEEDS = 64
Moment = Instant | datetime  # an int: microseconds since 1970; a datetime without a zone is in UTC
Range = tuple[Moment | None, Moment | None]  # [from, to); None = open on that side
FoundRow = Fact | Entity | Episode | Community
_CLOCKS = ("valid_at", "invalid_at", "created_at")  # of facts, and the ranges that filter them


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Restrictions on hits; () or None = no restriction. A field restricts only the scopes in its comment."""

    # Facts: one of these names, as the graph shows them (folded, R17); "works at" is WORKS_AT.
    relations: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # entities: has one of these; facts: an endpoint has one
    sources: tuple[str, ...] = ()  # episodes: from one of these; facts: supported by such an episode
    speakers: tuple[str, ...] = ()  # the same for the speaker, ignoring case and spacing
    said: Range | None = None  # episodes: the reference time lies in the range
    valid_at: Range | None = None  # facts: the instant lies in the range; an unknown instant never does
    invalid_at: Range | None = None
    created_at: Range | None = None

    def __post_init__(self) -> None:
        """Write relations as the graph does, and refuse empty ranges."""
        written = tuple(name.upper().replace(" ", "_") for name in self.relations)
        object.__setattr__(self, "relations", written)
        for name in ("said", *_CLOCKS):
            start, end = map(_instant, getattr(self, name) or (None, None))
            if start is not None and end is not None and start >= end:
                raise InputError(
                    f"the range of {name} is empty: its end must lie after its start", field=name
                )

    @property
    def narrows(self) -> bool:
        """Whether any field is set."""
        return self != Filters()

    def keep(self, rows: Sequence[FoundRow], store: Store, view: GraphView) -> list[FoundRow]:
        """Return the rows of one scope that pass, in their order."""
        if not self.narrows:
            return [*rows]
        passing = [row for row in rows if self._passes(row)]
        facts = [row for row in passing if isinstance(row, Fact)]
        if not facts:
            return passing
        if self.labels:
            entities = view.entities(list(dict.fromkeys(end for fact in facts for end in fact.ends)))
            labelled = {entity.id for entity in entities if self._passes(entity)}
            facts = [fact for fact in facts if labelled.intersection(fact.ends)]
        if self.sources or self.speakers:
            ids = sorted({episode for fact in facts for episode in fact.episodes})
            episodes = view.episodes(sequences_of(store, view.group, ids=ids))
            accepted = {episode.id for episode in episodes if self._accepts(episode)}
            facts = [fact for fact in facts if accepted.intersection(fact.episodes)]
        return [*facts]

    def _passes(self, row: FoundRow) -> bool:
        """Return whether a row passes the filters that need no other row."""
        if isinstance(row, Entity):
            return not self.labels or not set(self.labels).isdisjoint(row.labels)
        if isinstance(row, Episode):
            return self._accepts(row) and within(row.reference_time, self.said)
        if isinstance(row, Community):
            return True
        in_ranges = (within(getattr(row, name), getattr(self, name)) for name in _CLOCKS)
        return all(in_ranges) and (not self.relations or row.relation in self.relations)

    def _accepts(self, episode: Episode) -> bool:
        said_by = folded(episode.speaker or "") in set(map(folded, self.speakers)) or not self.speakers
        return said_by and (not self.sources or episode.source in self.sources)


def _instant(moment: Moment | None) -> Instant | None:
    return from_datetime(moment) if isinstance(moment, datetime) else moment


def within(instant: Instant | None, span: Range | None) -> bool:
    """Return whether an instant lies in a range; an unknown instant lies in no range."""
    if span is None:
        return True
    start, end = map(_instant, span)
    return instant is not None and (start is None or start <= instant) and (end is None or instant < end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A search request to one group; an immutable value, checked on creation (InputError)."""

    text: str  # any text that is not blank; it has no query syntax
    group: str
    as_of: Instant | None = None  # the moment at which facts must hold; None = now (R5)
    known_at: Instant | None = None  # None = now; else the caller passes a view of this moment
    any_time: bool = False  # facts of any span, past, present or future; excludes as_of
    scopes: tuple[SearchScope, ...] = ()  # () = the recipe's
    limit: int = 10  # length of the whole list, all scopes together, 1 to 1000
    recipe: str | Recipe = "hybrid"  # a name in RECIPES, or a recipe; later fields override its fields
    methods: tuple[Method, ...] | None = None
    reranker: Reranker | None = None
    centre: str | None = None  # entity id or name: the origin of distances and a start of graph steps
    seeds: tuple[str, ...] = ()  # more starts: entities by id or name, episodes by id or client id
    recent: int | None = None  # newest episodes as more starts; None = the recipe's
    depth: int | None = None  # graph steps, 1 to 4; None = the recipe's
    mmr_lambda: float | None = None  # 0 to 1; None = the recipe's
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
        recipe = self.effective_recipe
        if recipe.reranker == "node_distance" and self.centre is None:
            raise InputError(
                "reranker node_distance needs a centre: the id or name of an entity", field="centre"
            )
        if recipe.methods == ("bfs",) and self.centre is None and not self.seeds and not recipe.recent:
            raise InputError(
                "graph steps alone have no start: give a centre, seeds or recent episodes", field="centre"
            )

    @property
    def effective_recipe(self) -> Recipe:
        """The recipe with the query's own settings."""
        recipe = self.recipe if isinstance(self.recipe, Recipe) else RECIPES[self.recipe]
        effective = replace(
            recipe,
            scopes=self.scopes or recipe.scopes,
            methods=self.methods or recipe.methods,
            reranker=self.reranker or recipe.reranker,
            recent=recipe.recent if self.recent is None else self.recent,
            depth=self.depth or recipe.depth,
            mmr_lambda=recipe.mmr_lambda if self.mmr_lambda is None else self.mmr_lambda,
        )
        if effective.reranker == "rrf":  # the order of the fusion by rank is the order of the hits
            effective = replace(effective, fusion="rrf", reranker="none")
        if self.scopes and effective.start:  # a scope that the query leaves out is not searched
            start = tuple(scope for scope in effective.start if scope in self.scopes) or self.scopes
            effective = replace(effective, start=start)
        # Communities that the query asks for are not limited by `Recipe.places`.
        if "community" in self.scopes:
            places = dict(effective.places)
            places.pop("community", None)
            return replace(effective, places=places)
        # A summary describes the time of its run, not `as_of`.
        asked_for = effective.scopes == ("community",) or effective.start == ("community",)
        if self.as_of is not None and not asked_for:
            scopes = tuple(scope for scope in effective.scopes if scope != "community")
            return replace(effective, scopes=scopes)
        return effective

    def _check_numbers(self) -> None:
        """Refuse numbers outside their ranges."""
        for field_name, value, low, high in (
            ("recent", self.recent, 0, recipes.MAX_RECENT),
            ("depth", self.depth, 1, recipes.MAX_DEPTH),
            ("mmr_lambda", self.mmr_lambda, 0, 1),
        ):
            if value is not None and (isinstance(value, bool) or not low <= value <= high):
                raise InputError(f"{field_name} is {value!r}: use {low} to {high}", field=field_name)

    def _check_names(self) -> None:
        recipe = self.recipe if isinstance(self.recipe, str) else "hybrid"
        for noun, field_name, names, allowed in (
            ("scope", "scope", self.scopes, SCOPES),
            ("recipe", "recipe", (recipe,), tuple(RECIPES)),
            ("method", "methods", self.methods or (), recipes.METHODS),
            ("reranker", "reranker", (self.reranker or "none",), recipes.RERANKERS),
        ):
            for name in names:
                if name not in allowed:
                    why = f"{noun} {name!r} is unknown: use {', '.join(allowed)}"
                    raise InputError(why, field=field_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The content of a query's text."""

    text: str  # the original text
    words: tuple[str, ...]  # stems of distinct content words; of stop words if there are no others
    # Quoted phrases of two or more words in order; Chinese, Japanese and Korean by characters.
    phrases: tuple[tuple[str, ...], ...]
    codes: tuple[str, ...]  # the `words` that contain a digit or are written in capitals
    speakers: tuple[str, ...]  # the known speakers that it names, as stored
    # Whether it names a speaker who is a person: "Bill", but not "the bill" or the role "user".
    names_person: bool
    # The text to embed, without the names of known speakers, unless only stop words remain; roles such as
    # "user" stay. With the names, the nearest vectors would be texts about these people in general.
    topic: str
    spans: tuple[tuple[Instant, Instant], ...]  # [from, to) of the dates that it mentions (`dates.mentioned`)
    times: tuple[str, ...] = ()  # if it asks for a time: stems of words that tell one ("yesterday", "june")


_WHEN = frozenset("when wann quand cuando quando wanneer nar hvornar kiedy когда".split())
_PERIODS = frozenset("long date day month year".split())  # after "how", "what", "which"
_TIMES = "ago recently since soon tonight".split()  # English words that tell a time, beside `Language.dates`
_Words = tuple[str, ...]  # folded
# (word, start, end); folded; a run of Chinese, Japanese or Korean stays one word
_LocatedWords = list[tuple[str, int, int]]
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
_ALSO_NAMES = frozenset({"will", "may"})  # English stop words that are names when capitalised


def read_question(text: str, *, speakers: Speakers, clock: Instant) -> Question:
    """Read a question; any text is valid.

    clock   the origin of "yesterday" and "last week": the clock, or the time of the last message
    """
    start = text[:MAX_QUERY_CHARACTERS]
    plain = plain_words(start)
    code = language_of(plain)
    language = languages()[code]
    named, places, names_person = _named(start, speakers, code)
    capitals: set[str] = set()  # words in capitals ("RR-NG", "the WHO"), and "May" within a text
    for match in () if start.isupper() else _CAPITALS.finditer(start):
        is_inner_name = match[0].istitle() and start[: match.start()].strip() != ""
        if match[0].isupper() or (is_inner_name and match[0].lower() in _ALSO_NAMES):
            capitals.update(plain_words(match[0]))
    content = [word for word in plain if word not in language.stops or word in capitals]
    words = tuple(dict.fromkeys([stem(word) for word in content or plain]))[:MAX_QUERY_WORDS]
    codes = {stem(word) for word in capitals - _ALSO_NAMES} | {word for word in words if _has_digit(word)}
    unspaced = code in {"zh", "ja", "ko"} and any(word in start for word in language.dates)
    # Reading a date takes 1 ms in languages other than English, so look for signs of a date first.
    dated = code == "en" or any(map(_has_digit, plain)) or not language.dates.isdisjoint(plain) or unspaced
    pieces, end = [], 0
    for begin, place_end in places:
        if begin >= end:
            pieces.append(text[end:begin])
            end = place_end
    topic = re.sub(r"\s+([?!.,;:])", r"\1", " ".join("".join([*pieces, text[end:]]).split()))
    quoted = (plain_words(match[match.lastindex or 0]) for match in _QUOTED.finditer(start))
    # A Chinese phrase is matched by single characters; a text's words have its character pairs after them.
    phrases = [
        tuple(stem(word) for word in phrase if len(word) == 1 or not _UNSPACED.match(word))
        for phrase in quoted
    ]
    return Question(
        text=text,
        words=words,
        phrases=tuple(phrase for phrase in phrases if len(phrase) > 1),
        codes=tuple(word for word in words if word in codes),
        speakers=named,
        names_person=names_person,
        topic=topic if places and set(plain_words(topic)) - language.stops else text,
        spans=tuple(mentioned(start, clock, code)) if dated else (),
        times=tuple(map(stem, sorted({*language.dates, *_TIMES}))) if _asks_when(plain) else (),
    )


def _asks_when(plain: Sequence[str]) -> bool:
    """Return whether a question asks for a time: "When ...", "How long ...", "In which year ..."."""
    pairs = pairwise(plain[:4])
    is_period = any(first in {"how", "what", "which"} and second in _PERIODS for first, second in pairs)
    return is_period or not _WHEN.isdisjoint(plain[:2])


def _has_digit(word: str) -> bool:
    return any(map(str.isdigit, word))


class Speakers:
    """The known speakers, by full name, and by a first name that only one of them has."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._full: dict[_Words, list[str]] = {}  # words of a full name -> its speakers, in order
        self._firsts: dict[_Words, set[_Words]] = {}  # a first name -> the full names that begin with it
        self.longest = 0  # words of the longest name
        self.unspaced: list[str] = []  # speakers in scripts without spaces, in order
        for name in names:
            self.add(name)

    def add(self, speaker: str) -> None:
        """Add a new speaker."""
        located = [_located_words(part) for part in _BETWEEN_NAMES.split(speaker)]
        parts = [tuple([word for word, _, _ in part]) for part in located if part]
        parts = [part for part in parts if part[0] not in _TITLES] or parts
        if name := tuple(chain.from_iterable(parts)):
            insort(self._full.setdefault(name, []), speaker)
            self._firsts.setdefault(parts[0], set()).add(name)
            self.longest = max(self.longest, len(name))
        if len(speaker) > 1 and _UNSPACED.match(speaker):
            insort(self.unspaced, speaker)

    def called(self, words: _Words) -> Sequence[str]:
        """Return the speakers that these words name."""
        if words in self._full:
            return self._full[words]
        names = self._firsts.get(words, ())
        if len(names) != 1 or len(words[0]) < 2 or words[0] in _ROLES | languages()["en"].stops:
            return ()
        return self._full[next(iter(names))]


def _located_words(text: str) -> _LocatedWords:
    places = []
    for match in _WORD.finditer(text):
        word = match[0] if _UNSPACED.search(match[0]) else "".join(plain_words(match[0]))
        places.append((word, match.start(), match.end()))
    return places


def _named(text: str, speakers: Speakers, code: str) -> tuple[tuple[str, ...], list[tuple[int, int]], bool]:
    """Return the speakers that a text names, the spans of their names, and `names_person`.

    A span includes a possessive ending.
    """
    located = _located_words(text)
    named: dict[str, None] = {}
    spans: list[tuple[int, int]] = []
    at, names_person = 0, False
    while at < len(located):
        size, matches = _name_at(text, located, at, speakers, code)
        named.update(dict.fromkeys(matches))
        if matches and located[at][0] not in _ROLES:
            start, end = located[at][1], located[at + size - 1][2]
            possessive = _POSSESSIVE.match(text, end)
            spans.append((start, possessive.end() if possessive else end))
            names_person |= text[start].isupper() or not any(name[:1].isupper() for name in matches)
        at += size
    for name in speakers.unspaced:
        place = text.find(name)
        if place >= 0 and name not in named:
            named[name] = None
            spans.append((place, place + len(name)))
            names_person = True
    return tuple(named), sorted(spans), names_person


def _name_at(
    text: str, located: _LocatedWords, at: int, speakers: Speakers, code: str
) -> tuple[int, Sequence[str]]:
    """Return the length in words of the longest name at this position, and its speakers; or 1 and ()."""
    word, start, _ = located[at]
    if word in languages()[code].stops and not (text[start].isupper() and start):
        return 1, ()  # "will" and "a" are no names
    for size in range(min(speakers.longest, len(located) - at), 0, -1):
        words = tuple([each for each, _, _ in located[at : at + size]])
        last, place, _ = located[at + size - 1]
        calls = [words]
        if code in _GENITIVES and text[place].isupper() and len(last) > 3 and last.endswith("s"):
            calls.append((*words[:-1], last[:-1]))
        for call in calls:
            if matches := speakers.called(call):
                return size, matches
    return 1, ()


class Asking(NamedTuple):
    """The tables of asking.toml, by the names that they have there."""

    fillers: frozenset[str]
    speech: frozenset[str]
    history: frozenset[str]
    kinds: Mapping[str, frozenset[str]]
    senses: tuple[frozenset[str], ...]
    lemmas: Mapping[str, str]


@cache
def asking() -> Asking:
    """Return the tables of asking.toml, which is read once."""
    entries = tomllib.loads(Path(__file__).with_name("asking.toml").read_text(encoding="utf-8"))
    thirds = (pair.split(":") for pair in ENGLISH["third_to_past"])
    lemmas = {past: stem(third) for third, past in thirds}
    lemmas |= {form: stem(base) for form, base in (pair.split(":") for pair in entries["irregular"].split())}
    return Asking(
        fillers=frozenset(entries["fillers"].split()),
        speech=frozenset(entries["speech"].split()),
        history=frozenset(entries["history"].split()),
        kinds={stem(word): frozenset(kinds.split()) for word, kinds in entries["kinds"].items()},
        senses=tuple(
            frozenset(lemmas.get(word) or stem(word) for word in words.split())
            for words in entries["senses"].values()
        ),
        lemmas=lemmas,
    )  # fmt: skip


@lru_cache(maxsize=16_384)
def lemma(word: str) -> str:
    """Return the stem of a plain word's base form: for "led" the stem of "lead"."""
    return asking().lemmas.get(word) or stem(word)


def kinds_of(word: str) -> frozenset[str]:
    """Return the entity labels, or "value", that a word such as "city" or "who" asks for; else nothing."""
    return asking().kinds.get(stem(word), frozenset())


@cache
def _forms() -> Mapping[str, frozenset[str]]:
    """Return stem -> the stems of all forms of its irregular verb."""
    verbs: dict[str, set[str]] = {}
    for form, base in asking().lemmas.items():
        verbs.setdefault(base, {base}).add(stem(form))
    return {form: frozenset(forms) for forms in verbs.values() if len(forms) > 1 for form in forms}


def other_forms(word: str) -> list[str]:
    """Return the stems of the other forms of a stem's irregular verb, in order: "bought" for "buy"."""
    return sorted(_forms().get(word, frozenset()) - {word})


@lru_cache(maxsize=4_096)
def senses_of(word: str) -> frozenset[str]:
    """Return the lemmas that share a sense with a lemma."""
    synonyms = [sense for sense in asking().senses if word in sense]
    synonyms += [words for words in _matters() if word in words]
    return frozenset().union(*synonyms)


@cache
def _matters() -> tuple[frozenset[str], ...]:
    return tuple(frozenset(map(lemma, words)) for words in words_of_matter().values())
