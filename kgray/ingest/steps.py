"""The stateless steps of ingestion: `extract_episode` and `resolve_node`, and the loop that carries them out.

Both are pure: they render prompts, parse and check replies, and ground extractions. They call no model and
never wait. A step returns the next call of the model; with the reply to it the step runs again, until it
returns its result. `Stepping` is that loop. It runs in the process that decides the group; a step runs there
or as a task of Ray, and the model of this process or of a worker answers the calls.

A long text is cut into units that a model reads separately; `joined` unites their extractions (R18, R22). A
model overlooks more in a long text than in a short text, and its prompt and its reply have limits. A unit
ends where a paragraph ends, or else a sentence, a line or a word. It begins with the last sentences of the
previous unit, so that a fact whose sentences stand on both sides of a border is complete in one unit. A list
in JSON is cut into lists of whole items, without overlap. Other JSON records are not cut, because half a
record says nothing. The previous context is limited too: a prompt shows the newest previous texts, together
as long as one unit.
"""

from __future__ import annotations

import asyncio
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar, cast

from kgray.domain.ontology import Ontology
from kgray.domain.records import (
    Episode,
    EpisodeKind,
    ExtractedEntity,
    ExtractedFact,
    Extraction,
    speaker_first,
)
from kgray.errors import Cost, KgrayError
from kgray.graph import names
from kgray.graph.statements import says_same
from kgray.graph.texts import with_own_sentences
from kgray.ingest.extract import ground, without_repeats
from kgray.models.prompting.tokens import SHARE, cost_of
from kgray.ports import ExtractionRequest, Extractor, Judge, Judged, QuestionRequest
from kgray.ports.ingest import ModelCall, NextCall, Reply, replayed, steps_of, total

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


def joined(parts: Sequence[tuple[TextUnit, Extraction]]) -> Extraction:
    """Return one extraction, as if the whole text had been read at once.

    parts   the units of a text in order, each with its extraction

    Entities with equal names (`names.key`) are united. A fact in an overlap is read twice and counts once. A
    line about a dropped item begins with the number of its unit. Only language models read units, and they
    give no keys of records (`ExtractedEntity.key_of`).
    """
    if len(parts) == 1:
        return parts[0][1]
    union = _Union()
    for number, (unit, part) in enumerate(parts):
        previous_end = parts[number - 1][0].end if number else 0
        union.add(unit, part, unit.text[: max(0, previous_end - unit.start)])
    dropped = (
        f"unit {number} of {len(parts)}: {line}"
        for number, (_, part) in enumerate(parts, start=1)
        for line in part.dropped
    )
    return replace(
        parts[0][1],
        entities=tuple(union.entities),
        facts=tuple(union.facts),
        dropped=tuple(dropped),
        prompts=tuple(dict.fromkeys(prompt for _, part in parts for prompt in part.prompts)),
        **total([part.cost for _, part in parts])._asdict(),
    )


class _Union:
    """The entities and facts of several units."""

    def __init__(self) -> None:
        self.entities: list[ExtractedEntity] = []
        self.facts: list[ExtractedFact] = []
        self._places: dict[str, int] = {}  # indexes of entities by the keys of their names
        self._alike: dict[
            Hashable, list[tuple[int, ExtractedFact]]
        ] = {}  # facts with their units; equal content, equal key
        self._units = 0

    def add(self, unit: TextUnit, part: Extraction, overlap: str) -> None:
        """Add the extraction of a unit; overlap: the text that this unit shares with the previous unit."""
        index = [self._place(entity, unit.start) for entity in part.entities]
        shared = names.folded(overlap)
        for fact in part.facts:
            target = None if fact.target is None else index[fact.target]
            moved = replace(fact, source=index[fact.source], target=target)
            content = (
                moved.source,
                moved.relation,
                target,
                moved.value,
                moved.kind,
                moved.valid_from,
                moved.valid_to,
            )
            alike = self._alike.setdefault(content, [])
            if not any(self._is_read_again(moved, *earlier, shared) for earlier in alike):
                self.facts.append(moved)
                alike.append((self._units, moved))
        self._units += 1

    def _place(self, entity: ExtractedEntity, start: int) -> int:
        """Return the index of an entity with this name, a new entity if necessary; start: of its unit."""
        span = entity.span and (entity.span[0] + start, entity.span[1] + start)
        at = self._places.setdefault(names.key(entity.name), len(self.entities))
        if at == len(self.entities):
            self.entities.append(replace(entity, span=span))
        else:
            entity_before = self.entities[at]
            self.entities[at] = replace(
                entity_before, type=entity_before.type or entity.type, span=entity_before.span or span
            )
        return at

    def _is_read_again(self, fact: ExtractedFact, unit: int, earlier: ExtractedFact, overlap: str) -> bool:
        """Return whether `fact` repeats an earlier fact with equal content that was read in the overlap.

        unit    the number of the earlier fact's unit

        A model may word a sentence differently each time. So another wording repeats the fact if it names no
        other variant and if the overlap names both ends.
        """
        if unit == self._units:
            return False  # the model lists it twice for one unit
        if names.key(fact.text) == names.key(earlier.text):
            return True
        ends = [self.entities[end].name for end in (fact.source, fact.target) if end is not None]
        return (
            unit == self._units - 1
            and says_same(fact, earlier)
            and all(names.folded(name) in overlap for name in ends)
        )


