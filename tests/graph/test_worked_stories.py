"""The worked cases of docs/semantics.md that are no histories: h-k, n, w-z; the page names each test.

The plain loop and the windowed runner play each case on every store; h, x, y and z reversed too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from kgray.domain import times
from kgray.domain.records import Draft
from kgray.graph.stored import StoredView
from kgray.models.scripted import ScriptedExtractor, ScriptedJudge
from kgray.storage import ledger
from kgray.storage.ledger import dumped_episodes, failures, pending, previous, retry_failed
from tests import make
from tests.graph.by_hand import worded
from tests.graph.engine import GROUP, Engine, day, engine_on, in_group, reading, triples, works
from tests.graph.stores import Stores, stores_of

WINDOWS = pytest.mark.parametrize("window", [0, 8], ids=["plain-loop", "windowed"])


# The plain loop is the reference for runs; servers use the windowed runner.
MANNERS = [
    pytest.param(("sqlite", 0), id="plain-loop-sqlite"),
    pytest.param(("sqlite", 8), id="windowed-sqlite"),
    pytest.param(("neo4j", 8), id="windowed-neo4j", marks=[pytest.mark.neo4j, pytest.mark.seldom_on_neo4j]),
]


@pytest.fixture(params=MANNERS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Yield an engine of each manner, with no group yet."""
    kind, window = request.param
    stores = stores_of(kind, request, tmp_path)
    yield engine_on(stores, window=window)
    stores.close()


def scripted(engine: Engine, tmp_path: Path, *entries: dict[str, Any]) -> Engine:
    """Let the engine's reader and judge answer from a script."""
    script = tmp_path / "script.jsonl"
    script.write_text("".join(json.dumps(e) + "\n" for e in entries))
    engine.parts = replace(engine.parts, extractor=ScriptedExtractor(script), judge=ScriptedJudge(script))
    engine.loop = type(engine.loop)(engine.parts)
    return engine


def message(client_id: str, at: float, text: str, *, group: str = GROUP, source: str = "default") -> Draft:
    """Return a text draft."""
    return make.draft(text, at=day(at), group=group, source=source, client_id=client_id)


def extraction(client_id: str, entities: list[str], *facts: dict[str, Any]) -> dict[str, Any]:
    """Return a script's line for an episode."""
    listed = [{"name": e} for e in entities]
    return {"episode": client_id, "extraction": {"entities": listed, "facts": list(facts)}}


