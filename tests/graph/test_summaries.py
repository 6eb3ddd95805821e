"""Summaries of entities: composed of the newest open facts, stored at each commit, equal to a rebuild."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgray.domain.graph import Fact
from kgray.graph import group, texts
from kgray.graph.group import GroupGraph
from kgray.graph.repair import differences, repaired
from kgray.graph.stored import StoredView, records_of
from kgray.graph.texts import LENGTH, NEWEST, newest_facts, summaries_of, summarised, summary_of
from kgray.ports import Patch, RowChanges
from kgray.schema import kinds
from kgray.timeline import Claim, SpanChange
from tests.graph.engine import Engine, WildJudge, day, engine_on, iso, reading, triples, works
from tests.graph.stores import SqliteStores, stores_of
from tests.graph.test_promises import CORRECTIONS, EPISODES, SLOW, carry_out

REMOVALS = st.tuples(st.just("remove"), st.integers(0, 30), st.integers(0, 30))
HISTORIES = st.lists(EPISODES | EPISODES | CORRECTIONS | REMOVALS, min_size=2, max_size=9)
KINDS = [pytest.param("sqlite", id="sqlite"), pytest.param("neo4j", id="neo4j", marks=pytest.mark.neo4j)]


def likes(name: str, **fields: Any) -> dict[str, Any]:
    """Return the triple "Alice likes <name>"."""
    return {"source": "Alice", "relation": "LIKES", "target": name, **fields}


def stored(engine: Engine) -> dict[str, str]:
    """Return name -> summary, of all stored entities."""
    rows = engine.store.rows(kinds.ENTITIES.all, engine.named())
    return {row.name: row.summary for row in rows}


def ids(engine: Engine) -> dict[str, str]:
    """Return name -> id of the stored entities."""
    return {row.name: row.id for row in engine.store.rows(kinds.ENTITIES.all, engine.named())}


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Yield an engine on each store, with no group yet."""
    stores = stores_of(request.param, request, tmp_path)
    yield engine_on(stores)
    stores.close()


@pytest.mark.seldom_on_neo4j
def test_a_summary_has_the_newest_open_facts_and_follows_ends_merges_and_removals(engine: Engine) -> None:
    engine.add(triples(1, works("Acme"), client_id="a"))
    assert stored(engine) == {"Alice": "Alice works at Acme.", "Acme": "Alice works at Acme."}
    engine.add(triples(2, works("Beta"), client_id="b"), triples(3, likes("tea"), client_id="c"))
    assert stored(engine) == {
        "Alice": "Alice likes tea. Alice works at Beta.",
        "Acme": "",
        "Beta": "Alice works at Beta.",
        "tea": "Alice likes tea.",
    }
    engine.check()

    engine.ask("remove", episodes=("b",))
    assert stored(engine)["Alice"] == "Alice likes tea. Alice works at Acme."
    assert "Beta" not in repr(stored(engine))
    engine.check()

    engine.add(reading(4, [], [{"source": "Alice Smith", "relation": "LIKES", "target": "chess"}]))
    pair = (ids(engine)["Alice"], ids(engine)["Alice Smith"])
    merged = engine.ask("merge", entities=pair)
    result = stored(engine)
    assert result["Alice Smith"] == "Alice Smith likes chess. Alice likes tea. Alice works at Acme."
    assert (result["chess"], result["tea"]) == ("Alice Smith likes chess.", "Alice likes tea.")
    engine.check()
    assert differences(engine.store, engine.named()) == []
    engine.ask("undo", target=merged["sequence"])
    result = stored(engine)
    assert (result["chess"], result["tea"]) == ("Alice Smith likes chess.", "Alice likes tea.")
    engine.check()
    assert differences(engine.store, engine.named()) == []


