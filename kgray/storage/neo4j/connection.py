"""The one driver of a process, its transactions, how long they wait, and its errors as kgray's."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import neo4j
from neo4j import ManagedTransaction, Query, Session, Transaction
from neo4j import exceptions as driver

from kgray.errors import KgrayError, NoSpace, SettingsError, Unavailable, Unwritable
from kgray.ports import T
from kgray.settings.checks import NEO4J_SCHEMES
from kgray.system.outages import OUTAGES

Fetched = list[Any]  # a row of an answer, in the order of its RETURN
Values = dict[str, Any]  # one row of an UNWIND, or the properties of a node
Running = ManagedTransaction | Session | Transaction

PATIENCE_S = 30.0  # for a server that restarts (16 s after a kill), or for another's lock
_CONNECT_S = 5.0
_READ_S = 120.0  # for one statement; then the server ends it
_WRITE_S = 300.0
_HOLD_S = 240.0  # of locks: shorter than _WRITE_S, so that a write that waits for them does not end first
_LOCK_S = 5.0  # for a lock of `Connection.locking`
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 2.0
MAX_ROWS = 1_000  # an UNWIND: with vectors of 1,024 numbers 9 MB
# The server replans a statement whenever its counts have changed, and PUT_PLAIN takes it 0.4 to 1.5 s: that
# was half of the time of a young database. If an index finds each row, no other plan would be better.
PLANNED_ONCE = "CYPHER replan=skip\n"
_IDLE_CHECK_S = 30.0  # a connection that was idle for longer is tested before use
_log = logging.getLogger("kgray")
# Without it the driver's log would go to stderr in a program that configures no logging.
logging.getLogger("neo4j").addHandler(logging.NullHandler())


class Connection:
    """One driver; sessions are short, and each thread has its own."""

    def __init__(
        self, *, uri: str, user: str, password: str, database: str | None, patience_s: float = PATIENCE_S
    ) -> None:
        self.location = f"the Neo4j server at {_host(uri)} (user {user!r})"
        self._patience_s = patience_s
        self._database = database
        self._logged: set[str] = set()
        try:
            if uri.partition("://")[0] not in NEO4J_SCHEMES:
                raise ValueError(uri)
            self._driver = neo4j.GraphDatabase.driver(
                uri,
                auth=(user, password),
                connection_timeout=_CONNECT_S,
                connection_acquisition_timeout=patience_s,
                max_transaction_retry_time=0,  # retries are ours: the driver's pauses double without bound
                liveness_check_timeout=_IDLE_CHECK_S,
                notifications_min_severity="WARNING",
                # An empty database does not know our labels and properties.
                notifications_disabled_classifications=["UNRECOGNIZED"],
                warn_notification_severity="OFF",  # `run` logs each once: the driver would warn at each use
                user_agent="kgray",
            )
        except (ValueError, driver.DriverError):
            raise SettingsError(
                f"store.uri {_host(uri)!r} cannot be used: give bolt://host:7687 or neo4j://host (with TLS: "
                f"bolt+s, neo4j+s), without a user or password in it"
            ) from None
        try:
            self._patiently(self._driver.verify_connectivity, 0.0)
        except BaseException:
            self._driver.close()
            raise

    def close(self) -> None:
        self._driver.close()

    def rows(self, statement: str, **values: Any) -> list[Fetched]:  # noqa: ANN401 - what Cypher takes
        """Return all rows of a read, each a list in the order of its RETURN; waits while the server is away.

        It uses an implicit transaction: one round trip. An explicit transaction would cost three round trips,
        and give no snapshot either.
        """
        return self.alone(Query(statement, timeout=_READ_S), mode="READ", **values)

    def one_list(self, statement: str, **values: Any) -> list[Fetched]:  # noqa: ANN401 - as rows
        """Return the list that is a read's only value: a 60th of the time of as many rows."""
        ((items,),) = self.rows(statement, **values)
        return list(items)

    def alone(self, statement: str | Query, *, mode: str = "WRITE", **values: Any) -> list[Fetched]:  # noqa: ANN401 - what Cypher takes
        """Run a statement on the schema, without a limit of time; repeat it after a deadlock."""

        def attempt() -> list[Fetched]:
            with self._driver.session(database=self._database, default_access_mode=mode) as session:
                return self.run(session, statement, **values)

        return self._patiently(attempt)

    def write(self, work: Callable[[Running], T], *, patient: bool = True) -> T:
        """Run a write transaction until its outcome is known: all of it or nothing; not patient: try once.

        `work` runs again after a deadlock, during a restart of the server, and after a lost answer to a
        commit: so it must be idempotent. Raises Unavailable after the patience.
        """

        def write() -> T:
            with self._driver.session(database=self._database) as session:
                return session.execute_write(neo4j.unit_of_work(timeout=_WRITE_S)(work))

        return self._patiently(write, self._patience_s if patient else 0.0)

    @contextmanager
    def transaction(self) -> Iterator[Running]:
        """Open a transaction for the locks that it takes, and roll it back at the end. Raises Unavailable."""
        try:
            with (
                self._driver.session(database=self._database) as session,
                session.begin_transaction(timeout=_HOLD_S) as running,
            ):
                yield running
        except (driver.DriverError, driver.Neo4jError) as error:
            raise error_of(error, self.location) from None

    @contextmanager
    def locking(self, statement: str, **values: Any) -> Iterator[bool]:  # noqa: ANN401 - as rows
        """Hold the locks that a statement takes, in a transaction that changes nothing.

        Yields False if another process holds them. The server frees them when a process dies.
        """
        with self._driver.session(database=self._database) as session:
            try:  # only the limit of the transaction's time ends the wait for locks
                with session.begin_transaction(timeout=_LOCK_S) as probing:
                    self.run(probing, statement, **values)
                    probing.rollback()
            except (driver.DriverError, driver.Neo4jError) as error:
                if "TransactionTimedOut" not in str(getattr(error, "code", "")):
                    raise error_of(error, self.location) from None
                yield False
                return
            with session.begin_transaction() as holding:
                self.run(holding, statement, **values)
                yield True
                holding.rollback()

    def _patiently(self, attempt: Callable[[], T], patience_s: float | None = None) -> T:
        patience_s = self._patience_s if patience_s is None else patience_s
        start, ends = time.time(), time.monotonic() + patience_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                result = attempt()
            except (driver.DriverError, driver.Neo4jError) as error:
                if not is_transient(error) or time.monotonic() >= ends:
                    raise error_of(error, self.location) from None
                reason = f"is out of reach ({_reason_of(error)})"
                OUTAGES.failed(self.location, reason, since=start, patience_s=patience_s)
            else:
                if pause > _FIRST_PAUSE_S:
                    OUTAGES.answered(self.location)
                return result
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries, no secret
            pause = min(2 * pause, _LAST_PAUSE_S)

    def run(self, running: Running, statement: str | Query, **values: Any) -> list[Fetched]:  # noqa: ANN401 - as rows
        quiet = {
            name: _QUIET[type(value)](value) if type(value) in _QUIET else value
            for name, value in values.items()
        }
        result = running.run(statement, quiet)  # type: ignore[arg-type]
        rows: list[Fetched] = result.values()
        for status in result.consume().gql_status_objects:
            if status.is_notification and status.gql_status not in self._logged:
                self._logged.add(status.gql_status)
                _log.warning("%s says: %s", self.location, " ".join(status.status_description.split()))
        return rows

    def run_rows(self, running: Running, statement: str, rows: Iterable[Values]) -> list[Fetched]:
        """Run a statement for each row, which it finds by an index; MAX_ROWS at a time."""
        remaining = iter(rows)
        results: list[Fetched] = []
        while portion := list(islice(remaining, MAX_ROWS)):
            results += self.run(running, f"{PLANNED_ONCE}UNWIND $rows AS row\n{statement}", rows=portion)
        return results


