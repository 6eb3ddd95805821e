"""Validate a model's extraction against the text: what the text lacks, and what says nothing new (R18).

`ground` drops and reports parts that the episode's text, its speaker and the previous context do not support.
A model may copy the example of its prompt, or use knowledge from elsewhere. The checked parts are:

name     dropped with its facts if no word of it is in the text: as such, inflected ("Annas", "Праге",
         "Helsingissä"), misspelt, inside another word, shortened ("Kathi"), as its initials, or, for some
         places, in another language ("Wien"). It stays in texts with letters of another script
number   dropped with its fact if the text has neither its digits ("1.5 million" has the digits of 1500000)
         nor a word for a number
date     dropped alone: the fact then holds or ends as if it had no date. The text supports a date by its day,
         month or year, or by any word of time ("last week", "gestern")
sentence of a fact that holds or happened, if the text lacks a number or capitalised name of it: the fact in
         words ("Anna works at Acme") replaces it, as if the model had given no sentence (R18a)

Numbers and dates stay in a text without a common word of a language with known words for numbers and times.

`without_repeats` drops loops, second directions, and facts of the previous context, which a small model
reads as if it were the episode. A fact is such a repetition only if all these conditions hold. In all other
cases it stays, because an answer, or a sentence with "she", is about names that only a previous episode has.

- The episode has no telling word of the fact (the words of its sentence and its relation, without names and
  stop words), lacks at least one end of it, and has no date for it.
- A previous episode has both ends and a telling word.
- No previous episode with a question mark has a telling word, or an end that the episode lacks.
- The episode has no word that points to a previous episode, and its language has a list of such words.

"Bob manages Alice" beside "Alice manages Bob" counts once if the two agree in kind, dates and variant, and
either the ontology says that they are one, or they have one relation, in the same telling words. The episode
then has these words once, and nothing that says that they hold both ways, such as "each other".
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path

from kgray.domain import times
from kgray.domain.ontology import Ontology
from kgray.domain.records import (
    Episode,
    ExtractedEntity,
    ExtractedFact,
    Extraction,
    with_entities,
)
from kgray.domain.times import Instant
from kgray.graph import names
from kgray.graph.sentences import is_plain_word, without_each
from kgray.graph.statements import says_same
from kgray.graph.texts import default_sentence, object_words
from kgray.ingest.candidates import code, code_match
from kgray.language.words import language_of, languages, plain_words, stem
from kgray.ports import ExtractionRequest

_SPOKEN = re.compile(r"[^\W\d_]+")
_WORDS = re.compile(r"[^\W_]+")
_NUMBERS = re.compile(r"\d[\d.,' \u00a0\u202f]*")
# Names for the speaker in a text without one.
_SPEAKERS = frozenset("i me user speaker author narrator writer assistant".split())
_WITHOUT_SPACES = frozenset("CJK HIRAGANA KATAKANA THAI LAO KHMER MYANMAR HANGUL".split())
_LIKE = 0.75  # of difflib's ratio: "Microsft", "Munich" beside "München"; "Wien" and "Vienna" have 0.6
_TABLES = tomllib.loads(Path(__file__).with_name("grounding.toml").read_text(encoding="utf-8"))
_PLACES = {name: frozenset(names.folded(local).split()) for name, local in _TABLES["places"].items()}
# Letters that no accent is part of: "Ørsted" is "Orsted" in a reply, "Łukasz" is "Lukasz".
_PLAIN = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "þ": "th", "ð": "d", "ı": "i"})
_COMMON = frozenset(_TABLES["words"]["common"].split())
_NUMBER_WORDS, _TIME_WORDS = (
    re.compile(rf"\b(?:{'|'.join(_TABLES['words'][name].split())})\b", re.IGNORECASE)
    for name in ("numbers", "times")
)


class ReadTexts:
    """The texts of an extraction, indexed for look-ups; rarely needed indexes are made on first use."""

    def __init__(self, request: ExtractionRequest) -> None:
        episodes = (request.episode, *request.previous)
        self.text = "\n".join(part for e in episodes for part in (e.text, e.speaker or "") if part)
        self.folded = names.folded(self.text).translate(_PLAIN)
        self.words = frozenset(word for word in _WORDS.findall(self.folded) if len(word) > 1)

    @cached_property
    def codes(self) -> list[str]:
        """Words that may be codes: "TH-ER", "K8s"."""
        return [word for word in re.findall(r"[^\s,;:!?()\"]+", self.text) if code(word)]

    @cached_property
    def capitalised(self) -> list[str]:
        """Words that may be a short form of a name: "Tom", "Kathi", "Liz"."""
        short_forms = {w.lower() for w in _SPOKEN.findall(self.text) if len(w) > 2 and w[0].isupper()}
        return sorted(short_forms - _COMMON)

    @cached_property
    def scripts(self) -> frozenset[str]:
        """The scripts of its letters."""
        return _scripts(self.text)

    @cached_property
    def is_known_language(self) -> bool:
        """Return whether the text has a common word of a language with known words for numbers and times."""
        return not self.words.isdisjoint(_COMMON)

    def has_name(self, name: str) -> bool:
        """Return whether the text has a word of a name, its initials, or letters of another script."""
        key = names.key(name).translate(_PLAIN)
        tokens = [token.translate(_PLAIN) for token in names.tokens(name)]
        if not self.words.isdisjoint(tokens) or key in _SPEAKERS:
            return True
        scripts = _scripts(name)
        alone = rf"(?<![^\W_]){re.escape(key)}(?![^\W_])"  # not as a part of a word, where words have spaces
        if key in self.folded and (scripts & _WITHOUT_SPACES or re.search(alone, f" {self.folded} ")):
            return True
        if any(is_form(token, word) for token in tokens for word in self.words) or self.scripts - scripts:
            return True
        if any(not self.words.isdisjoint(_PLACES.get(token, ())) for token in tokens):
            return True
        # A short form has letters of a name in order, from its first on, or is a part of it.
        for word, token in product(self.capitalised, tokens):
            if len(word) < len(token) and (word in token or (word[0] == token[0] and _holds(word, token))):
                return True
        match = code_match(name)
        return any(match(word) is not None for word in self.codes) or self._has_initials(name)

    def _has_initials(self, name: str) -> bool:
        """Return whether a code takes its letters from adjacent words."""
        if not (letters := code(name)):
            return False
        words = _WORDS.findall(self.folded)
        starts = "".join(word[0] for word in words)
        if letters in starts or any(letters[0] == w[0] and _holds(letters, w) for w in words):
            return True
        # "NYC" for "New York" in the text; "VW" for "Volkswagen".
        titles = re.findall(r"\b[A-Z]\w*(?: [A-Z]\w*)+", self.text)
        initials = ("".join(word[0] for word in title.lower().split()) for title in titles)
        return any(map(letters.startswith, initials)) or (
            len(letters) == 2 and any(letters[0] == w[0] and letters[1] in w[1:] for w in self.capitalised)
        )

    def has_number(self, number: str) -> bool:
        """Return whether the text has the digits of a number, or a word for a number."""
        digits = _digits(number)
        if len(digits) <= 1 and digits in {"", "1", "2"}:
            return True
        numbers = {_digits(match) for match in _NUMBERS.findall(self.text)}
        parts = {_digits(part) for match in _NUMBERS.findall(self.text) for part in re.findall(r"\d+", match)}
        if digits in numbers | parts or not self.is_known_language:
            return True
        return _NUMBER_WORDS.search(self.text) is not None

    def has_date(self, instant: Instant) -> bool:
        """Return whether the text supports a date."""
        if not self.is_known_language or _TIME_WORDS.search(self.text):
            return True
        moment = times.to_datetime(instant)
        parts = {str(moment.year), f"{moment.year % 100:02}", str(moment.month), str(moment.day)}
        return any(number.lstrip("0") in parts or number in parts for number in re.findall(r"\d+", self.text))


def ground(extraction: Extraction, request: ExtractionRequest) -> Extraction:
    """Return the extraction without parts that the text does not support; `dropped` lists them."""
    read = ReadTexts(request)
    dropped: list[str] = []
    places = []
    for place, entity in enumerate(extraction.entities):
        # A key is read from the record by its form; its kind ("Ticket 4711") may be the table's.
        if entity.key_of is not None or read.has_name(entity.name):
            places.append(place)
        else:
            dropped.append(f"entities[{place}]: {entity.name[:80]!r} is not in the text")
    facts = []
    for place, fact in enumerate(extraction.facts):
        ends = [fact.source] if fact.target is None else [fact.source, fact.target]
        if not set(ends) <= set(places):
            dropped.append(f"facts[{place}]: it ends at a name that is not in the text")
        elif fact.value is not None and fact.value.type == "number" and not read.has_number(fact.value.value):
            dropped.append(f"facts[{place}]: its number {fact.value.value} is not in the text")
        else:
            dated = _dated(fact, read, request.episode.reference_time)
            dropped += [f"facts[{place}]: a date of it is not in the text"] * (dated != fact)
            subject = extraction.entities[fact.source].name
            target = object_words(fact, extraction.entities)
            if word := _word_from_elsewhere(dated, subject, target, read):
                dropped.append(f"facts[{place}]: its sentence names {word[:80]!r}, which is not in the text")
                dated = replace(dated, text=default_sentence(dated, subject, target))
            facts.append(dated)
    extraction = replace(extraction, entities=_in_context(extraction.entities, request))
    if not dropped:
        return extraction
    grounded = replace(extraction, facts=tuple(facts), dropped=(*extraction.dropped, *dropped))
    return with_entities(grounded, places)


def _in_context(
    entities: tuple[ExtractedEntity, ...], request: ExtractionRequest
) -> tuple[ExtractedEntity, ...]:
    """Return the entities, marked where the text or the speaker of a previous episode has the name (R14a)."""
    texts = (f"{episode.text}\n{episode.speaker or ''}" for episode in request.previous)
    previous = "|".join(map(_plain_words, texts))
    if not previous:
        return entities
    return tuple(
        replace(entity, in_context=True) if _plain_words(entity.name) in previous else entity
        for entity in entities
    )


def _plain_words(text: str) -> str:
    """Return the words of a text without case and accents, each between spaces."""
    return f" {' '.join(_WORDS.findall(names.folded(text)))} "


def _dated(fact: ExtractedFact, read: ReadTexts, said_at: Instant) -> ExtractedFact:
    """Return the fact without dates that the text does not support, as if they had not been stated (R3)."""
    start, end = fact.valid_from, fact.valid_to
    no_start = start is not None and start != said_at and not read.has_date(start)
    no_end = end is not None and end != said_at and not read.has_date(end)
    if fact.kind == "ended":
        return replace(fact, valid_to=said_at, to_precision="instant", inferred=True) if no_end else fact
    if no_end:
        fact = replace(fact, valid_to=None, to_precision=None)
    if no_start:
        fact = replace(fact, valid_from=said_at, from_precision="instant", inferred=True)
    return fact


def _word_from_elsewhere(fact: ExtractedFact, subject: str, target: str, read: ReadTexts) -> str:
    """Return the first number or capitalised name of a fact's sentence that the text lacks; "" = none.

    The caller has checked the ends and dates of the fact. Only sentences that can become the text of a fact
    are checked.
    """
    if fact.kind not in {"holds", "happened"}:
        return ""
    sentence = without_each(fact.text, (subject, target))
    for word in _SPOKEN.finditer(sentence):
        name = word[0]
        if len(name) == 1 or not name[0].isupper() or (not word.start() and is_plain_word(name.lower())):
            continue
        if name.lower() not in read.words and not read.has_name(name):
            return name
    if any(map(str.isdigit, sentence)):
        moments = (times.to_datetime(at) for at in (fact.valid_from, fact.valid_to) if at is not None)
        dated = {str(part) for moment in moments for part in (moment.year, moment.month, moment.day)}
        for match in re.finditer(r"\d[\d.,]*", sentence):
            number = match[0].strip(".,")
            if number.lstrip("0") not in dated and not read.has_number(number):
                return number
    return ""


@lru_cache(maxsize=65_536)
def is_form(name: str, word: str) -> bool:
    """Return whether a word of a text is an inflection, a misspelling or a compound of a name's token."""
    short, long = sorted((name, word), key=len)
    if len(short) >= 4 and short in long:
        return True
    prefix = next(
        (at for at, pair in enumerate(zip(name, word, strict=False)) if pair[0] != pair[1]), len(short)
    )
    ending = len(long) - prefix
    if prefix >= 5 or (prefix == 4 and ending <= 3) or (prefix in (2, 3) and ending <= 2 and len(short) > 2):
        return True
    if prefix == 0 or len(short) < 4 or len(long) - len(short) > 2:
        return False
    return SequenceMatcher(None, name, word, autojunk=False).ratio() >= _LIKE