@pytest.mark.seldom_on_neo4j
def test_a_merge_does_not_change_summaries_of_neighbours(engine: Engine) -> None:
    """A merge derives only the facts of the merged entities; the store has the facts of their neighbours."""
    for number in range(NEWEST + 2):
        engine.add(triples(number, {"source": f"P{number}", "relation": "LIKES", "target": "tea"}))
    engine.add(triples(9, likes("tea")))
    # The text of this fact is composed of names, because its sentence is in the first person.
    composed = {"source": "Ally", "relation": "LIKES", "target": "jam", "text": "I like jam"}
    engine.add(triples(10, composed))
    assert stored(engine)["jam"] == "Ally likes jam."
    names = ids(engine)
    engine.ask("merge", entities=(names["Ally"], names["Alice"]))
    result = stored(engine)
    assert result["tea"] == "Alice likes tea. P6 likes tea. P5 likes tea. P4 likes tea. P3 likes tea."
    assert result["jam"] == "Alice likes jam."
    engine.check()
    assert differences(engine.store, engine.named()) == []


def test_a_summary_of_a_past_moment_has_the_facts_true_and_known_then(engine: Engine) -> None:
    engine.add(triples(1, works("Acme")))
    known_at = engine.last_recorded()
    engine.add(triples(5, works("Beta")), triples(6, likes("tea")))
    view = StoredView(engine.store, engine.named())
    (alice,) = view.entities([ids(engine)["Alice"]])
    assert alice.summary == "Alice likes tea. Alice works at Beta."
    summaries = [summarised(view, [alice], at)[0].summary for at in (None, day(3), day(0))]
    assert summaries == [alice.summary, "Alice works at Acme.", ""]
    (entities_before,) = engine.view(known_at).entities([alice.id])
    assert entities_before.summary == "Alice works at Acme."


