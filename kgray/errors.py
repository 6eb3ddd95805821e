"""Every error kgray raises on purpose; the message is the one line a user reads.

KgrayError                      exit 2 unless said
├── InputError                  an argument, a line, a name, a time
├── SettingsError               the configuration
├── StoreError                  the data folder: not ours, too new, another embedder, damaged
│   ├── NoStore                 there is none yet
│   ├── StaleWriter             an older fencing epoch wrote: nothing was changed (R23)
│   ├── Outrun                  another process recorded meanwhile; never leaves a run, which reads again
│   ├── Damaged                 a group's records contradict each other; the group is held
│   ├── Unwritable              a store refuses a transaction, not the next; the group is held
│   ├── NoSpace                 the disk is full; a run that had accepted something ends with 75
│   └── Locked                  another process ingests this folder (its pid is in the message)
├── NotFound                    an id or a name that is not there
├── Ambiguous                   a name that several entities have
├── Denied                      the server wants a key, or the key does not allow it
├── NotBuilt                    in the interface, but not implemented in this version
├── Stopped                     exit 75: a signal ended the run; what was accepted is safe
├── Unavailable                 exit 75: a model or a store is out of reach beyond its patience
├── Garbled                     a model's server sent what nothing can be made of; the group is held
└── ContentError                never leaves a run: it fails one episode (R24)
    ├── Refused                 the model's server refused the text itself
    └── InvalidAnswer           no usable answer, after repair
"""

from __future__ import annotations

from typing import NamedTuple

DONE, INCOMPLETE, FAULTY, BUG, STOPPED = 0, 1, 2, 70, 75  # the exit codes of every command


def exit_code_of(*, stopped: bool, incomplete: bool) -> int:
    """Return the exit code of a run; incomplete: something was refused or failed."""
    return STOPPED if stopped else INCOMPLETE if incomplete else DONE


class Cost(NamedTuple):
    """What calls of a model cost."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class KgrayError(Exception):
    """A fault that a user can act on; its message is one line: what, where, why, what to do."""

    exit_code = FAULTY
    spent = Cost()  # of the model calls that ended in it; nothing that was kept counts them


class InputError(KgrayError):
    """An argument, a line, a name or a time that cannot be used."""

    def __init__(self, reason: str, *, field: str | None = None) -> None:
        """`field` is the input's field as the user wrote it, where one is to blame."""
        super().__init__(reason)
        self.field = field


class SettingsError(KgrayError):
    """An unknown key, or a value that its key does not take."""


class StoreError(KgrayError):
    """The data folder cannot be used as asked; nothing was changed."""


class Damaged(StoreError):
    """The records of one group contradict each other, so that nothing can be derived from them."""


def damaged(group: str, fault: BaseException) -> Damaged:
    """Return the error of a group; fault: what deriving met."""
    return Damaged(
        f"the records of group {group} cannot be derived ({type(fault).__name__}): "
        f"run `kgray doctor --repair --group {group}`; no other group is concerned"
    )


class Unwritable(StoreError):
    """The store refuses what is to be written, or lacks the memory for it; others are unaffected."""


class NoStore(StoreError):
    """There is no store yet; `kgray init` or anything that is added makes it."""


class StaleWriter(StoreError):
    """A writer with an older fencing epoch; its transaction was rolled back (R23)."""


class Outrun(StoreError):
    """A commit's record time is not past its group's last: its transaction was rolled back (R4)."""


class NoSpace(StoreError):
    """The disk is full: this transaction was rolled back; earlier ones are unaffected."""


class Locked(StoreError):
    """Another process ingests the folder."""


class NotFound(KgrayError):
    """An id or a name that the group does not have."""


class Ambiguous(KgrayError):
    """A name that several entities have; the message lists their ids."""


class Denied(KgrayError):
    """A request without a key that allows it; the same for a group that exists and one that does not."""


class NotBuilt(KgrayError):
    """A valid value that is not implemented in this version."""


class Stopped(KgrayError):
    """The run was asked to stop; run it again to go on."""

    exit_code = STOPPED


class Unavailable(KgrayError):
    """A server that cannot be reached: the episodes stay accepted (R24)."""

    exit_code = STOPPED

    def __init__(self, reason: str, *, waited: bool = False) -> None:
        """Note whether retries have spent the patience already (waited): callers do not retry again."""
        super().__init__(reason)
        self.waited = waited


class Garbled(KgrayError):
    """A model's server sends numbers that are none, or refuses whatever it is sent: no text is to blame."""


class ContentError(KgrayError):
    """An episode that fails by its own content; caught by the run that meets it."""

    def __init__(self, reason: str, *, raw: str = "") -> None:
        """raw: the model's last output, kept with the failure."""
        super().__init__(reason)
        self.raw = raw


class Refused(ContentError):
    """The server refused the text: too long, malformed, or on its own policy."""


class InvalidAnswer(ContentError):
    """No parsable answer, or one cut before its first complete item."""
