"""The router over workers: distribution of parts, parts of a lost worker, reports to callers."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from kgray.errors import InvalidAnswer, SettingsError, Unavailable
from kgray.runtime.pooled import Chunker, OnWorkers
from kgray.runtime.pools import (
    LEAVING,
    OUTAGES_CHANGED,
    UNFIT,
    ActorEnded,
    Lost,
    Numbered,
    Pool,
    Unfit,
    answer_within,
    outcome_of,
)
from kgray.runtime.upkeep import PoolSize
from kgray.system.outages import OUTAGES, Outage

Answers = Callable[[Any], Awaitable[Any]]


def up(pool: Pool) -> list[str]:
    """Return the names of the workers that are neither missing nor quarantined."""
    return [row["name"] for row in pool.stats() if not row["missing"] and "fault" not in row]


class Hands:
    """A worker in this process: it answers calls concurrently by the test's function."""

    def __init__(self, name: str, answers: Answers) -> None:
        self.name, self.answers = name, answers
        self.chunks: list[list[Any]] = []
        self.numbers: list[int] = []
        self.abandoned: list[int] = []
        self.restarts = 0
        self.lost = asyncio.Event()  # its process goes away
        self.hangs = False

    async def work(self, chunk: Sequence[Numbered]) -> AsyncIterator[Sequence[Numbered]]:
        self.chunks.append([request for _, request in chunk])
        self.numbers += [number for number, _ in chunk]
        tasks = {asyncio.ensure_future(self._judgement(request)): number for number, request in chunk}
        loss = asyncio.ensure_future(self.lost.wait())
        pending: set[Any] = {*tasks, loss}
        try:
            while pending != {loss}:
                ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if loss in ended:
                    raise Lost(f"{self.name} died")
                yield [(tasks[task], task.result()) for task in ended]
        finally:
            for task in pending:
                task.cancel()

    async def _judgement(self, request: Any) -> Any:
        return await outcome_of(self.answers(request))

    def abandon(self, numbers: Sequence[int]) -> None:
        self.abandoned += numbers

    async def health(self) -> None:
        if self.lost.is_set():
            raise Lost(f"{self.name} died")
        if self.hangs:
            await asyncio.Event().wait()

    def restart(self) -> None:
        self.restarts += 1
        self.hangs = False


async def echo(request: Any) -> Any:
    return f"<{request}>"


async def never(_: Any) -> Any:
    await asyncio.Event().wait()


def pool_of(
    *workers: Hands, patience_s: float = 60.0, deadline_s: float = 60.0, answer_s: float = 600.0
) -> Pool:
    return Pool(
        workers,
        patience_s=patience_s,
        answer_deadline_s=answer_s,
        health_every_s=0.01,
        health_deadline_s=deadline_s,
    )


async def test_simultaneous_calls_form_chunks_for_the_least_loaded_worker():
    first, second = Hands("first", echo), Hands("second", echo)
    calls = Chunker(pool_of(first, second), size=3, linger_s=0.001)

    answers = await asyncio.gather(*(calls.ask(n) for n in range(7)))

    assert answers == [f"<{n}>" for n in range(7)]
    assert (first.chunks, second.chunks) == ([[0, 1, 2], [6]], [[3, 4, 5]])


async def test_a_finished_call_does_not_wait_for_its_chunk():
    slow = asyncio.Event()

    async def answers(request: Any) -> Any:
        if request == "slow":
            await slow.wait()
        return request

    calls = Chunker(pool_of(Hands("one", answers)), size=2, linger_s=10.0)
    late = asyncio.create_task(calls.ask("slow"))
    await asyncio.sleep(0)

    assert await calls.ask("quick") == "quick"
    assert not late.done()
    slow.set()
    assert await late == "slow"


async def test_unfinished_calls_of_a_lost_worker_go_to_another_worker():
    async def one_of_two(request: Any) -> Any:
        if request == "second":
            await asyncio.Event().wait()
        return "from the first"

    first, second = Hands("first", one_of_two), Hands("second", echo)
    calls = Chunker(pool_of(first, second), size=2, linger_s=0.0)
    requests = [asyncio.create_task(calls.ask(name)) for name in ("first", "second")]
    assert await requests[0] == "from the first"
    first.lost.set()

    assert await requests[1] == "<second>"
    assert second.chunks == [["second"]]


