"""The change of rows that an entry of the log makes: decided by the engine, applied by a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kgray.domain.times import Instant
from kgray.schema.kinds import Key, Kind, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """New values for some columns of existing rows; a row that does not exist is skipped."""

    kind: Kind[Any]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]  # each the key of a row, then the values of `columns`


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """The changes of one entry of a group's log, row by row: a store applies all of them or none (R23).

    sequence     the number of the entry; ledger: its kind, episodes or operations
    states       the states of the entry in which the change applies. In another state, or after its removal,
                 the store skips the change: it was applied before or is too late. A batch can be sent again
    recorded_at  the record time, later than the group's last; None: nothing is recorded (journal)
    rests_on     the group's last record time at the decision. The store refuses the change (Outrun) if
                 something was recorded since, or if another process ended the entry. None: no check
    clear        True: first delete the group: rows of log kinds up to `sequence` (the entry's own row stays),
                 all rows of other kinds. Without other pending entries the group loses its name. The change
                 puts the entry's row alone: the store may delete the other rows later, in portions
    drops, puts, patches    then rows are dropped, put and patched, in this order; keys of a kind are distinct
    erases       dropped and replaced rows must not stay readable: `Store.compact` cleans the files (R25)
    durable      False: a power cut (not a kill) may lose the change, because a model can be asked again
    unsettles    it counts in `GroupHead.removals`: an index of the group's words and vectors is stale
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
