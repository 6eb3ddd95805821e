"""Schedules for the refresh of communities: cron expressions in a time zone, stored as rows of `kinds.OWN`.

A tick is a moment that matches the expression of a schedule. A run is the refresh for a tick, done by a job.
A scheduler calls `Ticks.look` every few seconds. A job is named by its schedule and its tick, so a
restarted or additional scheduler recognises an existing job and submits no second job. If several ticks were
missed, only the latest gets a run. At most one run is open at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from kgray.domain.times import SECOND, Instant, from_datetime, show, to_datetime
from kgray.errors import InputError, KgrayError, NotFound, Unavailable
from kgray.ports import Appending, Store
from kgray.schema.kinds import OWN, SCHEDULES, ScheduleRow

FAILED = "failed: "  # begins the outcome of a run that failed
MAX_TRIES = 3  # jobs for one tick: a job that was killed is submitted again
# A scheduler may not know the job of an open run, because a scheduler of another Ray submitted it. The latter
# renews the run (`seen_at`) every RENEW_EVERY; a run without renewal for LEASE has lost its job.
RENEW_EVERY, LEASE = 30 * SECOND, 180 * SECOND
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Schedule(ScheduleRow):
    """A schedule and its latest run."""

    __slots__ = ()

    @property
    def is_open(self) -> bool:
        """True if the latest run has not ended."""
        return self.begun is not None and self.ended_at is None

    @property
    def has_failed(self) -> bool:
        """True if the latest run failed."""
        return self.said.startswith(FAILED)

    @property
    def job(self) -> str | None:
        """The name of the latest run's job in its store: schedule, tick, and the number of a later try."""
        if self.begun is None:
            return None
        tick = to_datetime(self.begun).strftime("%Y%m%dT%H%MZ")
        return f"{self.name}-{tick}{f'-{self.tries}' if self.tries > 1 else ''}"

    def next(self, moment: Instant) -> Instant:
        """Return the first tick after a moment. Raises StopIteration if there is none within 50 years."""
        return from_datetime(next(self._ticks(moment)))

    def due(self, moment: Instant) -> Instant | None:
        """Return the latest tick until a moment; None if it has a run, or is older than the schedule."""
        latest = from_datetime(next(self._ticks(moment + 1, reverse=True)))
        return latest if latest > (self.made_at if self.begun is None else self.begun) else None

    def as_dict(self, moment: Instant) -> dict[str, Any]:
        """Return the form of `kgray schedule list --json`; `next` is the first tick after the moment."""
        names = ("name", "cron", "zone", "full", "groups", "said", "job")
        state = {"running": self.is_open, "failed": self.has_failed}
        times = {"next": show(self.next(moment)), "last": show(self.begun)}
        return {name: getattr(self, name) for name in names} | state | times

    def _ticks(self, moment: Instant, *, reverse: bool = False) -> CronSim:
        return CronSim(self.cron, to_datetime(moment).astimezone(ZoneInfo(self.zone)), reverse=reverse)


class Schedules:
    """The schedules of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(
        self, name: str, cron: str, zone: str, made_at: Instant, *, full: bool = False,
        groups: Sequence[str] = (),
    ) -> Schedule:  # fmt: skip
        """Add a schedule. Raises InputError for a wrong value, or if the name is in use."""
        expression, groups = " ".join(cron.split()), tuple(dict.fromkeys(groups))
        schedule = Schedule(name, expression, zone, made_at, None, 0, None, "", full, groups)
        if not _NAME.fullmatch(name):
            rule = "letters, digits, '_', '.' and '-', 64 at most"
            raise InputError(f"{name!r} is no name of a schedule: {rule}", field="name")
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            raise InputError(
                f"zone {zone!r} is not known: use UTC, or a name such as Europe/Berlin", field="zone"
            ) from None
        try:
            if len(cron.split()) != 5:
                raise CronSimError("it needs five fields: minute, hour, day, month, weekday")
            schedule.next(made_at)
        except (CronSimError, StopIteration) as error:
            why = str(error) or "it never fires"
            why += ": there is no such day, or it never comes" * why.startswith("Bad day")
            raise InputError(f"cron {expression!r} cannot be used: {why}", field="cron") from None
        if missing := [group for group, head in self._store.heads(groups).items() if not head.named]:
            raise InputError(
                f"there is no group {missing[0]!r}: `kgray groups` shows their names", field="group"
            )
        if (existing := self._change(name, lambda stored: stored or schedule)) is not None:
            raise InputError(
                f"there is a schedule {name!r} already, {existing.cron!r} in {existing.zone}: "
                f"remove it first (kgray schedule remove {name})",
                field="name",
            )
        return schedule

    def add_first(self, *, due: str, full: str, zone: str, now: Instant) -> list[str]:
        """Add schedules with these expressions to a store without schedules; return the names.

        An empty expression adds no schedule.
        """
        if self.every():
            return []
        crons = {name: cron for name, cron in (("refresh-due", due), ("refresh-full", full)) if cron}
        for name, cron in crons.items():
            self.add(name, cron, zone, now, full=name == "refresh-full")
        return list(crons)

    def every(self) -> list[Schedule]:
        """Return all schedules, by name."""
        return [Schedule(*row) for row in self._store.rows(SCHEDULES.all, OWN)]

    def remove(self, name: str) -> None:
        """Remove a schedule; a job that runs is not ended. Raises NotFound."""
        if self._change(name, lambda _: None) is None:
            raise NotFound(f"there is no schedule {name!r}: `kgray schedule list` shows their names")

    def replace(self, old: Schedule, new: Schedule) -> bool:
        """Replace a schedule's state; return False, without a change, if the stored state is not `old`."""
        return self._change(old.name, lambda stored: new if stored == old else stored) == old

    def _change(self, name: str, change: Callable[[Schedule | None], Schedule | None]) -> Schedule | None:
        """Put the result of `change` in a schedule's place, in one transaction; return the earlier state."""

        def append(log: Appending) -> Schedule | None:
            every = (Schedule(*row) for row in log.rows(SCHEDULES.all, OWN))
            stored = next((schedule for schedule in every if schedule.name == name), None)
            new = change(stored)
            if new is not None and new != stored:
                if stored is None:
                    log.take_sequence(OWN)  # a group without sequences does not exist
                log.put(SCHEDULES, OWN, new)
            elif new is None and stored is not None:
                log.drop(SCHEDULES, OWN, (name,))
            return stored

        return self._store.append([OWN], append)


