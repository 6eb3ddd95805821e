"""What a removal leaves of merges, splits, rulings and verdicts: what names what is left, nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kgray import kinds
from kgray.ports import Answer, Question
from kgray.stores.sqlite.schema import FILE
from tests.graph.engine import Engine, WildJudge, triples

Fact = dict[str, Any]


def fact(source: str, relation: str, target: str, **more: Any) -> Fact:
    """Return a triple."""
    return {"source": source, "relation": relation, "target": target, **more}


class Rules(WildJudge):
    """A judge that answers by the relation's name."""

    def __init__(self, cardinality: dict[str, str], pairs: dict[frozenset[str], Answer]) -> None:
        self.cardinality, self.pairs = cardinality, pairs

    def _answer(self, question: Question) -> Answer:  # type: ignore[override]
        if question.kind == "cardinality":
            return {"cardinality": self.cardinality.get(question.item, "many"), "reason": question.item}
        if question.kind == "relation":
            return self.pairs.get(frozenset((question.item, *question.candidates)), {})
        if question.kind in {"entity", "variant"}:
            return {"duplicate_of": None}
        return {"contradicts": list(range(len(question.candidates))), "reason": " ".join(question.cards)}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Yield an engine on a new folder."""
    made = Engine(tmp_path)
    yield made
    made.store.close()


def ids(engine: Engine) -> dict[str, str]:
    """Return name -> id of the entities."""
    return {entity.name: entity.id for entity in engine.view().all_entities()}


def of(engine: Engine, kind: str, known_at: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of one type of the dump."""
    return [row for row in map(json.loads, engine.dump(known_at)) if row["type"] == kind]


@pytest.mark.parametrize("gone", ["e1", "e2"])
@pytest.mark.parametrize("undone", [False, True])
def test_either_half_of_a_merge_can_be_removed_and_every_command_still_works(
    engine: Engine, gone: str, undone: bool
) -> None:
    """R16, R25: the dump between merge and removal is the one taken then without what was removed."""
    engine.add(triples(0, fact("Alice", "WORKS_AT", "Acme"), client_id="e1"))
    engine.add(triples(1, fact("Bob", "KNOWS", "Acme"), client_id="e2"))
    alone = engine.dump()
    merged = engine.ask("merge", entities=(ids(engine)["Alice"], ids(engine)["Bob"]))
    between, then = engine.last_recorded(), of(engine, "mention")
    episodes = {row["client_id"]: row["id"] for row in of(engine, "episode")}
    if undone:
        engine.ask("undo", target=merged["sequence"])

    engine.ask("remove", episodes=(gone,))

    engine.check()
    assert of(engine, "mention", between) == [row for row in then if row["episode"] != episodes[gone]]
    if gone == "e2":  # the last episode: byte for byte the graph without it, and its merge is gone
        kept = json.dumps(episodes["e1"])
        assert of(engine, "merge") == []
        assert {line for line in engine.dump() if kept in line} == {line for line in alone if kept in line}
    engine.add(triples(3, fact("Carl", "KNOWS", "Acme")))
    engine.check()
    answer = engine.ask("undo", target=merged["sequence"])
    assert ("error" in answer) == (undone or gone == "e2")
    engine.check()
    engine.ask("remove", everything=True)
    assert engine.dump() == []


def test_a_split_goes_with_the_last_mention_that_it_moved(engine: Engine) -> None:
    """R16: and with its undo; what is left has its own id again."""
    engine.add(triples(0, fact("Bob Smith", "KNOWS", "Acme"), client_id="e1"))
    before = engine.dump()
    engine.add(triples(1, fact("Rob", "KNOWS", "Beta"), client_id="e2"))
    found = ids(engine)
    engine.ask("merge", entities=(found["Bob Smith"], found["Rob"]))
    split = engine.ask("split", entities=(found["Bob Smith"],), surfaces=("Rob",))
    engine.ask("undo", target=split["sequence"])

    engine.ask("remove", episodes=("e2",))

    assert engine.dump() == before
    engine.check()
    assert [row[1] for row in engine.store.rows(kinds.ALL["operations"], engine.named())] == ["remove"]


def test_three_that_were_merged_stay_one_when_the_first_is_removed(engine: Engine) -> None:
    """R16: ids stay; the merges that still join what is left are those that are dumped."""
    for number, name in enumerate(("Alice", "Bob", "Carl")):
        engine.add(triples(number, fact(name, "KNOWS", "Acme"), client_id=name))
    found = ids(engine)
    engine.ask("merge", entities=(found["Alice"], found["Bob"]))
    engine.ask("merge", entities=(found["Alice"], found["Carl"]))

    engine.ask("remove", episodes=("Alice",))

    engine.check()
    [merged] = [entity for entity in engine.view().all_entities() if entity.name != "Acme"]
    assert (merged.id, merged.name, merged.aliases) == (found["Alice"], "Bob", ("Carl",))
    assert len(of(engine, "merge")) == 2