async def test_a_hanging_worker_is_restarted_and_its_calls_go_to_another_worker():
    hung, healthy = Hands("hung", echo), Hands("other", echo)
    calls = Chunker(pool_of(hung, healthy, deadline_s=0.02), size=1, linger_s=0.0)
    assert await calls.ask("first") == "<first>"
    hung.answers, hung.hangs = never, True

    assert await calls.ask("a") == "<a>"
    assert (hung.restarts, hung.chunks[-1], healthy.chunks[-1]) == (1, ["a"], ["a"])


async def test_a_worker_that_never_answered_is_not_restarted():
    """It loads a model for longer than any deadline, or has no node yet; another worker answers."""
    loading, healthy = Hands("loading", never), Hands("other", echo)
    loading.hangs = True
    calls = Chunker(pool_of(loading, healthy, deadline_s=0.02), size=1, linger_s=0.0)

    assert [await calls.ask(name) for name in ("a", "b", "c")] == ["<a>", "<b>", "<c>"]
    assert (loading.restarts, loading.chunks) == (0, [["a"]])
    loading.hangs, loading.answers = False, echo
    while len(loading.chunks) < 2:  # it has come up: it is asked again
        assert await asyncio.gather(*(calls.ask(n) for n in range(2))) == ["<0>", "<1>"]
        await asyncio.sleep(0.01)


async def test_a_worker_with_an_unknown_failure_is_restarted():
    async def broken(_: Any) -> Any:
        raise ZeroDivisionError

    first, second = Hands("first", broken), Hands("second", echo)

    assert await Chunker(pool_of(first, second), size=1, linger_s=0.0).ask("a") == "<a>"
    assert (first.restarts, second.chunks) == (1, [["a"]])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):  # everywhere: then it is the request
        await Chunker(pool_of(first, Hands("third", broken)), size=1, linger_s=0.0).ask("a")


async def test_an_answer_during_a_blocked_event_loop_is_not_a_timeout():
    async def answered() -> str:
        await asyncio.sleep(0.01)
        return "in time"

    asyncio.get_running_loop().call_later(0.001, time.sleep, 0.2)
    assert await answer_within(answered(), 0.05) == "in time"
    with pytest.raises(TimeoutError):
        await answer_within(never(None), 0.01)


async def test_calls_that_a_live_worker_does_not_answer_go_to_another_worker():
    """Its answer stream was lost: the worker passes its health check, so it is not restarted."""

    async def all_but_one(request: Any) -> Any:
        return await (never if request == "lost" else echo)(request)

    mute, healthy = Hands("mute", all_but_one), Hands("other", echo)
    calls = Chunker(pool_of(mute, healthy, answer_s=0.1), size=2, linger_s=0.0)

    assert await asyncio.gather(calls.ask("lost"), calls.ask("quick")) == ["<lost>", "<quick>"]

    # On a slow machine the deadline may end a call that is answered, too.
    assert (mute.restarts, mute.numbers[0] in mute.abandoned) == (0, True)
    assert "lost" in [request for chunk in healthy.chunks for request in chunk]


async def test_the_caller_gets_an_error_if_no_worker_answers():
    mute = Hands("mute", never)
    pool = pool_of(mute, patience_s=0.1, answer_s=0.1)

    with pytest.raises(Unavailable, match=r"mute lives, and gave no answer within 0\.1 s"):
        await Chunker(pool, size=1, linger_s=0.0).ask("a")

    assert (len(mute.chunks), pool.stats()[0]["in_flight"]) == (2, 0)


async def test_an_outage_is_reported_until_an_answer_arrives():
    """An outage of the workers is reported by the router; an outage of a server by the waiting worker."""
    down = Outage(what="a server", reason="is down", since=1.0, until=2.0)

    class Waiting(Hands):
        async def work(self, chunk: Sequence[Numbered]) -> AsyncIterator[Sequence[Numbered]]:
            yield [(OUTAGES_CHANGED, (down,))]
            assert [item.what for item in OUTAGES.current()] == ["a server", "the workers"]
            yield [(OUTAGES_CHANGED, ())]
            async for ended in super().work(chunk):
                yield ended

    first, second = Waiting("first", echo), Hands("second", echo)
    second.lost.set()
    calls = Chunker(pool_of(second, first), size=1, linger_s=0.0)

    assert await calls.ask("a") == "<a>"

    assert (len(second.chunks), OUTAGES.current()) == (1, [])


