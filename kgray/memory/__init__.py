"""The library's face.

face        Memory: the verbs
accepting   input into the log, in short transactions
ingesting   having what is pending carried out: by this process, another one or a runtime
correcting  corrections: checked, requested, waited for
reports     what the verbs answer
run_files   the texts that runs keep beside the store, which go with what is removed
"""

from __future__ import annotations

from kgray.memory.face import Blocking, Memory
from kgray.memory.reports import History, Report, hit_row

__all__ = ["Blocking", "History", "Memory", "Report", "hit_row"]
