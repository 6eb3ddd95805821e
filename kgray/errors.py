"""Every error kgray raises on purpose; the message is the one line a user reads. Exit code 2 unless said."""

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
        """field: the input's, as the user wrote it, where one is to blame."""
        super().__init__(reason)
        self.field = field


class SettingsError(KgrayError):
    """The configuration: an unknown key, or a value that its key does not take."""


class StoreError(KgrayError):
    """The data folder cannot be used as asked: not ours, too new, another embedder. Nothing was changed."""


class Damaged(StoreError):
    """The records of one group contradict each other, so that nothing can be derived; the group is held."""


def damaged(group: str, fault: BaseException) -> Damaged:
    """Return the error of a group; fault: what deriving met."""
    return Damaged(
        f"the records of group {group} cannot be derived ({type(fault).__name__}): "
        f"run `kgray doctor --repair --group {group}`; no other group is concerned"
    )


class Unwritable(StoreError):
    """The store refuses one transaction, or lacks the memory for it; not the next. The group is held."""


class NoStore(StoreError):
    """There is no store yet; `kgray init` or anything that is added makes it."""


class StaleWriter(StoreError):
    """A writer with an older fencing epoch; its transaction was rolled back (R23)."""


class Outrun(StoreError):
    """Another process recorded meanwhile (R4): rolled back. It never leaves a run, which reads again."""


class NoSpace(StoreError):
    """The disk is full: this transaction was rolled back; earlier ones are unaffected. A run ends with 75."""


class Locked(StoreError):
    """Another process ingests the folder; the message has its pid."""


class NotFound(KgrayError):
    """An id or a name that the group does not have."""


class Ambiguous(KgrayError):
    """A name that several entities have; the message lists their ids."""


class Denied(KgrayError):
    """A request without a key that allows it; the same for a group that exists and one that does not."""


class NotBuilt(KgrayError):
    """A valid value that is not implemented in this version."""


class Stopped(KgrayError):
    """A signal ended the run, with exit code 75; what was accepted is safe, and running it again goes on."""

    exit_code = STOPPED


class Unavailable(KgrayError):
    """A server is out of reach beyond its patience: exit code 75, the episodes stay accepted (R24)."""

    exit_code = STOPPED

    def __init__(self, reason: str, *, waited: bool = False) -> None:
        """Note whether retries have spent the patience already (waited): callers do not retry again."""
        super().__init__(reason)
        self.waited = waited


class Garbled(KgrayError):
    """A model's server sends numbers that are none, or refuses whatever it is sent; the group is held."""


class ContentError(KgrayError):
    """An episode that fails by its own content (R24); caught by the run that meets it."""

    def __init__(self, reason: str, *, raw: str = "") -> None:
        """raw: the model's last output, kept with the failure."""
        super().__init__(reason)
        self.raw = raw


class Refused(ContentError):
    """The server refused the text: too long, malformed, or on its own policy."""


class InvalidAnswer(ContentError):
    """No parsable answer, or one cut before its first complete item."""


def is_groups_own(error: BaseException | None) -> bool:
    """Whether an error concerns the group alone whose work met it, and not its content: it is held then."""
    return isinstance(error, Damaged | Garbled | Unwritable) or (
        isinstance(error, Exception) and not isinstance(error, KgrayError)
    )