async def test_an_outage_report_ends_when_its_worker_has_no_calls():
    down = Outage(what="a server", reason="is down", since=1.0, until=2.0)

    class Waiting(Hands):
        async def work(self, chunk: Sequence[Numbered]) -> AsyncIterator[Sequence[Numbered]]:
            yield [(OUTAGES_CHANGED, (down,))]
            reported.set()
            async for ended in super().work(chunk):
                yield ended

    reported = asyncio.Event()
    pool = pool_of(Waiting("first", never))
    request = asyncio.create_task(Chunker(pool, size=1, linger_s=0.0).ask("a"))
    await reported.wait()
    assert OUTAGES.current() == [down]
    request.cancel()
    await pool.close()

    assert OUTAGES.current() == []


async def test_a_leaving_worker_returns_its_calls_and_gets_no_new_calls():
    class Leaving(Hands):
        async def work(self, chunk: Sequence[Numbered]) -> AsyncIterator[Sequence[Numbered]]:
            self.chunks.append([request for _, request in chunk])
            yield [(chunk[0][0], "<ended>")]
            yield [(LEAVING, None)]

        async def health(self) -> None:
            raise Lost("it takes no more work")

    leaving, stays = Leaving("leaving", never), Hands("stays", echo)
    pool = pool_of(leaving, stays)
    calls = Chunker(pool, size=3, linger_s=0.0)

    assert await asyncio.gather(*map(calls.ask, "abc")) == ["<ended>", "<b>", "<c>"]
    assert await asyncio.gather(*map(calls.ask, "def")) == ["<d>", "<e>", "<f>"]

    assert (len(leaving.chunks), up(pool), OUTAGES.current()) == (1, ["stays"], [])


class Bad(Hands):
    """A worker with a failed start: it reports that at once, until it is restarted."""

    fault: Exception | None = SettingsError("no memory on the card")

    async def work(self, chunk: Sequence[Numbered]) -> AsyncIterator[Sequence[Numbered]]:
        if self.fault is None:
            async for ended in super().work(chunk):
                yield ended
            return
        self.chunks.append([request for _, request in chunk])
        yield [(UNFIT, self.fault)]

    async def health(self) -> None:
        if self.fault is not None:
            raise Unfit(self.fault)


@pytest.mark.parametrize(("workers", "calls"), [(8, 2000), (100, 4000)])
async def test_a_worker_that_failed_to_start_gets_no_calls(workers: int, calls: int) -> None:
    """It is no outage, because no caller waits. After a successful start it works like the others."""
    bad = Bad("bad", echo)
    pool = pool_of(*(Hands(f"good {n}", echo) for n in range(workers - 1)), bad)
    chunks = Chunker(pool, size=4, linger_s=0.0)
    call_numbers = iter(range(calls))

    async def ask() -> None:
        for n in call_numbers:
            assert await chunks.ask(n) == f"<{n}>"

    await asyncio.gather(*(ask() for _ in range(4 * workers)))

    assert len(bad.chunks) == 1, "the one by which the router learned of it"
    assert len(up(pool)) == workers - 1
    assert [row["name"] for row in pool.stats() if "fault" in row] == ["bad"]
    assert OUTAGES.current() == []
    bad.fault = None
    requests = asyncio.gather(*(Chunker(pool, size=1, linger_s=0.0).ask(n) for n in range(workers)))
    await requests
    await wait_until(lambda: len(up(pool)) == workers)
    await asyncio.gather(*(Chunker(pool, size=1, linger_s=0.0).ask(n) for n in range(workers)))
    assert len(bad.chunks) == 2
    await pool.close()


@pytest.mark.parametrize("among", [(), ("good",)], ids=["all are bad", "one has no node"])
async def test_a_settings_error_fails_calls_only_if_every_worker_reports_it(among: tuple[str, ...]) -> None:
    """A worker that has not started yet may still succeed: callers wait for it."""
    bad = [Bad(f"bad {n}", echo) for n in range(4)]
    late = [Hands(name, echo) for name in among]
    for item in late:
        item.lost.set()
    pool = pool_of(*bad, *late)
    calls = Chunker(pool, size=1, linger_s=0.0)

    requests = [asyncio.create_task(calls.ask(n)) for n in range(20)]
    if late:
        await asyncio.sleep(0.05)
        assert not any(item.done() for item in requests)
        late[0].lost.clear()
        assert await asyncio.gather(*requests) == [f"<{n}>" for n in range(20)]
    else:
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        assert {str(item) for item in outcomes} == {"no memory on the card"}
        assert OUTAGES.current() == []
        for item in bad:  # a repeated request gets a new answer
            item.fault = None
        assert await calls.ask("a") == "<a>"
    assert all(len(item.chunks) <= 6 for item in bad), "not each call asks each of them"
    await pool.close()


