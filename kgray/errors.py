"""The errors that kgray raises on purpose, each with one line for the user. The default exit code is 2."""

from __future__ import annotations

from typing import NamedTuple

DONE, INCOMPLETE, FAULTY, BUG, STOPPED = 0, 1, 2, 70, 75  # the exit codes of every command


def exit_code_of(*, stopped: bool, incomplete: bool) -> int:
    """Return the exit code of a run; incomplete: something was refused or failed."""
    return STOPPED if stopped else INCOMPLETE if incomplete else DONE


class Cost(NamedTuple):
    """The cost of model calls."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class KgrayError(Exception):
    """A fault that a user can act on. The message is one line: fault, place, cause and remedy."""

    exit_code = FAULTY
    spent = Cost()  # the cost of model calls whose results were not stored


class InputError(KgrayError):
    """An argument, a line, a name or a time that cannot be used."""

    def __init__(self, reason: str, *, field: str | None = None) -> None:
        """field: the faulty field, as the user wrote it, if there is one."""
        super().__init__(reason)
        self.field = field


class SettingsError(KgrayError):
    """The configuration: an unknown key, or a value that its key does not take."""


class StoreError(KgrayError):
    """The data folder cannot be used as asked: not ours, too new, another embedder. Nothing was changed."""


class Damaged(StoreError):
    """The records of one group contradict each other, so that nothing can be derived; the group is held."""


def damaged(group: str, fault: BaseException) -> Damaged:
    """Return the error of a group; fault: the error of its derivation."""
    return Damaged(
        f"the records of group {group} cannot be derived ({type(fault).__name__}): "
        f"run `kgray doctor --repair --group {group}`; no other group is concerned"
    )


class Unwritable(StoreError):
    """The store refuses one transaction, or lacks the memory for it. The group is held."""


class NoStore(StoreError):
    """There is no store yet; `kgray init` and `kgray add` create it."""


class StaleWriter(StoreError):
    """A writer with an older fencing epoch; its transaction was rolled back (R23)."""


class Outrun(StoreError):
    """Another process recorded at the same time (R4): rolled back. A run catches it and reads again."""


class NoSpace(StoreError):
    """The disk is full: this transaction was rolled back; earlier ones are unaffected. A run ends with 75."""


class Locked(StoreError):
    """Another process ingests the folder; the message has its pid."""


class NotFound(KgrayError):
    """An id or a name that the group does not have."""


class Ambiguous(KgrayError):
    """A name that several entities have; the message lists their ids."""


class Denied(KgrayError):
    """No key allows the request. The message does not reveal whether the group exists."""


class NotBuilt(KgrayError):
    """A valid value that is not implemented in this version."""


class Stopped(KgrayError):
    """A signal ended the run, with exit code 75. Accepted episodes are safe, and the next run continues."""

    exit_code = STOPPED


class Unavailable(KgrayError):
    """A server is out of reach beyond its patience: exit code 75, the episodes stay accepted (R24)."""

    exit_code = STOPPED

    def __init__(self, reason: str, *, waited: bool = False) -> None:
        """Create the error. waited: retries have spent the patience already: callers do not retry again."""
        super().__init__(reason)
        self.waited = waited


class Garbled(KgrayError):
    """A model's server sends invalid numbers, or refuses every request; the group is held."""


class ContentError(KgrayError):
    """An episode that fails by its own content (R24); caught by the run that meets it."""

    def __init__(self, reason: str, *, raw: str = "") -> None:
        """raw: the model's last output, stored with the failure."""
        super().__init__(reason)
        self.raw = raw


class Refused(ContentError):
    """The server refused the text: too long, malformed, or on its own policy."""


class InvalidAnswer(ContentError):
    """No parsable answer, or one cut before its first complete item."""


def is_groups_own(error: BaseException | None) -> bool:
    """Return whether an error concerns one group, but not its content: the group is held then."""
    return isinstance(error, Damaged | Garbled | Unwritable) or (
        isinstance(error, Exception) and not isinstance(error, KgrayError)
    )
