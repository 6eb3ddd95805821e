"""When each statement held: the pure function of semantics section 3 (R6-R13).

    claims.py   what goes in and comes out: Claim, Span, Rivals
    story.py    what is known of one statement, and of one slot, at one moment of the sweep
    lane.py     the rules, instant by instant, with the way back
    row.py      the short way, for a slot in which nothing but the present tense was used
    sweep.py    `timeline`, and `Sweep`: the same function kept while claims arrive
"""

from __future__ import annotations

from kgray.timeline.claims import Claim, Point, Rivals, Said, Span
from kgray.timeline.sweep import Change, Sweep, timeline

__all__ = ["Change", "Claim", "Point", "Rivals", "Said", "Span", "Sweep", "timeline"]