def test_a_future_start_is_stated_with_its_date_and_a_future_end_excludes_the_fact(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.add(triples(1, likes("tea", valid_at="2990-03-01"), likes("jam", invalid_at="2990-03-01")))
    assert stored(engine) == {
        "Alice": "Alice likes tea (from 2990-03-01).",
        "tea": "Alice likes tea (from 2990-03-01).",
        "jam": "",
    }
    engine.check()


def fact(number: int, text: str, **fields: Any) -> Fact:
    """Return an open fact that was learned at a moment."""
    named = {"id": f"f{number:03}", "statement": f"s{number}", "source": "a", "relation": "R", "text": text}
    return Fact(**named, created_at=number, **fields)


def test_a_summary_has_five_distinct_facts_as_whole_sentences() -> None:
    facts = [fact(n, f"N{n} is so") for n in range(9)]
    assert summary_of(facts) == "N8 is so. N7 is so. N6 is so. N5 is so. N4 is so."
    assert summary_of([fact(1, "A is B."), fact(2, "A is B"), fact(3, "Is A B?")]) == "Is A B? A is B."
    long = "x" * (LENGTH - 20)
    assert summary_of([fact(2, long), fact(1, "This would be too much")]) == f"{long}."
    cut = summary_of([fact(1, "y" * 2 * LENGTH)])
    assert (len(cut), cut[-1]) == (LENGTH, "\u2026")
    assert summary_of([fact(1, "A is B", invalid_at=7)]) == ""
    assert summary_of([fact(1, "A is B", invalid_at=7)], as_of=6) == "A is B."
    of_equal_age = [fact(4, "B"), Fact(**{**_fields(fact(4, "A")), "id": "f003"})]
    assert summary_of(of_equal_age) == "A. B."
    assert summaries_of([fact(1, "A is B", target="b")]) == {"a": "A is B.", "b": "A is B."}


def _fields(fact: Fact) -> dict[str, Any]:
    return {name: getattr(fact, name) for name in fact.__slots__}


def test_an_entity_is_rewritten_only_if_its_summary_changes(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    for number in range(NEWEST + 1):
        engine.add(triples(number, likes(f"thing {number}"), client_id=f"e{number}"))
    names = ids(engine)
    written: list[dict[str, str]] = []
    apply = engine.store.apply

    def noting(changes: Any) -> Any:
        written.extend(
            {row.name: row.summary for row in change.puts.get(kinds.ENTITIES, ())} for change in changes
        )
        return apply(changes)

    engine.store.apply = noting  # type: ignore[method-assign]
    # Support for an old fact, then the end of a fact that the summary had no more.
    engine.add(triples(7, likes("thing 3")))
    engine.loop.committer.forget(engine.named())  # a process that starts has no text in memory
    engine.add(triples(8, likes("thing 4")))
    engine.add(triples(9, likes("thing 0", valid_at=None, invalid_at=iso(9))))
    assert [entry for entry in written if entry] == [{"thing 0": ""}]
    assert ids(engine) == names
    engine.check()


def test_a_wrong_summary_is_found_and_repaired(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.add(triples(1, works("Acme")))
    name, store = engine.named(), engine.store
    row = (ids(engine)["Alice"], "Alice is a bee.")
    wrong = Patch(kind=kinds.ENTITIES, columns=("summary",), rows=(row,))
    entry = {"sequence": 1, "ledger": kinds.EPISODES, "states": frozenset({kinds.COMMITTED})}
    with store.writing():
        store.apply([RowChanges(group=name, patches=(wrong,), **entry)])
    assert differences(store, name) == ["entities: 1 stored otherwise than the records derive"]
    assert repaired(store, name) == ["entities: 1 written anew"]
    assert stored(engine)["Alice"] == "Alice works at Acme."


def test_a_summary_contains_no_words_of_a_removed_episode(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.add(triples(1, works("Acme")), triples(2, likes("Zyqqvorp"), client_id="gone"))
    assert "Zyqqvorp" in stored(engine)["Alice"]
    engine.ask("remove", episodes=("gone",))
    assert stored(engine) == {"Alice": "Alice works at Acme.", "Acme": "Alice works at Acme."}
    engine.store.compact()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"Zyqqvorp" in path.read_bytes()]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Engine]]:
    """Yield a function that makes an engine with a group of its own, all in one store."""
    stores = SqliteStores(tmp_path_factory.mktemp("summaries"))
    store = stores.open()
    yield lambda: Engine(store=store, prefix=stores.fresh(), judge=WildJudge())
    stores.close()


@SLOW
@given(HISTORIES)
def test_stored_summaries_equal_rebuilt_summaries(fresh: Callable[..., Engine], history: list[Any]) -> None:
    """With so low a limit of facts, in a summary and in reserve, that each history meets every bound."""
    engine = fresh()
    with pytest.MonkeyPatch.context() as patched:
        for name, size in (("NEWEST", 1), ("_SPARE", 2), ("_FULL", 3)):
            patched.setattr(texts, name, size)
        for number, step in enumerate(history):
            carry_out(engine, number, step)
            engine.check()  # compares each stored entity with that of a new graph
            assert differences(engine.store, engine.named()) == []
            cached = engine.loop.committer.kept(engine.named())
            built = GroupGraph.build(records_of(engine.store, engine.named()))
            every = built.facts_of(built.statements)
            for entity, newest in (cached.graph.newest if cached else {}).items():
                is_open = [f for f in every if entity in f.ends and f.invalid_at is None]
                assert newest.text() == summary_of(is_open)
                assert newest.text() == newest_facts(built, entity).text()


def test_a_hub_costs_a_commit_as_much_as_any_entity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new fact of an entity with many facts sweeps its own component alone."""
    engine = Engine(tmp_path)
    engine.add(triples(1, *(likes(f"thing {n}") for n in range(300))))
    engine.add(triples(2, likes("chess")))
    state = engine.loop.committer.kept(engine.named())
    assert state is not None
    swept: list[int] = []

    class Counted(group.Sweep):
        def add(self, claims: Sequence[Claim]) -> dict[str, SpanChange]:
            swept.append(len(claims))
            return super().add(claims)

    with monkeypatch.context() as patch:
        patch.setattr(group, "Sweep", Counted)
        engine.add(triples(3, likes("tea")))
    assert sum(swept) == 1
    assert stored(engine)["Alice"].startswith("Alice likes tea. Alice likes chess. ")
    engine.check()
