"""Filling a memory in bulk: files and folders in, resumable, with bounds and a report.

inputs     paths and folders to files; the run's name
manifest   how far a run has come, and what it refused: a folder of its own
rows       the files' rows, each with its place, in the order of the files or of their times
sorting    an order over more than memory holds
budget     what an attempt may spend of the model
run        one attempt: rows go into the log while what is pending is carried out
report     what an attempt answers
forecast   what accepting would do: accepted, duplicate, refused
"""

from __future__ import annotations

from kgray.backfill.forecast import Forecast, forecast
from kgray.backfill.inputs import InputFile, find, run_name
from kgray.backfill.report import RunProgress, RunReport
from kgray.backfill.rows import Order
from kgray.backfill.run import RunRequest, backfill

__all__ = [
    "Forecast",
    "InputFile",
    "Order",
    "RunProgress",
    "RunReport",
    "RunRequest",
    "backfill",
    "find",
    "forecast",
    "run_name",
]
