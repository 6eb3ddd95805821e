"""Groups that are held: their work failed, and the reason is neither their content nor a server's (R24).

A hold is a row of the ledger, so that every process sees it: whoever ingests tries again when its pause is
over, and each failure makes the next pause longer; `kgray retry` ends the pause. The other groups go on.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from kgray import times
from kgray.errors import Damaged, Garbled, KgrayError, Unwritable
from kgray.kinds import ALL, HOLDS
from kgray.ports import Store
from kgray.times import Instant

_FIRST_PAUSE_S, _TIMES, _LONGEST_PAUSE_S = 5, 4, 1800
_READ = ALL[HOLDS.name]


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a group is held; see `kinds.HOLDS`."""

    sequence: int
    since: Instant
    again_at: Instant
    tries: int
    reason: str


def is_groups_own(error: BaseException | None) -> bool:
    """Whether an error concerns the group alone whose work met it, and not its content: it is held then."""
    return isinstance(error, Damaged | Garbled | Unwritable) or (
        isinstance(error, Exception) and not isinstance(error, KgrayError)
    )


def held(store: Store) -> dict[str, Hold]:
    """Return the groups that are held, those whose pause is over included, by name."""
    return {group: Hold(*row[1:]) for group, row in store.everywhere(_READ) if row[4]}


def hold(store: Store, group: str, sequence: int, error: BaseException, before: Hold | None) -> Hold:
    """Hold a group, for longer than before; what an unknown error says may quote texts, and is not kept.

    sequence: of the episode at which it stopped; 0: a correction
    """
    now, tries = times.now(), 1 if before is None else before.tries + 1
    reason = str(error) if isinstance(error, KgrayError) else f"{type(error).__name__}, a fault of kgray"
    pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * _TIMES ** min(tries - 1, 9))
    found = Hold(sequence, now if before is None else before.since, now + pause * times.SECOND, tries, reason)
    _put(store, group, found)
    return found


def release(store: Store, group: str) -> None:
    """End a hold: the group's work went well, or its records were repaired."""
    _put(store, group, Hold(0, 0, 0, 0, ""))


def try_again(store: Store, group: str | None) -> None:
    """End the pause of a group (None: of all), so that whoever ingests tries again at once."""
    for name, one in held(store).items():
        if group in (None, name):
            _put(store, name, Hold(one.sequence, one.since, 0, one.tries, one.reason))


def _put(store: Store, group: str, found: Hold) -> None:
    store.append([group], lambda log: log.put(HOLDS, group, (0, *astuple(found))))