async def test_a_settings_error_of_one_worker_fails_no_call() -> None:
    """Its node may lack the key: the worker is tried again after growing pauses."""

    async def unknown(_: Any) -> Any:
        raise SettingsError("the server does not take the key")

    first, second = Hands("first", unknown), Hands("second", echo)
    pool = pool_of(first, second)
    calls = Chunker(pool, size=1, linger_s=0.0)
    for n in range(300):
        assert await calls.ask(n) == f"<{n}>"
        await asyncio.sleep(0.001)
    assert 1 < len(first.chunks) < 20
    second.answers = unknown
    with pytest.raises(SettingsError, match="does not take the key"):
        await calls.ask("a")
    await pool.close()


async def test_a_request_with_a_settings_error_fails_and_others_succeed() -> None:
    async def answers(request: Any) -> Any:
        if request == "bad":
            raise SettingsError("no such model")
        return request

    pool = pool_of(*(Hands(f"{n}", answers) for n in range(3)))
    calls = Chunker(pool, size=1, linger_s=0.0)

    async def other_calls() -> None:
        while not bad.done():
            assert await calls.ask("good") == "good"

    bad = asyncio.create_task(calls.ask("bad"))
    await asyncio.gather(*(other_calls() for _ in range(6)))
    with pytest.raises(SettingsError, match="no such model"):
        await bad
    await pool.close()


async def test_a_caller_gets_an_error_after_the_patience_if_no_worker_is_alive():
    dead = Hands("gone", echo)
    dead.lost.set()
    pool = pool_of(dead, patience_s=0.1)

    with pytest.raises(Unavailable, match="no worker answers: gone died") as caught:
        await Chunker(pool, size=1, linger_s=0.0).ask("a")

    assert caught.value.waited
    assert len(dead.chunks) >= 2
    assert OUTAGES.why() == "the workers do not answer (gone died)"


async def test_a_caller_gets_the_original_error():
    async def answers(request: Any) -> Any:
        if request == "bad":
            raise InvalidAnswer("no usable answer", raw="{")
        if request == "out":
            raise Unavailable("429", waited=True)
        return request

    pool = pool_of(Hands("one", answers))
    calls = Chunker(pool, size=8, linger_s=0.0)

    bad, out = await asyncio.gather(calls.ask("bad"), calls.ask("out"), return_exceptions=True)

    assert (type(bad), str(bad), bad.raw) == (InvalidAnswer, "no usable answer", "{")
    assert (type(out), str(out), out.waited) == (Unavailable, "429", True)
    assert await calls.ask("good") == "good"


async def test_a_cancelled_call_frees_its_worker():
    worker = Hands("one", never)
    pool = pool_of(worker)
    call = asyncio.create_task(Chunker(pool, size=1, linger_s=0.0).ask("a"))
    await asyncio.sleep(0.01)

    call.cancel()
    await asyncio.wait((call,))

    assert call.cancelled()
    assert len(worker.numbers) == 1
    assert worker.abandoned == worker.numbers
    await pool.close()
    assert pool.stats()[0]["in_flight"] == 0


async def test_two_routers_over_one_worker_use_different_call_numbers():
    """Shards share workers, and a killed router leaves calls behind, so call numbers must be unique."""
    worker = Hands("one", echo)
    for _ in range(2):
        await asyncio.gather(*(Chunker(pool_of(worker), size=1, linger_s=0.0).ask(n) for n in range(3)))

    assert len(set(worker.numbers)) == len(worker.numbers) == 6


async def test_a_call_cancelled_before_sending_is_not_sent():
    worker = Hands("one", echo)
    calls = Chunker(pool_of(worker), size=8, linger_s=0.01)
    call = asyncio.create_task(calls.ask("a"))
    await asyncio.sleep(0)
    call.cancel()

    assert await calls.ask("b") == "<b>"
    assert worker.chunks == [["b"]]


