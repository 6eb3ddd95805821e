"""When each statement held: a pure function from claims to spans (R6-R13).

claims      the input and output: Claim, Span, Rivals
component   the rules R7-R12 over statements connected by rivalry, with a log to undo instants
sweep       `timeline`, and `Sweep`: the same function, kept up to date while claims arrive
"""

from __future__ import annotations

from kgray.timeline.claims import Claim, Point, Rivals, Said, Span
from kgray.timeline.sweep import SpanChange, Sweep, timeline

__all__ = ["Claim", "Point", "Rivals", "Said", "Span", "SpanChange", "Sweep", "timeline"]
