"""The gate in front of the model: places, urgency, the live lane's reserve."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kgray.ports.ingest import Gate, Urgency
from tests.waiting import HANGS_S


async def order_of(gate: Gate, wanting: Sequence[Urgency]) -> list[int]:
    """Return the order of admission, each staying for one turn of the loop."""
    entered: list[int] = []

    async def pass_gate(number: int, urgency: Urgency) -> None:
        async with gate.pass_through(urgency):
            entered.append(number)
            await asyncio.sleep(0)

    await asyncio.wait_for(asyncio.gather(*(pass_gate(n, w) for n, w in enumerate(wanting))), HANGS_S)
    return entered


async def test_waiters_are_ordered_by_lane_episode_step_and_length():
    wanting = [
        Urgency(False, 0, 1),  # takes the only place at once
        Urgency(True, 1, 1),
        Urgency(False, 9, 1),
        Urgency(False, 9, 0),
        Urgency(True, 1, 0),
        Urgency(False, 9, 1, -50),
    ]

    assert await order_of(Gate(1), wanting) == [0, 3, 5, 2, 4, 1]


async def test_bulk_calls_leave_reserved_places_free():
    gate = Gate(3)
    gate.hold_back(1)
    admitted: list[str] = []
    leave = asyncio.Event()

    async def pass_gate(name: str, *, bulk: bool) -> None:
        async with gate.pass_through(Urgency(bulk, len(name), 1)):
            admitted.append(name)
            await leave.wait()

    tasks = [asyncio.create_task(pass_gate(name, bulk=True)) for name in ("a", "bb", "ccc")]
    await asyncio.sleep(0)
    assert admitted == ["a", "bb"]
    tasks.append(asyncio.create_task(pass_gate("live", bulk=False)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert admitted == ["a", "bb", "live"]
    gate.hold_back(0)  # three are in: there is no place to give
    leave.set()
    await asyncio.gather(*tasks)
    assert admitted == ["a", "bb", "live", "ccc"]


async def test_a_cancelled_waiter_does_not_occupy_a_place():
    gate = Gate(1)
    async with gate.pass_through(Urgency(False, 0, 0)):
        waiting = asyncio.create_task(order_of(gate, [Urgency(False, 1, 0)]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert await order_of(gate, [Urgency(True, 5, 1)]) == [0]


@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 1)), max_size=20),
)
def test_every_waiter_is_admitted_within_the_width(width, held_back, wanting):
    async def run() -> None:
        gate = Gate(width)
        gate.hold_back(min(held_back, width - 1))
        count = [0]

        async def pass_gate(urgency: Urgency) -> None:
            async with gate.pass_through(urgency):
                count[0] += 1
                assert count[0] <= width
                await asyncio.sleep(0)
                count[0] -= 1

        await asyncio.wait_for(asyncio.gather(*(pass_gate(Urgency(*wish)) for wish in wanting)), 10)

    asyncio.run(run())