class _QuietList(list[Any]):
    """A list of parameters without a text form: the driver formats all parameters for its log.

    For 32 rows with vectors that took 3 of 4 ms; and no log may hold the text of episodes.
    """

    def __repr__(self) -> str:
        return f"[{len(self)} items]"


class _QuietDict(dict[str, Any]):
    """As `_QuietList`."""

    def __repr__(self) -> str:
        return f"{{{len(self)} items}}"


_QUIET: dict[type, Callable[[Any], Any]] = {list: _QuietList, dict: _QuietDict}


def _host(uri: str) -> str:
    """Return scheme, host and port of a URI, without its user or password."""
    try:
        parts = urlsplit(uri)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(no URI)"
    return f"{parts.scheme}://{parts.hostname or ''}{port}"


_MAX_REASON = 300  # characters of the server's own message
_FULL = ("No space left", "DiskSpace", "disk space")


def is_transient(error: Exception) -> bool:
    """Return True if the same call may succeed later: the server restarts, or a lock or connection failed."""
    return isinstance(error, driver.DriverError | driver.Neo4jError) and (
        error.is_retryable() or isinstance(error, driver.IncompleteCommit)
    )


def _reason_of(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", None) or error).split())[:_MAX_REASON]


def error_of(error: Exception, location: str) -> KgrayError:
    """Return the KgrayError for an error of the driver."""
    reason = _reason_of(error)
    code = getattr(error, "code", None) or ""
    if code == "Neo.ClientError.Security.AuthenticationRateLimit":
        return SettingsError(
            f"{location} was given a wrong password too often: wait a few seconds, then correct it"
        )
    if isinstance(error, driver.AuthError):
        return SettingsError(
            f"{location} refused the user or the password: check store.user and store.password "
            f"(KGRAY_STORE_USER, KGRAY_STORE_PASSWORD) or store.password_file"
        )
    if code == "Neo.ClientError.Database.DatabaseNotFound":
        return SettingsError(f"{location} has no such database ({reason}): check store.database")
    if isinstance(error, driver.ConfigurationError | driver.UnsupportedServerProduct):
        return SettingsError(f"store.uri cannot be used ({reason}): use bolt://host:7687 or neo4j+s://host")
    if any(word in reason for word in _FULL):
        return NoSpace(f"no space left on the disk of {location}: free some space, then run it again")
    if "OutOfMemory" in code:
        return Unwritable(
            f"{location} has too little memory for one transaction ({reason}): nothing was changed; raise "
            f"its server.memory.heap.max_size, or db.memory.transaction.total.max where that is set"
        )
    if is_transient(error):
        return Unavailable(
            f"{location} is out of reach ({reason}): check that the server runs and "
            f"store.uri; what was accepted is safe, run it again",
            waited=True,
        )
    return Unwritable(f"{location} refused a statement ({code or type(error).__name__}): {reason}")
