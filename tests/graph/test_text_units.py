"""A long text is read in units and merged under one episode, despite any failure on the way (R18, R24)."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from bench.plain_loop import Loop
from kgray.domain import times
from kgray.domain.records import Draft, Extraction
from kgray.errors import Cost, InvalidAnswer, Unavailable
from kgray.ingest.runner import Runner
from kgray.ingest.steps import UnitSize
from kgray.models.prompting.replies import parse_extraction
from kgray.ports import ExtractionRequest
from kgray.storage.ledger import failures, retry_failed
from tests import make
from tests.graph.engine import GROUP, Engine, day
from tests.waiting import HANGS_S

SENTENCE = re.compile(r"(?<!\S)([A-Z]\w+ [A-Z]\w+) knows ([A-Z]\w+ [A-Z]\w+)\.")
FIRST = ["Ann", "Bob", "Cid", "Dana", "Emil", "Fay"]
LAST = ["Lee", "Fox", "Ray", "Moss", "Nash"]
NAMES = [f"{first} {last}" for last in LAST for first in FIRST]
SIZE = UnitSize(40, 10)
TEXT = " ".join(f"{subject} knows {target}." for subject, target in pairwise(NAMES))


class SentenceReader:
    """Reads whole sentences, one call each unit; `faults`: errors by a word, each raised once or always."""

    identity = "sentences"

    def __init__(self, **faults: list[Exception]) -> None:
        self.faults = faults
        self.read: list[str] = []
        self.max_calls = self._calls = 0  # calls at the same time

    async def extract(self, request: ExtractionRequest) -> Extraction:
        self.read.append(request.episode.text)
        self._calls += 1
        self.max_calls = max(self.max_calls, self._calls)
        await asyncio.sleep(0)
        self._calls -= 1
        for word, errors in self.faults.items():
            if word in request.episode.text and errors:
                error = errors.pop(0)
                error.spent = Cost(1, 5, 1)  # type: ignore[attr-defined]
                raise error
        facts = [
            {"source": a, "target": b, "relation": "KNOWS", "fact": f"{a} knows {b}"}
            for a, b in SENTENCE.findall(request.episode.text)
        ]
        extraction = parse_extraction({"entities": [], "facts": facts}, request.episode)
        return replace(extraction, model=self.identity, calls=1, prompt_tokens=10, completion_tokens=2)


def engine(folder: Path, reader: SentenceReader, *, window: int, units: UnitSize | None = SIZE) -> Engine:
    built = Engine(folder, extractor=reader)
    built.parts = replace(built.parts, units=units, window=max(1, window), streams=4, patience_s=HANGS_S)
    built.loop = Runner(built.parts) if window else Loop(built.parts)
    return built


def text_of(client_id: str, text: str = TEXT, at: int = 1) -> Draft:
    return make.draft(text, at=day(at), group=GROUP, source="notes", client_id=client_id)


def costs(built: Engine) -> Cost:
    counts = built.store.counts(GROUP)[GROUP]
    return Cost(counts.calls, counts.prompt_tokens, counts.completion_tokens)


@pytest.mark.parametrize("window", [0, 1, 8])
def test_reading_a_text_in_units_gives_the_same_graph_as_reading_it_at_once(
    tmp_path: Path, window: int
) -> None:
    """Every sentence is complete in a unit; the first mentions keep their positions in the text."""
    single_reader, reader = SentenceReader(), SentenceReader()
    at_once = engine(tmp_path / "whole", single_reader, window=0, units=None)
    in_units = engine(tmp_path / "units", reader, window=window)
    for each in (at_once, in_units):
        each.add(text_of("a"), text_of("b", "Ann Lee knows Zed Zorn.", at=2))

    assert in_units.dump() == at_once.dump()
    assert len(single_reader.read) == 2
    assert len(reader.read) == len(set(reader.read)) > 5
    assert costs(in_units) == Cost(len(reader.read), 10 * len(reader.read), 2 * len(reader.read))
    spans = [[m.span for m in each.view().records.mentions] for each in (at_once, in_units)]
    assert spans[0] == spans[1]
    assert reader.max_calls <= 4 or not window


@pytest.mark.parametrize("window", [0, 8])
def test_an_invalid_answer_about_a_unit_fails_its_episode(tmp_path: Path, window: int) -> None:
    reader = SentenceReader(Moss=[InvalidAnswer("no usable answer", raw="{")])
    built = engine(tmp_path, reader, window=window)
    built.add(text_of("a"), text_of("b", "Zed Zorn knows Ann Lee.", at=2))

    (failed,) = failures(built.store, GROUP)
    assert failed.episode.client_id == "a"
    assert failed.failure.kind == "InvalidAnswer"
    assert re.fullmatch(
        r"text unit \d of \d, characters \d+ to \d+: no usable answer", failed.failure.message
    )
    assert failed.failure.raw == "{"
    assert len(built.view().all_facts()) == 1
    answered = len(reader.read) - 1  # calls that were cancelled give no cost
    assert costs(built).calls in range(2, answered + 2)

    retry_failed(built.store, GROUP, ["a"], now=times.now())
    built.run()
    assert len(built.view().all_facts()) == len(NAMES)


@pytest.mark.parametrize("window", [0, 8])
def test_after_an_outage_only_the_missing_units_are_read(tmp_path: Path, window: int) -> None:
    reader = SentenceReader(Moss=[Unavailable("out of reach"), Unavailable("out of reach")])
    built = engine(tmp_path, reader, window=window)
    built.add(text_of("a"))

    repeated = [text for text in set(reader.read) if reader.read.count(text) > 1]
    assert repeated
    assert all("Moss" in text for text in repeated)
    good = len(reader.read) - 2
    assert costs(built) == Cost(good + 2, 10 * good + 10, 2 * good + 2)
    assert len(built.view().all_facts()) == len(NAMES) - 1


def test_lines_about_dropped_items_are_counted(tmp_path: Path) -> None:
    """They are in the totals, and name their unit."""
    reader = SentenceReader()
    built = engine(tmp_path, reader, window=8)
    built.accept(text_of("a", f"{TEXT} Ann Lee knows Ann Lee."))
    totals = built.run()

    assert totals.left_out == 1
    assert len(built.view().all_facts()) == len(NAMES) - 1


def test_a_late_unit_of_the_next_episode_is_sent_twice(tmp_path: Path) -> None:
    """A call that hangs delays the commit by `late_s`; no unit that has its extraction is read again."""
    reader = SentenceReader()
    hangs = asyncio.Event()

    class Hanging(SentenceReader):
        async def extract(self, request: ExtractionRequest) -> Extraction:
            first = request.episode.text not in reader.read
            extraction = await reader.extract(request)
            if first and "Moss" in request.episode.text and not hangs.is_set():
                hangs.set()
                await asyncio.sleep(HANGS_S)
            return extraction

    built = engine(tmp_path, Hanging(), window=4)
    built.parts = replace(built.parts, late_s=0.05)
    built.loop = Runner(built.parts)
    built.add(text_of("a"))

    (repeated,) = {text for text in reader.read if reader.read.count(text) > 1}
    assert "Moss" in repeated
    assert len(built.view().all_facts()) == len(NAMES) - 1