class JobState(NamedTuple):
    """The state of a job, and the outcome of an ended job in one line.

    interrupted   the job was killed, lost its node, or stopped early; another job continues its work
    """

    state: Literal["open", "succeeded", "failed", "interrupted"]
    outcome: str = ""


class Jobs(Protocol):
    """The job server, which runs scheduled refreshes. Each method may raise Unavailable."""

    def submit(self, schedule: Schedule) -> None:
        """Submit the job of the latest run, unless it exists already. Raises KgrayError if it is refused."""

    def state(self, schedule: Schedule) -> JobState | None:
        """Return the state of the job of the latest run; None if the server does not know the job."""

    def is_idle(self) -> bool:
        """Return True if no job refreshes the store."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """Starts and ends the runs of schedules. Any number of schedulers may call `look` on the same store.

    on_end   called once for each run that has ended, with its schedule
    """

    schedules: Schedules
    jobs: Jobs
    clock: Callable[[], Instant]
    on_end: Callable[[Schedule], None] = lambda _: None

    def look(self) -> Instant | None:
        """Record the end of open runs; if none is open, begin a run that is due. Return the next tick.

        Raises Unavailable if the job server does not answer; the next look continues.
        """
        every = [self._update(schedule) for schedule in self.schedules.every()]
        moment = self.clock()
        if not any(schedule.is_open for schedule in every):
            waiting = [(tick, schedule) for schedule in every if (tick := schedule.due(moment)) is not None]
            if waiting and self.jobs.is_idle():
                # Begin with the schedule whose last run is oldest, so that no schedule waits for ever.
                tick, first = min(waiting, key=lambda row: row[1].begun or row[1].made_at)
                self._begin(first, tick, tries=1)
        return min((schedule.next(moment) for schedule in every), default=None)

    def _update(self, schedule: Schedule) -> Schedule:
        """Update a schedule with an open run from the state of the job; return its new state."""
        if schedule.begun is None or not schedule.is_open:
            return schedule
        unseen_for = self.clock() - (schedule.seen_at or 0)
        job = self.jobs.state(schedule)
        if job is None:
            if unseen_for < LEASE:
                return schedule
            job = JobState("interrupted", "the job was lost with its Ray")
        if job.state == "open":
            if unseen_for >= RENEW_EVERY:
                self.schedules.replace(schedule, schedule._replace(seen_at=self.clock()))
            return schedule
        if job.state == "interrupted" and schedule.tries < MAX_TRIES:
            return self._begin(schedule, schedule.begun, tries=schedule.tries + 1)
        return self._end(schedule, job.outcome if job.state == "succeeded" else f"{FAILED}{job.outcome}")

    def _begin(self, schedule: Schedule, tick: Instant, *, tries: int) -> Schedule:
        """Record a run and submit its job, unless the stored state has changed; return the new state."""
        begun = schedule._replace(begun=tick, tries=tries, ended_at=None, said="", seen_at=self.clock())
        if not self.schedules.replace(schedule, begun):
            return begun
        try:
            self.jobs.submit(begun)
        except Unavailable:
            self.schedules.replace(begun, schedule)
            raise
        except KgrayError as error:
            return self._end(begun, f"{FAILED}{error}")
        return begun

    def _end(self, schedule: Schedule, outcome: str) -> Schedule:
        ended = schedule._replace(ended_at=self.clock(), said=outcome, seen_at=None)
        if self.schedules.replace(schedule, ended):
            self.on_end(ended)
        return ended
