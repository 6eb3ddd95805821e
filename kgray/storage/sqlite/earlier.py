"""Upgrade a data folder: build a new file in a subfolder, and rename it into the place of the old file.

The old file is not changed until then, so a killed process loses only its own work. No other process may have
the file open: an earlier version would continue to write to a file that has lost its name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import apsw

from kgray.errors import Locked, NoStore, StoreError
from kgray.ports import GroupHead, Store
from kgray.storage.earlier import EarlierStore, OldColumn, OldGroup, OldKind, OldRow
from kgray.storage.sqlite import schema
from kgray.storage.sqlite.database import connect, explained
from kgray.storage.sqlite.folder import is_there, read_header
from kgray.storage.sqlite.store import open_sqlite
from kgray.storage.transactions import check_version
from kgray.system import locks

OLDEST = 9  # the schema of version 0.1
BUILD_FOLDER = "upgrading"  # the folder where the new file is built
_PATIENCE_S, _CACHE_MB = 5.0, 32


@contextmanager
def earlier_sqlite(folder: Path, *, alone: bool) -> Iterator[EarlierSqlite | None]:
    """Open the file of an earlier version in a data folder; None if it is of this version.

    alone   keep every other process out

    Raises Locked if another process has the file open or ingests; NoStore; StoreError for a file that is
    newer, too old, or not kgray's.
    """
    path = folder / schema.FILE
    with ExitStack() as stack:
        stack.enter_context(explained(path))
        if not is_there(path):
            raise NoStore(f"there is no kgray store in {folder}: run `kgray init --data {folder}`")
        if alone:
            stack.enter_context(locks.ingesting(folder))
            shutil.rmtree(folder / BUILD_FOLDER, ignore_errors=True)  # of a process that was killed
        version = read_header(path)
        if version == schema.VERSION:
            yield None
            return
        if version < OLDEST:
            raise StoreError(
                f"{path} has schema {version}; kgray can upgrade data from schema {OLDEST} on: choose an "
                f"empty data folder and add the episodes again"
            )
        if version > schema.VERSION:
            check_version(path, version, schema.VERSION)
        connection = stack.enter_context(closing(_connection(path, alone=alone)))
        yield EarlierSqlite(folder, connection)


def _connection(path: Path, *, alone: bool) -> apsw.Connection:
    connection = connect(path, patience_s=_PATIENCE_S, cache_mb=_CACHE_MB)
    if not alone:
        connection.execute("BEGIN")  # one snapshot for all reads
        return connection
    # In this mode SQLite opens a WAL file only if no other connection has it open, and keeps others out.
    connection.pragma("locking_mode", "EXCLUSIVE")
    try:
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
    except apsw.BusyError:
        connection.close()
        raise Locked(
            f"another process has {path} open: end it (kgray serve, kgray mcp, kgray up), then run it again"
        ) from None
    return connection


def _value(column: OldColumn, stored: Any) -> Any:  # noqa: ANN401 - of any type
    if stored is None:
        return column.default
    if column.type == "texts":
        return tuple(json.loads(stored))
    return bool(stored) if column.type == "bool" else stored


class EarlierSqlite(EarlierStore):
    """The file of an earlier version, open in this process alone."""

    is_in_place = is_changed = False
    report = None
    schema_after = schema.VERSION

    def __init__(self, folder: Path, connection: apsw.Connection) -> None:
        self.folder, self._connection = folder, connection
        self.location = str(folder / schema.FILE)
        self.schema = int(connection.pragma("user_version"))
        self.is_first = self.schema == OLDEST
        self.kept_path = f"{self.location}.schema-{self.schema}"
        self._numbers: dict[str, int] = {}
        self._columns: dict[str, set[str]] = {}

    def groups(self) -> list[OldGroup]:
        rows = self._all(
            "SELECT no, name, last, last_recorded FROM groups WHERE name IS NOT NULL ORDER BY name"
        )
        self._numbers = {name: no for no, name, *_ in rows}
        return [
            OldGroup(name, GroupHead(named=True, last=last, last_recorded=at)) for _, name, last, at in rows
        ]

    def rows(self, group: str, kind: OldKind) -> list[OldRow]:
        stored = self._columns.get(kind.name)
        if stored is None:
            stored = {row[1] for row in self._all(f"PRAGMA table_info({kind.name})")}
            self._columns[kind.name] = stored
        if not stored:
            return []
        chosen = ", ".join(column.name if column.name in stored else "NULL" for column in kind.columns)
        order = ", ".join(column.name for column in kind.columns if column.is_key)
        statement = f"SELECT {chosen} FROM {kind.name} WHERE no = ? ORDER BY {order}"  # noqa: S608 - of OLD_KINDS
        rows = self._all(statement, (self._numbers[group],))
        return [kind.make(*map(_value, kind.columns, row)) for row in rows]

    @contextmanager
    def successor(self) -> Iterator[Store]:
        stored = dict(self._all("SELECT key, value FROM meta"))
        build_folder = self.folder / BUILD_FOLDER
        embedder, dimensions = str(stored["embedder"]), int(stored["dimensions"])
        try:
            with closing(open_sqlite(build_folder, embedder=embedder, dimensions=dimensions)) as store:
                yield store
            self._keep_removed(build_folder / schema.FILE)
        except BaseException:
            shutil.rmtree(build_folder, ignore_errors=True)
            raise

    def _keep_removed(self, path: Path) -> None:
        """Take over removed groups: the hash of the name, the counters, and how the removal ended (R19)."""
        removed = "SELECT no, digest, last, last_recorded, removals FROM groups WHERE name IS NULL"
        columns = "sequence, kind, payload, state, recorded_at, result"
        ended = f"SELECT {columns} FROM operations WHERE no = ? AND payload = '{{}}'"  # noqa: S608 - names
        with closing(apsw.Connection(str(path))) as new, new:
            for no, *head in self._all(removed):
                new.execute(
                    # Its slot follows from its name, which is unknown until its next use.
                    "INSERT INTO groups (digest, slot, last, last_recorded, removals) VALUES (?, 0, ?, ?, ?)",
                    head,
                )
                number = new.last_insert_rowid()
                rows = [(number, *row) for row in self._all(ended, (no,))]
                new.executemany(
                    f"INSERT INTO operations (no, {columns}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                    rows,
                )

    def replace(self, report: str) -> None:  # noqa: ARG002 - a killed run starts again
        path, build_folder = self.folder / schema.FILE, self.folder / BUILD_FOLDER
        with explained(path):
            _closed(build_folder / schema.FILE)
            self._copy_to(Path(self.kept_path))
            # The new file must not get the write-ahead log of the old file; a journal in memory leaves none.
            if self._connection.pragma("journal_mode", "memory") != "memory":
                raise Locked(f"another process has {path} open: end it, then run the upgrade again")
            (build_folder / schema.FILE).replace(path)
            locks.sync(self.folder)
            # A process that has opened the old file in the meantime must not write to it.
            self._connection.pragma("user_version", schema.VERSION)
            shutil.rmtree(build_folder, ignore_errors=True)

    def _copy_to(self, kept_path: Path) -> None:
        """Copy the whole old file, so that a user can restore it."""
        new = kept_path.with_name(f"{kept_path.name}.new")
        new.unlink(missing_ok=True)
        os.close(locks.for_owner(str(new), os.O_CREAT | os.O_WRONLY))
        with (
            closing(apsw.Connection(str(new))) as copy,
            copy.backup("main", self._connection, "main") as backup,
        ):
            while not backup.done:
                backup.step(10_000)
        locks.sync(new)
        new.replace(kept_path)

    def _all(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()


def _closed(path: Path) -> None:
    """Make sure that a file is complete without its log, and on disk."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    locks.sync(path)
    if path.with_name(f"{path.name}-wal").exists():
        raise StoreError(f"{path} could not be closed: run the upgrade again")
