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
from kgray.outages import OUTAGES
from kgray.ports import T
from kgray.settings.checks import NEO4J_SCHEMES

Fetched = list[Any]  # a row of an answer, in the order of its RETURN
Values = dict[str, Any]  # one row of an UNWIND, or the properties of a node
Running = ManagedTransaction | Session | Transaction

PATIENCE_S = 30.0  # for a server that restarts (16 s after a kill), or for another's lock
_CONNECT_S = 5.0
_READ_S = 120.0  # for one statement; then the server ends it
_WRITE_S = 300.0
_HOLD_S = 240.0  # of locks: a write that waits for them must not be ended before
_LOCK_S = 5.0  # for a lock of `Connection.locking`
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 2.0
MAX_ROWS = 1_000  # an UNWIND: with vectors of 1,024 numbers 9 MB
# The server plans a statement anew whenever its counts have changed, and PUT_PLAIN takes it 0.4 to 1.5 s:
# that was half of the time of a young database. Where an index finds each row, no other plan would be better.
PLANNED_ONCE = "CYPHER replan=skip\n"
_IDLE_CHECK_S = 30.0  # a connection that was idle for longer is tested before it is used
_log = logging.getLogger("kgray")
# So the driver's log goes where the program configures it, and not to stderr where it configures nothing.
logging.getLogger("neo4j").addHandler(logging.NullHandler())


class Connection:
    """One driver; sessions are short, and each thread has its own."""

    def __init__(
        self, *, uri: str, user: str, password: str, database: str | None, patience_s: float = PATIENCE_S
    ) -> None:
        self.where = f"the Neo4j server at {_host(uri)} (user {user!r})"
        self._patience_s = patience_s
        self._database = database
        self._seen: set[str] = set()
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
                # A database that holds nothing yet knows none of our labels and properties.
                notifications_disabled_classifications=["UNRECOGNIZED"],
                warn_notification_severity="OFF",  # we log each once: the driver would warn at each use
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

        In a transaction of the server's own: one round trip. One of ours would cost three, and no snapshot.
        """
        return self.alone(Query(statement, timeout=_READ_S), mode="READ", **values)

    def one_list(self, statement: str, **values: Any) -> list[Fetched]:  # noqa: ANN401 - as rows
        """Return the list that a read returns as its one value: a 60th of the time that as many rows take."""
        ((found,),) = self.rows(statement, **values)
        return list(found)

    def alone(self, statement: str | Query, *, mode: str = "WRITE", **values: Any) -> list[Fetched]:  # noqa: ANN401 - what Cypher takes
        """Run a statement on the schema, however long it takes; again where two processes deadlock on it."""

        def attempt() -> list[Fetched]:
            with self._driver.session(database=self._database, default_access_mode=mode) as session:
                return self.run(session, statement, **values)

        return self._patiently(attempt)

    def write(self, work: Callable[[Running], T], *, patient: bool = True) -> T:
        """Run a write transaction until its outcome is known: all of it or nothing; not patient: try once.

        `work` is run again after a deadlock, while the server restarts, and where the answer to a commit was
        lost: it must cope with having been committed before. Raises Unavailable after the patience.
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
            raise error_of(error, self.where) from None

    @contextmanager
    def locking(self, statement: str, **values: Any) -> Iterator[bool]:  # noqa: ANN401 - as rows
        """Hold the locks that a statement takes, in a transaction that changes nothing.

        Yields False where another process holds them. The server frees them when a process dies.
        """
        with self._driver.session(database=self._database) as session:
            try:  # it waits for locks without end, but for this limit of a transaction's time
                with session.begin_transaction(timeout=_LOCK_S) as probing:
                    self.run(probing, statement, **values)
                    probing.rollback()
            except (driver.DriverError, driver.Neo4jError) as error:
                if "TransactionTimedOut" not in str(getattr(error, "code", "")):
                    raise error_of(error, self.where) from None
                yield False
                return
            with session.begin_transaction() as holding:
                self.run(holding, statement, **values)
                yield True
                holding.rollback()

    def _patiently(self, attempt: Callable[[], T], patience_s: float | None = None) -> T:
        patience_s = self._patience_s if patience_s is None else patience_s
        since, ends = time.time(), time.monotonic() + patience_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                found = attempt()
            except (driver.DriverError, driver.Neo4jError) as error:
                if not is_transient(error) or time.monotonic() >= ends:
                    raise error_of(error, self.where) from None
                reason = f"is out of reach ({_said(error)})"
                OUTAGES.failed(self.where, reason, since=since, patience_s=patience_s)
            else:
                if pause > _FIRST_PAUSE_S:
                    OUTAGES.answered(self.where)
                return found
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries, no secret
            pause = min(2 * pause, _LAST_PAUSE_S)

    def run(self, running: Running, statement: str | Query, **values: Any) -> list[Fetched]:  # noqa: ANN401 - as rows
        quiet = {
            name: _QUIET[type(value)](value) if type(value) in _QUIET else value
            for name, value in values.items()
        }
        result = running.run(statement, quiet)  # type: ignore[arg-type]
        found: list[Fetched] = result.values()
        for status in result.consume().gql_status_objects:
            if status.is_notification and status.gql_status not in self._seen:
                self._seen.add(status.gql_status)
                _log.warning("%s says: %s", self.where, " ".join(status.status_description.split()))
        return found

    def run_rows(self, running: Running, statement: str, rows: Iterable[Values]) -> list[Fetched]:
        """Run a statement for each row, which it finds by an index of its own; MAX_ROWS at a time."""
        rest = iter(rows)
        found: list[Fetched] = []
        while portion := list(islice(rest, MAX_ROWS)):
            found += self.run(running, f"{PLANNED_ONCE}UNWIND $rows AS row\n{statement}", rows=portion)
        return found


