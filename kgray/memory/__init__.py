"""The public API of the library.

face        Memory: its methods (add, search, merge, ...)
accepting   appends input to the log, in short transactions
ingesting   carries out what is pending, or waits for a process that does
correcting  checks and requests corrections, and waits for them
reports     what the methods return
run_files   texts that backfill runs keep beside the store, which are deleted with what is removed
"""

from __future__ import annotations

from kgray.memory.face import Blocking, Memory
from kgray.memory.reports import History, Report, hit_row

__all__ = ["Blocking", "History", "Memory", "Report", "hit_row"]
