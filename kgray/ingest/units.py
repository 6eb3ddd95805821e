"""Cut long texts into units that a model reads separately; `union` joins the extractions (R18, R22).

A model overlooks more in a long text than in a short text, and its prompt and its reply have limits. A unit
ends where a paragraph ends, or else a sentence, a line or a word. It begins with the last sentences of the
previous unit, so that a fact whose sentences stand on both sides of a border is complete in one unit. A list
in JSON is cut into lists of whole items, without overlap. Other JSON records are not cut, because half a
record says nothing.

The previous context is limited too: a prompt shows the newest previous texts, together as long as one unit.

Everything here is pure: the result depends on the texts and the sizes alone.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kgray.domain.records import Episode, EpisodeKind
from kgray.models.prompting.tokens import SHARE, cost_of
from kgray.ports import ExtractionRequest

# An accented letter costs this, and no character costs more. So short texts need no count, which takes time.
_MOST_TOKENS_A_CHARACTER = 2.5
# A script without spaces may be cut between any two characters, other text at spaces alone.
_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_ATOM = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]*$|[。！？][」』）]*$")
_ABBREVIATION = re.compile(
    r"^\W*(?:[^\W\d_]|dr|mr|mrs|ms|prof|st|no|vs|bzw|ca|inc|ltd|[a-z](?:\.[a-z])+)\.$", re.IGNORECASE
)
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n|\r[^\S\r]*\r")
_WORD, _LINE, _SENTENCE, _PARAGRAPH = range(4)  # levels of borders
_BRACKETS = cost_of("[") + cost_of("]")


@dataclass(frozen=True, slots=True)
class UnitSize:
    """The most tokens of a text unit, and of its overlap with the previous unit, as `count_tokens` counts."""

    tokens: int
    overlap: int


@dataclass(frozen=True, slots=True)
class TextUnit:
    """A part of an episode's text.

    start   the position of the unit's first character in the episode's text. A part of a JSON list begins
            with a bracket that the unit adds, so its start is the position before its first item
    """

    text: str
    start: int

    @property
    def end(self) -> int:
        """The position behind the unit in the episode's text."""
        return self.start + len(self.text)


def text_units(episode: Episode, size: UnitSize) -> tuple[TextUnit, ...]:
    """Return the units of an episode in order; a short text, a JSON object and triples are a single unit.

    A unit has at most `size.tokens` tokens, unless a single word, or a single item of a JSON list, has more.
    """
    return _text_units(episode.text, episode.kind, size)


@lru_cache(maxsize=4)  # the questions of a long episode need its units again
def _text_units(text: str, kind: EpisodeKind, size: UnitSize) -> tuple[TextUnit, ...]:
    limit = size.tokens * SHARE
    single = (TextUnit(text, 0),)
    if len(text) * _MOST_TOKENS_A_CHARACTER <= size.tokens or cost_of(text) <= limit:
        return single
    if kind == "json":
        return tuple(_list_units(text, limit)) or single
    if kind == "triples":
        return single
    atoms = _Atoms(text)
    return tuple(_prose_units(atoms, limit, size.overlap * SHARE)) or single


def unit_requests(
    request: ExtractionRequest, size: UnitSize | None
) -> list[tuple[TextUnit, ExtractionRequest]]:
    """Return the units of the request's episode, each with the request that reads it.

    size    None: the episode is a single unit, with the request as it is

    Every unit has the episode's previous context (R22), not the end of the previous unit: the overlap shows
    that end already, and all units can be read at the same time.
    """
    if size is None:
        return [(TextUnit(request.episode.text, 0), request)]
    previous = _newest(request.previous, size.tokens)
    return [
        (unit, replace(request, episode=replace(request.episode, text=unit.text), previous=previous))
        for unit in text_units(request.episode, size)
    ]


def excerpt(episode: Episode, size: UnitSize | None, names: Iterable[str]) -> Episode:
    """Return the episode with the text of the unit that has most of these names, the first such unit."""
    units = () if size is None else text_units(episode, size)
    if len(units) < 2:
        return episode
    folded_names = [name.casefold() for name in names]
    counts = [sum(name in unit.text.casefold() for name in folded_names) for unit in units]
    return replace(episode, text=units[counts.index(max(counts))].text)


def _newest(previous: Sequence[Episode], tokens: int) -> tuple[Episode, ...]:
    """Return the newest previous episodes, oldest first, whose texts together have at most this many tokens.

    An episode that exceeds the limit shows the end of its text; episodes before it are left out.
    """
    if sum(len(episode.text) for episode in previous) * _MOST_TOKENS_A_CHARACTER <= tokens:
        return tuple(previous)
    newest: list[Episode] = []
    limit = tokens * SHARE
    for episode in reversed(previous):
        cost = cost_of(episode.text)
        if cost <= limit:
            newest.append(episode)
            limit -= cost
            continue
        if end := _Atoms(episode.text).ending(limit):
            newest.append(replace(episode, text=end))
        break
    return tuple(reversed(newest))