AtGate = Callable[[], AbstractAsyncContextManager[object]]  # entered around each call of a model
_Q = TypeVar("_Q")
_R = TypeVar("_R", Extraction, Judged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The text of one reading: an episode, or one unit of a long text.

    is_whole    the request has the whole text, so that the extraction is checked at once
    units       the extractions of all units of a long text, which are joined without a call
    """

    request: ExtractionRequest
    is_whole: bool = True
    units: tuple[tuple[TextUnit, Extraction], ...] = ()


def extract_episode(
    extractor: Extractor, ontology: Ontology, reading: Reading, replies: Sequence[Reply]
) -> NextCall | Extraction:
    """Return the next call for an extraction, or the extraction, without its cost.

    Raises InvalidAnswer and Refused because of replies.
    """
    request = reading.request
    if reading.units:
        return _checked(joined(reading.units), request, ontology)
    call, extraction = replayed(steps_of(extractor, request), replies)
    if extraction is None:
        return NextCall("extract", request.episode.group, request.episode.sequence, cast("Any", call))
    return _checked(extraction, request, ontology) if reading.is_whole else extraction


def resolve_node(judge: Judge, request: QuestionRequest, replies: Sequence[Reply]) -> NextCall | Judged:
    """Return the next call for an episode's open nodes, or their answers, without the cost.

    With `pipeline.resolution = "per_node"` a request has one open node, with "batched" all of its episode.
    Raises InvalidAnswer and Refused because of replies.
    """
    call, judged = replayed(steps_of(judge, request), replies)
    if judged is None:
        return NextCall("judge", request.episode.group, request.episode.sequence, cast("Any", call))
    return cast("Judged", judged)


def _checked(extraction: Extraction, request: ExtractionRequest, ontology: Ontology) -> Extraction:
    """Return the extraction, the speaker first, without repetitions and parts that the text lacks.

    Each fact has a sentence of its own.
    """
    grounded = ground(speaker_first(extraction, request.episode), request)
    # The check for repetitions reads the words of the sentences, so they are replaced after it.
    return with_own_sentences(without_repeats(grounded, request, ontology), ontology)


@dataclass(frozen=True, slots=True)
class Stepping(Generic[_Q, _R]):
    """The loop of step, call, step.

    step    runs a step on a request and the replies so far
    answer  makes a call of the model
    """

    step: Callable[[_Q, Sequence[Reply]], Awaitable[NextCall | _R]]
    answer: Callable[[NextCall], Awaitable[Reply]]

    async def carry_out(self, request: _Q, at_gate: AtGate = nullcontext) -> _R:
        """Return the result of a request, with the cost of its calls.

        Raises as `Extractor.extract` does; an error has the cost of the calls before it, too.
        """
        replies: list[Reply] = []
        try:
            while isinstance(outcome := await self.step(request, replies), NextCall):
                async with at_gate():
                    replies.append(await self.answer(outcome))
        except (KgrayError, asyncio.CancelledError) as error:
            last = getattr(error, "spent", Cost())
            error.spent = total([*(reply.cost for reply in replies), last])  # type: ignore[union-attr]
            raise
        if not replies:
            return outcome
        return replace(outcome, **total([reply.cost for reply in replies])._asdict())


async def made_by(model: Any, answer_whole: Callable[[Any], Awaitable[Reply]], next_call: NextCall) -> Reply:  # noqa: ANN401
    """Return a model's reply to a call; answer_whole: answers a request of a model without prompts."""
    call = next_call.call
    reply: Reply = await (model.answer(call) if isinstance(call, ModelCall) else answer_whole(call))
    return reply


def local_extracting(extractor: Extractor, ontology: Ontology) -> Stepping[Reading, Extraction]:
    """Return the loop that extracts in this process."""

    async def step(reading: Reading, replies: Sequence[Reply]) -> NextCall | Extraction:
        return extract_episode(extractor, ontology, reading, replies)

    return Stepping(step, partial(made_by, extractor, extractor.extract))


def local_resolving(judge: Judge) -> Stepping[QuestionRequest, Judged]:
    """Return the loop that answers questions in this process."""

    async def step(request: QuestionRequest, replies: Sequence[Reply]) -> NextCall | Judged:
        return resolve_node(judge, request, replies)

    return Stepping(step, partial(made_by, judge, judge.judge))
