"""Filling a memory in bulk: files and folders in, resumable, with bounds and a report."""

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
