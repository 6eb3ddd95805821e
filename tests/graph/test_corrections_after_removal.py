"""Merges, splits, declarations and verdicts after a removal: a record stays while all its names exist."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kgray.domain.ontology import shipped
from kgray.domain.records import Declaration
from kgray.graph.stored import stored_records
from kgray.ports import Answer, Question
from kgray.schema import kinds
from kgray.search import Query, Searcher
from tests.graph.engine import SMALL, Engine, WildJudge, reading, triples

Fact = dict[str, Any]


def fact(source: str, relation: str, target: str, **fields: Any) -> Fact:
    """Return a triple."""
    return {"source": source, "relation": relation, "target": target, **fields}


class Excludes(WildJudge):
    """A judge that finds a contradiction in every compared pair, and whose reason quotes the new sentence."""

    @staticmethod
    def _answer(question: Question) -> Answer:
        if question.kind == "entity":
            return {"duplicate_of": None}
        return {"answers": ["contradicts"] * len(question.candidates), "reason": question.item}


def with_relations(folder: Path, **relations: dict[str, Any]) -> Engine:
    """Return an engine whose ontology has more relations."""
    return Engine(folder, judge=Excludes(), ontology=shipped().extended(relations))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Yield an engine on a new folder."""
    engine = Engine(tmp_path)
    yield engine
    engine.store.close()


def ids(engine: Engine) -> dict[str, str]:
    """Return name -> id of the entities."""
    return {entity.name: entity.id for entity in engine.view().all_entities()}


