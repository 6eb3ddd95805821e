"""The promises of design section 1 as properties: histories of everything that can happen to a group."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from kgray.domain import times
from kgray.ports import Store
from tests.graph.engine import Engine, WildJudge, iso, reading, triples
from tests.graph.stores import SqliteStores

Fresh = Callable[..., Engine]

PEOPLE = ["Alice", "Alice Smith", "A. Smith", "Bob", "Bob Jones", "Marcus Webb", "M. Webb"]
ORGANIZATIONS = [
    "Acme",
    "Acme Inc",
    "Acme Anvils",
    "Beta",
    "Q3 report",
    "Q4 report",
    "IBM",
    "International Business Machines",
]
RELATIONS = [
    "WORKS_AT",
    "LIKES",
    "DISLIKES",
    "MARRIED_TO",
    "WORKS_FOR",
    "EMPLOYED_BY",
    "EMPLOYS",
    "COSTS",
    "HAS_STATUS",
]
WORDINGS = ["{s} {r} {t}", "{s} {r} {t} part-time", "{s} {r} {t} on 3 days", "{s} has not {r} {t}"]

FACTS = st.fixed_dictionaries(
    {
        "source": st.sampled_from(PEOPLE),
        "target": st.sampled_from(PEOPLE + ORGANIZATIONS),
        "relation": st.sampled_from(RELATIONS),
        "wording": st.sampled_from(WORDINGS),
        "kind": st.sampled_from(["holds", "holds", "holds", "ended", "denied", "happened"]),
        "start": st.none() | st.integers(0, 12),
        "end": st.none() | st.integers(0, 12),
        "value": st.none() | st.sampled_from([100, 80, "done"]),
    }
)
EPISODES = st.tuples(st.just("episode"), st.integers(0, 12), st.lists(FACTS, min_size=1, max_size=3))
CORRECTIONS = st.tuples(
    st.sampled_from(["merge", "split", "undo", "retract"]), st.integers(0, 30), st.integers(0, 30)
)
HISTORIES = st.lists(EPISODES | EPISODES | EPISODES | CORRECTIONS, min_size=1, max_size=9)
SLOW = settings(
    max_examples=int(os.environ.get("KGRAY_TEST_EXAMPLES", "4")),
    suppress_health_check=list(HealthCheck),
)


def fact_of(fields: dict[str, Any], at: int) -> dict[str, Any]:
    """Return a fact of a reply; an end that is not after its start is left out."""
    target = fields["target"] if fields["target"] != fields["source"] else "Zeta"
    text = fields["wording"].format(s=fields["source"], r=fields["relation"].lower(), t=target)
    fact = {"source": fields["source"], "relation": fields["relation"], "fact": text, "kind": fields["kind"]}
    fact |= {"target": target} if fields["value"] is None else {"value": fields["value"]}
    start, end = fields["start"], fields["end"]
    if start is not None:
        fact["valid_at"] = iso(start)
    if end is not None and fields["kind"] != "happened" and end > (at if start is None else start):
        fact["invalid_at"] = iso(end)
    return fact


def play(engine: Engine, history: list[Any], dumps: list[tuple[int, list[str]]] | None = None) -> None:
    """Carry out a history step by step; `dumps` collects the dump at each record time."""
    for number, step in enumerate(history):
        carry_out(engine, number, step)
        if dumps is not None:
            dumps.append((engine.last_recorded(), engine.dump()))


def carry_out(engine: Engine, number: int, step: Any) -> None:
    """Carry out one step."""
    kind = step[0]
    if kind == "episode":
        _, at, facts = step
        engine.add(reading(at, [], [fact_of(f, at) for f in facts], client_id=f"e{number}"))
        return
    entities = sorted(e.id for e in engine.view().all_entities())
    if kind == "merge" and len(entities) > 1:
        pair = entities[step[1] % len(entities)], entities[step[2] % len(entities)]
        engine.ask("merge", entities=pair)
    elif kind == "split" and entities:
        entity = entities[step[1] % len(entities)]
        surfaces = sorted(engine.view().graph.entities[entity].surfaces)
        engine.ask("split", entities=(entity,), surfaces=(surfaces[step[2] % len(surfaces)],))
    elif kind == "undo":
        engine.ask("undo", target=step[1] % (number + 1) + 1)
    elif kind == "retract":
        engine.ask("retract", episodes=(f"e{step[1] % (number + 1)}",))
    elif kind == "remove":
        engine.ask("remove", episodes=(f"e{step[1] % (number + 1)}",))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    """Yield a function that makes an engine with a group of its own, all in one store."""
    stores = SqliteStores(tmp_path_factory.mktemp("promises"))
    store = stores.open()
    yield lambda **options: Engine(store=store, prefix=stores.fresh(), judge=WildJudge(), **options)
    stores.close()


@pytest.fixture(scope="module")
def second_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Yield a second store, for groups of the same names."""
    stores = SqliteStores(tmp_path_factory.mktemp("beside"))
    yield stores.open()
    stores.close()