@pytest.mark.parametrize(
    "error",
    [InvalidAnswer("bad", raw="x"), Unavailable("out", waited=True), SettingsError("no such model")],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_is_pickled_as_a_value(error):
    async def fails():
        raise error

    back = pickle.loads(pickle.dumps(await outcome_of(fails())))  # noqa: S301 - packed by this line

    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


async def test_an_unknown_error_becomes_a_runtime_error_with_its_name():
    async def fails():
        return 1 / 0

    back = await outcome_of(fails())

    assert (type(back), str(back)) == (RuntimeError, "ZeroDivisionError: division by zero")


async def test_the_end_of_a_surplus_worker_loses_no_calls():
    first, surplus = Hands("first", echo), Hands("further", echo)
    surplus.lost.set()  # it was not started
    pool = Pool([first, surplus], minimum=1, patience_s=60.0, answer_deadline_s=600.0, health_every_s=0.01)
    calls = Chunker(pool, size=1, linger_s=0.0)
    busy = asyncio.Event()

    async def waits(request: Any) -> Any:
        await busy.wait()
        return request

    first.answers = surplus.answers = waits
    requests = [asyncio.create_task(calls.ask(n)) for n in range(4)]
    await asyncio.sleep(0.05)
    assert (up(pool), first.chunks, surplus.chunks) == (["first"], [[0], [1], [2], [3]], [])
    assert [row["name"] for row in pool.stats()] == ["first"]

    surplus.lost.clear()  # it has come up
    await wait_until(lambda: len(up(pool)) == 2)
    requests += [asyncio.create_task(calls.ask(n)) for n in (4, 5)]
    await asyncio.sleep(0.01)
    assert surplus.chunks == [[4], [5]]
    assert len(pool.stats()) == 2

    surplus.lost.set()  # it was ended, or its node is lost: its parts go to the other workers
    await wait_until(lambda: len(up(pool)) == 1)
    busy.set()
    assert await asyncio.gather(*requests) == list(range(6))
    assert surplus.restarts == 0
    await pool.close()


async def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError


def row(running: int, idle_s: float = 0.0, *, loaded: bool = True) -> dict[str, Any]:
    return {"running": running, "idle_s": idle_s, "loaded": loaded}


def test_a_pool_doubles_while_all_workers_are_full_and_ends_idle_workers():
    size = PoolSize(minimum=1, maximum=5, takes=10, idle_s=60.0, full_at=0.0)

    assert size.update({0: row(10)}, 5.0) == ([], [])  # once is no reason
    assert size.update({0: row(9)}, 10.0) == ([1], [])  # chunks do not divide evenly
    assert size.update({0: row(10), 1: {}}, 15.0) == ([], [])  # it has no node yet, so the pool does not grow
    assert size.update({0: row(10), 1: row(0, loaded=False)}, 20.0) == ([], [])
    full = {0: row(12), 1: row(8)}
    assert [size.update(full, at) for at in (25.0, 30.0)] == [([], []), ([2, 3], [])]
    assert size.update({n: row(10) for n in range(4)}, 35.0) == ([], [])
    assert size.update({n: row(10) for n in range(4)}, 40.0) == ([4], [])
    assert size.update({n: row(10) for n in range(5)}, 45.0) == ([], [])
    assert size.update({n: row(10) for n in range(5)}, 50.0) == ([], [])  # there are no more

    bad = {0: row(10), 1: row(0, loaded=False) | {"fault": SettingsError("bad")}}  # others do its work
    assert [size.update(bad, at) for at in (51.0, 52.0)] == [([], []), ([2], [])]

    rows = {0: row(0, 99.0), 1: row(3), 2: row(0, 59.0), 3: row(0, 60.0), 4: {}}
    assert size.update(rows, 60.0) == ([], [3])  # the first stays; a requested worker is waited for
    assert size.update({0: row(0, 99.0), 4: {}}, 113.0) == ([], [4])  # and is not needed any longer


def test_a_pool_with_one_full_worker_does_not_grow():
    size = PoolSize(minimum=2, maximum=4, takes=10, idle_s=60.0)
    assert [size.update({0: row(16), 1: row(1)}, 1.0) for _ in range(3)] == [([], [])] * 3
    assert size.update({}, 1.0) == ([], [])


async def test_workers_that_end_on_every_call_are_unavailable_after_the_patience():
    class Ended(Hands):
        async def work(self, chunk: Sequence[Numbered]) -> AsyncIterator[Sequence[Numbered]]:
            self.chunks.append(chunk)
            raise ActorEnded(f"{self.name} has ended")
            yield

    ended = Ended("embedder-0", echo)
    calls = OnWorkers(lambda: pool_of(ended, patience_s=0.3), local=None)
    with pytest.raises(Unavailable, match="no worker answers: embedder-0 has ended"):
        await asyncio.wait_for(calls.ask("a"), 5)
    assert len(ended.chunks) > 1
