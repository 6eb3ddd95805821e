"""The driver's and the server's errors as kgray's, one line each; never with the password."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from neo4j import exceptions as driver

from kgray.errors import KgrayError, NoSpace, SettingsError, StoreError, Unavailable

_MAX_REASON = 300  # characters of the server's own message
_NO_SUCH_DATABASE = "Neo.ClientError.Database.DatabaseNotFound"
_TOO_MANY = "Neo.ClientError.Security.AuthenticationRateLimit"
_NO_MEMORY = "OutOfMemory"
_FULL = ("No space left", "DiskSpace", "disk space")


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Raise the driver's errors inside as KgrayError; where: server and user, as in `Connection.where`."""
    try:
        yield
    except (driver.DriverError, driver.Neo4jError) as error:
        raise error_of(error, where) from None


def is_transient(error: Exception) -> bool:
    """Whether the same call may succeed later: the server restarts, a lock is held, a connection broke."""
    return isinstance(error, driver.DriverError | driver.Neo4jError) and (
        error.is_retryable() or isinstance(error, driver.IncompleteCommit)
    )


def error_of(error: Exception, where: str) -> KgrayError:
    """Return our error for one of the driver's."""
    reason = " ".join(str(getattr(error, "message", None) or error).split())[:_MAX_REASON]
    code = getattr(error, "code", None) or ""
    if code == _TOO_MANY:
        return SettingsError(
            f"{where} was given a wrong password too often: wait a few seconds, then correct it"
        )
    if isinstance(error, driver.AuthError):
        return SettingsError(
            f"{where} refused the user or the password: check store.user and store.password "
            f"(KGRAY_STORE_USER, KGRAY_STORE_PASSWORD) or store.password_file"
        )
    if code == _NO_SUCH_DATABASE:
        return SettingsError(f"{where} has no such database ({reason}): check store.database")
    if isinstance(error, driver.ConfigurationError | driver.UnsupportedServerProduct):
        return SettingsError(f"store.uri cannot be used ({reason}): use bolt://host:7687 or neo4j+s://host")
    if any(word in reason for word in _FULL):
        return NoSpace(f"no space left on the disk of {where}: free some space, then run it again")
    if _NO_MEMORY in code:
        return StoreError(
            f"{where} has too little memory for one transaction ({reason}): nothing was changed; raise its "
            f"server.memory.heap.max_size, or db.memory.transaction.total.max where that is set"
        )
    if is_transient(error):
        return Unavailable(
            f"{where} is out of reach ({reason}): check that the server runs and "
            f"store.uri; what was accepted is safe, run it again",
            waited=True,
        )
    return StoreError(f"{where} refused a statement ({code or type(error).__name__}): {reason}")
