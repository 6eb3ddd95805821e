"""Find known entities that a name may mean, by letters and by vector; exact and deterministic (R14, R15).

`NameLookUp` finds the entities that share a blocking key with a name; `likeness` then compares the names. A
code (acronym, initialism or ticker: "IBM", "I.B.M.", "RR-NG", "TH-ER", "MSFT") takes letters of a name in
order: the first letter of each word, and maybe later letters. It shares no token with the name, so that it
has keys of its own.

`Nearest` finds similar vectors in a time that does not grow with the group. Vectors are quantised to integers
whose products sum to less than 2**24, so a float32 matrix product is exact in any order and on any machine.
Above EXACT_UP_TO rows, the signs of each 16 dimensions form a band, and only rows that share a whole band
with the query are candidates: with 64 bands 0.1 % of rows of cosine 0, 81 % of 0.8, 99.6 % of 0.9.
(Charikar, STOC 2002, for the sign bits; Leskovec et al., Mining of Massive Datasets, 3.4, for the bands.)

`told_names` adds names that the text gives: "call me Kathi", "Katharina, known as Kathi", "née Schmidt". Such
a name may share no letters with the first name, so that no other step could match it. It becomes a mention,
also if the extractor did not list it, and the entity beside it becomes its candidate: the judge decides, and
no merge happens without it. The sources are cue words (`_CUES`) and facts about names (`NAMING`).
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kgray.domain.records import Episode, ExtractedEntity, Extraction, clean_text
from kgray.graph import names
from kgray.ports import Matrix, Vector

Likeness = Literal["equal", "initials", "subset", "acronym", "surname"]
# Blocking keys: a letter for the kind, then the text.
_NAME, _TOKEN, _INITIALS, _SHORT, _CODE = "=", "t", "i", "s", "c"

# A name is blocked by its rarest tokens, and of a frequent token only the oldest bearers count: so the cost
# does not grow with the group. A model could not choose among more than this many Alices anyway.
MAX_POSTING = 12
_RAREST = 2
_CODE_FORM = re.compile(r"[^\W\d_](?:[-./&]?[^\W\d_])+\.?")
_SEPARATORS = re.compile(r"[-./&]")
_WORDS = 5  # the maximum number of words of a name that a code abbreviates
_MOST_CODED = 4_000  # entities of a key that are compared with a code


def blocking_keys(surface: str) -> set[str]:
    """Return the blocking keys of a name."""
    tokens = names.tokens(surface)
    keys = {_NAME + names.key(surface)}
    keys.update([_TOKEN + token for token in tokens])
    for words in names.spellings(surface):
        keys.add(_INITIALS + "".join([word[0] for word in words]))
    if len(tokens) > 1:
        keys.add(f"{_SHORT}{tokens[0][0]} {tokens[-1]}")
    if surface.isupper() and (letters := code(surface)):
        keys.add(_CODE + letters[0] + letters[-1])
    return keys


class NameLookUp:
    """Finds entities by parts of their names and aliases."""

    def __init__(self, postings: Mapping[str, list[str]]) -> None:
        self._postings = postings  # the entities by blocking key, oldest first

    def bearers(self, surface: str) -> list[str]:
        """Return the entities that bear this full name or alias."""
        return self._postings.get(_NAME + names.key(surface)) or []

    def bears_word(self, token: str) -> list[str]:
        """Return the entities with this token in a name."""
        return self._postings.get(_TOKEN + token) or []

    def shorts(self, surface: str) -> list[str]:
        """Return entities with a name of the same first letter and last token, the oldest ones."""
        tokens = names.tokens(surface)
        if len(tokens) < 2:
            return []
        return (self._postings.get(f"{_SHORT}{tokens[0][0]} {tokens[-1]}") or [])[:MAX_POSTING]

    def near(self, surface: str) -> list[str]:
        """Return the entities that share a blocking key with the surface, each once."""
        tokens = names.tokens(surface)
        postings = sorted(filter(None, map(self.bears_word, tokens)), key=len)[:_RAREST]
        if len(tokens) > 1:
            postings += [self.shorts(surface), *(self._postings.get(_NAME + token) or [] for token in tokens)]
        return list(dict.fromkeys(entity for posting in postings for entity in posting[:MAX_POSTING]))

    def coded(self, surface: str) -> list[str]:
        """Return the entities whose name may be spelled by a code, or a code that may spell a name."""
        keys: dict[str, None] = {}
        if letters := code(surface):
            sizes = range(min(len(letters), _WORDS))
            chosen = ("".join(picked) for size in sizes for picked in combinations(letters[1:], size))
            keys |= dict.fromkeys(_INITIALS + letters[0] + picked for picked in chosen)
        for words in names.spellings(surface):
            keys |= dict.fromkeys(_CODE + words[0][0] + letter for letter in words[-1])
        postings = (self._postings.get(key) or [] for key in keys)
        return list(dict.fromkeys(entity for posting in postings for entity in posting[:_MOST_CODED]))


class NameIndex(NameLookUp):
    """The names and aliases of a group's entities; commits add to it."""

    def __init__(self) -> None:
        self.postings: dict[str, list[str]] = {}
        super().__init__(self.postings)

    def add(self, entity: str, surfaces: Iterable[str], *, new: bool = False) -> None:
        """Note that an entity bears surfaces; new: the index does not have the entity yet."""
        for key in set[str]().union(*map(blocking_keys, surfaces)):
            posting = self.postings.setdefault(key, [])
            # An entity often comes back with an alias that shares a token; only the ends are searched.
            if new or (entity not in posting[-MAX_POSTING:] and entity not in posting[:MAX_POSTING]):
                posting.append(entity)