def _holds(letters: str, word: str) -> bool:
    remaining = iter(word)
    return len(letters) > 2 and all(letter in remaining for letter in letters)


def _digits(number: str) -> str:
    """Return the digits that count of a number: "1,500,000", "1.5 million" and "0.15e7" have "15"."""
    mantissa = re.split(r"[eE]", number)[0]
    return "".join(c for c in mantissa if c.isdigit()).strip("0")


def _scripts(text: Iterable[str]) -> frozenset[str]:
    """Return the scripts of the letters of a text, such as LATIN, CYRILLIC, CJK."""
    letters = {c for c in text if c.isalpha()}
    return frozenset(unicodedata.name(c, "?").split()[0] for c in letters)


# The languages of `_BOTH_WAYS`: in any other, such words would not be recognised.
_LANGUAGES = frozenset({"en", "de"})
_BOTH_WAYS = re.compile(
    r"\b(?:each other|one another|mutual\w*|vice versa|both|together|back|too|also|likewise|same|einander|"
    r"gegenseitig\w*|beide\w*|auch|ebenso|zurück)\b",
    re.IGNORECASE,
)
_AGENT = re.compile(r"\b(?:by|von|durch) ")


def end_names(extraction: Extraction, fact: ExtractedFact) -> list[str]:
    """Return the names of a fact's ends; a value has its text."""
    ends = [extraction.entities[end].name for end in (fact.source, fact.target) if end is not None]
    return ends if fact.value is None else [*ends, fact.value.shown()]