class _QuietList(list[Any]):
    """A list of parameters without a text form: the driver makes it of all that it sends, for a log.

    Of 32 rows with vectors that took 3 of 4 ms; and what episodes say is for nobody's log.
    """

    def __repr__(self) -> str:
        return f"[{len(self)} items]"


class _QuietDict(dict[str, Any]):
    """As `_QuietList`."""

    def __repr__(self) -> str:
        return f"{{{len(self)} items}}"


_QUIET: dict[type, Callable[[Any], Any]] = {list: _QuietList, dict: _QuietDict}


def _host(uri: str) -> str:
    """Return scheme, host and port of a URI, without a user or password that was written into it."""
    try:
        parts = urlsplit(uri)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(no URI)"
    return f"{parts.scheme}://{parts.hostname or ''}{port}"


_MAX_REASON = 300  # characters of the server's own message
_FULL = ("No space left", "DiskSpace", "disk space")


def is_transient(error: Exception) -> bool:
    """Whether the same call may succeed later: the server restarts, a lock is held, a connection broke."""
    return isinstance(error, driver.DriverError | driver.Neo4jError) and (
        error.is_retryable() or isinstance(error, driver.IncompleteCommit)
    )


def _said(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", None) or error).split())[:_MAX_REASON]


def error_of(error: Exception, where: str) -> KgrayError:
    """Return our error for one of the driver's."""
    reason = _said(error)
    code = getattr(error, "code", None) or ""
    if code == "Neo.ClientError.Security.AuthenticationRateLimit":
        return SettingsError(
            f"{where} was given a wrong password too often: wait a few seconds, then correct it"
        )
    if isinstance(error, driver.AuthError):
        return SettingsError(
            f"{where} refused the user or the password: check store.user and store.password "
            f"(KGRAY_STORE_USER, KGRAY_STORE_PASSWORD) or store.password_file"
        )
    if code == "Neo.ClientError.Database.DatabaseNotFound":
        return SettingsError(f"{where} has no such database ({reason}): check store.database")
    if isinstance(error, driver.ConfigurationError | driver.UnsupportedServerProduct):
        return SettingsError(f"store.uri cannot be used ({reason}): use bolt://host:7687 or neo4j+s://host")
    if any(word in reason for word in _FULL):
        return NoSpace(f"no space left on the disk of {where}: free some space, then run it again")
    if "OutOfMemory" in code:
        return Unwritable(
            f"{where} has too little memory for one transaction ({reason}): nothing was changed; raise its "
            f"server.memory.heap.max_size, or db.memory.transaction.total.max where that is set"
        )
    if is_transient(error):
        return Unavailable(
            f"{where} is out of reach ({reason}): check that the server runs and "
            f"store.uri; what was accepted is safe, run it again",
            waited=True,
        )
    return Unwritable(f"{where} refused a statement ({code or type(error).__name__}): {reason}")
