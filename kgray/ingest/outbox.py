"""What a run has decided and not yet written: sent in batches, several side by side where that pays.

The writes of one group go one batch after the other, in the order in which they were posted; those of
different groups may overlap, in as many lanes as the store has, where there are enough of them. While batches
are on their way, new writes wait for a later one: the slower the store, the more share a transaction.

Extractions and answers are posted before the commits that use them, so no batch holds a commit whose journal
is lost. What is lost with the process was not acknowledged: it is asked and decided again (R21).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from kgray import kinds
from kgray.errors import Cost, KgrayError
from kgray.ingest import changes
from kgray.ledger import is_groups_own
from kgray.ports import Answer, RowChanges, Writer
from kgray.records import Episode

_ANSWERS = 4096  # how many of the latest requests keep their answers in memory
_LONG_S = 2.0  # of a batch: a larger one would keep appends to its groups waiting
_LEAST, _MOST = 0.25, 4.0  # sizes of a batch, as shares of the one that the store proposes
_PAYS = 0.95  # a batch of twice the size pays if a write in it takes at most this share of the time
OnDurable = Callable[[], None]


class BatchSize:
    """How many writes go together: more while that makes each cheaper, fewer where a batch takes too long."""

    def __init__(self, proposed: int) -> None:
        self.most = self._proposed = proposed
        self._bounds = max(1, round(_LEAST * proposed)), round(_MOST * proposed)
        self._each: dict[int, float] = {}  # size -> seconds a write, of full batches, the latest count most

    @property
    def whole(self) -> int:
        """How many writes are worth a transaction beside another one."""
        return min(self.most, self._proposed)

    def note(self, writes: int, seconds: float) -> None:
        """Note how long a batch took; one that was not full says nothing of another size."""
        (least, greatest), size = self._bounds, self.most
        if writes >= size:
            each = self._each[size] = (self._each.get(size, seconds / size) + seconds / size) / 2
            larger, smaller = self._each.get(2 * size, 0.0), self._each.get(size // 2, float("inf"))
            if seconds <= _LONG_S / 2 and 2 * size <= greatest and larger <= _PAYS * each:
                self.most = 2 * size
            elif _PAYS * smaller < each and size // 2 >= least:
                self.most = size // 2
        if seconds > _LONG_S:
            self.most = max(least, min(self.most, writes // 2))
            self._each.clear()  # the server is not what it was


class _Posted(NamedTuple):
    number: int  # in the order of posting
    change: RowChanges
    done: OnDurable | None


class Outbox:
    """Posted writes, which are sent while there are any."""

    def __init__(
        self, writer: Writer, *, most: int, lanes: int = 1, took: Callable[[float], None] = lambda _: None
    ) -> None:
        """most: writes per batch at first; lanes: batches at once; took: called with the seconds of each."""
        self._writer, self._lanes, self._took = writer, lanes, took
        self._size = BatchSize(most)
        self._posted = 0
        self._waiting: deque[_Posted] = deque()
        self._sent: dict[asyncio.Task[None], list[_Posted]] = {}
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()  # the number that each waits for
        self._error: BaseException | None = None  # of a failed batch
        # Ends when all is durable, None before the first write; with the error of a failed batch.
        self.sending: asyncio.Future[None] | None = None
        self.answers: dict[tuple[str, str], tuple[Answer, ...]] = {}
        self._moving: Counter[str] = Counter()  # group -> writes that change its state and are not durable
        # Group -> at which episode (0: a correction), and why, its writes are refused, until it is forgiven.
        self.faults: dict[str, tuple[int, Exception]] = {}

    def post(self, change: RowChanges, done: OnDurable | None = None) -> None:
        """Queue a change; `done` is called when it is durable, and never where the group has a fault."""
        if change.group in self.faults:
            return
        self._posted += 1
        self._waiting.append(_Posted(self._posted, change, done))
        if change.recorded_at is not None:
            self._moving[change.group] += 1
        if change.erases:  # an erased episode may have used the group's answers (R25)
            for asked in [asked for asked in self.answers if asked[0] == change.group]:
                del self.answers[asked]
        if self.sending is None or _went_well(self.sending):
            self.sending = asyncio.get_running_loop().create_future()
        if len(self._sent) < self._lanes:  # soon: writes that are posted at the same time share a batch
            asyncio.get_running_loop().call_soon(self._send)

    def remember(self, group: str, key: str, answers: tuple[Answer, ...]) -> None:
        """Keep the answers of a request that were posted and may not be in the journal yet."""
        self.answers[group, key] = answers
        if len(self.answers) > _ANSWERS:
            del self.answers[next(iter(self.answers))]

    def note_spent(self, episode: Episode, cost: Cost) -> None:
        """Post what calls of a model cost that gave nothing to keep: they count as spent (R24)."""
        if cost.calls:
            self.post(changes.spent(episode, cost))

    @contextmanager
    def accounted(self, episode: Episode, told: Callable[[str, Cost], None]) -> Iterator[None]:
        """Note, and tell, what was spent on an error, or a call that was cancelled, that leaves the block."""
        try:
            yield
        except (KgrayError, asyncio.CancelledError) as error:
            spent = getattr(error, "spent", Cost())
            told(type(error).__name__, spent)
            self.note_spent(episode, spent)
            raise

    @property
    def idle(self) -> bool:
        """Whether all that was posted is durable."""
        return self.sending is None or _went_well(self.sending)

    def moves(self, group: str) -> bool:
        """Whether a write that is not durable yet changes the group's state."""
        return self._moving[group] > 0

    async def flush(self) -> None:
        """Wait until what was posted before this call is durable; raises the error of a failed batch."""
        if self.sending is None or self.idle:
            return
        durable = asyncio.get_running_loop().create_future()
        self._flushes.append((self._posted, durable))
        await asyncio.wait((self.sending, durable), return_when=asyncio.FIRST_COMPLETED)
        if not durable.done() and not self.sending.cancelled():
            self.sending.result()

    def drop(self) -> None:
        """Drop what was posted and not sent; the batches on their way may still arrive."""
        for task in self._sent:
            task.cancel()
        if self.sending is not None and not self.sending.cancel() and not self.sending.cancelled():
            self.sending.exception()
        self.sending = self._error = None
        for kept in (self._sent, self._waiting, self._flushes, self.answers, self._moving, self.faults):
            kept.clear()

    def _send(self) -> None:
        """Begin as many batches as there are free lanes, and groups none of whose writes are on their way."""
        # After a failed batch nothing more is sent: the store would have it without what came before.
        while self._error is None and len(self._sent) < self._lanes and (taken := self._next()):
            task = asyncio.create_task(self._carry(taken))
            self._sent[task] = taken
            task.add_done_callback(self._sent_one)

    def _next(self) -> list[_Posted]:
        """Take the next batch; beside another one only a whole one: two halves cost a server more."""
        busy = {one.change.group for sent in self._sent.values() for one in sent}
        taken, left = list[_Posted](), deque[_Posted]()
        for one in self._waiting:
            is_free = len(taken) < self._size.most and one.change.group not in busy
            (taken if is_free else left).append(one)
        if self._sent and len(taken) < self._size.whole:
            return []
        self._waiting = left
        return taken

    async def _carry(self, taken: Sequence[_Posted]) -> None:
        since = time.monotonic()
        written = [one.change for one in taken]
        refused = await self._write(written)
        seconds = time.monotonic() - since
        self._size.note(len(taken), seconds)
        self._took(seconds)
        self._moving -= Counter(change.group for change in written if change.recorded_at is not None)
        for _, change, done in taken:
            if done is not None and change.group not in refused:
                done()

    def _sent_one(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._sent.pop(task, None) is None or self.sending is None or task.cancelled():
            return  # it was dropped
        self._error = self._error or error
        self._send()
        if self._error is not None:
            if not self._sent and not self.sending.done():  # what else was on its way has told how it ended
                self.sending.set_exception(self._error)
            return
        first = min((ones[0].number for ones in (*self._sent.values(), self._waiting) if ones), default=None)
        while self._flushes and (first is None or self._flushes[0][0] < first):
            _, durable = self._flushes.popleft()
            if not durable.done():
                durable.set_result(None)
        if first is None:
            self.sending.set_result(None)

    async def _write(self, written: Sequence[RowChanges]) -> set[str]:
        """Write a batch; of one that the store refuses, each group's part by itself, so that others go on.

        Returns the groups of which nothing was written.
        """
        refused: set[str] = set()
        try:
            await self._writer.write(written)
            return refused
        except Exception as error:
            if not is_groups_own(error):
                raise
        for group in dict.fromkeys(change.group for change in written):
            own = [change for change in written if change.group == group]
            try:
                await self._writer.write(own)
            except Exception as error:
                if not is_groups_own(error):
                    raise
                refused.add(group)
                self.faults[group] = own[0].sequence if own[0].ledger is kinds.EPISODES else 0, error
                self._waiting = deque(one for one in self._waiting if one.change.group != group)
                del self._moving[group]
        return refused


def _went_well(sending: asyncio.Future[None]) -> bool:
    return sending.done() and not sending.cancelled() and sending.exception() is None
