"""The public API of the library.

face         Memory: its methods that add, correct and remove
reads        its reads: search, history, show, ...; answers: what they return
ingesting    appends input to the log, and carries out what is pending or waits for a process that does
correcting   merges, splits and their undoing; withdrawing: retractions and removals
naming       what people call an entity or another thing: names, ids, beginnings of ids
reviewing    entities that may be one
showing      one thing with its texts
reports      the report of a submission; rows of the dump, of all or of one thing
run_files    texts that backfill runs keep beside the store, which are deleted with what is removed
"""

from __future__ import annotations

from kgray.memory.answers import EntityCount, History
from kgray.memory.face import BothWays, Memory
from kgray.memory.reports import Report

__all__ = [
    "BothWays",
    "EntityCount",
    "History",
    "Memory",
    "Report",
]