def rows_of_type(engine: Engine, kind: str, known_at: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of one type of the dump."""
    return [row for row in map(json.loads, engine.dump(known_at)) if row["type"] == kind]


@pytest.mark.parametrize("removed_id", ["e1", "e2"])
@pytest.mark.parametrize("undone", [False, True])
def test_all_commands_work_after_one_merged_entity_is_removed(
    engine: Engine, removed_id: str, undone: bool
) -> None:
    """R16, R25: the dump between merge and removal equals the dump of that time, without removed rows."""
    engine.add(triples(0, fact("Alice", "WORKS_AT", "Acme"), client_id="e1"))
    engine.add(triples(1, fact("Bob", "KNOWS", "Acme"), client_id="e2"))
    alone = engine.dump()
    merged = engine.ask("merge", entities=(ids(engine)["Alice"], ids(engine)["Bob"]))
    between, mentions_then = engine.last_recorded(), rows_of_type(engine, "mention")
    episodes = {row["client_id"]: row["id"] for row in rows_of_type(engine, "episode")}
    if undone:
        engine.ask("undo", target=merged["sequence"])

    engine.ask("remove", episodes=(removed_id,))

    engine.check()
    assert rows_of_type(engine, "mention", between) == [
        row for row in mentions_then if row["episode"] != episodes[removed_id]
    ]
    if removed_id == "e2":  # the last episode: byte for byte the graph without it, and its merge is gone
        kept_id = json.dumps(episodes["e1"])
        assert rows_of_type(engine, "merge") == []
        assert {line for line in engine.dump() if kept_id in line} == {
            line for line in alone if kept_id in line
        }
    engine.add(triples(3, fact("Carl", "KNOWS", "Acme")))
    engine.check()
    answer = engine.ask("undo", target=merged["sequence"])
    assert ("error" in answer) == (undone or removed_id == "e2")
    engine.check()
    engine.ask("remove", everything=True)
    assert engine.dump() == []


def test_a_split_is_removed_with_its_last_moved_mention(engine: Engine) -> None:
    """R16: and with its undo; the remaining entity has its own id again."""
    engine.add(triples(0, fact("Bob Smith", "KNOWS", "Acme"), client_id="e1"))
    dump_before = engine.dump()
    engine.add(triples(1, fact("Rob", "KNOWS", "Beta"), client_id="e2"))
    result = ids(engine)
    engine.ask("merge", entities=(result["Bob Smith"], result["Rob"]))
    split = engine.ask("split", entities=(result["Bob Smith"],), surfaces=("Rob",))
    engine.ask("undo", target=split["sequence"])

    engine.ask("remove", episodes=("e2",))

    assert engine.dump() == dump_before
    engine.check()
    assert [row.kind for row in engine.store.rows(kinds.OPERATIONS.all, engine.named())] == ["remove"]


class Joins(WildJudge):
    """A judge that takes a new name for the first candidate entity."""

    @staticmethod
    def _answer(question: Question) -> Answer:
        if question.kind == "entity":
            return {"duplicate_of": 0 if question.candidates else None}
        return {"answers": ["independent"] * len(question.candidates)}


def test_a_split_entity_is_matched_by_name_after_its_first_mention_is_removed(
    tmp_path: Path,
) -> None:
    """R16, R25: a later mention bears the name under the id that the split made."""
    engine = Engine(tmp_path, judge=Joins())
    for number, name in enumerate(("Marcus Webb", "M. Webb")):
        engine.add(reading(number, [], [fact(name, "KNOWS", "Zed")], client_id=f"e{number}"))
    [joined] = [entity for entity in engine.view().all_entities() if entity.aliases]
    [_, split_entity] = engine.ask("split", entities=(joined.id,), surfaces=("M. Webb",))["entities"]
    engine.add(reading(2, [], [fact("M. Webb", "LIKES", "tea")], client_id="e2"))

    engine.ask("remove", episodes=("e1",))

    engine.check()
    query = Query(text="M. Webb", group=engine.named(), scopes=("entity",), methods=("bm25",))
    assert split_entity in [hit.id for hit in asyncio.run(Searcher(engine.store, SMALL).search(query))]
    engine.store.close()


def test_merged_entities_stay_merged_when_the_first_is_removed(engine: Engine) -> None:
    """R16: ids stay; a dump lists only merges that still join remaining entities."""
    for number, name in enumerate(("Alice", "Bob", "Carl")):
        engine.add(triples(number, fact(name, "KNOWS", "Acme"), client_id=name))
    result = ids(engine)
    engine.ask("merge", entities=(result["Alice"], result["Bob"]))
    engine.ask("merge", entities=(result["Alice"], result["Carl"]))

    engine.ask("remove", episodes=("Alice",))

    engine.check()
    [merged] = [entity for entity in engine.view().all_entities() if entity.name != "Acme"]
    assert (merged.id, merged.name, merged.aliases) == (result["Alice"], "Bob", ("Carl",))
    assert len(rows_of_type(engine, "merge")) == 2


def test_a_declaration_outlives_the_episode_that_recorded_it(tmp_path: Path) -> None:
    """R25: a declaration has the words of the ontology and nothing of an episode."""
    engine = with_relations(tmp_path, GUIDES={"cardinality": "single_object"})
    pairs = [("Zed", "Yan"), ("Zed", "Yul"), ("Ann", "Bob"), ("Cid", "Bob")]
    for number, (guide, guided) in enumerate(pairs):
        engine.add(triples(number, fact(guide, "GUIDES", guided), client_id=f"e{number}"))
    [relation_before] = rows_of_type(engine, "relation")
    assert (relation_before["cardinality"], relation_before["judge"]) == ("single_object", "ontology")

    engine.ask("remove", episodes=("e0",))  # its commit recorded the declaration
    engine.ask("retract", episodes=("e1",))

    engine.check()
    assert rows_of_type(engine, "relation") == [relation_before]
    open_now = [
        row
        for row in rows_of_type(engine, "fact")
        if row["text"].endswith("Bob") and row["invalid_at"] is None
    ]
    assert [row["text"] for row in open_now] == ["Cid guides Bob"]
    assert [declaration.aspect for declaration in declarations(engine)] == ["listed", "cardinality"]
    engine.store.close()


def test_a_cardinality_outlives_the_inverse_name_that_declared_it(engine: Engine) -> None:
    """R25: "Zed MANAGES Yan" brought the declarations of REPORTS_TO; Bob has one manager without it."""
    for number, (manager, managed) in enumerate([("Zed", "Yan"), ("Ann", "Bob"), ("Cid", "Bob")]):
        engine.add(triples(number, fact(manager, "MANAGES", managed), client_id=f"e{number}"))
    relations_before = rows_of_type(engine, "relation")

    engine.ask("remove", episodes=("e0",))

    engine.check()
    assert rows_of_type(engine, "relation") == relations_before
    open_now = [row["text"] for row in rows_of_type(engine, "fact") if row["invalid_at"] is None]
    assert open_now == ["Cid manages Bob"]


def test_relation_names_stay_folded_after_the_name_between_them_is_removed(tmp_path: Path) -> None:
    """R17, R25: TENDS is a synonym of a synonym; the name between them has no use any more."""
    engine = with_relations(
        tmp_path,
        HELPS={"cardinality": "single"},
        NURSES={"same_as": "HELPS"},
        TENDS={"same_as": "NURSES"},
    )
    triples_of_names = [("Ann", "HELPS", "Bob"), ("Ann", "NURSES", "Cid"), ("Zed", "TENDS", "Bob")]
    for number, (source, relation, target) in enumerate([*triples_of_names, ("Zed", "TENDS", "Cid")]):
        engine.add(triples(number, fact(source, relation, target), client_id=f"e{number}"))
    relations_before = {
        row["name"]: (row["same_as"], row["cardinality"]) for row in rows_of_type(engine, "relation")
    }
    assert relations_before["TENDS"] == ("HELPS", "single")

    engine.ask("remove", episodes=("e1",))

    engine.check()
    relations_after = {
        row["name"]: (row["same_as"], row["cardinality"]) for row in rows_of_type(engine, "relation")
    }
    assert relations_after == {name: relations_before[name] for name in ("HELPS", "TENDS")}
    open_now = sorted(row["text"] for row in rows_of_type(engine, "fact") if row["invalid_at"] is None)
    assert open_now == ["Ann helps Bob", "Zed helps Cid"]
    engine.store.close()


def test_removing_the_newest_episode_also_removes_its_declaration(
    tmp_path: Path,
) -> None:
    """R26 goes before R25: no later episode is left that the declaration could matter to."""
    engine = with_relations(tmp_path, GUIDES={"cardinality": "single"})
    engine.add(triples(0, fact("Zed", "HELPS", "Yan"), client_id="e0"))
    dump_before = engine.dump()
    engine.add(triples(1, fact("Zed", "GUIDES", "Yul"), client_id="e1"))
    assert declarations(engine) != []

    engine.ask("remove", episodes=("e1",))

    assert engine.dump() == dump_before
    assert declarations(engine) == []
    engine.store.close()


def verdicts(engine: Engine) -> list[tuple[bool, str]]:
    """Return (whether the two exclude each other, reason) of each stored verdict."""
    judged = stored_records(engine.store, engine.named()).judged.values()
    return [(item.exclusive, item.reason) for each in judged for item, _ in each.verdicts]


def declarations(engine: Engine) -> list[Declaration]:
    """Return the stored declarations."""
    judged = stored_records(engine.store, engine.named()).judged.values()
    return [item for each in judged for item, _ in each.declarations]


FEELS = [
    ("e0", "calm", "Bob feels calm"),
    ("e1", "tense", "Bob feels tense"),
    ("e2", "calm", "Bob feels calm"),
]


@pytest.mark.parametrize(
    ("removed_ids", "reasons"),
    [
        pytest.param((), ["Bob feels tense"], id="nothing-is-removed"),
        # The reason may quote each sentence that the judge read.
        pytest.param(("e0",), [""], id="the-sentence-that-it-was-compared-with"),
        pytest.param(("e1",), [], id="a-statement-is-gone"),
        pytest.param(("e1", "e3"), [], id="both-are-gone"),
    ],
)
def test_a_verdict_is_removed_with_its_statements(
    tmp_path: Path, removed_ids: tuple[str, ...], reasons: list[str]
) -> None:
    """R25: "calm" has two supporters, "tense" has one."""
    engine = with_relations(tmp_path, FEELS={"cardinality": "depends"})
    for number, (client_id, mood, text) in enumerate(FEELS):
        engine.add(triples(number, fact("Bob", "FEELS", mood, text=text), client_id=client_id))
    engine.add(triples(9, fact("Ann", "LIKES", "tea"), client_id="e3"))
    assert verdicts(engine) == [(True, "Bob feels tense")]

    for client_id in removed_ids:
        engine.ask("remove", episodes=(client_id,))
        engine.check()

    assert [reason for _, reason in verdicts(engine)] == reasons
    engine.store.close()


def test_a_confirmed_verdict_loses_only_the_reason_of_a_removed_episode(tmp_path: Path) -> None:
    """R25: the episode that raised it is gone; a later one says the same, so the two still exclude."""
    engine = with_relations(tmp_path, FEELS={"cardinality": "depends"})
    for number, mood in enumerate(("calm", "tense", "tense")):
        feeling = fact("Bob", "FEELS", mood, text=f"Bob feels {mood}")
        engine.add(triples(number, feeling, client_id=f"e{number}"))
    assert verdicts(engine) == [(True, "Bob feels tense")]

    engine.ask("remove", episodes=("e1",))

    engine.check()
    assert verdicts(engine) == [(True, "")]
    ends = {row["text"]: row["invalid_at"] is None for row in rows_of_type(engine, "fact")}
    assert ends == {"Bob feels calm": False, "Bob feels tense": True}
    engine.store.close()


def test_after_a_split_a_verdict_applies_to_statements_that_share_a_subject(tmp_path: Path) -> None:
    """R16: also a verdict given after the split; stored and derived graph agree all the time."""
    engine = with_relations(tmp_path, FEELS={"cardinality": "depends"})
    engine.add(triples(0, fact("Bob", "FEELS", "calm"), client_id="e0"))
    engine.add(triples(1, fact("Rob", "LIKES", "tea"), client_id="e1"))
    engine.ask("merge", entities=(ids(engine)["Bob"], ids(engine)["Rob"]))
    engine.add(triples(2, fact("Rob", "FEELS", "calm"), fact("Rob", "FEELS", "tense"), client_id="e2"))
    engine.add(triples(3, fact("Bob", "FEELS", "tense"), client_id="e3"))
    assert len(rows_of_type(engine, "verdict")) == 1

    engine.ask("split", entities=(ids(engine)["Bob"],), surfaces=("Rob",))
    engine.check()
    assert subjects(engine) == [("Bob", "Bob"), ("Rob", "Rob")]

    engine.add(triples(4, fact("Bob", "FEELS", "sad"), client_id="e4"))
    engine.check()
    assert subjects(engine) == [("Bob", "Bob")] * 2 + [("Rob", "Rob")]  # "calm" was over when "sad" began
    engine.store.close()


def subjects(engine: Engine) -> list[tuple[str, str]]:
    """Return the names of the subjects of each verdict's two statements."""
    names = {entity: name for name, entity in ids(engine).items()}
    subjects = {row["id"]: names[row["subject"]] for row in rows_of_type(engine, "statement")}
    return sorted((subjects[row["a"]], subjects[row["b"]]) for row in rows_of_type(engine, "verdict"))