def telling_words(text: str, ends: list[str]) -> frozenset[str]:
    """Return the words of a sentence that are neither stop words nor words of its ends."""
    words = plain_words(text)
    end_words = {word for name in ends for word in plain_words(name)}
    stops = languages()[language_of(words)].stops
    return frozenset(word for word in words if word not in stops and word not in end_words and len(word) > 2)


def second_directions(
    extraction: Extraction, episode: Episode, ontology: Ontology
) -> Iterator[tuple[int, int]]:
    """Yield pairs of places of facts: a fact that repeats another in the other direction, and that other."""
    by_ends: dict[frozenset[int], list[int]] = {}
    for place, fact in enumerate(extraction.facts):
        if fact.target is None:
            continue
        earlier = by_ends.setdefault(frozenset((fact.source, fact.target)), [])
        for number, first in enumerate(earlier):
            pair = extraction.facts[first], fact
            if not (_is_exchanged(*pair) and _is_stated_once(*pair, extraction, episode, ontology)):
                continue
            if _fit(fact, extraction, episode) > _fit(pair[0], extraction, episode):
                earlier[number] = place
                yield first, place
            else:
                yield place, first
            break
        else:
            earlier.append(place)


def _is_exchanged(first: ExtractedFact, second: ExtractedFact) -> bool:
    """Return whether two facts differ in their direction, and agree in kind, dates and variant."""
    return (
        first.source == second.target
        and first.target == second.source
        and first.kind == second.kind
        and (first.valid_from, first.valid_to) == (second.valid_from, second.valid_to)
        and says_same(first, second)
    )


