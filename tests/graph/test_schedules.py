"""Schedules: the ticks of a zone, of missed ones only the latest; one run at a time, each tick one job."""

from __future__ import annotations

import pytest

import kgray
from kgray.communities.schedules import LEASE, MAX_TRIES, JobState, Schedule, Ticks
from kgray.domain.times import SECOND, parse, show
from kgray.errors import InputError, KgrayError, NotFound, Unavailable


def at(text):
    return parse(text)[0]


MINUTE = 60 * SECOND
CREATED = at("2026-03-01T12:00:00Z")
NIGHT = "2026-03-02T03:00:00Z"


@pytest.mark.parametrize(
    ("cron", "zone", "moment", "due", "following"),
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
def test_the_due_tick_and_the_next_tick(cron, zone, moment, due, following):
    schedule = Schedule("s", cron, zone, CREATED, None, 0, None, "")

    assert show(schedule.due(at(moment))) == (due and f"{due}.000000Z")
    assert show(schedule.next(at(moment))) == f"{following}.000000Z"


@pytest.fixture
def schedules(tmp_path):
    with kgray.open(tmp_path, create=True) as memory:
        yield memory.admin.schedules


class JobServer:
    """The jobs of one Ray, which are as the test says; and the clock."""

    def __init__(self, moment):
        self.moment, self.jobs, self.fault, self.idle = at(moment), {}, None, True
        self.reported = []

    def submit(self, schedule):
        if self.fault is not None:
            raise self.fault
        self.jobs.setdefault(schedule.job, JobState("open"))

    def state(self, schedule):
        return self.jobs.get(schedule.job)

    def is_idle(self):
        return self.idle

    def end(self, state="succeeded", outcome="1 of 1 group refreshed"):
        """End the job that was submitted last."""
        self.jobs[[*self.jobs][-1]] = JobState(state, outcome)

    def look(self, schedules, moment=None, elapsed=0):
        self.moment = at(moment) if moment else self.moment + elapsed
        return Ticks(
            schedules, self, lambda: self.moment, lambda report: self.reported.append(report.said)
        ).look()


def test_each_tick_is_one_job_and_missed_ticks_are_caught_up_once(schedules):
    schedules.add("nightly", " 0  3 * * * ", "UTC", CREATED)
    server = JobServer("2026-03-02T02:00:00Z")
    assert show(server.look(schedules)).startswith("2026-03-02T03:00")
    assert server.jobs == {}
    for moment in ("2026-03-02T03:00:01Z", "2026-03-09T08:00:00Z"):
        server.look(schedules, moment)
        server.look(schedules, elapsed=SECOND)
        server.end()
        server.look(schedules, elapsed=SECOND)
        server.look(schedules, elapsed=SECOND)

    assert [*server.jobs] == ["nightly-20260302T0300Z", "nightly-20260309T0300Z"]
    (schedule,) = schedules.every()
    assert (schedule.cron, schedule.said, show(schedule.begun)[:16], schedule.is_open) == (
        "0 3 * * *",
        "1 of 1 group refreshed",
        "2026-03-09T03:00",
        False,
    )
    assert server.reported == ["1 of 1 group refreshed"] * 2


def test_runs_never_overlap_and_ticks_during_a_run_are_caught_up_once(schedules):
    """For one schedule, and for two: both would find the communities of the same groups."""
    schedules.add("a", "*/5 * * * *", "UTC", CREATED)
    schedules.add("b", "*/10 * * * *", "UTC", CREATED, full=True)
    server = JobServer("2026-03-01T12:10:00Z")
    for _ in range(4):  # each run takes 12 minutes
        server.look(schedules)
        for _ in range(12):
            assert sum(job.state == "open" for job in server.jobs.values()) == 1
            server.look(schedules, elapsed=MINUTE)
        server.end()

    ticks = ["a-20260301T1210Z", "b-20260301T1220Z", "a-20260301T1230Z", "b-20260301T1240Z"]
    assert [*server.jobs] == ticks


@pytest.mark.parametrize("starts_anew", [True, False], ids=["after-a-restart", "beside-it"])
def test_a_second_scheduler_finds_the_job_of_the_first(schedules, tmp_path, starts_anew):
    schedules.add("nightly", "0 3 * * *", "UTC", CREATED)
    server = JobServer(NIGHT)
    with kgray.open(tmp_path, create=True) as second_memory:
        for moment in (NIGHT, "2026-03-02T04:00:00Z", "2026-03-03T03:00:00Z"):
            if not starts_anew:
                server.look(schedules, moment)
            server.look(second_memory.admin.schedules, moment)
        assert [*server.jobs] == ["nightly-20260302T0300Z"]
        server.end()
        server.look(second_memory.admin.schedules)
        server.look(schedules)
    assert [*server.jobs] == ["nightly-20260302T0300Z", "nightly-20260303T0300Z"]


def test_two_schedulers_at_the_same_moment_take_a_tick_once(schedules):
    """Both have seen the schedule before it was begun; the later one changes nothing."""
    report = schedules.add("nightly", "0 3 * * *", "UTC", CREATED)
    first, second = (
        report._replace(begun=at(NIGHT), tries=1, seen_at=at(NIGHT) + offset) for offset in (0, 1)
    )

    assert schedules.replace(report, first)
    assert not schedules.replace(report, second)
    assert schedules.every() == [first]


def test_another_scheduler_submits_a_run_only_after_its_lease_expires(schedules):
    schedules.add("nightly", "0 3 * * *", "UTC", CREATED)
    owner, idle_server = JobServer(NIGHT), JobServer(NIGHT)
    owner.look(schedules)
    for _ in range(20):
        owner.look(schedules, elapsed=MINUTE)
        idle_server.look(schedules, elapsed=MINUTE)
    assert idle_server.jobs == {}
    idle_server.look(schedules, elapsed=LEASE)  # since then nobody has renewed it
    assert [*idle_server.jobs] == ["nightly-20260302T0300Z-2"]


def test_a_tick_waits_for_a_refresh_submitted_elsewhere(schedules):
    schedules.add("nightly", "0 3 * * *", "UTC", CREATED)
    server = JobServer(NIGHT)
    server.idle = False
    server.look(schedules)
    assert server.jobs == {}
    server.idle = True
    server.look(schedules, "2026-03-04T05:00:00Z")
    assert [*server.jobs] == ["nightly-20260304T0300Z"]


def test_a_failed_run_is_recorded_and_the_next_tick_runs(schedules):
    schedules.add("nightly", "0 3 * * *", "UTC", CREATED)
    server = JobServer(NIGHT)
    server.look(schedules)
    server.end("failed", "there is no group 'x'")
    server.look(schedules, elapsed=MINUTE)
    server.look(schedules, elapsed=MINUTE)
    (schedule,) = schedules.every()
    assert (schedule.said, schedule.has_failed) == ("failed: there is no group 'x'", True)
    assert (len(server.jobs), server.reported) == (1, ["failed: there is no group 'x'"])

    server.look(schedules, "2026-03-03T03:00:00Z")
    server.fault = KgrayError("Ray did not take the job: no such node")
    server.end()
    server.look(schedules, elapsed=MINUTE)
    assert not schedules.every()[0].has_failed
    server.look(schedules, "2026-03-04T03:00:00Z")
    assert schedules.every()[0].said == "failed: Ray did not take the job: no such node"


def test_a_killed_job_is_submitted_at_most_three_times(schedules):
    schedules.add("nightly", "0 3 * * *", "UTC", CREATED)
    server = JobServer(NIGHT)
    for _ in range(MAX_TRIES + 2):
        server.look(schedules, elapsed=SECOND)
        server.end("interrupted", "killed")
    job = "nightly-20260302T0300Z"
    assert [*server.jobs] == [job, f"{job}-2", f"{job}-3"]
    assert schedules.every()[0].said == "failed: killed"


def test_an_unreachable_job_server_does_not_count_as_a_try(schedules):
    schedules.add("nightly", "0 3 * * *", "UTC", CREATED)
    server = JobServer(NIGHT)
    server.fault = Unavailable("the job server is away")
    for _ in range(5):
        with pytest.raises(Unavailable):
            server.look(schedules, elapsed=MINUTE)
    server.fault = None
    server.look(schedules, elapsed=MINUTE)
    assert [*server.jobs] == ["nightly-20260302T0300Z"]
    server.end()
    server.look(schedules, elapsed=MINUTE)
    assert schedules.every()[0].tries == 1


def test_a_schedule_removed_during_its_run_stays_removed(schedules):
    schedules.add("nightly", "0 3 * * *", "UTC", CREATED)
    server = JobServer(NIGHT)
    server.look(schedules)
    schedules.remove("nightly")
    server.end()
    assert server.look(schedules) is None
    assert schedules.every() == []
    with pytest.raises(NotFound, match="no schedule 'nightly'"):
        schedules.remove("nightly")


@pytest.mark.parametrize(
    ("name", "cron", "zone", "line"),
    [
        ("n", "0 3 * *", "UTC", "five fields"),
        ("n", "0 0 0 3 * *", "UTC", "five fields"),
        ("n", "61 * * * *", "UTC", "Bad minute"),
        ("n", "0 0 30 2 *", "UTC", "day-of-month.*never comes"),
        ("n", "0 3 * * *", "Mars/Base", "zone 'Mars/Base'"),
        ("n", "0 3 * * *", "../secret", "zone"),
        ("n", "0 3 * * *", "America", "zone"),
        ("a b", "0 3 * * *", "UTC", "no name"),
    ],
)
def test_unusable_schedules_are_refused(schedules, name, cron, zone, line):
    with pytest.raises(InputError, match=line):
        schedules.add(name, cron, zone, CREATED)
    assert schedules.every() == []


def test_an_existing_schedule_name_is_refused(schedules):
    first = schedules.add("n", "0 3 * * *", "UTC", CREATED)
    for cron in ("0 3 * * *", "0 4 * * *"):
        with pytest.raises(InputError, match="kgray schedule remove n"):
            schedules.add("n", cron, "UTC", CREATED)
    assert schedules.every() == [first]


def test_default_schedules_are_added_only_to_an_empty_store(schedules):
    pair = {"due": "0 3 * * *", "full": "0 4 * * 0", "zone": "Europe/Berlin"}
    assert schedules.add_first(due="", full="", zone="UTC", now=CREATED) == []
    assert schedules.add_first(**pair, now=CREATED) == ["refresh-due", "refresh-full"]
    assert [(item.cron, item.zone, item.full) for item in schedules.every()] == [
        ("0 3 * * *", "Europe/Berlin", False),
        ("0 4 * * 0", "Europe/Berlin", True),
    ]
    schedules.remove("refresh-full")
    assert schedules.add_first(**pair, now=CREATED) == []
