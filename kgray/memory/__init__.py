"""The library's face.

face       Memory: the verbs
arguments  what callers hand to them, checked
accepting  input into the log, in short transactions
ingesting  having what is pending carried out: by this process, by another one, by a runtime
correcting whether a correction can be carried out
showing    what hangs on an id
run_files  what runs keep of texts beside the store, which goes with what is removed
reports    what the verbs answer
"""

from __future__ import annotations

from kgray.memory.arguments import SCOPES
from kgray.memory.face import Blocking, Memory
from kgray.memory.reports import History, Report, hit_row

__all__ = ["SCOPES", "Blocking", "History", "Memory", "Report", "hit_row"]