def _is_stated_once(
    first: ExtractedFact, second: ExtractedFact, extraction: Extraction, episode: Episode, ontology: Ontology
) -> bool:
    """Return whether two exchanged facts have one meaning, or come from a single statement of the episode."""
    name, is_turned = _declared(first.relation, ontology)
    rival, rival_is_turned = _declared(second.relation, ontology)
    if name != rival:
        return False
    relation = ontology.get(name)
    if is_turned != rival_is_turned or (relation is not None and relation.symmetric):
        return True
    telling = telling_words(first.text, end_names(extraction, first))
    words = plain_words(episode.text)
    if not telling or telling != telling_words(second.text, end_names(extraction, second)):
        return False
    if language_of(words) not in _LANGUAGES:
        return False
    if any(_BOTH_WAYS.search(text) for text in (episode.text, first.text, second.text)):
        return False
    stems = [stem(word) for word in words]
    return min(stems.count(stem(word)) for word in telling) == 1


def _declared(relation: str, ontology: Ontology) -> tuple[str, bool]:
    """Return the ontology's name for a relation, and whether that name has the other direction."""
    is_turned = False
    while (declared := ontology.get(relation)) and (name := declared.same_as or declared.inverse_of):
        relation, is_turned = name, is_turned ^ bool(declared.inverse_of)
    return relation, is_turned


def _fit(fact: ExtractedFact, extraction: Extraction, episode: Episode) -> tuple[bool, bool]:
    """Return whether the episode has a fact's sentence, and whether its subject comes first."""
    subject, target = (names.folded(name) for name in end_names(extraction, fact))
    text = names.folded(fact.text)
    agent = _AGENT.search(text)
    if agent is not None and text.startswith((subject, target), agent.end()):
        return fact.text in episode.text, text.startswith(subject, agent.end())  # "Bob is managed by Alice"
    return fact.text in episode.text, text.startswith(subject)


