"""Filling a memory in bulk: files and folders in, resumable, with bounds and a report.

inputs     paths and folders to files; the run's name
manifest   how far a run has come, and what it refused: a folder of its own, renamed into place
reading    the files' rows, each with its place, in the order of the files or of their times
sorting    an order over more than memory holds
spending   what a run may spend of the model
feeding    rows to the log, in the backfill lane, while fewer than a bound wait there
checking   what accepting would do: accepted, duplicate, refused
running    one attempt: feeding and carrying out side by side, to a report
reports    what an attempt answers
"""

from __future__ import annotations

from kgray.backfill.checking import Checked, check
from kgray.backfill.inputs import Input, find, run_name
from kgray.backfill.reading import Order
from kgray.backfill.reports import Standing, Summary
from kgray.backfill.running import Asked, backfill

__all__ = [
    "Asked",
    "Checked",
    "Input",
    "Order",
    "Standing",
    "Summary",
    "backfill",
    "check",
    "find",
    "run_name",
]
