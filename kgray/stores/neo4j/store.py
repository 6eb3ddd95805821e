"""The production store: a Neo4j database behind both faces of `ports.Store`, shared by all groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kgray import locks
from kgray.ports import Store, Write
from kgray.stores.neo4j import fence, founding, schema, writing
from kgray.stores.neo4j.connection import PATIENCE_S, Connection
from kgray.stores.neo4j.copying import CopyingFace
from kgray.stores.neo4j.fence import Held
from kgray.stores.neo4j.log import LogFace
from kgray.stores.neo4j.nearest import NearestVectors
from kgray.stores.neo4j.reading import ReadingFace
from kgray.stores.neo4j.records import RecordsFace
from kgray.stores.neo4j.statements import PROBE


def open_neo4j(
    *,
    uri: str,
    user: str,
    password: str,
    database: str | None = None,
    embedder: str,
    dimensions: int,
    folder: Path | None = None,
    create: bool = True,
    patience_s: float = PATIENCE_S,
) -> Neo4jStore:
    """Open the store in a database, made or migrated where needed.

    uri         bolt://, neo4j:// or their TLS forms (+s, +ssc); database: None = the user's own
    embedder    the embedder's identity, kept in the database; dimensions: numbers a vector
    folder      the data folder, whose ingest lock is held while writing; None: the lease alone
    create      False: a database without a store is an error that names `kgray init`
    patience_s  how long a transaction waits for a server that is away, or for another's lock

    Raises SettingsError for a URI, user, password or database that is refused; Unavailable at once
    where the server does not answer; StoreError for what is newer or built with another embedder.
    """
    db = Connection(uri=uri, user=user, password=password, database=database, patience_s=patience_s)
    try:
        server = founding.probed(db)
        founding.founded(db, server, embedder=embedder, dimensions=dimensions, create=create)
        return Neo4jStore(db, server, dimensions=dimensions, folder=folder)
    except BaseException:
        db.close()
        raise


class Neo4jStore(LogFace, RecordsFace, ReadingFace, CopyingFace):
    """`ports.Store` on one database; to be closed. Any thread may read; one thread writes."""

    # 32 episodes, about 0.6 s with vectors of 1,024 numbers. Twice as many were no faster in a run.
    batch = 64
    remote = True

    def __init__(
        self, db: Connection, server: founding.Server, *, dimensions: int, folder: Path | None
    ) -> None:
        """See `open_neo4j`."""
        self._db = db
        self._nearest = NearestVectors(db, filters=server.filters)
        self.folder = folder
        self.server = server
        self.schema_version = schema.VERSION
        self.dimensions = dimensions
        self._held: Held | None = None

    @contextmanager
    def writing(self, *, epoch: int | None = None, shard: int = 0) -> Iterator[int]:
        """Hold a shard: folder lock, lease, and a fencing epoch, new or adopted; see `ports.Store`."""
        with ExitStack() as stack:
            if self.folder is not None and shard == 0:
                stack.enter_context(locks.ingesting(self.folder))
            held = stack.enter_context(fence.holding(self._db, epoch=epoch, shard=shard))
            self._held = held
            try:
                yield held.epoch
            finally:
                self._held = None

    def write(self, writes: Sequence[Write]) -> None:
        """Carry out writes of any groups, in order: one transaction, idempotent; see `ports.Store`."""
        writing.write(self._db, self._held, writes, self.dimensions)

    def compact(self) -> bool:
        """Return False: the files are the server's, and nothing a client may ask of it clears them.

        No query, index or export finds what was removed. Its bytes stay in the server's files until it
        writes over them, in its transaction logs for as long as it is told to keep those
        (`db.tx_log.rotation.retention_policy`), and in backups. To be rid of them at once: copy the groups
        into a new database (`kgray copy`) and delete the files of the old one.
        """
        return False

    def missing(self) -> list[str]:
        """Return the names of constraints and indexes that should be there and are not, or do not work."""
        return founding.missing(self._db, self.server)

    def check_writable(self) -> None:
        """Write in a transaction that is rolled back. Raises StoreError where the server refuses it."""
        self._db.try_to_write(PROBE)

    def close(self) -> None:
        """Close the driver; idempotent."""
        self._db.close()


def _is_a_store(store: Neo4jStore) -> Store:
    """Show the type checker that the class keeps the port's contract."""
    return store
