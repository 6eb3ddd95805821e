"""When each statement held: a pure function from claims to spans (R6-R13)."""

from __future__ import annotations

from kgray.timeline.states import Claim, Point, Rivals, Said, Span
from kgray.timeline.sweep import SpanChange, Sweep, timeline

__all__ = ["Claim", "Point", "Rivals", "Said", "Span", "SpanChange", "Sweep", "timeline"]
