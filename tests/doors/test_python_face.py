"""`kgray.open`: the verbs of the library, awaited or blocking, on a real folder."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from inspect import getmembers, iscoroutinefunction

import pytest

import kgray
from kgray.domain.records import Draft
from kgray.errors import Ambiguous, InputError, NotBuilt, NotFound, SettingsError, StoreError
from kgray.io.intake.drafts import Defaults
from kgray.memory import AsyncMemory, Memory
from kgray.memory.backfill.inputs import find
from kgray.memory.backfill.run import RunRequest, backfill

ANN = [{"source": "Ann Lee", "relation": "WORKS_AT", "target": "Acme"}]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INSTANT = timedelta(microseconds=1)  # the smallest there is
BETA = [{"source": "Ann Lee", "relation": "WORKS_AT", "target": "Beta"}]


async def test_the_verbs_are_awaited(tmp_path):
    async with kgray.open_async(tmp_path / "d", create=True) as memory:
        assert isinstance(memory, AsyncMemory)
        report = await memory.add(ANN, kind="triples", group="g", at="2026-01-01", id="a", metadata={"n": 1})
        assert (report.accepted, report.committed, report.refused) == (1, 1, 0)
        await memory.add(BETA, kind="triples", group="g", at=datetime(2026, 3, 1, tzinfo=UTC), id="b")
        for moment, text in (
            ("2026-02-01", "Ann Lee WORKS AT Acme"),
            (1_900_000_000, "Ann Lee WORKS AT Beta"),
        ):
            hits = await memory.search("Ann works", group="g", as_of=moment, scopes=["fact"])
            assert [hit.text.casefold() for hit in hits] == [text.casefold()]
        history = await memory.history("ann lee", group="g")
        assert [fact.ended_by is not None for fact in history.facts] == [True, False]
        known = history.facts[1].created_at - INSTANT
        assert (await memory.search("Ann", group="g", known_at=known, scopes=["fact"]))[0].object == "Acme"
        assert (await memory.history("Ann Lee", group="g", known_at=known)).facts[0].invalid_at is None
        assert "Beta" in (await memory.context("Ann", group="g")).text
        assert (await memory.status()).groups["g"].committed == 2
        assert await memory.failures() == []
        assert await memory.admin.verify("g") == []
        assert (await memory.remove(group="g", episodes=["b"])).facts_reopened == 1
        assert [fact.invalid_at for fact in (await memory.history("Ann Lee", group="g")).facts] == [None]


def test_the_blocking_twin_has_the_same_verbs(tmp_path):
    with kgray.open(tmp_path / "d", create=True) as memory:
        rows = [
            {"id": "a", "triples": ANN, "at": 0},
            {"triples": []},
            Draft(group="h", source="s", kind="triples", text="[]", reference_time=0),
        ]
        report = memory.add_many(rows, group="g")
        assert (report.accepted, report.committed, report.refused) == (2, 2, 1)
        assert report.refusals[0].as_dict() == {
            "file": "<items>", "line": 2, "field": "triples", "reason": "the list of triples is empty",
        }  # fmt: skip
        first = memory.dump_hash(group="g")
        assert memory.dump(group="g")
        ids = {entity["name"]: entity["id"] for entity in dump_rows(memory, "entity")}
        merged = memory.merge(ids["Ann Lee"], ids["Acme"], group="g")
        memory.undo(merged.sequence, group="g")
        assert memory.dump_hash(group="g") == first


def dump_rows(memory, kind: str) -> list[dict]:
    import json

    return [row for row in map(json.loads, memory.dump(group="g")) if row["type"] == kind]


async def test_states_kept_between_verbs_see_what_other_processes_did(tmp_path):
    """Two memories on one folder take turns: neither decides on what it remembers from before."""
    async with (
        kgray.open_async(tmp_path / "d", create=True) as one,
        kgray.open_async(tmp_path / "d", create=True) as two,
    ):
        for number in range(6):
            memory = (one, two)[number % 2]
            row = [{"source": "Ann Lee", "relation": "WORKS_AT", "target": f"Firm {number}"}]
            await memory.add(row, kind="triples", group="g", at=number * 86_400, id=str(number))
        assert await one.admin.verify("g") == []
        spans = (await two.history("Ann Lee", group="g")).facts
    assert [(f.valid_at, f.invalid_at) for f in spans] == [
        (EPOCH + timedelta(day), EPOCH + timedelta(day + 1) if day < 5 else None) for day in range(6)
    ]


async def test_what_is_removed_stays_in_no_folder_of_a_run(tmp_path):
    """R25: a report tells of failures; rows that are sorted by time lie in a file without a name."""
    rows = [{"id": f"{n}", "at": n, "group": "g", "triples": ANN} for n in range(9)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    deployment = find([str(tmp_path / "rows.jsonl")], tmp_path / "d")
    asked = RunRequest(run="r", inputs=deployment, defaults=Defaults(), order="reference-time", limit=5)
    async with kgray.open_async(tmp_path / "d", create=True) as memory:
        await backfill(memory, tmp_path / "d", asked)
        kept = tmp_path / "d" / "runs" / "r"
        before = {path.name for path in kept.iterdir()}
        assert "report.json" in before
        assert (await memory.remove(group="g", episodes=["nobody"])).episodes == 0
        with pytest.raises(InputError):
            await memory.remove(group="no group", everything=True)
        assert {path.name for path in kept.iterdir()} == before, "what removes nothing changes nothing"
        await memory.remove(group="g", everything=True)
        assert {path.name for path in kept.iterdir()} == {"lock", "manifest.json", "refused.jsonl"}
        assert (await backfill(memory, tmp_path / "d", replace(asked, limit=None))).accepted == 4


async def test_what_another_process_removed_is_gone_from_earlier_moments_too(tmp_path):
    async with (
        kgray.open_async(tmp_path / "d", create=True) as one,
        kgray.open_async(tmp_path / "d", create=True) as two,
    ):
        await one.add(ANN, kind="triples", group="g", at=0, id="a")
        await one.add(BETA, kind="triples", group="g", at=86_400, id="b")
        known = (await one.history("Ann Lee", group="g")).facts[1].created_at - INSTANT
        assert await one.search("Acme", group="g", known_at=known)
        await two.remove(group="g", episodes=["a"])
        assert await one.search("Acme", group="g", known_at=known) == []


@pytest.mark.parametrize(
    ("verb", "error"),
    [
        (lambda m: m.add("", group="g"), InputError),
        (lambda m: m.add("x", group="no group"), InputError),
        (lambda m: m.add("x", group="g", at="later"), InputError),
        (lambda m: m.add("x", group="g", metadata={"text": "y"}), InputError),
        (lambda m: m.add("x", group="g", metadata={"f": object()}), InputError),
        (lambda m: m.search("x", group="a b"), InputError),
        (lambda m: m.search("x", group="g", as_of="later"), InputError),
        (lambda m: m.search("x", group="g", recipe="papers"), InputError),
        (lambda m: m.communities.get("x", group="g"), NotFound),
        (lambda m: m.communities.refresh(["g1"]), NotFound),
        (lambda m: m.communities.refresh(max_tokens=0), InputError),
        (lambda m: m.history("nobody", group="g"), NotFound),
        (lambda m: m.show("nobody", group="g"), NotFound),
        (lambda m: m.remove(group="g"), InputError),
        (lambda m: m.split("x", [], group="g"), InputError),
        (lambda m: m.status(group="a b"), InputError),
    ],
)
async def test_wrong_arguments_raise_one_clear_error(tmp_path, verb, error):
    async with kgray.open_async(tmp_path / "d", create=True) as memory:
        with pytest.raises(error) as caught:
            await verb(memory)
        assert str(caught.value)
        assert "\n" not in str(caught.value)
    assert issubclass(Ambiguous, kgray.errors.KgrayError)


def test_settings_are_arguments_too(tmp_path):
    with pytest.raises(NotBuilt):
        kgray.open(tmp_path / "d", create=True, settings={"model_backend": "vllm"})
    with pytest.raises(SettingsError):
        kgray.open(tmp_path / "d", create=True, settings={"runtime_backen": "local"})
    assert not (tmp_path / "d").exists()


def test_dir_lists_what_there_is(tmp_path):
    for name in dir(kgray):
        assert getattr(kgray, name) is not None
    assert {"open", "Memory", "Hit", "Filters", "KgrayError", "NotFound", "Ambiguous"} <= set(dir(kgray))
    with kgray.open(tmp_path / "d", create=True) as memory:
        assert isinstance(memory, Memory)
        verbs = {name for name in dir(Memory) if not name.startswith("_")}
        awaited = {name for name, _ in getmembers(AsyncMemory, iscoroutinefunction) if name[0] != "_"}
        assert awaited <= verbs
        for part in ("communities", "admin"):
            blocking, awaits = getattr(memory, part), getattr(memory.asynchronous, part)
            assert {name for name in dir(awaits) if name[0] != "_"} <= set(dir(blocking))
        assert memory.search.__doc__ == Memory.search.__doc__ == AsyncMemory.search.__doc__
        assert memory.store.rows is not None


async def test_a_memory_that_blocks_says_so_in_a_running_loop(tmp_path):
    memory = kgray.open(tmp_path / "d", create=True)
    with pytest.raises(InputError, match="open_async"):
        memory.search("Ann", group="g")
    memory.close()


def test_a_typo_creates_no_store(tmp_path):
    with pytest.raises(StoreError, match="no kgray store"):
        kgray.open(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()


def test_times_go_in_and_out_as_aware_datetimes(tmp_path):
    january, march = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
    with kgray.open(tmp_path / "d", create=True) as memory:
        memory.add(ANN, kind="triples", group="g", at=january, id="a")
        memory.add(BETA, kind="triples", group="g", at="2026-03-01T09:30:00Z", id="b")
        first, second = memory.history("Ann Lee", group="g").facts
        assert (first.valid_at, first.invalid_at) == (january, march)
        assert (second.valid_at, second.invalid_at, second.expired_at) == (march, None, None)
        (hit,) = memory.search("Ann Lee", group="g", as_of=january, scopes=["fact"])
        assert (hit.valid_at, hit.invalid_at, hit.object, hit.fact) == (january, march, "Acme", first)
        assert hit.fact.created_at.tzinfo is not None
        assert hit.fact.created_at < hit.fact.expired_at == second.created_at
        known = memory.search("Ann Lee", group="g", known_at=first.created_at, scopes=["fact"])
        assert [(hit.object, hit.invalid_at) for hit in known] == [("Acme", None)]
        hits = memory.search("Ann Lee", group="g", scopes=["episode"], said_after=march)
        assert [(hit.client_id, hit.reference_time) for hit in hits] == [("b", march)]
        early = kgray.Filters(said=(None, march))
        assert [h.client_id for h in memory.search("Ann", group="g", scopes=["episode"], filters=early)] == [
            "a"
        ]
        assert (
            memory.context("Ann", group="g", said_before=march, scopes=["episode"]).hits[0].client_id == "a"
        )
        local = march.astimezone(timezone(timedelta(hours=2)))
        assert [h.object for h in memory.search("Ann", group="g", as_of=local, scopes=["fact"])] == ["Beta"]


def test_a_taken_id_raises_in_the_words_of_python(tmp_path):
    with kgray.open(tmp_path / "d", create=True) as memory:
        memory.add(ANN, kind="triples", group="g", at=0, id="a")
        with pytest.raises(InputError, match="id 'a' is taken by other content") as caught:
            memory.add(BETA, kind="triples", group="g", at=0, id="a")
        assert (caught.value.field, "--" in str(caught.value)) == ("id", False)
        assert memory.history("Ann Lee", group="g").facts[0].object == "Acme"
        report = memory.add(BETA, kind="triples", group="g", at=0, id="a", replace=True)
        assert (report.accepted, report.committed) == (1, 1)
        assert [fact.object for fact in memory.history("Ann Lee", group="g").facts] == ["Beta"]
        row = {"id": "a", "triples": ANN, "at": 0}
        for rows in ([row | {"group": "g"}], [row]):
            (refusal,) = memory.add_many(rows).refusals
            assert "--" not in refusal.reason


def test_entities_are_listed_and_called_by_name(tmp_path):
    with kgray.open(tmp_path / "d", create=True) as memory:
        memory.add([*ANN, *BETA], kind="triples", group="g", at=0, id="a")
        assert [(row.entity.name, row.facts) for row in memory.entities(group="g")] == [
            ("Ann Lee", 2), ("Acme", 1), ("Beta", 1),
        ]  # fmt: skip
        (beta,) = memory.entities("beta", group="g", limit=1)
        assert memory.history(beta.entity.id[:6], group="g").entity == beta.entity
        merged = memory.merge("acme", "Beta", group="g")
        assert memory.history("Acme", group="g").entity.aliases == ("Beta",)
        memory.undo(merged.sequence, group="g")
        with pytest.raises(NotFound, match="did you mean 'Ann Lee'"):
            memory.merge("Anne Lee", "Beta", group="g")
        with pytest.raises(InputError, match="limit"):
            memory.entities(group="g", limit=0)


async def test_what_was_retracted_is_added_again_where_it_is_asked_for(tmp_path):
    async with kgray.open_async(tmp_path / "d", create=True) as memory:
        for again, expected in ((False, (1, 0, 0)), (False, (0, 1, 1)), (True, (1, 0, 0))):
            report = await memory.add(ANN, kind="triples", group="g", at=0, id="a", again=again)
            assert (report.accepted, report.duplicate, report.still_retracted) == expected
            await memory.retract(group="g", episodes=["a"])
