"""How seats of engines are divided among deciders: by simulated time, without processes."""

from __future__ import annotations

import pytest

from bench.seats import BULK, LIVE, TICK_S, Decider, simulate
from kgray.runtime.seats import Renewal, Seats, shares, wants


@pytest.mark.parametrize(
    ("wants", "seats", "expected"),
    [
        pytest.param({"a": 5, "b": 5}, 20, {"a": 5, "b": 5}, id="enough for all"),
        pytest.param({"a": 2, "b": 50, "c": 50}, 20, {"a": 2, "b": 9, "c": 9}, id="the modest is served"),
        pytest.param({"a": 9, "b": 9}, 0, {"a": 0, "b": 0}, id="none"),
        pytest.param({}, 5, {}, id="nobody"),
    ],
)
def test_shares_are_equal_up_to_each_holders_demand(
    wants: dict[str, int], seats: int, expected: dict[str, int]
) -> None:
    assert shares(wants, seats) == expected


def lease(
    seats: Seats,
    holder: str,
    wants: tuple[int, int],
    width: int,
    used: int,
    *,
    instant: float,
    process: str = "1",
    bulk_used: int | None = None,
) -> int:
    bulk = used if bulk_used is None and wants[1] else bulk_used or 0
    report = Renewal(holder=holder, process=process, wants=wants, width=width, used=used, bulk_used=bulk)
    return seats.renew(report, instant)


@pytest.mark.slow  # few seats are divided by default
def test_twenty_deciders_share_a_hundred_engines_of_128_seats() -> None:
    """Seats go to runs with work, in equal numbers; live calls go before all calls of a backfill."""
    seats = Seats(100 * 128, lease_s=10.0)
    deciders = [Decider(f"sequencer-{n}") for n in range(20)]
    for item in deciders[:2]:  # two have a backfill
        item.waiting[BULK].extend([0.0] * 500_000)
    used = simulate(deciders, seats, 0.0, 10.0)
    assert used[20] > 0.95 * seats.seats, "those with work have nearly all, within seconds"

    for item in deciders[2:]:  # then all have one
        item.waiting[BULK].extend([10.0] * 100_000)
    used = simulate(deciders, seats, 10.0, 20.0)
    assert min(used) > 0.8 * seats.seats, "seats that change hands are free until the next renewal"
    assert min(used[16:]) > 0.98 * seats.seats
    assert max(item.used for item in deciders) <= 1.1 * min(item.used for item in deciders)

    deciders[5].waiting[LIVE].extend([20.0] * 6_000)  # live calls of one decider for nearly half of the seats
    used = simulate(deciders, seats, 20.0, 30.0)
    assert len(deciders[5].waited) == 6_000
    assert max(deciders[5].waited) < 4.0, "as long as seats take to become free; its share alone took 16 s"
    assert min(used) > 0.75 * seats.seats

    for second in range(30, 40):  # a trickle of live calls everywhere waits for no backfill
        for item in deciders:
            item.waited.clear()
            item.waiting[LIVE].extend([float(second)] * 5)
        simulate(deciders, seats, second, second + 1)
        assert max(max(item.waited) for item in deciders) <= 2 * TICK_S


def test_a_live_call_does_not_wait_for_a_backfill_beyond_its_lease() -> None:
    """The next seat that becomes free is its own, at whichever decider a call ends."""
    seats, bulk = Seats(256, lease_s=10.0), (0, 500)
    assert lease(seats, "a", bulk, 1, 0, instant=0.0) == 256
    assert lease(seats, "b", bulk, 1, 0, instant=1.0) == 1
    assert lease(seats, "a", bulk, 256, 248, instant=2.0) == 128
    assert lease(seats, "b", bulk, 1, 1, instant=3.0) == 8

    both = (1, 500)
    assert lease(seats, "a", both, 128, 248, instant=4.0) == 248, "it may begin when a call ends here"
    assert lease(seats, "b", bulk, 8, 8, instant=5.0) == 7, "or there"
    assert lease(seats, "b", bulk, 7, 7, instant=6.0) == 7
    assert lease(seats, "a", both, 248, 248, instant=7.0) == 249
    assert lease(seats, "a", both, 249, 249, instant=8.0, bulk_used=248) < 130, "it runs: nothing is missing"