@pytest.mark.parametrize("kind", ["remove", "retract"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["given", "reversed"])
def test_h_removing_the_successor_reopens_the_first(
    engine: Engine, order: tuple[int, int], kind: str
) -> None:
    """h: removed or retracted; after a retraction `known_at` before it still gives a."""
    drafts = [triples(0, works("Acme"), client_id="a"), triples(60, works("Beta"), client_id="b")]
    engine.add(*(drafts[i] for i in order))
    moment_before, dumped = engine.last_recorded(), engine.dump()
    result = engine.ask(kind, episodes=("b",))
    counts = {"episodes": 1, "statements": 1, "facts_closed": 1, "facts_reopened": 1, "entities": 1}
    counts["after"] = 2
    assert result == counts
    assert engine.spans() == {"Acme": [(0, None)]}
    assert (engine.dump(moment_before) == dumped) is (kind == "retract")
    engine.check()


def test_i_a_repeated_episode_is_stored_once(engine: Engine) -> None:
    """i: 1 episode, 2 mentions, 1 fact."""
    for _ in range(3):
        engine.add(triples(0, works("Acme")))
    kinds = [json.loads(line)["type"] for line in engine.dump()]
    assert (kinds.count("episode"), kinds.count("mention"), kinds.count("fact")) == (1, 2, 1)


def test_j_only_the_refused_episode_fails_and_a_retry_takes_a_new_sequence(
    engine: Engine, tmp_path: Path
) -> None:
    """j: 2 committed, 1 failed with its reason; the retry equals the plain loop over the final sequences."""
    fact = {"source": 0, "target": 1, "relation": "WORKS_AT", "fact": "Alice works at {}"}
    lines = [
        extraction(c, ["Alice", name], fact | {"fact": fact["fact"].format(name)})  # type: ignore[attr-defined]
        for c, name in (("a", "Acme"), ("b", "Beta"), ("c", "Gama"))
    ]
    engine = scripted(engine, tmp_path, {"episode": "b", "error": "refused", "times": 1}, *lines)
    messages = (("a", 0, "Acme"), ("b", 60, "Beta"), ("c", 90, "Gama"))
    engine.add(*(message(c, at, f"Alice works at {name}") for c, at, name in messages))
    counts = engine.store.counts(engine.named())[engine.named()]
    assert (counts.committed, counts.failed) == (2, 1)
    [failed] = failures(engine.store, engine.named())
    assert (failed.episode.client_id, failed.failure.kind, failed.failure.attempts) == ("b", "Refused", 1)
    assert engine.spans() == {"Acme": [(0, 90)], "Gama": [(90, None)]}
    moment_before, dumped = engine.last_recorded(), engine.dump()

    assert retry_failed(engine.store, engine.named(), (), now=times.now()) == 1
    engine.run()

    assert engine.spans() == {"Acme": [(0, 60)], "Beta": [(60, 90)], "Gama": [(90, None)]}
    assert [e.sequence for e in dumped_episodes(engine.store, engine.named())] == [1, 3, 4]
    assert engine.dump(moment_before) == dumped
    engine.check()


@WINDOWS
def test_k_a_commit_that_fails_at_its_last_statement_stores_nothing(tmp_path: Path, window: int) -> None:
    """k, R23, R24: no row of the commit is stored; the runner holds the group; a second run completes it."""
    engine = Engine(tmp_path, window=window)
    engine.add(triples(0, works("Acme")))
    dumped = engine.dump()
    with apsw.Connection(str(tmp_path / "kgray.sqlite3")) as connection:
        connection.execute(
            "CREATE TRIGGER broken BEFORE UPDATE OF state ON episodes WHEN new.state = 2 "
            "BEGIN SELECT RAISE(ABORT, 'the disk gave way'); END"
        )
    engine.accept(triples(60, works("Beta")))
    with nullcontext() if window else pytest.raises(apsw.ConstraintError, match="the disk gave way"):
        engine.run()
    assert list(ledger.held(engine.store)) == ([engine.named()] if window else [])
    assert engine.dump() == dumped
    with apsw.Connection(str(tmp_path / "kgray.sqlite3")) as connection:
        connection.execute("DROP TRIGGER broken")
    ledger.end_pause(engine.store, None)
    engine.run()
    assert engine.spans() == {"Acme": [(0, 60)], "Beta": [(60, None)]}
    engine.check()


def test_n_known_at_excludes_later_records(engine: Engine) -> None:
    """n: `known_at` before Beta was recorded, `as_of` today: Acme."""
    engine.add(triples(0, works("Acme")))
    moment_before = engine.last_recorded()
    engine.add(triples(60, works("Beta")))
    earlier_view, current_view = engine.view(moment_before), engine.view()
    today = day(100)
    assert [f.text for f in earlier_view.all_facts() if f.holds_at(today)] == ["Alice works at Acme"]
    assert [f.text for f in current_view.all_facts() if f.holds_at(today)] == ["Alice works at Beta"]


def test_w_reports_of_two_years_and_equal_texts_of_two_groups_are_separate(engine: Engine) -> None:
    """w: two entities; no shared node, no shared fact, no hit across."""
    fact = {"target": "Finance", "relation": "PART_OF", "fact": "The report is part of Finance"}
    reports = [
        reading(at, [], [fact | {"source": name}], client_id=name)
        for at, name in ((0, "Annual report 2024"), (1, "Annual report 2025"))
    ]
    engine.add(*reports)
    names = [e.name for e in engine.view().all_entities()]
    assert sorted(names) == ["Annual report 2024", "Annual report 2025", "Finance"]

    engine.add(*(in_group(r, "other") for r in reports))
    ids = {e.id for e in engine.view().all_entities()}
    entities_elsewhere = {e.id for e in engine.view(group="other").all_entities()}
    facts, other_facts = ({f.id for f in engine.view(group=g).all_facts()} for g in (GROUP, "other"))
    assert (ids & entities_elsewhere, facts & other_facts) == (set(), set())
    mine, theirs = engine.named(), engine.named("other")
    result = worded(engine.store, "entity", "annual report", theirs)
    assert {e.id for e in StoredView(engine.store, theirs).entities(result)} <= entities_elsewhere
    assert StoredView(engine.store, mine).entities(sorted(entities_elsewhere)) == []
    assert StoredView(engine.store, mine).facts(sorted(other_facts)) == []


@pytest.mark.parametrize(
    "order",
    [(0, 1, 2), (2, 1, 0)],
    ids=["given", "reversed"],
)
def test_x_three_merged_names_can_be_split(engine: Engine, order: tuple[int, ...]) -> None:
    """x: one entity with aliases; then the earlier state."""
    likes = [("Bob Smith", "tea"), ("Robert Smith", "coffee"), ("B. Smith", "cocoa")]
    for number in order:
        name, drink = likes[number]
        engine.add(triples(number, {"source": name, "relation": "LIKES", "target": drink}))
    dumped = engine.dump()
    ids = {e.name: e.id for e in engine.view().all_entities()}
    engine.ask("merge", entities=(ids["Bob Smith"], ids["Robert Smith"]))
    answer = engine.ask("merge", entities=(ids["Bob Smith"], ids["B. Smith"]))["entity"]
    [entity] = [e for e in engine.view().all_entities() if e.id == answer]
    assert {entity.name, *entity.aliases} == {"Bob Smith", "Robert Smith", "B. Smith"}
    assert entity.id == ids[likes[order[0]][0]]
    assert len(engine.view().graph.by_ends) == 3
    engine.check()
    for name in [likes[i][0] for i in order[1:]]:
        engine.ask("split", entities=(answer,), surfaces=(name,))
        engine.check()
    assert [line for line in engine.dump() if '"type":"merge"' not in line] == dumped


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["given", "reversed"])
def test_y_many_valued_relations_and_values(engine: Engine, order: tuple[int, int]) -> None:
    """y: both likes hold; a price ends the previous price, and no entity is named "100"."""
    likes = [
        triples(a, {"source": "Alice", "relation": "LIKES", "target": t})
        for a, t in ((0, "coffee"), (1, "tea"))
    ]
    costs = [
        triples(a, {"source": "Lamp", "relation": "COSTS", "target": v}) for a, v in ((0, 100), (60, 80))
    ]
    engine.add(*(likes[i] for i in order), *(costs[i] for i in order))
    assert engine.spans("LIKES") == {"coffee": [(0, None)], "tea": [(1, None)]}
    assert engine.spans("COSTS") == {"100": [(0, 60)], "80": [(60, None)]}
    assert sorted(e.name for e in engine.view().all_entities()) == ["Alice", "Lamp", "coffee", "tea"]
    engine.check()


@pytest.mark.parametrize("late_first", [False, True], ids=["given", "reversed"])
@pytest.mark.seldom_on_neo4j
def test_z_the_previous_context_of_a_late_message(stores: Stores, late_first: bool) -> None:
    """z, R22: at most n messages of its group and source, with smaller sequences and no later time."""
    engine = engine_on(stores)
    chat = [message(f"m{n}", n * 10, f"chat {n}") for n in range(8)]
    engine.accept(*(reversed(chat) if late_first else chat))
    engine.accept(
        message("x", 35, "other source", source="other"), message("y", 35, "other group", group="h")
    )
    engine.accept(message("late", 45, "late"))
    late = pending(engine.store, engine.named(), 100)[-1]
    assert late.client_id == "late"  # type: ignore[union-attr]
    context_episodes = previous(engine.store, [late], 4)[late.sequence]  # type: ignore[arg-type]
    assert [e.client_id for e in context_episodes] == ["m1", "m2", "m3", "m4"]
