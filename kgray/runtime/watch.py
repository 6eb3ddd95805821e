"""One look at the log for all shards: the first sequencer sees new entries, and tells the others of theirs.

A look costs the store a round trip, so twenty shards that looked for themselves would cost it twenty times as
much as one, even where nothing is appended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from kgray.domain.times import Instant
from kgray.errors import KgrayError
from kgray.ports import Store
from kgray.runtime.actors import Handle, reached
from kgray.runtime.pools import Lost
from kgray.storage.transactions import slot_of

WATCH_S = 0.25  # between two looks; also how late an idle shard learns of an entry at most, but for the calls
_COUNT_S = 30.0  # between two looks at the number of shards, which `kgray scale` changes
_CALL_S = 5.0  # how long a sequencer may take to answer; the call is repeated


def name_of(shard: int) -> str:
    """Return the name of a shard's sequencer."""
    return f"sequencer-{shard}"


class LogWatch:
    """Looks at the log for all shards of a deployment, and calls the sequencers whose groups got entries."""

    def __init__(self, store: Callable[[], Store | None], named: Callable[[str], Handle]) -> None:
        """Create a watch.

        store       returns the store, or None while it is not open
        named       returns the handle of an actor; raises what Ray raises where there is none
        """
        self._store, self._named = store, named
        self.shards = 1  # how many there are, as of the last look at their number
        self._handles: dict[int, Handle] = {}
        self._owed: set[int] = set()  # shards that have not answered a call

    async def run(self) -> None:
        """Watch until cancelled. A deployment with one shard needs no watch: its sequencer looks itself."""
        mark: Instant = 0
        counted_at = -_COUNT_S
        while True:
            if (store := self._store()) is not None:
                with suppress(KgrayError):  # the run of the sequencer meets it too, and reports it
                    if time.monotonic() - counted_at >= _COUNT_S:
                        self.shards = (await asyncio.to_thread(store.shard_map)).shards
                        counted_at = time.monotonic()
                    if self.shards > 1:
                        groups, mark = await asyncio.to_thread(store.newly_pending, mark)
                        if groups:
                            owners = (await asyncio.to_thread(store.shard_map)).owners
                            self._owed |= {owners[slot_of(group)] for group in groups}
            await asyncio.gather(*map(self._call, sorted(self._owed)))
            await asyncio.sleep(WATCH_S)

    async def _call(self, shard: int) -> None:
        with suppress(Lost, ValueError, TimeoutError):
            if shard not in self._handles:
                self._handles[shard] = await asyncio.to_thread(self._named, name_of(shard))
            async with asyncio.timeout(_CALL_S):
                await reached(self._handles[shard].look)
            self._owed.discard(shard)
            return
        self._handles.pop(shard, None)