def test_live_calls_of_several_deciders_share_the_seats() -> None:
    seats = Seats(10, lease_s=10.0)
    assert lease(seats, "a", (5, 0), 1, 0, instant=0.0) == 5
    assert lease(seats, "b", (9, 0), 1, 0, instant=1.0) == 5
    assert lease(seats, "a", (5, 0), 5, 5, instant=2.0) == 5
    assert lease(seats, "b", (9, 0), 5, 5, instant=3.0) == 5


def test_a_lease_ends_with_its_holder() -> None:
    """It is returned, it runs out, or another process has the holder's name."""
    seats, bulk = Seats(100, lease_s=10.0), (0, 500)
    assert lease(seats, "a", bulk, 1, 0, instant=0.0) == 100
    assert lease(seats, "b", bulk, 1, 0, instant=1.0) == 1, "none starves, and the others shrink first"
    assert lease(seats, "a", bulk, 100, 100, instant=2.0) == 50
    assert lease(seats, "b", bulk, 1, 1, instant=3.0) == 1, "the calls of the first go on to their end"
    assert lease(seats, "a", bulk, 50, 60, instant=4.0) == 50
    assert lease(seats, "b", bulk, 1, 1, instant=5.0) == 40

    assert lease(seats, "a", bulk, 1, 0, instant=6.0, process="2") == 50, "of its former calls nobody waits"
    seats.end("a", "1")  # of the process before
    assert seats.leased() == {"a": 50, "b": 40}
    seats.end("a", "2")
    assert lease(seats, "b", bulk, 40, 40, instant=7.0) == 100
    assert lease(seats, "c", (9, 0), 1, 0, instant=17.5) == 9, "nobody has renewed the other one"
    assert seats.leased() == {"c": 9}


def test_a_restarted_registry_grants_seats_only_after_all_holders_report() -> None:
    seats = Seats(100, lease_s=10.0, opens_at=2.0)
    assert lease(seats, "a", (0, 500), 10, 10, instant=0.0) == 10
    assert lease(seats, "b", (0, 500), 90, 90, instant=1.0) == 90
    assert lease(seats, "a", (0, 500), 10, 10, instant=2.0) == 10
    assert lease(seats, "b", (0, 500), 90, 90, instant=3.0) == 50


def test_live_calls_have_precedence_over_every_backfill() -> None:
    seats, widths = Seats(1000, lease_s=60.0), {"bulk": 1, "live": 1}

    def renew(**wants: tuple[int, int]) -> None:
        for name, wish in wants.items():
            widths[name] = lease(seats, name, wish, widths[name], 0, instant=0.0)

    for _ in range(2):
        renew(bulk=(0, 5000), live=(900, 0))
    assert widths == seats.leased() == {"bulk": 100, "live": 900}
    seats.seats = 500  # engines have ended
    for _ in range(2):
        renew(bulk=(0, 5000), live=(900, 0))
    assert widths == {"bulk": 8, "live": 492}, "but for a few, by which new live work begins"


@pytest.mark.parametrize(
    ("demand", "used", "pending", "expected"),
    [
        pytest.param((0, 100), 100, 9000, (0, 9000), id="a backfill that goes on"),
        pytest.param((0, 100), 80, 9000, (0, 100), id="seats are free: the window is not yet full"),
        pytest.param((0, 60), 60, 0, (0, 60), id="all of it is in the window"),
        pytest.param((0, 0), 0, 9000, (0, 0), id="nothing is in the window: it is held, or not taken yet"),
        pytest.param((100, 0), 100, 500, (500, 0), id="live calls alone"),
        pytest.param((10, 90), 100, 9000, (10, 8990), id="live calls are exact beside a backfill"),
        pytest.param((300, 20), 100, 100, (300, 20), id="episodes with several calls each"),
    ],
)
def test_a_decider_requests_a_seat_for_each_possible_call(
    demand: tuple[int, int], used: int, pending: int, expected: tuple[int, int]
) -> None:
    assert wants(demand, used, 100, pending) == expected
