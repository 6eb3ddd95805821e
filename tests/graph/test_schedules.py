"""Schedules: the times of a zone, of missed ones only the latest, and each carried out once."""

from __future__ import annotations

import asyncio

import pytest

import kgray
from kgray.errors import InputError, NotFound, Unavailable
from kgray.memory.schedules import Schedule, carry_out
from kgray.times import parse, show


def at(text):
    return parse(text)[0]


MADE = at("2026-03-01T12:00:00Z")


@pytest.mark.parametrize(
    ("cron", "zone", "now", "due", "following"),
    [
        pytest.param(
            "0 3 * * *", "UTC", "2026-03-02T02:59:59Z",
            None, "2026-03-02T03:00:00", id="not-yet",
        ),
        pytest.param(
            "0 3 * * *", "UTC", "2026-03-02T03:00:00Z",
            "2026-03-02T03:00:00", "2026-03-03T03:00:00", id="now",
        ),
        pytest.param(
            "0 3 * * *", "UTC", "2026-03-09T17:00:00Z",
            "2026-03-09T03:00:00", "2026-03-10T03:00:00", id="latest-alone",
        ),
        pytest.param(
            "0 3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z",
            "2026-03-28T02:00:00", "2026-03-29T01:00:00", id="zone",
        ),
        pytest.param(
            "30 2 * * *", "Europe/Berlin", "2026-03-29T04:00:00Z",
            "2026-03-29T01:00:00", "2026-03-30T00:30:00", id="skipped-hour",
        ),
        pytest.param(
            "30 2 * * *", "Europe/Berlin", "2026-10-25T12:00:00Z",
            "2026-10-25T00:30:00", "2026-10-26T01:30:00", id="hour-twice",
        ),
    ],
)  # fmt: skip
def test_what_is_due_and_what_comes_next(cron, zone, now, due, following):
    schedule = Schedule("s", cron, zone, MADE)

    assert show(schedule.due(at(now))) == (due and f"{due}.000000Z")
    assert show(schedule.next(at(now))) == f"{following}.000000Z"


@pytest.fixture
def schedules(tmp_path):
    with kgray.open(tmp_path) as memory:
        yield memory.schedules


class Work:
    """Counts what is asked for; takes so many seconds of the clock, and may fail."""

    def __init__(self, now):
        self.now, self.began, self.fails, self.takes = at(now), [], None, 0

    def clock(self):
        return self.now

    async def refresh(self):
        self.began.append(show(self.now)[:16])
        self.now += self.takes * 1_000_000
        if self.fails is not None:
            raise self.fails
        return "1 of 1 groups refreshed"

    def look(self, schedules):
        return asyncio.run(carry_out(schedules, self.clock, self.refresh))


def test_each_time_is_carried_out_once_and_a_missed_one_once(schedules):
    schedules.add("nightly", " 0  3 * * * ", "UTC", MADE)
    work = Work("2026-03-02T02:00:00Z")
    assert show(work.look(schedules)).startswith("2026-03-02T03:00")
    for now in (
        "2026-03-02T03:00:01Z",
        "2026-03-02T03:00:06Z",
        "2026-03-09T08:00:00Z",
        "2026-03-09T08:00:05Z",
    ):
        work.now = at(now)
        work.look(schedules)

    assert work.began == ["2026-03-02T03:00", "2026-03-09T08:00"]
    (kept,) = schedules.every()
    assert (kept.cron, kept.said, show(kept.begun)[:16]) == (
        "0 3 * * *",
        "1 of 1 groups refreshed",
        "2026-03-09T03:00",
    )


def test_two_that_are_due_run_one_after_another_and_what_passed_meanwhile_is_not_made_up_twice(schedules):
    schedules.add("a", "* * * * *", "UTC", MADE)
    schedules.add("b", "*/2 * * * *", "UTC", MADE)
    work = Work("2026-03-01T12:10:00Z")
    work.takes = 300
    work.look(schedules)
    work.takes = 0
    work.look(schedules)
    work.look(schedules)

    assert work.began == ["2026-03-01T12:10", "2026-03-01T12:15", "2026-03-01T12:20", "2026-03-01T12:20"]


def test_a_fault_is_kept_in_a_line_and_the_others_go_on(schedules):
    for name in ("first", "second"):
        schedules.add(name, "0 3 * * *", "UTC", MADE)
    work = Work("2026-03-02T03:00:01Z")
    work.fails = KeyError("a word of a text")
    work.look(schedules)
    assert [(one.said, one.ended_at is None) for one in schedules.every()] == [
        ("failed: KeyError", False)
    ] * 2
    assert len(work.began) == 2


def test_one_that_was_interrupted_is_begun_again_three_times_at_most(schedules):
    schedules.add("nightly", "0 3 * * *", "UTC", MADE)
    work = Work("2026-03-02T03:00:00Z")
    work.fails = KeyboardInterrupt()
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            work.look(schedules)
    work.look(schedules)
    assert len(work.began) == 3

    work.now, work.fails = at("2026-03-03T03:00:00Z"), Unavailable("the model is away")
    work.look(schedules)
    work.look(schedules)
    assert len(work.began) == 4
    assert schedules.every()[0].said == "failed: the model is away"


def test_one_that_is_removed_meanwhile_does_not_come_back(schedules):
    schedules.add("nightly", "0 3 * * *", "UTC", MADE)
    work = Work("2026-03-02T03:00:00Z")

    async def remove():
        schedules.remove("nightly")
        return "done"

    work.refresh = remove
    assert work.look(schedules) is None
    assert schedules.every() == []
    with pytest.raises(NotFound, match="no schedule 'nightly'"):
        schedules.remove("nightly")


@pytest.mark.parametrize(
    ("name", "cron", "zone", "said"),
    [
        ("n", "0 3 * *", "UTC", "five fields"),
        ("n", "0 0 0 3 * *", "UTC", "five fields"),
        ("n", "61 * * * *", "UTC", "Bad minute"),
        ("n", "0 0 31 2 *", "UTC", "day-of-month"),
        ("n", "0 3 * * *", "Mars/Base", "zone 'Mars/Base'"),
        ("n", "0 3 * * *", "../secret", "zone"),
        ("n", "0 3 * * *", "America", "zone"),
        ("a b", "0 3 * * *", "UTC", "no name"),
    ],
)
def test_what_cannot_be_used_is_refused(schedules, name, cron, zone, said):
    with pytest.raises(InputError, match=said):
        schedules.add(name, cron, zone, MADE)
    assert schedules.every() == []


def test_the_same_again_is_no_change_and_another_under_its_name_is_refused(schedules):
    first = schedules.add("n", "0 3 * * *", "UTC", MADE)
    assert schedules.add("n", "0 3 * * *", "UTC", MADE + 5) == first
    with pytest.raises(InputError, match="kgray schedule remove n"):
        schedules.add("n", "0 4 * * *", "UTC", MADE)