@SLOW
@given(HISTORIES)
def test_cached_state_and_stored_index_equal_the_derivation_from_records(
    fresh: Fresh, history: list[Any]
) -> None:
    """Design section 5: loaded state equals cached state after every step, for any answers."""
    engine = fresh()
    for number, step in enumerate(history):
        carry_out(engine, number, step)
        engine.check()


@SLOW
@given(HISTORIES)
def test_known_at_gives_the_graph_of_the_dump_at_that_time(fresh: Fresh, history: list[Any]) -> None:
    """R4: a read at k is the same function over the records made by k."""
    engine = fresh()
    dumps: list[tuple[int, list[str]]] = []
    play(engine, history, dumps)
    for recorded, dumped in dumps:
        assert engine.dump(recorded) == dumped


@SLOW
@given(HISTORIES, EPISODES)
def test_removing_the_newest_episode_restores_the_previous_graph(
    fresh: Fresh, history: list[Any], last: Any
) -> None:
    """R26, first sentence: byte for byte."""
    engine = fresh()
    play(engine, history)
    dump_before = engine.dump()
    carry_out(engine, 99, last)
    engine.ask("remove", episodes=("e99",))
    assert engine.dump() == dump_before
    engine.check()


@SLOW
@given(HISTORIES, st.integers(0, 30), st.integers(0, 30))
def test_undoing_a_merge_restores_the_previous_graph(
    fresh: Fresh, history: list[Any], a: int, b: int
) -> None:
    """R16: ids stay, mentions and statements come back; the two records are not dumped."""
    engine = fresh()
    play(engine, history)
    dump_before = engine.dump()
    entities = sorted(e.id for e in engine.view().all_entities())
    assume(len(entities) > 1 and a % len(entities) != b % len(entities))
    merged = engine.ask("merge", entities=(entities[a % len(entities)], entities[b % len(entities)]))
    engine.check()
    engine.ask("undo", target=merged["sequence"])
    engine.check()
    assert engine.dump() == dump_before


@SLOW
@given(HISTORIES)
def test_a_batch_run_a_stepwise_run_and_a_replay_give_one_graph(
    fresh: Fresh, second_store: Store, history: list[Any]
) -> None:
    """R19, R20: submitting again changes nothing, and the graph does not depend on when it was ingested."""
    drafts = [
        reading(s[1], [], [fact_of(f, s[1]) for f in s[2]], client_id=f"e{n}")
        for n, s in enumerate(history)
        if s[0] == "episode"
    ]
    at_once = fresh()
    by_steps = Engine(store=second_store, prefix=at_once.prefix, judge=WildJudge())
    for draft in drafts:
        by_steps.add(draft)
    at_once.add(*drafts)
    assert at_once.dump() == by_steps.dump()
    dumped, recorded = at_once.dump(), at_once.last_recorded()
    assert {a.status for a in at_once.accept(*drafts)} <= {"duplicate"}
    at_once.run()
    assert (at_once.dump(), at_once.last_recorded()) == (dumped, recorded)


def _fields_of(source: str, relation: str, kind: str, value: int | None) -> dict[str, Any]:
    fields = {
        "source": source,
        "target": "Alice",
        "relation": relation,
        "wording": "{s} {r} {t}",
        "kind": kind,
    }
    return fields | {"start": None, "end": None, "value": value}


# A removal leaves a gap in the variants of a statement that two relation names fold into.
GAP = [
    ("episode", 0, [_fields_of("Alice", "WORKS_AT", "holds", None)]),
    (
        "episode",
        0,
        [_fields_of("Alice", "WORKS_AT", "holds", None), _fields_of("Alice Smith", "WORKS_FOR", "holds", 80)],
    ),
    ("episode", 0, [_fields_of("Alice Smith", "WORKS_AT", "happened", 80)]),
]


@SLOW
@given(history=st.lists(EPISODES, min_size=2, max_size=6), index=st.integers(0, 30))
@example(history=GAP, index=1)
def test_removing_any_episode_leaves_the_graph_of_the_other_episodes(
    fresh: Fresh, history: list[Any], index: int
) -> None:
    """R26, second sentence, R25: nothing of the removed one is left, and the stored index agrees."""
    engine = fresh()
    play(engine, history)
    removed_number = index % len(history)
    engine.ask("remove", episodes=(f"e{removed_number}",))
    engine.check()
    assert not [line for line in engine.dump() if f'"client_id":"e{removed_number}"' in line]
    for number, step in enumerate(history):
        carry_out(engine, number, step)
        engine.check()


def test_a_cleared_group_is_empty_and_keeps_only_its_sequence(tmp_path: Path) -> None:
    """R27, section 1: all rows are deleted; the sequence continues."""
    engine = Engine(tmp_path)
    engine.add(triples(0, {"source": "Alice", "relation": "LIKES", "target": "tea"}))
    engine.ask("remove", everything=True)
    assert engine.dump() == []
    [receipt] = engine.accept(triples(0, {"source": "Alice", "relation": "LIKES", "target": "tea"}))
    assert receipt.status == "accepted"
    assert receipt.sequence == 3
    assert engine.last_recorded() <= times.now()
