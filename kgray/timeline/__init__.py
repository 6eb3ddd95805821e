"""When each statement held: the pure function of semantics section 3 (R6-R13).

claims.py      what goes in and comes out: Claim, Span, Rivals
state.py       the state of one statement, and of one slot, at one instant of the sweep
component.py   the rules R7-R12 over statements connected by rivalry, with a log to take instants back
plain.py       a cheaper sweep for slots in which everything was said in the present tense
sweep.py       `timeline`, and `Sweep`: the same function, kept up to date while claims arrive
"""

from __future__ import annotations

from kgray.timeline.claims import Claim, Point, Rivals, Said, Span
from kgray.timeline.sweep import SpanChange, Sweep, timeline

__all__ = ["Claim", "Point", "Rivals", "Said", "Span", "SpanChange", "Sweep", "timeline"]