def test_removing_an_unrelated_episode_does_not_switch_off_a_cardinality(tmp_path: Path) -> None:
    """R25: a ruling on one name stays while the name is in use."""
    judge = Rules({"GUIDES": "single_object"}, {})
    engine = Engine(tmp_path, judge=judge)
    said = [("Zed", "Yan"), ("Zed", "Yul"), ("Ann", "Bob"), ("Cid", "Bob")]
    for number, (guide, guided) in enumerate(said):
        engine.add(triples(number, fact(guide, "GUIDES", guided), client_id=f"e{number}"))
    [before] = of(engine, "relation")
    assert before["cardinality"] == "single_object"

    engine.ask("remove", episodes=("e1",))  # the one that raised the ruling
    engine.ask("retract", episodes=("e0",))

    engine.check()
    assert of(engine, "relation") == [before]
    held = [row for row in of(engine, "fact") if row["text"].endswith("Bob") and row["invalid_at"] is None]
    assert [row["text"] for row in held] == ["Cid guides Bob"]
    [ruling] = [r for r in engine.store.rows(kinds.ALL["rulings"], engine.named()) if r[3] == "cardinality"]
    assert ruling[7] == "", "its reason may quote what is removed"


def test_a_declared_cardinality_outlives_the_inverse_name_that_it_came_by(engine: Engine) -> None:
    """R25: "Zed MANAGES Yan" brought the rulings on REPORTS_TO; Bob still has one manager without it."""
    for number, (manager, managed) in enumerate([("Zed", "Yan"), ("Ann", "Bob"), ("Cid", "Bob")]):
        engine.add(triples(number, fact(manager, "MANAGES", managed), client_id=f"e{number}"))
    before = of(engine, "relation")

    engine.ask("remove", episodes=("e0",))

    engine.check()
    assert of(engine, "relation") == before
    held = [row["text"] for row in of(engine, "fact") if row["invalid_at"] is None]
    assert held == ["Cid manages Bob"]


def test_names_that_folded_through_one_that_is_gone_stay_folded(tmp_path: Path) -> None:
    """R25: by a ruling that names what is left; the name that is gone is in no byte of the store."""
    same: Answer = {"same_as": True}
    middle = frozenset({"HELPS_QUIETLY", "HELPS_LOUDLY"}), frozenset({"HELPS_LOUDLY", "HELPS_OFTEN"})
    judge = Rules({"HELPS_QUIETLY": "single"}, dict.fromkeys(middle, same))
    engine = Engine(tmp_path, judge=judge)
    engine.add(triples(0, fact("Ann", "HELPS_QUIETLY", "Bob"), client_id="e0"))
    engine.add(triples(1, fact("Ann", "HELPS_LOUDLY", "Cid"), client_id="e1"))
    engine.add(triples(2, fact("Zed", "HELPS_OFTEN", "Bob"), client_id="e2"))
    engine.add(triples(3, fact("Zed", "HELPS_OFTEN", "Cid"), client_id="e3"))
    known = {row["name"]: (row["same_as"], row["cardinality"]) for row in of(engine, "relation")}
    assert known["HELPS_OFTEN"] == ("HELPS_QUIETLY", "single")

    engine.ask("remove", episodes=("e1",))
    engine.store.compact()

    engine.check()
    left = {row["name"]: (row["same_as"], row["cardinality"]) for row in of(engine, "relation")}
    assert left == {name: known[name] for name in ("HELPS_QUIETLY", "HELPS_OFTEN")}
    engine.store.close()
    assert b"LOUDLY" not in (tmp_path / FILE).read_bytes()


def test_removing_the_episode_that_raised_the_last_ruling_gives_the_graph_without_it(tmp_path: Path) -> None:
    """R26 goes before R25: no later episode is left that the ruling could matter to."""
    engine = Engine(tmp_path, judge=Rules({"GUIDES": "single"}, {}))
    engine.add(triples(0, fact("Zed", "GUIDES", "Yan"), client_id="e0"))
    before = engine.dump()
    engine.add(triples(1, fact("Zed", "GUIDES", "Yul"), client_id="e1"))

    engine.ask("remove", episodes=("e1",))

    assert engine.dump() == before
    assert list(engine.store.rows(kinds.ALL["rulings"], engine.named())) == []
    engine.store.close()


def test_a_verdict_goes_with_the_parts_of_its_statements_that_still_share_a_subject(tmp_path: Path) -> None:
    """R16: also one that was raised after the split; stored and derived graph agree all the time."""
    engine = Engine(tmp_path, judge=Rules({"FEELS": "depends"}, {}))
    engine.add(triples(0, fact("Bob", "FEELS", "calm"), client_id="e0"))
    engine.add(triples(1, fact("Rob", "LIKES", "tea"), client_id="e1"))
    engine.ask("merge", entities=(ids(engine)["Bob"], ids(engine)["Rob"]))
    engine.add(triples(2, fact("Rob", "FEELS", "calm"), fact("Rob", "FEELS", "tense"), client_id="e2"))
    engine.add(triples(3, fact("Bob", "FEELS", "tense"), client_id="e3"))
    assert len(of(engine, "verdict")) == 1

    engine.ask("split", entities=(ids(engine)["Bob"],), surfaces=("Rob",))
    engine.check()
    assert subjects(engine) == [("Bob", "Bob"), ("Rob", "Rob")]

    engine.add(triples(4, fact("Bob", "FEELS", "sad"), client_id="e4"))
    engine.check()
    assert subjects(engine) == [("Bob", "Bob")] * 3 + [("Rob", "Rob")]
    engine.store.close()


def subjects(engine: Engine) -> list[tuple[str, str]]:
    """Return the names of the subjects of each verdict's two statements."""
    names = {entity: name for name, entity in ids(engine).items()}
    said = {row["id"]: names[row["subject"]] for row in of(engine, "statement")}
    return sorted((said[row["a"]], said[row["b"]]) for row in of(engine, "verdict"))
