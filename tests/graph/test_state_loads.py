"""A group's state on its way from the store, while the group is forgotten, checked or written to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kgray.domain.records import Operation
from kgray.errors import Unwritable
from kgray.ingest.calls import Direct, journaled
from kgray.ingest.committer import Committer
from kgray.ingest.correct import withdraw_requested
from kgray.ingest.state import GroupState
from kgray.ports import Judged, QuestionRequest, RowChanges
from kgray.ports.ingest import embedded
from kgray.storage.ledger import pending, request
from tests.graph.by_hand import answered
from tests.graph.engine import SMALL, Engine, fingerprint, triples, works
from tests.graph.test_erasure import Away


def test_a_group_forgotten_before_its_load_starts_is_still_loaded(tmp_path: Path) -> None:
    """The load is a task, which begins a moment later."""
    engine = Engine(tmp_path)
    engine.add(triples(1, works("Acme")))

    async def loaded() -> GroupState:
        committer = Committer(engine.parts, writes=False)
        load = asyncio.create_task(committer.state("g"))
        await asyncio.sleep(0)
        committer.forget("g")
        return await load

    stored_state = GroupState.load(engine.store, "g", SMALL.dimensions)
    assert fingerprint(asyncio.run(loaded())) == fingerprint(stored_state)


def test_a_cancelled_load_does_not_block_the_next_load(tmp_path: Path) -> None:
    """A cancelled run cancels the loads, too; the next run loads again, in another loop."""
    engine = Engine(tmp_path)
    engine.add(triples(1, works("Acme")))
    committer = Committer(engine.parts, writes=False)

    async def cancelled() -> None:
        load = asyncio.create_task(committer.state("g"))
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait((load,))
        assert load.cancelled()

    asyncio.run(cancelled())
    assert asyncio.run(committer.state("g")).group == "g"


def test_a_state_may_be_evicted_while_it_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at the store may run in a thread; a load may end in this time, which drops other states."""
    engine = Engine(tmp_path)
    engine.add(triples(1, works("Acme")))
    heads = engine.store.heads

    async def checked() -> None:
        committer = Committer(engine.parts, writes=False)
        await committer.state("g")

        def dropping(groups: Any = None) -> Any:
            committer.forget("g")
            return heads(groups)

        monkeypatch.setattr(engine.store, "heads", dropping)
        await committer.forget_stale()
        assert committer.kept("g") is None

    asyncio.run(checked())


class Slow(Direct):
    """A writer that waits until it is let."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.store)
        self.begun, self.may = asyncio.Event(), asyncio.Event()

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Wait, then write."""
        self.begun.set()
        await self.may.wait()
        await super().write(changes)


def test_decisions_wait_for_vectors_missing_after_a_removal(tmp_path: Path) -> None:
    """R27: of two episodes that wait for the group's state, the second does not get it without them.

    A comparison reads the vectors from the store, so they must be there when it begins.
    """
    engine = Engine(tmp_path)
    for n, word in enumerate(("toils", "works"), 1):
        engine.add(triples(n, works("Acme", text=f"Alice {word} at Acme"), client_id=word))
    request(engine.store, Operation(group="g", kind="remove", episodes=("toils",)))

    async def states() -> None:
        writer = Slow(engine)
        committer = Committer(replace(engine.parts, writer=writer))
        first = asyncio.create_task(committer.state("g"))
        await writer.begun.wait()
        second = asyncio.create_task(committer.state("g"))
        finished, _ = await asyncio.wait((second,), timeout=0.3)
        writer.may.set()
        [statement] = (await first).graph.statements
        result = await committer.statement_vectors("g", [statement])
        assert result[statement] is not None
        assert await second is await first
        assert not finished

    with engine.store.writing():
        asyncio.run(withdraw_requested(engine.store, partial(embedded, Away()), "g"))
        asyncio.run(states())


class Refuses:
    """A writer that refuses everything; the group is forgiven before anybody else looks, as by its hold."""

    def __init__(self) -> None:
        self.committer: Committer | None = None

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Refuse it."""
        assert self.committer is not None
        asyncio.get_running_loop().call_soon(self.committer.forgive, changes[0].group)
        raise Unwritable("not here")


def test_a_correction_whose_write_was_refused_is_not_done(tmp_path: Path) -> None:
    """The runner may pause the group before the correction continues."""
    engine = Engine(tmp_path)
    engine.add(triples(1, works("Acme"), client_id="a"))
    operation = Operation(group="g", kind="retract", episodes=("a",))
    operation = replace(operation, sequence=request(engine.store, operation))

    async def corrected() -> None:
        writer = Refuses()
        writer.committer = Committer(replace(engine.parts, writer=writer))
        with pytest.raises(Unwritable, match="not written"):
            await writer.committer.correct(operation)

    asyncio.run(corrected())


def test_answers_journaled_by_another_process_are_used(tmp_path: Path) -> None:
    """R21: after some questions the keys of the journal are cached, but only for one run."""
    engine = Engine(tmp_path)
    engine.accept(triples(1, works("Acme")))
    (episode,) = pending(engine.store, "g", 1)
    requests: list[QuestionRequest] = []

    class Counting:
        identity = "counting"

        async def judge(self, request: QuestionRequest) -> Judged:
            requests.append(request)
            return Judged(answers=({"duplicate_of": None},))

    async def ask(committer: Committer, key: str) -> tuple[Any, ...]:
        request = QuestionRequest(episode=episode, questions=())
        return (await journaled(replace(engine.parts, judge=Counting()), committer.outbox, request, key))[0]

    async def play() -> None:
        committer = Committer(engine.parts)
        for number in range(10):
            await ask(committer, f"new {number}")
        await committer.outbox.flush()
        engine.store.apply([answered(1, "theirs", {"duplicate_of": 0})])
        await committer.forget_stale()
        assert await ask(committer, "theirs") == ({"duplicate_of": 0},)

    with engine.store.writing():
        asyncio.run(play())
    assert len(requests) == 10
