"""Other names that a text itself gives (R14): "call me Kathi", "Katharina, known as Kathi", "née Schmidt".

Such a name shares no letters with the first one, so that nothing else could find it. A name that a text
gives becomes a mention, whether the extractor listed it or not, and what it stands beside becomes its
candidate: the judge is asked, and nothing is merged unasked. Two things tell of one: words (`_CUES`), and a
fact whose relation is about names (`NAMING`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from kgray.derivation import names
from kgray.records import Episode, ExtractedEntity, Extraction, clean_text

_TABLES = tomllib.loads(Path(__file__).with_name("aliases.toml").read_text(encoding="utf-8"))
NAMING, _PARTS = frozenset(_TABLES["naming"].split()), _TABLES["cues"]
_CUES = re.compile(
    rf"(?:(?<!\w)(?:(?P<speaker>{_PARTS['of_speaker']})|{_PARTS['of_name']})|{_PARTS['after_comma']})(?!\w)"
    "[ :,]*[\"'“„«(]?[ ]*",
    re.VERBOSE | re.IGNORECASE,
)
_STEMS = tuple(stem.replace("_", " ") for stem in _PARTS["stems"].split())
_NOW = re.compile(
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
    """An extraction with the names that the text gives; others: ordinal -> those told to be the same."""

    extraction: Extraction
    others: dict[int, list[int]] = field(default_factory=dict)

    def note(self, of: int, name: str, span: tuple[int, int] | None) -> None:
        """Note that the entity at `of` is told to bear a name; a name that is not listed is added."""
        listed, key = self.extraction.entities, names.key(name)
        at = next((place for place, one in enumerate(listed) if names.key(one.name) == key), len(listed))
        if at == len(listed):
            added = ExtractedEntity(name=name, type=listed[of].type, span=span)
            self.extraction = replace(self.extraction, entities=(*listed, added))
        if at != of:
            self.others.setdefault(at, []).append(of)
            self.others.setdefault(of, []).append(at)


def told_names(extraction: Extraction, episode: Episode) -> ToldNames:
    """Return the extraction with the other names that the episode gives its entities."""
    told = ToldNames(extraction)
    for fact in extraction.facts:
        if fact.relation in NAMING and fact.kind != "denied":
            if fact.target is not None:
                told.note(fact.source, extraction.entities[fact.target].name, None)
            elif fact.value is not None and fact.value.type == "text":
                told.note(fact.source, fact.value.value, _found(fact.value.value, episode.text))
    if episode.kind in ("message", "text") and extraction.entities:
        for of, name, span in _in_words(extraction, episode):
            told.note(of, name, span)
    return told


def _in_words(extraction: Extraction, episode: Episode) -> Iterator[tuple[int, str, tuple[int, int]]]:
    """Yield (entity, name given to it, where) for each cue of the text."""
    text, spoken = episode.text, episode.kind == "message" and bool(episode.speaker)
    lower = text.lower()
    if not any(stem in lower for stem in _STEMS):
        return
    places: list[tuple[int, int, int]] | None = None  # start, end, ordinal of each listed name
    for cue in (*_CUES.finditer(text), *_NOW.finditer(text)):
        if places is None:
            places = sorted(_occurrences(extraction, text))
        given = _name_at(text, cue.end(), places)
        if given is None:
            continue
        of = 0 if spoken else None
        if cue.re is _CUES and not cue["speaker"]:
            first = _unlisted_before(text, cue.start(), places)
            second = next((ordinal for start, end, ordinal in places if (start, end) == given), None)
            if (
                first is not None and second is not None
            ):  # "Anna Weber, formerly Anna Schmidt", the second known
                yield second, clean_text(text[slice(*first)]), first
                continue
            of = _before(text, cue.start(), places, of)
        if of is None:
            continue
        start, end = given
        name, whole = clean_text(text[start:end]), extraction.entities[of].name
        if _BORN.search(cue[0]) and " " not in name and " " in whole:
            name = f"{whole.rsplit(' ', 1)[0]} {name}"  # "Anna Weber, née Schmidt" was Anna Schmidt
        yield of, name, (start, end)


def _occurrences(extraction: Extraction, text: str) -> Iterator[tuple[int, int, int]]:
    for ordinal, entity in enumerate(extraction.entities):
        for found in re.finditer(rf"(?<!\w){re.escape(entity.name)}(?!\w)", text, re.IGNORECASE):
            yield found.start(), found.end(), ordinal


def _name_at(text: str, at: int, places: list[tuple[int, int, int]]) -> tuple[int, int] | None:
    """Return where the name that begins at `at` stands: a listed one, else words that are written large."""
    end = max((end for start, end, _ in places if start == at), default=None)
    if end is not None:
        return at, end
    stop = at
    for _ in range(_MOST_WORDS):
        word = _WORD.match(text, stop + (stop > at and text[stop : stop + 1] == " "))
        if word is None or not word[0][0].isupper():
            break
        stop = word.end()
    return (at, stop) if stop > at else None


def _before(text: str, at: int, places: list[tuple[int, int, int]], speaker: int | None) -> int | None:
    """Return the entity named last before `at` in its sentence; the speaker who speaks of themselves."""
    since = max(at - _REACH, *(text.rfind(mark, 0, at) for mark in (". ", "! ", "? ", "\n")), 0)
    named = max(
        ((end, ordinal) for start, end, ordinal in places if since <= start and end <= at), default=None
    )
    if named is None or (_FIRST_PERSON.search(text, named[0], at) and speaker is not None):
        return speaker
    return named[1]


def _unlisted_before(text: str, at: int, places: list[tuple[int, int, int]]) -> tuple[int, int] | None:
    """Return where a name of two or three words that is not listed stands right before `at`."""
    run = _NAME_BEFORE.search(text, max(0, at - _REACH), at)
    if run is None or any(start < run.end(1) and end > run.start(1) for start, end, _ in places):
        return None
    return run.span(1) if all(word[0].isupper() for word in run[1].split(" ")) else None


def _found(name: str, text: str) -> tuple[int, int] | None:
    at = text.find(name)
    return (at, at + len(name)) if at >= 0 else None
