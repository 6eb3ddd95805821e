"""The outbox of a run: writes that were decided and are not yet durable, and how they are sent.

The writes of one group are sent in the order of their posting, one batch after the other. Batches of
different groups may be on their way at once, in as many lanes as the store has, if there are enough writes. A
write that is posted meanwhile waits for a later batch: the slower the store, the more share a transaction. As
long as the run expects more writes, a batch that is not full waits for them, but not for long.

Extractions and answers are posted before the commits that use them, so the store never has a commit without
its journal. A write that is lost with the process was not acknowledged: it is asked and decided again (R21).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from kgray import kinds
from kgray.errors import Cost, KgrayError, is_groups_own
from kgray.ingest import changes
from kgray.ports import Answer, RowChanges, Writer
from kgray.records import Episode

_ANSWERS = 4096  # how many of the latest requests keep their answers in memory
_LONG_S = 2.0  # of a batch: appends to its groups wait for it
_LEAST, _MOST = 0.25, 4.0  # sizes of a batch, as shares of the one that the store proposes
_PAYS = 0.95  # twice the size pays if each write then takes at most this share of its time
OnDurable = Callable[[], None]


class BatchSize:
    """The size of a batch: larger while that makes each write cheaper, smaller if a batch takes too long."""

    def __init__(self, proposed: int) -> None:
        self.most = self._proposed = proposed
        self._bounds = max(1, round(_LEAST * proposed)), round(_MOST * proposed)
        self._each: dict[int, float] = {}  # size -> seconds a write, of full batches, the latest count most

    @property
    def full(self) -> int:
        """How many writes are worth a transaction beside another transaction."""
        return min(self.most, self._proposed)

    def note(self, writes: int, seconds: float) -> None:
        """Note how long a batch took. Only a full batch is compared with batches of other sizes."""
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


class _Post(NamedTuple):
    number: int  # in the order of posting
    due: float  # when it no longer waits for others, on the loop's clock
    change: RowChanges
    done: OnDurable | None


class Outbox:
    """The queue of posted writes, and the batches on their way."""

    def __init__(
        self,
        writer: Writer,
        *,
        most: int,
        lanes: int = 1,
        gather_s: float = 0.0,
        expects: Callable[[], bool] = lambda: False,
        took: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Make an empty outbox.

        most        writes per batch at first
        lanes       batches at once
        gather_s    how long a write waits for others at most
        expects     whether more writes may come without one who waits for those that are queued
        took        called with the seconds of each batch
        """
        self._writer, self._lanes, self._took = writer, lanes, took
        self._gather_s, self._expects = gather_s, expects
        self._timer: asyncio.TimerHandle | None = None  # sends what has waited for `gather_s`
        self._size = BatchSize(most)
        self._number = 0
        self._waiting: deque[_Post] = deque()
        self._batches: dict[asyncio.Task[None], list[_Post]] = {}
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()  # the last number that each awaits
        self._error: BaseException | None = None  # of a failed batch
        # Ends when all is durable, None before the first write; with the error of a failed batch.
        self.sending: asyncio.Future[None] | None = None
        self.answers: dict[tuple[str, str], tuple[Answer, ...]] = {}
        # Group -> the keys of the requests that its journal answers, where they were read in this run; before
        # that, how many requests were looked up.
        self.requests: dict[str, set[str]] = {}
        self.look_ups: Counter[str] = Counter()
        self._moving: Counter[str] = Counter()  # group -> writes that change its state and are not durable
        # Group -> at which episode (0: a correction), and why, its writes are refused, until it is forgiven.
        self.faults: dict[str, tuple[int, Exception]] = {}

    def post(self, change: RowChanges, done: OnDurable | None = None) -> None:
        """Queue a change; `done` is called when it is durable, and never where the group has a fault."""
        if change.group in self.faults:
            return
        loop = asyncio.get_running_loop()
        self._number += 1
        self._waiting.append(_Post(self._number, loop.time() + self._gather_s, change, done))
        if change.recorded_at is not None:
            self._moving[change.group] += 1
        if change.erases:  # an erased episode may have used the group's answers (R25)
            self.forget_answers(change.group)
        if self.sending is None or _went_well(self.sending):
            self.sending = loop.create_future()
        if len(self._batches) < self._lanes:  # soon: writes that are posted at the same time share a batch
            loop.call_soon(self._send)

    def remember(self, group: str, key: str, answers: tuple[Answer, ...]) -> None:
        """Keep the answers of a request that were posted and may not be in the journal yet."""
        self.answers[group, key] = answers
        if group in self.requests:
            self.requests[group].add(key)
        if len(self.answers) > _ANSWERS:
            del self.answers[next(iter(self.answers))]

    def forget_answers(self, group: str) -> None:
        """Forget the answers of a group; the journal has those that are durable."""
        for asked in [asked for asked in self.answers if asked[0] == group]:
            del self.answers[asked]

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

    def forget_requests(self) -> None:
        """Forget which requests the journals answer: another process may have written there."""
        self.requests.clear()
        self.look_ups.clear()

    async def flush(self) -> None:
        """Wait until what was posted before this call is durable; raises the error of a failed batch."""
        if self.sending is None or self.idle:
            return
        durable = asyncio.get_running_loop().create_future()
        self._flushes.append((self._number, durable))
        self._send()
        await asyncio.wait((self.sending, durable), return_when=asyncio.FIRST_COMPLETED)
        if not durable.done() and not self.sending.cancelled():
            self.sending.result()

    def drop(self) -> None:
        """Drop what was posted and not sent; the batches on their way may still arrive."""
        for task in self._batches:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.sending is not None and not self.sending.cancel() and not self.sending.cancelled():
            self.sending.exception()
        self.sending = self._error = None
        for kept in (self._batches, self._waiting, self._flushes, self._moving, self.faults):
            kept.clear()
        self.answers.clear()
        self.forget_requests()

    def _send(self) -> None:
        """Begin a batch in each free lane, of groups without a write on its way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # After a failed batch nothing more is sent: the store would have it without what came before.
        while self._error is None and len(self._batches) < self._lanes and (batch := self._next()):
            task = asyncio.create_task(self._carry(batch))
            self._batches[task] = batch
            task.add_done_callback(self._end_batch)

    def _next(self) -> list[_Post]:
        """Take the next batch, if there is one that need not wait for further writes."""
        busy = {post.change.group for batch in self._batches.values() for post in batch}
        batch, rest = list[_Post](), deque[_Post]()
        for post in self._waiting:
            is_free = len(batch) < self._size.most and post.change.group not in busy
            (batch if is_free else rest).append(post)
        if len(batch) < self._size.full:
            if self._batches:  # two halves side by side cost a server more than one after the other
                return []
            loop = asyncio.get_running_loop()
            if batch and batch[0].due > loop.time() and not self._flushes and self._expects():
                self._timer = loop.call_at(batch[0].due, self._send)
                return []
        self._waiting = rest
        return batch

    async def _carry(self, batch: Sequence[_Post]) -> None:
        """Write a batch; then call the `done` of each write that is durable."""
        since = time.monotonic()
        written = [post.change for post in batch]
        refused = await self._write(written)
        seconds = time.monotonic() - since
        self._size.note(len(batch), seconds)
        self._took(seconds)
        self._moving -= Counter(change.group for change in written if change.recorded_at is not None)
        for _, _, change, done in batch:
            if done is not None and change.group not in refused:
                done()

    def _end_batch(self, task: asyncio.Task[None]) -> None:
        """Free the lane of a batch, use it, and end those who wait for writes that are durable now."""
        error = None if task.cancelled() else task.exception()
        if self._batches.pop(task, None) is None or self.sending is None or task.cancelled():
            return  # `drop` has forgotten it
        self._error = self._error or error
        self._send()
        if self._error is not None:
            if not self._batches and not self.sending.done():  # the other batches have ended too
                self.sending.set_exception(self._error)
            return
        parts = [*self._batches.values(), self._waiting]
        first = min((part[0].number for part in parts if part), default=None)  # that is not durable
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
                self._waiting = deque(post for post in self._waiting if post.change.group != group)
                del self._moving[group]
        return refused


def _went_well(sending: asyncio.Future[None]) -> bool:
    return sending.done() and not sending.cancelled() and sending.exception() is None