def likeness(surface: str, stored_name: str) -> Likeness | None:
    """Return how the letters of two names match; None = each has a token that the other lacks."""
    a, b = names.tokens(surface), names.tokens(stored_name)
    if a == b or sorted(a) == sorted(b):
        return "equal"
    if code_match(surface)(stored_name) is not None:
        return "acronym"
    shorter, longer = (a, b) if len(a) <= len(b) else (b, a)
    unmatched = list(longer)
    for token in shorter:
        if token in unmatched:
            unmatched.remove(token)
            continue
        for candidate in unmatched:
            # A token may be an initial or prefix of another, but not with a digit in either (R15).
            if (token.startswith(candidate) or candidate.startswith(token)) and not _has_digit(
                token + candidate
            ):
                unmatched.remove(candidate)
                break
        else:
            # Two words with a shared surname: "Vicky Kelstaholm", "Victoria Kelstaholm".
            is_shared = len(a) == len(b) == 2 and a[1] == b[1] and min(len(a[0]), len(b[0])) > 1
            return "surname" if is_shared and not _has_digit("".join(a + b)) else None
    return "subset" if unmatched else "initials"


def _has_digit(text: str) -> bool:
    return any(c.isdigit() for c in text)


@lru_cache(maxsize=16_384)
def code(surface: str) -> str:
    """Return the letters of an acronym, initialism or ticker, in lower case; "" for any other name."""
    if not (surface.isupper() and _CODE_FORM.fullmatch(surface)):
        return ""
    letters = "".join(c for c in surface if c.isalpha())
    return letters.lower() if 2 <= len(letters) <= 8 else ""


def code_match(surface: str) -> Callable[[str], int | None]:
    """Return a function of a second name that rates how well one of the two names is a code for the other.

    0 = the code has a letter, or a part ("TH-ER"), for each word; 1 = it spells several words; 2 = one word;
    None = it does not spell the name.
    """
    letters = code(surface)

    def match(name: str) -> int | None:
        if letters:
            remaining = iter(name.lower())
            # A cheap test before the exact test: the name has the letters, in order.
            if not name.isascii() or all(letter in remaining for letter in letters):
                return _spelled(surface, name)
        return _spelled(name, surface) if code(name) else None

    return match


def _spelled(surface: str, name: str) -> int | None:
    """Rate a code by the letters that it takes of a name, in order: of each word the first, maybe others."""
    letters = code(surface)
    sizes = {len(letters), len(_SEPARATORS.split(surface.strip(".")))}
    fitting = [
        0 if len(words) in sizes - {1} else 1 if len(words) > 1 else 2
        for words in names.spellings(name)
        if (len(words) > 1 or len(letters) > 2) and letters not in words and _spells(letters, words)
    ]
    return min(fitting, default=None)


