"""The library's face.

face       Memory: the verbs
arguments  what callers hand to them, checked
queueing   taking input into the log, and having what is pending carried out, here or by another process
correcting whether a correction can be carried out
showing    what hangs on an id
reports    what the verbs answer
"""

from __future__ import annotations

from kgray.memory.arguments import SCOPES
from kgray.memory.face import Blocking, Memory
from kgray.memory.reports import History, Report, hit_row

__all__ = ["SCOPES", "Blocking", "History", "Memory", "Report", "hit_row"]
