"""The histories among the worked cases of docs/semantics.md, on every store."""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import kgray
from kgray.domain import times
from kgray.domain.records import Draft
from kgray.graph.stored import StoredView
from tests import worked_cases
from tests.graph.engine import Engine, in_days, iso, triples, works
from tests.graph.stores import Stores, prefix
from tests.worked_cases import History, Message

Episode = tuple[int, list[Message]]  # the reference time, and the evidence
# Each organisation has (start, end, number of episodes that support the span), sorted by `repr`.
Spans = dict[str, list[tuple[float | None, float | None, int]]]


def played() -> dict[str, list[Episode]]:
    """Return the episodes of every case as given; reversed too, where the order of arrival does not count."""
    plays: dict[str, list[Episode]] = {}
    for case in worked_cases.histories():
        messages = list(case.messages)
        if case.arrival == "one episode":
            plays[f"{case.case}-given"] = [(messages[0].day, messages)]
            continue
        plays[f"{case.case}-given"] = [(message.day, [message]) for message in messages]
        if case.arrival == "any order" and len(messages) > 1:
            plays[f"{case.case}-reversed"] = plays[f"{case.case}-given"][::-1]
    return plays


def expected() -> dict[str, Spans]:
    """Return the spans of every play."""
    cases = {case.case: case for case in worked_cases.histories()}
    return {play: spans_of(cases[play.rpartition("-")[0]]) for play in played()}


def spans_of(case: History) -> Spans:
    """Return the spans of a case."""
    return {name: sorted(spans, key=repr) for name, spans in case.spans.items()}


def triple(message: Message) -> dict[str, Any]:
    """Return a message as a triple about Alice; the present tense states no start."""
    fields: dict[str, Any] = {"text": message.sentence} if message.sentence else {}
    if message.kind == "denied":
        return works(message.name, **fields, denied=True)
    if message.kind == "ended":
        fields["valid_at"] = None
    elif message.start != message.day:
        fields["valid_at"] = iso(message.start)  # type: ignore[arg-type]
    if message.end is not None:
        fields["invalid_at"] = iso(message.end)
    return works(message.name, **fields)


def drafts(play: str, episodes: list[Episode]) -> list[Draft]:
    """Return the episodes of a play, in a group of their own."""
    return [triples(at, *map(triple, messages), group=play) for at, messages in episodes]


def stored_spans(engine: Engine, group: str) -> Spans:
    """Return the spans of the stored facts by organisation."""
    view = StoredView(engine.store, engine.named(group))
    names = {entity.id: entity.name for entity in engine.view(group=group).all_entities()}
    spans: Spans = {}
    for fact in view.facts_at(list(names), None, None):
        span = in_days(fact.valid_at), in_days(fact.invalid_at), len(fact.episodes)
        insort(spans.setdefault(names[str(fact.target)], []), span, key=repr)
    return spans


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Return the plain loop with every play, added one episode at a time and checked after each."""
    engine = Engine(tmp_path_factory.mktemp("one-by-one"), prefix=prefix())
    spans = expected()
    for play, episodes in played().items():
        for draft in drafts(play, episodes):
            engine.add(draft)
            engine.check(play)
        assert stored_spans(engine, play) == spans[play], play
    return engine


@pytest.mark.parametrize(
    ("stores", "window", "step"),
    [
        pytest.param("sqlite", 0, 1, id="sqlite-plain-loop"),
        pytest.param("sqlite", 8, 1, id="sqlite-windowed"),
        pytest.param(
            "neo4j", 8, 4, id="neo4j-windowed-sample", marks=[pytest.mark.neo4j, pytest.mark.seldom_on_neo4j]
        ),
        pytest.param("neo4j", 8, 1, id="neo4j-windowed", marks=[pytest.mark.neo4j, pytest.mark.slow]),
    ],
    indirect=["stores"],
)
def test_a_history_gives_its_spans_whatever_the_order_of_arrival(
    stores: Stores, one_by_one: Engine, window: int, step: int
) -> None:
    """R13, R20: many cases at once, each in its group; the graph is that of one episode at a time.

    step: 1 = every case; n = each n-th case
    """
    plays = dict(list(played().items())[::step])
    stores.prefix = one_by_one.prefix  # the ids of a graph are made of its group's name
    engine = Engine(store=stores.open(), prefix=stores.prefix, window=window)
    engine.accept(*(draft for play, episodes in plays.items() for draft in drafts(play, episodes)))
    engine.run()

    spans = expected()
    assert {play: stored_spans(engine, play) for play in plays} == {play: spans[play] for play in plays}
    for play in plays:
        if window and not engine.store.remote:
            engine.check(play)
        assert one_by_one.dump(group=play) == engine.dump(group=play), play


PERSON = "Tom Okafor"


def scripted_reply(messages: list[Message]) -> tuple[str, dict[str, Any]]:
    """Return a text about a person with a full name, and the reply of a reader that is always right."""
    sentences, facts = [], []
    for message in messages:
        fields = triple(message)
        kind = {"kind": "denied"} if fields.pop("denied", False) else {}
        words = f"{PERSON} works at {message.name}"
        dates = [str(fields[key])[:10] for key in ("valid_at", "invalid_at") if fields.get(key)]
        sentences.append(" on ".join((words, *dates)))
        facts.append(fields | kind | {"source": PERSON, "fact": words})
    names = dict.fromkeys((PERSON, *(message.name for message in messages)))
    return ". ".join(sentences), {"entities": [{"name": name} for name in names], "facts": facts}


@pytest.mark.parametrize("speaker", [None, PERSON, "Nina Petrova"], ids=["none", "himself", "another"])
def test_a_history_in_messages_needs_only_scripted_extractions(tmp_path: Path, speaker: str | None) -> None:
    """All cases except those of variants, which need a judge; no other case does."""
    variants = {case.case for case in worked_cases.histories() if case.names_variants}
    plays = {play: its for play, its in played().items() if play.rpartition("-")[0] not in variants}
    script, rows = [], []
    for play, episodes in plays.items():
        for number, (at, messages) in enumerate(episodes):
            text, reply = scripted_reply(messages)
            script.append({"episode": f"{play}-{number}", "extraction": reply})
            row = {"id": f"{play}-{number}", "group": play, "text": text, "at": iso(at)}
            rows.append(row if speaker is None else row | {"speaker": speaker})
    path = tmp_path / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in script))

    with kgray.open(
        tmp_path / "data", create=True, settings={"model_backend": "scripted", "model_script": str(path)}
    ) as memory:
        report = memory.add_many(rows)
        assert (report.committed, report.failed) == (len(rows), 0)
        spans = {play: dumped_spans(memory.dump(group=play)) for play in plays}

    assert spans == {play: its for play, its in expected().items() if play in plays}


def dumped_spans(dump: Iterable[str]) -> Spans:
    """Return the spans of the facts of a dump."""
    rows = [json.loads(line) for line in dump]
    names = {row["id"]: row["name"] for row in rows if row["type"] == "entity"}
    spans: Spans = {}
    for fact in (row for row in rows if row["type"] == "fact"):
        start, end = (at and in_days(times.parse(at)[0]) for at in (fact["valid_at"], fact["invalid_at"]))
        span = start, end, len(fact["episodes"])
        insort(spans.setdefault(names[fact["target"]], []), span, key=repr)
    return spans
