"""A fault pauses only its group (R24), with the reason in the ledger; every other group continues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kgray.domain import times
from kgray.domain.records import Episode, Extraction, Operation
from kgray.errors import SettingsError, Unwritable
from kgray.graph.repair import differences
from kgray.ingest import window
from kgray.ingest.calls import Direct
from kgray.ingest.runner import Runner
from kgray.ports import ExtractionRequest, RowChanges
from kgray.ports.ingest import Totals
from kgray.schema import reads
from kgray.storage import ledger
from kgray.storage.ledger import request
from tests.graph.engine import Engine, engine_on, in_group, reading
from tests.graph.stores import EMBEDDED, SELDOM_ON_NEO4J
from tests.waiting import HANGS_S

EACH = 4
PAUSE_S = 600  # longer than any test takes: none is tried again by itself


@pytest.fixture(autouse=True)
def _long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "FIRST_PAUSE_S", PAUSE_S)
    monkeypatch.setattr(ledger, "LONGEST_PAUSE_S", 100 * PAUSE_S)


class Faulty:
    """A reader with a defect of any kind, which affects some episodes of the group `bad`."""

    identity = "faulty"

    def __init__(self, engine: Engine, error: Exception | None) -> None:
        self._inner, self.error = engine.parts.extractor, error

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Read an episode, or fail."""
        if self.error is not None and request.episode.group.endswith("bad") and request.episode.sequence == 2:
            raise self.error
        return await self._inner.extract(request)


def filled(stores: Any) -> Engine:
    """Return an engine with pending episodes in a group that will be paused, and in two other groups."""
    engine = engine_on(stores)
    facts = [{"source": "Al", "relation": "KNOWS", "target": "Bo"}]
    engine.accept(*(in_group(reading(n, [], facts), g) for n in range(EACH) for g in ("bad", "one", "two")))
    return engine


def run(engine: Engine, *, hangs_s: float | None = None, **parts: Any) -> tuple[Totals, Runner]:
    """Run until nothing more can be done. hangs_s: raise TimeoutError where that takes longer."""
    runner = Runner(replace(engine.parts, **parts))
    groups = [engine.named(group) for group in ("bad", "one", "two")]
    with engine.store.writing():
        return asyncio.run(asyncio.wait_for(runner.run(groups=groups), hangs_s)), runner


def state(engine: Engine, group: str = "bad") -> tuple[int, int, int]:
    """Return the numbers of committed, pending and paused episodes of a group."""
    counts = ledger.counts(engine.store, engine.named(group))[engine.named(group)]
    return counts.committed, counts.accepted + counts.extracted, counts.held


@SELDOM_ON_NEO4J
def test_a_defect_pauses_its_group_and_other_groups_continue(stores):
    engine = filled(stores)
    model = Faulty(engine, RuntimeError("said: Al's secret"))

    totals, _ = run(engine, extractor=model)

    assert totals.committed == 2 * EACH + 1
    assert (state(engine), state(engine, "one")) == ((1, EACH - 1, EACH - 1), (EACH, 0, 0))
    item = ledger.held(engine.store)[engine.named("bad")]
    assert (item.sequence, item.tries, item.reason) == (2, 1, "RuntimeError, a fault of kgray")
    assert 0 < item.again_at - times.now() <= PAUSE_S * times.SECOND
    model.error = None
    run(engine, extractor=model)
    assert state(engine) == (1, EACH - 1, EACH - 1)  # its pause is not over

    ledger.end_pause(engine.store, engine.named("bad"))
    run(engine, extractor=model)

    assert state(engine) == (EACH, 0, 0)
    assert engine.named("bad") not in ledger.held(engine.store)


@EMBEDDED
@pytest.mark.parametrize("function_name", ["keep", "stored_extraction"])
def test_a_defect_in_storing_or_loading_an_extraction_pauses_its_group(stores, monkeypatch, function_name):
    """A defect while an extraction is stored or loaded: the commit does not wait for ever."""
    engine, works = filled(stores), getattr(window, function_name)

    def defective(*arguments: Any) -> Any:
        episode = next(item for item in arguments if isinstance(item, Episode))
        if episode.group.endswith("bad") and episode.sequence == 2:
            raise ValueError("a row that cannot be read")
        return works(*arguments)

    monkeypatch.setattr(window, function_name, defective)
    totals, _ = run(engine, hangs_s=HANGS_S, late_s=0.1)

    assert totals.committed == 2 * EACH + 1
    assert ledger.held(engine.store)[engine.named("bad")].reason == "ValueError, a fault of kgray"


@EMBEDDED
def test_each_failure_lengthens_the_pause(stores):
    engine = filled(stores)
    model = Faulty(engine, RuntimeError("a bug"))
    pauses = []
    for tries in (1, 2, 3):
        run(engine, extractor=model)
        item = ledger.held(engine.store)[engine.named("bad")]
        assert item.tries == tries
        pauses.append((item.again_at - times.now()) / times.SECOND)
        ledger.end_pause(engine.store, None)
    assert [pytest.approx(n * PAUSE_S, abs=HANGS_S / 2) for n in (1, 4, 16)] == pauses


@EMBEDDED
def test_a_refused_write_pauses_only_its_group(stores):
    """A transaction that is too large for the server's memory, or a defect in writing."""
    engine = filled(stores)

    class Refusing(Direct):
        async def write(self, changes: Sequence[RowChanges]) -> None:
            bad = [c for c in changes if c.group.endswith("bad")]
            if any(c.sequence == 3 and c.recorded_at is not None for c in bad):
                raise Unwritable("too little memory for one transaction")
            await super().write(changes)

    totals, _ = run(engine, writer=Refusing(engine.store))

    assert totals.committed == 2 * EACH + state(engine)[0]
    assert state(engine)[0] < EACH == sum(state(engine)[:2])
    assert ledger.held(engine.store)[engine.named("bad")].reason.startswith("too little memory")
    assert differences(engine.store, engine.named("bad")) == []
    ledger.end_pause(engine.store, None)
    run(engine)
    assert state(engine) == (EACH, 0, 0)
    assert differences(engine.store, engine.named("bad")) == []


@EMBEDDED
def test_a_removal_runs_in_a_paused_group_and_resumes_it(stores):
    engine = filled(stores)
    group, model = engine.named("bad"), Faulty(engine, RuntimeError("a bug"))
    run(engine, extractor=model)
    (row,) = engine.store.rows(reads.EPISODES_AT, group, [2])
    request(engine.store, Operation(group=group, kind="remove", episodes=(row.id,)))

    run(engine, extractor=model)

    assert state(engine) == (EACH - 1, 0, 0)
    assert group not in ledger.held(engine.store)


@EMBEDDED
def test_a_settings_error_of_the_model_server_ends_the_run(stores):
    """A wrong key or model name is no fault of a group."""
    engine = filled(stores)
    with pytest.raises(SettingsError, match="wrong key"):
        run(engine, extractor=Faulty(engine, SettingsError("the server refused: wrong key")))
    assert engine.named("bad") not in ledger.held(engine.store)
