"""The change of rows that an entry of the log makes: decided by the engine, applied by a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kgray.kinds import Key, Kind, Row
from kgray.times import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """New values for some columns of existing rows; a row that does not exist is skipped."""

    kind: Kind[Any]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]  # each the key of a row, then the values of `columns`


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """What one entry of a group's log changes, row by row: applied whole or not at all (R23).

    sequence     the entry: an episode or an operation; ledger: its kind
    states       of the entry, in which this applies. In any other, or once the entry was removed, it was
                 applied before or came too late, and is left out: so a batch can be sent again
    recorded_at  its record time, which must be past the group's last; None: nothing is recorded (journal)
    rests_on     the group's last record time when it was decided: whatever else was recorded since, it is
                 refused (Outrun), and so it is where its entry was ended by another. None: not said
    clear        True: first delete the group: rows of log kinds up to `sequence` (the entry's own row stays),
                 all rows of other kinds. If nothing but the entry is pending, the group loses its name. Such
                 a change puts nothing but the entry's row: the others may go after it, in portions
    drops, puts, patches    then rows are dropped, put and patched, in this order; keys of a kind are distinct
    erases       what is dropped or replaced must not stay readable: `Store.compact` cleans the files (R25)
    durable      False: a power cut (not a kill) may lose it, because a model can be asked again
    unsettles    it is counted in `GroupHead.removals`: an index of the group's words and vectors is stale
    """

    group: str
    sequence: int
    ledger: Kind[Any]
    states: frozenset[int]
    recorded_at: Instant | None = None
    rests_on: Instant | None = None
    clear: bool = False
    drops: Mapping[Kind[Any], Sequence[Key]] = field(default_factory=dict)
    puts: Mapping[Kind[Any], Sequence[Row]] = field(default_factory=dict)
    patches: tuple[Patch, ...] = ()
    erases: bool = False
    durable: bool = True
    unsettles: bool = False
