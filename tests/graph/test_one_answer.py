"""Promise 8: one wrong answer of a model harms one fact."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kgray.domain.records import Draft
from kgray.ports import Judged, Question, QuestionRequest, Store
from tests.graph.engine import Engine, iso, reading
from tests.graph.stores import SqliteStores
from tests.graph.test_promises import CORRECTIONS
from tests.graph.wrong_answers import (
    EPISODES,
    HISTORIES,
    FixedAnswers,
    Flip,
    Observed,
    Promise,
    draft_of,
    observed,
    unconfirmed,
)

Fresh = Callable[..., Engine]
EXAMPLES = int(os.environ.get("KGRAY_TEST_EXAMPLES", "6"))
MANY_EXAMPLES = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    """Yield a function that makes an engine with a group of its own, all in one store."""
    stores = SqliteStores(tmp_path_factory.mktemp("answers"))
    store = stores.open()
    yield lambda **options: Engine(store=store, prefix=stores.fresh(), **options)
    stores.close()


@pytest.fixture(scope="module")
def second_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Yield a second store, for groups of the same names."""
    stores = SqliteStores(tmp_path_factory.mktemp("beside"))
    yield stores.open()
    stores.close()


@pytest.fixture(scope="module", autouse=True)
def always_decide_ahead() -> Iterator[None]:
    """Have episodes decided ahead, although the models of these tests answer at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kgray.ingest.flight.AT_ONCE_S", (0.0, 0.0))
        yield


def outcome(fresh: Fresh, history: list[Any], flip: Flip | None = None) -> tuple[Observed, FixedAnswers]:
    """Return the outcome of the history with fixed answers, maybe with one replaced."""
    judge = FixedAnswers(flip)
    engine = fresh(judge=judge)
    engine.add(*(draft_of(number, episode) for number, episode in enumerate(history)))
    return observed(engine, judge), judge


@MANY_EXAMPLES
@given(history=HISTORIES, picks=st.lists(st.integers(0, 10_000), min_size=1, max_size=3))
def test_a_wrong_answer_affects_only_the_records_derived_from_it(
    fresh: Fresh, history: list[Any], picks: list[int]
) -> None:
    """Replacing any answer changes only the records derived from it."""
    observed_before, judge = outcome(fresh, history)
    flips = judge.flips()
    assume(flips)
    for flip in (flips[pick % len(flips)] for pick in picks):
        observed_after, _ = outcome(fresh, history, flip)
        promise = Promise(observed_before, observed_after, flip)
        assert promise.broken() == []


@MANY_EXAMPLES
@given(history=HISTORIES)
def test_an_unconfirmed_alias_applies_only_within_its_conversation(fresh: Fresh, history: list[Any]) -> None:
    """R14a: elsewhere an alias that rests on one answer is asked about again."""
    run, _ = outcome(fresh, history)
    drafts = [draft_of(number, episode) for number, episode in enumerate(history)]
    episodes = {n: (d.source, d.reference_time or 0, d.text) for n, d in enumerate(drafts, 1)}

    assert unconfirmed(run, episodes) == []


@MANY_EXAMPLES
@given(steps=st.lists(st.tuples(st.just("add"), EPISODES) | CORRECTIONS, min_size=4, max_size=9))
def test_loop_and_window_give_one_graph_for_free_relation_names(
    fresh: Fresh, second_store: Store, steps: list[Any]
) -> None:
    """Promise 1: plain loop and window agree, with statements that have evidence under several names."""
    plain = fresh(judge=FixedAnswers())
    windowed = Engine(store=second_store, prefix=plain.prefix, judge=FixedAnswers(), window=8)
    for engine in (plain, windowed):
        play(engine, steps)

    assert windowed.dump() == plain.dump()


def play(engine: Engine, steps: list[Any]) -> None:
    """Carry out steps; episodes between two corrections are ingested in one run."""
    waiting: list[Draft] = []
    for number, step in enumerate(steps):
        if step[0] == "add":
            waiting.append(draft_of(number, step[1]))
            continue
        engine.add(*waiting)
        waiting.clear()
        correct(engine, number, *step)
        engine.check()
    engine.add(*waiting)
    engine.check()


def correct(engine: Engine, number: int, kind: str, a: int, b: int) -> None:
    """Carry out one correction; entities are chosen by birth, which is the same in every group."""
    entities = [e.id for e in sorted(engine.view().all_entities(), key=lambda e: e.born)]
    if kind in {"retract", "remove"}:
        engine.ask(kind, episodes=(f"e{a % (number + 1)}",))
    elif kind == "undo":
        engine.ask(kind, target=a % (number + 1) + 1)
    elif kind == "merge" and len(entities) > 1:
        engine.ask(kind, entities=(entities[a % len(entities)], entities[b % len(entities)]))
    elif kind == "split" and entities:
        entity = entities[a % len(entities)]
        surfaces = sorted(engine.view().graph.entities[entity].surfaces)
        engine.ask(kind, entities=(entity,), surfaces=(surfaces[b % len(surfaces)],))


class Scripted:
    """A judge that compares by a table of (item, candidate), and notes which names it was asked about."""

    identity = "scripted-words"

    def __init__(self, words: Mapping[tuple[str, str], str] | None = None, *choices: int | None) -> None:
        self.words, self.choices = words or {}, list(choices)
        self.names: list[str] = []

    def key(self, request: QuestionRequest) -> str:
        """Return a key of its own for each episode."""
        return request.key(f"{self.identity} {request.episode.sequence}")

    async def judge(self, request: QuestionRequest) -> Judged:
        """Answer a comparison from the table, a question about a name with the next choice."""
        return Judged(answers=tuple(map(self._answer, request.questions)), calls=1)

    def _answer(self, question: Question) -> dict[str, Any]:
        if question.kind == "entity":
            self.names.append(question.item)
            return {"duplicate_of": self.choices.pop(0)}
        words = [self.words.get((question.item, c), "independent") for c in question.candidates]
        return {"answers": words}


def says(at: float, *sentences: str, **fields: Any) -> Draft:
    """Return an episode with a fact for each sentence "subject RELATION object extra"."""
    return reading(at, [], [_fact_of(sentence, **fields) for sentence in sentences])


def _fact_of(sentence: str, **fields: Any) -> dict[str, Any]:
    subject, relation, target, *extra = sentence.split()
    text = " ".join((subject, relation.lower().replace("_", " "), target, *extra))
    return {"source": subject, "relation": relation, "target": target, "fact": text, **fields}


def statements(engine: Engine) -> list[tuple[str, str, str]]:
    """Return (subject, relation, object) of every statement, sorted."""
    graph = engine.view().graph
    names = {id_: note.name for id_, note in graph.entities.items()}
    return sorted((names[s.subject], s.relation, names[str(s.object)]) for s in graph.statements.values())


def test_a_wrong_contradiction_does_not_make_a_relation_single_valued(tmp_path: Path) -> None:
    """R17a: one pair of things that Alice has exclude each other; all others hold side by side."""
    judge = Scripted({("Alice has dog", "Alice has cat"): "contradicts"})
    engine = Engine(tmp_path, judge=judge)
    for at, sentence in enumerate(
        ("Alice HAS cat", "Alice HAS dog", "Alice HAS owl", "Bob HAS car", "Bob HAS van")
    ):
        engine.add(says(at, sentence))

    assert engine.spans("HAS") == {
        "cat": [(0, 1)],
        "dog": [(1, None)],
        "owl": [(2, None)],
        "car": [(3, None)],
        "van": [(4, None)],
    }
    engine.check()


def test_a_wrong_same_affects_only_one_fact(tmp_path: Path) -> None:
    """R17c: "Bob fixed his bike" wrongly supports "Bob has a bike"; all other statements are unchanged."""
    judge = Scripted({("Bob fixed bike", "Bob has bike"): "same"})
    engine = Engine(tmp_path, judge=judge)
    sentences = [
        "Bob HAS bike",
        "Bob FIXED bike",
        "Bob HAS lamp",
        "Bob FIXED lamp",
        "Cara FIXED bike",
        "Cara HAS bike",
    ]
    for at, sentence in enumerate(sentences):
        engine.add(says(at, sentence))

    assert statements(engine) == [
        ("Bob", "FIXED", "lamp"),
        ("Bob", "HAS", "bike"),
        ("Bob", "HAS", "lamp"),
        ("Cara", "FIXED", "bike"),
        ("Cara", "HAS", "bike"),
    ]
    relations = engine.view().graph.relations
    assert [relations.folded(name).name for name in ("FIXED", "HAS")] == ["FIXED", "HAS"]
    engine.check()


@pytest.mark.parametrize(
    ("choices", "question_count"),
    [pytest.param([0, None, 1], 3, id="one-answer"), pytest.param([0, 0], 2, id="two-answers")],
)
def test_two_answers_confirm_an_alias_for_other_conversations(
    tmp_path: Path, choices: list[int | None], question_count: int
) -> None:
    """R14a: in its conversation one answer is enough, in others the model is asked until two agree."""
    judge = Scripted(None, *choices)
    engine = Engine(tmp_path, judge=judge)
    for at, (name, source) in enumerate(
        [
            ("Robert Smith", "a"),
            ("Bob Smith", "a"),
            ("Bob Smith", "a"),
            ("Bob Smith", "b"),
            ("Bob Smith", "c"),
        ]
    ):
        draft = reading(at, [{"name": name, "type": "Person"}], [], client_id=f"e{at}")
        engine.add(replace(draft, source=source))

    assert judge.names == ["Bob Smith"] * question_count
    assert len(engine.view().all_entities()) == (2 if None in choices else 1)
    engine.check()


@pytest.mark.parametrize("kind", ["ended", "happened"])
def test_a_wrong_end_ends_only_the_named_state(tmp_path: Path, kind: str) -> None:
    """R17b: no other state between these ends ends, no other variant, and no statement of the same name."""
    wrong = {("Alice quit club", "Alice chairs club part-time"): "ends"}
    engine = Engine(tmp_path, judge=Scripted(wrong))
    for at, sentence in enumerate(("Alice CHAIRS club", "Alice CHAIRS club part-time", "Alice COACHES club")):
        engine.add(says(at, sentence))
    engine.add(says(3, "Bob CHAIRS club"), says(4, "Alice QUIT club", kind=kind))

    facts = engine.view().all_facts()
    texts_and_ends = sorted((f.text, f.invalid_at is not None) for f in facts if f.relation != "QUIT")
    assert texts_and_ends == [
        ("Alice chairs club", False),
        ("Alice chairs club (part-time)", True),
        ("Alice coaches club", False),
        ("Bob chairs club", False),
    ]
    engine.check()


def test_an_end_under_a_listed_name_does_not_rename_the_state(tmp_path: Path) -> None:
    """R17b, R17c: "Alice sold the boat" ends that she sails it, which is not a sale."""
    engine = Engine(tmp_path, judge=Scripted({("Alice sold boat", "Alice sails boat"): "ends"}))
    engine.add(says(0, "Alice SAILS boat"), says(1, "Alice SOLD boat", kind="happened"))

    assert statements(engine) == [("Alice", "SAILS", "boat"), ("Alice", "SOLD", "boat")]
    assert engine.spans("SAILS") == {"boat": [(0, 1)]}
    engine.check()


def test_a_relation_name_that_ended_a_state_does_not_support_it(tmp_path: Path) -> None:
    """R17b: a repeated "Alice quit the club" as a state is no evidence that she coaches it."""
    engine = Engine(tmp_path, judge=Scripted({("Alice quit club", "Alice coaches club"): "ends"}))
    engine.add(says(0, "Alice COACHES club"), says(1, "Alice QUIT club"), says(2, "Alice QUIT club"))

    assert engine.spans("COACHES") == {"club": [(0, 1)]}
    assert engine.spans("QUIT") == {"club": [(1, None)]}
    engine.check()


def test_one_request_may_be_answered_same_and_ends(tmp_path: Path) -> None:
    """R17b, R17c: a second report of an event under another name ends the state like the first report."""
    words = {
        ("Alice quit club", "Alice coaches club"): "ends",
        ("Alice quit club", "Alice left club"): "same",
    }
    engine = Engine(tmp_path, judge=Scripted(words))
    engine.add(says(0, "Alice COACHES club"))
    engine.add(
        says(1, "Alice LEFT club", kind="happened"),
        says(2, "Alice QUIT club", kind="happened", valid_at=iso(1)),
    )

    assert statements(engine) == [("Alice", "COACHES", "club"), ("Alice", "LEFT", "club")]
    assert engine.spans("COACHES") == {"club": [(0, 1)]}
    engine.check()


def test_evidence_of_an_end_keeps_its_ordinal_whatever_the_other_answers(tmp_path: Path) -> None:
    """Promise 8: the second end of an episode has one ordinal, with the first end and without it."""
    second = {("Bob quit club", "Bob coaches club"): "ends"}
    places = []
    for number, words in enumerate(({("Alice quit club", "Alice coaches club"): "ends"} | second, second)):
        engine = Engine(tmp_path / str(number), judge=Scripted(words))
        engine.add(says(0, "Alice COACHES club", "Bob COACHES club"))
        engine.add(says(1, "Alice QUIT club", "Bob QUIT club", kind="happened"))
        evidence = engine.view().records.evidence
        places.append([e.ordinal for e in evidence if (e.kind, e.text) == ("ended", "Bob quit club")])
        engine.check()

    assert places[0] == places[1] != []