# Words, by language, that point to something said before, or confirm or deny it.
_POINTERS = {
    "en": """\
he she it they him her them his hers its their theirs there here this that these those one ones too also
either neither same so yes yeah yep yup ok okay no nope nah not never still sure right correct exactly indeed
true agreed confirmed absolutely definitely ditto likewise again anymore back both we us our ours""",
    "de": """\
er sie es ihn ihm ihr ihre ihren ihnen sein seine dort da hier das dies diese dieser dieses jene auch
ebenfalls ebenso ja nein doch nicht nie noch immer stimmt genau richtig klar wieder mehr beide daran dabei wir
uns unser unsere""",
}
_POINTING = {language: frozenset(plain_words(text)) for language, text in _POINTERS.items()}
# "I have.", "Alice does": a verb is missing.
_ELLIPSIS = re.compile(
    r"\b(?:do|does|did|am|are|is|was|were|has|have|had|will|would|can|could|should)(?:n['’]t)?\s*(?:[.!,;:)]|$)",
    re.IGNORECASE | re.MULTILINE,
)


def without_repeats(extraction: Extraction, request: ExtractionRequest, ontology: Ontology) -> Extraction:
    """Return the extraction without facts that say nothing new, with a line in `dropped` for each.

    Only messages and texts are searched. The order of the other facts, and all entities, stay.
    """
    if request.episode.kind not in {"message", "text"} or not extraction.facts:
        return extraction
    context = _Context(request)
    lines: dict[int, str] = {}
    for place, fact in enumerate(extraction.facts):
        ends = end_names(extraction, fact)
        if fact.target is not None and names.key(ends[0]) == names.key(ends[1]):
            lines[place] = f"it connects {ends[0]!r} with itself"
        elif context.has(fact, ends):
            lines[place] = "an earlier episode says it, and this one does not"
    for place, rival in second_directions(extraction, request.episode, ontology):
        lines.setdefault(place, f"facts[{rival}] says it in the other direction")
    if not lines:
        return extraction
    return replace(
        extraction,
        facts=tuple(fact for place, fact in enumerate(extraction.facts) if place not in lines),
        dropped=(*extraction.dropped, *(f"facts[{place}]: {line}" for place, line in sorted(lines.items()))),
    )


class _Context:
    """The episode and its previous context, prepared for the search."""

    def __init__(self, request: ExtractionRequest) -> None:
        self._episode, self._previous = request.episode, request.previous

    @cached_property
    def _current(self) -> ReadTexts:
        return ReadTexts(ExtractionRequest(episode=self._episode))

    @cached_property
    def _earlier(self) -> list[tuple[ReadTexts, frozenset[str], bool]]:
        """The previous episodes: their texts, the stems of their words, and whether they ask."""
        return [
            (
                ReadTexts(ExtractionRequest(episode=episode)),
                frozenset(map(stem, plain_words(episode.text))),
                "?" in episode.text,
            )
            for episode in self._previous
        ]

    @cached_property
    def _stands_alone(self) -> bool:
        """Return whether the episode has no pointer to others, in a language with a list of pointers."""
        words = set(plain_words(self._episode.text))
        language = language_of(list(words))
        pointing = _POINTING.get(language)
        if pointing is None or words & pointing or not words & languages()[language].stops:
            return False
        return not _ELLIPSIS.search(self._episode.text)

    def has(self, fact: ExtractedFact, ends: list[str]) -> bool:
        """Return whether a fact repeats the previous context; ends: the names of its ends."""
        if not self._previous or not self._stands_alone or self._has_date(fact):
            return False
        absent = [end for end in ends if not self._is_named(end, fact)]
        telling = telling_words(f"{fact.text} {fact.relation.replace('_', ' ')}", ends)
        if not absent or any(is_form(word, spoken) for word in telling for spoken in self._current.words):
            return False
        stems = frozenset(map(stem, telling))
        if any(
            asks and (stems & words or any(map(texts.has_name, absent)))
            for texts, words, asks in self._earlier
        ):
            return False
        return any(stems & words and all(map(texts.has_name, ends)) for texts, words, _ in self._earlier)

    def _is_named(self, end: str, fact: ExtractedFact) -> bool:
        number = fact.value if fact.value is not None and fact.value.type == "number" else None
        if number is not None and end == number.shown():
            return self._current.has_number(number.value)
        return self._current.has_name(end)

    def _has_date(self, fact: ExtractedFact) -> bool:
        """Return whether a stated date of the fact may come from the episode."""
        dates = (date for date in (fact.valid_from, fact.valid_to) if date is not None)
        return any(date != self._episode.reference_time and self._current.has_date(date) for date in dates)
