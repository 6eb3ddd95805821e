"""When communities are refreshed: schedules in the store (`kinds.OWN`), by cron expressions in a time zone.

A scheduler calls `Ticks.look` every few seconds. Each run is a job that is named by its schedule and its
tick, so a scheduler that was restarted, or a second one, finds the job of the first one and starts no other.
Only the latest of several missed ticks is caught up. One run goes on at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from kgray.errors import InputError, KgrayError, NotFound, Unavailable
from kgray.kinds import OWN, SCHEDULES, ScheduleRow
from kgray.ports import Appending, Store
from kgray.times import SECOND, Instant, from_datetime, show, to_datetime

FAILED = "failed: "  # begins the outcome of a run that failed
MAX_TRIES = 3  # jobs for one tick: a job that was killed is submitted again
# An open run whose job a scheduler does not know belongs to a scheduler of another Ray while that one has
# renewed it lately.
RENEW_EVERY, LEASE = 30 * SECOND, 180 * SECOND
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A row of `kinds.SCHEDULES`."""

    name: str
    cron: str
    zone: str
    made_at: Instant
    begun: Instant | None = None
    tries: int = 0
    ended_at: Instant | None = None
    said: str = ""
    full: bool = False
    groups: tuple[str, ...] = ()
    seen_at: Instant | None = None

    @property
    def is_open(self) -> bool:
        """Whether the latest run has not ended."""
        return self.begun is not None and self.ended_at is None

    @property
    def has_failed(self) -> bool:
        """Whether the latest run failed."""
        return self.said.startswith(FAILED)

    @property
    def job(self) -> str | None:
        """The name of the latest run's job within its store: schedule, tick, and the try if not the first."""
        if self.begun is None:
            return None
        tick = to_datetime(self.begun).strftime("%Y%m%dT%H%MZ")
        return f"{self.name}-{tick}{f'-{self.tries}' if self.tries > 1 else ''}"

    def next(self, now: Instant) -> Instant:
        """Return its first tick after now. Raises StopIteration where there is none in 50 years."""
        return from_datetime(next(self._ticks(now)))

    def due(self, now: Instant) -> Instant | None:
        """Return the latest tick that has come, unless it was begun or the schedule is younger."""
        latest = from_datetime(next(self._ticks(now + 1, reverse=True)))
        return latest if latest > (self.made_at if self.begun is None else self.begun) else None

    def as_dict(self, now: Instant) -> dict[str, Any]:
        """Return the form that `kgray schedule list --json` prints; said: the outcome of the latest run."""
        names = ("name", "cron", "zone", "full", "groups", "said", "job")
        state = {"running": self.is_open, "failed": self.has_failed}
        times = {"next": show(self.next(now)), "last": show(self.begun)}
        return {name: getattr(self, name) for name in names} | state | times

    def _ticks(self, at: Instant, *, reverse: bool = False) -> CronSim:
        return CronSim(self.cron, to_datetime(at).astimezone(ZoneInfo(self.zone)), reverse=reverse)


class Schedules:
    """The schedules of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(
        self, name: str, cron: str, zone: str, now: Instant, *, full: bool = False, groups: Sequence[str] = ()
    ) -> Schedule:
        """Add a schedule. Raises InputError, also where there is one of this name."""
        expression, groups = " ".join(cron.split()), tuple(dict.fromkeys(groups))
        schedule = Schedule(name, expression, zone, now, full=full, groups=groups)
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
            schedule.next(now)
        except (CronSimError, StopIteration) as error:
            why = str(error) or "it never fires"
            why += ": there is no such day, or it never comes" * why.startswith("Bad day")
            raise InputError(f"cron {expression!r} cannot be used: {why}", field="cron") from None
        if (existing := self._change(name, lambda stored: stored or schedule)) is not None:
            raise InputError(
                f"there is a schedule {name!r} already, {existing.cron!r} in {existing.zone}: "
                f"remove it first (kgray schedule remove {name})",
                field="name",
            )
        return schedule

    def add_first(self, *, due: str, full: str, zone: str, now: Instant) -> list[str]:
        """Add schedules with these expressions ("" = none) to a store that has none; return their names."""
        wanted = {"refresh-due": due, "refresh-full": full} if not self.every() else {}
        added = [name for name, cron in wanted.items() if cron]
        for name in added:
            self.add(name, wanted[name], zone, now, full=name == "refresh-full")
        return added

    def every(self) -> list[Schedule]:
        """Return all schedules, by name."""
        return [Schedule(**row._asdict()) for row in self._store.rows(SCHEDULES.all, OWN)]

    def remove(self, name: str) -> None:
        """Remove a schedule; a job that runs is not ended. Raises NotFound."""
        if self._change(name, lambda _: None) is None:
            raise NotFound(f"there is no schedule {name!r}: `kgray schedule list` shows their names")

    def replace(self, before: Schedule, after: Schedule) -> bool:
        """Replace one state of a schedule by another; False if it was changed or removed meanwhile."""
        return self._change(before.name, lambda stored: after if stored == before else stored) == before

    def _change(self, name: str, change: Callable[[Schedule | None], Schedule | None]) -> Schedule | None:
        """Put the result of `change` in a schedule's place, in one transaction; return the earlier state."""

        def append(log: Appending) -> Schedule | None:
            every = (Schedule(**row._asdict()) for row in log.rows(SCHEDULES.all, OWN))
            stored = next((schedule for schedule in every if schedule.name == name), None)
            new = change(stored)
            if new is not None and new != stored:
                if stored is None:
                    log.take_sequence(OWN)  # so that there is such a group
                log.put(SCHEDULES, OWN, ScheduleRow(**asdict(new)))
            elif new is None and stored is not None:
                log.drop(SCHEDULES, OWN, (name,))
            return stored

        return self._store.append([OWN], append)


