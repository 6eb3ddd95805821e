"""R18: a fact's text follows the names of its ends and its relation's words, in cached and derived state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kgray.domain.ontology import shipped
from tests.graph.engine import Engine, engine_on, reading
from tests.graph.stores import EMBEDDED, Stores


def works(at: float, name: str, target: str = "Acme", text: str = "", **fields: Any) -> Any:
    """Return an episode that says where somebody works, in a sentence of its own."""
    fact = {
        "source": name,
        "target": target,
        "relation": "WORKS_AT",
        "fact": text or f"{name} joined {target}",
    }
    return reading(at, [], [fact | fields], client_id=f"{name} {at}")


def texts(engine: Engine, known_at: int | None = None) -> list[str]:
    """Return the texts of all facts, by start."""
    engine.check()
    facts = engine.view(known_at).all_facts()
    return [f.text for f in sorted(facts, key=lambda f: (f.valid_at is not None, f.valid_at or 0, f.id))]


@EMBEDDED
def test_a_fact_names_its_ends_by_their_current_names(stores: Stores) -> None:
    """R16: the later, longer name is shown, at either end; a removal brings the earlier one back."""
    engine = engine_on(stores)
    engine.add(works(0, "M. Webb"), works(1, "Ann", "M. Webb"), works(2, "Bob", "Beta"))
    moment_before = engine.last_recorded()
    assert texts(engine) == ["M. Webb works at Acme", "Ann works at M. Webb", "Bob works at Beta"]
    engine.add(works(5, "Marcus Webb", "Gama"))
    current_texts = [
        "Marcus Webb works at Acme",
        "Ann works at Marcus Webb",
        "Bob works at Beta",
        "Marcus Webb works at Gama",
    ]
    assert texts(engine) == current_texts
    assert texts(engine, moment_before) == [
        "M. Webb works at Acme",
        "Ann works at M. Webb",
        "Bob works at Beta",
    ]
    engine.ask("remove", episodes=("Marcus Webb 5",))
    assert texts(engine) == ["M. Webb works at Acme", "Ann works at M. Webb", "Bob works at Beta"]


def test_a_merge_and_its_undo_rewrite_the_texts_of_facts(tmp_path: Path) -> None:
    """R16."""
    engine = Engine(tmp_path)
    engine.add(works(0, "Bob Jones"), works(1, "Robert", "Beta"))
    ids = {e.name: e.id for e in engine.view().all_entities()}
    answer = engine.ask("merge", entities=(ids["Bob Jones"], ids["Robert"]))
    assert texts(engine) == ["Bob Jones works at Acme", "Bob Jones works at Beta"]
    engine.ask("undo", target=answer["sequence"])
    assert texts(engine) == ["Bob Jones works at Acme", "Robert works at Beta"]


def test_a_fact_text_uses_the_main_name_of_its_relation(tmp_path: Path) -> None:
    """R17: the name from the ontology, not the first used name; its ends have the ontology's direction."""
    engine = Engine(tmp_path)
    engine.add(reading(0, [], [{"source": "Acme", "target": "Ann", "relation": "EMPLOYS"}]), works(1, "Bob"))
    view = engine.view()
    names = {e.id: e.name for e in view.all_entities()}
    assert sorted((names[f.source], f.relation, names[str(f.target)]) for f in view.all_facts()) == [
        ("Ann", "WORKS_AT", "Acme"),
        ("Bob", "WORKS_AT", "Acme"),
    ]


def test_changed_words_of_the_ontology_apply_from_the_next_commit(tmp_path: Path) -> None:
    """R17: recorded as a ruling, so that earlier knowledge reads as before."""
    role = {"source": "Ann", "relation": "HAS_ROLE", "value": "captain", "fact": "Ann became captain"}
    engine = Engine(tmp_path)
    engine.add(reading(0, [], [role]), works(0, "Ann"))
    moment_before, dumped = engine.last_recorded(), engine.dump()
    assert sorted(texts(engine)) == ["Ann has the role captain", "Ann works at Acme"]
    changed = {"HAS_ROLE": {"text": "is a"}, "WORKS_AT": {"text": "earns a living at"}}
    engine = Engine(tmp_path, ontology=shipped().extended(changed))
    engine.add(reading(2, ["Ann"], []))
    assert sorted(texts(engine)) == ["Ann earns a living at Acme", "Ann is a captain"]
    assert engine.dump(moment_before) == dumped
    engine = Engine(tmp_path)
    engine.add(reading(3, ["Ann"], []))
    assert sorted(texts(engine)) == ["Ann has the role captain", "Ann works at Acme"]


def test_a_variant_names_its_difference_while_its_first_sentence_exists(tmp_path: Path) -> None:
    """R18, R25: the first remaining evidence gives the words."""
    engine = Engine(tmp_path)
    engine.add(works(0, "Ann"), works(5, "Ann", text="Ann works part-time at Acme"))
    assert texts(engine) == ["Ann works at Acme", "Ann works part-time at Acme"]
    engine.ask("remove", episodes=("Ann 5",))
    assert texts(engine) == ["Ann works at Acme"]