def _spells(letters: str, words: tuple[str, ...]) -> bool:
    if not words or not letters:
        return not words and not letters
    if letters[0] != words[0][0]:
        return False
    at = 0
    for used, letter in enumerate(letters[: len(letters) - len(words) + 1], start=1):
        at = words[0].find(letter, at) + 1
        if not at:
            return False
        if _spells(letters[used:], words[1:]):
            return True
    return False


# Up to this many rows all products are computed: this costs no more than bands.
EXACT_UP_TO = 512
MOST_SCORED = 64  # above EXACT_UP_TO: rows whose exact product is computed
_RUN = 1024  # new rows are kept unsorted up to this many, then become a sorted run
_BAND_BITS = 16  # dimensions per band


Prepared = tuple[NDArray[np.float32], float]  # (quantised vector, its Euclidean length)


class Nearest:
    """An index of quantised unit vectors, appended in a fixed order, for queries by cosine."""

    def __init__(self, dimensions: int, room: int = 0) -> None:
        """Start empty, for vectors of this many dimensions (at least 16, else ValueError).

        room: rows that will probably be appended
        """
        self._dimensions = dimensions
        if dimensions < _BAND_BITS:
            raise ValueError(f"an embedder of {dimensions} numbers a text: at least {_BAND_BITS} are needed")
        self._band_count = dimensions // _BAND_BITS
        self._count = 0
        self._rows: NDArray[np.int8] = np.empty((0, dimensions), np.int8)
        self._bands: NDArray[np.uint16] = np.empty((0, self._band_count), np.uint16)
        self._lengths: NDArray[np.float64] = np.empty(0, np.float64)
        self._runs: list[tuple[NDArray[np.uint32], NDArray[np.int32], int]] = []  # keys, row ids, rows
        self._sorted = 0
        self._make_room(0, room)

    def extend(self, vectors: Matrix, *, sort: bool = True) -> None:
        """Append rows (n, d); sort: make queries cheap, which is wasted if further rows follow at once."""
        start, self._count = self._count, self._count + len(vectors)
        if self._count > len(self._rows):
            self._make_room(start, max(64, 2 * start, self._count))
        rows = quantised(vectors)
        self._rows[start : self._count] = rows
        self._bands[start : self._count] = self._bands_of(rows)
        self._lengths[start : self._count] = _lengths(rows)
        if sort:
            self.sort()

    def _make_room(self, count: int, room: int) -> None:
        """Move the first `count` rows into arrays with room for `room` rows."""
        self._rows, self._bands, self._lengths = (
            np.concatenate([array[:count], np.empty((room - count, *array.shape[1:]), array.dtype)])
            for array in (self._rows, self._bands, self._lengths)
        )

    def near(self, vector: Vector, floor: float, limit: int) -> list[tuple[float, int]]:
        """Return at most `limit` (cosine, row) with cosine >= floor, nearest first, ties by row."""
        query, length = prepared(vector)
        rows = self._candidates(query)
        candidates = self._rows[: self._count] if len(rows) == self._count else self._rows[rows]
        dots = candidates.astype(np.float32) @ query
        cosines = dots.astype(np.float64) / (self._lengths[rows] * length)
        order = np.lexsort((rows, -cosines))[:limit]
        return [(float(cosines[i]), int(rows[i])) for i in order if cosines[i] >= floor]

    def _candidates(self, query: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the rows that share a whole band with the query, ascending; up to EXACT_UP_TO all rows."""
        if self._count <= EXACT_UP_TO:
            return np.arange(self._count)
        bands = self._bands_of(query)
        keys = _keys(bands[None, :]).ravel()
        row_lists = []
        for run_keys, run_rows, _ in self._runs:
            starts = np.searchsorted(run_keys, keys, "left")
            ends = np.searchsorted(run_keys, keys, "right")
            row_lists += [run_rows[starts[i] : ends[i]] for i in np.flatnonzero(ends > starts)]
        tail = self._bands[self._sorted : self._count]
        row_lists.append(np.nonzero(tail == bands)[0].astype(np.int32) + self._sorted)
        rows, shared = np.unique(np.concatenate(row_lists), return_counts=True)
        if len(rows) > MOST_SCORED:
            # Names made of the same words share bands by the thousand. Keep the rows that share most bands
            # (they are nearest), the oldest first, so that the cost of a query does not grow with their
            # number.
            rows = np.sort(rows[np.lexsort((rows, -shared))[:MOST_SCORED]])
        return rows.astype(np.int64)

    def _bands_of(self, rows: NDArray[Any]) -> NDArray[np.uint16]:
        """Return the sign bits of each band, (..., bands); the last dims % 16 dimensions are not used."""
        signs = rows[..., : self._band_count * _BAND_BITS] > 0
        return np.packbits(signs, axis=-1).view(np.uint16)

    def sort(self) -> None:
        """Make a long unsorted tail a sorted run. Runs of similar size merge: O(log n) merges per row."""
        if self._count - self._sorted < _RUN:
            return
        start = self._sorted
        while self._runs and self._runs[-1][2] <= 4 * (self._count - start):
            start -= self._runs.pop()[2]
        # Band by band: 16 bits are sorted in linear time, and each key begins with the band's number.
        bands = np.ascontiguousarray(self._bands[start : self._count].T)
        order = np.argsort(bands, axis=1, kind="stable")
        keys = _keys(np.take_along_axis(bands, order, axis=1).T).T.ravel()
        self._runs.append((keys, (order + start).astype(np.int32).ravel(), self._count - start))
        self._sorted = self._count


def quantised(vector: Vector | Matrix) -> NDArray[np.int8]:
    """Return unit vectors, (d,) or (n, d), as integers; dimensions x levels**2 < 2**24."""
    dimensions = vector.shape[-1]
    maximum = min(127, math.isqrt((2**24 - 1) // dimensions))
    levels = vector * np.float32(maximum * math.sqrt(dimensions) / 4)
    np.rint(levels, out=levels)
    np.clip(levels, -maximum, maximum, out=levels)
    return np.asarray(levels, dtype=np.int8)


def prepared(vector: Vector) -> Prepared:
    """Return a vector in the form for `cosines`; the latest are cached, as an entry's tries repeat them."""
    return _prepared(np.asarray(vector, np.float32).tobytes())


@lru_cache(maxsize=2048)  # of all groups together: 16 MB at 1,024 numbers
def _prepared(vector: bytes) -> Prepared:
    row = quantised(np.frombuffer(vector, np.float32))
    return row.astype(np.float32), float(_lengths(row[None, :])[0])


def cosines(vector: Vector, rows: Sequence[Prepared]) -> NDArray[np.float64]:
    """Return the cosine of a vector with each row, (n,), equal to the results of `Nearest`."""
    if not rows:
        return np.empty(0, np.float64)
    query, length = prepared(vector)
    dots = np.stack([row for row, _ in rows]) @ query
    return dots.astype(np.float64) / (np.array([row_length for _, row_length in rows]) * length)


def _lengths(rows: NDArray[np.int8]) -> NDArray[np.float64]:
    """Return the exact lengths of quantised rows, at least 1, so that a row of zeros has cosine 0."""
    wide = rows.astype(np.float32)  # the squares sum to less than 2**24: exact
    squares: NDArray[np.float64] = np.einsum("ij,ij->i", wide, wide).astype(np.float64)
    return np.sqrt(np.maximum(squares, 1.0))


def _keys(bands: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """Return (n, bands) sign bits as keys that include the band's number: number << 16 | bits."""
    places = np.arange(bands.shape[1], dtype=np.uint32) << 16
    keys: NDArray[np.uint32] = np.bitwise_or(places[None, :], bands.astype(np.uint32))
    return keys


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
_NAME_WORD = re.compile(r"[^\W\d_][\w'’-]*")
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
        word = _NAME_WORD.match(text, stop + (stop > at and text[stop : stop + 1] == " "))
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