class JobState(NamedTuple):
    """How far a job is. outcome: of one that has ended, in one line.

    interrupted     it was killed, lost its node, or stopped before its end: the same job goes on from there
    """

    state: Literal["open", "succeeded", "failed", "interrupted"]
    outcome: str = ""


class Jobs(Protocol):
    """Where scheduled refreshes run. Each method may raise Unavailable."""

    def submit(self, schedule: Schedule) -> None:
        """Submit the job of the latest run, unless it exists already. Raises KgrayError if it is refused."""

    def state(self, schedule: Schedule) -> JobState | None:
        """Return how far the job of the latest run is; None where it is not known."""

    def is_idle(self) -> bool:
        """Whether no refresh of the store runs as a job."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """Carries out schedules: one `look` after another, by any number of schedulers.

    on_end      called with a schedule whose run has ended, once
    """

    schedules: Schedules
    jobs: Jobs
    clock: Callable[[], Instant]
    on_end: Callable[[Schedule], None] = lambda _: None

    def look(self) -> Instant | None:
        """Record how open runs have ended, and begin the first one that is due; return the next tick.

        Raises Unavailable where the job server is away: the next look goes on.
        """
        every = [self._after_a_look(schedule) for schedule in self.schedules.every()]
        now = self.clock()
        if not any(schedule.is_open for schedule in every):
            waiting = [(tick, schedule) for schedule in every if (tick := schedule.due(now)) is not None]
            if waiting and self.jobs.is_idle():
                # The one that has not run for longest, so that none waits for ever.
                tick, first = min(waiting, key=lambda row: row[1].begun or row[1].made_at)
                self._begin(first, tick, tries=1)
        return min((schedule.next(now) for schedule in every), default=None)

    def _after_a_look(self, schedule: Schedule) -> Schedule:
        """Return the state of a schedule after a look at the job of its open run, if it has one."""
        if schedule.begun is None or not schedule.is_open:
            return schedule
        since = self.clock() - (schedule.seen_at or 0)
        job = self.jobs.state(schedule)
        if job is None:
            if since < LEASE:
                return schedule
            job = JobState("interrupted", "the job was lost with its Ray")
        if job.state == "open":
            if since >= RENEW_EVERY:
                self.schedules.replace(schedule, replace(schedule, seen_at=self.clock()))
            return schedule
        if job.state == "interrupted" and schedule.tries < MAX_TRIES:
            return self._begin(schedule, schedule.begun, tries=schedule.tries + 1)
        return self._end(schedule, job.outcome if job.state == "succeeded" else f"{FAILED}{job.outcome}")

    def _begin(self, schedule: Schedule, tick: Instant, *, tries: int) -> Schedule:
        """Take a tick and submit its job, unless another scheduler takes it first; return the new state."""
        begun = replace(schedule, begun=tick, tries=tries, ended_at=None, said="", seen_at=self.clock())
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
        ended = replace(schedule, ended_at=self.clock(), said=outcome, seen_at=None)
        if self.schedules.replace(schedule, ended):
            self.on_end(ended)
        return ended
