"""Records of other systems: identity by key, fields that supersede their former values, tables (R17, R18)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kgray
from kgray.domain.ontology import Ontology, shipped
from kgray.domain.records import Draft
from kgray.ingest.runner import Runner
from kgray.io.intake.drafts import Defaults, draft_from
from kgray.io.intake.files import read_file
from kgray.models.rules.extractor import RulesExtractor
from tests.graph.engine import GROUP, Engine, day, engine_on, triples
from tests.graph.stores import EMBEDDED, Stores

ACCOUNT = {
    "id": "ACC-1042",
    "account_name": "Nordlicht GmbH",
    "owner": "Dana Reyes",
    "arr": 120000,
    "active": True,
    "stage": "prospect",
    "city": "Hamburg",
    "tags": ["eu", "freight"],
    "billing_address": {"street": "Hafenstr. 1"},
    "contacts": [
        {"id": "C-7", "name": "Jens Ott", "title": "CTO"},
        {"id": "C-8", "name": "Jens Ott", "title": "Buyer"},
    ],
    "updated_at": "2026-01-05",
}


def records(stores: Stores, ontology: Ontology | None = None, **options: Any) -> Engine:
    """Return an engine that reads records and messages by the shipped rules."""
    engine = engine_on(stores, ontology=ontology, **options)
    engine.parts = replace(engine.parts, extractor=RulesExtractor(ontology or shipped()))
    engine.loop = Runner(engine.parts) if options.get("window") else type(engine.loop)(engine.parts)
    return engine


def record(number: float, content: object) -> Draft:
    """Return a record as of a day."""
    return replace(draft_from({"kind": "json", "text": content, "group": GROUP}), reference_time=day(number))


def fact_spans(engine: Engine) -> list[tuple[str, str, str, float, float | None]]:
    """Return (subject, relation, object, from, to) of every fact; people and things by name and key."""
    view = engine.view()
    names = {e.id: "/".join((e.name, *(a for a in e.aliases if "-" in a))) for e in view.all_entities()}

    def days(instant: int | None) -> Any:
        return None if instant is None else (instant - day(0)) / (day(1) - day(0))

    return sorted(
        (
            names[fact.source], fact.relation, fact.value.shown() if fact.value else names[str(fact.target)],
            days(fact.valid_at), days(fact.invalid_at),
        )
        for fact in view.all_facts()
    )  # fmt: skip


@EMBEDDED
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("window", [0, 8])
def test_an_updated_record_has_one_current_value_per_field(
    stores: Stores, window: int, backwards: bool
) -> None:
    """In either order of arrival, the times of the records decide their order."""
    engine = records(stores, window=window)
    second = ACCOUNT | {"owner": "Lee Park", "arr": 150000, "stage": "customer", "city": "Kiel"}
    third = ACCOUNT | {"account_name": "Nordlicht SE", "arr": 90000, "active": False, "stage": "churned"}
    updates = [record(0, ACCOUNT), record(30, second), record(60, third)]
    engine.add(*(reversed(updates) if backwards else updates))

    account = ("Nordlicht SE/ACC-1042" if backwards else "Nordlicht GmbH/ACC-1042",)
    assert fact_spans(engine) == [
        # The ontology declares OWNED_BY as the inverse of OWNS.
        ("Dana Reyes", "OWNS", *account, 0, 30),
        ("Dana Reyes", "OWNS", *account, 60, None),
        ("Jens Ott/C-7", "HAS_ROLE", "CTO", 0, None),
        ("Jens Ott/C-8", "HAS_ROLE", "Buyer", 0, None),
        ("Lee Park", "OWNS", *account, 30, 60),
        (*account, "HAS_ACTIVE", "false", 60, None),
        (*account, "HAS_ACTIVE", "true", 0, 60),
        (*account, "HAS_ARR", "120000", 0, 30),
        (*account, "HAS_ARR", "150000", 30, 60),
        (*account, "HAS_ARR", "90000", 60, None),
        (*account, "HAS_BILLING_ADDRESS_STREET", "Hafenstr. 1", 0, None),
        (*account, "HAS_CATEGORY", "eu", 0, None),
        (*account, "HAS_CATEGORY", "freight", 0, None),
        (*account, "HAS_CONTACT", "Jens Ott/C-7", 0, None),
        (*account, "HAS_CONTACT", "Jens Ott/C-8", 0, None),
        (*account, "HAS_STATUS", "churned", 60, None),
        (*account, "HAS_STATUS", "customer", 30, 60),
        (*account, "HAS_STATUS", "prospect", 0, 30),
        (*account, "LOCATED_IN", "Hamburg", 0, 30),
        (*account, "LOCATED_IN", "Hamburg", 60, None),
        (*account, "LOCATED_IN", "Kiel", 30, 60),
    ]
    engine.check()


@EMBEDDED
def test_a_key_identifies_a_record_and_a_name_links_it_to_messages(stores: Stores) -> None:
    engine = records(stores)
    engine.add(draft_from({"text": "Nordlicht GmbH is headquartered in Kiel.", "group": GROUP, "at": 0}))
    engine.add(record(1, {"id": "ACC-1", "name": "Nordlicht GmbH", "arr": 1}))
    engine.add(record(2, {"id": "ACC-1", "name": "Polarlicht AG", "arr": 2}))
    engine.add(record(3, {"id": "ACC-2", "name": "Nordlicht GmbH", "arr": 3}))
    engine.add(record(4, {"id": "T-9", "subject": "Late", "account_id": "ACC-2"}))

    assert [(e.name, e.aliases) for e in sorted(engine.view().all_entities(), key=lambda e: e.born)] == [
        ("Nordlicht GmbH", ("ACC-1", "Polarlicht AG")),
        ("Kiel", ()),
        ("Nordlicht GmbH", ("ACC-2",)),
        ("Late", ("T-9",)),
    ]
    assert [row[:3] for row in fact_spans(engine) if row[1] in {"HAS_ACCOUNT", "HEADQUARTERED_IN"}] == [
        ("Late/T-9", "HAS_ACCOUNT", "Nordlicht GmbH/ACC-2"),
        ("Nordlicht GmbH/ACC-1", "HEADQUARTERED_IN", "Kiel"),
    ]
    engine.check()


@EMBEDDED
def test_an_entity_known_by_its_key_gets_its_name_from_its_record(stores: Stores) -> None:
    engine = records(stores)
    engine.add(record(0, {"id": "T-9", "subject": "Late", "account_id": "ACC-2"}))
    engine.add(record(1, {"id": "ACC-2", "name": "Nordlicht GmbH"}))

    assert [(e.name, e.aliases) for e in sorted(engine.view().all_entities(), key=lambda e: e.born)] == [
        ("Late", ("T-9",)),
        ("Nordlicht GmbH", ("ACC-2",)),
    ]
    engine.check()


@EMBEDDED
def test_a_removed_update_gives_the_former_value_back(stores: Stores) -> None:
    engine = records(stores)
    for number, owner in enumerate(("Ann", "Bob")):
        update = record(number, {"id": "A-1", "name": "Acme", "owner": owner})
        engine.add(replace(update, client_id=owner))
    engine.ask("remove", episodes=("Bob",))

    assert fact_spans(engine) == [("Ann", "OWNS", "Acme/A-1", 0, None)]


@EMBEDDED
def test_a_list_field_has_many_values_and_a_message_may_add_one(stores: Stores) -> None:
    engine = records(stores)
    engine.add(record(0, {"id": "A-1", "name": "Acme", "tags": ["eu"]}))
    engine.add(record(1, {"id": "A-1", "name": "Acme", "tags": ["eu", "key"]}))

    assert fact_spans(engine) == [
        ("Acme/A-1", "HAS_CATEGORY", "eu", 0, None),
        ("Acme/A-1", "HAS_CATEGORY", "key", 1, None),
    ]


@EMBEDDED
def test_a_cardinality_declared_on_the_inverse_applies_to_the_relation(stores: Stores) -> None:
    """OWNS alone is used, and OWNED_BY alone says that a thing has one owner at a time."""
    ontology = shipped().extended({"OWNED_BY": {"cardinality": "single"}})
    engine = records(stores, ontology)
    engine.add(triples(0, {"source": "Ann", "relation": "OWNS", "target": "the boat"}))
    engine.add(triples(1, {"source": "Ann", "relation": "OWNS", "target": "the house"}))
    engine.add(triples(2, {"source": "Bob", "relation": "OWNS", "target": "the boat"}))

    assert fact_spans(engine) == [
        ("Ann", "OWNS", "the boat", 0, 2),
        ("Ann", "OWNS", "the house", 1, None),
        ("Bob", "OWNS", "the boat", 2, None),
    ]


# ------------------------------------------------------------------------------------- tables


def dumped(memory: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in memory.dump(group="g")]


def facts_of(memory: Any, **options: Any) -> list[tuple[Any, ...]]:
    rows = dumped(memory)
    names = {row["id"]: row["name"] for row in rows if row["type"] == "entity"}
    return sorted(
        (
            names[row["source"]], row["relation"],
            names[row["target"]] if row["target"] else row["value"]["value"],
            str(row["valid_at"])[:10], row["invalid_at"] and row["invalid_at"][:10],
        )
        for row in rows
        if row["type"] == "fact"
    )  # fmt: skip


def test_the_rows_of_a_csv_without_texts_are_records(tmp_path: Path) -> None:
    first, second = tmp_path / "products.csv", tmp_path / "products-2026-02.csv"
    first.write_text(
        "id,name,price_eur,stock,brand,lead source,updated_at\n"
        "1,Oak desk,499,3,Holz AG,Web,2026-01-01\n"
        "2,Oak desk,650,1,Holz AG,,2026-01-01\n"
    )
    second.write_text("id,name,price_eur,stock,brand,updated_at\n1,Oak desk,449,0,Holz AG,2026-02-01\n")
    with kgray.open(tmp_path / "data", create=True) as memory:
        reports = [memory.add_many(read_file(path, Defaults(group="g"))) for path in (first, second, first)]
        facts = facts_of(memory)

    assert facts == [
        ("Oak desk", "COSTS", "449", "2026-02-01", None),
        ("Oak desk", "COSTS", "499", "2026-01-01", "2026-02-01"),
        ("Oak desk", "COSTS", "650", "2026-01-01", None),
        ("Oak desk", "HAS_LEAD_SOURCE", "Web", "2026-01-01", None),
        ("Oak desk", "HAS_STOCK", "0", "2026-02-01", None),
        ("Oak desk", "HAS_STOCK", "1", "2026-01-01", None),
        ("Oak desk", "HAS_STOCK", "3", "2026-01-01", "2026-02-01"),
        ("Oak desk", "MADE_BY", "Holz AG", "2026-01-01", None),
        ("Oak desk", "MADE_BY", "Holz AG", "2026-01-01", None),
    ]
    assert [(report.accepted, report.duplicate) for report in reports] == [(2, 0), (1, 0), (0, 2)]


def test_the_rows_of_a_parquet_file_without_texts_are_records(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    tickets = [
        {"number": 41, "id": 4711, "subject": "Printer jams", "status": "open", "assignee": "Priya Raman"},
        {"number": 41, "id": 4711, "subject": "Printer jams", "status": "closed", "assignee": "Tom Vale"},
        {"number": 42, "id": 4712, "subject": "Printer jams", "status": "open", "assignee": None},
    ]
    dated = [t | {"updated_at": f"2026-03-0{n}"} for n, t in enumerate(tickets, 1)]
    pq.write_table(pa.Table.from_pylist(dated), tmp_path / "tickets.parquet")
    with kgray.open(tmp_path / "data", create=True) as memory:
        memory.add_many(read_file(tmp_path / "tickets.parquet", Defaults(group="g")))
        facts = facts_of(memory)
        names = [e for e in dumped(memory) if e["type"] == "entity" and "Ticket" in e["labels"]]

    assert facts == [
        ("Printer jams", "ASSIGNED_TO", "Priya Raman", "2026-03-01", "2026-03-02"),
        ("Printer jams", "ASSIGNED_TO", "Tom Vale", "2026-03-02", None),
        ("Printer jams", "HAS_NUMBER", "41", "2026-03-01", None),
        ("Printer jams", "HAS_NUMBER", "42", "2026-03-03", None),
        ("Printer jams", "HAS_STATUS", "closed", "2026-03-02", None),
        ("Printer jams", "HAS_STATUS", "open", "2026-03-01", "2026-03-02"),
        ("Printer jams", "HAS_STATUS", "open", "2026-03-03", None),
    ]
    assert sorted(e["aliases"] for e in names) == [["Ticket 4711"], ["Ticket 4712"]]


def test_a_configured_key_field_identifies_records(tmp_path: Path) -> None:
    rows = [
        {"vat_no": "DE1", "name": name, "group": "g", "kind": "json", "at": f"2026-01-0{n}"}
        for n, name in enumerate(("Nordlicht GmbH", "Polarlicht AG"), 1)
    ]
    with kgray.open(tmp_path, create=True, settings={"records_key": "customer_number, vat_no"}) as memory:
        memory.add_many(rows)
        entities = [row for row in dumped(memory) if row["type"] == "entity"]

    assert [(row["name"], row["aliases"]) for row in entities] == [
        ("Nordlicht GmbH", ["DE1", "Polarlicht AG"])
    ]


def test_unread_records_are_counted_and_reported(tmp_path: Path) -> None:
    rows = [
        {
            "kind": "json",
            "at": 0,
            "group": "g",
            "arr": 5,
            "owner": "Ann",
            "contacts": [{"name": "Bob", "role": "CTO"}],
        },
        {"kind": "json", "at": 0, "group": "g", "id": "A-1", "note": "x" * 300},
    ]
    with kgray.open(tmp_path, create=True) as memory:
        report = memory.add_many(rows)
        facts = facts_of(memory)

    assert (report.committed, report.left_out, report.unread) == (
        2,
        2,
        (
            "an object: it has no key and no name, so this was not read: arr, owner",
            "note: a text of 300 characters is no value (at most 200)",
        ),
    )
    assert facts == [("Bob", "HAS_ROLE", "CTO", "1970-01-01", None)]
