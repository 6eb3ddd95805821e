"""The cost of the embedded store's statements: look-ups use indexes, scans read no long column in vain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import apsw
import pytest

from kgray.schema.kinds import KINDS, RECORDS, RecordRow
from kgray.schema.reads import EVERYWHERE, NAME_VECTORS, PACKED, READS, SEARCHED, STATEMENTS
from kgray.storage.sqlite import schema
from kgray.storage.sqlite import statements as sql
from tests.graph.by_hand import append, changes, draft, small

# These walk the groups, never their rows; or the pending requests.
OF_ALL_GROUPS = {"GROUPS", "PENDING_GROUPS", "PENDING_COUNT", "COUNT_STATES", "WITHDRAWING"} | {
    f"EVERYWHERE {read.name}" for read in EVERYWHERE
}


@pytest.fixture
def store(tmp_path):
    opened = small(tmp_path)
    yield opened
    opened.close()


def all_statements() -> Iterator[tuple[str, str]]:
    """Yield every statement with its name, except patches, which are made when first needed."""
    for name, value in vars(sql).items():
        if isinstance(value, str) and name.isupper() and name[0] != "_":
            yield name, value
        elif isinstance(value, Mapping) and name.isupper():
            for key, item in value.items():
                yield f"{name} {getattr(key, 'name', key)}", item


def test_every_statement_is_an_index_look_up(store):
    """No statement that a reader or a change runs may walk a table of all groups, or sort a scan."""
    slow = {}
    for name, statement in all_statements():
        count = max((n for n in range(1, 9) if f"?{n}" in statement), default=statement.count("?"))
        values = {"no": 1, "sequence": 1} if ":no" in statement else (None,) * count
        plan = store._db.rows("EXPLAIN QUERY PLAN " + statement, values)
        steps = [step for *_, step in plan]
        walks = [step for step in steps if re.match(r"SCAN (?!asked|CONSTANT|\(|found|slots|shards)", step)]
        if name.startswith("OF_READ all "):
            walks += [step for step in steps if "TEMP B-TREE" in step]
        if walks and name not in OF_ALL_GROUPS:
            slow[name] = steps
    assert slow == {}


def test_every_look_up_uses_an_index_of_its_value(store):
    """Look-ups use the group and the value; the group alone would read all its rows."""
    wrong = {}
    for read, statement in sql.OF_READ.items():
        if read.by is not None:
            plan = store._db.rows("EXPLAIN QUERY PLAN " + statement, (1, "[]"))
            (search,) = [step for *_, step in plan if step.startswith("SEARCH t")]
            first = read.by[0] if isinstance(read.by, tuple) else read.by
            if f" (no=? AND {first}=?" not in search:
                wrong[read.name] = search
    assert wrong == {}


def test_every_kind_and_read_has_its_statements():
    """The record table declares all there is: a kind or a read that is added needs no statement here."""
    assert (set(sql.PUT), set(sql.DROP), set(sql.OF_READ)) == (set(KINDS), set(KINDS), set(READS))


class CountedReads(apsw.VFS):
    """A file system that counts the bytes that are read of each file."""

    def __init__(self) -> None:
        super().__init__("counted", "")
        self.count = 0

    def xOpen(self, name, flags):  # noqa: N802 - the name that SQLite gives it
        system = self

        class CountedFile(apsw.VFSFile):
            def xRead(self, amount, offset):  # noqa: N802
                system.count += amount
                return super().xRead(amount, offset)

        return CountedFile("", name, flags)


def test_a_scan_does_not_read_pages_of_unused_long_columns(store, tmp_path):
    """An index is loaded without the vectors, and the records of a group without them and the words."""
    rows, long = 50, bytes(10 * schema.PAGE_BYTES)
    append(store, draft("a"))
    records = [RecordRow(n, None, ("0 S",), long, None, long, long, long) for n in range(1, rows + 1)]
    with store.writing():
        store.apply([changes(1, 10, {RECORDS: records})])
    store.compact()
    system = CountedReads()
    uri = f"{(tmp_path / schema.FILE).as_uri()}?immutable=1"

    def long_columns(read):
        """Return how many long columns of each row a scan reads."""
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = apsw.Connection(uri, flags=flags, vfs="counted")
        count_before = system.count
        assert len(connection.execute(sql.OF_READ[read], (1, rows, 0)).fetchall()) == rows
        connection.close()
        return round((system.count - count_before) / rows / len(long))

    scans = (STATEMENTS, PACKED, SEARCHED, NAME_VECTORS, RECORDS.all)
    assert [long_columns(read) for read in scans] == [0, 1, 2, 3, 4]
    system.unregister()
