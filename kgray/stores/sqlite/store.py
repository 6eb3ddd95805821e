"""The embedded store: one SQLite file in a data folder behind both faces of `ports.Store`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kgray import locks
from kgray.errors import StoreError
from kgray.ports import Commit, ResponseCache, Store, Write
from kgray.stores.sqlite import folder, schema, writing
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.cache import ResponseFile, SqliteResponses
from kgray.stores.sqlite.copying import CopyingFace
from kgray.stores.sqlite.database import Database, digest, key_of
from kgray.stores.sqlite.log import LogFace
from kgray.stores.sqlite.reading import ReadingFace
from kgray.stores.sqlite.vectors import VectorSets

# How long a short transaction waits for another process's; a commit holds the lock for milliseconds,
# a compaction of a large file for seconds.
PATIENCE_S = 30.0
# Of pages that the reading connection keeps. Two searches over 20,000 facts each way: hybrid p50 22.2 and
# 20.3 ms with 64, 23.4 and 25.4 ms with 16.
CACHE_MB = 64


def open_sqlite(
    folder: Path,
    *,
    embedder: str,
    dimensions: int,
    create: bool = True,
    patience_s: float = PATIENCE_S,
    cache_mb: int = CACHE_MB,
) -> SqliteStore:
    """Open the store in a data folder, made or migrated where needed.

    embedder    the embedder's identity, kept with the folder; dimensions: numbers a vector
    create      False: a folder without a store is an error that names `kgray init`
    cache_mb    of pages, at most, by the connection that reads; the one that writes keeps 32 at most

    Raises StoreError, with nothing changed, for what is not ours, newer, damaged, or built with
    another embedder; Unavailable where another process holds the file beyond `patience_s`.
    """
    return SqliteStore(
        folder,
        embedder=embedder,
        dimensions=dimensions,
        create=create,
        patience_s=patience_s,
        cache_mb=cache_mb,
    )


class SqliteStore(LogFace, ReadingFace, CopyingFace):
    """`ports.Store` on one file; to be closed. One thread at a time reads; writers take turns."""

    batch = 32  # 16 episodes of 0.6 ms of CPU each
    remote = False

    def __init__(
        self,
        path: Path,
        *,
        embedder: str,
        dimensions: int,
        create: bool,
        patience_s: float,
        cache_mb: int,
    ) -> None:
        """See `open_sqlite`."""
        self.folder = path
        self.schema_version = schema.VERSION
        self.dimensions = dimensions
        file = folder.opened(
            path, embedder=embedder, dimensions=dimensions, create=create, patience_s=patience_s
        )
        self._db = Database(file, patience_s=patience_s, cache_mb=cache_mb)
        self._vectors = VectorSets(self._db, dimensions)
        self._responses = ResponseFile(path, patience_s=patience_s)

    def responses(self, *, max_bytes: int) -> ResponseCache:
        """Return the folder's response cache, a file of its own; closed with the store."""
        return SqliteResponses(self._responses, max_bytes=max_bytes, standing=self.standing)

    @contextmanager
    def writing(self, *, epoch: int | None = None, shard: int = 0) -> Iterator[int]:
        """Hold the folder's ingest lock and a fencing epoch, new or adopted; see `ports.Store`."""
        if shard:
            raise StoreError(f"the embedded store is one shard, 0, and has no shard {shard}")
        with locks.ingesting(self.folder), self._db.fenced(epoch) as held:
            yield held

    def write(self, writes: Sequence[Write]) -> None:
        """Carry out writes in order, in one transaction; see `ports.Store`."""
        for write in writes:
            if isinstance(write, Commit):
                self._erase_responses(write)
        writing.write(self._db, writes, self.dimensions)

    def compact(self) -> bool:
        """Make what was erased unreadable in the files; False where a reader prevents it now."""
        cut = self._responses.compact()
        return self._db.compact() and cut

    def close(self) -> None:
        """Release files and memory; idempotent."""
        self._responses.close()
        self._vectors.clear()
        self._db.close()

    def _erase_responses(self, commit: Commit) -> None:
        """Drop cached replies before the rows that name the episodes: a kill between leaves nothing behind.

        Whatever the settings say of the cache now: the file may be of an earlier run.
        """
        if commit.forgotten:
            self._responses.erase_group(commit.group)
        elif commit.erased and (group := self._db.held(sql.GROUP_NUMBER, (digest(commit.group),))):
            keys = [key_of(group[0], sequence) for sequence in sorted(set(commit.erased))]
            rows = [self._db.held(sql.EPISODE_ID, (key,)) for key in keys]
            self._responses.erase(commit.group, [row[0] for row in rows if row is not None])


def _is_a_store(store: SqliteStore) -> Store:
    """Show the type checker that the class keeps the port's contract."""
    return store
