"""The timeline's input and output: claims, rivals, spans."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from kgray.records import EvidenceKind
from kgray.times import Instant

Said = tuple[Instant, int, int]  # (t_ref, sequence, ordinal): R6; [1:] is the evidence's place
Point = Literal["start", "confirmation", "end"]


class Claim(NamedTuple):  # a load makes 100,000 of them
    """One piece of evidence about one statement.

    said            unique among the claims of a statement
    start           holds: None = unknown ("always"); happened: its instant; not used by the other kinds
    end             holds: the stated end or None; ended: its instant, never None
    inferred        the start was read off the present tense (R3); one equal to t_ref counts as such
    recorded        record time (R4)
    every_variant   an end or a denial that names no variant: it speaks of all (R6)
    other_variant   such a one that bears on another variant in the first place
    """

    statement: str
    said: Said
    kind: EvidenceKind
    start: Instant | None
    end: Instant | None
    inferred: bool
    recorded: Instant
    every_variant: bool = False
    other_variant: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A period [start, end) over which a statement held (R8-R12).

    opened   the evidence that opened it, by its start, confirmation or end point
    start    None = always
    end      None = still; equal to `start` where it is kept as history only (R12)
    ended    what ended it: the statement's own `ended`, the supporter whose stated end stands, the
             rival's evidence that cut it, or the claim that overruled it; None = it is open
    support  in order of `said`, the opener included
    """

    statement: str
    opened: Claim
    point: Point
    start: Instant | None
    end: Instant | None
    ended: Claim | None
    support: tuple[Claim, ...]


class Rivals(Protocol):
    """Which statements cannot hold at the same time; symmetric, and fixed for the life of a sweep."""

    def slot_keys(self, statement: str) -> Sequence[Hashable]:
        """Return the keys of a statement's slots: statements that share a key are mutual rivals."""
        ...

    def pairs(self, statement: str) -> Collection[str]:
        """Return its further rivals: by verdicts and by excluding relations."""
        ...