class _Atoms:
    """The words of a text with their costs. Border n lies between word n - 1 and word n."""

    def __init__(self, text: str) -> None:
        self.text = text
        spans = [match.span() for match in _ATOM.finditer(text)]
        self.starts = [start for start, _ in spans]
        self.ends = [end for _, end in spans]
        self._gaps, self._sums = (
            [0],
            [0],
        )  # costs: of the blank before an atom (from index 1 on), of a text up to a border
        for number, (start, end) in enumerate(spans):
            gap = cost_of(f"{text[self.ends[number - 1] : start]}x") - cost_of("x") if number else 0
            self._gaps.append(gap)
            self._sums.append(self._sums[-1] + gap + cost_of(text[start:end]))

    def __len__(self) -> int:
        return len(self.starts)

    def furthest(self, first: int, limit: int) -> int:
        """Return the last border such that the atoms from `first` to it cost at most `limit`."""
        return bisect_right(self._sums, self._sums[first] + self._gaps[first + 1] + limit) - 1

    def earliest(self, border: int, limit: int) -> int:
        """Return the first atom such that the atoms from it to the border cost at most `limit`."""
        first = bisect_left(self._sums, self._sums[border] - limit)
        # The blank before the first atom is not counted.
        fits = first > 0 and self._sums[first - 1] + self._gaps[first] >= self._sums[border] - limit
        return first - 1 if fits else first

    def level(self, border: int) -> int:
        """Return whether a paragraph, a sentence, a line or only a word ends at a border."""
        atom = self.text[self.starts[border - 1] : self.ends[border - 1]]
        gap = self.text[self.ends[border - 1] : self.starts[border]]
        if _BLANK_LINE.search(gap):
            return _PARAGRAPH
        goes_on = self.text[self.starts[border]].islower() or _ABBREVIATION.search(atom)
        if _SENTENCE_END.search(atom) and not goes_on:
            return _SENTENCE
        return _LINE if "\n" in gap else _WORD

    def ending(self, limit: int) -> str:
        """Return the end of the text that costs at most `limit`, if possible from the start of a sentence."""
        count = len(self)
        first = self.earliest(count, limit)
        if first >= count:
            return ""
        return self.text[self.starts[_sentence_from(self, first, count)] :].rstrip()


def _prose_units(atoms: _Atoms, limit: int, overlap: int) -> Iterator[TextUnit]:
    """Yield units that cost at most `limit`, with overlaps that cost at most `overlap`."""
    first = covered = 0  # the unit's first atom; the first atom that is in no unit yet
    while covered < len(atoms):
        furthest = atoms.furthest(first, limit)
        if furthest <= covered:  # the next word does not fit behind the overlap, or exceeds the limit
            first, furthest = covered, max(atoms.furthest(covered, limit), covered + 1)
        end = furthest
        if end < len(atoms):
            half = max(covered + 1, min(atoms.furthest(first, limit // 2), furthest))
            end = max(range(half, furthest + 1), key=lambda border: (atoms.level(border), border))
        start = atoms.starts[first]
        yield TextUnit(atoms.text[start : atoms.ends[end - 1]], start)
        covered = end
        if covered < len(atoms):
            first = _sentence_from(atoms, max(first + 1, atoms.earliest(end, overlap)), end)


def _sentence_from(atoms: _Atoms, first: int, end: int) -> int:
    """Return the first atom in [first, end) that begins a sentence, or else a line, or else `first`."""
    levels = {atoms.level(border): border for border in range(end - 1, max(first, 1) - 1, -1)}
    if first == 0:
        return 0
    starts = [border for level, border in levels.items() if level >= _SENTENCE]
    return min(starts, default=levels.get(_LINE, first))


def _list_units(text: str, limit: int) -> Iterator[TextUnit]:
    """Yield the units of a JSON list; nothing if the text is no list."""
    spans = _items(text)
    first = 0
    while first < len(spans):
        last, cost = first, _BRACKETS + cost_of(text[slice(*spans[first])])
        while last + 1 < len(spans):
            cost += cost_of(text[spans[last][1] : spans[last + 1][1]])
            if cost > limit:
                break
            last += 1
        start, end = spans[first][0], spans[last][1]
        yield TextUnit(f"[{text[start:end]}]", start - 1)
        first = last + 1


def _items(text: str) -> list[tuple[int, int]]:
    """Return the positions of the items in the text of a JSON list; [] if the text is no list."""
    decode = json.JSONDecoder().raw_decode
    at = _behind_blank(text, 0)
    if text[at : at + 1] != "[":
        return []
    spans: list[tuple[int, int]] = []
    try:
        while text[at] in "[,":
            start = _behind_blank(text, at + 1)
            end = decode(text, start)[1]
            spans.append((start, end))
            at = _behind_blank(text, end)
    except (ValueError, IndexError, RecursionError):
        return []
    return spans


def _behind_blank(text: str, at: int) -> int:
    """Return the position of the first character at or behind `at` that is no blank of JSON."""
    while text[at : at + 1] in {" ", "\t", "\n", "\r"}:
        at += 1
    return at
