"""When communities are refreshed: schedules in the store (`kinds.OWN`), by cron expressions in a time zone.

An actor of `kgray up` carries them out. Of the times that nobody was up for only the latest counts. A refresh
that was interrupted is begun again, at most three times.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from kgray.errors import InputError, KgrayError, NotFound
from kgray.kinds import OWN, SCHEDULES, ScheduleRow
from kgray.ports import Appending, Store
from kgray.times import Instant, from_datetime, show, to_datetime

_TRIES = 3
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

    def next(self, now: Instant) -> Instant:
        """Return its first time after now. Raises StopIteration where there is none in 50 years."""
        return from_datetime(next(self._times(now)))

    def due(self, now: Instant) -> Instant | None:
        """Return the time that is to be carried out now: the latest that has come, if it has not ended."""
        latest = from_datetime(next(self._times(now + 1, reverse=True)))
        if latest > (self.made_at if self.begun is None else self.begun):
            return latest
        return self.begun if self.ended_at is None and self.tries < _TRIES else None

    def as_dict(self, now: Instant) -> dict[str, Any]:
        """Return the form that `kgray schedule list --json` prints; said: what came of the last."""
        told = {name: getattr(self, name) for name in ("name", "cron", "zone", "said")}
        return told | {"next": show(self.next(now)), "last": show(self.begun)}

    def _times(self, at: Instant, *, reverse: bool = False) -> CronSim:
        return CronSim(self.cron, to_datetime(at).astimezone(ZoneInfo(self.zone)), reverse=reverse)


class Schedules:
    """The schedules of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, name: str, cron: str, zone: str, now: Instant) -> Schedule:
        """Add a schedule; the same again: no change. Raises InputError."""
        made = Schedule(name, " ".join(cron.split()), zone, now)
        if not _NAME.fullmatch(name):
            said = "letters, digits, '_', '.' and '-', 64 at most"
            raise InputError(f"{name!r} is no name of a schedule: {said}", field="name")
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            raise InputError(
                f"zone {zone!r} is not known: use UTC, or a name such as Europe/Berlin", field="zone"
            ) from None
        try:
            if len(cron.split()) != 5:
                raise CronSimError("it needs five fields: minute, hour, day, month, weekday")
            made.next(now)
        except (CronSimError, StopIteration) as error:
            why = str(error) or "no day is ever so"
            raise InputError(f"cron {made.cron!r} cannot be used: {why}", field="cron") from None
        kept = self._changed(name, lambda there: there or made) or made
        if (kept.cron, kept.zone) != (made.cron, made.zone):
            raise InputError(
                f"there is a schedule {name!r} already, {kept.cron!r} in {kept.zone}: "
                f"remove it first (kgray schedule remove {name})",
                field="name",
            )
        return kept

    def every(self) -> list[Schedule]:
        """Return all schedules, by name."""
        return [Schedule(**row._asdict()) for row in self._store.rows(SCHEDULES.all, OWN)]

    def remove(self, name: str) -> None:
        """Remove a schedule; a refresh that goes on is finished. Raises NotFound."""
        if self._changed(name, lambda _: None) is None:
            raise NotFound(f"there is no schedule {name!r}: `kgray schedule list` shows their names")

    def write(self, one: Schedule) -> None:
        """Keep what has become of a schedule, unless it was removed."""
        self._changed(one.name, lambda there: one if there and there.made_at == one.made_at else there)

    def _changed(self, name: str, change: Callable[[Schedule | None], Schedule | None]) -> Schedule | None:
        """Put what `change` makes of a schedule in its place, in one transaction; return what was there."""

        def append(log: Appending) -> Schedule | None:
            every = (Schedule(**row._asdict()) for row in log.rows(SCHEDULES.all, OWN))
            there = next((one for one in every if one.name == name), None)
            new = change(there)
            if new is not None and new != there:
                if there is None:
                    log.take_sequence(OWN)  # so that there is such a group
                log.put(SCHEDULES, OWN, ScheduleRow(**asdict(new)))
            elif new is None and there is not None:
                log.drop(SCHEDULES, OWN, (name,))
            return there

        return self._store.append([OWN], append)


async def carry_out(
    schedules: Schedules, clock: Callable[[], Instant], refresh: Callable[[], Awaitable[str]]
) -> Instant | None:
    """Carry out what is due, one after another, and keep what `refresh` says; return when the next one is."""
    for schedule in schedules.every():
        tick = schedule.due(clock())
        if tick is not None:
            tries = schedule.tries + 1 if tick == schedule.begun else 1
            begun = replace(schedule, begun=tick, tries=tries, ended_at=None, said="")
            schedules.write(begun)
            try:
                said = await refresh()
            except Exception as error:  # noqa: BLE001 - of a defect its kind: its text is nobody's line
                said = f"failed: {error if isinstance(error, KgrayError) else type(error).__name__}"
            schedules.write(replace(begun, ended_at=clock(), said=said))
    return min((schedule.next(clock()) for schedule in schedules.every()), default=None)
