"""Validate a model's extraction against the text, and give it the shape of the ontology (R14, R18).

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

`shape` runs before names are resolved. It settles conflicts between an answer and a declared relation:

relation takes a value     a named object becomes a text value
relation takes an entity   a text value becomes a name; a number, date or boolean stays a value

Once the settings declare a type of entity, a type that is neither shipped nor declared (ignoring case)
becomes unknown. A relation that they declare with subject_type and object_type allows that pair only, a
symmetric one either way round: a fact with an end of another known type is dropped; unknown types and values
pass.

A dropped fact leaves no evidence; it stays in the stored extraction, which is the reply of the model.

`told_names` adds names that the text gives: "call me Kathi", "Katharina, known as Kathi", "née Schmidt". Such
a name may share no letters with the first name, so that no other step could match it. It becomes a mention,
also if the extractor did not list it, and the entity beside it becomes its candidate: the judge decides, and
no merge happens without it. The sources are cue words (`_CUES`) and facts about names (`NAMING`).
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
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
    Value,
    clean_text,
    with_entities,
)
from kgray.domain.times import Instant
from kgray.graph import names
from kgray.graph.sentences import is_plain_word, without_each
from kgray.graph.texts import default_sentence, object_words
from kgray.ingest.candidates import code, code_match
from kgray.models.prompting.reply_schemas import ENTITY_TYPES
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


ANY_THING = "Thing"  # an end's type in the shipped relations that allows every type


def shape(extraction: Extraction, episode: Episode, ontology: Ontology) -> Extraction:
    """Return the extraction with one entity per name and objects of the kind their relation declares.

    A name that only served as an object and became a value is dropped.
    """
    entities = extraction.entities
    if ontology.entities:  # a type that is neither shipped nor declared is unknown
        types = {name.casefold(): name for name in (*ENTITY_TYPES, *ontology.entities)}
        entities = tuple(replace(entity, type=types.get(entity.type.casefold(), "")) for entity in entities)
    # Records with different keys are different, also with equal names.
    keys = {entity.key_of: names.key(entity.name) for entity in entities if entity.key_of is not None}
    keys_by_place = [(names.key(entity.name), keys.get(place)) for place, entity in enumerate(entities)]
    distinct: dict[tuple[str, str | None], ExtractedEntity] = {}
    for key, entity in zip(keys_by_place, entities, strict=True):
        first = distinct.setdefault(key, replace(entity, name=clean_text(entity.name)))
        if not first.type and entity.type:
            distinct[key] = replace(first, type=entity.type)
    places = {key: place for place, key in enumerate(distinct)}
    index = [places[key] for key in keys_by_place]
    merged = [e if e.key_of is None else replace(e, key_of=index[e.key_of]) for e in distinct.values()]
    listed = len(merged)
    facts: list[ExtractedFact] = []
    turned: set[int] = set()
    for fact in extraction.facts:
        target = None if fact.target is None else index[fact.target]
        shaped = _objects(replace(fact, source=index[fact.source], target=target), merged, turned, ontology)
        relation = ontology.get(shaped.relation)
        if relation is not None and ontology.entities and shaped.relation in ontology.paired:
            ends = (merged[shaped.source].type, "" if shaped.target is None else merged[shaped.target].type)
            pair = (relation.subject_type, relation.object_type)
            pairs = (pair, pair[::-1]) if relation.symmetric else (pair,)
            if not any(
                all(not k or d in ("", ANY_THING, k) for k, d in zip(ends, end_types, strict=True))
                for end_types in pairs
            ):
                continue
        facts.append(shaped)
    used = {f.source for f in facts} | {f.target for f in facts if f.target is not None}
    if episode.kind == "message" and episode.speaker and merged:
        used.add(0)
    retained = [i for i in range(len(merged)) if i in used or (i < listed and i not in turned)]
    return with_entities(replace(extraction, entities=tuple(merged), facts=tuple(facts)), retained)


def _objects(
    fact: ExtractedFact, entities: list[ExtractedEntity], turned: set[int], ontology: Ontology
) -> ExtractedFact:
    """Return the fact with an object of the kind its relation declares.

    May append a name to `entities`; adds the index of a name that became a value to `turned`.
    """
    declared = ontology.object_kind(fact.relation)
    if declared == "value" and fact.target is not None:
        turned.add(fact.target)
        return replace(fact, target=None, value=Value("text", entities[fact.target].name))
    if declared == "entity" and fact.value is not None and fact.value.type == "text":
        key = names.key(fact.value.value)
        for place, entity in enumerate(entities):
            if names.key(entity.name) == key:
                return replace(fact, target=place, value=None)
        entities.append(ExtractedEntity(name=clean_text(fact.value.value)))
        return replace(fact, target=len(entities) - 1, value=None)
    return fact


_NAMED = tomllib.loads(Path(__file__).with_name("aliases.toml").read_text(encoding="utf-8"))
NAMING, _PARTS = frozenset(_NAMED["naming"].split()), _NAMED["cues"]
_CUES = re.compile(
    rf"(?:(?<!\w)(?:(?P<speaker>{_PARTS['of_speaker']})|{_PARTS['of_name']})|{_PARTS['after_comma']})(?!\w)"
    "[ :,]*[\"'“„«(]?[ ]*",
    re.VERBOSE | re.IGNORECASE,
)
_STEMS = tuple(stem.replace("_", " ") for stem in _PARTS["stems"].split())
_PRESENT_NAME = re.compile(
    r"\b(?:I['’]m|I am|ich bin|je suis|soy)[ ]+(?=[^.!?\n]{2,60}?[ ](?:now|jetzt|maintenant|ahora)\b)"
)
_FIRST_PERSON = re.compile(r"\b(?:I|I['’]m|me|my|ich|mein\w*|mich|je|moi|yo|io)\b")
_BORN = re.compile(r"née|nee|geb|урожд|maiden|Mädchen", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_][\w'’-]*")
_NAME_BEFORE = re.compile(r"(?<!\w)([^\W\d_][\w'’-]*(?: [^\W\d_][\w'’-]*){1,2})[ ,(]*$")
_MOST_WORDS = 3
_REACH = 80  # characters between a cue and the name before it


@dataclass(slots=True)
class ToldNames:
    """An extraction with the names that the text gives to its entities.

    same_entities  ordinal of an entity -> ordinals of the entities that the text declares to be the same
    """

    extraction: Extraction
    same_entities: dict[int, list[int]] = field(default_factory=dict)

    def note(self, ordinal: int, name: str, span: tuple[int, int] | None) -> None:
        """Note that the text gives a name to the entity at `ordinal`; add the name if it is not listed."""
        listed, key = self.extraction.entities, names.key(name)
        at = next(
            (place for place, entity in enumerate(listed) if names.key(entity.name) == key), len(listed)
        )
        if at == len(listed):
            added = ExtractedEntity(name=name, type=listed[ordinal].type, span=span)
            self.extraction = replace(self.extraction, entities=(*listed, added))
        if at != ordinal:
            self.same_entities.setdefault(at, []).append(ordinal)
            self.same_entities.setdefault(ordinal, []).append(at)


def told_names(extraction: Extraction, episode: Episode) -> ToldNames:
    """Return the extraction with the other names that the episode gives its entities."""
    names_told = ToldNames(extraction)
    for fact in extraction.facts:
        if fact.relation in NAMING and fact.kind != "denied":
            if fact.target is not None:
                names_told.note(fact.source, extraction.entities[fact.target].name, None)
            elif fact.value is not None and fact.value.type == "text":
                name, at = fact.value.value, episode.text.find(fact.value.value)
                names_told.note(fact.source, name, (at, at + len(name)) if at >= 0 else None)
    if episode.kind in ("message", "text") and extraction.entities:
        for ordinal, name, span in _in_words(extraction, episode):
            names_told.note(ordinal, name, span)
    return names_told


def _in_words(extraction: Extraction, episode: Episode) -> Iterator[tuple[int, str, tuple[int, int]]]:
    """Yield (ordinal of an entity, a name that the text gives it, span of the name) for each cue."""
    text, spoken = episode.text, episode.kind == "message" and bool(episode.speaker)
    lower = text.lower()
    cues = (
        [*_CUES.finditer(text), *_PRESENT_NAME.finditer(text)]
        if any(stem in lower for stem in _STEMS)
        else []
    )
    places = sorted(
        (match.start(), match.end(), ordinal)
        for ordinal, entity in enumerate(extraction.entities if cues else ())
        for match in re.finditer(rf"(?<!\w){re.escape(entity.name)}(?!\w)", text, re.IGNORECASE)
    )
    for cue in cues:
        name_span = _name_at(text, cue.end(), places)
        if name_span is None:
            continue
        bearer = 0 if spoken else None
        if cue.re is _CUES and not cue["speaker"]:
            first = _unlisted_before(text, cue.start(), places)
            second = next((ordinal for start, end, ordinal in places if (start, end) == name_span), None)
            if first is not None and second is not None:
                # "Anna Weber, formerly Anna Schmidt", the second known
                yield second, clean_text(text[slice(*first)]), first
                continue
            bearer = _last_name_before(text, cue.start(), places, bearer)
        if bearer is None:
            continue
        start, end = name_span
        name, full_name = clean_text(text[start:end]), extraction.entities[bearer].name
        if _BORN.search(cue[0]) and " " not in name and " " in full_name:
            name = f"{full_name.rsplit(' ', 1)[0]} {name}"  # "Anna Weber, née Schmidt" was Anna Schmidt
        yield bearer, name, (start, end)


def _name_at(text: str, at: int, places: list[tuple[int, int, int]]) -> tuple[int, int] | None:
    """Return the span of the name that begins at `at`: a listed name, else capitalised words."""
    stop = max((end for start, end, _ in places if start == at), default=at)
    if stop > at:
        return at, stop
    for _ in range(_MOST_WORDS):
        word = _WORD.match(text, stop + (stop > at and text[stop : stop + 1] == " "))
        if word is None or not word[0][0].isupper():
            break
        stop = word.end()
    return (at, stop) if stop > at else None


def _last_name_before(
    text: str, at: int, places: list[tuple[int, int, int]], speaker: int | None
) -> int | None:
    """Return the last entity before `at` in its sentence, or the speaker after a first person pronoun."""
    start_of_search = max(at - _REACH, *(text.rfind(mark, 0, at) for mark in (". ", "! ", "? ", "\n")), 0)
    earlier_names = (
        (end, ordinal) for start, end, ordinal in places if start_of_search <= start and end <= at
    )
    named = max(earlier_names, default=None)
    if named is None or (_FIRST_PERSON.search(text, named[0], at) and speaker is not None):
        return speaker
    return named[1]


def _unlisted_before(text: str, at: int, places: list[tuple[int, int, int]]) -> tuple[int, int] | None:
    """Return the span of an unlisted name of two or three words right before `at`."""
    run = _NAME_BEFORE.search(text, max(0, at - _REACH), at)
    if run is None or any(start < run.end(1) and end > run.start(1) for start, end, _ in places):
        return None
    return run.span(1) if all(word[0].isupper() for word in run[1].split(" ")) else None
